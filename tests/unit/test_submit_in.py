"""Tasks written in the caller's own transaction: they exist exactly if it commits, and are noticed at once then."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

from taskmanager import ConfigurationError, StoreError, StoreUnavailable, TaskManager
from taskmanager.testing import isolated

pytestmark = pytest.mark.anyio

LONG_POLL_S = 60.0
"""So long that only the closer look after a submission can be what notices it."""
Submit = Callable[[int], Awaitable[str]]


class World:
    """A manager on a file that would look at it once a minute, with the task `work` and a table of the application."""

    def __init__(self, db: Path) -> None:
        self.db = db
        self.started: asyncio.Queue[int] = asyncio.Queue()
        self.manager = TaskManager(db, store_poll=LONG_POLL_S)

        async def work(number: int) -> None:
            self.started.put_nowait(number)

        async def tick() -> None:
            await asyncio.sleep(0.01)

        self.work = self.manager.task(name="work", persist=True)(work)
        self.tick = self.manager.task(name="tick", persist=False)(tick)

    async def next_start(self) -> int:
        return await asyncio.wait_for(self.started.get(), 20)

    async def some_looks_later(self) -> None:
        """Many closer looks have been made by now."""
        for _ in range(3):
            await self.tick.enqueue()

    @contextmanager
    def connected(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.db, isolation_level=None)) as connection:
            yield connection


@asynccontextmanager
async def running(db: Path) -> AsyncIterator[World]:
    world = World(db)
    async with world.manager:
        yield world


class Driver:
    """One way to hold a transaction: begin, submit, end."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def open(self) -> None: ...
    async def execute(self, sql: str) -> None: ...
    async def submit(self, number: int) -> str: ...
    async def close(self) -> None: ...


class Plain(Driver):
    async def open(self) -> None:
        self.connection = sqlite3.connect(self.world.db, isolation_level=None)

    async def execute(self, sql: str) -> None:
        self.connection.execute(sql)

    async def submit(self, number: int) -> str:
        return self.world.manager.submit_in(self.connection, self.world.work, number)

    async def close(self) -> None:
        self.connection.close()


class Async(Driver):
    async def open(self) -> None:
        self.connection = await aiosqlite.connect(self.world.db, isolation_level=None)

    async def execute(self, sql: str) -> None:
        await self.connection.execute(sql)

    async def submit(self, number: int) -> str:
        return await self.world.manager.submit_in(self.connection, self.world.work, number)

    async def close(self) -> None:
        await self.connection.close()


class Alchemy(Driver):
    async def open(self) -> None:
        sqlalchemy = pytest.importorskip("sqlalchemy")
        self.engine = sqlalchemy.create_engine(
            f"sqlite:///{self.world.db}", connect_args={"isolation_level": None}, poolclass=sqlalchemy.NullPool
        )
        self.connection = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")

    async def execute(self, sql: str) -> None:
        self.connection.exec_driver_sql(sql)

    async def submit(self, number: int) -> str:
        sql, parameters = self.world.manager.insert_statement(self.world.work, number)
        self.connection.exec_driver_sql(sql, parameters)
        return str(parameters[0])

    async def close(self) -> None:
        self.connection.close()
        self.engine.dispose()


@asynccontextmanager
async def opened(kind: type[Driver], world: World) -> AsyncIterator[Driver]:
    driver = kind(world)
    await driver.open()
    try:
        yield driver
    finally:
        await driver.close()


@pytest.mark.parametrize("kind", [Plain, Async, Alchemy])
async def test_a_task_starts_only_after_the_callers_transaction_has_committed(
    tmp_path: Path, kind: type[Driver]
) -> None:
    """It is noticed by looking closely, not by the poll. What was rolled back, all or to a savepoint, never was."""
    async with running(tmp_path / "tasks.db") as world, opened(kind, world) as driver:
        await driver.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY) STRICT")
        await driver.execute("BEGIN IMMEDIATE")
        await driver.execute("INSERT INTO orders VALUES (1)")
        kept = await driver.submit(1)
        await driver.execute("SAVEPOINT maybe")
        dropped = await driver.submit(2)
        await driver.execute("ROLLBACK TO maybe")
        await world.some_looks_later()
        assert world.started.empty()
        await driver.execute("COMMIT")
        assert await world.next_start() == 1
        await world.manager.handle(kept)
        assert await world.manager.get(dropped) is None

        await driver.execute("BEGIN IMMEDIATE")
        await driver.execute("INSERT INTO orders VALUES (2)")
        gone = await driver.submit(3)
        await driver.execute("ROLLBACK")
        await world.some_looks_later()
        assert world.started.empty()
        assert await world.manager.get(gone) is None
        with world.connected() as connection:
            assert connection.execute("SELECT id FROM orders").fetchall() == [(1,)]


async def test_a_commit_of_somebody_else_does_not_end_the_closer_look(tmp_path: Path) -> None:
    """The transaction that is waited for may come after any number of others."""
    async with running(tmp_path / "tasks.db") as world:
        with world.connected() as other, world.connected() as mine:
            other.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY) STRICT")
            mine.execute("BEGIN")
            sql, parameters = world.manager.insert_statement(world.work, 1)
            other.execute("INSERT INTO orders VALUES (1)")
            await world.some_looks_later()
            mine.execute(sql, parameters)
            mine.execute("COMMIT")
            assert await world.next_start() == 1


async def test_a_task_may_be_submitted_from_another_thread(tmp_path: Path) -> None:
    """As a handler in a thread pool does; the loop is told in its own thread."""
    async with running(tmp_path / "tasks.db") as world:

        def handler() -> None:
            with world.connected() as connection:
                connection.execute("BEGIN IMMEDIATE")
                world.manager.submit_in(connection, world.work, 1)
                connection.execute("COMMIT")

        await asyncio.to_thread(handler)
        assert await world.next_start() == 1


async def test_other_instances_and_later_starts_find_it_too(tmp_path: Path) -> None:
    """It is a free row like any other: whoever knows the function and has room takes it."""
    world = World(tmp_path / "tasks.db")
    async with world.manager:
        pass
    with world.connected() as connection:
        world.manager.submit_in(connection, world.work, 1)
    async with running(tmp_path / "tasks.db") as heir:
        assert await heir.next_start() == 1


_DIES = """
import os, sqlite3, sys
from taskmanager import TaskManager
manager = TaskManager(sys.argv[1])
@manager.task(name="work", persist=True)
async def work(number): ...
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
manager.submit_in(connection, work, 1)
if sys.argv[2] == "after":
    connection.execute("COMMIT")
os.kill(os.getpid(), 9)
"""


async def test_a_manager_that_is_never_started_writes_tasks_for_a_worker(tmp_path: Path) -> None:
    """The way to a worker beside a web application: who starts its manager runs all that it accepts by itself."""
    async with running(tmp_path / "t.db") as worker:
        web = World(tmp_path / "t.db")
        with web.connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            task_id = web.manager.submit_in(connection, web.work, 1)
            connection.execute("COMMIT")
        worker.manager._lifecycle.look_again()  # the store poll, which is far away here
        assert await worker.next_start() == 1
        assert await worker.manager.handle(task_id) is None
        assert web.started.empty()


@pytest.mark.parametrize(("when", "rows"), [("before", 0), ("after", 1)])
async def test_a_crash_leaves_what_was_committed_and_nothing_else(tmp_path: Path, when: str, rows: int) -> None:
    """The application's row and the task live or die together."""
    world = World(tmp_path / "tasks.db")
    async with world.manager:
        pass
    command = [sys.executable, "-c", _DIES, str(world.db), when]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = await asyncio.to_thread(subprocess.run, command, env=environment, capture_output=True, timeout=60)
    assert done.returncode == -9, done.stderr
    with world.connected() as connection:
        assert connection.execute("SELECT count(*) FROM taskmanager_tasks").fetchone() == (rows,)


async def test_a_submit_that_cannot_work_is_refused_in_words_that_help(tmp_path: Path) -> None:
    """A memory-only task, a thing that is no connection, another file, a snapshot that is stale."""
    async with running(tmp_path / "tasks.db") as world:
        manager: Any = world.manager
        with world.connected() as connection:
            with pytest.raises(ConfigurationError, match="give it persist=True"):
                manager.submit_in(connection, world.tick)
            connection.execute("BEGIN")
            connection.execute("SELECT count(*) FROM taskmanager_tasks").fetchone()
            await world.work.enqueue(0)
            with pytest.raises(StoreUnavailable, match="BEGIN IMMEDIATE"):
                manager.submit_in(connection, world.work, 1)
        with pytest.raises(ConfigurationError, match="sqlite3 or aiosqlite connection"):
            manager.submit_in(object(), world.work, 1)
        read_only = f"file:{world.db}?mode=ro"
        with closing(sqlite3.connect(read_only, uri=True)) as reader, pytest.raises(StoreError, match="may write"):
            manager.submit_in(reader, world.work, 1)
    unborn = TaskManager(tmp_path / "unborn.db")
    work = unborn.task(persist=True)(world.next_start)
    with (
        closing(sqlite3.connect(tmp_path / "unborn.db")) as early,
        pytest.raises(StoreError, match="start the manager"),
    ):
        unborn.submit_in(early, work)


async def test_submit_in_an_isolated_world_says_that_there_is_no_file(tmp_path: Path) -> None:
    """The task is persisted, so to call it memory-only would send its author to the wrong place."""
    manager = TaskManager(tmp_path / "tasks.db")

    @manager.task(persist=True)
    async def ship() -> None: ...

    with closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        async with isolated(manager):
            with pytest.raises(ConfigurationError, match="isolated.* in memory; test that with a manager on a file"):
                manager.submit_in(connection, ship)
            with pytest.raises(ConfigurationError, match="isolated"):
                manager.insert_statement(ship)


async def test_a_task_goes_only_into_the_file_of_its_manager(tmp_path: Path) -> None:
    """In that of another one it would wait for ever. Where the connection leads counts, not by what name it goes."""
    alias = tmp_path / "alias.db"
    async with running(tmp_path / "tasks.db") as world, running(tmp_path / "other.db") as other:
        manager: Any = world.manager
        alias.symlink_to(world.db)
        for path in (":memory:", other.db):
            with closing(sqlite3.connect(path)) as elsewhere:
                with pytest.raises(StoreError, match=r"not to .*tasks\.db"):
                    manager.submit_in(elsewhere, world.work, 1)
                assert not elsewhere.in_transaction
            async with aiosqlite.connect(path) as elsewhere_async:
                with pytest.raises(StoreError, match=r"not to .*tasks\.db"):
                    await manager.submit_in(elsewhere_async, world.work, 1)
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as attached:
            attached.execute("ATTACH ? AS tasks", (str(world.db),))
            manager.submit_in(attached, world.work, 2)
        with closing(sqlite3.connect(alias, isolation_level=None)) as connection:
            connection.row_factory = lambda _cursor, _row: 1 / 0
            connection.text_factory = bytes
            manager.submit_in(connection, world.work, 3)
        assert {await world.next_start(), await world.next_start()} == {2, 3}
        with world.connected() as connection:
            statements: list[str] = []
            connection.set_trace_callback(statements.append)
            manager.submit_in(connection, world.work, 4)
        assert [each.split()[0] for each in statements] == ["PRAGMA", "INSERT"], "no snapshot before the write lock"
        assert other.started.empty()
