"""How many steps can a hundred tasks finish at full sync, and what does a task pay that calls none?

Each task runs twenty steps one after the other, and goes on when the record of each is committed. Tasks that run at
the same time share a commit, so the rate is compared with plain `sqlite3` in a loop, one commit for each row.
"""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from _harness import Figures, Line, Options, Watch, database, no_op, run

from taskmanager import TaskManager, step

TASKS, STEPS = 100, 20
ROUNDS, PLAIN = (20, 3), (2_000, 400)
"""How often so many tasks run, and plain commits, in full and quickly."""


def hundred(options: Options) -> Figures:
    """So many tasks at a time, each of twenty steps."""
    rounds = options.size(*ROUNDS)

    async def main(path: Path) -> Figures:
        manager = TaskManager(path, concurrency=TASKS)

        @manager.task(name="job", persist=True)
        async def job() -> None:
            for _ in range(STEPS):
                await step(no_op)

        async with manager:
            await job.enqueue()
            watch = Watch()
            for _ in range(rounds):
                await asyncio.gather(*[job.enqueue() for _ in range(TASKS)])
            return watch.figures(rounds * TASKS * STEPS)

    with database(options) as path:
        return asyncio.run(main(path))


def alone(options: Options) -> Figures:
    """One task, whose steps have no commit to share."""
    count = options.size(*PLAIN)

    async def main(path: Path) -> Figures:
        manager = TaskManager(path)

        @manager.task(name="job", persist=True)
        async def job() -> None:
            for _ in range(count):
                await step(no_op)

        async with manager:
            watch = Watch()
            await job.enqueue()
            return watch.figures(count)

    with database(options) as path:
        return asyncio.run(main(path))


def plain(options: Options) -> Figures:
    """A commit for each row, in the thread that asks."""
    with database(options) as path, closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE plain (id INTEGER PRIMARY KEY, text TEXT) STRICT")
        watch = Watch()
        for number in range(options.size(*PLAIN)):
            connection.execute("INSERT INTO plain VALUES (?, 'noop')", (number,))
        return watch.figures(options.size(*PLAIN))


PARTS = {"hundred": hundred, "alone": alone, "plain": plain}
LINES = [
    Line("steps of 100 tasks", "hundred", "per_s", "/s", must=">= 2000"),
    Line("steps of 100 tasks: rate / one plain commit per row", "hundred", "per_s", "/s", "plain"),
    Line("steps of one task: rate / one plain commit per row", "alone", "per_s", "/s", "plain"),
]

if __name__ == "__main__":
    run(__doc__, __file__, PARTS, LINES)
