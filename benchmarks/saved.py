"""How long does a caller wait until its task is committed at full sync, and how many commits can many callers share?

`await handle.saved()` returns when the task survives SIGKILL and power loss. One caller at a time is compared with the
same work without an engine: one transaction in a thread, with one way there and back, that inserts the row of a task
which starts and writes the end of the one before. And with the least that anybody could do: the insert of a row into a
table of two columns. The three take turns in one process, a few calls each, since a disk is seldom as quick for long. A
hundred callers are compared with plain `sqlite3` in a loop, a commit for each row.
"""

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from pathlib import Path

from _harness import Figures, Line, Options, Watch, database, no_op, percentile, run

from taskmanager import TaskManager

CALLERS = 100
ALONE, TOGETHER, PLAIN = (1_000, 200), (20_000, 4_000), (2_000, 400)
"""Tasks of one caller, of all callers, and plain commits, in full and quickly."""
AT_A_TIME = 20

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


class Caller:
    """Calls one thing again and again, and notes how long each call took."""

    def __init__(self, call: Callable[[], Awaitable[object]]) -> None:
        self._call = call
        self.took_us: list[float] = []
        self.process_us = 0.0

    async def go_on(self) -> None:
        """Call it a few times."""
        before_s = time.process_time()
        for _ in range(AT_A_TIME):
            began = time.perf_counter()
            await self._call()
            self.took_us.append((time.perf_counter() - began) * 1e6)
        self.process_us += (time.process_time() - before_s) * 1e6

    def figures(self, name: str) -> Figures:
        """The medians of all but the first calls, and the processor time of one."""
        took_us = self.took_us[AT_A_TIME:]
        return {f"{name}_us": percentile(took_us, 50), f"{name}_cpu_us": self.process_us / len(self.took_us)}


def one(options: Options) -> Figures:
    """One caller of each kind, in turns."""

    async def main(path: Path, others: Path) -> Figures:
        await make_tables(others)
        manager, loop = TaskManager(path), asyncio.get_running_loop()
        noop = manager.task(name="noop", persist=True)(no_op)
        numbers = count()
        with closing(connect(others)) as connection, ThreadPoolExecutor(1) as thread:

            def hop(work: Work) -> Awaitable[None]:
                return loop.run_in_executor(thread, work, connection, next(numbers))

            callers = {
                "saved": Caller(lambda: noop.enqueue().saved()),
                "own": Caller(lambda: hop(own_statements)),
                "insert": Caller(lambda: hop(plain_insert)),
            }
            async with manager:
                for _ in range(options.size(*ALONE) // AT_A_TIME + 1):
                    for caller in callers.values():
                        await caller.go_on()
                        await manager.flush()
        return {key: value for name, caller in callers.items() for key, value in caller.figures(name).items()}

    with database(options) as path, database(options) as others:
        return asyncio.run(main(path, others))


def hundred(options: Options) -> Figures:
    """So many callers, each of which waits for each of its tasks."""
    tasks = options.size(*TOGETHER)

    async def main(path: Path) -> Figures:
        manager = TaskManager(path)
        noop = manager.task(name="noop", persist=True)(no_op)

        async def caller() -> None:
            for _ in range(tasks // CALLERS):
                await noop.enqueue().saved()

        async with manager:
            await noop.enqueue().saved()
            watch = Watch()
            async with asyncio.TaskGroup() as group:
                for _ in range(CALLERS):
                    group.create_task(caller())
            return watch.figures(tasks)

    with database(options) as path:
        return asyncio.run(main(path))


def plain(options: Options) -> Figures:
    """A commit for each row, in the thread that asks."""
    with database(options) as path, closing(connect(path)) as connection:
        watch = Watch()
        for number in range(options.size(*PLAIN)):
            plain_insert(connection, number)
        return watch.figures(options.size(*PLAIN))


PARTS = {"one": one, "hundred": hundred, "plain": plain}
LINES = [
    Line("saved(), 1 caller: median / its own two statements, one hop", "one", "saved_us", "µs", "one", "own_us",
         must="<= 1.5", wish="<= 1.25"),
    Line("saved(), 1 caller: CPU / its own two statements, one hop", "one", "saved_cpu_us", "µs", "one", "own_cpu_us"),
    Line("saved(), 1 caller: median / a plain INSERT, one hop", "one", "saved_us", "µs", "one", "insert_us",
         must="<= 2.1"),
    Line("saved(), 100 callers: rate / one plain commit per row", "hundred", "per_s", "/s", "plain",
         must=">= 2", wish=">= 4"),
]  # fmt: skip

if __name__ == "__main__":
    run(__doc__, __file__, PARTS, LINES)
