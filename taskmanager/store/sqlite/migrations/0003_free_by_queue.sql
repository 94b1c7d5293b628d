-- What may be claimed in one queue, best first, whatever the function. One that leads with the function makes a claim for
-- twenty functions sort twenty times as many rows as it takes.
CREATE INDEX taskmanager_tasks_ready ON taskmanager_tasks (queue_name, priority, enqueued_at, id, task_name)
    WHERE claimed_by_worker_id IS NULL AND status = 'PENDING';
