"""How long until the work of a killed process runs again beside a living instance?

A process with running and waiting tasks gets SIGKILL. The other one has nothing to do, and looks four times a second
whether the locks of the others can be taken. Its times count from the SIGKILL on. (What a start finds is the question
of startup.py.)
"""

import asyncio
import signal
import time
from pathlib import Path

from _harness import Figures, Line, Options, database, finish_part, run, start_part

from taskmanager import TaskManager

COUNT = (5_000, 500)
POLL_S = 0.005


def victim(options: Options) -> Figures:
    """Start as many tasks as run at once, let the others wait, say so, and wait for the end."""
    path = Path(options.given)

    async def work() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        manager = TaskManager(path)
        task = manager.task(name="work", persist=True, requeue_on_interrupt=True)(work)
        async with manager:
            for _ in range(options.size(*COUNT)):
                task.enqueue()
            await manager.flush()
            path.with_suffix(".ready").touch()
            await asyncio.Event().wait()

    asyncio.run(main())
    return {}


def heir(options: Options) -> Figures:
    """Start, and wait until all of it has run; monotonic instants."""
    path, starts = Path(options.given), list[float]()

    async def work() -> None:
        starts.append(time.monotonic())

    async def main() -> None:
        manager = TaskManager(path)
        manager.task(name="work", persist=True, requeue_on_interrupt=True)(work)
        async with manager:
            path.with_suffix(".heir").touch()
            while len(starts) < options.size(*COUNT):
                await asyncio.sleep(POLL_S)

    asyncio.run(main())
    return {"first": starts[0], "last": starts[-1]}


def wait_for(path: Path) -> None:
    """Until that file is there."""
    while not path.exists():
        time.sleep(POLL_S)


def beside(options: Options) -> Figures:
    """Kill one of two."""
    with database(options) as path:
        doomed = start_part(__file__, options, "victim", path)
        wait_for(path.with_suffix(".ready"))
        living = start_part(__file__, options, "heir", path)
        wait_for(path.with_suffix(".heir"))
        at = time.monotonic()
        doomed.send_signal(signal.SIGKILL)
        doomed.communicate()
        found = finish_part(living)
    return {"first_s": found["first"] - at, "last_s": found["last"] - at}


PARTS = {"beside": beside, "victim": victim, "heir": heir}
LINES = [
    Line("from SIGKILL to the first task", "beside", "first_s", "s"),
    Line(f"from SIGKILL to the last of {COUNT[0]:,}", "beside", "last_s", "s"),
]
NOTES = [f"With --quick {COUNT[1]:,} tasks."]

if __name__ == "__main__":
    run(__doc__, __file__, PARTS, LINES, NOTES)
