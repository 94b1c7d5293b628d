"""How many no-op tasks per second run memory-only, their history reaching the file?

All tasks are enqueued at once. The clock stops when `flush()` has returned: every task has run and its record is in
SQLite. "in memory" is the same without a file, and "until done" stops at `join()`, before the last history is written.
"""

import asyncio
import time
from pathlib import Path

from _harness import Sheet, bare_bounded, bare_rate, bare_unbounded, database, interleaved, no_op, parse_options

from taskmanager import TaskManager


async def measure(path: Path | None, count: int) -> tuple[float, float]:
    """Tasks per second until all are done, and until all are in the file."""
    manager = TaskManager(path)
    noop = manager.task(name="noop")(no_op)
    async with manager:
        began = time.perf_counter()
        for _ in range(count):
            noop.enqueue()
        await manager.join()
        done_s = time.perf_counter() - began
        await manager.flush()
        return count / done_s, count / (time.perf_counter() - began)


def main() -> None:
    """Print the table."""
    options = parse_options(__doc__)
    count = options.size(100_000, 10_000)

    def library() -> tuple[float, float]:
        with database(options) as path:
            return asyncio.run(measure(path, count))

    found = interleaved(
        {
            "library": library,
            "in memory": lambda: asyncio.run(measure(None, count)),
            "bounded": lambda: (0.0, bare_rate(bare_bounded, count)),
            "unbounded": lambda: (0.0, bare_rate(bare_unbounded, count)),
        },
        options.repetitions,
    )
    flushed = {name: [rate for _, rate in pairs] for name, pairs in found.items()}
    bare = flushed["bounded"]
    sheet = Sheet(__doc__, options)
    target = ">= 40,000 and >= 1/6 of bare"
    sheet.add(f"taskmanager, {count:,} tasks until flushed", flushed["library"], "tasks/s", target=target, bare=bare)
    sheet.add("taskmanager, until done", [rate for rate, _ in found["library"]], "tasks/s", bare=bare)
    sheet.add("taskmanager, in memory (no file)", flushed["in memory"], "tasks/s", bare=bare)
    sheet.add("bare TaskGroup, 100 at a time", bare, "tasks/s", bare=bare)
    sheet.add("bare TaskGroup, unbounded", flushed["unbounded"], "tasks/s", bare=bare)
    sheet.print()


if __name__ == "__main__":
    main()
