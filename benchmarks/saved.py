"""How long does a caller wait until its task is committed at full sync, and how many commits can many callers share?

`await handle.saved()` returns when the task survives SIGKILL and power loss. One caller at a time is compared with the
same work without an engine: one transaction in a thread, with one way there and back, that inserts the row of a task
which starts and writes the end of the one before. And with the least that anybody could do: the insert of a row into a
table of two columns. A hundred callers are compared with plain `sqlite3` in a loop, a commit for each row.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

from _harness import Figures, Line, Options, Watch, database, no_op, percentile, run

from taskmanager import TaskManager

CALLERS = 100
ALONE, TOGETHER = (2_000, 400), (20_000, 4_000)
"""Tasks of one caller and of all callers, in full and quickly."""
WARM_UP = 50

START = """
INSERT INTO taskmanager_tasks (id, task_name, queue_name, priority, args, kwargs, status, sent_at, enqueued_at,
    claimed_by_worker_id, started_at, retry_count, max_retries, start_count, crash_count, snooze_count, task_options,
    worker_pid, worker_hostname, worker_process_name, is_workflow_task, created_at, updated_at)
VALUES (?1, 'noop', 'default', 50, '[]', '{}', 'RUNNING', ?2, ?2, 'me', ?2, 0, 0, 1, 0, 0, '{"persist":true}', 1,
    'here', 'MainProcess', 0, ?2, ?2)
"""
END = """
UPDATE taskmanager_tasks SET status = 'COMPLETED', completed_at = ?2, updated_at = ?2, result = '{"ok":null}'
WHERE id = ?1 AND status = 'RUNNING' AND claimed_by_worker_id IS 'me' AND start_count = 1
"""

Work = Callable[[sqlite3.Connection, int], None]


async def make_tables(path: Path) -> None:
    """The product's own tables, with all their indexes."""
    async with TaskManager(path):
        pass


def connect(path: Path) -> sqlite3.Connection:
    """A connection with the settings of the store."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE plain (id INTEGER PRIMARY KEY, text TEXT) STRICT")
    return connection


def own_statements(connection: sqlite3.Connection, number: int) -> None:
    """Insert a task that starts, and end the one before."""
    at = time.time_ns() // 1000
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(START, (f"{number:036d}", at))
    connection.execute(END, (f"{number - 1:036d}", at))
    connection.execute("COMMIT")


def plain_insert(connection: sqlite3.Connection, number: int) -> None:
    """Insert a row."""
    connection.execute("INSERT INTO plain VALUES (?, 'noop')", (number,))


def figures(watch: Watch, took_s: list[float]) -> Figures:
    """The median of the waits, and the rate of all."""
    return {**watch.figures(len(took_s)), "median_us": percentile(took_s, 50) * 1e6}


def library(options: Options, callers: int, size: tuple[int, int]) -> Figures:
    """So many callers, each of which waits for each of its tasks."""
    count, took_s = options.size(*size), list[float]()

    async def main(path: Path) -> Figures:
        manager = TaskManager(path)
        noop = manager.task(name="noop", persist=True)(no_op)

        async def caller() -> None:
            for _ in range(count // callers):
                began = time.perf_counter()
                await noop.enqueue().saved()
                took_s.append(time.perf_counter() - began)

        async with manager:
            for _ in range(WARM_UP):
                await noop.enqueue().saved()
            watch = Watch()
            async with asyncio.TaskGroup() as group:
                for _ in range(callers):
                    group.create_task(caller())
            return figures(watch, took_s)

    with database(options) as path:
        return asyncio.run(main(path))


def hopping(options: Options, work: Work) -> Figures:
    """One caller without an engine: each time one way to a thread and back."""
    took_s = list[float]()

    async def main(path: Path) -> Figures:
        await make_tables(path)
        loop = asyncio.get_running_loop()
        with closing(connect(path)) as connection, ThreadPoolExecutor(1) as thread:
            watch = Watch()
            for number in range(options.size(*ALONE) + WARM_UP):
                if number == WARM_UP:
                    watch = Watch()
                    took_s.clear()
                began = time.perf_counter()
                await loop.run_in_executor(thread, work, connection, number)
                took_s.append(time.perf_counter() - began)
            return figures(watch, took_s)

    with database(options) as path:
        return asyncio.run(main(path))


def plain(options: Options) -> Figures:
    """A commit for each row, in the thread that asks."""
    count = options.size(*ALONE)
    with database(options) as path, closing(connect(path)) as connection:
        watch = Watch()
        for number in range(count):
            plain_insert(connection, number)
        return watch.figures(count)


PARTS = {
    "one": partial(library, callers=1, size=ALONE),
    "hundred": partial(library, callers=CALLERS, size=TOGETHER),
    "own statements": partial(hopping, work=own_statements),
    "insert": partial(hopping, work=plain_insert),
    "plain": plain,
}
LINES = [
    Line("saved(), 1 caller: median / its own two statements, one hop", "one", "median_us", "µs", "own statements",
         must="<= 1.5", wish="<= 1.25"),
    Line("saved(), 1 caller: median / a plain INSERT, one hop", "one", "median_us", "µs", "insert", must="<= 2.1"),
    Line("saved(), 100 callers: rate / one plain commit per row", "hundred", "per_s", "/s", "plain",
         must=">= 2", wish=">= 4"),
]  # fmt: skip

if __name__ == "__main__":
    run(__doc__, __file__, PARTS, LINES)
