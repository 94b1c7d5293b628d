"""The life of a task as data: statuses, the table of legal moves, built-in error codes, outcomes of attempts.

The engine, the SQL `CHECK`s, the property tests and the diagram in docs/reference.md are all made from `TRANSITIONS`.
"""

from enum import StrEnum
from typing import Final, Literal, NamedTuple

Lane = Literal["async", "thread", "process"]


class TaskStatus(StrEnum):
    """Where a task is in its life. `SUCCESS` is another name of `COMPLETED`."""

    PENDING = "PENDING"
    CLAIMED = "CLAIMED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"
    INTERRUPTED = "INTERRUPTED"
    SUCCESS = "COMPLETED"

    @property
    def is_terminal(self) -> bool:
        """True if nothing but `retry` can move the task any more."""
        return self in TERMINAL


# What the engine asks of each task it asks by these names: to look up a member in its class takes four times as long.
PENDING: Final = TaskStatus.PENDING
RUNNING: Final = TaskStatus.RUNNING
COMPLETED: Final = TaskStatus.COMPLETED

TERMINAL: Final = frozenset(
    {TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.EXPIRED, TaskStatus.INTERRUPTED}
)
LIVE: Final = frozenset(TaskStatus) - TERMINAL
WAITING: Final = frozenset({TaskStatus.PENDING, TaskStatus.CLAIMED})


class BuiltInTaskCode(StrEnum):
    """The error codes of the library itself. A retry policy may name them."""

    UNHANDLED_EXCEPTION = "UNHANDLED_EXCEPTION"
    TASK_TIMEOUT = "TASK_TIMEOUT"
    TASK_CANCELLED = "TASK_CANCELLED"
    TASK_INTERRUPTED = "TASK_INTERRUPTED"
    MANAGER_STOPPED = "MANAGER_STOPPED"
    TASK_EXPIRED = "TASK_EXPIRED"
    WORKER_CRASHED = "WORKER_CRASHED"
    RESULT_NOT_AVAILABLE = "RESULT_NOT_AVAILABLE"
    STEP_MISMATCH = "STEP_MISMATCH"
    STEP_SNOOZE = "STEP_SNOOZE"
    STEP_LIMIT = "STEP_LIMIT"
    ARGUMENT_MISMATCH = "ARGUMENT_MISMATCH"
    UPSTREAM_SKIPPED = "UPSTREAM_SKIPPED"
    UPSTREAM_PENDING = "UPSTREAM_PENDING"
    WORKFLOW_CHECK_FAILED = "WORKFLOW_CHECK_FAILED"
    WORKFLOW_STOPPED = "WORKFLOW_STOPPED"
    WORKFLOW_SUCCESS_CASE_NOT_MET = "WORKFLOW_SUCCESS_CASE_NOT_MET"


class AttemptOutcome(StrEnum):
    """How one attempt ended. A cancelled attempt is INTERRUPTED with the code TASK_CANCELLED."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    WORKER_FAILURE = "WORKER_FAILURE"
    INTERRUPTED = "INTERRUPTED"


class Transition(NamedTuple):
    """One legal move, and the reason for it."""

    source: TaskStatus
    target: TaskStatus
    reason: str


_P, _C, _R = TaskStatus.PENDING, TaskStatus.CLAIMED, TaskStatus.RUNNING

TRANSITIONS: Final[tuple[Transition, ...]] = (
    Transition(_P, _C, "claim: an instance that knows the function takes a free row"),
    Transition(_P, _R, "start: a slot is free in the instance that owns it; committed before user code runs"),
    Transition(_P, TaskStatus.CANCELLED, "cancel: a waiting task never runs"),
    Transition(_P, TaskStatus.EXPIRED, "expire: good_until passed before it could start"),
    Transition(_C, _P, "release: the claimer stops, or died; user code never ran"),
    Transition(_C, _R, "start: a slot is free; committed before user code runs"),
    Transition(_C, TaskStatus.CANCELLED, "cancel: a waiting task never runs"),
    Transition(_C, TaskStatus.EXPIRED, "expire: good_until passed before it could start"),
    Transition(_R, TaskStatus.COMPLETED, "end: the function returned a value"),
    Transition(_R, TaskStatus.FAILED, "end: it failed and no retry is left, or it crashed"),
    Transition(_R, TaskStatus.CANCELLED, "end: a cancel request was honoured"),
    Transition(_R, TaskStatus.INTERRUPTED, "end: stopped while running, not safe to repeat"),
    Transition(_R, _P, "again: retry, snooze, requeue on interrupt, or crash with a policy"),
    Transition(TaskStatus.COMPLETED, _P, "retry with force: a person asks for it"),
    Transition(TaskStatus.FAILED, _P, "retry: a person asks for it, or the same key is enqueued again"),
    Transition(TaskStatus.CANCELLED, _P, "retry: a person asks for it, or the same key is enqueued again"),
    Transition(TaskStatus.EXPIRED, _P, "retry: a person asks for it, or the same key is enqueued again"),
    Transition(TaskStatus.INTERRUPTED, _P, "retry: a person asks for it, or the same key is enqueued again"),
)

_LEGAL: Final = frozenset((move.source, move.target) for move in TRANSITIONS)


def can_move(source: TaskStatus, target: TaskStatus) -> bool:
    """Return whether the table has a move from `source` to `target`."""
    return (source, target) in _LEGAL


INTERRUPTION_NOTE: Final = "interrupted: the manager stopped while the task was running"
"""The `failed_reason` of a row that a stop left RUNNING, because its code still ran. Its recovery counts no crash."""
