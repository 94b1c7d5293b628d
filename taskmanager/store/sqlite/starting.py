"""Starting rows in the transaction that claims them, of the free ones or of those that wait at another instance."""

import json
import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from taskmanager.model.record import TaskRow
from taskmanager.rules.claims import started
from taskmanager.store.protocol import ClaimRequest, WaitingLevel
from taskmanager.store.sqlite.queries import hops, task_rows
from taskmanager.store.sqlite.rows import Undecodable, unpacked

_IS_PLAIN: Final = "t.crash_count = 0 AND t.good_until IS NULL AND t.cancel_requested_at IS NULL"
_PLAIN: Final = f"""
SELECT json_group_array(json_array(row, task_name)) FROM (
    SELECT t.rowid AS row, t.task_name FROM json_each(:rows) AS v JOIN taskmanager_tasks AS t ON t.rowid = v.value
    WHERE {_IS_PLAIN} ORDER BY t.priority, t.enqueued_at, t.id
)
"""
_START: Final = """
UPDATE OR IGNORE taskmanager_tasks
SET status = 'RUNNING', claimed = 0, start_count = start_count + 1, claimed_at = :now, claimed_by_worker_id = :owner,
    started_at = :now, updated_at = :now, next_retry_at = NULL, progress = NULL, worker_pid = :pid,
    worker_hostname = :hostname, worker_process_name = :process_name
WHERE rowid IN (SELECT value FROM json_each(:rows))
"""
WAITS: Final = "claimed_by_worker_id IS NOT NULL AND status IN ('PENDING', 'CLAIMED')"
HELD: Final = "taskmanager_tasks INDEXED BY taskmanager_tasks_waiting"
# In the order of the index, as in `claims.READY_CANDIDATES`. What has run before may have code that goes on there, in a
# thread that nobody can end.
OTHERS: Final = f"""
{hops(HELD, f"queue_name = :queue_name AND {WAITS}", "priority")}
SELECT json_group_array(json_array(row, task_name)) FROM (
    SELECT row, task_name FROM (
        SELECT t.rowid AS row, t.task_name, t.start_count, t.claimed_by_worker_id AS owner, {_IS_PLAIN} AS is_plain
        FROM each_priority AS level CROSS JOIN taskmanager_tasks AS t INDEXED BY taskmanager_tasks_waiting
        WHERE t.queue_name = :queue_name AND t.priority = level.priority AND t.enqueued_at <= :due_at
            AND t.claimed_by_worker_id IS NOT NULL AND t.status IN ('PENDING', 'CLAIMED')
        LIMIT :scanned
    )
    WHERE owner <> :owner AND is_plain AND start_count = 0
        AND task_name IN (SELECT value FROM json_each(:task_names))
    LIMIT :limit
)
"""
_TAKEN_AWAY: Final = """
json_each(?) AS wanted CROSS JOIN taskmanager_tasks AS t ON t.id = wanted.value
WHERE t.claimed_by_worker_id IS NOT NULL AND t.claimed_by_worker_id <> CAST(? AS TEXT)
"""
_SCANNED_PER_ROW: Final = 10
_SCANNED_AT_LEAST: Final = 100
_LEVELS: Final = f"""
{hops(HELD, WAITS, "queue_name", "priority")}
SELECT queue_name, priority, (
    SELECT min(enqueued_at) FROM {HELD}
    WHERE queue_name = level.queue_name AND priority = level.priority AND {WAITS}
) FROM each_priority AS level WHERE priority IS NOT NULL LIMIT ?
"""


def start_best(connection: sqlite3.Connection, rows: str, request: ClaimRequest) -> str:
    """Start the best of these rows, as far as there are slots. Both are rowids as JSON."""
    (found,) = connection.execute(_PLAIN, {"rows": rows}).fetchone()
    return _start(connection, unpacked(found), request)


def waiting_levels(connection: sqlite3.Connection, limit: int) -> list[WaitingLevel]:
    """See `Store.waiting_levels`."""
    rows = connection.execute(_LEVELS, (limit,)).fetchall()
    return sorted(WaitingLevel._make(row) for row in rows if Undecodable not in map(type, row))


def fetch_taken(connection: sqlite3.Connection, task_ids: Sequence[str], owner: str) -> dict[str, TaskRow]:
    """See `Store.fetch_taken`."""
    rows = task_rows(connection, _TAKEN_AWAY, (json.dumps(list(task_ids)), owner))
    return {row.task_id: row for row in rows}


def is_worth_a_look(connection: sqlite3.Connection, request: ClaimRequest) -> bool:
    """Whether anything could be taken over: without the lock for writing, which a busy instance needs."""
    return bool(_others(connection, request, 1))


def take_over(connection: sqlite3.Connection, request: ClaimRequest, limit: int) -> str:
    """Start every second of the best rows that wait at other instances. Return their rowids as JSON."""
    return _start(connection, _others(connection, request, limit)[::2], request)


def _others(connection: sqlite3.Connection, request: ClaimRequest, limit: int) -> list[tuple[int, str]]:
    wanted = {
        "task_names": json.dumps(sorted(set(request.task_names))),
        "queue_name": request.queue_name,
        "owner": request.owner,
        "due_at": request.others_due_at,
        "limit": 2 * limit,
        "scanned": _SCANNED_PER_ROW * limit + _SCANNED_AT_LEAST,
    }
    (found,) = connection.execute(OTHERS, wanted).fetchone()
    return unpacked(found)


def _start(connection: sqlite3.Connection, found: Sequence[tuple[int, str]], request: ClaimRequest) -> str:
    starting = request.starting
    assert starting is not None
    chosen = started([name for _, name in found], starting)
    rows = json.dumps([found[each][0] for each in chosen])
    worker: dict[str, Any] = {
        "pid": starting.worker_pid,
        "hostname": starting.worker_hostname,
        "process_name": starting.worker_process_name,
    }
    if chosen:
        connection.execute(_START, {"rows": rows, "owner": request.owner, "now": request.now} | worker)
    return rows
