"""How a change of one task is sent to the store: as lean as it can be said, and with less where the store refuses it.

Nearly every task starts once and succeeds: an insert and two changes of a few columns, for which no whole row is sent.

A task that has ended must have ended in the file too, or the next start would take it for one whose process died. So a
record that the store refuses for its content is sent again without what it can do without.
"""

import asyncio
from functools import lru_cache
from operator import attrgetter
from typing import Final

from taskmanager.engine.words.live_task import STATUS_TEXT, LiveTask
from taskmanager.engine.words.outcome import extra_of
from taskmanager.engine.words.waiters import resolve
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
    TaskWrite,
    Write,
)
from taskmanager.model.result import TaskError, trusted_code
from taskmanager.model.states import COMPLETED, PENDING, RUNNING, BuiltInTaskCode, TaskStatus
from taskmanager.model.steps import Identity, StepRow

_new_tuple = tuple.__new__
SHORT_CHARS: Final = 500
"""Of each text that is kept of a record that the store refused."""
CALLS: Final = 16_384
"""Kinds of call that are known at a time."""
_RUNNING: Final = STATUS_TEXT[TaskStatus.RUNNING]
_WAITING: Final = (STATUS_TEXT[TaskStatus.PENDING], STATUS_TEXT[TaskStatus.CLAIMED])


class StepsDue:
    """The records of steps that go to the store with the next write of their task, and who waits for that.

    A record stays here until the write that carried it is committed. So a batch that failed carries it again.
    """

    def __init__(self, *, forgets: bool = False) -> None:
        self.rows: dict[Identity, StepRow] = {}
        self.forgets = forgets
        """Whether the store is to forget what it has of the task's steps: they are those of other arguments."""
        self._sent: dict[Identity, StepRow] = {}
        self._waiters: list[tuple[StepRow, asyncio.Future[None]]] = []

    def __repr__(self) -> str:
        return f"<StepsDue, {len(self.rows)} to write>"

    def __bool__(self) -> bool:
        return bool(self.rows) or self.forgets

    def add(self, row: StepRow) -> None:
        """Write this record."""
        self.rows[row.identity] = row

    def saved(self, row: StepRow) -> "asyncio.Future[None]":
        """Return what is done when this record is in the store."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((row, done))
        return done

    def send(self) -> None:
        """Note that a write takes along all that is here."""
        self._sent = dict(self.rows)

    def committed(self) -> None:
        """The write that was sent last is in the store."""
        self._drop_sent(None)
        self.forgets = False

    def refuse(self, exc: StoreError) -> bool:
        """Drop what was sent, because the store will never hold it. Return False if that was nothing."""
        return self._drop_sent(exc)

    def _drop_sent(self, outcome: StoreError | None) -> bool:
        sent, self._sent = self._sent, {}
        for identity, row in sent.items():
            if self.rows.get(identity) is row:
                del self.rows[identity]
        told = [waiter for waiter in self._waiters if sent.get(waiter[0].identity) is waiter[0]]
        self._waiters = [waiter for waiter in self._waiters if waiter not in told and not waiter[1].done()]
        resolve([done for _, done in told], outcome)
        return bool(sent)


def write_of(live: LiveTask, base: Expected | None) -> Write:
    """The change from the committed state `base` to the present one."""
    if live.steps_due:
        return _with_steps(live, base, live.steps_due)
    if base is None:
        return _plain_insert(live) or TaskWrite(live.row(), base, live.attempts_due)
    if live.start_count == 1 and base[1] == live.owner and _left_nothing_else(live):
        status = live.status
        if status is COMPLETED:
            # The end of a task of a workflow has consequences there, and its whole row says that it is one.
            if base[0] == _RUNNING and base[2] == 1 and live.is_first_success and not live.is_workflow_task:
                said = (live.task_id, live.definition.name, base, live.started_at, live.completed_at, live.result_text)
                return _new_tuple(SuccessWrite, (*said, *live.worker, live.queue_name))
        elif status is RUNNING and base[2] == 0 and base[0] in _WAITING and not live.attempts_due:
            about = live.task_id, live.definition.name, base, live.started_at
            return _new_tuple(StartWrite, (*about, *live.worker, live.queue_name, live.enqueued_at))
    keeps_call = base[0] == _RUNNING and base[2] == live.start_count  # a retry follows an end that is in the store
    return _new_tuple(TaskWrite, (live.row(), base, live.attempts_due, keeps_call, (), False))


def _with_steps(live: LiveTask, base: Expected | None, due: StepsDue) -> TaskWrite:
    keeps_call = base is not None and base.status == _RUNNING and base.start_count == live.start_count
    return TaskWrite(live.row(), base, live.attempts_due, keeps_call, tuple(due.rows.values()), due.forgets)


def _plain_insert(live: LiveTask) -> LeanInsert | None:
    """The insert of a task to which nothing unusual was done; None of any other."""
    if live.enqueued_at != live.sent_at or _unusual(live) != _NOTHING_UNUSUAL or live.saving.pared_result is not None:
        return None
    is_new = live.status is PENDING and live.start_count == 0 and live.updated_at == live.sent_at
    is_started = live.start_count == 1 and live.status is RUNNING
    is_history = live.status is COMPLETED and live.is_first_success and not live.is_persisted
    if not (is_history or ((is_new or is_started) and not live.attempts_due)):
        return None
    if live.encodes_later:
        live.store_arguments()
    definition = live.definition
    about = definition.name, live.queue_name, live.priority, definition.retry.max_retries, live.options_text
    call = _call(*about, live.owner, *live.worker)
    said = (live.task_id, call, live.args_text, live.kwargs_text, live.tags_text, live.sent_at, live.started_at)
    if is_history:
        return _new_tuple(HistoryWrite, (*said, live.completed_at, live.result_text))
    return _new_tuple(NewWrite, said)


_unusual = attrgetter(
    "idempotency_key", "good_until", "scheduled_for", "cancel_requested_at", "claimed_at", "next_retry_at",
    "progress_text", "log_text", "error_code", "retry_count", "crash_count", "snooze_count", "is_workflow_task",
)  # fmt: skip
_NOTHING_UNUSUAL: Final = (None,) * 9 + (0,) * 4
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


def log_rejected(live: LiveTask, reason: str) -> None:
    """Say that a record cannot be stored at all."""
    logger.error(
        "task %s (%s) cannot be stored: %s; it goes on in memory only",
        live.definition.name,
        live.task_id,
        reason,
        extra=extra_of(live),
    )
