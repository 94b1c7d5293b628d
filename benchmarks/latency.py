"""How long is it from the call to the first line of the task, when nothing else runs?

Memory-only beside `asyncio.create_task`, persisted (which waits for the commit of its start), and `submit_in`, from the
commit of the caller's transaction on. Each task is called when the one before has run and the loop has been idle.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

from _harness import Figures, Line, Options, Watch, database, percentile, run

from taskmanager import TaskManager

COUNT = (2_000, 400)
COUNT_SUBMITTED = (200, 40)
WARM_UP = 20
IDLE_S = 0.001


class Probe:
    """A task that notes how long after its call it started."""

    def __init__(self) -> None:
        self.began = 0.0
        self.ran = asyncio.Event()
        self.took_us: list[float] = []

    async def run(self) -> None:
        """The task."""
        self.took_us.append((time.perf_counter() - self.began) * 1e6)
        self.ran.set()

    async def measure(self, call: Callable[[], Any], count: int) -> Figures:
        """Call it, again and again. A call that has a beginning of its own sets it."""
        watch = Watch()
        for number in range(WARM_UP + count):
            if number == WARM_UP:
                self.took_us.clear()
                watch = Watch()
            await asyncio.sleep(IDLE_S)
            self.ran.clear()
            self.began = time.perf_counter()
            kept = call()
            await self.ran.wait()
            del kept
        figures = watch.figures(count)
        return {**figures, "p50": percentile(self.took_us, 50), "p99": percentile(self.took_us, 99)}


def library(options: Options, *, persist: bool) -> Figures:
    """`enqueue`."""

    async def main() -> Figures:
        probe = Probe()
        with database(options) as path:
            manager = TaskManager(path)
            task = manager.task(name="probe", persist=persist)(probe.run)
            async with manager:
                return await probe.measure(task.enqueue, options.size(*COUNT))

    return asyncio.run(main())


def submitted(options: Options) -> Figures:
    """`submit_in`, through a plain connection."""

    async def main() -> Figures:
        probe = Probe()
        with database(options) as path:
            manager = TaskManager(path)
            task = manager.task(name="probe", persist=True)(probe.run)
            async with manager:
                with closing(sqlite3.connect(path, isolation_level=None)) as connection:

                    def call() -> None:
                        connection.execute("BEGIN IMMEDIATE")
                        manager.submit_in(connection, task)
                        connection.execute("COMMIT")
                        probe.began = time.perf_counter()

                    return await probe.measure(call, options.size(*COUNT_SUBMITTED))

    return asyncio.run(main())


def bare(options: Options) -> Figures:
    """`asyncio.create_task`."""

    async def main() -> Figures:
        probe = Probe()
        return await probe.measure(lambda: asyncio.create_task(probe.run()), options.size(*COUNT))

    return asyncio.run(main())


PARTS = {
    "memory": partial(library, persist=False),
    "persisted": partial(library, persist=True),
    "submitted": submitted,
    "bare": bare,
}
LINES = [
    Line("enqueue, memory-only: median / create_task", "memory", "p50", "µs", "bare", must="<= 1.8", wish="<= 1.4"),
    Line("enqueue, memory-only: p99 / create_task", "memory", "p99", "µs", "bare"),
    Line("enqueue, persisted: median", "persisted", "p50", "µs"),
    Line("submit_in, from its commit: median", "submitted", "p50", "µs"),
    Line("submit_in, from its commit: p99", "submitted", "p99", "µs", must="<= 10000"),
]

if __name__ == "__main__":
    run(__doc__, __file__, PARTS, LINES)
