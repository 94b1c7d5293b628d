"""What does a flush write when nothing is new, with 100,000 ended tasks in the file?

Nothing, it should be: `PRAGMA data_version` of a second connection, which counts the commits of all others, and the
size and time of the file and of its log are compared before and after.
"""

import asyncio
import sqlite3
import time
from pathlib import Path
from typing import NamedTuple

from _sheet import Sheet, bare_bounded, database, interleaved, no_op, parse_options

from taskmanager import TaskManager

FLUSHES = 1_000


class Traces(NamedTuple):
    """What a write would change."""

    data_version: int
    file_size: int
    file_time_ns: int
    log_size: int
    log_time_ns: int


class Found(NamedTuple):
    """What one run saw."""

    before: Traces
    after: Traces
    flush_us: float


def look(connection: sqlite3.Connection, path: Path) -> Traces:
    """Look at the file without touching it."""
    (version,) = connection.execute("PRAGMA data_version").fetchone()
    file, log = path.stat(), path.with_name(path.name + "-wal").stat()
    return Traces(version, file.st_size, file.st_mtime_ns, log.st_size, log.st_mtime_ns)


async def build(path: Path, ended: int) -> None:
    """A file with history."""
    manager = TaskManager(path)
    noop = manager.task(name="noop")(no_op)
    async with manager:
        for _ in range(ended):
            noop.enqueue()
        await manager.join()


async def measure(path: Path) -> Found:
    """Flush again and again after one task has run."""
    manager = TaskManager(path)
    noop = manager.task(name="noop")(no_op)
    async with manager:
        await noop.enqueue()
        await manager.flush()
        # The writer puts the log back into the file when it is idle: let that pass, it belongs to the task above.
        await asyncio.sleep(0.5)
        other = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        before = look(other, path)
        began = time.perf_counter()
        for _ in range(FLUSHES):
            await manager.flush()
        flush_us = (time.perf_counter() - began) / FLUSHES * 1e6
        # A write that the flush left to somebody else would come now.
        await asyncio.sleep(0.2)
        after = look(other, path)
        other.close()
    return Found(before, after, flush_us)


async def bare_wait() -> float:
    """An empty TaskGroup, entered and left: µs each."""
    began = time.perf_counter()
    for _ in range(FLUSHES):
        await bare_bounded(0)
    return (time.perf_counter() - began) / FLUSHES * 1e6


def main() -> None:
    """Print the table."""
    options = parse_options(__doc__)
    ended = options.size(100_000, 5_000)
    with database(options) as built:
        asyncio.run(build(built, ended))

        def library() -> Found:
            with database(options, copy_of=built) as path:
                return asyncio.run(measure(path))

        bare: list[float] = []

        def turn() -> Found:
            bare.append(asyncio.run(bare_wait()))
            return library()

        runs = interleaved({"library": turn}, options.repetitions)["library"]
    sheet = Sheet(__doc__, options)
    for number, name in enumerate(Traces._fields):
        changed = sum(each.before[number] != each.after[number] for each in runs)
        sheet.fact(f"runs in which {name} changed", f"{changed} of {len(runs)}", target="0")
    sheet.add("a flush with nothing new", [each.flush_us for each in runs], "µs", bare=bare)
    sheet.add("an empty bare TaskGroup", bare, "µs", bare=bare)
    sheet.note(f"{FLUSHES:,} flushes per run, {ended:,} ended tasks in the file.")
    sheet.print()


if __name__ == "__main__":
    main()
