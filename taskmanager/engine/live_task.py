"""One task as it lives in memory: its record, and what the engine needs to run it, save it and tell its waiters.

Accepting a task must cost about a microsecond, so most fields are class attributes that stand for "not yet"; an
instance holds only what differs.
"""

import asyncio
from contextvars import Context
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from taskmanager.codec.values import loads
from taskmanager.engine.definition import Definition
from taskmanager.engine.row_codec import stored_arguments
from taskmanager.model.record import AttemptRow, Expected, StartWrite, SuccessWrite, TaskRow, TaskWrite, Write
from taskmanager.model.result import TaskError, TaskResult
from taskmanager.model.states import BuiltInTaskCode, TaskStatus

if TYPE_CHECKING:
    from taskmanager.engine.attempt import Attempt


class Phase(IntEnum):
    """Where a task stands in this instance; finer than its status."""

    ACCEPTED = 0
    """Not dispatched: held before start, or keyed and not yet confirmed by the store."""
    DELAYED = 1
    READY = 2
    STARTING = 3
    """Has a slot; its start is being committed."""
    RUNNING = 4
    ENDED = 5
    ELSEWHERE = 6
    """Not ours (any more): free in the store, or owned by another instance. Waiters follow the store."""


class Ending(NamedTuple):
    """How a task ended, as its waiters get it. `requeued`: it goes on at the next start."""

    status: TaskStatus
    result: TaskResult[Any]
    requeued: bool = False


GOES_ON = Ending(
    TaskStatus.PENDING,
    TaskResult(
        err=TaskError(BuiltInTaskCode.MANAGER_STOPPED, "the manager stopped; the task waits for the next start")
    ),
    requeued=True,
)
"""What a stop tells those who wait for a task that has not ended here."""

# The driver looks up an adapter for every value that is not exactly a str or an int, enum members included.
_TEXT = {status: str(status.value) for status in TaskStatus}
_PENDING, _RUNNING = _TEXT[TaskStatus.PENDING], _TEXT[TaskStatus.RUNNING]
_new_tuple = tuple.__new__
"""A NamedTuple's own constructor costs a call more, and three are made for each persisted task."""


class LiveTask:
    """One task in memory. Fields up to `created_at` mirror the columns of its row."""

    claimed_at: int | None = None
    owner: str | None = None
    started_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    result_text: str | None = None
    failed_reason: str | None = None
    error_code: str | None = None
    good_until: int | None = None
    retry_count: int = 0
    next_retry_at: int | None = None
    start_count: int = 0
    crash_count: int = 0
    snooze_count: int = 0
    tags_text: str | None = None
    idempotency_key: str | None = None
    enqueue_sha: str | None = None
    scheduled_for: int | None = None
    cancel_requested_at: int | None = None
    progress_text: str | None = None
    log_text: str | None = None
    worker_pid: int | None = None
    worker_hostname: str | None = None
    worker_process_name: str | None = None

    args_text: str | None = None
    kwargs_text: str | None = None
    call_args: tuple[Any, ...] | None = None
    call_kwargs: dict[str, Any] | None = None
    encodes_later: bool = False
    """The arguments are immutable scalars of a memory-only task: their stored form is made when it is asked for."""
    context: Context | None = None
    timeout_s: float | None = None
    due: float = 0.0
    committed: Expected | None = None
    in_doubt: tuple[Expected, ...] = ()
    is_written_anew: bool = False
    """The file was replaced: what the new one holds of this task, if anything, is an older state of it."""
    attempts_due: tuple[AttemptRow, ...] = ()
    is_dirty: bool = False
    unsaved_since_s: float = 0.0
    is_urgent: bool = False
    put_back_count: int = 0
    is_end_unsaved: bool = False
    is_duplicate: bool | None = None
    is_spilled: bool = False
    awaits_row: bool = False
    rejection: str | None = None
    pared_result: int | None = None
    """The attempt whose result was left out of the record, because the store refused that."""
    successor: "LiveTask | None" = None
    attempt: "Attempt | None" = None
    ending: Ending | None = None
    is_published: bool = False
    waiters: "list[asyncio.Future[Any]] | None" = None
    save_waiters: "list[asyncio.Future[Any]] | None" = None

    def __init__(
        self, definition: Definition, task_id: str, now: int, options_text: str, queue_name: str, priority: int
    ) -> None:
        self.definition = definition
        self.task_id = task_id
        self.options_text = options_text
        self.queue_name = queue_name
        self.priority = priority
        self.is_persisted = definition.is_persisted
        self.status = TaskStatus.PENDING
        self.sent_at = now
        self.enqueued_at = now
        self.updated_at = now
        self.phase = Phase.ACCEPTED

    def __repr__(self) -> str:
        kept = "persisted" if self.is_persisted else "memory-only"
        return f"<LiveTask {self.task_id} {self.definition.name!r} {self.status} ({self.phase.name.lower()}, {kept})>"

    @property
    def is_waiting(self) -> bool:
        """True while the task waits in this instance's memory for a slot, a delay or its row."""
        return self.phase <= Phase.READY

    @property
    def is_elsewhere(self) -> bool:
        """True when only the store knows how the task goes on."""
        return self.phase is Phase.ELSEWHERE

    def duplicate_answer(self) -> bool | None:
        """Whether the call named an existing task: known at once without a key, or in memory; else with the commit."""
        if self.idempotency_key is None or not self.is_persisted:
            return bool(self.is_duplicate)
        return self.is_duplicate

    def waiters_list(self) -> "list[asyncio.Future[Any]]":
        """Where those who wait for the end put their future."""
        if self.waiters is None:
            self.waiters = []
        return self.waiters

    def save_waiters_list(self) -> "list[asyncio.Future[Any]]":
        """Where those who wait for the first commit put their future."""
        if self.save_waiters is None:
            self.save_waiters = []
        return self.save_waiters

    @property
    def is_saved(self) -> bool:
        """True when the file holds the newest state."""
        return not self.is_dirty and self.committed is not None and self.committed.status == self.status

    def expectation(self) -> Expected:
        """What the row says once the present state is committed."""
        return _new_tuple(Expected, (_TEXT[self.status], self.owner, self.start_count))

    @property
    def is_as_committed(self) -> bool:
        """True when the store says what memory says: the expectation has come true."""
        committed = self.committed
        return (
            committed is not None
            and committed[2] == self.start_count
            and committed[0] == _TEXT[self.status]
            and committed[1] == self.owner
        )

    def store_arguments(self) -> None:
        """Keep the arguments of a memory-only task for its record, where they can be stored."""
        self.encodes_later = False
        args, kwargs = self.call_args or (), self.call_kwargs or {}
        self.args_text, self.kwargs_text = stored_arguments(self.definition, args, kwargs)
        if self.is_published:
            self.call_args = self.call_kwargs = None

    def write(self, base: Expected | None, attempts: tuple[AttemptRow, ...]) -> Write:
        """The change from the committed state `base` to the present one, as lean as it can be said."""
        if base is not None and self.start_count == 1 and base[1] == self.owner and self._left_nothing_else():
            status = self.status
            if status is TaskStatus.COMPLETED:
                if base[0] == _RUNNING and base[2] == 1:
                    change = (self.task_id, self.definition.name, base, self.completed_at, self.result_text, attempts)
                    return _new_tuple(SuccessWrite, change)
            elif status is TaskStatus.RUNNING and base[0] == _PENDING and base[2] == 0:
                worker = (self.worker_pid, self.worker_hostname, self.worker_process_name)
                return _new_tuple(StartWrite, (self.task_id, self.definition.name, base, self.started_at, *worker))
        return _new_tuple(TaskWrite, (self.row(), base, attempts))

    def _left_nothing_else(self) -> bool:
        """Neither by what it reported nor by a cancel request: both may come before its start is committed."""
        return self.progress_text is None and self.log_text is None and self.cancel_requested_at is None

    def row(self) -> TaskRow:
        """The whole record as it is now."""
        if self.encodes_later:
            self.store_arguments()
        return _new_tuple(
            TaskRow,
            (
                self.task_id,
                self.definition.name,
                self.queue_name,
                self.priority,
                self.args_text,
                self.kwargs_text,
                _TEXT[self.status],
                self.sent_at,
                self.enqueued_at,
                self.claimed_at,
                self.owner,
                self.started_at,
                self.completed_at,
                self.failed_at,
                self.result_text,
                self.failed_reason,
                self.error_code,
                self.good_until,
                self.retry_count,
                self.definition.retry.max_retries,
                self.next_retry_at,
                self.start_count,
                self.crash_count,
                self.snooze_count,
                self.options_text,
                self.tags_text,
                self.idempotency_key,
                self.enqueue_sha,
                self.scheduled_for,
                self.cancel_requested_at,
                self.progress_text,
                self.log_text,
                self.worker_pid,
                self.worker_hostname,
                self.worker_process_name,
                None,
                None,
                None,
                0,
                self.sent_at,
                self.updated_at,
            ),
        )

    def adopt(self, row: TaskRow) -> None:
        """Take over what the store says of this task (after a claim, a lost write, or a duplicate key)."""
        self.queue_name, self.priority = row.queue_name, row.priority
        self.args_text, self.kwargs_text = row.args, row.kwargs
        self.status = TaskStatus(row.status)
        self.sent_at, self.enqueued_at, self.updated_at = row.sent_at, row.enqueued_at, row.updated_at
        self.claimed_at, self.owner, self.started_at = row.claimed_at, row.claimed_by_worker_id, row.started_at
        self.completed_at, self.failed_at = row.completed_at, row.failed_at
        self.result_text, self.failed_reason, self.error_code = row.result, row.failed_reason, row.error_code
        self.good_until, self.next_retry_at = row.good_until, row.next_retry_at
        self.retry_count, self.start_count = row.retry_count, row.start_count
        self.crash_count, self.snooze_count = row.crash_count, row.snooze_count
        self.options_text, self.tags_text = row.task_options, row.tags
        self.idempotency_key, self.enqueue_sha = row.idempotency_key, row.enqueue_sha
        self.scheduled_for, self.cancel_requested_at = row.scheduled_for, row.cancel_requested_at
        self.progress_text, self.log_text = row.progress, row.log
        self.call_args = self.call_kwargs = None
        self.committed = Expected(row.status, row.claimed_by_worker_id, row.start_count)

    @classmethod
    def from_row(cls, row: TaskRow, definition: Definition, timeout_s: float | None) -> "LiveTask":
        """The live form of a row that this instance has claimed."""
        live = cls(definition, row.task_id, row.sent_at, row.task_options, row.queue_name, row.priority)
        live.is_persisted = True
        live.timeout_s = timeout_s
        live.adopt(row)
        return live


def carries(tags_text: str | None, tags: dict[str, str]) -> bool:
    """Whether these stored tags hold all of those."""
    has = loads(tags_text) if tags_text else {}
    return all(has.get(key) == value for key, value in tags.items())
