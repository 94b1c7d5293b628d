"""How many persisted no-op tasks per second run, each start committed before its user code?

"fed" keeps a few thousand tasks waiting, as an application with a steady load does; "burst" enqueues all at once, more
than memory holds, so that most rows go to the file first and are claimed from it. The clock stops after `flush()`.
"""

import asyncio
from collections import deque
from pathlib import Path
from typing import Any, Literal

from _harness import (
    Rate,
    Sheet,
    Watch,
    bare_bounded,
    bare_rate,
    bare_unbounded,
    database,
    interleaved,
    no_op,
    parse_options,
)

from taskmanager import TaskHandle, TaskManager

CHUNK = 500
CHUNKS_WAITING = 8


async def measure(path: Path, count: int, synchronous: Literal["full", "normal"], chunk: int) -> Rate:
    """The rate of tasks enqueued `chunk` at a time, with at most `CHUNKS_WAITING` chunks unfinished."""
    manager = TaskManager(path, synchronous=synchronous)
    noop = manager.task(name="noop", persist=True)(no_op)
    waiting: deque[TaskHandle[Any]] = deque()
    async with manager:
        watch = Watch()
        for _ in range(count // chunk):
            for _ in range(chunk - 1):
                noop.enqueue()
            waiting.append(noop.enqueue())
            if len(waiting) > CHUNKS_WAITING:
                await waiting.popleft()
        await manager.join()
        await manager.flush()
        return watch.rate(count)


def main() -> None:
    """Print the table."""
    options = parse_options(__doc__)
    count = options.size(50_000, 10_000)

    def library(synchronous: Literal["full", "normal"], chunk: int) -> Rate:
        with database(options) as path:
            return asyncio.run(measure(path, count, synchronous, chunk))

    found = interleaved(
        {
            "full": lambda: library("full", CHUNK),
            "normal": lambda: library("normal", CHUNK),
            "burst": lambda: library("full", count),
            "bounded": lambda: bare_rate(bare_bounded, count),
            "unbounded": lambda: bare_rate(bare_unbounded, count),
        },
        options.repetitions,
    )
    rates = {name: [each.per_s for each in runs] for name, runs in found.items()}
    bare = rates["bounded"]
    sheet = Sheet(__doc__, options)
    sheet.add(f"persisted, full, {count:,} fed", rates["full"], "tasks/s", target=">= 25,000", bare=bare)
    sheet.add(f"persisted, normal, {count:,} fed", rates["normal"], "tasks/s", bare=bare)
    sheet.add(f"persisted, full, burst of {count:,}", rates["burst"], "tasks/s", bare=bare)
    sheet.add("bare TaskGroup, 100 at a time", bare, "tasks/s", bare=bare)
    sheet.add("bare TaskGroup, unbounded", rates["unbounded"], "tasks/s", bare=bare)
    for name, contender in (("full, fed", "full"), ("full, burst", "burst"), ("bare, 100 at a time", "bounded")):
        sheet.add_processor(name, found[contender], found["bounded"])
    sheet.print()


if __name__ == "__main__":
    main()
