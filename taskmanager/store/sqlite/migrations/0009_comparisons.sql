-- The conditions of these indexes were lists. Of a list of three or more SQLite makes a table, anew for each row that is
-- written, which took longer than to write the row. The CHECKs of an older file are spelled anew when this is applied.
CREATE INDEX taskmanager_tasks_owned ON taskmanager_tasks (claimed_by_worker_id, id)
    WHERE claimed_by_worker_id IS NOT NULL AND (status = 'PENDING' OR status = 'CLAIMED' OR status = 'RUNNING');
CREATE INDEX taskmanager_tasks_of_schedules ON taskmanager_tasks (tags)
    WHERE scheduled_for IS NOT NULL AND (status = 'PENDING' OR status = 'CLAIMED' OR status = 'RUNNING');
CREATE INDEX taskmanager_tasks_in_workflows ON taskmanager_tasks (id)
    WHERE is_workflow_task = 1 AND (status = 'PENDING' OR status = 'CLAIMED' OR status = 'RUNNING');
CREATE INDEX taskmanager_workflow_tasks_to_end ON taskmanager_workflow_tasks (workflow_id, status)
    WHERE NOT (status = 'COMPLETED' OR status = 'FAILED' OR status = 'SKIPPED');
CREATE INDEX taskmanager_workflow_tasks_to_tell ON taskmanager_workflow_tasks (workflow_id)
    WHERE is_passed_on = 0 AND (status = 'COMPLETED' OR status = 'FAILED' OR status = 'SKIPPED');
