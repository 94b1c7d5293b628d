"""One commit: many changes of tasks in one transaction, each with its precondition, and none that spoils the others.

Below it stand the two wishes of people that wait in the file: a cancel request and a paused queue.

First all of them at once, which is what nearly always succeeds. When the count of changed rows says that somebody lost,
or a row cannot be stored, everything is rolled back and done again with care: losers are found first, and a batch that
fails is halved until the guilty row stands alone.
"""

import json
import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from taskmanager.model.record import (
    AttemptRow,
    Expected,
    HistoryWrite,
    NewWrite,
    StartWrite,
    SuccessWrite,
    TaskRow,
    TaskWrite,
    UnreadableRow,
    Write,
    in_full,
)
from taskmanager.model.states import TERMINAL
from taskmanager.store.constraints import encodable_write, is_memory_only, step_of
from taskmanager.store.protocol import CommitReport
from taskmanager.store.sqlite import statements as sql
from taskmanager.store.sqlite.connection import primary_code, transaction
from taskmanager.store.sqlite.queries import fetch_ids
from taskmanager.store.sqlite.rows import unpacked

_GUILTY_CODES: Final = frozenset({sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH})

_EXISTING: Final = f"""
SELECT json_group_array(t.id) FROM json_each(?) AS v
JOIN taskmanager_tasks AS t ON t.id = json_extract(v.value, '$[0]')
WHERE NOT ({sql.replaceable("t")} AND json_extract(v.value, '$[1]'))
"""
_HOLDING: Final = """
SELECT json_group_array(t.id) FROM json_each(?) AS v
JOIN taskmanager_tasks AS t ON t.id = json_extract(v.value, '$[0]')
WHERE t.status = json_extract(v.value, '$[1]')
AND t.claimed_by_worker_id IS json_extract(v.value, '$[2]')
AND t.start_count = json_extract(v.value, '$[3]')
"""


class _SomebodyLost(Exception):
    """Fewer rows changed than were sent. Never leaves this module."""


def commit(connection: sqlite3.Connection, writes: Sequence[Write]) -> CommitReport:
    """See `Store.commit`."""
    if not writes:
        return CommitReport({}, {})
    try:
        with transaction(connection):
            _apply(connection, writes)
        return CommitReport({}, {})
    except _SomebodyLost:
        return _commit_with_care(connection, writes)
    except UnicodeEncodeError:
        return commit(connection, [encodable_write(write) for write in writes])
    except (sqlite3.Error, OverflowError) as error:
        if not _is_rows_fault(error):
            raise
        return _commit_with_care(connection, writes)


_END_UNREADABLE: Final = """
UPDATE taskmanager_tasks
SET status = ?, claimed = 0, claimed_at = NULL, claimed_by_worker_id = NULL, completed_at = NULL, failed_at = ?,
    updated_at = ?, error_code = ?, failed_reason = ?, result = ?, cancel_requested_at = ?, next_retry_at = NULL,
    priority = min(max(priority, 1), 100), retry_count = ?, max_retries = ?, start_count = ?, crash_count = ?,
    snooze_count = ?, is_workflow_task = is_workflow_task <> 0
WHERE id = CAST(? AS TEXT) AND status = ? AND claimed_by_worker_id IS CAST(? AS TEXT)
    AND iif(start_count BETWEEN 0 AND 2147483647, start_count, 0) = ?
"""


_ADD_ATTEMPT: Final = f"""
INSERT INTO taskmanager_task_attempts ({", ".join(sql.ATTEMPT_COLUMNS)})
VALUES (CAST(? AS TEXT){", ?" * (len(sql.ATTEMPT_COLUMNS) - 1)}) ON CONFLICT (task_id, attempt) DO NOTHING
"""


def end_unreadable(
    connection: sqlite3.Connection, row: UnreadableRow, expected: Expected, attempts: Sequence[AttemptRow] = ()
) -> None:
    """End a row of which not everything can be read.

    The row keeps what cannot be read, so that a person can mend it. Its attempt gets what is shown of it.
    """
    said = (row.status, row.failed_at, row.updated_at, row.error_code, row.failed_reason, row.result)
    counts = (row.retry_count, row.max_retries, row.start_count, row.crash_count, row.snooze_count)
    parameters = (*said, row.cancel_requested_at, *counts, row.task_id, *expected)
    if not connection.execute(_END_UNREADABLE, parameters).rowcount:
        raise _SomebodyLost
    for attempt in attempts:
        shown = [str(value) if isinstance(value, str) else value for value in attempt[1:]]
        connection.execute(_ADD_ATTEMPT, (attempt.task_id, *shown))


def _apply(connection: sqlite3.Connection, writes: Sequence[Write]) -> None:
    """Kind by kind, because starts have much in common with starts, and ends with ends: that is bound once."""
    rows: defaultdict[sql.Kind, list[sql.Row]] = defaultdict(list)
    attempts: list[AttemptRow] = []
    for write in writes:
        if isinstance(write, StartWrite):
            rows[sql.START].append(write + write.expected)
        elif isinstance(write, NewWrite):
            rows[sql.NEW if write.started_at is None else sql.STARTED].append(write + write.call)
        elif isinstance(write, TaskWrite) and isinstance(write.row, UnreadableRow) and write.expected is not None:
            end_unreadable(connection, write.row, write.expected, write.attempts)
        elif isinstance(write, SuccessWrite):
            rows[sql.SUCCESS].append(write + write.expected)
        elif isinstance(write, HistoryWrite):
            rows[sql.HISTORY].append(write + write.call)
        else:
            attempts += write.attempts
            if (expected := write.expected) is None:
                rows[sql.INSERT].append(write.row)
            else:
                step = step_of(write, expected)
                rows[sql.UPDATE if step is None else sql.STEPS[step]].append(write.row + expected)
    for kind, alike in rows.items():
        if sql.write(connection, kind, alike) != len(alike):
            raise _SomebodyLost
        if kind in sql.FIRST_ATTEMPTS:  # one that is there was written by a commit that seemed to fail
            sql.write(connection, sql.FIRST_ATTEMPTS[kind], alike)
    if attempts and sql.write(connection, sql.ATTEMPT, attempts) != len(attempts):
        _replace_attempts(connection, writes)


def _is_unreadable(write: Write) -> bool:
    return isinstance(write, TaskWrite) and isinstance(write.row, UnreadableRow)


def _replace_attempts(connection: sqlite3.Connection, writes: Sequence[Write]) -> None:
    """Some attempts were there. Under an update that is a replay.

    Under an insert the row has replaced an earlier task of the same key that counted its attempts from the same number:
    what that one left is not this one's history.
    """
    for write in writes:
        if isinstance(write, TaskWrite) and write.expected is None and write.attempts:
            first = min(attempt.attempt for attempt in write.attempts)
            connection.execute(
                "DELETE FROM taskmanager_task_attempts WHERE task_id = ? AND attempt >= ?", (write.task_id, first)
            )
            sql.write(connection, sql.ATTEMPT, write.attempts)


def _commit_with_care(connection: sqlite3.Connection, sent: Sequence[Write]) -> CommitReport:
    writes = [encodable_write(in_full(write)) for write in sent]
    with transaction(connection):
        losers = _losers(connection, writes)
        lost: dict[str, TaskRow | None] = dict.fromkeys(losers)
        lost.update(fetch_ids(connection, losers))
        rejected: dict[str, str] = {}
        _apply_halving(connection, [write for write in writes if write.task_id not in lost], rejected)
    return CommitReport(lost, rejected)


def _losers(connection: sqlite3.Connection, writes: Sequence[Write]) -> list[str]:
    """Who cannot win now. The write lock is held, so it stays true until the commit."""
    full = [write for write in writes if isinstance(write, TaskWrite)]
    inserts = [[write.task_id, _may_replace(write.row)] for write in full if write.expected is None]
    # JSON has no place for what cannot be read; an unreadable row that lost is found out when it is written alone.
    updates = [
        [write.task_id, *write.expected] for write in writes if write.expected is not None and not _is_unreadable(write)
    ]
    taken = _ids(connection, _EXISTING, inserts)
    holding = _ids(connection, _HOLDING, updates)
    return [str(each[0]) for each in inserts if each[0] in taken] + [
        str(each[0]) for each in updates if each[0] not in holding
    ]


def _ids(connection: sqlite3.Connection, query: str, rows: list[list[Any]]) -> set[str]:
    if not rows:
        return set()
    (found,) = connection.execute(query, (json.dumps(rows),)).fetchone()
    return set(unpacked(found))


def _may_replace(row: TaskRow) -> bool:
    return row.status in TERMINAL and is_memory_only(row)


def _apply_halving(connection: sqlite3.Connection, writes: Sequence[Write], rejected: dict[str, str]) -> None:
    if not writes:
        return
    connection.execute("SAVEPOINT halving")
    try:
        _apply(connection, writes)
    except (sqlite3.Error, OverflowError, UnicodeEncodeError, _SomebodyLost) as error:
        if not _is_rows_fault(error):
            raise
        connection.execute("ROLLBACK TO halving")
        if len(writes) == 1:
            rejected[writes[0].task_id] = f"{type(error).__name__}: {error}"
        else:
            middle = len(writes) // 2
            _apply_halving(connection, writes[:middle], rejected)
            _apply_halving(connection, writes[middle:], rejected)
    connection.execute("RELEASE halving")


def _is_rows_fault(error: Exception) -> bool:
    """Whether no retry will make this row storable, as opposed to trouble of the store."""
    if not isinstance(error, sqlite3.Error):
        return True
    code = primary_code(error)
    # Without a code the driver itself refused a value (a type that SQLite has no column for).
    return code in _GUILTY_CODES or (code == 0 and isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError))


def request_cancel(connection: sqlite3.Connection, task_id: str, now: int) -> bool:
    """See `Store.request_cancel`."""
    with transaction(connection):
        asked = connection.execute(
            f"""
            UPDATE OR IGNORE taskmanager_tasks
            SET updated_at = CASE WHEN cancel_requested_at IS NULL THEN :now ELSE updated_at END,
                cancel_requested_at = coalesce(cancel_requested_at, :now)
            WHERE id = CAST(:id AS TEXT) AND status IN ({sql.LIVE_SQL})
            """,
            {"id": task_id, "now": now},
        )
    return asked.rowcount == 1


def set_paused(connection: sqlite3.Connection, queue_name: str, paused: bool, now: int) -> None:
    """See `Store.set_paused`. Pausing again keeps the instant of the first time."""
    with transaction(connection):
        if paused:
            connection.execute(
                "INSERT INTO taskmanager_queues (queue_name, paused_at) VALUES (?, ?)"
                " ON CONFLICT (queue_name) DO UPDATE SET paused_at = coalesce(paused_at, excluded.paused_at)",
                (queue_name, now),
            )
        else:
            connection.execute("DELETE FROM taskmanager_queues WHERE queue_name = CAST(? AS TEXT)", (queue_name,))
