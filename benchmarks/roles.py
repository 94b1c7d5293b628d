"""How long does it take through the file: from a web process that only enqueues to an idle worker, and back?

One producer, and two workers in processes of their own. Each task is enqueued when the one before is known to have
ended, and both workers are idle. Then: what do a worker and a producer take of a core that have nothing to do beside
each other, compared with two instances that both run everything?
"""

import asyncio
import json
import time
from functools import partial
from typing import Any

from _harness import Figures, Line, Options, database, finish_part, percentile, run, start_part

from taskmanager import TaskManager

COUNT = (300, 60)
WARM_UP = 5
PAUSE_S = (0.013, 0.09)
"""Between two calls, so that they come at all moments of a look at the file."""
SETTLE_S = 4.0
SECONDS = (20, 5)


def manager_of(path: str, **options: Any) -> tuple[TaskManager, Any]:
    """A manager with a task that returns when it began."""
    manager = TaskManager(path, **options)

    @manager.task(name="note", persist=True, requeue_on_interrupt=True)
    async def note() -> float:
        return time.monotonic()

    return manager, note


def worker(options: Options) -> Figures:
    """Run what others enqueue, until SIGTERM. Given: the path of the file."""
    manager_of(options.given)[0].run()
    return {}


def latencies(options: Options) -> Figures:
    """Enqueue for two idle workers, one task after the other."""
    started_ms, known_ms = [], []

    async def main(path: str) -> None:
        manager, note = manager_of(path, run_queues=())
        async with manager:
            for number in range(WARM_UP + options.size(*COUNT)):
                low_s, high_s = PAUSE_S
                await asyncio.sleep(low_s + (high_s - low_s) * (number * 0.618 % 1))
                called = time.monotonic()
                began = await note.enqueue()
                known_ms.append((time.monotonic() - began) * 1e3)
                started_ms.append((began - called) * 1e3)

    with database(options) as path:
        workers = [start_part(__file__, options, "worker", path) for _ in range(2)]
        asyncio.run(main(str(path)))
        for each in workers:
            each.terminate()
            each.wait()
    return {
        f"{name}_{what}": percentile(values[WARM_UP:], percent)
        for name, values in (("started", started_ms), ("known", known_ms))
        for what, percent in (("median", 50), ("p99", 99))
    }


def other(options: Options) -> Figures:
    """An instance that does nothing for a while. Given: the path, and the queues that it runs."""
    path, run_queues = json.loads(options.given)
    return asyncio.run(wait(options, path, run_queues))


async def wait(options: Options, path: str, run_queues: Any) -> Figures:
    """Percent of a core that this process takes while it waits."""
    async with manager_of(path, run_queues=run_queues)[0]:
        await asyncio.sleep(SETTLE_S)
        before_s, began = time.process_time(), time.perf_counter()
        await asyncio.sleep(options.size(*SECONDS))
        percent = (time.process_time() - before_s) / (time.perf_counter() - began) * 100
        await asyncio.sleep(1.0)  # until the other one has measured, too
        return {"percent": percent}


def idle(options: Options, run_queues: list[list[str] | None]) -> Figures:
    """The first of two instances with these roles."""
    with database(options) as path:
        both = [start_part(__file__, options, "other", json.dumps([str(path), each])) for each in run_queues]
        found = [finish_part(each) for each in both]
    return {"percent": found[0]["percent"]}


PARTS = {
    "latencies": latencies,
    "worker": worker,
    "other": other,
    "idle worker": partial(idle, run_queues=[None, []]),
    "idle producer": partial(idle, run_queues=[[], None]),
    "idle equal": partial(idle, run_queues=[None, None]),
}
LINES = [
    Line("enqueue until the first line in an idle worker, median", "latencies", "started_median", "ms", must="<= 50"),
    Line("enqueue until the first line in an idle worker, p99", "latencies", "started_p99", "ms", must="<= 120"),
    Line("last line until the producer knows, median", "latencies", "known_median", "ms", must="<= 100"),
    Line("last line until the producer knows, p99", "latencies", "known_p99", "ms", wish="<= 100"),
    Line("an idle worker beside a producer", "idle worker", "percent", "% of a core", "idle equal", must="<= 1.15"),
    Line("an idle producer beside a worker", "idle producer", "percent", "% of a core", "idle equal", must="<= 1.15"),
]

if __name__ == "__main__":
    run(__doc__, __file__, PARTS, LINES)
