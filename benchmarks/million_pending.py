"""What do a million pending tasks in the file cost: time to the first task, memory, and the pace at which they run?

The same file with a hundred pending tasks is the comparison. Each run is a fresh process on a copy of the file; of the
million, it runs as many as it can in some seconds.
"""

import asyncio
import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import psutil
from _sheet import Options, Sheet, database, interleaved, no_op, parse_options, run_child

from taskmanager import TaskManager

FEW = 100
BUILD_PAGE = 50_000
_MB = 1024 * 1024


async def build(path: Path, pending: int) -> None:
    """A file with that many free tasks, as a backlog looks."""
    manager = TaskManager(path)
    waiting = manager.task(name="waiting", persist=True)(no_op)
    async with manager:
        pass
    sql, parameters = manager.insert_statement(waiting)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for start in range(0, pending, BUILD_PAGE):
            page = range(start, min(start + BUILD_PAGE, pending))
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(sql, ((f"{number:036d}", *parameters[1:]) for number in page))
            connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


async def measure(path: Path, seconds: float) -> dict[str, float]:
    """Start on it, and let it run for a while."""
    process = psutil.Process()
    manager = TaskManager(path)
    first_at = 0.0
    ran = 0

    async def waiting() -> None:
        nonlocal first_at, ran
        first_at = first_at or time.perf_counter()
        ran += 1

    manager.task(name="waiting", persist=True)(waiting)
    before = process.memory_info().rss
    most = before
    began = time.perf_counter()
    async with manager:
        started_s = time.perf_counter() - began
        while time.perf_counter() - began < seconds:
            await asyncio.sleep(0.05)
            most = max(most, process.memory_info().rss)
        pace, first_s = ran / (time.perf_counter() - first_at), first_at - began
        stopping = time.perf_counter()
    return {
        "start_s": started_s,
        "first_s": first_s,
        "memory_mb": (most - before) / _MB,
        "per_s": pace,
        "stop_s": time.perf_counter() - stopping,
    }


def main() -> None:
    """Print the table, or be one of the fresh processes."""
    options = parse_options(__doc__)
    many, seconds = options.size(1_000_000, 20_000), options.size(5, 2)
    if options.child is not None:
        print(json.dumps(asyncio.run(measure(Path(options.child), seconds))))
        return
    with database(options) as large, database(options) as small:
        asyncio.run(build(large, many))
        asyncio.run(build(small, FEW))
        runs = interleaved(
            {"many": lambda: run(options, large), "few": lambda: run(options, small)}, options.repetitions
        )
        size_mb = large.stat().st_size / _MB
    sheet = Sheet(__doc__, options)
    sheet.fact("size of the file", f"{size_mb:,.0f} MB")
    for name, count in (("many", many), ("few", FEW)):
        one = runs[name]
        sheet.add(f"{count:,} pending: start() takes", [each["start_s"] for each in one], "s")
        sheet.add(f"{count:,} pending: to the first task", [each["first_s"] for each in one], "s")
        sheet.add(f"{count:,} pending: memory above that before the start", [each["memory_mb"] for each in one], "MB")
        sheet.add(f"{count:,} pending: stop() takes", [each["stop_s"] for each in one], "s")
    sheet.add("pace from a backlog", [each["per_s"] for each in runs["many"]], "tasks/s")
    sheet.print()


def run(options: Options, built: Path) -> dict[str, float]:
    """One fresh process on a copy of the file."""
    with database(options, copy_of=built) as path:
        return run_child(__file__, options, str(path))


if __name__ == "__main__":
    main()
