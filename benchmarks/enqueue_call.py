"""How long does the call of `enqueue` take, as the caller sees it?

Nothing is awaited between the calls of one burst; the tasks run between bursts. Beside it `TaskGroup.create_task` with
the same arguments.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from _sheet import Sheet, database, interleaved, parse_options, percentile

from taskmanager import TaskManager

BURST = 100
ARGUMENTS: tuple[tuple[Any, ...], ...] = ((), (7,), (7, "report", 2.5))

Figures = dict[int, tuple[float, float]]
"""The median and the 99th percentile in µs, by the number of arguments."""


async def none() -> None:
    """No arguments."""


async def one(number: int) -> None:
    """One."""


async def three(number: int, text: str, share: float) -> None:
    """Three."""


async def time_calls(
    call: Callable[..., Any], args: tuple[Any, ...], count: int, rest: Callable[[], Awaitable[None]]
) -> tuple[float, float]:
    """Time `count` calls one by one, in bursts."""
    took_ns = []
    clock = time.perf_counter_ns
    for _ in range(count // BURST):
        for _ in range(BURST):
            began = clock()
            call(*args)
            took_ns.append(clock() - began)
        await rest()
    return percentile(took_ns, 50) / 1000, percentile(took_ns, 99) / 1000


async def measure(path: Path, persist: bool, count: int) -> Figures:
    """The library, memory-only or persisted."""
    manager = TaskManager(path)
    tasks = [manager.task(name=fn.__name__, persist=persist)(fn) for fn in (none, one, three)]
    async with manager:
        return {
            len(args): await time_calls(task.enqueue, args, count, manager.join)
            for task, args in zip(tasks, ARGUMENTS, strict=True)
        }


async def measure_bare(count: int) -> Figures:
    """A TaskGroup."""
    found: Figures = {}
    functions: list[Callable[..., Coroutine[Any, Any, None]]] = [none, one, three]
    for fn, args in zip(functions, ARGUMENTS, strict=True):
        found[len(args)] = await measure_create(fn, args, count)
    return found


async def measure_create(
    fn: Callable[..., Coroutine[Any, Any, None]], args: tuple[Any, ...], count: int
) -> tuple[float, float]:
    """`create_task` of one function."""
    async with asyncio.TaskGroup() as group:

        def create(*given: Any) -> None:
            group.create_task(fn(*given))

        return await time_calls(create, args, count, lambda: asyncio.sleep(0))


def main() -> None:
    """Print the table."""
    options = parse_options(__doc__)
    count = options.size(20_000, 2_000)

    def library(persist: bool) -> Figures:
        with database(options) as path:
            return asyncio.run(measure(path, persist, count))

    found = interleaved(
        {
            "memory-only": lambda: library(False),
            "persisted": lambda: library(True),
            "TaskGroup.create_task": lambda: asyncio.run(measure_bare(count)),
        },
        options.repetitions,
    )
    sheet = Sheet(__doc__, options)
    for which, (name, target) in enumerate((("p50", "<= 6"), ("p99", "<= 40"))):
        for size in (0, 1, 3):
            bare = [each[size][which] for each in found["TaskGroup.create_task"]]
            for contender, runs in found.items():
                samples = [each[size][which] for each in runs]
                goal = "" if contender.startswith("TaskGroup") else target
                sheet.add(f"{name}, {size} arguments, {contender}", samples, "µs", target=goal, bare=bare)
    sheet.print()


if __name__ == "__main__":
    main()
