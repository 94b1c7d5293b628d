"""The time limits of the runs that go on.

Runs with the same limit reach it in the order in which they began, so one timer of the loop serves all of them. A timer
for each run would cost more than the rest of its start.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from taskmanager.engine.words.attempt import Attempt

_NOTHING_LEFT_S: Final = 1e-6
"""Less than that is what the sum of floats is off by. A timer of so little may ring before any time has passed."""


class TimeLimits:
    """Of one loop. `running_s` is its clock without the time in which the process could not run: that does not count.

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
