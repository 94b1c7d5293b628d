"""What an application hooks into its tasks: functions that hear of them, and functions around each attempt."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, final

from taskmanager.model.clock import from_us
from taskmanager.model.context import TaskContext
from taskmanager.model.result import TaskError

if TYPE_CHECKING:
    from taskmanager.model.record import TaskInfo

EventKind = Literal[
    "enqueued", "started", "retrying", "snoozed", "requeued",
    "completed", "failed", "cancelled", "expired", "interrupted",
]  # fmt: skip


class Facts(NamedTuple):
    """What is read of an event when a listener asks for it."""

    task: "TaskInfo"
    error: TaskError | None
    duration_s: float | None


@final
class TaskEvent:
    """Something has happened to a task of this manager.

    `at` is aware UTC. `task` is the record as of the event. `error` is why the task failed, or runs again, or else
    ended without a result. `duration_s` is how long the attempt took that has ended. Both are None where there is none.
    """

    __slots__ = ("_facts", "_read", "_told", "kind")

    kind: EventKind
    _facts: Facts

    def __init__(self, told: tuple[Any, ...], read: Callable[[Any], Facts]) -> None:
        self.kind, self._told, self._read = told[0], told, read

    @property
    def at(self) -> datetime:
        """When it happened."""
        return from_us(self._told[1])

    @property
    def task(self) -> "TaskInfo":
        """The record as of the event."""
        return self._seen().task

    @property
    def error(self) -> TaskError | None:
        """Why the task failed, or runs again, or else ended without a result."""
        return self._seen().error

    @property
    def duration_s(self) -> float | None:
        """How long the attempt took that has ended."""
        return self._seen().duration_s

    def _seen(self) -> Facts:
        """Read the event when somebody asks: many listeners look at its kind alone."""
        try:
            return self._facts
        except AttributeError:  # nobody has asked yet
            self._facts = self._read(self._told)
        return self._facts

    def __repr__(self) -> str:
        return f"<TaskEvent {self.kind} {self.task.task_name} {self.task.task_id}>"


Listener = Callable[[TaskEvent], object]
"""Hears of events; sync or async. Nothing that it does harms a task."""
Middleware = Callable[[TaskContext, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Runs around each attempt, in every lane, on the loop; what it returns is the result of the task."""


class Hooks:
    """The functions of one manager that are hooked in. Those that come later count too."""

    def __init__(self) -> None:
        self.listeners: dict[Listener, frozenset[EventKind]] = {}
        """Of which kinds of event each hears."""
        self.middlewares: list[Middleware] = []
        """The first one is outermost."""
        self.has_listener: Callable[[], None] | None = None
        """Tells the start that runs now that a function listens. From any thread."""

    def listen(self, fn: Listener, kinds: frozenset[EventKind]) -> None:
        """Let a function hear of these kinds of events, beside those of which it hears already."""
        self.listeners = {**self.listeners, fn: kinds | self.listeners.get(fn, frozenset())}
        if self.has_listener is not None:
            self.has_listener()

    def __repr__(self) -> str:
        return f"<Hooks {len(self.listeners)} listeners, {len(self.middlewares)} middlewares>"
