"""How much memory does a process keep after 1,000,000 tasks, compared with after 10,000?

Each run is a fresh process that runs the first tasks, looks at its resident memory, runs the rest and looks again.
Tasks are enqueued 10,000 at a time; what has ended is in the file, not in memory.
"""

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable

import psutil
from _sheet import Options, Sheet, bare_bounded, database, interleaved, no_op, parse_options, run_child

from taskmanager import TaskManager

CHUNK = 10_000


def resident_mb() -> float:
    """The resident memory of this process."""
    gc.collect()
    return float(psutil.Process().memory_info().rss) / 1e6


async def watch(run_chunk: Callable[[], Awaitable[None]], count: int) -> dict[str, float]:
    """Resident memory after the first chunk, at its highest after any, and after all."""
    await run_chunk()
    early = highest = resident_mb()
    for _ in range(count // CHUNK - 1):
        await run_chunk()
        highest = max(highest, resident_mb())
    return {"early": early, "highest": highest, "late": resident_mb()}


async def library(options: Options, count: int, persist: bool) -> dict[str, float]:
    """With a manager."""
    with database(options) as path:
        manager = TaskManager(path)
        noop = manager.task(name="noop", persist=persist)(no_op)

        async def run_chunk() -> None:
            for _ in range(CHUNK):
                noop.enqueue()
            await manager.join()
            await manager.flush()

        async with manager:
            return await watch(run_chunk, count)


def child(options: Options, count: int) -> None:
    """The part that runs in a fresh process."""
    if options.child == "bare":
        found = asyncio.run(watch(lambda: bare_bounded(CHUNK), count))
    else:
        found = asyncio.run(library(options, count, options.child == "persisted"))
    print(json.dumps(found))


def main() -> None:
    """Print the table, or be one of the fresh processes."""
    options = parse_options(__doc__)
    count = options.size(1_000_000, 50_000)
    fewer = count // 5
    if options.child is not None:
        child(options, fewer if options.child == "persisted" else count)
        return
    found = interleaved(
        {
            "memory-only": lambda: run_child(__file__, options, "memory-only"),
            "persisted": lambda: run_child(__file__, options, "persisted"),
            "bare TaskGroup": lambda: run_child(__file__, options, "bare"),
        },
        options.repetitions,
    )
    sheet = Sheet(__doc__, options)
    bare_early = [each["early"] for each in found["bare TaskGroup"]]
    for name, runs in found.items():
        size = fewer if name == "persisted" else count
        goal = "<= 20" if name == "memory-only" else ""
        early = [each["early"] for each in runs]
        sheet.add(f"{name}, after {CHUNK:,}", early, "MB", bare=bare_early)
        sheet.add(f"{name}, grown after {size:,}", [each["late"] - each["early"] for each in runs], "MB", target=goal)
        sheet.add(f"{name}, grown at the highest", [each["highest"] - each["early"] for each in runs], "MB")
    sheet.print()


if __name__ == "__main__":
    main()
