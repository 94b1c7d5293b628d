"""One named queue in memory: its limits, what waits and runs in it, and its ready tasks.

Queues are made by their names, one for each customer perhaps, so nothing here costs anything while it has no work.
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
"""Worse than any priority."""


class QueueState:
    """Its configuration, who runs, and how many wait."""

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
        """No row that was left is better than this, as far as anybody here knows."""
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
        """Whether rows that could run now were left in the store for want of room."""
        return self in self._backlogs

    def leave(self, priority: int) -> None:
        """A row of this priority, and perhaps worse ones, were left in the store."""
        self._backlogs[self] = None
        self.best_left = min(self.best_left, priority)

    def leave_some(self) -> None:
        """Rows were left in the store, and how good they are does not matter."""
        self._backlogs[self] = None

    def leave_nothing(self) -> None:
        """A claim takes what there is; what it leaves it says."""
        self._backlogs.pop(self, None)
        self.best_left = NONE_LEFT

    @property
    def is_open(self) -> bool:
        """Whether a task of this queue may start now."""
        return not self.is_paused and self.slots.has_room

    @property
    def is_idle(self) -> bool:
        """Whether nothing is known of it but its name."""
        is_used = self.waiting or self.stored_waiting or self.slots.running or self.is_paused or self.has_backlog
        return not is_used and not any(source.heap for source in self.sources.values())

    def __repr__(self) -> str:
        paused = ", paused" if self.is_paused else ""
        return f"<QueueState {self.config.name!r} {self.slots!r}, {self.waiting} waiting{paused}>"


class SourceKey(NamedTuple):
    """What ready tasks of one queue are kept apart by.

    `needs_store`: not safe to repeat, so nothing starts that is not committed. `is_suspect`: its process died under it
    before, so it runs apart from other suspects, and from what is not safe to repeat.
    """

    lane: Lane
    needs_store: bool
    is_suspect: bool


class Source:
    """Ready tasks of one queue that need the same.

    While it may have some to start it stands in the heap of its lane, with `entry`, whose key may be better than that
    of its first task, and is never worse: to look the key up again after each start would cost more than the start,
    and where nobody else stands there it does not matter.
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
        """Whether it has tasks and may start none, for another reason than the limit of its lane."""


Entry = tuple[int, tuple[int, int, int], int, Source]
"""The priority of the queue, the key of a task, a number that tells two entries of one source apart, the source."""
