"""How long does a workflow of ten thousand nodes take to start, and what does each node cost while it runs?

In the wide graph all nodes wait for the first one, and the last one waits for all of them. In the deep one each waits
for the one before, so that each is a start and an end with commits of its own. A node is compared with a persisted task
outside of workflows, a thousand of them at a time or one after another. And it is compared with a node of a graph of a
tenth of the size: what an end costs must depend on those that wait for it, and not on the size of the graph.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial

from _harness import Figures, Line, Options, Watch, database, no_op, run

from taskmanager import TaskManager, Workflow
from taskmanager.task import Task

STARTED = 10_000
WIDE, DEEP = (10_000, 2_000), (1_000, 500)
"""How many nodes the graphs have that run, in full and quickly."""

Job = Task[[], None]


def wide(job: Job, count: int) -> Workflow[None]:
    """A graph of one node, those that wait for it, and one that waits for all of these."""
    workflow = Workflow("wide")
    first = workflow.add(job)
    middle = [workflow.add(job).after(first) for _ in range(count - 2)]
    return workflow.output(workflow.add(job).after(*middle))


def deep(job: Job, count: int) -> Workflow[None]:
    """A graph in which each node waits for the one before."""
    workflow = Workflow("deep")
    node = workflow.add(job)
    for _ in range(count - 1):
        node = workflow.add(job).after(node)
    return workflow.output(node)


def start(options: Options) -> Figures:
    """Seconds until a graph is defined, and until it is committed. This process runs no nodes."""
    with database(options) as path:
        manager = TaskManager(path, run_queues=())
        job = manager.task(name="job", persist=True)(no_op)

        async def main() -> Figures:
            async with manager:
                await manager.start_workflow(wide(job, 10))
                began = time.perf_counter()
                workflow = wide(job, STARTED)
                defined = time.perf_counter()
                await manager.start_workflow(workflow)
                return {"define_s": defined - began, "start_s": time.perf_counter() - defined}

        return asyncio.run(main())


def graph(options: Options, make: Callable[[Job, int], Workflow[None]], sizes: tuple[int, int], part: int) -> Figures:
    """Run a graph to its end. Its start is over when the time begins."""
    count = options.size(*sizes) // part
    with database(options) as path:
        manager = TaskManager(path)
        job = manager.task(name="job", persist=True)(no_op)

        async def main() -> Figures:
            async with manager:
                await job.enqueue()
                handle = await manager.start_workflow(make(job, count))
                watch = Watch()
                await handle
                return watch.figures(count)

        return asyncio.run(main())


def plain(options: Options, sizes: tuple[int, int], at_a_time: int) -> Figures:
    """As many tasks outside of workflows, so many at a time."""
    count = options.size(*sizes)
    with database(options) as path:
        manager = TaskManager(path)
        job = manager.task(name="job", persist=True)(no_op)

        async def main() -> Figures:
            async with manager:
                await job.enqueue()
                watch = Watch()
                for _ in range(count // at_a_time):
                    await asyncio.gather(*[job.enqueue() for _ in range(at_a_time)])
                return watch.figures(count)

        return asyncio.run(main())


PARTS = {
    "start": start,
    "wide": partial(graph, make=wide, sizes=WIDE, part=1),
    "wide tenth": partial(graph, make=wide, sizes=WIDE, part=10),
    "deep": partial(graph, make=deep, sizes=DEEP, part=1),
    "deep tenth": partial(graph, make=deep, sizes=DEEP, part=10),
    "plain": partial(plain, sizes=WIDE, at_a_time=1_000),
    "in turn": partial(plain, sizes=DEEP, at_a_time=1),
}
LINES = [
    Line("start of a workflow of 10,000 nodes", "start", "start_s", "s", must="<= 1"),
    Line("defining it before", "start", "define_s", "s"),
    Line("nodes of a wide graph: rate / tasks in no workflow", "wide", "per_s", "/s", "plain"),
    Line("nodes of a deep graph: rate / one task after another", "deep", "per_s", "/s", "in turn"),
    Line("a node of a wide graph / of a tenth of it", "wide", "process_us", "µs", "wide tenth", must="<= 1.5"),
    Line("a node of a deep graph / of a tenth of it", "deep", "process_us", "µs", "deep tenth", must="<= 1.5"),
]

if __name__ == "__main__":
    run(__doc__, __file__, PARTS, LINES)
