"""Does it stay as fast with a million ended tasks in the file, a million waiting ones, or ten thousand queues?

The same run on an empty file, on one with few waiting tasks, or over one queue is the comparison.
"""

import asyncio
import sqlite3
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import psutil
from _harness import Figures, Line, Options, Watch, database, make_history, no_op, prepared, run

from taskmanager import TaskManager

MANY = (1_000_000, 100_000)
FEW = 1_000
QUEUES = (10_000, 2_000)
COUNT = (10_000, 4_000)
WAITING_S = (4, 2)
WARM_UP = 300


async def measure(path: Path, count: int, *, persist: bool, queues: int = 1) -> Figures:
    """The rate of so many no-op tasks, over so many queues that have been used before."""
    manager = TaskManager(path)
    noop = manager.task(name="noop", persist=persist)(no_op)
    calls = [noop.with_options(queue_name=f"customer-{number}").enqueue for number in range(queues)]
    async with manager:
        for number in range(max(queues, WARM_UP)):
            calls[number % queues]()
        await manager.join()
        await manager.flush()
        watch = Watch()
        for number in range(count):
            calls[number % queues]()
        await manager.join()
        await manager.flush()
        return watch.figures(count)


def with_history(options: Options, history: tuple[int, int], *, persist: bool) -> Figures:
    """On a file with ended tasks, which is the same in all rounds."""
    ended = options.size(*history)
    path = prepared(options, f"history {ended} {persist}", lambda path: make_history(path, ended))
    return asyncio.run(measure(path, options.size(*COUNT), persist=persist))


def with_queues(options: Options, queues: tuple[int, int], *, persist: bool) -> Figures:
    """Over many queues."""
    with database(options) as path:
        return asyncio.run(measure(path, options.size(*COUNT), persist=persist, queues=options.size(*queues)))


def make_backlog(path: Path, count: int) -> None:
    """A file with so many free tasks, as programs leave it that submit into it."""
    make_history(path, 0)
    manager = TaskManager(path)
    sql, parameters = manager.insert_statement(manager.task(name="waiting", persist=True)(no_op))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(sql, ((f"{number:036d}", *parameters[1:]) for number in range(count)))


def with_backlog(options: Options, backlog: tuple[int, int]) -> Figures:
    """Start on a file with waiting tasks, and let them run for a while."""
    count = options.size(*backlog)
    built = prepared(options, f"backlog {count}", lambda path: make_backlog(path, count))

    async def main(path: Path) -> Figures:
        starts: list[float] = []

        async def waiting() -> None:
            starts.append(time.perf_counter())

        process, manager = psutil.Process(), TaskManager(path)
        manager.task(name="waiting", persist=True)(waiting)
        before, began = process.memory_info().rss, time.perf_counter()
        async with manager:
            for _ in range(options.size(*WAITING_S) * 50):
                await asyncio.sleep(0.02)
                if len(starts) == count:
                    break
            grown, stopping = process.memory_info().rss - before, time.perf_counter()
        return {
            "first_ms": (starts[0] - began) * 1000,
            "per_s": len(starts) / (starts[-1] - starts[0]),
            "mb": grown / 1e6,
            "stop_ms": (time.perf_counter() - stopping) * 1000,
        }

    with database(options, copy_of=built) as path:
        return asyncio.run(main(path))


NOTHING, ONE, SOME = (0, 0), (1, 1), (FEW, FEW)
PARTS = {
    **{
        f"{name} {kind}": partial(function, **{option: size}, persist=kind == "persisted")
        for kind in ("memory-only", "persisted")
        for name, function, option, size in (
            ("history", with_history, "history", MANY),
            ("no history", with_history, "history", NOTHING),
            ("queues", with_queues, "queues", QUEUES),
            ("one queue", with_queues, "queues", ONE),
        )
    },
    "backlog": partial(with_backlog, backlog=MANY),
    "few waiting": partial(with_backlog, backlog=SOME),
}
LINES = [
    *(
        line
        for kind in ("memory-only", "persisted")
        for line in (
            Line(f"{kind}: rate with {MANY[0]:,} ended / with none", f"history {kind}", "per_s", "/s",
                 f"no history {kind}", must=">= 0.95"),
            Line(f"{kind}: rate over {QUEUES[0]:,} queues / over one", f"queues {kind}", "per_s", "/s",
                 f"one queue {kind}", must=">= 0.9"),
        )
    ),
    Line(f"{MANY[0]:,} waiting: to the first / with {FEW:,}", "backlog", "first_ms", "ms", "few waiting"),
    Line(f"{MANY[0]:,} waiting: their rate / with {FEW:,}", "backlog", "per_s", "/s", "few waiting"),
    Line(f"{MANY[0]:,} waiting: memory above that before the start", "backlog", "mb", "MB"),
    Line(f"{MANY[0]:,} waiting: the stop", "backlog", "stop_ms", "ms"),
]  # fmt: skip
NOTES = [f"With --quick {MANY[1]:,} instead of {MANY[0]:,} tasks, and {QUEUES[1]:,} queues."]

if __name__ == "__main__":
    run(__doc__, __file__, PARTS, LINES, NOTES)
