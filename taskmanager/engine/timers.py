"""Watches the two clocks: the loop for time in which it could not run, and the wall clock for steps.

A stall is time in which the process was stopped or suspended, or in which user code blocked the loop.

An administrator or NTP steps the wall clock, or a machine wakes up with a wrong one. Wall and elapsed time advance
together, suspend included, so only a step changes their difference. It is checked with every decision that depends on
wall time, and a decision that may be due to a step is put off. If somebody corrects the clock within a minute, nothing
has expired and no history is deleted.

A clock that was wrong before the start looks like any other. But the file tells when it was used last, by the clocks of
the instances that used it. Whether that was long ago, or the clock is ahead, is known only after a while.
"""

import asyncio
from typing import Final, NamedTuple

from taskmanager.model.clock import SECOND_US, Clock
from taskmanager.model.logger import logger

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
        self.beat_count = 0
        """Read by other threads: while it grows, the loop runs."""

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
        self._observe()
        self.start()


class Step(NamedTuple):
    """One step of the wall clock: when it was noticed, in elapsed seconds, and by how many microseconds it went."""

    noticed_s: float
    by_us: int


class WatchedClock:
    """The wall clock of one instance, for decisions by wall time. Stamps may use the `Clock` itself."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.step_count = 0
        """How many steps were noticed. Compare it with an earlier value to know whether there was another one since."""
        self.last: Step | None = None
        self._began_s = clock.elapsed_s()
        self._last_use_us = 0
        _, self._offset_us = self._read()

    def __repr__(self) -> str:
        return f"<WatchedClock {self.step_count} steps, last {self.last}>"

    def now_us(self) -> int:
        """Return wall time in microseconds since 1970 UTC, and notice a step."""
        now_us, offset_us = self._read()
        by_us, self._offset_us = offset_us - self._offset_us, offset_us
        if abs(by_us) >= STEP_US:
            self.step_count += 1
            self.last = Step(self._clock.elapsed_s(), by_us)
            logger.warning(
                "the wall clock was stepped by %+.1f s; nothing expires for %.0f s, and old records are kept for one "
                "sweep of the retention",
                by_us / SECOND_US,
                HOLD_S,
            )
        return now_us

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
    def trusted_at_s(self) -> float:
        """The time in elapsed seconds from which the wall clock decides alone again."""
        return float("-inf") if self.last is None else self.last.noticed_s + HOLD_S

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
