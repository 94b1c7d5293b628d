"""Notes what the figures count of one transaction: starts, ends, and attempts that are made again."""

from collections.abc import Iterable, Sequence
from typing import Final

from taskmanager.model.clock import MINUTE_US
from taskmanager.model.record import AttemptRow, TaskRow, TaskWrite, UnreadableRow
from taskmanager.model.states import LIVE, TERMINAL, AttemptOutcome
from taskmanager.rules.figures import BUCKET_COUNT, bucket_of

COUNTS: Final = (
    "started", "completed", "failed", "cancelled", "expired", "interrupted", "retried",
    *(f"{name}_{bucket}" for name in ("waited", "ran") for bucket in range(BUCKET_COUNT)),
)  # fmt: skip
"""The columns of the figures, in their order."""
STARTED: Final = COUNTS.index("started")
COMPLETED: Final = COUNTS.index("completed")
FAILED: Final = COUNTS.index("failed")
CANCELLED: Final = COUNTS.index("cancelled")
RETRIED: Final = COUNTS.index("retried")
WAITED: Final = COUNTS.index("waited_0")
"""The column of the first bucket of waiting time."""
RAN: Final = COUNTS.index("ran_0")
"""The column of the first bucket of run time."""
_ENDS: Final = {status.value: COUNTS.index(status.value.lower()) for status in TERMINAL}
_HIDDEN_ENDS: Final = {AttemptOutcome.COMPLETED.value: COMPLETED, AttemptOutcome.FAILED.value: FAILED}

Change = tuple[str, str, int, int]
"""Task name, queue name, the minute since 1970, and the column that is counted in."""


class Noted:
    """What there is to count of one transaction, without the rows of lean writes."""

    __slots__ = ("changes",)

    def __init__(self) -> None:
        self.changes: list[tuple[Change, int]] = []
        """What has changed, and how often."""

    def __repr__(self) -> str:
        return f"<Noted {len(self.changes)} changes>"

    def note(self, task_name: str, queue_name: str, at: int, *columns: int, count: int = 1) -> None:
        """Count in these columns what has happened at an instant."""
        self.changes += [((task_name, queue_name, at // MINUTE_US, column), count) for column in columns]

    def note_write(self, write: TaskWrite) -> None:
        """Count the starts, the end and the attempts of a write of a whole row."""
        row = write.row
        if row.status == "PENDING" and not write.attempts:
            return
        self._note_starts(write)
        is_end = row.status in TERMINAL and (write.expected is None or write.expected.status != row.status)
        attempts = _new_attempts(write)
        last = next((each for each in attempts if each.attempt == row.start_count), None) if is_end else None
        for each in attempts:
            if each is not last:
                self._note_attempt(row, each)
        if is_end:
            times = (row.started_at, row.completed_at) if last is None else (last.started_at, last.finished_at)
            self.note(row.task_name, row.queue_name, ended_at(row), _ENDS[row.status], *_bucket(RAN, *times))

    def _note_starts(self, write: TaskWrite) -> None:
        """Count the starts since the state that was expected. One that left no attempt is counted in this minute."""
        row = write.row
        new_count = row.start_count - (0 if write.expected is None else write.expected.start_count)
        if new_count <= 0:
            return
        new = range(row.start_count - new_count + 1, row.start_count + 1)
        begun = {each.attempt: each.started_at for each in write.attempts if each.attempt in new}
        if row.started_at is not None:
            begun[row.start_count] = row.started_at
        for number, at in begun.items():
            is_last = number == row.start_count and row.status != "PENDING"  # the row says when the last one was due
            self.note(row.task_name, row.queue_name, at, STARTED, *(_waited(row, at) if is_last else ()))
        if new_count > len(begun):
            self.note(row.task_name, row.queue_name, row.updated_at, STARTED, count=new_count - len(begun))

    def _note_attempt(self, row: TaskRow, attempt: AttemptRow) -> None:
        """Count an attempt, unless it was the one that the end of the row is of."""
        if attempt.will_retry or (attempt.outcome == AttemptOutcome.WORKER_FAILURE and row.status in LIVE):
            self.note(row.task_name, row.queue_name, attempt.finished_at, RETRIED)
        elif attempt.outcome in _HIDDEN_ENDS:  # somebody has put the task back before its end was written
            ran = _bucket(RAN, attempt.started_at, attempt.finished_at)
            self.note(row.task_name, row.queue_name, attempt.finished_at, _HIDDEN_ENDS[attempt.outcome], *ran)

    def note_claimed(self, rows: Iterable[TaskRow], now: int) -> None:
        """Count the starts and the ends among the rows that a claim has taken."""
        for row in rows:
            if isinstance(row, UnreadableRow):
                self.note(row.task_name, row.queue_name, now, FAILED)
            elif row.status == "RUNNING":
                self.note(row.task_name, row.queue_name, now, STARTED, *_waited(row, now))

    def note_cancelled(self, names: Iterable[Sequence[str]], now: int) -> None:
        """Count tasks that were cancelled while they waited, by the names of task and queue."""
        for task_name, queue_name in names:
            self.note(task_name, queue_name, now, CANCELLED)


def _new_attempts(write: TaskWrite) -> list[AttemptRow]:
    """Return the attempts that are not in the store yet. A state that is no run was written with those before it.

    They come again where a commit had seemed to fail and its row was found.
    """
    known = write.expected
    written = 0 if known is None else known.start_count - (known.status == "RUNNING")
    return [each for each in write.attempts if each.attempt > written]


def ended_at(row: TaskRow) -> int:
    """Return when a task has ended."""
    return next(at for at in (row.completed_at, row.failed_at, row.updated_at) if at is not None)


def _bucket(first: int, begun_at: int | None, ended_at: int | None) -> tuple[int, ...]:
    """Return the column of a duration, or nothing if it is not known."""
    return () if begun_at is None or ended_at is None else (first + bucket_of(ended_at - begun_at),)


def _waited(row: TaskRow, started_at: int) -> tuple[int, ...]:
    """Return the column of how long a task had been due.

    One that has slept stands in its queue by when it was sent, so its row does not say when it was due.
    """
    has_slept = row.snooze_count > 0 and row.enqueued_at <= row.sent_at
    return () if has_slept else _bucket(WAITED, row.enqueued_at, started_at)
