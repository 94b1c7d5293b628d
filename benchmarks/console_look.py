"""How long does one look take on a file with a million rows: of `taskmanager status`, and of `manager.console()`?

All of it is read from indexes in windows of time, except the counts by status. The command counts every row, which
reads one index from end to end; `console()` stands in the way of the loop, and stops at a cap. So it must be as quick
with a million failed tasks, as after a long outage, and with a million that wait.
"""

import asyncio
import io
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, redirect_stdout
from functools import partial
from pathlib import Path

from _harness import Figures, Line, Options, database, make_history, prepared, run
from rich.console import Console

from taskmanager import TaskManager
from taskmanager.cli.commands import cli

MANY, FEW = (1_000_000, 100_000), (1_000, 1_000)
LOOKS = 5
FAILED = "status = 'FAILED', completed_at = NULL, failed_at = sent_at, error_code = 'REFUSED'"
PENDING = "status = 'PENDING', completed_at = NULL, failed_at = NULL, error_code = NULL"


def history(options: Options, size: tuple[int, int], change: str = "") -> Path:
    """A file with ended tasks, all of which were changed."""

    def build(path: Path) -> None:
        make_history(path, options.size(*size))
        if change:
            with closing(sqlite3.connect(path)) as connection, connection:
                connection.execute(f"UPDATE taskmanager_tasks SET {change}")

    return prepared(options, f"{size} {change[:20]}", build)


def least_ms(look: Callable[[], object]) -> float:
    """The quickest of some looks, after one that fills the caches."""
    took_s = []
    for _ in range(LOOKS + 1):
        began = time.perf_counter()
        look()
        took_s.append(time.perf_counter() - began)
    return min(took_s[1:]) * 1000


def status(options: Options, size: tuple[int, int]) -> Figures:
    """The command, in this process."""
    arguments = ["status", "--db", str(history(options, size))]
    with redirect_stdout(io.StringIO()):
        return {"ms": least_ms(lambda: cli(arguments, standalone_mode=False))}


def console(options: Options, size: tuple[int, int], change: str = "") -> Figures:
    """The picture of a running manager."""
    screen = Console(file=io.StringIO(), width=120)

    async def main(path: Path) -> Figures:
        # The tasks wait as those of an application do whose functions this one does not know.
        async with TaskManager(path) as manager:
            return {"ms": least_ms(lambda: screen.print(manager.console()))}

    with database(options, copy_of=history(options, size, change)) as path:
        return asyncio.run(main(path))


PARTS = {
    "status": partial(status, size=MANY),
    "status, few": partial(status, size=FEW),
    "ended": partial(console, size=MANY),
    "failed": partial(console, size=MANY, change=FAILED),
    "waiting": partial(console, size=MANY, change=PENDING),
    "few": partial(console, size=FEW),
}
LINES = [
    Line(f"taskmanager status with {MANY[0]:,} ended / with {FEW[0]:,}", "status", "ms", "ms", "status, few"),
    *(
        Line(f"console() with {MANY[0]:,} {name}", name, "ms", "ms", must="<= 100")
        for name in ("ended", "failed", "waiting")
    ),
    Line(f"console() with {FEW[0]:,} ended", "few", "ms", "ms"),
]
NOTES = [f"With --quick {MANY[1]:,} instead of {MANY[0]:,}."]

if __name__ == "__main__":
    run(__doc__, __file__, PARTS, LINES, NOTES)
