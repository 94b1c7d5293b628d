"""`current_task()`: the running task as user code sees it, in every lane and in direct calls."""

from collections.abc import Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from taskmanager.model.clock import SystemClock
from taskmanager.model.errors import NotInTask

current: ContextVar[Any] = ContextVar("taskmanager_current_task")
"""The attempt, or a `TaskSource`, that the running code belongs to."""
_clock = SystemClock()


class TaskSource:
    """Where a `TaskContext` has its facts from. This is a direct call; an attempt and a child process look like it."""

    task_id = "detached"
    attempt = 1
    deadline: datetime | None = None
    scheduled_for: datetime | None = None
    is_cancelled = is_suspended = False
    is_detached = True

    def __init__(self, task_name: str) -> None:
        self.task_name = task_name
        self.tags: Mapping[str, str] = {}

    def now_us(self) -> int:
        return _clock.now_us()

    def progress(self, done: float, total: float | None, text: str) -> None:
        """Do nothing: nobody watches a direct call."""

    def log(self, at: int, text: str, fields: dict[str, object]) -> None:
        """Do nothing: a direct call has no record."""


class TaskContext:
    """The running task, as its function sees it. Get it with `current_task()`."""

    __slots__ = ("_source",)

    def __init__(self, source: TaskSource) -> None:
        self._source = source

    @property
    def task_id(self) -> str:
        """The id. It is the same in all attempts."""
        return self._source.task_id

    @property
    def task_name(self) -> str:
        """The registered name."""
        return self._source.task_name

    @property
    def attempt(self) -> int:
        """The number of this start, from 1. Interruptions, crashes and snoozes count as starts too."""
        return self._source.attempt

    @property
    def tags(self) -> Mapping[str, str]:
        """The tags given at the call."""
        return self._source.tags

    @property
    def deadline(self) -> datetime | None:
        """The time at which this attempt times out, aware UTC. None without a timeout."""
        return self._source.deadline

    @property
    def scheduled_for(self) -> datetime | None:
        """The time at which a schedule was due that made this task, aware UTC. None for other tasks."""
        return self._source.scheduled_for

    @property
    def is_cancelled(self) -> bool:
        """Whether this attempt was asked to stop. A thread cannot be cancelled, so it should look here now and then."""
        return self._source.is_cancelled

    @property
    def is_suspended(self) -> bool:
        """Whether this attempt ends because the task goes to sleep, in `sleep` or `wait_for`. It was not cancelled."""
        return self._source.is_suspended

    @property
    def is_detached(self) -> bool:
        """Whether the function was called directly, not run by a manager."""
        return self._source.is_detached

    def progress(self, done: float, total: float | None = None, text: str = "") -> None:
        """Report how far this attempt is. It costs little, because only the newest value is kept."""
        self._source.progress(done, total, text)

    def log(self, text: str, **fields: object) -> None:
        """Add a line to the log of this task, which `taskmanager show` prints."""
        self._source.log(self._source.now_us(), text, fields)

    def __repr__(self) -> str:
        return f"<TaskContext {self.task_name!r} {self.task_id} attempt {self.attempt}>"


def current_task() -> TaskContext:
    """Return the task that the calling code runs in. Raises `NotInTask` outside of one."""
    source = current.get(None)
    if source is None:
        raise NotInTask(
            "current_task() works inside a running task only, and here none runs; enqueue the task, or call it"
        )
    return TaskContext(source)
