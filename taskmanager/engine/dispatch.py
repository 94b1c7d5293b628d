"""Decides what starts next. Nothing here awaits: `take` returns what shall start, and the caller starts it.

A task that waits (for a slot, a delay, its next retry) is in exactly one heap. Leaving a heap early (a cancel) is lazy:
the entry stays and is skipped when it comes up, because the phase of the task says that it is not waiting any more.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from itertools import count
from typing import Final

from taskmanager.engine.attempt import Attempt
from taskmanager.engine.live_task import LiveTask, Phase
from taskmanager.engine.shared_limit import SharedLimit
from taskmanager.model.clock import SECOND_US
from taskmanager.model.config import QueueConfig, queue_of_a_row
from taskmanager.model.states import Lane, TaskStatus
from taskmanager.rules.limits import Slots
from taskmanager.rules.ready import DelayedQueue, ReadyQueue

STALE_CLEANUP_AT: Final = 1_000
"""Heaps are rebuilt without ended tasks when this many, and half of all entries, are stale."""

NONE_LEFT: Final = 101
"""Worse than any priority."""


class QueueState:
    """One named queue: its configuration, who runs, and how many wait."""

    __slots__ = (
        "best_left", "config", "entered", "has_backlog", "is_paused", "left", "shared_limit", "slots", "stored_waiting",
    )  # fmt: skip

    def __init__(self, config: QueueConfig) -> None:
        self.config = config
        self.shared_limit = SharedLimit(config.max_concurrency or 0) if config.is_limited_in_file else None
        self.slots = Slots(config.max_concurrency) if self.shared_limit is None else self.shared_limit.slots
        self.is_paused = False
        self.has_backlog = False
        """Whether rows that could run now were left in the store for want of room."""
        self.best_left = NONE_LEFT
        """No row that was left is better than this, as far as anybody here knows."""
        self.entered = 0
        self.left = 0
        self.stored_waiting = 0

    @property
    def waiting(self) -> int:
        """Tasks of this queue waiting in memory. `entered` counts under the intake's lock, `left` on the loop only."""
        return self.entered - self.left

    def leave(self, priority: int) -> None:
        """A row of this priority, and perhaps worse ones, were left in the store."""
        self.has_backlog = True
        self.best_left = min(self.best_left, priority)

    def leave_nothing(self) -> None:
        """A claim takes what there is; what it leaves it says."""
        self.has_backlog, self.best_left = False, NONE_LEFT

    @property
    def is_open(self) -> bool:
        """Whether a task of this queue may start now."""
        return not self.is_paused and self.slots.has_room

    def __repr__(self) -> str:
        paused = ", paused" if self.is_paused else ""
        return f"<QueueState {self.config.name!r} {self.slots!r}, {self.waiting} waiting{paused}>"


class _Source:
    """The ready tasks of one queue in one lane, apart by what they need.

    `needs_store`: not safe to repeat, so nothing starts that is not committed. `is_suspect`: its process died under it
    before, so it runs apart from other suspects, and from what is not safe to repeat.
    """

    __slots__ = ("heap", "is_suspect", "lane", "needs_store", "queue")

    def __init__(
        self, queue: QueueState, lane: Slots, needs_store: bool, is_suspect: bool, arrivals: Iterator[int]
    ) -> None:
        self.queue = queue
        self.lane = lane
        self.needs_store = needs_store
        self.is_suspect = is_suspect
        self.heap: ReadyQueue[LiveTask] = ReadyQueue(arrivals)


def _is_watched_in_vain(live: LiveTask) -> bool:
    """Whether the entry of a task is dropped because it waits no more; if it waits again, it gets another one."""
    if live.is_waiting:
        return False
    live.watched_until = None
    return True


def _nobody() -> None:
    """Until the engine listens."""


class Dispatcher:
    """Every waiting task of this instance, and the limits under which they start."""

    def __init__(self, lanes: dict[Lane, int], queues: Iterable[QueueConfig]) -> None:
        self.lanes: dict[Lane, Slots] = {lane: Slots(limit) for lane, limit in lanes.items()}
        self.queues: dict[str, QueueState] = {config.name: QueueState(config) for config in queues}
        self.has_shared_limits = any(queue.shared_limit is not None for queue in self.queues.values())
        """Whether the limit of any queue holds for all instances."""
        self._sources: dict[tuple[str, Lane, bool, bool], _Source] = {}
        self._suspect: LiveTask | None = None
        self._filled: dict[_Source, None] = {}
        """Those with ready tasks, and some that were taken empty: queues are made by name, and may be many."""
        self._arrivals = count()
        self._delayed: DelayedQueue[LiveTask] = DelayedQueue()
        self._scheduled: DelayedQueue[LiveTask] = DelayedQueue()
        self._expiring: DelayedQueue[LiveTask] = DelayedQueue()
        self._expiring_limit = STALE_CLEANUP_AT
        self._resuming: dict[Lane, deque[tuple[Attempt, asyncio.Future[None]]]] = {lane: deque() for lane in lanes}
        self._room_waiters: list[asyncio.Future[None]] = []
        self._stale_count = 0
        self.is_store_degraded = False
        self.pause_count = 0
        """How often a queue was paused or resumed here: what was read of the store before that is not the newest."""
        self.wants_take: Callable[[], None] = _nobody

    def __repr__(self) -> str:
        running = sum(slots.running for slots in self.lanes.values())
        ready = sum(len(source.heap) for source in self._sources.values())
        return f"<Dispatcher {running} running, {ready} ready, {len(self._delayed) + len(self._scheduled)} delayed>"

    # What waits.

    def queue(self, name: str) -> QueueState:
        """The state of a queue, made with defaults when nobody configured it."""
        state = self.queues.get(name)
        if state is None:
            # Another thread may have made it in this moment.
            state = self.queues.setdefault(name, QueueState(queue_of_a_row(name)))
        return state

    def set_paused(self, name: str, paused: bool) -> None:
        """A queue was paused or resumed here, and the store says so too."""
        self.pause_count += 1
        self.queue(name).is_paused = paused

    def needs_place(self, live: LiveTask) -> bool:
        """Whether the file says when this task may start, and has not said it yet."""
        is_limited = self.queue(live.queue_name).shared_limit is not None
        return is_limited and live.is_persisted and live.status is TaskStatus.PENDING

    def add_ready(self, live: LiveTask) -> None:
        """`live` may start as soon as a slot is free."""
        live.phase = Phase.READY
        definition = live.definition
        needs_store = live.is_persisted and not definition.requeue_on_interrupt
        key = (live.queue_name, definition.lane, needs_store, live.crash_count > 0)
        source = self._sources.get(key)
        if source is None:
            source = self._sources[key] = _Source(
                self.queue(live.queue_name),
                self.lanes[definition.lane],
                needs_store,
                live.crash_count > 0,
                self._arrivals,
            )
        if not source.heap:
            self._filled[source] = None
        source.heap.push(live.priority, live.enqueued_at, live)

    def add_delayed(self, live: LiveTask, due_elapsed_s: float) -> None:
        """`live` may start when the elapsed clock reaches `due_elapsed_s` (delays, retries, snoozes)."""
        live.phase = Phase.DELAYED
        live.due = due_elapsed_s
        self._delayed.push(due_elapsed_s, live)

    def add_scheduled(self, live: LiveTask, due_us: int) -> None:
        """`live` may start when wall time reaches `due_us` (run_at, and promises read from the store)."""
        live.phase = Phase.DELAYED
        live.due = due_us
        self._scheduled.push(due_us, live)

    def watch_expiry(self, live: LiveTask) -> None:
        """Remember that `live` has a `good_until`: with one entry, however often it waits again."""
        if live.good_until is None or live.good_until == live.watched_until:
            return
        live.watched_until = live.good_until
        self._expiring.push(live.good_until, live)
        if len(self._expiring) >= self._expiring_limit:
            # Most have started long since; a promise for next month must not keep them.
            self._expiring.discard_stale(_is_watched_in_vain)
            self._expiring_limit = max(STALE_CLEANUP_AT, 2 * len(self._expiring))

    def wake_due(self, elapsed_s: float, now_us: int, *, holds_expiry: bool = False) -> list[LiveTask]:
        """Move what is due among the ready; the tasks whose `good_until` has passed while they waited are returned,
        unless expiry is held.
        """
        for heap, now in ((self._delayed, elapsed_s), (self._scheduled, float(now_us))):
            for live in heap.pop_due(now):
                if live.phase is Phase.DELAYED and live.due <= now:
                    self.add_ready(live)
        if holds_expiry:
            return []
        return [live for live in self._expiring.pop_due(now_us) if self._has_expired(live, now_us)]

    @staticmethod
    def _has_expired(live: LiveTask, now_us: int) -> bool:
        """Whether a task whose entry was taken expires now: once, also where `good_until` has had another entry."""
        if live.watched_until is None or live.watched_until > now_us:
            return False
        live.watched_until = None
        return live.is_waiting and not live.is_awaiting_store  # what is free in the store expires there

    def next_due(self) -> tuple[float | None, bool]:
        """The next elapsed-clock moment, and whether anything waits for wall time."""
        return self._delayed.next_due(), bool(len(self._scheduled) or len(self._expiring))

    def next_wall_delay_s(self, now_us: int, *, holds_expiry: bool = False) -> float:
        """Seconds until the next wall-clock moment, as the wall clock stands now."""
        heaps = (self._scheduled,) if holds_expiry else (self._scheduled, self._expiring)
        due = [heap.next_due() for heap in heaps]
        return min((max(0.0, (each - now_us) / SECOND_US) for each in due if each is not None), default=float("inf"))

    def forget(self, live: LiveTask) -> None:
        """`live` has left the waiting early; its heap entry is dropped when it comes up, or in a clean-up."""
        self._stale_count += 1
        if self._stale_count < STALE_CLEANUP_AT:
            return
        held = len(self._delayed) + len(self._scheduled) + sum(len(s.heap) for s in self._sources.values())
        if self._stale_count * 2 >= held:
            self._stale_count = 0
            for source in self._sources.values():
                source.heap.discard_stale(lambda each: each.phase is not Phase.READY)
            for heap in (self._delayed, self._scheduled):
                heap.discard_stale(lambda each: each.phase is not Phase.DELAYED)
            self._expiring.discard_stale(_is_watched_in_vain)

    def waiting(self) -> Iterator[LiveTask]:
        """Every task that waits here, each once, in no order."""
        for source in self._sources.values():
            yield from (live for live in source.heap if live.phase is Phase.READY)
        for heap in (self._delayed, self._scheduled):
            yield from (live for live in heap if live.phase is Phase.DELAYED)

    def worst_priority(self, queue_name: str) -> int | None:
        """The largest priority number among the ready tasks of a queue."""
        found = [s.heap.worst_priority() for s in self._sources.values() if s.queue.config.name == queue_name]
        return max((each for each in found if each is not None), default=None)

    def count_ready(self, queue_name: str, up_to: int) -> int:
        """How many ready tasks of a queue are as good as this priority, or better; some may have been cancelled."""
        return sum(s.heap.count_up_to(up_to) for s in self._sources.values() if s.queue.config.name == queue_name)

    # What starts.

    def take(self) -> list[LiveTask]:
        """The tasks that start now; each holds a slot of its lane and its queue from here on.

        The best one first, over all lanes: a queue with a limit of its own may hold tasks of several.
        """
        for lane, resuming in self._resuming.items():
            if resuming:
                self._resume(lane)
        taken: list[LiveTask] = []
        open_sources = self._open_sources()
        while open_sources:
            queue_priority, _, source = open_sources[0]
            if not (source.heap and self._may_start(source)):  # and no more in this turn: slots are only taken in it
                heappop(open_sources)
                continue
            live = source.heap.pop()
            if live.phase is Phase.READY:
                self._start(live, source)
                taken.append(live)
            else:
                self._stale_count -= 1
            if source.heap and len(open_sources) > 1:
                heapreplace(open_sources, (queue_priority, source.heap.peek_key(), source))
        return taken

    def _open_sources(self) -> list[tuple[int, tuple[int, int, int], _Source]]:
        """A heap of what may start: by queue priority, then task priority, then age. No two of these keys are equal."""
        found = []
        for source in [*self._filled]:
            if not source.heap:
                del self._filled[source]
            elif self._may_start(source):
                found.append((source.queue.config.priority, source.heap.peek_key(), source))
        heapify(found)
        return found

    def _start(self, live: LiveTask, source: _Source) -> None:
        live.phase = Phase.STARTING
        if source.is_suspect:
            self._suspect = live
        source.lane.take()
        source.queue.slots.take()

    def _may_start(self, source: _Source) -> bool:
        if not source.lane.has_room or not source.queue.is_open:
            return False
        if self._suspect is not None and (source.needs_store or source.is_suspect):
            return False
        return not (self.is_store_degraded and source.needs_store)

    def give_back(self, live: LiveTask) -> None:
        """The slot of a task that has ended, or will not start after all."""
        if live is self._suspect:
            self._suspect = None
        self._free_slot(live)

    def _free_slot(self, live: LiveTask) -> None:
        self.lanes[live.definition.lane].give_back()
        queue = self.queue(live.queue_name)
        queue.slots.give_back()
        if queue.shared_limit is not None:
            queue.shared_limit.gave_back(live.task_id)
        self.wants_take()

    # Leaving the waiting, and room for more.

    def entered_waiting(self, live: LiveTask) -> None:
        """`live` waits again (a retry, a snooze): counted on the loop, so by taking back a departure."""
        queue = self.queue(live.queue_name)
        queue.left -= 1
        queue.stored_waiting += live.is_persisted

    def left_waiting(self, live: LiveTask) -> None:
        """`live` waits no more: it started, ended, or went elsewhere."""
        queue = self.queue(live.queue_name)
        queue.left += 1
        queue.stored_waiting -= live.is_persisted
        self.wake_room_waiters()

    def wake_room_waiters(self) -> None:
        """There may be room: a task has left the waiting, or records were saved."""
        if self._room_waiters:
            waiters, self._room_waiters = self._room_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def leave_loop(self) -> None:
        """Nobody waits for room any more in a loop that will not run again."""
        self._room_waiters = []

    async def room_changed(self) -> None:
        """Return when some task has left the waiting."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._room_waiters.append(waiter)
        await waiter

    # Attempts that wait for other tasks lend their slot (see engine/attempt.py).

    def lend(self, attempt: Attempt) -> None:
        """`attempt` waits for a handle and gives up its slot.

        A suspect that waits runs nothing either: what it waits for may be held up by all that may not run beside it.
        """
        attempt.has_slot = False
        self.give_back(attempt.live)

    def take_back(self, attempt: Attempt) -> asyncio.Future[None]:
        """A future that is done when `attempt` has its slot again, ahead of every waiting task."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._resuming[attempt.live.definition.lane].append((attempt, future))
        self.wants_take()
        return future

    def take_back_now(self, attempt: Attempt) -> None:
        """Give the slot at once, even above the limit: `attempt` was cancelled and must clean up."""
        self._take_back(attempt)
        self.wants_take()  # other coroutines of it may wait for the slot too

    def _take_back(self, attempt: Attempt) -> None:
        attempt.has_slot = True
        if attempt.live.crash_count and self._suspect is None:
            self._suspect = attempt.live
        self.lanes[attempt.live.definition.lane].take()
        self.queue(attempt.live.queue_name).slots.take()

    def resume(self) -> None:
        """Slots for attempts that go on, and for nothing new: what a stop lets happen."""
        for lane in self.lanes:
            self._resume(lane)

    def _resume(self, lane: Lane) -> None:
        resuming, slots = self._resuming[lane], self.lanes[lane]
        for _ in range(len(resuming)):
            attempt, future = resuming.popleft()
            if future.done():  # cancelled while it waited for its slot
                continue
            if attempt.has_slot or attempt.is_over:
                future.set_result(None)
                continue
            queue = self.queue(attempt.live.queue_name)
            is_second = attempt.live.crash_count > 0 and self._suspect is not None
            if is_second or not (slots.has_room and queue.slots.has_room):
                resuming.append((attempt, future))
                continue
            self._take_back(attempt)
            future.set_result(None)
