"""One commit: many changes of tasks in one transaction, each with its precondition, and none that spoils the others.

Below it stand the two wishes of people that wait in the file: a cancel request and a paused queue.

First all of them at once, which is what nearly always succeeds. When the count of changed rows says that somebody lost,
or a row cannot be stored, everything is rolled back and done again with care: each statement tells whom it has
changed, and a batch that fails is halved until the guilty row stands alone.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import starmap
from typing import Final, NamedTuple, cast

from taskmanager.model.clock import MINUTE_US
from taskmanager.model.record import (
    AttemptRow,
    HistoryWrite,
    NewWrite,
    StartWrite,
    SuccessWrite,
    TaskWrite,
    UnreadableRow,
    Write,
    expected_of,
    in_full,
)
from taskmanager.model.states import TERMINAL
from taskmanager.rules.steps import has_timed_out
from taskmanager.store.constraints import is_memory_only, step_of
from taskmanager.store.noted import Noted, ended_at
from taskmanager.store.on_failure import enqueued_by
from taskmanager.store.protocol import CommitReport
from taskmanager.store.sql import statements as sql
from taskmanager.store.sql.counting import MAX_KEPT, RUN_END, TIMED, WAITED_RUN, Counting
from taskmanager.store.sql.queries import fetch, fetch_ids
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.workflows import follow
from taskmanager.store.workflow_protocol import Advance, together

_BEHIND_OTHERS: Final = (
    sql.ATTEMPT, sql.FORGET_STEPS, sql.STEP_RECORD, sql.RECEIVE, sql.STAY_AWAKE, sql.ON_FAILURE,
)  # fmt: skip
"""Written only for what has won, in this order."""


class _SomebodyLost(Exception):
    """Fewer rows changed than were sent. Never leaves this module."""


def _faults(connection: Session) -> tuple[type[Exception], ...]:
    return *connection.faults, _SomebodyLost


def commit(connection: Session, writes: Sequence[Write], counting: Counting | None = None) -> CommitReport:
    """See `Store.commit`. What it changes is counted, if somebody counts."""
    if not writes:
        return CommitReport({}, {})
    rows = _by_kind(writes)
    in_workflows, whole = rows.pop(sql.IN_WORKFLOW, None), rows.pop(sql.WHOLE, None)
    behind = []
    for kind in _BEHIND_OTHERS:
        if alike := rows.pop(kind, None):
            behind.append((kind, alike))
    attempts = behind[0][1] if behind and behind[0][0] is sql.ATTEMPT else ()
    for kind, first in sql.FIRST_ATTEMPTS.items():  # one that is there was written by a commit that seemed to fail
        if kind in rows:
            behind.append((first, rows[kind]))
    try:
        with connection.transaction(is_beside=not in_workflows):
            noted = _noted(whole, _ended_before(connection, whole)) if whole else None
            batches, write_all = [*rows.items(), *behind], connection.write_all
            counts = list(starmap(connection.write, batches)) if write_all is None else write_all(batches)
            if counts[: len(rows)] != list(map(len, rows.values())):
                raise _SomebodyLost
            if attempts and counts[len(rows)] != len(attempts):
                _replace_attempts(connection, writes)
            advance = follow(connection, in_workflows, noted or Noted()) if in_workflows else Advance()
        if counting is not None:
            _count(counting, rows, noted)
        return CommitReport({}, {}, advance)
    except _faults(connection) as error:
        if not (isinstance(error, _SomebodyLost) or connection.is_rows_fault(error)):
            raise
        return _commit_with_care(connection, writes, counting)


def _count(counting: Counting, rows: Mapping[sql.Kind, Sequence[sql.Row]], noted: Noted | None) -> None:
    """Count what was committed. Of lean writes only what they have in common is found out now, in one pass."""
    for kind, (task, queue, begin, end) in TIMED.items():
        if kind in rows:
            found = counting.timed[kind]
            found.update(
                [
                    (row[task], row[queue], row[end] // MINUTE_US, (row[end] - row[begin]).bit_length())
                    for row in rows[kind]
                ]
            )
            if len(found) > MAX_KEPT:
                counting.fold()
    if sql.HISTORY in rows:
        task, queue, due, begin = WAITED_RUN
        counting.runs.update(
            [
                (
                    row[task],
                    row[queue],
                    row[begin] // MINUTE_US,
                    row[RUN_END] // MINUTE_US,
                    (row[begin] - row[due]).bit_length(),
                    (row[RUN_END] - row[begin]).bit_length(),
                )
                for row in rows[sql.HISTORY]
            ]
        )
        if len(counting.runs) > MAX_KEPT:
            counting.fold()
    if noted is not None:
        counting.keep(noted)


def _by_kind(writes: Sequence[Write]) -> defaultdict[sql.Kind, list[sql.Row]]:
    """Sort the rows to write: starts have much in common with starts, and ends with ends, and that is bound once."""
    rows: defaultdict[sql.Kind, list[sql.Row]] = defaultdict(list)
    for write in writes:
        if isinstance(write, StartWrite):
            rows[sql.START].append(write + write.expected)
        elif isinstance(write, NewWrite):
            rows[sql.NEW if write.started_at is None else sql.STARTED].append(write + write.call)
        elif isinstance(write, SuccessWrite):
            rows[sql.SUCCESS].append(write + write.expected)
        elif isinstance(write, HistoryWrite):
            rows[sql.HISTORY].append(write + write.call)
        else:
            kind, row, attempts = _whole(write)
            rows[kind].append(row)
            rows[sql.WHOLE].append(write)
            rows[sql.ATTEMPT] += attempts
            if write.forgets_steps:
                rows[sql.FORGET_STEPS].append((write.task_id,))
            if write.steps:
                rows[sql.STEP_RECORD] += write.steps
                rows[sql.RECEIVE] += [each for each in write.steps if has_timed_out(each)]
                rows[sql.STAY_AWAKE] += [each for each in write.steps if each.wakes_at is not None]
            if write.row.is_workflow_task:
                before = None if write.expected is None else write.expected.status
                rows[sql.IN_WORKFLOW].append((write.task_id, before, write.status, write.row.updated_at))
            if (enqueued := enqueued_by(write.row, write.attempts)) is not None:
                rows[sql.ON_FAILURE].append(enqueued)
    return rows


def _whole(write: TaskWrite) -> tuple[sql.Kind, sql.Row, Iterable[AttemptRow]]:
    expected = write.expected
    if expected is None:
        return sql.INSERT, write.row, write.attempts
    row = write.row + expected
    if isinstance(write.row, UnreadableRow):
        return sql.END_UNREADABLE, row, map(_shown, write.attempts)
    step = step_of(write, expected)
    return sql.UPDATE if step is None else sql.STEPS[step], row, write.attempts


def _shown(attempt: AttemptRow) -> AttemptRow:
    """The attempt with what can be shown of text that cannot be read; its task is named by the bytes of its id."""
    shown = (str(each) if isinstance(each, str) else each for each in attempt[1:])
    return AttemptRow._make((attempt.task_id, *shown))


def _replace_attempts(connection: Session, writes: Sequence[Write]) -> None:
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
            connection.write(sql.ATTEMPT, write.attempts)


class _Outcome(NamedTuple):
    """What has become of the writes of a commit with care."""

    lost: list[str]
    rejected: dict[str, str]
    advances: list[Advance]
    won: list[tuple[Mapping[sql.Kind, Sequence[sql.Row]], Noted]]


def _commit_with_care(connection: Session, sent: Sequence[Write], counting: Counting | None) -> CommitReport:
    outcome = _Outcome([], {}, [], [])
    is_alone = any(isinstance(each, TaskWrite) and each.row.is_workflow_task for each in sent)
    with connection.transaction(is_beside=not is_alone):
        _apply_halving(connection, [connection.storable(in_full(write)) for write in sent], outcome)
        rows = fetch_ids(connection, outcome.lost)
    if counting is not None:
        for won, noted in outcome.won:
            _count(counting, won, noted)
    lost = {task_id: rows.get(task_id) for task_id in outcome.lost}
    return CommitReport(lost, outcome.rejected, together(outcome.advances))


def _apply_halving(connection: Session, writes: Sequence[Write], outcome: _Outcome) -> None:
    connection.execute("SAVEPOINT halving")
    try:
        _apply_to_winners(connection, writes, outcome)
    except _faults(connection) as error:
        if not (isinstance(error, _SomebodyLost) or connection.is_rows_fault(error)):
            raise
        connection.execute("ROLLBACK TO halving")
        if len(writes) == 1 and _loses(connection, writes[0]):
            outcome.lost.append(writes[0].task_id)  # SQLite looks at values first; who has lost is not told of those
        elif len(writes) == 1:
            outcome.rejected[writes[0].task_id] = f"{type(error).__name__}: {error}"
        else:
            middle = len(writes) // 2
            _apply_halving(connection, writes[:middle], outcome)
            _apply_halving(connection, writes[middle:], outcome)
    connection.execute("RELEASE halving")


def _loses(connection: Session, write: Write) -> bool:
    row = fetch(connection, write.task_id)
    if write.expected is not None:
        return row is None or write.expected != expected_of(row)
    assert isinstance(write, TaskWrite)
    return row is not None and not all(each.status in TERMINAL and is_memory_only(each) for each in (row, write.row))


def _apply_to_winners(connection: Session, writes: Sequence[Write], outcome: _Outcome) -> None:
    """Write what wins, and note which tasks lost."""
    changed: set[str] = set()
    sorted_writes = _by_kind(writes)
    before = _ended_before(connection, sorted_writes[sql.WHOLE])
    for kind, alike in sorted_writes.items():
        if kind not in (*_BEHIND_OTHERS, sql.IN_WORKFLOW, sql.WHOLE):
            connection.write(kind, alike, changed)
    winners = [write for write in writes if write.task_id in changed]
    rows = _by_kind(winners)
    for kind in sql.FIRST_ATTEMPTS.keys() & rows.keys():
        connection.write(sql.FIRST_ATTEMPTS[kind], rows[kind])
    for kind in _BEHIND_OTHERS:
        if connection.write(kind, rows[kind]) != len(rows[kind]) and kind is sql.ATTEMPT:
            _replace_attempts(connection, winners)
    noted = _noted(rows[sql.WHOLE], before)
    if rows[sql.IN_WORKFLOW]:
        outcome.advances.append(follow(connection, rows[sql.IN_WORKFLOW], noted))
    outcome.won.append((rows, noted))
    outcome.lost.extend(write.task_id for write in writes if write.task_id not in changed)


_ENDS_OF: Final = """
SELECT id, status, start_count, coalesce(completed_at, failed_at, updated_at) FROM taskmanager_tasks
WHERE id IN (SELECT value FROM json_each(?))
"""


def _ended_before(connection: Session, writes: Sequence[sql.Row]) -> frozenset[str]:
    """Return the ended memory-only tasks among these whose row says so already, by a commit that seemed to fail.

    Nothing says what their rows must be. So they are written again, and are not to be counted again.
    """
    ended = {
        each.task_id: (each.status, each.row.start_count, ended_at(each.row))
        for each in cast("Sequence[TaskWrite]", writes)
        if each.expected is None and each.row.status in TERMINAL
    }
    found = connection.execute(_ENDS_OF, (json.dumps(list(ended)),)).fetchall() if ended else ()
    return frozenset(task_id for task_id, *end in found if tuple(end) == ended[task_id])


def _noted(writes: Sequence[sql.Row], before: frozenset[str]) -> Noted:
    """Return what these writes of whole rows change. Those that were ended before change nothing."""
    noted = Noted()
    for each in cast("Sequence[TaskWrite]", writes):
        if each.task_id not in before:
            noted.note_write(each)
    return noted


def request_cancel(connection: Session, task_ids: Collection[str], now: int) -> frozenset[str]:
    """See `Store.request_cancel`."""
    asked: set[str] = set()
    with connection.transaction(is_beside=True):
        connection.write(sql.REQUEST_CANCEL, [(task_id, now) for task_id in task_ids], asked)
    return frozenset(asked)


def set_paused(connection: Session, queue_name: str, paused: bool, now: int) -> None:
    """See `Store.set_paused`. Pausing again keeps the instant of the first time."""
    with connection.transaction(is_beside=True):
        if paused:
            connection.execute(
                "INSERT INTO taskmanager_queues (queue_name, paused_at) VALUES (?, ?)"
                " ON CONFLICT (queue_name) DO UPDATE"
                " SET paused_at = coalesce(taskmanager_queues.paused_at, excluded.paused_at)",
                (queue_name, now),
            )
        else:
            connection.execute("DELETE FROM taskmanager_queues WHERE queue_name = CAST(? AS TEXT)", (queue_name,))
