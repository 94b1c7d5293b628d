"""One named queue in memory: its limits, what waits and runs in it, and its ready tasks.

An application may make one queue for each customer, so a queue without work must cost nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from taskmanager.engine.words.attempt import Attempt
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.model.config import QueueConfig
from taskmanager.model.states import Lane
from taskmanager.rules.ready import ReadyQueue, Slots

_TAKES_A_PLACE = frozenset({"CLAIMED", "RUNNING"})


class SharedLimit:
    """What this instance holds of a queue whose limit is that of the whole file (`QueueConfig(scope="file")`).

    The place of a task is its row: a claim counts the CLAIMED and RUNNING rows of the queue in its own transaction. So
    no number of instances takes more than the limit together, and what a dead or frozen one holds counts until it is
    recovered. Until there is a place for it, a task is a free row, whoever accepted it, and the best one goes first.

    A task that waits for another one lends its slot to its own instance only: to the others its row is still there. So
    an instance may hold more rows than places, and never runs more of them at once than it has places. The limit of
    `slots` is what the file has granted here.
    """

    __slots__ = ("_granted", "_held", "is_left_to_others", "is_owed", "limit", "short_lanes", "slots")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.slots = Slots(0)
        self.is_owed = False
        """Whether something has changed since the last claim, so that the next one may find a place."""
        self.is_left_to_others = False
        """Whether nothing is claimed for a moment, so that another instance can have the place."""
        self.short_lanes: set[Lane] = set()
        """Lanes that had no room at the last claim."""
        self._granted = 0
        self._held: set[str] = set()

    def __repr__(self) -> str:
        return f"<SharedLimit {self._granted} of {self.limit}, for {len(self._held)} tasks>"

    def hold(self, task_id: str, *, is_granted: bool = True) -> None:
        """A row was claimed. One that is not granted uses the place of a task that waits for another one."""
        self._held.add(task_id)
        if is_granted:
            self._granted += 1
            self.slots.limit = (self.slots.limit or 0) + 1

    def gave_back(self, task_id: str) -> None:
        """A slot is free. One that no row stood for any more was kept by code that went on past its timeout."""
        limit = self.slots.limit or 0
        if task_id not in self._held and limit > self._granted:
            self.slots.limit = limit - 1
            self.is_owed = True

    def has_given_back(self, live: Mapping[str, LiveTask]) -> bool:
        """Whether a place is free since the last claim: a task that was held and is gone from memory has its end in
        the file.
        """
        return any(task_id not in live for task_id in self._held)

    def is_worth_a_claim(self, live: Mapping[str, LiveTask], lanes: Mapping[Lane, Slots]) -> bool:
        """Whether this instance knows of room that it has not asked for yet."""
        if self.is_left_to_others:
            return False
        if self.is_owed or self.has_given_back(live):
            return True
        if self.short_lanes:
            return any(lanes[lane].has_room for lane in self.short_lanes)
        return len(self.lenders(live)) > self.borrowed

    def count(self, live: Mapping[str, LiveTask], attempts: Iterable[Attempt]) -> int:
        """Forget the places of what has left them. Return how many of the attempts still take one, unknown to the file:
        those that are abandoned, or that were given up because their rows are others' now.
        """
        self._held = {task_id for task_id in self._held if _takes_a_place(live.get(task_id))}
        self._granted = min(self._granted, len(self._held))
        abandoned = sum(each.has_slot and each.live.task_id not in self._held for each in attempts)
        self.slots.limit = self._granted + abandoned
        return abandoned

    @property
    def borrowed(self) -> int:
        """Tasks held here beyond the places that the file has granted."""
        return len(self._held) - self._granted

    def lenders(self, live: Mapping[str, LiveTask]) -> list[str]:
        """Tasks held here that run and do not use their place, because they wait for others."""
        return [task_id for task_id in self._held if _lends(live.get(task_id))]

    def held_of(self, task_ids: Iterable[str]) -> int:
        """How many of these are held."""
        return len(self._held.intersection(task_ids))

    def waiting_in(self, lane: Lane, live: Mapping[str, LiveTask]) -> int:
        """Tasks of a lane that have a place, and wait for their slot."""
        found = (live.get(task_id) for task_id in self._held)
        return sum(each is not None and each.is_waiting and each.definition.lane == lane for each in found)


def _takes_a_place(live: LiveTask | None) -> bool:
    """By what the file says of the task; by what it will say where the file was lost and is written anew."""
    if live is None:
        return False
    return (live.status if live.saving.committed is None else live.saving.committed.status) in _TAKES_A_PLACE


def _lends(live: LiveTask | None) -> bool:
    return _takes_a_place(live) and live is not None and live.attempt is not None and not live.attempt.has_slot


NONE_LEFT: Final = 101
"""A number that is worse than any priority."""


class QueueState:
    """One queue: its configuration, its slots, and how many tasks wait."""

    __slots__ = (
        "_backlogs", "best_left", "config", "entered", "free_count", "is_paused", "is_run_here", "left", "left_before",
        "shared_limit", "slots", "sources", "stored_waiting", "waits_in_file",
    )  # fmt: skip

    def __init__(
        self, config: QueueConfig, backlogs: "dict[QueueState, None]", runs: Callable[[str], bool] | None = None
    ) -> None:
        self.config = config
        self.is_run_here = runs is None or runs(config.name)
        """Whether this instance runs its tasks. If not, they go to the file as free rows."""
        self.shared_limit = SharedLimit(config.max_concurrency or 0) if config.is_limited_in_file else None
        self.slots = Slots(config.max_concurrency) if self.shared_limit is None else self.shared_limit.slots
        self.waits_in_file = not self.is_run_here or self.shared_limit is not None
        """Whether a persisted task waits in the file only, until an instance claims it."""
        self.is_paused = False
        self._backlogs = backlogs
        self.best_left = NONE_LEFT
        """Rows that were left in the store have this priority or a worse one, as far as this instance knows."""
        self.entered = 0
        self.left = 0
        self.free_count = self.left_before = 0
        """If it is not run here: its free rows at the last look, and how many tasks had left memory before that."""
        self.stored_waiting = 0
        self.sources: dict[SourceKey, Source] = {}

    @property
    def waiting(self) -> int:
        """Tasks of this queue waiting in memory. `entered` counts under the intake's lock, `left` on the loop only."""
        return self.entered - self.left

    @property
    def pending(self) -> int:
        """What `max_pending` of this queue limits. If it is not run here, its free rows too: nobody here makes room."""
        if self.is_run_here:
            return self.waiting
        return self.free_count + self.entered - self.left_before

    @property
    def has_backlog(self) -> bool:
        """Whether rows that could run now were left in the store because there was no room."""
        return self in self._backlogs

    def leave(self, priority: int) -> None:
        """Note that a row of this priority, and perhaps worse ones, were left in the store."""
        if not self.is_run_here:  # they are no business of this instance
            return
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

    def worst_priority(self) -> int | None:
        """Return the largest priority number among its ready tasks."""
        found = [source.worst_priority() for source in self.sources.values()]
        return max((each for each in found if each is not None), default=None)

    def count_ready(self, up_to: int) -> int:
        """Count its ready tasks that are as good as this priority, or better. Some may have been cancelled."""
        return sum(source.count_up_to(up_to) for source in self.sources.values())

    @property
    def is_open(self) -> bool:
        """Whether a task of this queue may start now."""
        return not self.is_paused and self.slots.has_room

    @property
    def is_idle(self) -> bool:
        """Whether memory knows nothing of the queue but its name."""
        is_used = self.waiting or self.stored_waiting or self.slots.running or self.is_paused or self.has_backlog
        return not is_used and not any(self.sources.values())

    def __repr__(self) -> str:
        paused = ", paused" if self.is_paused else ""
        return f"<QueueState {self.config.name!r} {self.slots!r}, {self.waiting} waiting{paused}>"


class SourceKey(NamedTuple):
    """The properties that keep ready tasks of one queue apart.

    `needs_store`: the task runs only after its start is committed: it is not safe to repeat, or the store knows whether
    its key has a task. `is_stored`: the task is persisted, so that others run it when they take this instance for dead.
    `is_suspect`: a process died while it ran the task, so the task runs apart from other suspects, and from tasks that
    are not safe to repeat.
    """

    lane: Lane
    needs_store: bool
    is_stored: bool
    is_suspect: bool


class Source(ReadyQueue[LiveTask]):
    """The ready tasks of one queue that share a key.

    While it may have tasks to start, the heap of its lane holds its `entry`. The key of the entry may be better than
    that of the first task, and is never worse. To look the key up after each start would cost more than the start, and
    the key does not matter while the heap holds no other source.
    """

    __slots__ = ("entry", "is_exact", "is_parked", "key", "queue")

    def __init__(self, queue: QueueState, key: SourceKey, arrivals: Iterator[int]) -> None:
        super().__init__(arrivals)
        self.queue = queue
        self.key = key
        self.entry: Entry | None = None
        self.is_exact = False
        """Whether the key of the entry is that of the first task."""
        self.is_parked = False
        """Whether it has tasks but may start none, for another reason than the limit of its lane."""


Entry = tuple[int, tuple[int, int, int], int, Source]
"""The priority of the queue, the key of a task, a number that tells two entries of one source apart, the source."""
