"""How long does work in a thread take beside an event loop that is never idle?

The loop is busy in turns of a millisecond, as that of a web server is under full load. `saved()` is compared with a
plain INSERT that is committed at full sync through `asyncio.to_thread`, and a task in a thread with the same function
through `asyncio.to_thread`. Those sometimes wait for the interpreter lock for seconds: `taskmanager/model/gil.py` tells
why.
"""

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import closing

from _harness import Figures, Line, Options, database, no_op, run

from taskmanager import TaskManager

SECONDS = (8.0, 3.0)
TURN_S = 0.001


def add() -> int:
    """Some work, of about a millisecond."""
    return sum(range(20_000))


async def measure(call: Callable[[], Awaitable[object]], duration_s: float) -> Figures:
    """Call it again and again beside the busy loop."""

    async def keep_busy() -> None:
        while True:
            end = time.perf_counter() + TURN_S
            while time.perf_counter() < end:
                pass
            await asyncio.sleep(0)

    await call()
    took_ms: list[float] = []
    busy = asyncio.create_task(keep_busy())
    end = time.perf_counter() + duration_s
    while time.perf_counter() < end:
        began = time.perf_counter()
        await call()
        took_ms.append((time.perf_counter() - began) * 1000)
    busy.cancel()
    return {"per_s": len(took_ms) / sum(took_ms) * 1000, "longest": max(took_ms)}


def saved(options: Options) -> Figures:
    """`enqueue`, and `saved()`."""

    async def main() -> Figures:
        with database(options) as path:
            manager = TaskManager(path)
            task = manager.task(name="noop", persist=True)(no_op)
            async with manager:
                return await measure(lambda: task.enqueue().saved(), options.size(*SECONDS))

    return asyncio.run(main())


def insert(options: Options) -> Figures:
    """A plain INSERT in a thread."""

    async def main() -> Figures:
        with database(options) as path, closing(sqlite3.connect(path, check_same_thread=False)) as connection:
            connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE plain (text)")

            def work() -> None:
                with connection:
                    connection.execute("INSERT INTO plain VALUES ('noop')")

            return await measure(lambda: asyncio.to_thread(work), options.size(*SECONDS))

    return asyncio.run(main())


def thread(options: Options) -> Figures:
    """A task in a thread."""

    async def main() -> Figures:
        with database(options) as path:
            manager = TaskManager(path)
            task = manager.task(name="add")(add)
            async with manager:
                return await measure(lambda: task.enqueue().result(), options.size(*SECONDS))

    return asyncio.run(main())


def to_thread(options: Options) -> Figures:
    """The same function without a task."""
    return asyncio.run(measure(lambda: asyncio.to_thread(add), options.size(*SECONDS)))


PARTS = {"saved": saved, "insert": insert, "thread": thread, "to_thread": to_thread}
LINES = [
    Line("saved(), one caller: calls / plain INSERTs through to_thread", "saved", "per_s", "/s", "insert", must=">= 1"),
    Line("saved(), one caller: the longest / that of those", "saved", "longest", "ms", "insert", must="<= 0.1"),
    Line("tasks in a thread, one caller: calls / to_thread", "thread", "per_s", "/s", "to_thread", must=">= 1"),
    Line("tasks in a thread, one caller: the longest / that of those", "thread", "longest", "ms", "to_thread",
         must="<= 0.1"),
]  # fmt: skip

if __name__ == "__main__":
    run(__doc__, __file__, PARTS, LINES)
