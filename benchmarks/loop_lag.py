"""How long is the event loop kept from other work while 40,000 tasks per second run?

A ticker asks to be woken every 2 ms and notes how much later it was. The load comes in small chunks by the clock. A
library that cannot keep up shows it in the rate reached.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from _sheet import BOUND, Sheet, database, interleaved, parse_options, percentile

from taskmanager import TaskManager

RATE = 40_000
PERSISTED_RATE = 20_000
TICK_S = 0.002
CHUNK = 100

Figures = tuple[float, float, float]
"""Lag p99 and maximum in ms, tasks per second that have ended."""


@asynccontextmanager
async def ticking(lags_s: list[float]) -> AsyncIterator[None]:
    """Measure the lag of the loop."""

    async def tick() -> None:
        while True:
            due = time.perf_counter() + TICK_S
            await asyncio.sleep(TICK_S)
            lags_s.append(time.perf_counter() - due)

    ticker = asyncio.create_task(tick())
    yield
    ticker.cancel()


async def paced(enqueue: Callable[[], Any], rate: int, duration_s: float) -> None:
    """Enqueue `rate` tasks per second in chunks; what is late is not made up for in one go."""
    began = time.perf_counter()
    sent = 0
    while (elapsed_s := time.perf_counter() - began) < duration_s:
        due = min(CHUNK, int(elapsed_s * rate) - sent)
        for _ in range(due):
            enqueue()
        sent += max(0, due)
        await asyncio.sleep(0 if due >= CHUNK else 0.001)


class Load:
    """The tasks of one run, counted as they end, and the lag meanwhile."""

    def __init__(self) -> None:
        self.ended = 0
        self.lags_s: list[float] = []

    async def task(self) -> None:
        """One task."""
        self.ended += 1

    async def run(self, enqueue: Callable[[], Any], rate: int, duration_s: float) -> Figures:
        """Put the load on, and say what it did to the loop."""
        async with ticking(self.lags_s):
            await paced(enqueue, rate, duration_s)
        return percentile(self.lags_s, 99) * 1000, max(self.lags_s) * 1000, self.ended / duration_s


async def measure(path: Path, persist: bool, duration_s: float) -> Figures:
    """The library."""
    load = Load()

    async def count() -> None:
        await load.task()

    manager = TaskManager(path)
    task = manager.task(name="count", persist=persist)(count)
    async with manager:
        found = await load.run(task.enqueue, PERSISTED_RATE if persist else RATE, duration_s)
        await manager.join()
    return found


async def measure_bare(is_bounded: bool, duration_s: float) -> Figures:
    """A TaskGroup."""
    load = Load()
    semaphore = asyncio.Semaphore(BOUND)

    async def bounded() -> None:
        async with semaphore:
            await load.task()

    body = bounded if is_bounded else load.task
    async with asyncio.TaskGroup() as group:
        return await load.run(lambda: group.create_task(body()), RATE, duration_s)


async def measure_idle(duration_s: float) -> Figures:
    """Nothing but the ticker: what the machine itself does to it."""
    lags_s: list[float] = []
    async with ticking(lags_s):
        await asyncio.sleep(duration_s)
    return percentile(lags_s, 99) * 1000, max(lags_s) * 1000, 0.0


def main() -> None:
    """Print the table."""
    options = parse_options(__doc__)
    duration_s = options.size(4, 1)

    def library(persist: bool) -> Figures:
        with database(options) as path:
            return asyncio.run(measure(path, persist, duration_s))

    found = interleaved(
        {
            "taskmanager, memory-only": lambda: library(False),
            f"taskmanager, persisted, {PERSISTED_RATE:,}/s": lambda: library(True),
            "bare TaskGroup, 100 at a time": lambda: asyncio.run(measure_bare(True, duration_s)),
            "bare TaskGroup, unbounded": lambda: asyncio.run(measure_bare(False, duration_s)),
            "idle loop": lambda: asyncio.run(measure_idle(duration_s)),
        },
        options.repetitions,
    )
    sheet = Sheet(__doc__, options)
    kinds = (("lag p99", "ms", "<= 5"), ("lag max", "ms", "<= 15"), ("rate reached", "tasks/s", f"{RATE:,}"))
    for which, (name, unit, target) in enumerate(kinds):
        bare = [each[which] for each in found["bare TaskGroup, 100 at a time"]]
        for contender, runs in found.items():
            goal = target if contender.endswith("memory-only") else ""
            sheet.add(f"{name}, {contender}", [each[which] for each in runs], unit, target=goal, bare=bare)
    sheet.print()


if __name__ == "__main__":
    main()
