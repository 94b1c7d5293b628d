"""How many no-op tasks per second run memory-only, their history reaching the file?

All tasks are enqueued at once. The clock stops when `flush()` has returned: every task has run and its record is in
SQLite. "in memory" is the same without a file, and "until done" stops at `join()`, before the last history is written.
"""

import asyncio
from pathlib import Path

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

from taskmanager import TaskManager


async def measure(path: Path | None, count: int) -> tuple[Rate, Rate]:
    """The rate until all are done, and until all are in the file."""
    manager = TaskManager(path)
    noop = manager.task(name="noop")(no_op)
    async with manager:
        watch = Watch()
        for _ in range(count):
            noop.enqueue()
        await manager.join()
        done = watch.rate(count)
        await manager.flush()
        return done, watch.rate(count)


def main() -> None:
    """Print the table."""
    options = parse_options(__doc__)
    count = options.size(100_000, 10_000)

    def library() -> tuple[Rate, Rate]:
        with database(options) as path:
            return asyncio.run(measure(path, count))

    found = interleaved(
        {
            "library": library,
            "in memory": lambda: asyncio.run(measure(None, count)),
            "bounded": lambda: (bare_rate(bare_bounded, count),) * 2,
            "unbounded": lambda: (bare_rate(bare_unbounded, count),) * 2,
        },
        options.repetitions,
    )
    flushed = {name: [each for _, each in pairs] for name, pairs in found.items()}
    rates = {name: [each.per_s for each in runs] for name, runs in flushed.items()}
    bare = rates["bounded"]
    sheet = Sheet(__doc__, options)
    target = ">= 40,000 and >= 1/6 of bare"
    sheet.add(f"taskmanager, {count:,} tasks until flushed", rates["library"], "tasks/s", target=target, bare=bare)
    sheet.add("taskmanager, until done", [done.per_s for done, _ in found["library"]], "tasks/s", bare=bare)
    sheet.add("taskmanager, in memory (no file)", rates["in memory"], "tasks/s", bare=bare)
    sheet.add("bare TaskGroup, 100 at a time", bare, "tasks/s", bare=bare)
    sheet.add("bare TaskGroup, unbounded", rates["unbounded"], "tasks/s", bare=bare)
    for name, contender in (("taskmanager", "library"), ("in memory", "in memory"), ("bare, 100 at a time", "bounded")):
        sheet.add_processor(name, flushed[contender], flushed["bounded"])
    sheet.print()


if __name__ == "__main__":
    main()
