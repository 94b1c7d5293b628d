-- What may be claimed in one queue, best first, whatever the function. One that leads with the function makes a claim for
-- twenty functions sort twenty times as many rows as it takes.
CREATE INDEX taskmanager_tasks_ready ON taskmanager_tasks (queue_name, priority, enqueued_at, id, task_name)
    WHERE claimed_by_worker_id IS NULL AND status = 'PENDING';
-- What waits in the memory of an instance, in the same order: another one that is idle may take it over.
CREATE INDEX taskmanager_tasks_waiting ON taskmanager_tasks (queue_name, priority, enqueued_at, id)
    WHERE claimed_by_worker_id IS NOT NULL AND status IN ('PENDING', 'CLAIMED');
