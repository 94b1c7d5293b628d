"""How long does the call of `enqueue` take, as the caller sees it?

Nothing is awaited between the calls of one burst; the tasks run between bursts. Beside it `TaskGroup.create_task` with
the same arguments.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from _harness import Figures, Line, Options, database, percentile, run

from taskmanager import TaskManager

BURST = 100
COUNT = (20_000, 2_000)
ARGUMENTS: tuple[tuple[Any, ...], ...] = ((), (7, "report", 2.5))


async def none() -> None:
    """No arguments."""


async def three(number: int, text: str, share: float) -> None:
    """Three."""


FUNCTIONS: tuple[Callable[..., Any], ...] = (none, three)


async def time_calls(
    call: Callable[..., Any], args: tuple[Any, ...], count: int, rest: Callable[[], Awaitable[None]]
) -> Figures:
    """Time `count` calls one by one, in bursts, when one burst has gone before."""
    took_ns: list[int] = []
    clock = time.perf_counter_ns
    for number in range(count // BURST + 1):
        if number == 1:
            took_ns.clear()
        for _ in range(BURST):
            began = clock()
            call(*args)
            took_ns.append(clock() - began)
        await rest()
    return {f"p50 {len(args)}": percentile(took_ns, 50) / 1000, f"p99 {len(args)}": percentile(took_ns, 99) / 1000}


def library(options: Options, *, persist: bool) -> Figures:
    """The library."""

    async def main() -> Figures:
        with database(options) as path:
            manager, found = TaskManager(path), dict[str, float]()
            tasks = [manager.task(name=function.__name__, persist=persist)(function) for function in FUNCTIONS]
            async with manager:
                for task, args in zip(tasks, ARGUMENTS, strict=True):
                    found |= await time_calls(task.enqueue, args, options.size(*COUNT), manager.join)
            return found

    return asyncio.run(main())


def bare(options: Options) -> Figures:
    """A TaskGroup."""

    async def main() -> Figures:
        found = dict[str, float]()
        async with asyncio.TaskGroup() as group:
            for function, args in zip(FUNCTIONS, ARGUMENTS, strict=True):

                def create(*given: Any, function: Callable[..., Any] = function) -> None:
                    group.create_task(function(*given))

                found |= await time_calls(create, args, options.size(*COUNT), partial(asyncio.sleep, 0))
        return found

    return asyncio.run(main())


PARTS = {"memory-only": partial(library, persist=False), "persisted": partial(library, persist=True), "bare": bare}
LINES = [
    Line(f"{kind}, {len(args)} arguments: {which} / create_task", kind, f"{which} {len(args)}", "µs", "bare")
    for kind in ("memory-only", "persisted")
    for args in ARGUMENTS
    for which in ("p50", "p99")
]

if __name__ == "__main__":
    run(__doc__, __file__, PARTS, LINES)
