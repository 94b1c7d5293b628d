"""Decides what starts next. Nothing here awaits: `take` returns what shall start, and the caller starts it.

A task that waits (for a slot, a delay, its next retry) is in exactly one heap. Leaving a heap early (a cancel) is lazy:
the entry stays and is skipped when it comes up, because the phase of the task says that it is not waiting any more.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush, heapreplace
from itertools import count, islice
from typing import Final, NoReturn

from taskmanager.engine.choose.queue_state import Entry, QueueState, Source, SourceKey
from taskmanager.engine.words.attempt import Attempt
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.engine.words.outcome import extra_of
from taskmanager.engine.words.phases import (
    BEGINS_TO_WAIT,
    COUNTS_ALWAYS,
    DELAYED,
    EFFECTS,
    END_IS_SETTLED,
    END_IS_UNSAVED,
    FORBIDDEN,
    FREES_SLOT,
    IS_HELD,
    IS_NOT_HELD,
    LEAVES_ENTRY,
    LEFT,
    READY,
    STARTING,
    WAITS_NO_MORE,
    ForbiddenMove,
    Phase,
)
from taskmanager.engine.words.timers import STALE_CLEANUP_AT, Delays
from taskmanager.engine.words.waiters import RoomWaiters
from taskmanager.model.config import QueueConfig, queue_of_a_row
from taskmanager.model.logger import logger
from taskmanager.model.states import PENDING, Lane
from taskmanager.rules.ready import Slots, take_each

KNOWN_QUEUES: Final = 100
"""How many queues without work are remembered. Known names reveal a misspelled one."""
FORGET_PAGE: Final = 1_000
"""How many queues one search for queues without work looks at."""


def _nobody(*_: object) -> None:
    """Do nothing. Stands in until the engine listens."""


class Dispatcher:
    """Every waiting task of this instance, and the limits under which they start."""

    def __init__(
        self, lanes: dict[Lane, int], queues: Iterable[QueueConfig], runs: Callable[[str], bool] | None = None
    ) -> None:
        self.lanes: dict[Lane, Slots] = {lane: Slots(limit) for lane, limit in lanes.items()}
        self.backlogs: dict[QueueState, None] = {}
        """Queues with rows that could run now but were left in the store."""
        self._runs = runs
        self.queues: dict[str, QueueState] = {each.name: QueueState(each, self.backlogs, runs) for each in queues}
        self._configured = frozenset(self.queues)
        self.has_queues_in_file = runs is not None or any(each.waits_in_file for each in self.queues.values())
        """Whether tasks of some queues may wait in the file only, until they are claimed."""
        self._standing: dict[Lane, list[Entry]] = {lane: [] for lane in lanes}
        """Heaps of the sources that may have something to start, the best one first."""
        self._closed: dict[QueueState, None] = {}
        """Queues with ready tasks that were paused, or full."""
        self._held_back: list[Source] = []
        """Sources with tasks that may not start as long as the state is `_held_in`."""
        self._held_in = (False, False, False, False)
        self.suspect: LiveTask | None = None
        """The task that runs and under which a process has died."""
        self._arrivals, self._entries = count(), count()
        self.left_count = 0
        """How many tasks have stopped waiting, of all queues."""
        self.returned_count = 0
        """How many have begun to wait that had not come in by a call: rows of the store, and tasks that run again."""
        self.unsaved_end_count = 0
        """Ends of persisted tasks that are on their way to the store."""
        self.delays = Delays()
        self._resuming: dict[Lane, deque[tuple[Attempt, asyncio.Future[None]]]] = {lane: deque() for lane in lanes}
        self._room_waiters = RoomWaiters()
        self._stale_count, self._clean_up_at = 0, STALE_CLEANUP_AT
        self.is_store_degraded = False
        self.is_detached: Callable[[], bool] = bool  # until it is told how to find out: False
        self.is_unseen = False
        """Whether the others may take this living instance for dead. Then it starts and claims no stored task."""
        self.pause_count = 0
        """How often a queue was paused or resumed here. What was read from the store before that may be old."""
        self.wants_take: Callable[[], None] = _nobody
        self.give_up: Callable[[LiveTask], None] = _nobody
        """Ends whatever goes on here for a task that a mistake of ours has brought into disorder."""

    def __repr__(self) -> str:
        running = sum(slots.running for slots in self.lanes.values())
        ready = sum(len(source) for source in self._sources())
        return f"<Dispatcher {running} running, {ready} ready, {len(self.delays)} delayed>"

    # Where a task goes.

    def move(self, live: LiveTask, to: Phase) -> None:
        """Let `live` be in the phase `to`, and keep every count that depends on it.

        Raise `ForbiddenMove`, and give the task up, if no move leads there.
        """
        effect = EFFECTS[live.phase << 4 | to]
        if effect and (effect & COUNTS_ALWAYS or live.is_persisted):
            self._count(live, to, effect)
        live.phase = to

    def _count(self, live: LiveTask, to: Phase, effect: int) -> None:
        if effect & FORBIDDEN:
            self._refuse(live, to)
        live.phase = to  # the clean-up of a heap looks at it
        if effect in (END_IS_UNSAVED, END_IS_SETTLED):
            self.unsaved_end_count += 1 if effect == END_IS_UNSAVED else -1
            return
        queue = self.queues.get(live.queue_name) or self.queue(live.queue_name)
        if live.is_persisted:
            if effect & (IS_HELD | IS_NOT_HELD):
                queue.stored_waiting += 1 if effect & IS_HELD else -1
            if effect & (END_IS_UNSAVED | END_IS_SETTLED):
                self.unsaved_end_count += 1 if effect & END_IS_UNSAVED else -1
        if effect & WAITS_NO_MORE:
            queue.left += 1
            self.left_count += 1
            if self._room_waiters:
                self.wake_room_waiters()
        elif effect & BEGINS_TO_WAIT:  # counted on the loop, so by taking back a departure
            queue.left -= 1
            self.left_count -= 1
            self.returned_count += 1
        if effect & LEAVES_ENTRY:
            self._leave_entry()
        if effect & FREES_SLOT:
            self.give_back(live)

    def _refuse(self, live: LiveTask, to: Phase) -> NoReturn:
        words = f"task {live.definition.name} ({live.task_id}) cannot go from {live.phase.name} to {to.name}"
        logger.critical("%s, and is given up; it was: %s", words, live.history(), extra=extra_of(live))
        if live.phase is not LEFT:
            self.give_up(live)
        raise ForbiddenMove(words)

    # What waits.

    def queue(self, name: str) -> QueueState:
        """The state of a queue, made with defaults when nobody configured it."""
        state = self.queues.get(name)
        if state is None:  # another thread may have made it in this moment
            state = self.queues.setdefault(name, QueueState(queue_of_a_row(name), self.backlogs, self._runs))
        return state

    def forget_idle(self, most: int = KNOWN_QUEUES) -> None:
        """Forget queues without work, as long as there are more than `most`.

        The loop calls this under the lock of the intake. Each call looks at some queues, and later calls at the others.
        """
        for name, queue in list(islice(self.queues.items(), FORGET_PAGE)) if len(self.queues) > most else ():
            del self.queues[name]
            if name in self._configured or not queue.is_idle:
                self.queues[name] = queue  # behind all others
            if len(self.queues) <= most:
                return

    def _sources(self) -> Iterator[Source]:
        for queue in list(self.queues.values()):
            yield from queue.sources.values()

    def set_paused(self, name: str, paused: bool) -> None:
        """A queue was paused or resumed here, and the store says so too."""
        self.pause_count += 1
        self.queue(name).is_paused = paused

    def needs_claim(self, live: LiveTask) -> bool:
        """Whether this task waits in the file until it is claimed, and has not been claimed yet."""
        waits_there = live.is_persisted and live.status is PENDING
        return waits_there and self.queue(live.queue_name).waits_in_file

    def add_ready(self, live: LiveTask) -> None:
        """`live` may start as soon as a slot is free."""
        self.move(live, READY)
        definition = live.definition
        needs_store = live.is_persisted and (not definition.requeue_on_interrupt or live.is_unconfirmed)
        queue = self.queues.get(live.queue_name) or self.queue(live.queue_name)
        key = (definition.lane, needs_store, live.is_persisted, live.crash_count > 0)
        source = queue.sources.get(key)  # type: ignore[call-overload]  # a plain tuple is the same key
        if source is None:
            source = queue.sources[SourceKey(*key)] = Source(queue, SourceKey(*key), self._arrivals)
        source.push(live.priority, live.enqueued_at, live)
        if source.is_parked:
            return
        if source.entry is not None:
            priority, enqueued_at, _ = source.entry[1]
            if live.priority > priority or (live.priority == priority and live.enqueued_at >= enqueued_at):
                return
        self._stand(source)

    def _stand(self, source: Source) -> None:
        """Put a source into the heap of its lane, at the place of its first task. An earlier entry is skipped later."""
        source.is_parked, source.is_exact = False, True
        source.entry = self._entry_of(source)
        heappush(self._standing[source.key.lane], source.entry)

    def _entry_of(self, source: Source) -> Entry:
        return (source.queue.config.priority, source.peek_key(), next(self._entries), source)

    def add_delayed(self, live: LiveTask, due_elapsed_s: float) -> None:
        """`live` may start when the elapsed clock reaches `due_elapsed_s` (delays, retries, snoozes)."""
        self.move(live, DELAYED)
        self.delays.add_elapsed(live, due_elapsed_s)

    def add_scheduled(self, live: LiveTask, due_us: int) -> None:
        """`live` may start when wall time reaches `due_us` (run_at, and promises read from the store)."""
        self.move(live, DELAYED)
        self.delays.add_wall(live, due_us)

    def wake_due(self, elapsed_s: float, now_us: int, *, holds_expiry: bool = False) -> list[LiveTask]:
        """Make the tasks that are due ready. Return the waiting tasks whose `good_until` has passed.

        With `holds_expiry` none is returned.
        """
        for live in self.delays.pop_due(elapsed_s, now_us):
            self.add_ready(live)
        return [] if holds_expiry else self.delays.pop_expired(now_us)

    def _leave_entry(self) -> None:
        """Count one more entry that is dropped when it comes up, or in a clean-up: its task has left the heap early."""
        self._stale_count += 1
        if self._stale_count < self._clean_up_at:
            return
        held = len(self.delays) + sum(len(source) for source in self._sources())
        self._clean_up_at = max(STALE_CLEANUP_AT, held // 2)
        if self._stale_count >= self._clean_up_at:
            self._stale_count = 0
            for source in self._sources():
                source.discard_stale(lambda each: each.phase is not READY)
                source.is_exact = False
            self.delays.discard_stale()

    def waiting(self) -> Iterator[LiveTask]:
        """Every task that waits here, each once, in no order. One that left its heap and came back has two entries."""
        ready = (live for source in self._sources() for live in source if live.phase is READY)
        return iter(dict.fromkeys((*ready, *self.delays)))

    # What starts.

    def take(self) -> list[LiveTask]:
        """The tasks that start now; each holds a slot of its lane and its queue from here on.

        The best one first, over all lanes: a queue with a limit of its own may hold tasks of several.
        """
        for lane, resuming in self._resuming.items():
            if resuming:
                self._resume(lane)
        self._look_again()
        taken: list[LiveTask] = []
        lanes = list(self._standing)
        while (best := self._best_lane(lanes)) is not None:
            heap = self._standing[best]
            source = heap[0][3]
            if not self._may_start(source):  # nor later in this turn, in which slots are only taken
                heappop(heap)
                self._park(source)
                continue
            self._take_from(source, taken, is_alone=len(lanes) == 1 and len(heap) == 1)
        return taken

    @property
    def holds_unsafe(self) -> bool:
        """Whether nothing starts that is not safe to repeat."""
        return self.suspect is not None or self.is_store_degraded or self.is_unseen

    def spare_slots(self, lane: Lane) -> int:
        """The free slots of a lane that no task here waits for."""
        return 0 if self._resuming[lane] or self._has_first(lane, is_alone=False) else self.lanes[lane].free

    def start_claimed(self, live: LiveTask) -> bool:
        """Give a task that its claim has started its slots. Return False if something has come between."""
        lane, queue = self.lanes[live.definition.lane], self.queue(live.queue_name)
        may_start = not self.is_unseen and (live.definition.requeue_on_interrupt or not self.holds_unsafe)
        if not (may_start and queue.is_open and lane.has_room):
            return False
        self.move(live, STARTING)
        take_each(lane, queue.slots)
        return True

    def _take_from(self, source: Source, taken: list[LiveTask], *, is_alone: bool) -> None:
        """Start the first task of a source. If no other source could be better, start as many as may start."""
        lane, queue = self.lanes[source.key.lane], source.queue.slots
        most = min(lane.free, queue.free) if is_alone and not source.key.is_suspect else 1
        source.is_exact = False
        while most and source.held:
            live = source.pop()
            if live.phase is READY:
                self.move(live, STARTING)
                if source.key.is_suspect:
                    self.suspect = live
                lane.running += 1
                queue.running += 1
                taken.append(live)
                most -= 1
            else:
                self._stale_count -= 1
                most -= not is_alone  # the next one may be worse than the first of another source

    def _best_lane(self, lanes: list[Lane]) -> Lane | None:
        """The lane with the best task, or None. Lanes without room, or without tasks, leave the list."""
        is_alone = len(lanes) == 1
        lanes[:] = [lane for lane in lanes if self.lanes[lane].has_room and self._has_first(lane, is_alone)]
        if len(lanes) > 1:
            return min(lanes, key=lambda lane: self._standing[lane][0])
        return lanes[0] if lanes else None

    def _has_first(self, lane: Lane, is_alone: bool) -> bool:
        """Bring a source with tasks to the top of this heap, at its true place. Return False if there is none."""
        heap = self._standing[lane]
        while heap:
            source = heap[0][3]
            if heap[0] is not source.entry:
                heappop(heap)
            elif not source:
                heappop(heap)
                source.entry = None
            elif source.is_exact or (is_alone and len(heap) == 1):
                return True
            else:
                source.is_exact = True
                source.entry = self._entry_of(source)
                heapreplace(heap, source.entry)
        return False

    def _park(self, source: Source) -> None:
        """Set aside a source that may start nothing now. `_look_again` puts it back."""
        source.is_parked, source.entry = True, None
        if source.queue.is_open:
            self._held_back.append(source)
            self._held_in = self._hold()
        else:
            self._closed[source.queue] = None

    def _hold(self) -> tuple[bool, bool, bool, bool]:
        return self.suspect is not None, self.is_unseen, self.is_store_degraded, self.is_detached()

    def _look_again(self) -> None:
        """Put parked sources back into their heaps if their queue is open, or if what held them back has changed."""
        parked: list[Source] = []
        if self._held_back and self._hold() != self._held_in:
            parked, self._held_back = self._held_back, []
        for queue in [queue for queue in self._closed if queue.is_open]:
            del self._closed[queue]
            parked += [source for source in queue.sources.values() if source.is_parked]
        for source in parked:
            source.is_parked = False
            if source:
                self._stand(source)

    def _may_start(self, source: Source) -> bool:
        key = source.key
        is_held_back = self.suspect is not None and (key.needs_store or key.is_suspect)
        waits = self.is_store_degraded and (key.needs_store or (key.is_stored and self.is_detached()))
        return source.queue.is_open and not (is_held_back or waits or (self.is_unseen and key.is_stored))

    def give_back(self, live: LiveTask) -> None:
        """The slot of a task that has ended, or will not start after all."""
        if live is self.suspect:
            self.suspect = None
        lane = self.lanes[live.definition.lane]
        queue = self.queues.get(live.queue_name) or self.queue(live.queue_name)
        slots = queue.slots
        assert lane.running > 0 and slots.running > 0, "a slot was given back twice"  # noqa: PT018  # one fault
        lane.running -= 1
        slots.running -= 1
        if queue.shared_limit is not None:
            queue.shared_limit.gave_back(live.task_id)
        self.wants_take()

    # Room for more.

    def wake_room_waiters(self) -> None:
        """There may be room: a task has left the waiting, or records were saved."""
        if self._room_waiters:
            self._room_waiters.look()

    def let_all_in(self) -> None:
        """Wake all who wait for room: this start takes nothing in any more."""
        self._room_waiters.let_all_in()

    def leave_loop(self) -> None:
        """Forget who waits for room, because the loop will not run again."""
        self._room_waiters = RoomWaiters()

    async def room(self, queue_name: str, is_full: Callable[[str], bool]) -> None:
        """Return when that queue is not full."""
        await self._room_waiters.wait(queue_name, is_full)

    # Attempts that wait for other tasks lend their slot (see engine/words/attempt.py).

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
        if attempt.live.crash_count and self.suspect is None:
            self.suspect = attempt.live
        take_each(self.lanes[attempt.live.definition.lane], self.queue(attempt.live.queue_name).slots)

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
            is_second = attempt.live.crash_count > 0 and self.suspect is not None
            if is_second or not (slots.has_room and queue.slots.has_room):
                resuming.append((attempt, future))
                continue
            self._take_back(attempt)
            future.set_result(None)
