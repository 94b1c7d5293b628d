"""How long does a start take with 100,000 ended and 10,000 pending tasks in the file?

From `start()` to the first line of the first task, and until all pending ones have run. The file is written once by the
library itself and copied for each run; imports are not counted (see import_time.py).
"""

import asyncio
import sqlite3
import time
from pathlib import Path

from _sheet import Sheet, bare_bounded, bare_unbounded, database, interleaved, no_op, parse_options

from taskmanager import TaskManager


async def build(path: Path, ended: int, pending: int) -> None:
    """A file with that many tasks of each kind."""
    manager = TaskManager(path)
    remembered = manager.task(name="remembered")(no_op)
    waiting = manager.task(name="waiting", persist=True)(no_op)
    async with manager:
        for _ in range(ended):
            remembered.enqueue()
        await manager.join()
        await manager.flush()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    for _ in range(pending):
        connection.execute(*manager.insert_statement(waiting))
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


async def measure(path: Path, pending: int) -> tuple[float, float]:
    """Seconds to the first task, and to the last."""
    manager = TaskManager(path)
    first_at = 0.0
    left = pending
    all_ran = asyncio.Event()

    async def waiting() -> None:
        nonlocal first_at, left
        first_at = first_at or time.perf_counter()
        left -= 1
        if not left:
            all_ran.set()

    manager.task(name="waiting", persist=True)(waiting)
    began = time.perf_counter()
    async with manager:
        await all_ran.wait()
        done_s = time.perf_counter() - began
    return first_at - began, done_s


async def measure_bare(pending: int, is_bounded: bool) -> tuple[float, float]:
    """The same number of tasks in a TaskGroup."""
    first_at = 0.0

    async def waiting() -> None:
        nonlocal first_at
        first_at = first_at or time.perf_counter()

    began = time.perf_counter()
    await (bare_bounded if is_bounded else bare_unbounded)(pending, waiting)
    return first_at - began, time.perf_counter() - began


def main() -> None:
    """Print the table."""
    options = parse_options(__doc__)
    ended, pending = options.size(100_000, 5_000), options.size(10_000, 1_000)
    with database(options) as built:
        asyncio.run(build(built, ended, pending))

        def library() -> tuple[float, float]:
            with database(options, copy_of=built) as path:
                return asyncio.run(measure(path, pending))

        found = interleaved(
            {
                "taskmanager": library,
                "bare TaskGroup, 100 at a time": lambda: asyncio.run(measure_bare(pending, True)),
                "bare TaskGroup, unbounded": lambda: asyncio.run(measure_bare(pending, False)),
            },
            options.repetitions,
        )
    sheet = Sheet(__doc__, options)
    targets = (("first task", "<= 0.15"), (f"all {pending:,} done", "<= 0.6"))
    for which, (name, target) in enumerate(targets):
        bare = [each[which] for each in found["bare TaskGroup, 100 at a time"]]
        for contender, runs in found.items():
            goal = target if contender == "taskmanager" else ""
            sheet.add(f"{name}, {contender}", [each[which] for each in runs], "s", target=goal, bare=bare)
    sheet.note(f"The file holds {ended:,} ended and {pending:,} pending tasks.")
    sheet.print()


if __name__ == "__main__":
    main()
