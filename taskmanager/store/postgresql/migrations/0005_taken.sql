-- outside a transaction
-- Limits that hold for all instances count what is claimed or runs, by queue, and where that is slow what was so lately.
CREATE INDEX CONCURRENTLY taskmanager_tasks_taken ON taskmanager_tasks (queue_name, greatest(claimed_at, started_at))
    WHERE status IN ('CLAIMED', 'RUNNING');
