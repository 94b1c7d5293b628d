"""How long does a stop take with 10,000 tasks waiting?

The queue is paused, so that all wait. Persisted ones are freed for the next start, once with their rows in the file
already, and once straight after the enqueue; memory-only ones are recorded as cancelled. The bare TaskGroup cancels its
tasks.
"""

import asyncio
import time
from pathlib import Path

from _sheet import BOUND, Sheet, database, interleaved, no_op, parse_options

from taskmanager import StoreUnavailable, TaskManager


async def measure(path: Path, count: int, persist: bool, is_saved: bool) -> tuple[float, bool]:
    """Seconds of `stop()`, and whether it could write everything."""
    manager = TaskManager(path)
    noop = manager.task(name="noop", persist=persist)(no_op)
    await manager.start()
    await manager.pause("default")
    for _ in range(count):
        noop.enqueue()
    if is_saved:
        await manager.flush()
    is_complete = True
    began = time.perf_counter()
    try:
        await manager.stop()
    except StoreUnavailable:
        is_complete = False
    return time.perf_counter() - began, is_complete


async def measure_bare(count: int, is_bounded: bool) -> tuple[float, bool]:
    """Seconds to cancel a TaskGroup and leave it."""
    semaphore = asyncio.Semaphore(BOUND)
    never = asyncio.Event()

    async def bounded() -> None:
        async with semaphore:
            await never.wait()

    began = 0.0
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(bounded() if is_bounded else unbounded(never)) for _ in range(count)]
            await asyncio.sleep(0.1)
            began = time.perf_counter()
            for task in tasks:
                task.cancel()
    finally:
        took_s = time.perf_counter() - began
    return took_s, True


async def unbounded(never: asyncio.Event) -> None:
    """Wait without a semaphore."""
    await never.wait()


def main() -> None:
    """Print the table."""
    options = parse_options(__doc__)
    count = options.size(10_000, 2_000)

    def library(*, persist: bool, is_saved: bool) -> tuple[float, bool]:
        with database(options) as path:
            return asyncio.run(measure(path, count, persist, is_saved))

    found = interleaved(
        {
            "persisted, in the file": lambda: library(persist=True, is_saved=True),
            "persisted, just enqueued": lambda: library(persist=True, is_saved=False),
            "memory-only": lambda: library(persist=False, is_saved=False),
            "bare TaskGroup, 100 at a time": lambda: asyncio.run(measure_bare(count, True)),
            "bare TaskGroup, unbounded": lambda: asyncio.run(measure_bare(count, False)),
        },
        options.repetitions,
    )
    bare = [took_s for took_s, _ in found["bare TaskGroup, 100 at a time"]]
    sheet = Sheet(__doc__, options)
    for name, runs in found.items():
        goal = "" if name.startswith("bare") else "<= 7 (drain + 2)"
        sheet.add(f"{count:,} waiting, {name}", [took_s for took_s, _ in runs], "s", target=goal, bare=bare)
        incomplete = sum(not is_complete for _, is_complete in runs)
        if incomplete:
            sheet.note(
                f"{incomplete} of {len(runs)} stops ({name}) raised StoreUnavailable: not everything was written."
            )
    sheet.print()


if __name__ == "__main__":
    main()
