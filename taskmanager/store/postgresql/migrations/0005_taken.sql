-- outside a transaction
-- Limits that hold for all instances count what was claimed, by queue, and while that is slow what was so lately. What was
-- started without a claim has no entry: one for each such start would cost the server 2 us, of 40.
CREATE INDEX CONCURRENTLY taskmanager_tasks_taken ON taskmanager_tasks (queue_name, claimed_at)
    WHERE claimed_at IS NOT NULL AND status IN ('CLAIMED', 'RUNNING');
