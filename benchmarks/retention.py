"""How long does a sweep of old records hold up those who write meanwhile?

A file with many ended tasks of last month, each with an attempt: the sweep of the start deletes them all, and the file
shrinks. Beside it, every 10 ms, a program with a plain `sqlite3` connection commits a row to a table of its own, and a
task of the manager is saved. The same without anything to delete is the comparison.
"""

import asyncio
import json
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from _sheet import Options, Sheet, database, finish_child, interleaved, parse_options, percentile, start_child

from taskmanager import TaskManager

AGE_US = 31 * 24 * 3_600_000_000
BETWEEN_S = 0.01
QUIET_S = 8.0
"""How long is measured where there is nothing to delete."""

TASKS = """
WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < :count)
INSERT INTO taskmanager_tasks (id, task_name, queue_name, priority, args, kwargs, status, sent_at, enqueued_at,
    started_at, completed_at, result, start_count, task_options, created_at, updated_at)
SELECT printf('%036d', n), 'old', 'default', 50, '[]', '{}', 'COMPLETED', :at + n, :at + n,
    :at + n, :at + n, '{"ok":null}', 1, '{"persist":true}', :at + n, :at + n FROM number
"""
ATTEMPTS = """
INSERT INTO taskmanager_task_attempts (task_id, attempt, outcome, will_retry, started_at, finished_at, created_at)
SELECT id, 1, 'COMPLETED', 0, sent_at, sent_at, sent_at FROM taskmanager_tasks
"""


async def build(path: Path, count: int) -> None:
    """A file with the history of last month, and a table of the application."""
    async with TaskManager(path):
        pass
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE orders (at REAL)")
        if count:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(TASKS, {"count": count, "at": time.time_ns() // 1000 - AGE_US})
            connection.execute(ATTEMPTS)
            connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def write_orders(path: Path) -> list[float]:
    """What a program of somebody else waits for each of its commits, in ms, until it is told to stop."""
    found = []
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        while not path.with_suffix(".stop").exists():
            began = time.perf_counter()
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO orders VALUES (?)", (began,))
            connection.execute("COMMIT")
            found.append((time.perf_counter() - began) * 1000)
            time.sleep(BETWEEN_S)
    return found


async def sweep(path: Path, count: int) -> dict[str, Any]:
    """A manager whose first sweep deletes; what its own callers wait for `saved()`, in ms."""
    manager = TaskManager(path)

    async def work() -> None:
        pass

    task = manager.task(name="work", persist=True)(work)
    saved, began = [], time.perf_counter()
    async with manager:
        while not await is_done(path, count, time.perf_counter() - began):
            for _ in range(20):
                asked = time.perf_counter()
                await task.enqueue().saved()
                saved.append((time.perf_counter() - asked) * 1000)
                await asyncio.sleep(BETWEEN_S)
        took_s = time.perf_counter() - began
    path.with_suffix(".stop").touch()
    return {"saved": saved, "took_s": took_s}


async def is_done(path: Path, count: int, passed_s: float) -> bool:
    """Whether the history is gone, and its space given back."""

    def look() -> bool:
        with closing(sqlite3.connect(path)) as connection:
            (left,) = connection.execute("SELECT count(*) FROM taskmanager_tasks WHERE task_name = 'old'").fetchone()
            return not left and connection.execute("PRAGMA freelist_count").fetchone() == (0,)

    return passed_s > QUIET_S if not count else await asyncio.to_thread(look)


def measure(options: Options, built: Path, count: int) -> dict[str, Any]:
    """One manager and one other program, each in its process, on a copy of the file."""
    with database(options, copy_of=built) as path:
        with path.open("rb") as copied:
            os.fsync(copied.fileno())  # or the first checkpoint would wait for the whole copy
        other = start_child(__file__, options, f"orders 0 {path}")
        found = finish_child(start_child(__file__, options, f"sweep {count} {path}"))
        return found | finish_child(other)


def main() -> None:
    """Print the table, or be one of the processes."""
    options = parse_options(__doc__)
    if options.child is not None:
        role, number, path = options.child.split(" ", 2)
        orders = role == "orders"
        found = {"orders": write_orders(Path(path))} if orders else asyncio.run(sweep(Path(path), int(number)))
        print(json.dumps(found))
        return
    count = options.size(200_000, 20_000)
    with database(options) as full, database(options) as empty:
        asyncio.run(build(full, count))
        asyncio.run(build(empty, 0))
        runs = interleaved(
            {"sweep": lambda: measure(options, full, count), "quiet": lambda: measure(options, empty, 0)},
            options.repetitions,
        )
    sheet = Sheet(__doc__, options)
    sheet.add(f"to delete {count:,} tasks and shrink the file", [each["took_s"] for each in runs["sweep"]], "s")
    for who, what in (("orders", "commit of another program"), ("saved", "saved() of the manager")):
        for percent in (50, 99, 100):
            here, quiet = ([percentile(each[who], percent) for each in runs[name]] for name in ("sweep", "quiet"))
            name = "the longest" if percent == 100 else f"{percent}th percentile"
            sheet.add(f"{what}, {name}", here, "ms", target="< 50" if percent == 100 else "", bare=quiet)
    sheet.note("The last column compares with the same where nothing is deleted.")
    sheet.print()


if __name__ == "__main__":
    main()
