"""How long does a sweep of old records hold up those who write meanwhile?

A file with many ended tasks of last month, each with an attempt: the sweep of the start deletes them all, and the file
shrinks. Beside it, every 10 ms, a program with a plain `sqlite3` connection commits a row to a table of its own, and a
task of the manager is saved. The same without anything to delete is the comparison.
"""

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from _harness import (
    Figures,
    Line,
    Options,
    database,
    finish_part,
    make_history,
    no_op,
    percentile,
    prepared,
    run,
    start_part,
)

from taskmanager import TaskManager

COUNT = (200_000, 20_000)
AGE_US = 31 * 24 * 3_600_000_000
BETWEEN_S = 0.01
QUIET_S = 8.0
"""How long is measured where there is nothing to delete."""


def build(path: Path, count: int) -> None:
    """A file with the history of last month, and a table of the application."""
    make_history(path, count, age_us=AGE_US)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE orders (at REAL)")


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
    task = manager.task(name="work", persist=True)(no_op)
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
            (left,) = connection.execute("SELECT count(*) FROM taskmanager_tasks WHERE task_name <> 'work'").fetchone()
            return not left and connection.execute("PRAGMA freelist_count").fetchone() == (0,)

    return passed_s > QUIET_S if not count else await asyncio.to_thread(look)


def measure(options: Options, size: tuple[int, int]) -> Figures:
    """One manager and one other program, each in its process, on a copy of the file."""
    count = options.size(*size)
    with database(options, copy_of=prepared(options, f"old {count}", lambda path: build(path, count))) as path:
        other = start_part(__file__, options, "orders", path)
        found = asyncio.run(sweep(path, count))
        found |= finish_part(other)
    longest = {f"{who} {percent}": percentile(found[who], percent) for who in WHO for percent in PERCENTS}
    return {"took_s": found["took_s"], **longest}


def orders(options: Options) -> dict[str, Any]:
    """The other program."""
    return {"orders": write_orders(Path(options.given))}


WHO = {"orders": "commit of another program", "saved": "saved() of the manager"}
PERCENTS = {50: "median", 99: "p99", 100: "the longest"}
PARTS = {
    "sweep": lambda options: measure(options, COUNT),
    "quiet": lambda options: measure(options, (0, 0)),
    "orders": orders,
}
LINES = [
    Line(f"to delete {COUNT[0]:,} tasks and shrink the file", "sweep", "took_s", "s"),
    *(
        Line(f"{what}: {name} / without a sweep", "sweep", f"{who} {percent}", "ms", "quiet")
        for who, what in WHO.items()
        for percent, name in PERCENTS.items()
    ),
    *(Line(f"{what}: the longest", "sweep", f"{who} 100", "ms", must="<= 50") for who, what in WHO.items()),
]
NOTES = [f"With --quick {COUNT[1]:,} tasks."]

if __name__ == "__main__":
    run(__doc__, __file__, PARTS, LINES, NOTES)
