"""How much memory does a waiting task take, and how much stays after very many have ended?

Resident memory of a fresh process. Waiting: the queue is paused, the tasks are enqueued, the persisted ones are
committed. Ended: 10,000 tasks at a time, from after the first half of all to after the last; what has ended is in the
file, whose caches are full by then.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from functools import partial

import psutil
from _harness import Figures, Line, Options, bare_bounded, database, no_op, run

from taskmanager import TaskManager

WAITING, ENDED = (100_000, 20_000), (1_000_000, 100_000)
CHUNK = 10_000


def resident() -> int:
    """The resident memory of this process."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def waiting(options: Options, *, persist: bool) -> Figures:
    """Bytes of each of many waiting tasks."""
    count = options.size(*WAITING)

    async def main() -> Figures:
        with database(options) as path:
            manager = TaskManager(path, max_in_memory=2 * count)
            noop = manager.task(name="noop", persist=persist)(no_op)
            async with manager:
                await manager.pause("default")
                for _ in range(CHUNK):
                    noop.enqueue()
                await manager.flush()
                before = resident()
                for _ in range(count):
                    noop.enqueue()
                await manager.flush()
                return {"bytes": (resident() - before) / count}

    return asyncio.run(main())


def ended(options: Options, *, persist: bool) -> Figures:
    """Megabytes that are kept after many tasks, above those after a half of them."""

    async def main() -> Figures:
        with database(options) as path:
            manager = TaskManager(path)
            noop = manager.task(name="noop", persist=persist)(no_op)

            async def chunk() -> None:
                for _ in range(CHUNK):
                    noop.enqueue()
                await manager.join()
                await manager.flush()

            async with manager:
                return await grown(options, chunk)

    return asyncio.run(main())


async def grown(options: Options, chunk: Callable[[], Awaitable[None]]) -> Figures:
    """Run chunk after chunk."""
    sizes = []
    for _ in range(options.size(*ENDED) // CHUNK):
        await chunk()
        sizes.append(resident())
    return {"mb": (sizes[-1] - sizes[len(sizes) // 2 - 1]) / 1e6}


def bare(options: Options) -> Figures:
    """The same in a TaskGroup."""
    return asyncio.run(grown(options, lambda: bare_bounded(CHUNK)))


PARTS = {
    "memory": partial(waiting, persist=False),
    "persisted": partial(waiting, persist=True),
    "ended memory": partial(ended, persist=False),
    "ended persisted": partial(ended, persist=True),
    "ended bare": bare,
}
MANY = f"the second half of {ENDED[0]:,} ended"
LINES = [
    Line("a waiting task, memory-only", "memory", "bytes", "bytes", must="<= 1200"),
    Line("a waiting task, persisted, held in memory", "persisted", "bytes", "bytes", must="<= 1200"),
    Line(f"growth over {MANY}, memory-only", "ended memory", "mb", "MB", must="<= 2"),
    Line(f"growth over {MANY}, persisted", "ended persisted", "mb", "MB", must="<= 2"),
    Line(f"growth over {MANY}, bare TaskGroup", "ended bare", "mb", "MB"),
]
NOTES = [f"With --quick {WAITING[1]:,} waiting instead of {WAITING[0]:,}, and {ENDED[1]:,} ended ones."]

if __name__ == "__main__":
    run(__doc__, __file__, PARTS, LINES, NOTES)
