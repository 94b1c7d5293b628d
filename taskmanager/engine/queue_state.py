"""One named queue in memory: its limits, what waits and runs in it, and its ready tasks.

An application may make one queue for each customer, so a queue without work must cost nothing.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from taskmanager.engine.live_task import LiveTask
from taskmanager.engine.shared_limit import SharedLimit
from taskmanager.model.config import QueueConfig
from taskmanager.model.states import Lane
from taskmanager.rules.limits import Slots
from taskmanager.rules.ready import ReadyQueue

NONE_LEFT: Final = 101
"""A number that is worse than any priority."""


class QueueState:
    """One queue: its configuration, its slots, and how many tasks wait."""

    __slots__ = (
        "_backlogs", "best_left", "config", "entered", "is_paused", "left", "shared_limit", "slots", "sources",
        "stored_waiting",
    )  # fmt: skip

    def __init__(self, config: QueueConfig, backlogs: "dict[QueueState, None]") -> None:
        self.config = config
        self.shared_limit = SharedLimit(config.max_concurrency or 0) if config.is_limited_in_file else None
        self.slots = Slots(config.max_concurrency) if self.shared_limit is None else self.shared_limit.slots
        self.is_paused = False
        self._backlogs = backlogs
        self.best_left = NONE_LEFT
        """Rows that were left in the store have this priority or a worse one, as far as this instance knows."""
        self.entered = 0
        self.left = 0
        self.stored_waiting = 0
        self.sources: dict[SourceKey, Source] = {}

    @property
    def waiting(self) -> int:
        """Tasks of this queue waiting in memory. `entered` counts under the intake's lock, `left` on the loop only."""
        return self.entered - self.left

    @property
    def has_backlog(self) -> bool:
        """Whether rows that could run now were left in the store because there was no room."""
        return self in self._backlogs

    def leave(self, priority: int) -> None:
        """Note that a row of this priority, and perhaps worse ones, were left in the store."""
        self._backlogs[self] = None
        self.best_left = min(self.best_left, priority)

    def leave_some(self) -> None:
        """Note that rows were left in the store, where their priority does not matter."""
        self._backlogs[self] = None

    def leave_nothing(self) -> None:
        """Forget the backlog before a claim: the claim takes what there is, and reports what it leaves."""
        self._backlogs.pop(self, None)
        self.best_left = NONE_LEFT

    def expect_place(self) -> None:
        """Let the next look claim, if the limit of the queue holds for the whole file: a place may be free there."""
        if self.shared_limit is not None:
            self.shared_limit.is_owed = True

    @property
    def is_open(self) -> bool:
        """Whether a task of this queue may start now."""
        return not self.is_paused and self.slots.has_room

    @property
    def is_idle(self) -> bool:
        """Whether memory knows nothing of the queue but its name."""
        is_used = self.waiting or self.stored_waiting or self.slots.running or self.is_paused or self.has_backlog
        return not is_used and not any(source.heap for source in self.sources.values())

    def __repr__(self) -> str:
        paused = ", paused" if self.is_paused else ""
        return f"<QueueState {self.config.name!r} {self.slots!r}, {self.waiting} waiting{paused}>"


class SourceKey(NamedTuple):
    """The properties that keep ready tasks of one queue apart.

    `needs_store`: the task runs only after its start is committed: it is not safe to repeat, or the store knows whether
    its key has a task. `is_suspect`: a process
    died while it ran the task, so the task runs apart from other suspects, and from tasks that are not safe to repeat.
    """

    lane: Lane
    needs_store: bool
    is_suspect: bool


class Source:
    """The ready tasks of one queue that share a key.

    While it may have tasks to start, the heap of its lane holds its `entry`. The key of the entry may be better than
    that of the first task, and is never worse. To look the key up after each start would cost more than the start, and
    the key does not matter while the heap holds no other source.
    """

    __slots__ = ("entry", "heap", "is_exact", "is_parked", "key", "queue")

    def __init__(self, queue: QueueState, key: SourceKey, arrivals: Iterator[int]) -> None:
        self.queue = queue
        self.key = key
        self.heap: ReadyQueue[LiveTask] = ReadyQueue(arrivals)
        self.entry: Entry | None = None
        self.is_exact = False
        """Whether the key of the entry is that of the first task."""
        self.is_parked = False
        """Whether it has tasks but may start none, for another reason than the limit of its lane."""


Entry = tuple[int, tuple[int, int, int], int, Source]
"""The priority of the queue, the key of a task, a number that tells two entries of one source apart, the source."""
