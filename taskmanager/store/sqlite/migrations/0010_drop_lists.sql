-- The indexes of 0009 answer what these did.
DROP INDEX IF EXISTS taskmanager_tasks_owner;
DROP INDEX IF EXISTS taskmanager_tasks_scheduled;
DROP INDEX IF EXISTS taskmanager_tasks_of_workflows;
DROP INDEX IF EXISTS taskmanager_workflow_tasks_open;
DROP INDEX IF EXISTS taskmanager_workflow_tasks_untold;
