"""The one timer for everything that waits for a moment: delays, retries, `run_at`, `good_until`.

Wall-clock promises and suspended time are looked at again at least every few seconds: no timer of the loop knows of a
clock that was stepped, or of a night that the machine slept through.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from taskmanager.engine.dispatch import Dispatcher
from taskmanager.engine.wall_clock import WatchedClock
from taskmanager.model.clock import Clock

RECHECK_S: Final = 5.0


class Alarm:
    """Calls `on_due` when something in the dispatcher may be due."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        wall_clock: WatchedClock,
        dispatcher: Dispatcher,
        on_due: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._wall_clock = wall_clock
        self._dispatcher = dispatcher
        self._on_due = on_due
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0

    def set(self) -> None:
        """Set it for the next moment, unless it is set for an earlier one."""
        elapsed_due, has_wall = self._dispatcher.next_due()
        if elapsed_due is None and not has_wall:
            return
        delay_s = RECHECK_S
        if elapsed_due is not None:
            delay_s = min(delay_s, max(0.0, elapsed_due - self._clock.elapsed_s()))
        if has_wall:
            now_us, holds_expiry = self._wall_clock.now_us(), self._wall_clock.holds_expiry
            delay_s = min(delay_s, self._dispatcher.next_wall_delay_s(now_us, holds_expiry=holds_expiry))
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
