"""Notices time in which the loop could not run: the process was stopped, suspended, or user code blocked the loop."""

import asyncio
from typing import Final

BEAT_S: Final = 0.5
TOLERANCE_S: Final = 1.0


def next_beat(now_s: float, pause_s: float) -> float:
    """The time of the loop about `pause_s` from now at which it wakes for all that repeats in that rhythm, too.

    To wake an idle process costs more than what it then does here.
    """
    return round(now_s / pause_s + 1) * pause_s


class StallWatch:
    """Beats on the loop; a beat that comes late by more than the tolerance was a stall, and its length is lost time."""

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
        """Seconds lost so far; looks at the clock itself, because after a stall all overdue timers come at once."""
        if self._timer is not None:
            self._observe()
        return self._lost_s

    def running_s(self) -> float:
        """Seconds in which the loop could run; only differences mean something."""
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
