-- Tells of what other programs write, on the channels `task_new`, `task_queue_<queue>` and `task_done`. The payload is
-- `<schema>:<id>`, because channels belong to the whole database.
--
-- The library's own transactions are silent (`SET LOCAL taskmanager.silent = 'on'`) and tell of their rows behind their
-- commit: a transaction that notifies keeps one lock of the whole cluster until its commit is on disk. The condition is
-- that of the trigger, not of the function, so that a silent row queues no call.
--
-- No row fails because of it:
-- - The name of a channel has at most 63 bytes. A queue whose name has more than 52 is named by its hash instead:
--   `left(encode(sha256(name), 'hex'), 32)`. Not md5, which a server in FIPS mode refuses.
-- - A payload has at most 7,999 bytes. An id that does not fit is left out: who listens looks at all that is new.
-- - A full queue of notifications fails the commit, where nothing can catch it. So nothing is sent from 90 percent on:
--   the last tenth is 800 MB, which is room for what is sent in between. Who listens polls too.
-- - A transaction that has notified cannot be prepared (PREPARE TRANSACTION). It has to be silent.
-- None of these can fail at the call itself, so it needs no block with EXCEPTION, which is a subtransaction for each row.
CREATE FUNCTION taskmanager_notify() RETURNS trigger LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    payload text := tg_table_schema || ':' || CASE WHEN octet_length(NEW.id) <= 7500 THEN NEW.id ELSE '' END;
BEGIN
    IF pg_notification_queue_usage() >= 0.9 THEN
        RETURN NULL;
    END IF;
    IF tg_op = 'UPDATE' THEN
        IF NEW.status <> OLD.status THEN
            PERFORM pg_notify('task_done', payload);
        END IF;
        RETURN NULL;
    END IF;
    PERFORM pg_notify('task_new', payload);
    PERFORM pg_notify('task_queue_' || CASE WHEN octet_length(NEW.queue_name) <= 52 THEN NEW.queue_name
        ELSE left(encode(sha256(convert_to(NEW.queue_name, 'UTF8')), 'hex'), 32) END, payload);
    RETURN NULL;
END
$$;

-- The tests of the status come first: they decide for most rows, and cost less.
CREATE TRIGGER taskmanager_tasks_new AFTER INSERT ON taskmanager_tasks FOR EACH ROW
    WHEN (NEW.status = 'PENDING' AND current_setting('taskmanager.silent', true) IS DISTINCT FROM 'on')
    EXECUTE FUNCTION taskmanager_notify();
CREATE TRIGGER taskmanager_tasks_done AFTER UPDATE OF status ON taskmanager_tasks FOR EACH ROW
    WHEN (
        NEW.status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED', 'INTERRUPTED')
        AND current_setting('taskmanager.silent', true) IS DISTINCT FROM 'on'
    )
    EXECUTE FUNCTION taskmanager_notify();
