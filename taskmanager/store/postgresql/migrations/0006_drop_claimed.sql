-- The index of what is taken answers what this one did.
DROP INDEX IF EXISTS taskmanager_tasks_claimed;
