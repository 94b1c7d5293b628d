"""How many times per second can a caller enqueue and wait until the task is committed, at full sync?

`await handle.saved()` returns when the task survives SIGKILL and power loss. One caller waits for each commit by
itself; 100 callers share commits. Beside the bare TaskGroup, which saves nothing, stands what one caller of plain
`sqlite3` gets: one row, one commit, on the same filesystem.
"""

import asyncio
import sqlite3
import time
from pathlib import Path

from _sheet import (
    Options,
    Sheet,
    bare_bounded,
    bare_rate,
    bare_unbounded,
    database,
    interleaved,
    no_op,
    parse_options,
)

from taskmanager import TaskManager

CALLERS = 100


async def measure(path: Path, callers: int, count: int) -> float:
    """Saved tasks per second, by `callers` at the same time."""
    manager = TaskManager(path)
    noop = manager.task(name="noop", persist=True)(no_op)

    async def caller() -> None:
        for _ in range(count // callers):
            await noop.enqueue().saved()

    async with manager:
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(caller())
        took_s = time.perf_counter() - began
        await manager.join()
    return count / took_s


def plain_commits(options: Options, count: int) -> float:
    """Rows per second that plain `sqlite3` commits, each by itself."""
    with database(options) as path:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, text TEXT) STRICT")
        began = time.perf_counter()
        for number in range(count):
            connection.execute("INSERT INTO rows VALUES (?, 'noop')", (number,))
        took_s = time.perf_counter() - began
        connection.close()
    return count / took_s


def main() -> None:
    """Print the table."""
    options = parse_options(__doc__)
    few, many = options.size(3_000, 500), options.size(30_000, 5_000)

    def library(callers: int, count: int) -> float:
        with database(options) as path:
            return asyncio.run(measure(path, callers, count))

    found = interleaved(
        {
            "one": lambda: library(1, few),
            "hundred": lambda: library(CALLERS, many),
            "plain": lambda: plain_commits(options, few),
            "bounded": lambda: bare_rate(bare_bounded, many).per_s,
            "unbounded": lambda: bare_rate(bare_unbounded, many).per_s,
        },
        options.repetitions,
    )
    bare = found["bounded"]
    sheet = Sheet(__doc__, options)
    sheet.add(f"1 caller, {few:,} tasks", found["one"], "saved/s", target=">= 2,500", bare=bare)
    sheet.add(f"{CALLERS} callers, {many:,} tasks", found["hundred"], "saved/s", target=">= 30,000", bare=bare)
    sheet.add("plain sqlite3, a commit per row", found["plain"], "commits/s", bare=bare)
    sheet.add("bare TaskGroup, 100 at a time", bare, "tasks/s", bare=bare)
    sheet.add("bare TaskGroup, unbounded", found["unbounded"], "tasks/s", bare=bare)
    sheet.print()


if __name__ == "__main__":
    main()
