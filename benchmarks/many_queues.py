"""What do ten thousand queue names cost, with work in each of them, and after all of it is done?

The same number of no-op tasks over one queue is the comparison, in the same run. Processor time per task, from the
first `enqueue` until all have run; and the time of one `manager.status()` after that.
"""

import asyncio
import time
from contextlib import nullcontext
from pathlib import Path

from _sheet import Sheet, database, interleaved, no_op, parse_options

from taskmanager import TaskManager

ONE, IDLE, SPREAD = "one name", "all in one, after the others", "over all of them"


async def measure(path: Path | None, names: int, how: str) -> tuple[float, float]:
    """Microseconds of processor time per task, and milliseconds of one look."""
    manager = TaskManager(path)
    noop = manager.task(name="noop", persist=path is not None)(no_op)
    count = 2 * names
    async with manager:
        if how == IDLE:
            for number in range(names):
                noop.with_options(queue_name=f"customer-{number}").enqueue()
            await manager.join()
        calls = [noop.with_options(queue_name=f"customer-{n % names}") for n in range(count)] if how == SPREAD else []
        began = time.process_time()
        for each in calls or [noop] * count:
            each.enqueue()
        await manager.join()
        per_task_us = (time.process_time() - began) / count * 1e6
        began = time.perf_counter()
        manager.status()
        return per_task_us, (time.perf_counter() - began) * 1000


def main() -> None:
    """Print the table."""
    options = parse_options(__doc__)
    names = options.size(10_000, 1_000)
    sheet = Sheet(__doc__, options)
    for is_persisted in (False, True):

        def run(how: str, is_persisted: bool = is_persisted) -> tuple[float, float]:
            with database(options) if is_persisted else nullcontext() as path:
                return asyncio.run(measure(path, names, how))

        found = interleaved({how: lambda how=how: run(how) for how in (ONE, IDLE, SPREAD)}, options.repetitions)
        kind = "persisted" if is_persisted else "memory-only"
        for how, runs in found.items():
            sheet.add(f"{2 * names:,} {kind} tasks, {names:,} names: {how}", [each for each, _ in runs], "us")
            sheet.add("  status() then", [each for _, each in runs], "ms")
    sheet.print()


if __name__ == "__main__":
    main()
