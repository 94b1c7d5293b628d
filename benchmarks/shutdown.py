"""How long does a stop take with 10,000 tasks waiting?

The queue is paused, so that all wait. Persisted ones are freed for the next start: with their rows in the file already,
or straight after the enqueue. Memory-only ones are recorded as cancelled.
"""

import asyncio
import time
from functools import partial

from _harness import Figures, Line, Options, Watch, database, no_op, run

from taskmanager import TaskManager

COUNT = (10_000, 2_000)


def library(options: Options, *, persist: bool, is_saved: bool) -> Figures:
    """Seconds of `stop()`, which raises if it could not write everything."""
    count = options.size(*COUNT)

    async def main() -> Figures:
        with database(options) as path:
            manager = TaskManager(path)
            noop = manager.task(name="noop", persist=persist)(no_op)
            await manager.start()
            await manager.pause("default")
            for _ in range(count):
                noop.enqueue()
            if is_saved:
                await manager.flush()
            watch, began = Watch(), time.perf_counter()
            await manager.stop()
            return {**watch.figures(count), "s": time.perf_counter() - began}

    return asyncio.run(main())


PARTS = {
    "in the file": partial(library, persist=True, is_saved=True),
    "just enqueued": partial(library, persist=True, is_saved=False),
    "memory-only": partial(library, persist=False, is_saved=False),
}
LINES = [
    line
    for part, name in (
        ("in the file", "persisted, in the file"),
        ("just enqueued", "persisted, just enqueued"),
        ("memory-only", "memory-only"),
    )
    for line in (
        Line(f"stop with {COUNT[0]:,} waiting, {name}", part, "s", "s", must="<= 7"),
        Line(f"processor time of that for a task, {name}", part, "process_us", "µs"),
    )
]
NOTES = ["The target is the drain timeout of 5 s and 2 s more.", f"With --quick {COUNT[1]:,} tasks."]

if __name__ == "__main__":
    run(__doc__, __file__, PARTS, LINES, NOTES)
