"""How fast is a manager on PostgreSQL, beside the same one on a file, and what do waiting rows and history change?

The server is started here, with `fsync` on. The start of each task is committed before it runs, and the clock stops
when all ends are. They are all enqueued at once, and then most are written before it is their turn to start; or by a
hundred callers, each of which waits for its own task, and then a task and its start are one row. `server` is the
processor time of all processes of the server. A million rows of a function that nobody here knows wait in another
queue, or have ended before. Four instances claim from one queue at once, a hundred rows each time; every two
milliseconds it is looked whether one of them waits for a lock.

Needs a PostgreSQL server and the extra `postgres`.
"""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil
from _harness import Figures, Line, Options, Part, Watch, database, lacking, no_op, percentile, run

from taskmanager import Task, TaskManager
from taskmanager.model.ids import new_task_id

if TYPE_CHECKING:
    from tests.servers import Cluster

COUNT, COUNT_QUICK = 20_000, 4_000
ROWS, ROWS_QUICK = 1_000_000, 100_000
CALLS, CALLS_QUICK = 200, 50
WARM_UP: Final = 300
CALLERS: Final = 100
CLAIMED: Final = 100
CLAIMERS: Final = 4
SETTINGS: Final = {"shared_buffers": "128MB", "max_wal_size": "4GB"}
MANY_ROWS: Final = """
INSERT INTO jobs.taskmanager_tasks (id, task_name, queue_name, priority, args, kwargs, status, sent_at, enqueued_at,
    started_at, completed_at, result, start_count, task_options, created_at, updated_at)
SELECT lpad(n::text, 36, '0'), '{name}', 'other', 50, '[]', '{{}}', '{status}', n, n,
    {ended}, {ended}, CASE WHEN {ended} IS NULL THEN NULL ELSE '{{"ok":null}}' END, {starts}, '{{"persist":true}}', n, n
FROM generate_series(1, {count}) AS n
"""
LOCKS: Final = """
SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event <> 'extend'
"""
"""Who waits until another transaction ends. The lock to extend a table is held for the moment that it takes."""


@contextmanager
def server() -> "Iterator[Cluster]":
    """A server of its own, with the memory that PostgreSQL takes by default."""
    from tests.servers import Cluster

    cluster = Cluster.create()
    try:
        for name, value in SETTINGS.items():
            cluster.set(name, value)
        cluster.restart()
        yield cluster
    finally:
        cluster.destroy()


def server_s(cluster: "Cluster") -> float:
    """The processor time of the server until now."""
    processes = psutil.Process(cluster.pid).children()
    return sum(sum(each.cpu_times()[:2]) for each in processes)


async def make_tables(url: str) -> None:
    """Start and stop an instance."""
    async with TaskManager(url):
        pass


def fill(cluster: "Cluster", status: str, count: int, name: str) -> None:
    """Write rows as if earlier processes had left them, and let the server learn what they are like."""
    asyncio.run(make_tables(cluster.url("jobs")))
    is_ended = status == "COMPLETED"
    ended, starts = ("n", 1) if is_ended else ("NULL::bigint", 0)
    cluster.psql(MANY_ROWS.format(name=name, status=status, ended=ended, starts=starts, count=count))
    cluster.psql("VACUUM ANALYZE jobs.taskmanager_tasks")
    cluster.psql("CHECKPOINT")


async def run_all(noop: Task[[], Any], count: int, callers: int) -> None:
    """Enqueue so many at once, or by callers that wait for their own."""

    async def caller() -> None:
        for _ in range(count // callers):
            await noop.enqueue()

    if callers:
        await asyncio.gather(*(caller() for _ in range(callers)))
    else:
        for _ in range(count):
            noop.enqueue()


async def tasks(where: str | Path, options: Options, cluster: "Cluster | None" = None, callers: int = 0) -> Figures:
    """Run many tasks, when a few have run before."""
    count = options.size(COUNT, COUNT_QUICK)
    manager = TaskManager(where, max_in_memory=count + WARM_UP)
    noop = manager.task(name="noop", persist=True)(no_op)
    async with manager:
        for _ in range(WARM_UP):
            noop.enqueue()
        await manager.join()
        await manager.flush()
        watch, began_s = Watch(), server_s(cluster) if cluster else 0.0
        await run_all(noop, count, callers)
        await manager.join()
        await manager.flush()
        figures = dict(watch.figures(count))
        if cluster is not None:
            figures["server_us"] = (server_s(cluster) - began_s) / count * 1e6
        waits_ms = []
        for _ in range(options.size(CALLS, CALLS_QUICK)):
            before_s = time.perf_counter()
            await noop.enqueue().saved()
            waits_ms.append((time.perf_counter() - before_s) * 1000)
        return {**figures, "saved_ms": percentile(waits_ms, 50)}


def on_file(options: Options) -> Figures:
    """The same with a file."""
    with database(options) as path:
        return asyncio.run(tasks(path, options))


def on_server(options: Options, status: str = "", callers: int = 0) -> Figures:
    """Run them beside nothing, or beside many rows."""
    with server() as cluster:
        if status:
            fill(cluster, status, options.size(ROWS, ROWS_QUICK), "unknown")
        return asyncio.run(tasks(cluster.url("jobs"), options, cluster, callers))


async def claim_all(url: str, number: int, left: list[int]) -> list[float]:
    """Claim as one instance until so many rows are claimed; how long each claim took.

    A claim may get fewer than it asks for: the others may take what it has found before it has locked it.
    """
    from taskmanager.store.place import place_of
    from taskmanager.store.protocol import ClaimRequest

    place = place_of(url)
    assert place is not None
    store = place.new_store()
    await store.open()
    took_ms, owner = [], f"{new_task_id()}-{number}"
    while left[0] > 0:
        began_s = time.perf_counter()
        rows = await store.claim(ClaimRequest(owner, ["noop"], "other", CLAIMED, time.time_ns() // 1000))
        took_ms.append((time.perf_counter() - began_s) * 1000)
        left[0] -= len(rows)
    await store.close()
    return took_ms


def claims(options: Options, *, count: int, claimers: int) -> Figures:
    """Several instances claim from so many waiting rows."""
    rows = options.size(COUNT, COUNT_QUICK)
    looks: list[int] = []
    with server() as cluster:
        fill(cluster, "PENDING", max(count, 2 * rows), "noop")
        url, is_over = cluster.url("jobs"), threading.Event()

        def look() -> None:
            import psycopg

            with psycopg.connect(cluster.url(), autocommit=True) as connection:
                while not is_over.wait(0.002):
                    looks.append((connection.execute(LOCKS).fetchone() or (0,))[0])

        async def all_of_them() -> list[list[float]]:
            left = [rows]
            return await asyncio.gather(*(claim_all(url, number, left) for number in range(claimers)))

        looker = threading.Thread(target=look)
        looker.start()
        began_s = time.perf_counter()
        took_ms = list(chain.from_iterable(asyncio.run(all_of_them())))
        took_s = time.perf_counter() - began_s
        is_over.set()
        looker.join()
    return {
        "per_s": rows / took_s,
        "claim_ms": percentile(took_ms, 50),
        "waits_percent": 100 * sum(map(bool, looks)) / max(1, len(looks)),
    }


NEIGHBOUR: Final = """
import asyncio, sys, time
from taskmanager import TaskManager

async def work():
    async with TaskManager(sys.argv[1]) as manager:
        manager.task(name="stamp", persist=True)(stamp)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)

async def stamp():
    return time.time_ns()

asyncio.run(work())
"""


async def enqueue_for_neighbour(url: str, calls: int) -> Figures:
    """Enqueue what only the neighbour may run."""
    saved_ms, started_ms = [], []
    async with TaskManager(url, run_queues=["none"]) as manager:

        @manager.task(name="stamp", persist=True)
        async def stamp() -> int:
            return 0

        for _ in range(calls):
            began_ns = time.time_ns()
            handle = stamp.enqueue()
            await handle.saved()
            saved_ms.append((time.time_ns() - began_ns) / 1e6)
            started_ms.append((await handle - began_ns) / 1e6)
            await asyncio.sleep(0.02)
    return {
        "saved_ms": percentile(saved_ms, 50),
        "started_ms": percentile(started_ms, 50),
        "p95_ms": percentile(started_ms, 95),
    }


def in_two_processes(options: Options) -> Figures:
    """Enqueue in one and start in another."""
    with server() as cluster:
        url = cluster.url("jobs")
        asyncio.run(make_tables(url))
        child = subprocess.Popen(
            [sys.executable, "-c", NEIGHBOUR, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        child.stdout.readline()
        try:
            return asyncio.run(enqueue_for_neighbour(url, options.size(CALLS, CALLS_QUICK)))
        finally:
            child.communicate("")


PARTS: Final[dict[str, Part]] = {
    "file": on_file,
    "server": on_server,
    "callers": partial(on_server, callers=CALLERS),
    "beside waiting rows": partial(on_server, status="PENDING"),
    "beside history": partial(on_server, status="COMPLETED"),
    "two processes": in_two_processes,
    "one claims": partial(claims, count=0, claimers=1),
    "four claim": partial(claims, count=0, claimers=CLAIMERS),
    "one claims of many": lambda options: claims(options, count=options.size(ROWS, ROWS_QUICK), claimers=1),
}
LINES: Final = [
    Line("persisted tasks / on a file", "server", "per_s", "/s", "file"),
    Line("persisted tasks", "server", "per_s", "/s", must=">= 5000"),
    Line("persisted tasks of a hundred callers", "callers", "per_s", "/s", must=">= 5000"),
    Line("the server's processes for one of these", "callers", "server_us", "µs"),
    Line("enqueue to saved / on a file", "server", "saved_ms", "ms", "file"),
    Line("the loop's thread / on a file", "server", "loop_us", "µs", "file"),
    Line("all threads / on a file", "server", "process_us", "µs", "file"),
    Line("the server's processes", "server", "server_us", "µs"),
    Line("rate beside waiting rows / without", "beside waiting rows", "per_s", "/s", "server", must=">= 0.9"),
    Line("server's time beside waiting rows / without", "beside waiting rows", "server_us", "µs", "server"),
    Line("rate beside history / without", "beside history", "per_s", "/s", "server", must=">= 0.9"),
    Line("server's time beside history / without", "beside history", "server_us", "µs", "server"),
    Line("enqueue to start in another process", "two processes", "started_ms", "ms", must="<= 10"),
    Line("the same, 95th percentile", "two processes", "p95_ms", "ms"),
    Line("enqueue to saved there", "two processes", "saved_ms", "ms"),
    Line("rows claimed by four / by one", "four claim", "per_s", "rows/s", "one claims"),
    Line("a claim waits for a lock, of all looks", "four claim", "waits_percent", "%", must="<= 1"),
    Line("a claim of a hundred of many / of few", "one claims of many", "claim_ms", "ms", "one claims", must="<= 1.5"),
]


if __name__ == "__main__":
    notes = lacking("psycopg[binary]")
    run(__doc__, __file__, PARTS, [] if notes else LINES, notes)
