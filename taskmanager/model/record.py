"""The record of a task as it stands in the store, its attempts, and the frozen views of both for users."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from taskmanager.model.clock import LAST_US
from taskmanager.model.dataclass import dataclass, field
from taskmanager.model.result import TaskResult
from taskmanager.model.states import AttemptOutcome, TaskStatus
from taskmanager.model.steps import StepInfo, StepRow


class TaskRow(NamedTuple):
    """One row of `taskmanager_tasks`, in the order of its columns. Instants are microseconds UTC, JSON is text.

    The columns `id` and `claimed` of the table are `task_id` and derived (status CLAIMED) here.
    """

    task_id: str
    task_name: str
    queue_name: str
    priority: int
    args: str | None
    kwargs: str | None
    status: str
    sent_at: int
    enqueued_at: int
    claimed_at: int | None
    claimed_by_worker_id: str | None
    started_at: int | None
    completed_at: int | None
    failed_at: int | None
    result: str | None
    failed_reason: str | None
    error_code: str | None
    good_until: int | None
    retry_count: int
    max_retries: int
    next_retry_at: int | None
    start_count: int
    crash_count: int
    snooze_count: int
    task_options: str
    tags: str | None
    idempotency_key: str | None
    enqueue_sha: str | None
    scheduled_for: int | None
    cancel_requested_at: int | None
    progress: str | None
    log: str | None
    worker_pid: int | None
    worker_hostname: str | None
    worker_process_name: str | None
    finalizing_at: int | None
    finalizing_by_worker_id: str | None
    claim_expires_at: int | None
    is_workflow_task: int
    created_at: int
    updated_at: int

    def without_payload(self) -> "TaskRow":
        """Return the row as a list has it."""
        return self._replace(args=None, kwargs=None, result=None, log=None)


PAYLOAD: Final = ("args", "kwargs", "result", "log")
"""The columns that may be large. A list loads none of them, so None there says nothing."""


class UnreadableRow(TaskRow):
    """A row that cannot be read completely. `failed_reason` says why.

    It may be shown and ended, and never runs. The file keeps what it holds. `_replace` keeps the class.
    """

    __slots__ = ()

    @property
    def fault(self) -> str:
        """Return the sentence that says what cannot be read."""
        return (self.failed_reason or "").partition("\n")[0]


class AttemptRow(NamedTuple):
    """One row of `taskmanager_task_attempts`: an attempt that has ended. It is never changed."""

    task_id: str
    attempt: int
    outcome: str
    will_retry: int
    started_at: int
    finished_at: int
    error_code: str | None
    error_message: str | None
    failed_reason: str | None
    worker_id: str | None
    worker_hostname: str | None
    worker_pid: int | None
    worker_process_name: str | None
    created_at: int


def first_success(
    task_id: str, started_at: int, at: int, owner: str | None, pid: int | None, host: str | None, process: str | None
) -> AttemptRow:
    """Return the row of the first attempt of a task that has succeeded `at` an instant. The record says all of it."""
    outcome = AttemptOutcome.COMPLETED.value
    return AttemptRow(task_id, 1, outcome, 0, started_at, at, None, None, None, owner, host, pid, process, at)


class Expected(NamedTuple):
    """The precondition that a write repeats: what the row must still say for the write to win.

    `owner` is `claimed_by_worker_id`, `start_count` the fencing generation.
    """

    status: str
    owner: str | None
    start_count: int


def expected_of(row: TaskRow) -> Expected:
    """Return the precondition that `row` still stands as it was read."""
    return Expected(row.status, row.claimed_by_worker_id, row.start_count)


DELAY_KEY: Final = '"is_delay":true'
"""In the `task_options` of a task with a `delay`. One with a `run_at` waits for an instant of the wall clock. (A tag of
an `on_failure` may have this name, but is a text.)"""


SENDER_KEY: Final = '"sent_by":'
"""In the `task_options` of a task that an instance has put into the store for any to run: the id of that one."""


def is_pause(next_retry_at: int | None, snooze_count: int, options_text: str) -> bool:
    """Return whether this row waits for a span of time, such as a delay or the pause before a retry, and for no date.

    The start count does not tell: a task that its idempotency key has put back may have a `run_at` then.
    `DELAY_KEY` is looked for as text, as SQL does it: the options of a row may be anything.
    """
    return next_retry_at is not None or snooze_count > 0 or DELAY_KEY in options_text


def due_at(row: TaskRow, now: int) -> int:
    """Return when a row that is written again at `now` is due.

    If it was due when it was last written, it is due, even if the wall clock was set back since. A date that was still
    to come then stays. The end of a pause moves with the clock, so that the pause is as long as it was.
    """
    if row.enqueued_at <= row.updated_at:
        return min(row.enqueued_at, now)
    has_gone_back = row.updated_at > now and row.enqueued_at < LAST_US
    if has_gone_back and is_pause(row.next_retry_at, row.snooze_count, row.task_options):
        return now + row.enqueued_at - row.updated_at
    return row.enqueued_at


class TaskWrite(NamedTuple):
    """One change of one task: the new row, what it must be now (None: not there), and the attempts that have ended.

    The attempts and steps are written only where the change of state won.
    """

    row: TaskRow
    expected: Expected | None
    attempts: tuple[AttemptRow, ...] = ()
    keeps_call: bool = False
    """Whether the task has the same arguments and options as the row, so that those need not be written."""
    steps: tuple[StepRow, ...] = ()
    """Records of its steps that are new, or have changed."""
    forgets_steps: bool = False
    """Whether the records that the store has of its steps are deleted, before these are written."""

    @property
    def task_id(self) -> str:
        """The task that is changed."""
        return self.row.task_id

    @property
    def task_name(self) -> str:
        """The name of its function."""
        return self.row.task_name

    @property
    def status(self) -> str:
        """The state it leads to."""
        return self.row.status


class StartWrite(NamedTuple):
    """The first start of a task whose owner stays: PENDING or CLAIMED → RUNNING.

    `started_at` is the time of the update too. Nothing else in the row changes, so nothing else is written. What stands
    last in it is counted: in which queue it was, and how long it had been due.
    """

    task_id: str
    task_name: str
    expected: Expected
    started_at: int
    worker_pid: int | None
    worker_hostname: str | None
    worker_process_name: str | None
    queue_name: str
    enqueued_at: int

    @property
    def attempts(self) -> tuple[AttemptRow, ...]:
        """No attempt has ended yet."""
        return ()

    @property
    def status(self) -> str:
        """The state it leads to."""
        return "RUNNING"


class SuccessWrite(NamedTuple):
    """The success of a first run that left nothing in the row but its start: RUNNING → COMPLETED.

    `completed_at` is the time of the update too. The row of the attempt is made from these fields. `queue_name` is
    for the counts alone.
    """

    task_id: str
    task_name: str
    expected: Expected
    started_at: int
    completed_at: int
    result: str | None
    worker_pid: int | None
    worker_hostname: str | None
    worker_process_name: str | None
    queue_name: str

    @property
    def attempts(self) -> tuple[AttemptRow, ...]:
        """The one that has ended."""
        worker = self.expected.owner, self.worker_pid, self.worker_hostname, self.worker_process_name
        return (first_success(self.task_id, self.started_at, self.completed_at, *worker),)

    @property
    def status(self) -> str:
        """The state it leads to."""
        return "COMPLETED"


class PlainCall(NamedTuple):
    """What many plain tasks of one instance have in common: their function, its options, and who runs them."""

    task_name: str
    queue_name: str
    priority: int
    max_retries: int
    task_options: str
    owner: str | None
    worker_pid: int | None
    worker_hostname: str | None
    worker_process_name: str | None


class NewWrite(NamedTuple):
    """→ PENDING, or RUNNING for the first time where `started_at` is given: a plain task of which no row stands there.

    Plain is a task that is due at once, without a key, an expiry and a schedule.
    """

    task_id: str
    call: PlainCall
    args: str | None
    kwargs: str | None
    tags: str | None
    sent_at: int
    started_at: int | None

    @property
    def task_name(self) -> str:
        """The name of its function."""
        return self.call.task_name

    @property
    def expected(self) -> None:
        """No row stands there."""
        return

    @property
    def attempts(self) -> tuple[AttemptRow, ...]:
        """None has ended yet."""
        return ()

    @property
    def status(self) -> str:
        """The state it leads to."""
        return "PENDING" if self.started_at is None else "RUNNING"

    def in_full(self) -> TaskWrite:
        """Return the same as a whole row."""
        row = _plain_row(self, self.status)
        if self.started_at is not None:
            row = row._replace(updated_at=self.started_at)
        return TaskWrite(row, None)


class HistoryWrite(NamedTuple):
    """→ COMPLETED, in one write: a plain memory-only task that succeeded in its first run."""

    task_id: str
    call: PlainCall
    args: str | None
    kwargs: str | None
    tags: str | None
    sent_at: int
    started_at: int
    completed_at: int
    result: str | None

    @property
    def attempts(self) -> tuple[AttemptRow, ...]:
        """The one that has ended."""
        return (first_success(self.task_id, self.started_at, self.completed_at, *self.call[5:]),)

    @property
    def task_name(self) -> str:
        """The name of its function."""
        return self.call.task_name

    @property
    def expected(self) -> None:
        """No row stands there, or an ended one of a memory-only task."""
        return

    @property
    def status(self) -> str:
        """The state it leads to."""
        return "COMPLETED"

    def in_full(self) -> TaskWrite:
        """Return the same as a whole row."""
        row = _plain_row(self, "COMPLETED")
        ended = row._replace(completed_at=self.completed_at, result=self.result, updated_at=self.completed_at)
        return TaskWrite(ended, None, self.attempts)


def _plain_row(write: NewWrite | HistoryWrite, status: str) -> TaskRow:
    call, has_started = write.call, write.started_at is not None
    values: dict[str, Any] = dict.fromkeys(TaskRow._fields)
    values |= dict.fromkeys(_COUNTS, 0) | {
        "task_id": write.task_id, "task_name": call.task_name, "queue_name": call.queue_name,
        "priority": call.priority, "args": write.args, "kwargs": write.kwargs, "status": status,
        "sent_at": write.sent_at, "enqueued_at": write.sent_at, "created_at": write.sent_at,
        "updated_at": write.sent_at, "claimed_by_worker_id": call.owner, "started_at": write.started_at,
        "start_count": int(has_started), "max_retries": call.max_retries, "task_options": call.task_options,
        "tags": write.tags,
    }  # fmt: skip
    if has_started:
        values |= {name: getattr(call, name) for name in ("worker_pid", "worker_hostname", "worker_process_name")}
    return TaskRow(**values)


_COUNTS: Final = ("retry_count", "start_count", "crash_count", "snooze_count", "is_workflow_task")

LeanInsert = NewWrite | HistoryWrite
Write = TaskWrite | StartWrite | SuccessWrite | LeanInsert
"""One change of one task. The lean ones hold only the change; a `TaskWrite` holds the whole row."""


def in_full(write: Write) -> TaskWrite | StartWrite | SuccessWrite:
    """Return the write, an insert as a whole row."""
    return write.in_full() if isinstance(write, LeanInsert) else write


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptInfo:
    """One attempt that has ended, as users see it. Instants are aware UTC."""

    task_id: str
    attempt: int
    outcome: AttemptOutcome
    will_retry: bool
    started_at: datetime
    finished_at: datetime
    error_code: str | None
    error_message: str | None
    failed_reason: str | None
    worker_id: str | None
    worker_hostname: str | None
    worker_pid: int | None
    worker_process_name: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """One task as it was at one moment. Instants are aware UTC. `attempts` and `steps` are None unless asked for.

    `saved` says whether the file holds this state already. `args` and `kwargs` are the stored JSON text, or None if the
    arguments of a memory-only task could not be stored. A list does not load `args`, `kwargs`, `result` and `log`: they
    are None there.
    """

    task_id: str
    task_name: str
    queue_name: str
    priority: int
    args: str | None
    kwargs: str | None
    status: TaskStatus
    saved: bool
    sent_at: datetime
    enqueued_at: datetime
    claimed_at: datetime | None
    started_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    result: TaskResult[Any] | None
    failed_reason: str | None
    error_code: str | None
    claimed: bool
    claimed_by_worker_id: str | None
    good_until: datetime | None
    retry_count: int
    max_retries: int
    next_retry_at: datetime | None
    start_count: int
    crash_count: int
    snooze_count: int
    task_options: Mapping[str, Any]
    tags: Mapping[str, str] = field(default_factory=dict)
    idempotency_key: str | None
    enqueue_sha: str | None
    scheduled_for: datetime | None
    cancel_requested_at: datetime | None
    progress: Mapping[str, Any] | None
    log: tuple[Mapping[str, Any], ...] | None
    worker_pid: int | None
    worker_hostname: str | None
    worker_process_name: str | None
    finalizing_at: datetime | None
    finalizing_by_worker_id: str | None
    claim_expires_at: datetime | None
    is_workflow_task: bool
    created_at: datetime
    updated_at: datetime
    attempts: tuple[AttemptInfo, ...] | None = None
    steps: tuple[StepInfo, ...] | None = None
