"""What do 10,000 schedules cost: while nothing is due, when one is due, when all of them are due at midnight?

The same manager is declared, started, asked for rounds, and left idle in a fresh process beside a bare event loop. Its
clock is moved to the next midnight for the rounds; a round ends when its fires are committed, before their tasks run.
"""

import asyncio
import json
import statistics
import time

from _sheet import Options, Sheet, database, finish_child, no_op, parse_options, run_child, start_child

from taskmanager import TaskManager
from taskmanager.duties.schedules.loop import Schedules
from taskmanager.model.clock import SystemClock
from taskmanager.rules.cron import Cron

SCHEDULES = 10_000
ROUNDS = 50
NEXT_OF = ("*/30 * * * *", "30 2 * * *", "0 0 29 2 *")


class MovedClock(SystemClock):
    """The machine's clocks, some time ahead, as after a night of sleep."""

    ahead_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.ahead_us

    def elapsed_s(self) -> float:
        return super().elapsed_s() + self.ahead_us / 1_000_000


def manager_with(count: int, path: str, clock: MovedClock) -> TaskManager:
    """A manager with so many schedules that fire at midnight, and one that fires every second."""
    manager = TaskManager(path, max_in_memory=100)
    manager._clock = clock
    task = manager.task(name="no_op", persist=True)(no_op)
    for number in range(count):
        manager.schedule(cron="0 0 * * *", timezone="Europe/Berlin", name=f"schedule {number}")(task)
    return manager


async def timed(schedules: Schedules) -> float:
    """Milliseconds of one round: what is due is decided and committed; its tasks run afterwards."""
    began = time.perf_counter()
    await schedules.run_once()
    return (time.perf_counter() - began) * 1_000


async def rounds(options: Options, count: int) -> dict[str, float]:
    """All figures of one start."""
    with database(options) as path:
        clock = MovedClock()
        began = time.perf_counter()
        manager = manager_with(count, str(path), clock)
        declared_s = time.perf_counter() - began
        manager.schedule(cron="* * * * * *", name="second")(manager.get_task("no_op"))
        began = time.perf_counter()
        await manager.start()
        started_s = time.perf_counter() - began
        assert manager._current is not None
        schedules = manager._current.schedules._schedules
        nothing_ms = [await timed(schedules) for _ in range(ROUNDS)]
        one_ms = []
        for _ in range(ROUNDS):
            clock.ahead_us += (schedules.book.next_look() or 0) - clock.now_us()
            one_ms.append(await timed(schedules))
            await manager.join()
        midnight_us = schedules.book.rows["schedule 0"].next_run_at or 0
        clock.ahead_us += midnight_us - clock.now_us()
        cpu_s = time.process_time()
        all_ms = await timed(schedules)
        cpu_s = time.process_time() - cpu_s
        assert sum(row.run_count for row in schedules.book.rows.values()) >= count
        await manager.stop(timeout=0)
    return {
        "declare": declared_s,
        "start": started_s,
        "nothing": statistics.median(nothing_ms),
        "one": statistics.median(one_ms),
        "all": all_ms,
        "all_cpu": cpu_s * 1_000,
    }


async def idle(options: Options, count: int, seconds: float) -> dict[str, float]:
    """Percent of a core that a process takes which waits for midnight; without schedules, a bare loop."""
    if not count:
        return {"percent": await wait(seconds)}
    with database(options) as path:
        async with manager_with(count, str(path), MovedClock()):
            return {"percent": await wait(seconds)}


async def wait(seconds: float) -> float:
    """Percent of a core while nothing happens, some time after the start, when all has been read once."""
    await asyncio.sleep(8)
    before_s, began = time.process_time(), time.perf_counter()
    await asyncio.sleep(seconds)
    return (time.process_time() - before_s) / (time.perf_counter() - began) * 100


def next_us(cron: str) -> float:
    """Microseconds to find the next fire of an expression."""
    made, at_us = Cron(cron, "Europe/Berlin"), SystemClock().now_us()
    began = time.perf_counter()
    for _ in range(100):
        at_us = made.after(at_us) or 0
    return (time.perf_counter() - began) / 100 * 1_000_000


def main() -> None:
    """Print the table, or be one of the fresh processes."""
    options = parse_options(__doc__)
    count, seconds = options.size(SCHEDULES, 1_000), options.size(10, 2)
    if options.child is not None:
        kind, _, number = options.child.partition(" ")
        work = rounds(options, int(number)) if kind == "rounds" else idle(options, int(number), seconds)
        print(json.dumps(asyncio.run(work)))
        return
    found = [run_child(__file__, options, f"rounds {count}") for _ in range(options.repetitions)]
    sheet = Sheet(__doc__, options)
    sheet.add(f"declare {count:,}", [each["declare"] for each in found], "s")
    sheet.add("start with them", [each["start"] for each in found], "s")
    sheet.add("round with nothing due", [each["nothing"] for each in found], "ms")
    sheet.add("round with one due", [each["one"] for each in found], "ms")
    sheet.add("round with all due", [each["all"] for each in found], "ms")
    sheet.add("round with all due, CPU", [each["all_cpu"] for each in found], "ms")
    sheet.add("the same for one fire", [each["all"] / count * 1_000 for each in found], "µs")
    for cron in NEXT_OF:
        sheet.add(f"next of {cron}", [next_us(cron) for _ in range(options.repetitions)], "µs", target="< 1000")
    shares: dict[int, list[float]] = {count: [], 0: []}
    for _ in range(options.repetitions):
        children = [(number, start_child(__file__, options, f"idle {number}")) for number in shares]
        for number, child in children:
            shares[number].append(finish_child(child)["percent"])
    sheet.add(f"idle with {count:,}, {seconds} s", shares[count], "% of a core", target="< 0.5")
    sheet.add("bare event loop", shares[0], "% of a core")
    sheet.print()


if __name__ == "__main__":
    main()
