"""A step of a task: its record in the store, what its function sees of it, and what users see of it.

A sleep and a wait for an event are records of the same kind, because they share the numbers of the steps.
"""

from contextvars import ContextVar
from datetime import datetime
from typing import Final, Literal, NamedTuple, final

from taskmanager.model.dataclass import dataclass
from taskmanager.model.result import TaskError

Identity = tuple[str, int, str]
"""Kind, number and key of a record. A step has a number or a key, a patch has its version as the key."""


class StepRow(NamedTuple):
    """One row of `taskmanager_steps`. Instants are microseconds UTC.

    `number` is 0 for a step with a key, `key` is empty for one with a number. `ended_at` is None while the step is
    tried again. `result` is the stored value or error. `is_final` says that the code has gone on after its error.

    `waits_for` is None for a step, empty for a sleep, and else the name of an event. `due_at` is when a sleep, a wait,
    or the pause before another try is over (None: never). `wakes_at` is there while the task sleeps for this record.
    `event_id` is the event that a wait has received.
    """

    task_id: str
    kind: str
    number: int
    key: str
    name: str
    digest: str | None
    started_at: int
    ended_at: int | None
    attempts: int
    result: str | None
    error_code: str | None
    error_message: str | None
    is_final: int
    waits_for: str | None = None
    due_at: int | None = None
    wakes_at: int | None = None
    event_id: int | None = None

    @property
    def identity(self) -> Identity:
        """What no other record of its task has."""
        return self.kind, self.number, self.key


class EventRow(NamedTuple):
    """One row of `taskmanager_events` that is new: an event for a task. `value` is in the form of a stored result."""

    task_id: str
    name: str
    value: str
    key: str | None
    sent_at: int


class StoredEvent(NamedTuple):
    """An event of a task. `is_received` says whether the wait that asks for it has received it."""

    event_id: int
    value: str
    is_received: bool


class SendReport(NamedTuple):
    """What became of an event: stored now or before, or refused. The queue and the priority are those of its task."""

    outcome: Literal["stored", "ended", "unknown", "full"]
    queue_name: str = ""
    priority: int = 0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StepInfo:
    """One step of a task, as users see it. Instants are aware UTC.

    It has a `number` or a `key`. `ended_at` is None while it is tried again; `error` is then that of its last try.
    """

    number: int | None
    key: str | None
    name: str
    started_at: datetime
    ended_at: datetime | None
    attempts: int
    error: TaskError | None


@final
@dataclass(frozen=True, slots=True)
class StepContext:
    """The running step, as its function sees it. Get it with `current_step()`.

    `key` is the same in all runs of the task: `TASK_ID:NUMBER`, or `TASK_ID:KEY` for a step with a key. It is what to
    give to a service that takes idempotency keys. `number` is None for a step with a key.
    """

    key: str
    number: int | None
    name: str


DETACHED: Final = StepContext("detached:0", 0, "detached")
"""What a function sees that is called outside of a task."""
STEP: Final[Literal["step"]] = "step"
PATCH: Final[Literal["patch"]] = "patch"
running_step: ContextVar[StepContext | None] = ContextVar("taskmanager_running_step", default=None)
"""The step that the running code belongs to."""
