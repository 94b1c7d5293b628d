"""What does it cost when very many schedules are due in the same second?

Each fires every second. A fire is decided, committed, and its task is run; beside it the same task, persisted, is
enqueued as often by hand. Processor time of all threads.
"""

import asyncio
import time

from _harness import Figures, Line, Options, Watch, database, no_op, run

from taskmanager import TaskManager

SCHEDULES = (2_000, 300)
DECLARED = (10_000, 1_000)
SECONDS = (6, 3)


def fired(options: Options) -> Figures:
    """By schedules."""
    ran: list[None] = []

    async def note() -> None:
        ran.append(None)

    async def main() -> Figures:
        with database(options) as path:
            manager = TaskManager(path)
            task = manager.task(name="note", persist=True)(note)
            for number in range(options.size(*SCHEDULES)):
                manager.schedule(cron="* * * * * *", name=f"schedule {number}")(task)
            async with manager:
                while not ran:
                    await asyncio.sleep(0.05)
                await manager.join()
                ran.clear()
                watch = Watch()
                await asyncio.sleep(options.size(*SECONDS))
                await manager.join()
                await manager.flush()
                return watch.figures(len(ran))

    return asyncio.run(main())


def enqueued(options: Options) -> Figures:
    """By hand, as many at a time."""

    async def main() -> Figures:
        with database(options) as path:
            manager = TaskManager(path)
            task = manager.task(name="note", persist=True)(no_op)
            async with manager:
                await task.enqueue()
                count, watch = options.size(*SCHEDULES), Watch()
                for _ in range(options.size(*SECONDS)):
                    for _ in range(count):
                        task.enqueue()
                    await manager.join()
                await manager.flush()
                return watch.figures(count * options.size(*SECONDS))

    return asyncio.run(main())


def declared(options: Options) -> Figures:
    """Declare as many that are never due, and start with them."""

    async def main() -> Figures:
        with database(options) as path:
            manager = TaskManager(path)
            task = manager.task(name="note", persist=True)(no_op)
            count, began = options.size(*DECLARED), time.process_time()
            for number in range(count):
                manager.schedule(cron="0 0 29 2 *", name=f"schedule {number}")(task)
            declared_s, began = time.process_time() - began, time.process_time()
            async with manager:
                started_s = time.process_time() - began
            return {"declare_us": declared_s / count * 1e6, "start_us": started_s / count * 1e6}

    return asyncio.run(main())


PARTS = {"fired": fired, "enqueued": enqueued, "declared": declared}
LINES = [
    Line("a fire and its task / the task alone", "fired", "process_us", "µs", "enqueued"),
    Line("to declare a schedule", "declared", "declare_us", "µs"),
    Line("to start with a new schedule", "declared", "start_us", "µs"),
]
NOTES = [
    f"{SCHEDULES[0]:,} fire at a time, {DECLARED[0]:,} are declared; with --quick {SCHEDULES[1]} and {DECLARED[1]:,}."
]

if __name__ == "__main__":
    run(__doc__, __file__, PARTS, LINES, NOTES)
