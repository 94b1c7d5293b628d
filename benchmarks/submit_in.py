"""How soon after the commit of the caller's transaction does a task start, in the same process?

`submit_in` through a `sqlite3` connection, one task at a time, beside `enqueue` of the same persisted task.
"""

import asyncio
import sqlite3
import time
from contextlib import closing

from _sheet import Options, Sheet, database, interleaved, parse_options, percentile

from taskmanager import TaskManager

SETTLE_S = 0.02


async def measure(options: Options, count: int, is_submitted: bool) -> list[float]:
    """Milliseconds from the commit, or from `enqueue`, to the first line of the task."""
    started_at = 0.0
    started = asyncio.Event()

    async def work() -> None:
        nonlocal started_at
        started_at = time.perf_counter()
        started.set()

    with database(options) as path:
        manager = TaskManager(path)
        task = manager.task(name="work", persist=True)(work)
        async with manager:
            with closing(sqlite3.connect(path, isolation_level=None)) as connection:
                latencies = []
                for _ in range(count):
                    started.clear()
                    if is_submitted:
                        connection.execute("BEGIN IMMEDIATE")
                        manager.submit_in(connection, task)
                        connection.execute("COMMIT")
                        began = time.perf_counter()
                    else:
                        began = time.perf_counter()
                        task.enqueue()
                    await started.wait()
                    latencies.append((started_at - began) * 1000)
                    await asyncio.sleep(SETTLE_S)
    return latencies


def main() -> None:
    """Print the table."""
    options = parse_options(__doc__)
    count = options.size(200, 30)
    runs = interleaved(
        {
            "submit_in": lambda: asyncio.run(measure(options, count, True)),
            "enqueue": lambda: asyncio.run(measure(options, count, False)),
        },
        options.repetitions,
    )
    sheet = Sheet(__doc__, options)
    for name, target in (("submit_in", "< 10"), ("enqueue", "")):
        for percent in (50, 95, 99):
            sheet.add(
                f"{name}, {percent}th percentile",
                [percentile(each, percent) for each in runs[name]],
                "ms",
                target=target,
            )
    sheet.print()


if __name__ == "__main__":
    main()
