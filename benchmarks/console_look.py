"""How long does one look take on a file with a million rows: of `taskmanager status`, and of `manager.console()`?

All of it is read from indexes in windows of time, except the counts by status. The command counts every row, which
reads one index from end to end; `console()` stands in the way of the loop, and stops at a cap.
"""

import asyncio
import io
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from _sheet import Sheet, database, parse_options
from rich.console import Console

from taskmanager import TaskManager
from taskmanager.console.observer import look
from taskmanager.console.terminal.screen import screen_lines
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
        overview = look(Path(path), connection, SystemClock())
    screen_lines(overview, 120, 40)
    return (time.perf_counter() - began) * 1000


async def console_times(path: str) -> list[float]:
    """Milliseconds that `manager.console()` takes on the loop, drawn."""
    manager, screen = TaskManager(path), Console(file=io.StringIO(), width=120)
    times = []
    async with manager:
        for _ in range(10):
            began = time.perf_counter()
            screen.print(manager.console())
            times.append((time.perf_counter() - began) * 1000)
    return times


def make_them(path: str, status: str) -> None:
    """Give all rows another status, as it is after a long outage, or while nobody knows their function."""
    ended = "sent_at, error_code = 'REFUSED'" if status == "FAILED" else "NULL, error_code = NULL"
    change = f"status = '{status}', completed_at = NULL, failed_at = {ended}"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE taskmanager_tasks SET {change}")


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
            sheet.add(
                f"console() with {count:,} ended tasks", asyncio.run(console_times(path)), "ms", target="<= 100 ms"
            )
            for status in ("FAILED", "PENDING"):
                make_them(path, status)
                times = asyncio.run(console_times(path))
                sheet.add(f"console() with {count:,} {status} tasks", times, "ms", target="<= 100 ms")
    sheet.print()


if __name__ == "__main__":
    main()
