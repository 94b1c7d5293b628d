"""Watches the loop for stalls, the wall clock for steps and runs for their time, and wakes what waits for a moment.

A stall is time in which the process was stopped or suspended, or in which user code blocked the loop.

An administrator or NTP steps the wall clock, or a machine wakes up with a wrong one. Wall and elapsed time advance
together, suspend included, so only a step changes their difference. It is checked with every decision that depends on
wall time, and a decision that may be due to a step is put off. If somebody corrects the clock within a minute, nothing
has expired and no history is deleted. No timer of the loop knows of a step, or of a night that the machine slept
through, so what waits for wall time is looked at again every few seconds.

A clock that was wrong before the start looks like any other. But the file tells when it was used last, by the clocks of
the instances that used it. Whether that was long ago, or the clock is ahead, is known only after a while.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from taskmanager.engine.words.attempt import Attempt
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.engine.words.phases import DELAYED
from taskmanager.model.clock import SECOND_US, Clock, SystemClock
from taskmanager.model.gil import BUSY, Lending, any_at_work, lend
from taskmanager.model.ids import set_ids_ahead
from taskmanager.model.logger import logger
from taskmanager.rules.ready import DelayedQueue

BEAT_S: Final = 0.5
TOLERANCE_S: Final = 1.0
STEP_US: Final = SECOND_US
"""A smaller difference is a slewed clock, or one that was read slowly."""
HOLD_S: Final = 60.0
"""How long `good_until` expires nothing after a step."""
BELIEVED_AFTER_S: Final = 86_400.0
"""How long the clock of a start runs until it is believed that the file was not used for longer than that."""
_SLOW_READ_S: Final = 0.05
_MAX_READS: Final = 3
RECHECK_S: Final = 5.0
STALE_CLEANUP_AT: Final = 1_000
"""Heaps are rebuilt without ended tasks when this many, and half of all entries, are stale."""
_NOTHING_LEFT_S: Final = 1e-6
"""Less than that is what the sum of floats is off by. A timer of so little may ring before any time has passed."""


class Recheck:
    """Ends a wait for news after a while, so that whoever waits looks again.

    Nothing is due at its end: a virtual clock tells it from a timer of the application by its class, and jumps past it.
    """

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()

    def __repr__(self) -> str:
        return f"<Recheck after {self._pause_s:g} s>"

    async def wait(self, news: "asyncio.Future[Any]") -> None:
        """Wait until there is news, or the pause is over."""
        timer = self._loop.call_later(self._pause_s, self._end)
        try:
            await asyncio.wait([news, self._over], return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()

    def _end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)


def next_beat(now_s: float, pause_s: float) -> float:
    """Return the time of the loop, about `pause_s` from now, at which everything of that rhythm wakes together.

    Waking an idle process costs more than what it then does here.
    """
    return round(now_s / pause_s + 1) * pause_s


class StallWatch:
    """Beats on the loop. A beat that comes late by more than the tolerance was a stall, and its length is lost time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lost_s = 0.0
        self._expected = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._lending = Lending(any_at_work)
        self._used_s = 0.0
        self.beat_count = 0
        """Read by other threads: while it grows, the loop runs."""

    @property
    def is_beating(self) -> bool:
        """Whether it beats, and its silence says something: between the begin of a start and the end of its stop."""
        return self._timer is not None

    def start(self) -> None:
        """Begin to beat."""
        self._expected = next_beat(self._loop.time(), BEAT_S)
        self._timer = self._loop.call_at(self._expected, self._beat)

    def close(self) -> None:
        """Stop beating."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def lost_s(self) -> float:
        """Return the seconds lost so far, by the clock itself: after a stall all overdue timers come at once."""
        if self._timer is not None:
            self._observe()
        return self._lost_s

    def running_s(self) -> float:
        """Return the seconds in which the loop could run. Only differences mean something."""
        return self._loop.time() - self.lost_s()

    def _observe(self) -> None:
        late_s = self._loop.time() - self._expected
        if late_s > TOLERANCE_S:
            self._lost_s += late_s
            self._expected += late_s

    def _beat(self) -> None:
        self.beat_count += 1
        used_s, self._used_s = self._used_s, time.thread_time()
        if self._used_s - used_s > BUSY * BEAT_S:
            lend()  # to a thread that has not even been able to say that it is at work
        self._lending.begin(self._loop)  # whatever was used: a run of the simulator must not depend on that
        self._observe()
        self.start()


class WatchedClock:
    """The wall clock of one instance, for decisions by wall time. Stamps may use the `Clock` itself."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.step_count = 0
        """How many steps were noticed. Compare it with an earlier value to know whether there was another one since."""
        self.trusted_at_s = float("-inf")
        """The time in elapsed seconds from which the wall clock decides alone again."""
        self._began_s = clock.elapsed_s()
        self._last_use_us = 0
        self.put_right_us = 0
        """By how much the first `go_by` of this start has put the clock right. Stamps from before are off by that."""
        _, self._offset_us = self._read()

    def __repr__(self) -> str:
        return f"<WatchedClock {self.step_count} steps, trusted at {self.trusted_at_s}>"

    def now_us(self) -> int:
        """Return wall time in microseconds since 1970 UTC, and notice a step."""
        now_us, offset_us = self._read()
        by_us, self._offset_us = offset_us - self._offset_us, offset_us
        if abs(by_us) >= STEP_US:
            self.step_count += 1
            self.trusted_at_s = self._clock.elapsed_s() + HOLD_S
            logger.warning(
                "the wall clock was stepped by %+.1f s; nothing expires for %.0f s, and old records are kept for one "
                "sweep of the retention",
                by_us / SECOND_US,
                HOLD_S,
            )
        return now_us

    def go_by(self, ahead_us: int, *, is_first: bool = False) -> None:
        """Go by the clock of the database, which is so far ahead of that of this machine.

        At the `is_first` call of a start any difference is no step. Later a large one is: a clock was stepped. A clock
        that is not the machine's own, as in a test, is right already.
        """
        clock = self._clock
        if type(clock) is not SystemClock or clock.ahead_us == ahead_us:
            return
        by_us, clock.ahead_us = ahead_us - clock.ahead_us, ahead_us
        self.put_right_us += by_us if is_first else 0
        set_ids_ahead(ahead_us)
        if is_first or abs(by_us) < STEP_US:
            self._offset_us += by_us

    def note_last_use(self, stamp_us: int) -> None:
        """Note the newest stamp in the file up to now, before this start has written to it; 0 if there is none.

        A stamp of the future says nothing of the last use: the clock was set back since, or a row is damaged. Only the
        first call counts: a registration that seemed to fail is tried again, and may have arrived.
        """
        if not self._last_use_us:
            self._last_use_us = stamp_us

    def now_for_ages_us(self) -> int:
        """Return the wall time by which to judge what is too old to be kept.

        For a day it is at most a day after the last use of the file. So a machine that boots with a clock years ahead
        deletes no history until somebody corrects the clock.
        """
        now_us = self.now_us()
        if not self._last_use_us or self._clock.elapsed_s() - self._began_s >= BELIEVED_AFTER_S:
            return now_us
        return min(now_us, self._last_use_us + round(BELIEVED_AFTER_S * SECOND_US))

    @property
    def holds_expiry(self) -> bool:
        """True while nothing may expire. A task past its `good_until` does not start either: one of both is wrong."""
        return self._clock.elapsed_s() < self.trusted_at_s

    def _read(self) -> tuple[int, int]:
        """Return wall time, and its distance from elapsed time."""
        now_us, offset_us, took_s = self._read_once()
        for _ in range(_MAX_READS):
            if took_s < _SLOW_READ_S:
                break  # else the process was stopped between the two clocks, which is no step
            now_us, offset_us, took_s = self._read_once()
        return now_us, offset_us

    def _read_once(self) -> tuple[int, int, float]:
        before_s = self._clock.elapsed_s()
        now_us = self._clock.now_us()
        took_s = self._clock.elapsed_s() - before_s
        return now_us, now_us - round((before_s + took_s / 2) * SECOND_US), took_s


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

    def next_delay_s(self, elapsed_s: float, now_us: int, *, holds_expiry: bool = False) -> float | None:
        """Seconds until the next moment, as the clocks stand now: infinite while nothing may expire, None if all is
        idle.
        """
        if not (self._elapsed or self._wall or self._expiring):
            return None
        due_us = [self._wall.next_due(), None if holds_expiry else self._expiring.next_due()]
        delays = [(each - now_us) / SECOND_US for each in due_us if each is not None]
        if (due_s := self._elapsed.next_due()) is not None:
            delays.append(due_s - elapsed_s)
        return max(0.0, min(delays, default=float("inf")))

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
        now_us, holds_expiry = self._wall_clock.now_us(), self._wall_clock.holds_expiry
        delay_s = self._delays.next_delay_s(self._clock.elapsed_s(), now_us, holds_expiry=holds_expiry)
        if delay_s is None:
            return
        at = self._loop.time() + min(delay_s, RECHECK_S)
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


class TimeLimits:
    """The time limits of the runs that go on in one loop.

    Runs with the same limit reach it in the order in which they began, so one timer of the loop serves all of them. A
    timer for each run would cost more than the rest of its start.

    `running_s` is the loop's clock without the time in which the process could not run: that does not count.

    `reached` is called for a run that has reached its limit, unless it has ended by then.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, running_s: Callable[[], float], reached: Callable[[Attempt], None]
    ) -> None:
        self._loop, self._running_s, self._reached = loop, running_s, reached
        self._forget = self.forget
        self._began: dict[float, dict[Attempt, float]] = {}
        """For each limit the runs that have it, the earliest one first, and when they began."""
        self._timers: dict[float, asyncio.TimerHandle] = {}

    def __repr__(self) -> str:
        return f"<TimeLimits of {sum(map(len, self._began.values()))} runs>"

    def watch(self, attempt: Attempt, limit_s: float) -> None:
        """The time of this run begins."""
        attempt.limit_s, attempt.forget_limit = limit_s, self._forget
        began = self._began.get(limit_s)
        if began is None:
            began = self._began[limit_s] = {}
            self._timers[limit_s] = self._loop.call_later(limit_s, self._look, limit_s)
        began[attempt] = self._running_s()

    def forget(self, attempt: Attempt) -> None:
        """The run has ended."""
        began = self._began.get(attempt.limit_s)
        if began is not None and began.pop(attempt, None) is not None and not began:
            self._end(attempt.limit_s)

    def _end(self, limit_s: float) -> None:
        del self._began[limit_s]
        self._timers.pop(limit_s).cancel()

    def _look(self, limit_s: float) -> None:
        """Look at the earliest run that has this limit."""
        began = self._began[limit_s]
        attempt, began_s = next(iter(began.items()))
        left_s = began_s + limit_s - self._running_s()
        if left_s > _NOTHING_LEFT_S:
            self._timers[limit_s] = self._loop.call_later(left_s, self._look, limit_s)
            return
        del began[attempt]
        if began:
            self._timers[limit_s] = self._loop.call_later(0, self._look, limit_s)
        else:
            self._end(limit_s)
        if not attempt.is_over:
            self._reached(attempt)
