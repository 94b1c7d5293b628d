"""How long is it from `enqueue` to the first line of the task, when nothing else runs?

Memory-only and persisted (which waits for the commit of its start), beside `asyncio.create_task`, bare and through a
semaphore in a TaskGroup.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _sheet import BOUND, Sheet, database, interleaved, parse_options, percentile

from taskmanager import TaskManager

PAUSE_S = 0.001


class Probe:
    """A task that notes when it started."""

    def __init__(self) -> None:
        self.began_ns = 0
        self.ran = asyncio.Event()
        self.took_ns: list[int] = []

    async def run(self) -> None:
        """The task."""
        self.took_ns.append(time.perf_counter_ns() - self.began_ns)
        self.ran.set()

    async def measure(self, enqueue: Callable[[], Any], count: int) -> tuple[float, float]:
        """Enqueue `count` times, each when the one before has run and the loop has been idle; p50 and p99 in µs."""
        for _ in range(count):
            await asyncio.sleep(PAUSE_S)
            self.ran.clear()
            self.began_ns = time.perf_counter_ns()
            kept = enqueue()
            await self.ran.wait()
            del kept
        return percentile(self.took_ns, 50) / 1000, percentile(self.took_ns, 99) / 1000


async def measure(path: Path, persist: bool, count: int) -> tuple[float, float]:
    """The library."""
    probe = Probe()

    async def started() -> None:
        await probe.run()

    manager = TaskManager(path)
    task = manager.task(name="started", persist=persist)(started)
    async with manager:
        return await probe.measure(task.enqueue, count)


async def measure_bare(count: int) -> tuple[float, float]:
    """`asyncio.create_task`."""
    probe = Probe()
    return await probe.measure(lambda: asyncio.create_task(probe.run()), count)


async def measure_bounded(count: int) -> tuple[float, float]:
    """A TaskGroup with a semaphore."""
    probe = Probe()
    semaphore = asyncio.Semaphore(BOUND)

    async def bounded() -> None:
        async with semaphore:
            await probe.run()

    async with asyncio.TaskGroup() as group:
        return await probe.measure(lambda: group.create_task(bounded()), count)


def main() -> None:
    """Print the table."""
    options = parse_options(__doc__)
    count = options.size(2_000, 300)

    def library(persist: bool) -> tuple[float, float]:
        with database(options) as path:
            return asyncio.run(measure(path, persist, count))

    found = interleaved(
        {
            "taskmanager, memory-only": lambda: library(False),
            "taskmanager, persisted": lambda: library(True),
            "bare TaskGroup, 100 at a time": lambda: asyncio.run(measure_bounded(count)),
            "bare create_task": lambda: asyncio.run(measure_bare(count)),
        },
        options.repetitions,
    )
    sheet = Sheet(__doc__, options)
    for which, (name, target) in enumerate((("p50", "<= 50"), ("p99", "<= 250"))):
        bare = [each[which] for each in found["bare TaskGroup, 100 at a time"]]
        for contender, runs in found.items():
            goal = target if contender.endswith("memory-only") else ""
            sheet.add(f"{name}, {contender}", [each[which] for each in runs], "µs", target=goal, bare=bare)
    sheet.print()


if __name__ == "__main__":
    main()
