"""How much of a core does a started manager take when it has nothing to do?

Alone, beside a bare event loop, and with ten thousand schedules of which none is due.
"""

import asyncio
import time
from functools import partial

from _harness import Figures, Line, Options, database, no_op, run

from taskmanager import TaskManager

SECONDS = (10, 3)
SETTLE_S = 8.0
SCHEDULES = (10_000, 1_000)


async def wait(options: Options) -> Figures:
    """Percent of a core that this process takes while it waits, when all is read that is read once."""
    await asyncio.sleep(SETTLE_S)
    before_s, began = time.process_time(), time.perf_counter()
    await asyncio.sleep(options.size(*SECONDS))
    return {"percent": (time.process_time() - before_s) / (time.perf_counter() - began) * 100}


def library(options: Options, schedules: tuple[int, int]) -> Figures:
    """With a manager that has run one task of each kind."""

    async def main() -> Figures:
        with database(options) as path:
            manager = TaskManager(path)
            remembered = manager.task(name="remembered")(no_op)
            kept = manager.task(name="kept", persist=True)(no_op)
            for number in range(options.size(*schedules)):
                manager.schedule(cron="0 0 29 2 *", name=f"schedule {number}")(kept)
            async with manager:
                await remembered.enqueue()
                await kept.enqueue()
                return await wait(options)

    return asyncio.run(main())


PARTS = {
    "manager": partial(library, schedules=(0, 0)),
    "schedules": partial(library, schedules=SCHEDULES),
    "bare": lambda options: asyncio.run(wait(options)),
}
LINES = [
    Line("a started manager", "manager", "percent", "% of a core", must="<= 0.5"),
    Line(f"a started manager with {SCHEDULES[0]:,} schedules", "schedules", "percent", "% of a core", must="<= 0.5"),
    Line("a bare event loop", "bare", "percent", "% of a core"),
]
NOTES = [f"With --quick {SCHEDULES[1]:,} schedules."]

if __name__ == "__main__":
    run(__doc__, __file__, PARTS, LINES, NOTES)
