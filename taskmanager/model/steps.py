"""A step of a task: its record in the store, what its function sees of it, and what users see of it."""

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

    @property
    def identity(self) -> Identity:
        """What no other record of its task has."""
        return self.kind, self.number, self.key


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
