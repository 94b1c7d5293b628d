"""How much processor time does a no-op task take, and how many run per second, against a bare bounded TaskGroup?

All tasks are enqueued at once. The clock stops when `flush()` has returned: every task has run, and its record is in
the file. The start of a persisted one is committed at full sync before it runs. "With options" means `retries=3`,
`timeout=30`, a tag, and a listener to all events.

The times are of the processor, per task: in the thread of the event loop, in that of the store, and in that of the loop
for the calls of `enqueue` alone.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from _harness import Figures, Line, Options, Watch, bare_bounded, database, no_op, run

from taskmanager import TaskManager

MEMORY, FEW, MANY = (20_000, 6_000), (8_000, 3_000), (20_000, 6_000)
"""How many tasks, in full and quickly. Of the many, memory holds a half; the others wait in the file."""
WARM_UP = 300


def plain(manager: TaskManager, persist: bool) -> Callable[[], Any]:
    """The call of a task that is declared without options."""
    return manager.task(name="noop", persist=persist)(no_op).enqueue


def rich(manager: TaskManager, persist: bool) -> Callable[[], Any]:
    """The call of a task with options, which are of no consequence for a no-op."""
    manager.on()(lambda event: None)
    task = manager.task(name="noop", persist=persist, retries=3, timeout=30)(no_op)
    return task.with_options(tags={"customer": "42"}).enqueue


async def measure(manager: TaskManager, enqueue: Callable[[], Any], count: int) -> Figures:
    """Run so many tasks, when a few have run before."""
    async with manager:
        for _ in range(WARM_UP):
            enqueue()
        await manager.join()
        await manager.flush()
        watch = Watch()
        for _ in range(count):
            enqueue()
        calls = watch.figures(count)
        await manager.join()
        await manager.flush()
        return {**watch.figures(count), "call_us": calls["loop_us"]}


def library(
    options: Options,
    size: tuple[int, int],
    declare: Callable[[TaskManager, bool], Callable[[], Any]] = plain,
    *,
    persist: bool = False,
) -> Figures:
    """One run with a file of its own."""
    count = options.size(*size)
    held = count // 2 if size == MANY else count + WARM_UP
    with database(options) as path:
        manager = TaskManager(path, max_in_memory=held)
        return asyncio.run(measure(manager, declare(manager, persist), count))


def bare(options: Options, size: tuple[int, int]) -> Figures:
    """As many in a TaskGroup."""

    async def main() -> Figures:
        await bare_bounded(WARM_UP)
        watch = Watch()
        await bare_bounded(options.size(*size))
        return watch.figures(options.size(*size))

    return asyncio.run(main())


PARTS = {
    "memory": partial(library, size=MEMORY),
    "memory, rich": partial(library, size=MEMORY, declare=rich),
    "memory, bare": partial(bare, size=MEMORY),
    "few": partial(library, size=FEW, persist=True),
    "few, rich": partial(library, size=FEW, declare=rich, persist=True),
    "few, bare": partial(bare, size=FEW),
    "many": partial(library, size=MANY, persist=True),
    "many, rich": partial(library, size=MANY, declare=rich, persist=True),
    "many, bare": partial(bare, size=MANY),
}


def lines() -> list[Line]:
    """The rate and the processor time of each kind of task."""
    found = []
    for part, name, rate, time in (
        ("memory", "memory-only", (">= 0.30", ">= 0.40"), ("<= 1.6", "<= 1.3")),
        ("few", "persisted, all held in memory", (">= 0.14", ">= 0.25"), ("<= 2.2", "<= 1.3")),
        ("many", "persisted, half held in memory", (">= 0.12", ">= 0.25"), ("", "")),
    ):
        base = f"{part}, bare"
        found += [
            Line(f"{name}: rate / bare", part, "per_s", "/s", base, must=rate[0], wish=rate[1]),
            Line(f"{name}: loop's thread / bare", part, "loop_us", "µs", base, must=time[0], wish=time[1]),
            Line(f"{name}: all threads / bare", part, "process_us", "µs", base),
            Line(f"{name}: the store's thread", part, "others_us", "µs"),
            Line(f"{name}: the call", part, "call_us", "µs"),
            Line(f"{name}: rate with options / without", f"{part}, rich", "per_s", "/s", part, must=">= 0.85"),
            Line(f"{name}: loop's thread with options / without", f"{part}, rich", "loop_us", "µs", part),
        ]
    return found


COUNTS = " / ".join(f"{full:,} ({quick:,})" for full, quick in (MEMORY, FEW, MANY))
NOTES = [f"Tasks at once, in full (and with --quick): {COUNTS}."]

if __name__ == "__main__":
    run(__doc__, __file__, PARTS, lines(), NOTES)
