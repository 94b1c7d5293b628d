"""One task as it lives in memory: its record, and what the engine needs to run it and to tell its waiters.

Accepting a task must cost about a microsecond, so what few tasks have stands in the class, for "not yet".
"""

import asyncio
import weakref
from collections.abc import Callable
from contextvars import Context
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from taskmanager.engine.words.definition import Definition, with_delay
from taskmanager.engine.words.phases import ARRIVED, FREEING, LEFT, READY, RUNNING, STARTING, Phase
from taskmanager.model.clock import SECOND_US
from taskmanager.model.errors import ArgumentError
from taskmanager.model.record import AttemptRow, Expected, TaskRow, first_success, is_pause
from taskmanager.model.result import TaskError, TaskResult
from taskmanager.model.states import COMPLETED, LIVE, PENDING, BuiltInTaskCode, TaskStatus

if TYPE_CHECKING:
    from taskmanager.engine.words.attempt import Attempt
    from taskmanager.engine.write.writes import StepsDue


class Ending(NamedTuple):
    """How a task ended, as its waiters get it. `requeued`: it goes on at the next start."""

    status: TaskStatus
    result: TaskResult[Any]
    requeued: bool = False


class Worker(NamedTuple):
    """The process that runs a task, as its row names it."""

    pid: int | None
    hostname: str | None
    process_name: str | None


NO_WORKER: Final = Worker(None, None, None)
NO_VALUE: Final[Any] = object()


class Holder(Protocol):
    """What a task knows of its handles."""

    _cause: tuple[Ending, BaseException] | None


_STOPPED: Final = TaskError(BuiltInTaskCode.MANAGER_STOPPED, "it waits for the next start, as the manager stopped")
GOES_ON = Ending(TaskStatus.PENDING, TaskResult(err=_STOPPED), requeued=True)
"""What a stop tells those who wait for a task that has not ended here."""

# The driver looks up an adapter for every value that is not exactly a str or an int, enum members included.
STATUS_TEXT: Final = {status: str(status.value) for status in TaskStatus}
_new_tuple = tuple.__new__
"""A NamedTuple's own constructor costs a call more, and three are made for each persisted task."""


_expected = lru_cache(1_024)(Expected)  # what is read of a row is no such object, by which the writer tells a claim


class Saving:
    """What the writer knows of one persisted task, or of one memory-only task that has ended.

    A task is *dirty* from a change until it is taken into a batch, and *in flight* from there until the answer. It may
    be both, when it changes again meanwhile. An *urgent* change does not wait for an interval. The writer, its outbox,
    and those who hear what became of the writes write to this; all others only read.
    """

    __slots__ = (
        "committed", "in_doubt", "is_dirty", "is_urgent", "is_written_anew", "on_wait", "pared_result", "rejection",
        "told", "unsaved_since_s",
    )  # fmt: skip
    committed: Expected | None
    """The last state that is known to be in the store: what the next write is based on."""
    in_doubt: tuple[Expected, ...]
    """States that were sent since, in commits that seemed to fail, and may have arrived all the same."""
    is_written_anew: bool
    """The file was replaced: what the new one holds of this task, if anything, is an older state of it."""
    unsaved_since_s: float
    """When it became dirty, on the clock of the outbox."""
    on_wait: Callable[[], None] | None
    """Makes an end urgent that may wait, when somebody begins to wait for it."""
    rejection: str | None
    """Why the store will never hold its newest state."""
    pared_result: int | None
    """The attempt whose result was left out of the record, because the store refused that."""
    told: Expected | None
    """The last state of which the listeners were told, if there are any."""

    def __init__(self) -> None:
        self.committed = self.on_wait = self.rejection = self.pared_result = self.told = None
        self.is_dirty = self.is_urgent = self.is_written_anew = False
        self.in_doubt, self.unsaved_since_s = (), 0.0

    def __repr__(self) -> str:
        queued = "urgent" if self.is_urgent else "dirty" if self.is_dirty else "clean"
        return f"<Saving {queued}, in the store: {self.committed and self.committed.status}>"


class _NotSaved(Saving):
    """Of all tasks that nothing is to be written of so far; nobody's own, so nobody writes to it."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise AssertionError(f"{name} is set of a task whose saving has not begun")


NOT_SAVED = Saving()
NOT_SAVED.__class__ = _NotSaved


class LiveTask:
    """One task in memory: the columns of its record, its call, where it stands, how it is saved, and who waits."""

    # What nearly every task sets has a slot. All else stands in the class until it is set for one task: an object has
    # room for thirty names, and one more would give each task a dictionary of 800 bytes.
    __slots__ = (
        "__dict__", "__weakref__", "_attempts_due", "_ending", "_value", "args_text", "attempt", "call_args",
        "call_kwargs", "claimed_at", "completed_at", "context", "definition", "due", "encodes_later", "enqueued_at",
        "holder", "idempotency_key", "is_ordinary", "is_persisted", "is_published", "kwargs_text", "options_text",
        "owner", "phase", "priority", "queue_name", "result_text", "save_waiters", "saving", "sent_at", "start_count",
        "started_at", "status", "task_id", "timeout_s", "updated_at", "waiters", "worker",
    )  # fmt: skip

    # The columns of its row.
    definition: Definition
    task_id: str
    options_text: str
    queue_name: str
    priority: int
    sent_at: int
    enqueued_at: int
    updated_at: int
    status: TaskStatus
    claimed_at: int | None
    owner: str | None
    started_at: int | None
    completed_at: int | None
    failed_at: int | None = None
    args_text: str | None
    kwargs_text: str | None
    result_text: str | None
    failed_reason: str | None = None
    error_code: str | None = None
    good_until: int | None = None
    retry_count: int = 0
    next_retry_at: int | None = None
    start_count: int
    crash_count: int = 0
    snooze_count: int = 0
    tags_text: str | None = None
    idempotency_key: str | None
    enqueue_sha: str | None = None
    scheduled_for: int | None = None
    cancel_requested_at: int | None = None
    progress_text: str | None = None
    log_text: str | None = None
    worker: Worker
    _attempts_due: tuple[AttemptRow, ...] | None
    steps_due: "StepsDue | None" = None
    is_workflow_task: int = 0
    """Whether it belongs to a node of a workflow."""
    never: None = None
    """Of columns that no version of the library uses."""

    # The call, as the caller made it; not of what was read from the store.
    call_args: tuple[Any, ...] | None
    call_kwargs: dict[str, Any] | None
    is_ordinary: bool
    """Memory-only, and called with no options but tags, queue and priority: it may start as soon as there is a slot."""
    encodes_later: bool
    """The arguments are immutable scalars of a memory-only task: their stored form is made when it is asked for."""
    context: Context | None
    timeout_s: float | None
    is_persisted: bool

    # Where it stands here: its phase, which `Dispatcher.move` changes, and what that leaves open.
    phase: Phase
    due: float
    """Until when it is delayed, on the clock of the heap that it is in."""
    watched_until: int | None = None
    """The `good_until` under which it stands among those that may expire."""
    is_unconfirmed = False
    """Whether it is not known yet if its key stands for this task, or for an earlier one."""
    is_cancel_of_call = False
    """Whether the request to cancel it means the task of this call, and none that its key has already."""
    is_duplicate: bool | None = None
    """Whether its key had a task already; None until that is known."""
    attempt: "Attempt | None"
    successor: "LiveTask | None" = None
    """The call of the same key that runs after this one."""
    run_number: int = 0
    """Tells the runs of a task apart that was put back after its end (see `Reruns`)."""

    # How it is saved.
    saving: Saving

    # Who waits, and for what.
    _ending: Ending | None
    _value: Any
    is_published: bool
    """Its waiters were told the ending, or wait elsewhere."""
    waiters: "list[asyncio.Future[Any]] | None"
    save_waiters: "list[asyncio.Future[Any]] | None"
    """For its first commit."""
    holder: "weakref.ref[Holder] | None"
    """The first of its handles that still exists; the others keep that one. Only they keep an exception alive."""

    def __init__(self, definition: Definition, task_id: str, now: int) -> None:
        self.definition, self.task_id = definition, task_id
        self.options_text, self.timeout_s = definition.options_text, definition.timeout_s
        self.queue_name, self.priority = definition.queue_name, definition.priority
        self.is_persisted = definition.is_persisted
        self.saving = Saving() if definition.is_persisted else NOT_SAVED
        self.sent_at = self.enqueued_at = self.updated_at = now
        self.status, self.phase, self.worker, self._attempts_due = PENDING, ARRIVED, NO_WORKER, ()
        self.start_count, self.due = 0, 0.0
        self.is_ordinary = self.encodes_later = self.is_published = False
        self.owner = self.claimed_at = self.started_at = self.completed_at = self.idempotency_key = None
        self.args_text = self.kwargs_text = self.result_text = None
        self.call_args = self.call_kwargs = self.context = self.attempt = self._ending = None
        self.waiters = self.save_waiters = self.holder = None
        self._value = NO_VALUE

    def __repr__(self) -> str:
        kept = "persisted" if self.is_persisted else "memory-only"
        return f"<LiveTask {self.task_id} {self.definition.name!r} {self.status} ({self.phase.name.lower()}, {kept})>"

    @property
    def is_waiting(self) -> bool:
        """True while the task waits in this instance's memory for a slot, a delay or its row."""
        return self.phase <= READY

    @property
    def is_freeing(self) -> bool:
        """True while its row is on the way to the store, to be free there."""
        return self.phase is FREEING

    @property
    def is_awaiting_store(self) -> bool:
        """True while it waits, and nothing can be done with it before its row is written."""
        return self.is_unconfirmed or self.phase is FREEING

    @property
    def has_left(self) -> bool:
        """True when only the store knows how the task goes on."""
        return self.phase is LEFT

    @property
    def ending(self) -> Ending | None:
        """How it ended. Of a success it is made when somebody asks: of most tasks nobody does."""
        if self._ending is None and self._value is not NO_VALUE:
            self._ending = Ending(TaskStatus.COMPLETED, TaskResult(ok=self._value))
        return self._ending

    @ending.setter
    def ending(self, ending: Ending | None) -> None:
        self._ending, self._value = ending, NO_VALUE

    @property
    def goes_on(self) -> bool:
        """Whether its waiters were told that it goes on at the next start, or with its free row."""
        return self._ending is not None and self._ending.requeued

    @property
    def attempts_due(self) -> tuple[AttemptRow, ...]:
        """Rows of attempts that go to the store with the record."""
        if self._attempts_due is None:
            return (first_success(self.task_id, self.started_at or 0, self.updated_at, self.owner, *self.worker),)
        return self._attempts_due

    @attempts_due.setter
    def attempts_due(self, attempts: tuple[AttemptRow, ...]) -> None:
        self._attempts_due = attempts

    @property
    def is_first_success(self) -> bool:
        """Whether all that is to be written of its attempts is that the first one has succeeded: its record says so."""
        return self._attempts_due is None

    def succeed(self, value: Any, now_us: int) -> None:
        """→ COMPLETED with this value."""
        if self.start_count == 1 and not self._attempts_due:
            self._attempts_due = None
        self.status = COMPLETED
        self.completed_at = self.updated_at = now_us
        self._value = value

    def duplicate_answer(self) -> bool | None:
        """Whether the call named an existing task: known at once without a key, or in memory; else with the commit."""
        if self.idempotency_key is None or not self.is_persisted:
            return bool(self.is_duplicate)
        return self.is_duplicate

    def history(self) -> str:
        """What the record tells of its life, in one line, for whoever looks for a mistake of ours."""
        saving, at = self.saving, ("sent_at", "enqueued_at", "claimed_at", "started_at", "updated_at")
        times = ", ".join(f"{name} {value}" for name in at if (value := getattr(self, name)) is not None)
        counts = f"{self.start_count} starts, {self.retry_count} retries, {self.crash_count} crashes"
        return f"{self!r}, owner {self.owner}, {times}, {counts}, {saving!r}, in doubt: {saving.in_doubt}"

    def tell_cause(self, exc: BaseException) -> None:
        """Its handles keep the exception with the ending that it led to."""
        holder = None if self.holder is None else self.holder()
        if holder is not None and self.ending is not None:
            holder._cause = self.ending, exc  # noqa: SLF001  # handles have no public name for it

    def waiters_list(self) -> "list[asyncio.Future[Any]]":
        """Where those who wait for the end put their future. From now on that does not wait for other commits."""
        if self.saving.on_wait is not None:
            self.saving.on_wait()
        if self.waiters is None:
            self.waiters = []
        return self.waiters

    def save_waiters_list(self) -> "list[asyncio.Future[Any]]":
        """Where those who wait for the first commit put their future."""
        if self.save_waiters is None:
            self.save_waiters = []
        return self.save_waiters

    def delay(self, delay_s: float, elapsed_s: float) -> None:
        """Let a new task wait for so long; `elapsed_s` is the clock that no step moves."""
        self.enqueued_at += int(delay_s * SECOND_US)
        self.due = elapsed_s + delay_s
        self.options_text = with_delay(self.options_text)

    @property
    def is_pausing(self) -> bool:
        """True when it waits for a while, and not for an instant that was promised."""
        return is_pause(self.next_retry_at, self.snooze_count, self.options_text)

    def renew_due(self, now_us: int, elapsed_s: float) -> None:
        """Say anew when it is due, by the wall clock as it is now: it may have been stepped since that was written.

        What is due stays due, a pause goes on for what is left of it by the clock that no step moves, and a promised
        instant stays.
        """
        if self.phase in (READY, STARTING) or self.enqueued_at <= self.updated_at:
            self.enqueued_at = min(self.enqueued_at, now_us)
        elif self.due and self.is_pausing:
            self.enqueued_at = now_us + max(0, int((self.due - elapsed_s) * SECOND_US))
            self.next_retry_at = None if self.next_retry_at is None else self.enqueued_at
        self.updated_at = now_us

    @property
    def is_saved(self) -> bool:
        """True when the file holds the newest state."""
        saving = self.saving
        return not saving.is_dirty and saving.committed is not None and saving.committed.status == self.status

    def expectation(self) -> Expected:
        """What the row says once the present state is committed."""
        return _expected(STATUS_TEXT[self.status], self.owner, self.start_count)

    def has_overtaken(self, row: TaskRow) -> bool:
        """Whether the file was replaced by a copy, whose row is an earlier state of this task. Of a run that goes on
        here, or has ended, it may tell of more starts, in a history that is no more: nobody ends it for that.
        """
        if not self.saving.is_written_anew or row.sent_at != self.sent_at:
            return False
        has_run = self.phase is RUNNING or self.status.is_terminal
        return row.start_count <= self.start_count or (has_run and row.status in LIVE)

    def store_error(self, error: TaskError) -> None:
        """Keep this error as the result."""
        self.result_text = self.definition.stored_error(error)

    def store_arguments(self) -> None:
        """Keep the arguments of a memory-only task for its record, if they can be stored. They are scalars."""
        args, kwargs = self.call_args or (), self.call_kwargs or {}
        try:
            self.args_text, self.kwargs_text = self.definition.encode_arguments(args, kwargs)
        except ArgumentError:
            self.args_text = self.kwargs_text = None
        self.encodes_later = False  # last of all: another thread may read the arguments for a listener
        if self.is_published:
            self.call_args = self.call_kwargs = None

    def row(self) -> TaskRow:
        """Return the whole record as it is now."""
        if self.encodes_later:
            self.store_arguments()
        return _new_tuple(TaskRow, columns_of(self))

    def adopt(self, row: TaskRow) -> None:
        """Take over what the store says of this task (after a claim, a lost write, or a duplicate key)."""
        for name, value in zip(_RARE.values(), _rare(row), strict=True):
            setattr(self, name, value)
        self._adopt_usual(row)
        self.call_args = self.call_kwargs = None

    def _adopt_usual(self, row: TaskRow) -> None:
        (
            self.queue_name, self.priority, self.args_text, self.kwargs_text, self.sent_at, self.enqueued_at,
            self.updated_at, self.claimed_at, self.owner, self.options_text, self.started_at, self.start_count,
        ) = _usual(row)  # fmt: skip
        self.status = _STATUSES[row.status]
        self.saving.committed = _new_tuple(Expected, (row.status, row.claimed_by_worker_id, row.start_count))

    @classmethod
    def from_row(cls, row: TaskRow, definition: Definition, timeout_s: float | None, phase: Phase = LEFT) -> "LiveTask":
        """The live form of a row that this instance has claimed, or that has ended here."""
        live = cls(definition, row.task_id, row.sent_at)
        if live.saving is NOT_SAVED:
            live.is_persisted, live.saving = True, Saving()
        live.phase = phase  # LEFT until it is taken in, as one that was here before
        live.timeout_s = timeout_s
        live._adopt_usual(row)
        # Most rows say next to nothing here. To set each column would cost 4 us more, and twice the memory.
        if (found := _rare(row)) != _SAYS_NOTHING:
            for name, value, nothing in zip(_RARE.values(), found, _SAYS_NOTHING, strict=True):
                if value != nothing:
                    setattr(live, name, value)
        return live


_OTHER_NAMES: Final = {
    "task_name": "definition.name", "max_retries": "definition.retry.max_retries",
    "status": "status._value_",  # the text alone: the driver looks up an adapter for the members of an enum
    "args": "args_text", "kwargs": "kwargs_text", "result": "result_text", "task_options": "options_text",
    "tags": "tags_text", "progress": "progress_text", "log": "log_text",
    "claimed_by_worker_id": "owner", "worker_pid": "worker.pid", "worker_hostname": "worker.hostname",
    "worker_process_name": "worker.process_name", "created_at": "sent_at",
    "finalizing_at": "never", "finalizing_by_worker_id": "never", "claim_expires_at": "never",
}  # fmt: skip
"""Where a task keeps the columns of its row that it knows by another name."""
_NAMES: Final = {column: _OTHER_NAMES.get(column, column) for column in TaskRow._fields}
columns_of = attrgetter(*_NAMES.values())
_ADOPTED: Final = {
    column: name
    for column, name in _NAMES.items()
    if "." not in name and column not in ("task_id", "created_at") and name != "never"
}
"""What a row says of its task; the rest is known before it is read, or is said of one start only."""
_USUAL_COLUMNS: Final = (
    "queue_name", "priority", "args", "kwargs", "sent_at", "enqueued_at", "updated_at", "claimed_at",
    "claimed_by_worker_id", "task_options", "started_at", "start_count",
)  # fmt: skip
"""The columns that differ from row to row, in the order of `_adopt_usual`; most rows say the same in the others."""
_RARE: Final = {column: name for column, name in _ADOPTED.items() if column not in _USUAL_COLUMNS}
_usual, _rare = (itemgetter(*map(TaskRow._fields.index, columns)) for columns in (_USUAL_COLUMNS, _RARE))
_SAYS_NOTHING: Final = tuple(None if name in LiveTask.__slots__ else getattr(LiveTask, name) for name in _RARE.values())
_STATUSES: Final = {status.value: status for status in TaskStatus}
