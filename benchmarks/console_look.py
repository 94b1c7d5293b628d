"""How long does one look of `taskmanager status` take on a file with a long history?

All of it is read from indexes in windows of time, except the counts by status, which read one index from end to end.
"""

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from _harness import Sheet, database, parse_options

from taskmanager import TaskManager
from taskmanager.console.observer import look
from taskmanager.console.screens import status_lines
from taskmanager.model.clock import SystemClock
from taskmanager.store.sqlite.reading import open_read_only

ROWS_PER_S = 50
FAILED_EVERY = 50
NAMES = 20


async def make_tables(path: str) -> None:
    """An empty file of ours."""
    async with TaskManager(path):
        pass


def rows(count: int) -> Iterator[tuple[object, ...]]:
    """Ended tasks, the newest just now."""
    now = SystemClock().now_us()
    for number in range(count):
        at = now - (count - number) * 1_000_000 // ROWS_PER_S
        failed = number % FAILED_EVERY == 0
        status, code = ("FAILED", "REFUSED") if failed else ("COMPLETED", None)
        name = f"app.jobs:task_{number % NAMES}"
        yield f"{number:032x}", name, status, at, at, at, None if failed else at, at if failed else None, code, at, at


def fill(path: str, count: int) -> None:
    """As many ended tasks, each with its attempt."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(
            "INSERT INTO taskmanager_tasks (id, task_name, queue_name, priority, args, kwargs, status, sent_at,"
            " enqueued_at, started_at, completed_at, failed_at, error_code, start_count, created_at, updated_at)"
            " VALUES (?, ?, 'default', 50, '[]', '{}', ?, ?, ?, ?, ?, ?, ?, 1, ?, ?)",
            rows(count),
        )
        connection.execute(
            "INSERT INTO taskmanager_task_attempts (task_id, attempt, outcome, will_retry, started_at, finished_at,"
            " error_code, created_at) SELECT id, 1, status, 0, started_at, updated_at, error_code, created_at"
            " FROM taskmanager_tasks"
        )


def look_once(path: str) -> float:
    """Milliseconds from opening the file to the lines of the screen."""
    began = time.perf_counter()
    with open_read_only(path) as connection:
        picture = look(Path(path), connection, SystemClock())
    status_lines(picture, 120, 40)
    return (time.perf_counter() - began) * 1000


def main() -> None:
    """Print the table."""
    options = parse_options(__doc__)
    sheet = Sheet(__doc__, options)
    for count in (1_000, options.size(1_000_000, 100_000)):
        with database(options) as path:
            asyncio.run(make_tables(path))
            fill(path, count)
            look_once(path)
            times = [look_once(path) for _ in range(10)]
            sheet.add(f"one look at {count:,} ended tasks, {ROWS_PER_S} per second", times, "ms")
    sheet.print()


if __name__ == "__main__":
    main()
