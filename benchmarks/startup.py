"""How soon does a process work that was started on a file with the tasks of a killed one, and with much history?

From the spawn of the process to the first line of the first of those tasks, and to that of the last, imports included.
The comparison is `python -c "import asyncio, sqlite3"`, from its spawn to the end of its imports. All of it is loaded
from byte code. The processor time of `import taskmanager` is measured alone, too, in units of `import asyncio, sqlite3`
before it.
"""

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

from _harness import Figures, Line, Options, database, environment, make_history, prepared, run, start_part

from taskmanager import TaskManager

ENDED, LEFT = (100_000, 10_000), (10_000, 2_000)

PROGRAM = """
import asyncio, sys, time
from taskmanager import TaskManager

manager, starts, all_ran = TaskManager(sys.argv[1]), [], asyncio.Event()

@manager.task(name="work", persist=True, requeue_on_interrupt=True)
async def work():
    starts.append(time.perf_counter())
    if len(starts) == int(sys.argv[2]):
        all_ran.set()

async def main():
    async with manager:
        await all_ran.wait()

asyncio.run(main())
print([starts[0], starts[-1]])
"""
IMPORTS = "import asyncio, sqlite3, time; print([time.perf_counter()])"
TIMED_IMPORTS = """
import time
marks = [time.process_time()]
import asyncio, sqlite3
marks.append(time.process_time())
import taskmanager
marks.append(time.process_time())
print(marks)
"""


def spawn(program: str, *args: object) -> list[float]:
    """Run a program in a fresh process. The moments that it prints become seconds after its spawn."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *map(str, args)],
        check=True,
        capture_output=True,
        text=True,
        env=environment(),
    )
    return [moment - began for moment in json.loads(done.stdout)]


def build(path: Path, options: Options) -> None:
    """A file with history, and with what a process left that was killed."""
    make_history(path, options.size(*ENDED), age_us=3_600_000_000)
    victim = start_part(__file__, options, "victim", path)
    victim.wait()
    assert victim.returncode == -signal.SIGKILL


def victim(options: Options) -> Figures:
    """Accept so many tasks, of which as many run as may at once, and kill this process."""

    async def main() -> None:
        manager = TaskManager(options.given)

        async def work() -> None:
            await asyncio.Event().wait()

        task = manager.task(name="work", persist=True, requeue_on_interrupt=True)(work)
        async with manager:
            for _ in range(options.size(*LEFT)):
                task.enqueue()
            await manager.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(main())
    return {}


def library(options: Options) -> Figures:
    """Start on a copy of that file."""
    built = prepared(options, "left", lambda path: build(path, options))
    with database(options, copy_of=built) as path:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        first_s, last_s = spawn(PROGRAM, path, options.size(*LEFT))
    return {"first_ms": first_s * 1000, "last_ms": last_s * 1000, "process_us": processor_us(before)}


def bare(_: Options) -> Figures:
    """Import what every such program imports."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    (imported_s,) = spawn(IMPORTS)
    return {"ms": imported_s * 1000, "process_us": processor_us(before)}


def processor_us(before: resource.struct_rusage) -> float:
    """What the children of this process took since then."""
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (now.ru_utime + now.ru_stime - before.ru_utime - before.ru_stime) * 1e6


def imports(_: Options) -> Figures:
    """Import the package after those."""
    began_s, base_s, end_s = spawn(TIMED_IMPORTS)
    return {"base_ms": (base_s - began_s) * 1000, "ms": (end_s - base_s) * 1000}


PARTS = {"library": library, "bare": bare, "victim": victim, "imports": imports}
LINES = [
    Line("spawn to the first reclaimed task / imports of asyncio, sqlite3", "library", "first_ms", "ms", "bare", "ms",
         must="<= 2.2"),
    Line("spawn to the last reclaimed task / imports of asyncio, sqlite3", "library", "last_ms", "ms", "bare", "ms",
         must="<= 7"),
    Line("import taskmanager / import asyncio, sqlite3 before it (CPU)", "imports", "ms", "ms", "imports", "base_ms",
         must="<= 0.5"),
]  # fmt: skip
NOTES = [f"{ENDED[0]:,} ended and {LEFT[0]:,} left tasks; with --quick {ENDED[1]:,} and {LEFT[1]:,}."]

if __name__ == "__main__":
    run(__doc__, __file__, PARTS, LINES, NOTES)
