-- The index of free rows by queue answers what this one did.
DROP INDEX IF EXISTS taskmanager_tasks_queue_name;
