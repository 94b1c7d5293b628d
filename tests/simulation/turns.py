"""An event loop of which every turn is one callback, and runs only when the simulation says so.

Each simulated process has a loop of its own, all on one virtual time. A process that is killed gets no turn any more,
one that is frozen gets none for a while: that is all the difference, so a kill falls between any two callbacks, which
is to say at any await.
"""

import asyncio
import heapq
import math
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any


class _NoSockets:
    """The selector of a loop that waits for nothing outside."""

    def select(self, timeout: float | None) -> list[Any]:
        raise AssertionError("a simulated loop is turned from outside, it never waits")

    def close(self) -> None:
        pass


class TurnLoop(asyncio.BaseEventLoop):
    """Runs one callback per `turn`, in the order of a real loop. `now_us` tells the virtual time."""

    _ready: deque[Any]
    _scheduled: list[Any]

    def __init__(self, now_us: Callable[[], int]) -> None:
        super().__init__()
        self._selector = _NoSockets()
        self._now_us = now_us
        self.failures: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.failures.append(context))

    def time(self) -> float:
        """Virtual seconds."""
        return self._now_us() / 1_000_000

    def _write_to_self(self) -> None:
        """There is nobody to wake: the simulation looks for itself."""

    def has_work(self) -> bool:
        """Whether a callback may run now; timers that are due become ready."""
        limit = self.time()
        scheduled = self._scheduled
        while scheduled and scheduled[0]._when <= limit:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            self._ready.append(handle)
        return bool(self._ready)

    def turn(self) -> None:
        """Run one callback."""
        handle = self._ready.popleft()
        if handle._cancelled:
            return
        asyncio._set_running_loop(self)
        try:
            handle._run()
        finally:
            asyncio._set_running_loop(None)

    def next_timer_us(self) -> int | None:
        """When the next timer is due."""
        scheduled = self._scheduled
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        return math.ceil(scheduled[0]._when * 1_000_000) if scheduled else None

    def bury(self) -> None:
        """Unwind what a dead process left, without letting it do anything, so that it can be collected."""
        asyncio._set_running_loop(self)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of coroutines that were never awaited
                for task in asyncio.all_tasks(self):
                    task._log_destroy_pending = False  # type: ignore[attr-defined]  # its death has been said already
                    _unwind(task.get_coro())
        finally:
            asyncio._set_running_loop(None)
        self._ready.clear()
        self._scheduled.clear()
        self.close()


def _unwind(coroutine: Any) -> None:
    for _ in range(10):
        try:
            coroutine.close()
        except BaseException:
            continue
        return
