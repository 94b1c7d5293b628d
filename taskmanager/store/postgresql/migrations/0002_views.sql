-- Two views for people: what is still to be done, and what has ended, with instants as timestamptz and JSON as jsonb.

-- An instant that no calendar has is NULL: one such row must not hide all others. The sum of seconds and microseconds is
-- exact, which to_timestamp is not.
CREATE FUNCTION taskmanager_instant(us bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN us BETWEEN 0 AND 253402300799999999 THEN timestamptz 'epoch'
        + (us / 1000000) * interval '1 second' + (us % 1000000) * interval '1 microsecond' END;

-- What jsonb refuses is shown as the text that it is: a NUL in a string, and what a program has written that is no JSON.
-- A block with EXCEPTION is a subtransaction, which no parallel worker may have: so it is not PARALLEL SAFE.
CREATE FUNCTION taskmanager_json(json_text text) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE STRICT
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN json_text::jsonb;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN to_jsonb(json_text);
END
$$;

CREATE VIEW taskmanager_pending AS
SELECT
    id,
    task_name,
    queue_name,
    priority,
    status,
    taskmanager_instant(sent_at) AS sent_at,
    taskmanager_instant(enqueued_at) AS enqueued_at,
    taskmanager_instant(claimed_at) AS claimed_at,
    claimed_by_worker_id,
    taskmanager_instant(started_at) AS started_at,
    taskmanager_instant(completed_at) AS completed_at,
    taskmanager_instant(failed_at) AS failed_at,
    error_code,
    failed_reason,
    taskmanager_instant(good_until) AS good_until,
    retry_count,
    max_retries,
    taskmanager_instant(next_retry_at) AS next_retry_at,
    start_count,
    crash_count,
    snooze_count,
    taskmanager_instant(scheduled_for) AS scheduled_for,
    taskmanager_instant(cancel_requested_at) AS cancel_requested_at,
    taskmanager_instant(finalizing_at) AS finalizing_at,
    finalizing_by_worker_id,
    taskmanager_instant(claim_expires_at) AS claim_expires_at,
    taskmanager_json(progress) AS progress,
    taskmanager_json(tags) AS tags,
    idempotency_key,
    taskmanager_json(args) AS args,
    taskmanager_json(kwargs) AS kwargs,
    taskmanager_json(result) AS result,
    taskmanager_json(task_options) AS task_options,
    worker_pid,
    worker_hostname,
    worker_process_name,
    taskmanager_instant(created_at) AS created_at,
    taskmanager_instant(updated_at) AS updated_at
FROM taskmanager_tasks
WHERE status IN ('PENDING', 'CLAIMED', 'RUNNING');

CREATE VIEW taskmanager_history AS
SELECT
    id,
    task_name,
    queue_name,
    priority,
    status,
    taskmanager_instant(sent_at) AS sent_at,
    taskmanager_instant(enqueued_at) AS enqueued_at,
    taskmanager_instant(claimed_at) AS claimed_at,
    claimed_by_worker_id,
    taskmanager_instant(started_at) AS started_at,
    taskmanager_instant(completed_at) AS completed_at,
    taskmanager_instant(failed_at) AS failed_at,
    error_code,
    failed_reason,
    taskmanager_instant(good_until) AS good_until,
    retry_count,
    max_retries,
    taskmanager_instant(next_retry_at) AS next_retry_at,
    start_count,
    crash_count,
    snooze_count,
    taskmanager_instant(scheduled_for) AS scheduled_for,
    taskmanager_instant(cancel_requested_at) AS cancel_requested_at,
    taskmanager_instant(finalizing_at) AS finalizing_at,
    finalizing_by_worker_id,
    taskmanager_instant(claim_expires_at) AS claim_expires_at,
    taskmanager_json(progress) AS progress,
    taskmanager_json(tags) AS tags,
    idempotency_key,
    taskmanager_json(args) AS args,
    taskmanager_json(kwargs) AS kwargs,
    taskmanager_json(result) AS result,
    taskmanager_json(task_options) AS task_options,
    worker_pid,
    worker_hostname,
    worker_process_name,
    taskmanager_instant(created_at) AS created_at,
    taskmanager_instant(updated_at) AS updated_at
FROM taskmanager_tasks
WHERE status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED', 'INTERRUPTED');
