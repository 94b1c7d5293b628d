"""What waits for a moment, and the one timer for all of it: delays, retries, `run_at`, `good_until`.

Wall-clock promises and suspended time are looked at again at least every few seconds: no timer of the loop knows of a
clock that was stepped, or of a night that the machine slept through.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from taskmanager.engine.live_task import LiveTask
from taskmanager.engine.phases import DELAYED
from taskmanager.engine.timers import WatchedClock
from taskmanager.model.clock import SECOND_US, Clock
from taskmanager.rules.ready import DelayedQueue

RECHECK_S: Final = 5.0
STALE_CLEANUP_AT: Final = 1_000
"""Heaps are rebuilt without ended tasks when this many, and half of all entries, are stale."""


def _is_watched_in_vain(live: LiveTask) -> bool:
    """Whether to drop the entry of a task that waits no more. If the task waits again, it gets another entry."""
    if live.is_waiting:
        return False
    live.watched_until = None
    return True


class Delays:
    """The heaps of tasks that wait for a moment: of the elapsed clock, of the wall clock, or their `good_until`."""

    def __init__(self) -> None:
        self._elapsed: DelayedQueue[LiveTask] = DelayedQueue()
        self._wall: DelayedQueue[LiveTask] = DelayedQueue()
        self._expiring: DelayedQueue[LiveTask] = DelayedQueue()
        self._expiring_limit = STALE_CLEANUP_AT

    def __len__(self) -> int:
        return len(self._elapsed) + len(self._wall)

    def __iter__(self) -> Iterator[LiveTask]:
        """Iterate over the delayed tasks, each once, in no order."""
        for heap in (self._elapsed, self._wall):
            yield from (live for live in heap if live.phase is DELAYED)

    def __repr__(self) -> str:
        return f"<Delays {len(self)} delayed, {len(self._expiring)} may expire>"

    def add_elapsed(self, live: LiveTask, due_s: float) -> None:
        """Wait for that moment of the elapsed clock."""
        live.due = due_s
        self._elapsed.push(due_s, live)

    def add_wall(self, live: LiveTask, due_us: int) -> None:
        """Wait for that moment of the wall clock."""
        live.due = due_us
        self._wall.push(due_us, live)

    def watch_expiry(self, live: LiveTask) -> None:
        """Remember that `live` has a `good_until`: with one entry, however often it waits again."""
        if live.good_until is None or live.good_until == live.watched_until:
            return
        live.watched_until = live.good_until
        self._expiring.push(live.good_until, live)
        if len(self._expiring) >= self._expiring_limit:
            # Most of these tasks started long ago. A `good_until` in the far future must not keep them in memory.
            self._expiring.discard_stale(_is_watched_in_vain)
            self._expiring_limit = max(STALE_CLEANUP_AT, 2 * len(self._expiring))

    def pop_due(self, elapsed_s: float, now_us: int) -> Iterator[LiveTask]:
        """Take out the tasks whose moment has come."""
        for heap, now in ((self._elapsed, elapsed_s), (self._wall, float(now_us))):
            yield from (live for live in heap.pop_due(now) if live.phase is DELAYED and live.due <= now)

    def pop_expired(self, now_us: int) -> list[LiveTask]:
        """Take out the waiting tasks whose `good_until` has passed."""
        return [live for live in self._expiring.pop_due(now_us) if self._has_expired(live, now_us)]

    @staticmethod
    def _has_expired(live: LiveTask, now_us: int) -> bool:
        """Whether a task whose entry came up expires now. True only once, even if the task had several entries."""
        if live.watched_until is None or live.watched_until > now_us:
            return False
        live.watched_until = None
        return live.is_waiting and not live.is_awaiting_store  # a row that is free in the store expires there

    def next_due(self) -> tuple[float | None, bool]:
        """The next elapsed-clock moment, and whether anything waits for wall time."""
        return self._elapsed.next_due(), bool(len(self._wall) or len(self._expiring))

    def next_wall_delay_s(self, now_us: int, *, holds_expiry: bool = False) -> float:
        """Seconds until the next wall-clock moment, as the wall clock stands now."""
        heaps = (self._wall,) if holds_expiry else (self._wall, self._expiring)
        due = [heap.next_due() for heap in heaps]
        return min((max(0.0, (each - now_us) / SECOND_US) for each in due if each is not None), default=float("inf"))

    def discard_stale(self) -> None:
        """Drop the entries of tasks that do not wait for their moment any more."""
        for heap in (self._elapsed, self._wall):
            heap.discard_stale(lambda each: each.phase is not DELAYED)
        self._expiring.discard_stale(_is_watched_in_vain)


class Alarm:
    """Calls `on_due` when one of the delayed tasks may be due."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        wall_clock: WatchedClock,
        delays: Delays,
        on_due: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._wall_clock = wall_clock
        self._delays = delays
        self._on_due = on_due
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0

    def watch_expiry(self, live: LiveTask) -> None:
        """Ring at its `good_until`."""
        self._delays.watch_expiry(live)
        self.set()

    def set(self) -> None:
        """Set it for the next moment, unless it is set for an earlier one."""
        elapsed_due, has_wall = self._delays.next_due()
        if elapsed_due is None and not has_wall:
            return
        delay_s = RECHECK_S
        if elapsed_due is not None:
            delay_s = min(delay_s, max(0.0, elapsed_due - self._clock.elapsed_s()))
        if has_wall:
            now_us, holds_expiry = self._wall_clock.now_us(), self._wall_clock.holds_expiry
            delay_s = min(delay_s, self._delays.next_wall_delay_s(now_us, holds_expiry=holds_expiry))
        at = self._loop.time() + delay_s
        if self._timer is not None:
            if self._at <= at:
                return
            self._timer.cancel()
        self._at = at
        self._timer = self._loop.call_at(at, self._ring)

    def _ring(self) -> None:
        self._timer = None
        try:
            self._on_due()
        finally:  # whatever that came to, there is a next moment
            self.set()

    def close(self) -> None:
        """It rings no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
