"""How long does the event loop keep other work waiting at full load?

A ticker asks to be woken every 2 ms and notes how much later it was. As many tasks as the loop can do run meanwhile: a
feeder calls for a hundred more as soon as fewer than five hundred are under way. The bare loop is fed in the same way,
with tasks of a TaskGroup that a semaphore bounds. A busy machine lengthens the lag; it does not lengthen the processor
time of the turn of the loop that took most.
"""

import asyncio
import selectors
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from _harness import BOUND, Figures, Line, Options, Watch, database, percentile, run

from taskmanager import TaskManager

TICK_S = 0.002
FULL_S = 0.001
CHUNK = 100
UNDER_WAY = 500
DURATION_S = (4, 2)


class TimingSelector(selectors.DefaultSelector):
    """What the loop waits with, which is where its turns begin and end."""

    def __init__(self) -> None:
        super().__init__()
        self.longest_s = 0.0
        self._woke_s = time.thread_time()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait, as the class does."""
        self.longest_s = max(self.longest_s, time.thread_time() - self._woke_s)
        found = super().select(timeout)
        self._woke_s = time.thread_time()
        return found


async def tick(lags_ms: list[float]) -> None:
    """Measure the lag."""
    while True:
        due = time.perf_counter() + TICK_S
        await asyncio.sleep(TICK_S)
        lags_ms.append((time.perf_counter() - due) * 1000)


async def load(timing: TimingSelector, call: Callable[[], Any], ended: list[None], duration_s: float) -> Figures:
    """Put the load on, and say what it did to the loop."""
    lags_ms, called, watch = list[float](), 0, Watch()
    ticker = asyncio.create_task(tick(lags_ms))
    await asyncio.sleep(0)
    timing.longest_s = 0.0
    end = time.perf_counter() + duration_s
    while time.perf_counter() < end:
        is_full = called - len(ended) >= UNDER_WAY
        if not is_full:
            for _ in range(CHUNK):
                call()
            called += CHUNK
        await asyncio.sleep(FULL_S if is_full else 0)
    ticker.cancel()
    lags = {f"p{percent}": percentile(lags_ms, percent) for percent in (99, 99.9)}
    return {**watch.figures(len(ended)), **lags, "longest": timing.longest_s * 1000}


def in_timed_loop(main: Callable[[TimingSelector], Any]) -> Figures:
    """Run it in a loop whose turns are timed."""
    timing = TimingSelector()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(timing)) as runner:
        found: Figures = runner.run(main(timing))
    return found


def library(options: Options, *, persist: bool) -> Figures:
    """The library."""

    async def main(timing: TimingSelector) -> Figures:
        ended: list[None] = []

        async def note() -> None:
            ended.append(None)

        with database(options) as path:
            manager = TaskManager(path)
            task = manager.task(name="note", persist=persist)(note)
            async with manager:
                return await load(timing, task.enqueue, ended, options.size(*DURATION_S))

    return in_timed_loop(main)


def bare(options: Options) -> Figures:
    """A TaskGroup."""

    async def main(timing: TimingSelector) -> Figures:
        ended: list[None] = []
        semaphore = asyncio.Semaphore(BOUND)

        async def bounded() -> None:
            async with semaphore:
                ended.append(None)

        async with asyncio.TaskGroup() as group:
            return await load(timing, lambda: group.create_task(bounded()), ended, options.size(*DURATION_S))

    return in_timed_loop(main)


PARTS = {"memory": partial(library, persist=False), "persisted": partial(library, persist=True), "bare": bare}
LINES = [
    line
    for part, name in (("memory", "memory-only"), ("persisted", "persisted"))
    for line in (
        Line(f"{name}: lag p99 / bare", part, "p99", "ms", "bare", must="<= 2"),
        Line(f"{name}: lag p99.9 / bare", part, "p99.9", "ms", "bare", must="<= 2"),
        Line(f"{name}: longest turn / bare, processor time", part, "longest", "ms", "bare"),
        Line(f"{name}: rate meanwhile / bare", part, "per_s", "/s", "bare"),
    )
]

if __name__ == "__main__":
    run(__doc__, __file__, PARTS, LINES)
