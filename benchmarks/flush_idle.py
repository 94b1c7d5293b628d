"""What does a flush write when nothing is new?

Nothing, it should be: `PRAGMA data_version` of a second connection, which counts the commits of all others, and the
size and time of the file and of its log are compared before and after.
"""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from _harness import Figures, Line, Options, Watch, database, make_history, no_op, prepared, run

from taskmanager import TaskManager

FLUSHES = 1_000
ENDED = (100_000, 5_000)
QUIET_S = 2.0
"""The writer puts the log back into the file when it is idle: that belongs to the task before."""


def traces(connection: sqlite3.Connection, path: Path) -> list[int]:
    """What a write would change, looked at without touching it."""
    (version,) = connection.execute("PRAGMA data_version").fetchone()
    file, log = path.stat(), path.with_name(path.name + "-wal").stat()
    return [version, file.st_size, file.st_mtime_ns, log.st_size, log.st_mtime_ns]


def library(options: Options) -> Figures:
    """Flush again and again after one task has run."""

    async def main(path: Path) -> Figures:
        manager = TaskManager(path)
        noop = manager.task(name="noop")(no_op)
        async with manager:
            await noop.enqueue()
            await manager.flush()
            await asyncio.sleep(QUIET_S)
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as other:
                before, watch = traces(other, path), Watch()
                for _ in range(FLUSHES):
                    await manager.flush()
                figures = watch.figures(FLUSHES)
                await asyncio.sleep(QUIET_S)  # a write that a flush left to somebody else would come now
                changes = sum(one != other for one, other in zip(before, traces(other, path), strict=True))
        return {**figures, "changes": changes}

    built = prepared(options, "history", lambda path: make_history(path, options.size(*ENDED)))
    with database(options, copy_of=built) as path:
        return asyncio.run(main(path))


LINES = [
    Line(f"traces of {FLUSHES:,} flushes with nothing new", "library", "changes", "changes", must="<= 0"),
    Line("a flush with nothing new", "library", "process_us", "µs"),
]
NOTES = [f"{ENDED[0]:,} ended tasks are in the file; with --quick {ENDED[1]:,}."]

if __name__ == "__main__":
    run(__doc__, __file__, {"library": library}, LINES, NOTES)
