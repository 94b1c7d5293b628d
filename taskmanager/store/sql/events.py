"""Events for tasks. One transaction stores an event and wakes its task, and the record of a wait receives it."""

from typing import Final

from taskmanager.model.states import LIVE
from taskmanager.model.steps import EventRow, Identity, SendReport, StoredEvent
from taskmanager.model.workflows import HELD
from taskmanager.rules.steps import MAX_UNREAD
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.statements import UNREAD

_TASK: Final = "SELECT status, queue_name, priority FROM taskmanager_tasks WHERE id = CAST(? AS TEXT)"
_IS_SENT: Final = "SELECT 1 FROM taskmanager_events WHERE task_id = ? AND key = ?"
_COUNT_UNREAD: Final = f"""
SELECT count(*) FROM (
    SELECT 1 FROM taskmanager_events AS e
    WHERE e.task_id = ? AND {UNREAD}
    LIMIT {MAX_UNREAD}
)
"""
# A task may have received events of a file that is lost, or went back to an older copy. None that is stored later has
# an id of theirs, or it would count as received.
_SEND: Final = """
INSERT INTO taskmanager_events (task_id, name, value, key, sent_at, id)
VALUES (?, ?, ?, ?, ?, max(?, (SELECT coalesce(max(id), 0) + 1 FROM taskmanager_events)))
"""
# Also one that is held, for when it is let go. The pause before a retry is no sleep, though it may come after one.
_WAKE: Final = f"""
UPDATE taskmanager_tasks SET enqueued_at = min(enqueued_at, sent_at, :now)
WHERE id = :task_id AND status = 'PENDING' AND next_retry_at IS NULL
    AND coalesce(claimed_by_worker_id, '{HELD}') = '{HELD}' AND EXISTS (
    SELECT 1 FROM taskmanager_steps WHERE task_id = :task_id AND waits_for = :name AND wakes_at IS NOT NULL
)
"""
# The ids first: a sort of all that wait would move their values.
_OF_EVENT: Final = "e.task_id = :task_id AND e.name = :name AND e.id > :after"
_FIRST: Final = f"""
SELECT id, value, is_received FROM (
    SELECT e.id AS event_id, 1 AS is_received FROM taskmanager_steps AS s
    JOIN taskmanager_events AS e ON e.id = s.event_id AND {_OF_EVENT}
    WHERE s.task_id = :task_id AND s.kind = :kind AND s.number = :number AND s.key = :key
    UNION ALL
    SELECT * FROM (SELECT e.id, 0 FROM taskmanager_events AS e WHERE {_OF_EVENT} AND {UNREAD} ORDER BY e.id LIMIT 1)
    LIMIT 1
) JOIN taskmanager_events ON id = event_id
"""


def send_event(connection: Session, event: EventRow) -> SendReport:
    """See `Store.send_event`."""
    with connection.transaction():
        found = connection.execute(_TASK, (event.task_id,)).fetchone()
        if found is None:
            return SendReport("unknown")
        status, queue_name, priority = found
        if status not in LIVE:
            return SendReport("ended")
        report = SendReport("stored", queue_name, priority)
        if event.key is not None and connection.execute(_IS_SENT, (event.task_id, event.key)).fetchone() is not None:
            return report
        if connection.execute(_COUNT_UNREAD, (event.task_id,)).fetchone()[0] >= MAX_UNREAD:
            return report._replace(outcome="full")
        connection.execute(_SEND, (*event, event.sent_at))
        connection.execute(_WAKE, {"task_id": event.task_id, "name": event.name, "now": event.sent_at})
    return report


def fetch_event(connection: Session, task_id: str, name: str, of: Identity, after: int = 0) -> StoredEvent | None:
    """See `Store.fetch_event`."""
    kind, number, key = of
    given = {"task_id": task_id, "name": name, "after": after, "kind": kind, "number": number, "key": key}
    found = connection.execute(_FIRST, given).fetchone()
    return None if found is None else StoredEvent(found[0], found[1], bool(found[2]))
