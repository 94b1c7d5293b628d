"""Writes lean changes: many inserts with what they have in common bound once, and a few changes row by row.

Somebody waits for a commit of one or two changes. For these, a fixed statement per row takes half the time of what is
made to carry many rows (in a commit of an end and a start: 150 against 215 microseconds, most of it the disk's).
"""

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final

from taskmanager.model.record import AttemptRow, HistoryWrite, LeanInsert, StartWrite, SuccessWrite, TaskWrite, Write
from taskmanager.store.sqlite import statements as sql

_FIELDS: Final = ("id", *HistoryWrite._fields[1:])
"""Of a write, by their places. Those of a new task are the first of them."""
_ALWAYS: Final = (0, 2, 3, 5)
_TAGS: Final = 4
_STARTED: Final = 6
_ENDED: Final = (7, 8)
_CALL: Final = sql.CALL + sql.OWNER
_WITHOUT_WORKER: Final = len(sql.CALL) + 1

FEW: Final = 4
"""At most so many changes are written row by row."""
_CALL_VALUES: Final = ", ".join("?" * len(_CALL))
_INSERT: Final = f"""
INSERT INTO taskmanager_tasks (id, args, kwargs, tags, sent_at, enqueued_at, created_at, started_at, completed_at,
    result, updated_at, start_count, status, {", ".join(_CALL)})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {_CALL_VALUES}) ON CONFLICT (id) DO NOTHING
"""
_STILL: Final = "WHERE id = ? AND status = ? AND claimed_by_worker_id IS ? AND start_count = ?"
_START: Final = f"""
UPDATE taskmanager_tasks SET status = 'RUNNING', claimed = 0, start_count = start_count + 1, started_at = ?,
    updated_at = ?, worker_pid = ?, worker_hostname = ?, worker_process_name = ? {_STILL}
"""
_SUCCESS: Final = (
    f"UPDATE taskmanager_tasks SET status = 'COMPLETED', completed_at = ?, updated_at = ?, result = ? {_STILL}"
)
_ATTEMPT: Final = f"""
INSERT INTO taskmanager_task_attempts ({", ".join(sql.ATTEMPT_COLUMNS)})
VALUES ({", ".join("?" * len(sql.ATTEMPT_COLUMNS))}) ON CONFLICT (task_id, attempt) DO NOTHING
"""


def insert(connection: sqlite3.Connection, writes: Sequence[LeanInsert]) -> bool:
    """Insert tasks that are in one state, inside a transaction of the caller's. False if not all ids were free."""
    call = writes[0].call
    common = dict(zip(_CALL, call, strict=True))
    is_alike = all(write[1] is call for write in writes)
    places = _places(writes)
    bound = tuple(_FIELDS[place] for place in places) + (() if is_alike else _CALL)
    rows = map(itemgetter(*places), writes) if is_alike else _with_calls(writes, places)
    inserted = 0
    for part, size in sql.cut(list(rows)):
        made = sql.insert_plain(bound, size)
        flat = list(chain.from_iterable(part))
        flat.extend(sql.padding(len(bound), size - len(part)))
        shared = [common[name] for name in made.before]
        inserted += connection.execute(made.sql, shared + flat).rowcount
    return inserted == len(writes)


def _places(writes: Sequence[LeanInsert]) -> tuple[int, ...]:
    """Where the fields stand of which a value is bound for each task."""
    tags = (_TAGS,) if any(write[_TAGS] is not None for write in writes) else ()
    first = writes[0]
    started = () if first.started_at is None else (_STARTED,)
    return (*_ALWAYS, *tags, *started, *(_ENDED if isinstance(first, HistoryWrite) else ()))


def _with_calls(writes: Sequence[LeanInsert], places: tuple[int, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield the values of each task, and those of its call: there are several in the batch."""
    pick = itemgetter(*places)
    for write in writes:
        yield pick(write) + write.call


def are_few(writes: Sequence[Write]) -> bool:
    """Tell whether `write_few` may write these."""
    if len(writes) > FEW:
        return False
    return TaskWrite not in map(type, writes)


def write_few(connection: sqlite3.Connection, writes: Sequence[Write]) -> bool:
    """Write them inside a transaction of the caller's. False if one of them did not find what it expects."""
    values: tuple[Any, ...]
    for write in writes:
        attempts: tuple[AttemptRow, ...] = ()
        if isinstance(write, SuccessWrite):
            task_id, _, expected, at, result, attempts = write
            statement, values = _SUCCESS, (at, at, result, task_id, *expected)
        elif isinstance(write, StartWrite):
            task_id, _, expected, at, *worker = write
            statement, values = _START, (at, at, *worker, task_id, *expected)
        else:
            assert isinstance(write, LeanInsert)
            statement, values = _INSERT, _values_of(write)
            if isinstance(write, HistoryWrite):
                attempts = write.attempts
        if not connection.execute(statement, values).rowcount:
            return False
        for attempt in attempts:
            connection.execute(_ATTEMPT, attempt)
    return True


def _values_of(write: LeanInsert) -> tuple[Any, ...]:
    task_id, call, args, kwargs, tags, sent, started = write[:7]
    said = (task_id, args, kwargs, tags, sent, sent, sent, started)
    if isinstance(write, HistoryWrite):
        return (*said, write.completed_at, write.result, write.completed_at, 1, "COMPLETED", *call)
    if started is not None:
        return (*said, None, None, started, 1, "RUNNING", *call)
    return (*said, None, None, sent, 0, "PENDING", *call[:_WITHOUT_WORKER], None, None, None)
