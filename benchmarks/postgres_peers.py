"""How fast is the same no-op in libraries that keep their tasks in PostgreSQL, side by side on one server?

The server is started here, with `fsync` on. Each library runs in an environment and in processes of its own, and they
take turns. A hundred coroutines enqueue tasks one by one as an application does, and the clock stops when the ends of
all are recorded. "Waits" is the time from the call to the first line of the task, for one task at a time, or to its
known result where tasks run in other processes.

    python benchmarks/postgres_peers.py --python python3.13 --quick

All of them commit that a task has started before it runs. oban and taskmanager run a hundred at once in one process,
and so does procrastinate. horsies runs them in two child processes, one at a time in each.
"""

import argparse
import asyncio
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.peers.environments import NotInstalled, interpreter_of  # noqa: E402  # this file is run by its path

if TYPE_CHECKING:
    from tests.servers import Cluster

CALLERS: Final = 100
SINGLE, SINGLE_QUICK = 100, 20
PAUSE_S: Final = 0.02
PATIENCE_S: Final = 300
Put = Callable[[int], Awaitable[object]]
Figures = dict[str, float]
_done: dict[int, float] = {}


async def no_op(number: int) -> None:
    """The task of those that run in this process."""
    _done[number] = time.perf_counter()


async def until(is_true: Callable[[], bool]) -> None:
    """Look again and again."""
    while not is_true():
        await asyncio.sleep(0.001)


async def measured(put: Put, ended: Callable[[int], Awaitable[None]], count: int, single: int) -> Figures:
    """Run `count` tasks through, and then `single` ones one by one. `ended` returns when so many ends are recorded."""

    async def caller(first: int) -> None:
        for number in range(first, count, CALLERS):
            await put(number)

    began_s = time.perf_counter()
    await asyncio.gather(*map(caller, range(CALLERS)))
    await ended(count)
    took_s, waits_s = time.perf_counter() - began_s, []
    for number in range(count, count + single):
        await asyncio.sleep(PAUSE_S)
        before_s = time.perf_counter()
        await put(number)
        await until(lambda number=number: number in _done)
        waits_s.append(_done[number] - before_s)
    return {"per_s": count / took_s, "wait_ms": statistics.median(waits_s) * 1000}


async def taskmanager(dsn: str, count: int, single: int) -> Figures:
    """A manager with its defaults; each caller awaits `saved()`."""
    from taskmanager import TaskManager

    manager = TaskManager(f"{dsn}?schema=jobs")
    task = manager.task(name="no_op", persist=True)(no_op)

    async def put(number: int) -> None:
        await task.enqueue(number).saved()

    async def ended(_count: int) -> None:
        await manager.join()
        await manager.flush()

    async with manager:
        return await measured(put, ended, count, single)


async def oban(dsn: str, count: int, single: int) -> Figures:
    """One queue with a limit of a hundred."""
    from oban import Oban, worker
    from oban.schema import install
    from psycopg_pool import AsyncConnectionPool

    async with AsyncConnectionPool(conninfo=dsn, min_size=4, max_size=10, open=False) as pool:
        await install(pool)

        @worker(queue="default")
        class NoOp:
            async def process(self, job: Any) -> None:
                await no_op(job.args["number"])

        async def put(number: int) -> None:
            await NoOp.enqueue({"number": number})

        async def ended(wanted: int) -> None:
            found = 0
            while found < wanted:
                async with pool.connection() as connection:
                    cursor = await connection.execute("SELECT count(*) FROM oban_jobs WHERE state = 'completed'")
                    (found,) = await cursor.fetchone()
                await asyncio.sleep(PAUSE_S)

        async with Oban(pool=pool, queues={"default": CALLERS}):
            return await measured(put, ended, count, single)


async def procrastinate(dsn: str, count: int, single: int) -> Figures:
    """One worker with a concurrency of a hundred."""
    from procrastinate import App, PsycopgConnector

    app = App(connector=PsycopgConnector(conninfo=dsn, min_size=4, max_size=10))
    task = app.task(name="no_op")(no_op)

    async def ended(wanted: int) -> None:
        found = 0
        while found < wanted:
            query = "SELECT count(*) AS n FROM procrastinate_jobs WHERE status = 'succeeded'"
            found = (await app.connector.execute_query_one_async(query))["n"]
            await asyncio.sleep(PAUSE_S)

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        running = asyncio.create_task(app.run_worker_async(concurrency=CALLERS, install_signal_handlers=False))
        found = await measured(lambda number: task.defer_async(number=number), ended, count, single)
        running.cancel()
        return found


HORSIES: Final = """
from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult
app = Horsies(AppConfig(broker=PostgresConfig(database_url={dsn!r})))

@app.task("no_op")
def no_op(*, number: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=number)
"""


async def horsies(dsn: str, count: int, single: int) -> Figures:
    """A worker of its command line, with two child processes that are never replaced."""
    import psycopg

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "no_op_app.py").write_text(
            HORSIES.format(dsn=dsn.replace("postgresql:", "postgresql+psycopg:"))
        )
        sys.path.insert(0, folder)
        import no_op_app

        options = ("--processes", "2", "--max-tasks-per-child", "0", "--loglevel", "ERROR")
        command = [str(Path(sys.executable).with_name("horsies")), "worker", "no_op_app:app", *options]
        null = subprocess.DEVNULL
        found_there = {**os.environ, "PYTHONPATH": folder}
        worker = await asyncio.create_subprocess_exec(*command, env=found_there, stdout=null, stderr=null)

        async def put(number: int) -> None:
            handle = (await no_op_app.no_op.send_async(number=number)).ok_value
            if number >= count:
                await handle.get_async()
                _done[number] = time.perf_counter()

        async def ended(wanted: int) -> None:
            found = 0
            async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
                while found < wanted:
                    cursor = await connection.execute("SELECT count(*) FROM horsies_task_history")
                    (found,) = await cursor.fetchone() or (0,)
                    await asyncio.sleep(PAUSE_S)

        try:
            await (await no_op_app.no_op.send_async(number=-1)).ok_value.get_async()
            return await measured(put, ended, count, single)
        finally:
            worker.terminate()


PEERS: Final = {"taskmanager": taskmanager, "oban": oban, "procrastinate": procrastinate, "horsies": horsies}
COUNTS: Final = {"taskmanager": 10_000, "oban": 4_000, "procrastinate": 2_000, "horsies": 1_000}


def one(cluster: "Cluster", name: str, interpreter: Path, *, is_quick: bool) -> Figures:
    """Run one library once, in a database of its own."""
    cluster.psql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    cluster.psql(f"CREATE DATABASE {name}")
    dsn = cluster.url().removesuffix("postgres") + name
    sizes = (COUNTS[name] // (4 if is_quick else 1), SINGLE_QUICK if is_quick else SINGLE)
    command = [str(interpreter), str(Path(__file__)), "--peer", name, dsn, *map(str, sizes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=ROOT)
    if done.returncode:
        raise NotInstalled((done.stderr.strip().splitlines() or ["it failed"])[-1])
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Start a server, and let the libraries take turns; or be one of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small numbers, for a first look")
    parser.add_argument("--rounds", type=int, default=None, help="default 5, with --quick 2")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of all environments, 3.13 or newer")
    parser.add_argument("--only", default=",".join(PEERS), help="some of the libraries, with commas")
    parser.add_argument("--peer", nargs=4, default=None, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peer:
        name, dsn, count, single = given.peer
        logging.disable()
        print(json.dumps(asyncio.run(PEERS[name](dsn, int(count), int(single)))), flush=True)
        os._exit(0)  # some leave threads behind that never end
    from tests.servers import Cluster

    cluster, found, names = Cluster.create(), {}, given.only.split(",")
    try:
        cluster.set("shared_buffers", "128MB")
        cluster.restart()
        for number in range(given.rounds or (2 if given.quick else 5)):
            for name in names if number % 2 else names[::-1]:
                try:
                    figures = one(cluster, name, interpreter_of(f"{name}-postgres", given.python), is_quick=given.quick)
                except (NotInstalled, subprocess.TimeoutExpired) as error:
                    print(f"{name}: not measured: {error}")
                    continue
                found.setdefault(name, []).append(figures)
                print(f"{number} {name}: {figures['per_s']:,.0f}/s, waits {figures['wait_ms']:.1f} ms", flush=True)
    finally:
        cluster.destroy()
    rates = {name: statistics.median(each["per_s"] for each in all_of_it) for name, all_of_it in found.items()}
    for name, all_of_it in found.items():
        wait_ms = statistics.median(each["wait_ms"] for each in all_of_it)
        ratio = f", taskmanager / it {rates['taskmanager'] / rates[name]:.1f}" if "taskmanager" in rates else ""
        print(f"{name:14} {rates[name]:8,.0f} tasks/s, waits {wait_ms:6.1f} ms{ratio}")


if __name__ == "__main__":
    main()
