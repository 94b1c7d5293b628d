"""What may come between two awaits that belong together: a kill, a cancellation, a death, a stop, a lost file."""

import asyncio
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from taskmanager import TaskManager, TaskStatus
from taskmanager.engine.engine import Engine
from taskmanager.store.memory import MemoryStore
from taskmanager.store.sqlite import SqliteStore
from taskmanager.store.sqlite.presence import is_dead, lock_path
from taskmanager.store.watch_protocol import Whereabouts
from taskmanager.testing import Fault, FaultyStore, isolated

fcntl = pytest.importorskip("fcntl")
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


async def happens(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # other threads and processes do it
            await asyncio.sleep(0.002)


def engine_of(manager: TaskManager) -> Engine:
    lifecycle = manager._lifecycle
    assert lifecycle is not None
    return lifecycle.engine


def count(path: Path, table: str, where: str = "1") -> int:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        (found,) = connection.execute(f"SELECT count(*) FROM {table} WHERE {where}").fetchone()
    return int(found)


# The log was deleted, and is made anew: the store is closed for a while.

KILLED = """
import asyncio, os, signal
from pathlib import Path
from taskmanager import TaskManager

manager = TaskManager("tasks.db")

@manager.task(name="waits", persist=True)
async def waits(number: int) -> None: ...

async def main() -> None:
    await manager.start()
    await asyncio.gather(*(waits.with_options(delay=3600).enqueue(number).saved() for number in range(50)))
    os.unlink("tasks.db-wal")
    store = manager._lifecycle.engine.store
    while store._writer or store._reader or Path("tasks.db-shm").exists():
        await asyncio.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_a_kill_while_a_lost_log_is_made_anew_loses_nothing(tmp_path: Path) -> None:
    """All that the old log held was moved into the file before; there is no moment in which it stands nowhere."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, cwd=tmp_path, stderr=subprocess.PIPE)
    _, errors = await asyncio.wait_for(process.communicate(), 50)
    assert process.returncode == -signal.SIGKILL, errors.decode()
    path = tmp_path / "tasks.db"
    assert count(path, "taskmanager_tasks") == 50
    manager = TaskManager(path)
    async with manager:
        assert (await manager.counts())[TaskStatus.PENDING] == 50


async def test_a_look_that_is_broken_off_while_a_lost_log_is_made_anew_is_done_again(tmp_path: Path) -> None:
    """The store is closed in that moment, and must not stay so."""
    path = tmp_path / "tasks.db"
    manager = TaskManager(path)

    @manager.task(name="waits", persist=True)
    async def waits(number: int) -> None: ...

    async with manager:
        await waits.with_options(delay=3600).enqueue(1).saved()
        store = engine_of(manager).store
        assert isinstance(store, SqliteStore)
        path.with_name("tasks.db-wal").unlink()
        await happens(lambda: not (store._writer or store._reader or path.with_name("tasks.db-shm").exists()))
        (looking,) = (task for task in asyncio.all_tasks() if task.get_name() == "taskmanager-database-watch")
        looking.cancel()
        await asyncio.wait_for(waits.with_options(delay=3600).enqueue(2).saved(), 30)
    assert count(path, "taskmanager_tasks", "status = 'PENDING' AND claimed_by_worker_id IS NULL") == 2


async def test_the_file_is_looked_at_in_time_however_seldom_the_store_is_polled() -> None:
    """Whoever makes a lost log anew gives the others a moment to let go of it, and cannot know how they are set."""

    class Counting(MemoryStore):
        looks = polls = 0

        async def look_after(self) -> Whereabouts:
            self.looks += 1
            return Whereabouts.WHOLE

        async def changes(self) -> int:
            self.polls += 1
            return 0

    store = Counting()
    manager = TaskManager("never-opened.db", store_poll=60.0)
    async with isolated(manager, store=store) as world:
        looks, polls = store.looks, store.polls
        for _ in range(20):
            await world.advance(1)
        assert store.looks - looks >= 18
        assert store.polls - polls <= 2


# Somebody has died.


async def test_a_death_whose_lock_file_is_gone_keeps_nobody_from_claiming(tmp_path: Path) -> None:
    """It is given time to put the file back, in case that it lives; meanwhile there is other work, and other news."""
    path = tmp_path / "tasks.db"
    manager = TaskManager(path)

    @manager.task(name="works", persist=True)
    async def works(number: int) -> int:
        return number

    async with manager:
        await works.enqueue(0)
        with closing(sqlite3.connect(path)) as connection:
            columns = (
                "instance_name, hostname, pid, process_name, boot_id, started_at, stopped_at, live_tasks, updated_at"
            )
            connection.execute(
                f"INSERT INTO taskmanager_instances (instance_id, {columns}) SELECT 'gone', {columns}"
                " FROM taskmanager_instances"
            )
            connection.commit()
            recovering = "taskmanager_instances", "instance_id = 'gone'"
            lifecycle = manager._lifecycle
            assert lifecycle is not None
            await happens(lambda: "gone" in lifecycle.engine.neighbours.dead)
            connection.execute("BEGIN IMMEDIATE")
            task_id = manager.submit_in(connection, works, 1)
            connection.commit()
        assert await asyncio.wait_for(manager.handle(task_id), 30) == 1
        assert count(path, *recovering) == 1, "it still waits for the file to come back"
        await happens(lambda: count(path, *recovering) == 0)


# A stop.


async def test_a_file_that_is_replaced_while_a_claim_is_under_way_at_a_stop(tmp_path: Path) -> None:
    """What memory holds is written to the new file, and the stop ends in time."""
    path = tmp_path / "tasks.db"
    manager = TaskManager(path, drain_timeout=0.1)
    store = FaultyStore(manager._make_store())
    manager._make_store = store.as_store

    @manager.task(name="waits", persist=True)
    async def waits(number: int) -> None: ...

    await manager.start()
    kept = waits.with_options(delay=3600).enqueue(1)
    await kept.saved()
    store.plan = [Fault.hold(store.calls.count("claim") + 1, verb="claim", after=True)]
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        manager.submit_in(connection, waits, 2)
        connection.commit()
    await happens(lambda: "claim" in store.held)
    for name in ("tasks.db", "tasks.db-wal", "tasks.db-shm"):
        path.with_name(name).unlink()
    stop = asyncio.create_task(manager.stop())
    await asyncio.sleep(0)
    store.let_go()
    await asyncio.wait_for(stop, 30)
    assert count(path, "taskmanager_tasks", f"id = '{kept.task_id}' AND status = 'PENDING'") == 1
    async with manager:
        assert (await manager.get(kept.task_id)) is not None


def test_the_lock_of_a_thread_that_outlives_its_loop_is_put_back(tmp_path: Path) -> None:
    """Without it the instance would look dead, and what the thread does would be done again beside it."""
    database, gate, begun = tmp_path / "tasks.db", threading.Event(), threading.Event()
    manager = TaskManager(database, drain_timeout=0.0)
    ids: list[str] = []

    @manager.task(persist=True, requeue_on_interrupt=True)
    def stuck() -> None:
        begun.set()
        gate.wait(30)

    async def main() -> None:
        async with manager:
            stuck.enqueue()
            await asyncio.to_thread(begun.wait, 10)
            ids.append(engine_of(manager).identity.instance_id)

    before = set(threading.enumerate())
    try:
        asyncio.run(main())
        (instance_id,) = ids
        lock_path(database, instance_id).unlink()
        waiting = threading.Event()
        for _ in range(1_000):
            if lock_path(database, instance_id).exists():
                break
            waiting.wait(0.01)
        assert not is_dead(database, instance_id)
    finally:
        gate.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive(), thread
    assert is_dead(database, instance_id)


# A mistake of ours, or of a store, in the middle of a start or a stop.


@pytest.mark.parametrize("verb", ["look_after", "release", "forget_instances"])
async def test_a_stop_that_breaks_leaves_nothing_open_and_nobody_waiting(tmp_path: Path, verb: str) -> None:
    """It is told; and what it could not do is done by the next start, as after a kill."""
    path = tmp_path / "tasks.db"
    manager = TaskManager(path, drain_timeout=0.1)
    store = manager._make_store()
    make_store, manager._make_store = manager._make_store, lambda: store

    @manager.task(name="waits", persist=True)
    async def waits(number: int) -> None: ...

    async def broken(*_: object) -> None:
        raise ValueError(verb)

    await manager.start()
    instance_id = engine_of(manager).identity.instance_id
    handle = waits.with_options(delay=3600).enqueue(1)
    await handle.saved()
    waiting = asyncio.ensure_future(handle.result())
    await asyncio.sleep(0)
    setattr(store, verb, broken)
    with pytest.raises(ValueError, match=verb):
        await asyncio.wait_for(manager.stop(), 30)
    assert (await asyncio.wait_for(waiting, 5)).is_err()
    assert is_dead(path, instance_id)
    assert isinstance(store, SqliteStore)
    assert store._writer is None
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("taskmanager-")]
    manager._make_store = make_store
    async with manager:
        assert (await manager.counts())[TaskStatus.PENDING] == 1


async def test_a_start_that_is_cancelled_twice_lets_go_of_everything_all_the_same(tmp_path: Path) -> None:
    """A second Ctrl-C comes while the first one is being answered."""
    path = tmp_path / "tasks.db"
    manager = TaskManager(path)
    store = FaultyStore(manager._make_store(), [Fault.hold(1, verb="free_queues"), Fault.hold(1, verb="close")])
    manager._make_store = store.as_store

    @manager.task(name="waits", persist=True)
    async def waits(number: int) -> None: ...

    starting = asyncio.ensure_future(manager.start())
    for verb in ("free_queues", "close"):
        await happens(lambda wanted=verb: wanted in store.held)  # type: ignore[misc]  # bound here
        starting.cancel()
    await asyncio.sleep(0)
    assert not starting.done()
    store.let_go()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(starting, 30)
    assert isinstance(store.inner, SqliteStore)
    assert store.inner._writer is None
    store.plan = []
    async with manager:
        await waits.enqueue(1)
