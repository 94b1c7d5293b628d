"""Taking free rows, and those of other instances, in a file: see `SqliteSession.take`."""

import json
from collections.abc import Sequence
from typing import Final

from taskmanager.model.record import TaskRow
from taskmanager.rules.claims import started
from taskmanager.store.protocol import ClaimRequest
from taskmanager.store.sql.claims import IS_FREE, IS_PLAIN, candidates, others
from taskmanager.store.sql.queries import task_rows
from taskmanager.store.sql.rows import packed
from taskmanager.store.sql.session import Session

# A row whose columns contradict each other is passed over, and dealt with alone: it must not spoil the others' claim.
_TAKE: Final = """
UPDATE OR IGNORE taskmanager_tasks
SET status = 'CLAIMED', claimed = 1, claimed_at = :now, claimed_by_worker_id = :owner, updated_at = :now
WHERE rowid IN (SELECT value FROM json_each(:rows)) AND rowid NOT IN (SELECT value FROM json_each(:begun))
"""
_PLAIN: Final = f"""
SELECT json_group_array(json_array(row, task_name)) FROM (
    SELECT t.rowid AS row, t.task_name FROM json_each(:rows) AS v JOIN taskmanager_tasks AS t ON t.rowid = v.value
    WHERE {IS_PLAIN} ORDER BY t.priority, t.enqueued_at, t.id
)
"""
_START: Final = """
UPDATE OR IGNORE taskmanager_tasks
SET status = 'RUNNING', claimed = 0, start_count = start_count + 1, claimed_at = :now, claimed_by_worker_id = :owner,
    started_at = :now, updated_at = :now, next_retry_at = NULL, progress = NULL, worker_pid = :worker_pid,
    worker_hostname = :worker_hostname, worker_process_name = :worker_process_name
WHERE rowid IN (SELECT value FROM json_each(:rows))
"""
_TAKEN: Final = "taskmanager_tasks AS t WHERE t.rowid IN (SELECT value FROM json_each(?))"

_WOKEN_AT_ONCE: Final = 1_000
# Where nobody sleeps, that is one look into an empty index.
_TO_WAKE: Final = f"""
SELECT json_group_array(id) FROM (
    SELECT id FROM taskmanager_steps WHERE wakes_at <= :now ORDER BY wakes_at LIMIT {_WOKEN_AT_ONCE}
)
"""
# A task that has begun goes ahead of those that have not: it takes its place by the time at which it was sent.
_WAKE: Final = f"""
UPDATE taskmanager_tasks SET enqueued_at = min(enqueued_at, sent_at, :now)
WHERE {IS_FREE} AND enqueued_at <= :now AND id IN (
    SELECT task_id FROM taskmanager_steps WHERE id IN (SELECT value FROM json_each(:steps))
)
"""
_IS_AWAKE: Final = "UPDATE taskmanager_steps SET wakes_at = NULL WHERE id IN (SELECT value FROM json_each(:steps))"

_COUNT_TAKEN: Final = """
SELECT (
    SELECT count(*) FROM taskmanager_tasks INDEXED BY taskmanager_tasks_claimed WHERE claimed = 1 AND queue_name = :name
) + (
    SELECT count(*) FROM taskmanager_tasks INDEXED BY taskmanager_tasks_status
    WHERE status = 'RUNNING' AND status <> 'COMPLETED' AND queue_name = :name
)
"""


def may_take(connection: Session, request: ClaimRequest) -> bool:
    """See `Session.may_take`."""
    if request.others_due_at is not None:
        return bool(others(connection, request, request.others_due_at, 1))
    return candidates(connection, request, request.limit) != "[]"


def take(connection: Session, request: ClaimRequest, limit: int) -> list[TaskRow]:
    """See `Session.take`."""
    due_at = request.others_due_at
    if due_at is None:
        (steps,) = connection.execute(_TO_WAKE, {"now": request.now}).fetchone()
        if steps != "[]":
            _wake(connection, steps, request.now)
        rows, begun = candidates(connection, request, limit), "[]"
        if request.starting:
            begun = _start(connection, packed(connection, _PLAIN, {"rows": rows}), request)
        connection.execute(_TAKE, {"rows": rows, "begun": begun, "owner": request.owner, "now": request.now})
    else:
        rows = _start(connection, others(connection, request, due_at, limit)[::2], request)
    return task_rows(connection, _TAKEN, (rows,)) if rows != "[]" else []


def _wake(connection: Session, steps: str, now: int) -> None:
    """Let the tasks go ahead whose sleep is over by these records."""
    connection.execute(_WAKE, {"steps": steps, "now": now})
    connection.execute(_IS_AWAKE, {"steps": steps})


def _start(connection: Session, found: Sequence[tuple[int, str]], request: ClaimRequest) -> str:
    """Start the best of these rows, as far as there are slots. Return their rowids as JSON."""
    starting = request.starting
    assert starting is not None
    chosen = started([name for _, name in found], starting)
    rows = json.dumps([found[each][0] for each in chosen])
    if chosen:
        known = {"rows": rows, "owner": request.owner, "now": request.now}
        connection.execute(_START, known | starting._asdict())
    return rows


def count_taken(connection: Session, queue_name: str, now: int) -> int:
    """See `Session.count_taken`. The lock for writing holds all queues."""
    (taken,) = connection.execute(_COUNT_TAKEN, {"name": queue_name}).fetchone()
    return int(taken)
