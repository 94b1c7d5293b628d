"""What is sent to the store of one task, as lean as its change can be said, and what is made of the answer.

Nearly every task starts once and succeeds: an insert and two changes of a few columns, for which no whole row is sent.

A task that has ended must have ended in the file too, or the next start would take it for one whose process died. So a
record that the store refuses for its content is sent again without what it can do without.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Final, Protocol

from taskmanager.engine.live_task import STATUS_TEXT, LiveTask
from taskmanager.engine.outbox import Flushes, Outbox, Sent
from taskmanager.engine.outcome import extra_of
from taskmanager.engine.phases import RUNNING
from taskmanager.model.clock import SECOND_US, Clock
from taskmanager.model.errors import StoreError
from taskmanager.model.logger import logger
from taskmanager.model.record import (
    AttemptRow,
    Expected,
    HistoryWrite,
    LeanInsert,
    NewWrite,
    PlainCall,
    StartWrite,
    SuccessWrite,
    TaskRow,
    TaskWrite,
    UnreadableRow,
    Write,
    expected_of,
)
from taskmanager.model.result import TaskError, trusted_code
from taskmanager.model.states import LIVE, WAITING, BuiltInTaskCode, TaskStatus
from taskmanager.store.protocol import CommitReport

SHORT_CHARS: Final = 500
"""Of each text that is kept."""
PROGRESS_US: Final = SECOND_US
CALLS: Final = 1024
"""Kinds of call that are known at a time."""
_RUNNING: Final = STATUS_TEXT[TaskStatus.RUNNING]
_WAITING: Final = (STATUS_TEXT[TaskStatus.PENDING], STATUS_TEXT[TaskStatus.CLAIMED])
_new_tuple = tuple.__new__


def write_of(live: LiveTask, base: Expected | None, attempts: tuple[AttemptRow, ...]) -> Write:
    """The change from the committed state `base` to the present one."""
    if base is None:
        return _plain_insert(live, attempts) or _new_tuple(TaskWrite, (live.row(), base, attempts, False))
    if live.start_count == 1 and base[1] == live.owner and _left_nothing_else(live):
        status = live.status
        if status is TaskStatus.COMPLETED:
            if base[0] == _RUNNING and base[2] == 1:
                change = (live.task_id, live.definition.name, base, live.completed_at, live.result_text, attempts)
                return _new_tuple(SuccessWrite, change)
        elif status is TaskStatus.RUNNING and base[2] == 0 and base[0] in _WAITING:
            return _new_tuple(StartWrite, (live.task_id, live.definition.name, base, live.started_at, *live.worker))
    keeps_call = base[0] == _RUNNING and base[2] == live.start_count  # a retry follows an end that is in the store
    return _new_tuple(TaskWrite, (live.row(), base, attempts, keeps_call))


def _plain_insert(live: LiveTask, attempts: tuple[AttemptRow, ...]) -> LeanInsert | None:
    """The insert of a task to which nothing unusual was done; None of any other."""
    if live.enqueued_at != live.sent_at or _unusual(live) != _NOTHING_UNUSUAL or live.saving.pared_result is not None:
        return None
    is_new = live.status is TaskStatus.PENDING and live.start_count == 0 and live.updated_at == live.sent_at
    is_started = live.start_count == 1 and live.status is TaskStatus.RUNNING
    is_history = live.start_count == 1 and live.status is TaskStatus.COMPLETED and not live.is_persisted
    if not (is_new or is_started or is_history):
        return None
    if live.encodes_later:
        live.store_arguments()
    definition = live.definition
    about = definition.name, live.queue_name, live.priority, definition.retry.max_retries, live.options_text
    call = _call(*about, live.owner, *live.worker)
    said = (live.task_id, call, live.args_text, live.kwargs_text, live.tags_text, live.sent_at, live.started_at)
    if is_history:
        return _new_tuple(HistoryWrite, (*said, live.completed_at, live.result_text, attempts))
    return _new_tuple(NewWrite, said)


_unusual = attrgetter(
    "idempotency_key", "good_until", "scheduled_for", "cancel_requested_at", "claimed_at", "next_retry_at",
    "progress_text", "log_text", "error_code", "retry_count", "crash_count", "snooze_count",
)  # fmt: skip
_NOTHING_UNUSUAL: Final = (None,) * 9 + (0,) * 3
_call = lru_cache(CALLS)(PlainCall)
"""One object for all that have it in common: the store binds its values once."""


def _left_nothing_else(live: LiveTask) -> bool:
    """Neither by what it reported nor by a cancel request: both may come before its start is committed.

    Of a record that was pared, the row may hold more than memory does.
    """
    has_reported = live.progress_text is not None or live.log_text is not None
    return not has_reported and live.cancel_requested_at is None and live.saving.pared_result is None


def pare(live: LiveTask, reason: str) -> bool:
    """Leave out what the record can do without; False when there is nothing (more) of that kind.

    First what it came to, then, where no row stands there yet, the arguments: such a task can be seen, not repeated.
    """
    if _shorten(live, reason):
        without = "result, progress and log"
    elif live.status.is_terminal and live.saving.committed is None and live.args_text is not None:
        without = "arguments"
        live.args_text = live.kwargs_text = None
    else:
        return False
    logger.warning(
        "the record of task %s (%s) cannot be stored: %s; it is tried without its %s",
        live.definition.name,
        live.task_id,
        reason,
        without,
        extra=extra_of(live),
    )
    return True


def _shorten(live: LiveTask, reason: str) -> bool:
    """Whether that changed anything, so that it is worth another try."""
    before = live.progress_text, live.log_text, live.failed_reason, live.attempts_due
    live.progress_text = live.log_text = None
    live.failed_reason = _short(live.failed_reason)
    live.attempts_due = tuple(map(_short_attempt, live.attempts_due))
    has_changed = before != (live.progress_text, live.log_text, live.failed_reason, live.attempts_due)
    if live.result_text is None or live.saving.pared_result == live.start_count:
        return has_changed
    live.saving.pared_result = live.start_count
    if live.status is TaskStatus.COMPLETED:
        why = f"the result could not be stored: {reason}"
        live.store_error(TaskError(BuiltInTaskCode.RESULT_NOT_AVAILABLE, why))
    elif live.ending is not None:
        live.store_error(_short_error(live.ending.result.err_value))
    return True


def _short(text: str | None) -> str | None:
    return text and text[:SHORT_CHARS]


def _short_error(error: TaskError) -> TaskError:
    return TaskError(trusted_code(error.error_code), error.message[:SHORT_CHARS])


def _short_attempt(row: AttemptRow) -> AttemptRow:
    return row._replace(error_message=_short(row.error_message), failed_reason=_short(row.failed_reason))


def _is_ours(live: LiveTask, row: TaskRow, is_dead: Callable[[str], bool]) -> bool:
    """Whether the row says what we wrote ourselves: in a commit that seemed to fail, or by a claim meanwhile.

    The owner alone proves nothing: who recovers a task leaves there who had it, and that must stay refused.
    """
    found = expected_of(row)
    if live.is_unconfirmed:
        # Any other row is an earlier task of the key, also one that reads like what was sent.
        return found in live.saving.in_doubt and row.sent_at == live.sent_at
    if live.saving.is_written_anew:
        return live.has_overtaken(row) and _is_left_to_us(live, row, is_dead)
    # Of a row that cannot be read the count is a guess, by which no write would ever win.
    is_as_known = found == live.saving.committed and not isinstance(row, UnreadableRow)
    return is_as_known or found in live.saving.in_doubt


def _is_left_to_us(live: LiveTask, row: TaskRow, is_dead: Callable[[str], bool]) -> bool:
    """Whether nobody else has taken or ended the task since the older copy of the file that has this row came."""
    owner, has_fewer_starts = row.claimed_by_worker_id, row.start_count < live.start_count
    if owner is None:
        # What has ended with as many starts was ended by somebody since, unless the task was put back after that end.
        return row.status in LIVE or has_fewer_starts or live.run_number > 0
    if owner == live.owner:
        return True
    # What waits with fewer starts is not begun anywhere, and what runs at a dead owner runs nowhere. If it were
    # recovered, the same attempt would start again. Once it is written over, no owner of it can start it.
    is_before = has_fewer_starts and row.status in LIVE and not isinstance(row, UnreadableRow)
    return is_before and (row.status in WAITING or is_dead(owner))


class WriterListener(Protocol):
    """Hears what became of the writes: the engine."""

    def committed(self, live: LiveTask) -> None: ...
    def lost(self, live: LiveTask, row: TaskRow | None) -> None: ...
    def rejected(self, live: LiveTask, reason: str) -> None: ...
    def degraded(self, exc: StoreError) -> None: ...
    def restored(self) -> None: ...
    def written(self) -> None: ...
    def is_dead(self, instance_id: str) -> bool: ...


class Answers:
    """Takes in what became of the tasks of each batch, for one writer."""

    def __init__(
        self, outbox: Outbox, flushes: Flushes, mark: Callable[[LiveTask], None], listener: WriterListener
    ) -> None:
        self._outbox = outbox
        self._flushes = flushes
        self._mark = mark
        self._listener = listener
        self._has_history_again = False

    def take_in(self, batch: Sequence[Sent], report: CommitReport) -> bool:
        """Tell everybody what became of theirs. Return whether a record of history must be written once more."""
        self._has_history_again = False
        is_troubled = bool(report.lost or report.rejected)
        for sent in batch:
            live = sent[0]
            if not live.is_persisted and not is_troubled:
                continue
            try:
                if is_troubled and live.task_id in report.rejected:
                    self._absorb_rejection(sent, report.rejected[live.task_id])
                elif is_troubled and live.task_id in report.lost:
                    self._absorb_loss(sent, report.lost[live.task_id])
                else:
                    self._absorb_win(sent)
            except Exception:
                # A mistake of ours with one task must not keep the others, and all that come, from being saved.
                logger.critical("what became of task %s could not be taken in", live.task_id, exc_info=True)
        return self._has_history_again

    def _absorb_win(self, sent: Sent) -> None:
        live, state, _, base, _ = sent
        saving = live.saving
        if saving.committed is base:  # else its row was claimed again before this answer came
            saving.committed = state
        # A start that was taken back meanwhile has arrived; the count of a row never goes back.
        live.start_count = max(live.start_count, state.start_count)
        saving.is_written_anew = False
        if saving.in_doubt:
            saving.in_doubt = ()
        self._listener.committed(live)

    def _absorb_rejection(self, sent: Sent, reason: str) -> None:
        live = sent.live
        with self._another_try(live):
            live.attempts_due = (*sent.attempts, *live.attempts_due)
            self._listener.rejected(live, reason)

    def _absorb_loss(self, sent: Sent, row: TaskRow | None) -> None:
        """A write whose precondition did not hold. Our own row there means that an earlier commit did arrive
        after all.
        """
        live, saving = sent.live, sent.live.saving
        with self._another_try(live):
            if row is None or not _is_ours(live, row, self._listener.is_dead):
                self._listener.lost(live, row)
                return
            saving.committed = expected_of(row)
            # A start that was taken back here may be the one that arrived; the count of a row never goes back.
            live.start_count = max(live.start_count, row.start_count)
            saving.in_doubt = ()
            live.attempts_due = (*sent.attempts, *live.attempts_due)
            if live.is_as_committed and not live.attempts_due:
                self._listener.committed(live)
            else:
                self._mark(live)

    @contextlib.contextmanager
    def _another_try(self, live: LiveTask) -> Iterator[None]:
        """The task may have to be written once more; callers of flush() keep waiting for it then."""
        was_dirty = live.saving.is_dirty
        yield
        if live.saving.is_dirty:
            places = self._outbox.try_again(live, was_dirty=was_dirty)
            self._flushes.extend(places)
            self._has_history_again |= not live.is_persisted


def log_rejected(live: LiveTask, reason: str) -> None:
    """Say that a record cannot be stored at all."""
    logger.error(
        "task %s (%s) cannot be stored: %s; it goes on in memory only",
        live.definition.name,
        live.task_id,
        reason,
        extra=extra_of(live),
    )


class ProgressSaver:
    """Saves the progress that running tasks report, once a second at most, from whatever thread they report it.

    `save` is what an attempt calls with every report.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, mark: Callable[[LiveTask], None], clock: Clock) -> None:
        self._loop = loop
        self._thread_id = threading.get_ident()
        self._write_soon = mark
        self._clock = clock

    def save(self, live: LiveTask) -> None:
        """A persisted task reported progress."""
        now = self._clock.now_us()
        if live.is_persisted and not 0 <= now - live.updated_at < PROGRESS_US:  # before: the clock was stepped back
            live.updated_at = now
            if threading.get_ident() == self._thread_id:
                self._mark(live)
            else:
                with contextlib.suppress(RuntimeError):  # the loop was closed, and nobody keeps progress any more
                    self._loop.call_soon_threadsafe(self._mark, live)

    def _mark(self, live: LiveTask) -> None:
        if live.phase is RUNNING:
            self._write_soon(live)
