"""Tasks written in the caller's own transaction on a server, through the connections of all drivers.

`test_submit_in.py` asks the same of a file.
"""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from taskmanager import ConfigurationError, StoreError, StoreUnavailable, TaskManager, TaskStatus
from tests.servers import Cluster

psycopg = pytest.importorskip("psycopg")

pytestmark = pytest.mark.anyio


class World:
    """A manager on a schema, with the task `work` and a table of the application beside its tables."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.address, _, self.schema = url.partition("?schema=")
        self.started: asyncio.Queue[int] = asyncio.Queue()
        self.manager = TaskManager(url, store_poll=60.0)

        async def work(number: int) -> None:
            self.started.put_nowait(number)

        self.work = self.manager.task(name="work", persist=True)(work)

    async def next_start(self) -> int:
        return await asyncio.wait_for(self.started.get(), 20)

    def connected(self, **options: Any) -> "closing[psycopg.Connection[Any]]":
        return closing(psycopg.connect(self.address, **options))

    def rows(self) -> list[tuple[Any, ...]]:
        """The ids and arguments of all tasks."""
        with self.connected(autocommit=True) as connection:
            return connection.execute(f"SELECT id, args FROM {self.schema}.taskmanager_tasks".encode()).fetchall()


@asynccontextmanager
async def running(url: str) -> AsyncIterator[World]:
    world = World(url)
    async with world.manager:
        yield world


async def made(url: str) -> World:
    """A world whose manager has made the tables and runs no more."""
    async with running(url) as world:
        return world


async def _now(value: str | Awaitable[str]) -> str:
    return value if isinstance(value, str) else await value


class Driver:
    """One way to hold a transaction: begin, submit, end."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.connection: Any = None

    async def open(self) -> None: ...
    async def execute(self, sql: str) -> None: ...

    async def submit(self, number: int) -> str:
        submitted: Any = self.world.manager.submit_in(self.connection, self.world.work, number)
        return await _now(submitted)

    async def close(self) -> None:
        await self.connection.close()


class Psycopg(Driver):
    def options(self) -> dict[str, Any]:
        return {}

    async def open(self) -> None:
        self.connection = psycopg.connect(self.world.address, autocommit=True, **self.options())

    async def execute(self, sql: str) -> None:
        psycopg.Cursor(self.connection).execute(sql.encode())

    async def close(self) -> None:
        self.connection.close()


class OddPsycopg(Psycopg):
    """Rows that cannot be made, and cursors with marks of their own."""

    def options(self) -> dict[str, Any]:
        return {"row_factory": lambda _cursor: 1 / 0, "cursor_factory": psycopg.RawCursor}

    async def execute(self, sql: str) -> None:
        psycopg.Cursor(self.connection, row_factory=psycopg.rows.tuple_row).execute(sql.encode())


class PipelinePsycopg(Psycopg):
    """Statements whose answers are read later."""

    async def submit(self, number: int) -> str:
        with self.connection.pipeline():
            return await super().submit(number)


class AsyncPsycopg(Driver):
    async def open(self) -> None:
        self.connection = await psycopg.AsyncConnection.connect(
            self.world.address,
            autocommit=True,
            row_factory=lambda _cursor: 1 / 0,
            cursor_factory=psycopg.AsyncRawCursor,
        )

    async def execute(self, sql: str) -> None:
        await psycopg.AsyncCursor(self.connection, row_factory=psycopg.rows.tuple_row).execute(sql.encode())


class Asyncpg(Driver):
    async def open(self) -> None:
        asyncpg = pytest.importorskip("asyncpg")
        self.connection = await asyncpg.connect(self.world.address)

    async def execute(self, sql: str) -> None:
        await self.connection.execute(sql)


class PooledAsyncpg(Driver):
    """What a pool lends."""

    async def open(self) -> None:
        asyncpg = pytest.importorskip("asyncpg")
        self.pool = await asyncpg.create_pool(self.world.address, min_size=1, max_size=1)
        self.connection = await self.pool.acquire()

    async def execute(self, sql: str) -> None:
        await self.connection.execute(sql)

    async def close(self) -> None:
        await self.pool.release(self.connection)
        await self.pool.close()


def _dialect(world: World, driver: str) -> str:
    pytest.importorskip("sqlalchemy")
    pytest.importorskip(driver)
    return urlsplit(world.address)._replace(scheme=f"postgresql+{driver}").geturl()


class Alchemy(Driver):
    async def open(self) -> None:
        url = _dialect(self.world, "psycopg")
        import sqlalchemy

        self.engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
        self.connection = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")

    async def execute(self, sql: str) -> None:
        self.connection.exec_driver_sql(sql)

    async def close(self) -> None:
        self.connection.close()
        self.engine.dispose()


class AsyncAlchemy(Driver):
    driver = "psycopg"

    async def open(self) -> None:
        url = _dialect(self.world, self.driver)
        import sqlalchemy
        from sqlalchemy.ext.asyncio import create_async_engine

        self.engine = create_async_engine(url, poolclass=sqlalchemy.NullPool)
        self.connection = await self.engine.connect()
        await self.connection.execution_options(isolation_level="AUTOCOMMIT")

    async def execute(self, sql: str) -> None:
        await self.connection.exec_driver_sql(sql)

    async def close(self) -> None:
        await self.connection.close()
        await self.engine.dispose()


class AsyncpgAlchemy(AsyncAlchemy):
    driver = "asyncpg"


DRIVERS = [
    Psycopg, OddPsycopg, PipelinePsycopg, AsyncPsycopg, Asyncpg, PooledAsyncpg, Alchemy, AsyncAlchemy, AsyncpgAlchemy
]  # fmt: skip


@asynccontextmanager
async def opened(kind: type[Driver], world: World) -> AsyncIterator[Any]:
    driver = kind(world)
    await driver.open()
    try:
        yield driver
    finally:
        await driver.close()


@pytest.mark.parametrize("kind", DRIVERS)
async def test_submit_in_on_a_server_is_part_of_the_transaction(schema_url: str, kind: type[Driver]) -> None:
    """It starts when that has committed. What was rolled back, all or to a savepoint, never was."""
    async with running(schema_url) as world, opened(kind, world) as driver:
        await driver.execute("BEGIN")
        kept = await driver.submit(1)
        await driver.execute("SAVEPOINT maybe")
        dropped = await driver.submit(2)
        await driver.execute("ROLLBACK TO maybe")
        assert world.rows() == []
        await driver.execute("COMMIT")
        assert await world.next_start() == 1
        await world.manager.handle(kept)
        await driver.execute("BEGIN")
        gone = await driver.submit(3)
        await driver.execute("ROLLBACK")
        assert await world.manager.get(dropped) is None
        assert await world.manager.get(gone) is None
        for number in range(10, 20):  # each in a transaction of its own; drivers prepare what comes often
            task_id = await driver.submit(number)
            await world.manager.join()
            assert await world.next_start() == number
            assert (await world.manager.handle(task_id).info()).status is TaskStatus.COMPLETED


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_submit_in_takes_the_transaction_of_a_session(schema_url: str, driver: str) -> None:
    """SQLAlchemy begins by itself, and its session commits what came through its connection."""
    world = await made(schema_url)
    url = _dialect(world, driver)
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    engine = create_async_engine(url)
    manager: Any = world.manager
    async with AsyncSession(engine) as session:
        with pytest.raises(ConfigurationError, match=r"session\.connection\(\)"):
            manager.submit_in(session, world.work, 0)
        await manager.submit_in(await session.connection(), world.work, 1)
        await session.rollback()
        task_id = await manager.submit_in(await session.connection(), world.work, 2)
        assert world.rows() == []
        await session.commit()
    await engine.dispose()
    assert world.rows() == [(task_id, "[2]")]


@pytest.fixture
def sender(cluster: Cluster, schema_url: str) -> Iterator[str]:
    """The address of the schema for a role that has no right yet."""
    name = schema_url.partition("?schema=")[2]
    cluster.psql(f"CREATE ROLE sender_{name} LOGIN")
    yield cluster.url(name, user=f"sender_{name}")
    cluster.psql(f"DROP OWNED BY sender_{name}; DROP ROLE sender_{name}")


@pytest.mark.parametrize("kind", DRIVERS)
async def test_submit_in_on_a_server_needs_the_right_to_insert_only(
    schema_url: str, sender: str, cluster: Cluster, kind: type[Driver]
) -> None:
    """Also where the id is taken already. Without the right the error says which one is missing."""
    owner = await made(schema_url)
    world = World(sender)
    role = f"sender_{world.schema}"
    async with opened(kind, world) as driver:
        if kind is not PipelinePsycopg:  # where the error comes later, at the end of the pipeline
            with pytest.raises(StoreError, match=r"permission denied.*needs USAGE.*INSERT"):
                await driver.submit(0)
        cluster.psql(f"GRANT USAGE ON SCHEMA {world.schema} TO {role}")
        if kind is not PipelinePsycopg:
            with pytest.raises(StoreError, match=r"permission denied.*needs USAGE.*INSERT"):
                await driver.submit(0)
        cluster.psql(f"GRANT INSERT ON {world.schema}.taskmanager_tasks TO {role}")
        task_id = await driver.submit(1)
        assert owner.rows() == [(task_id, "[1]")]
        keyed = world.work.with_options(idempotency_key="k")
        manager: Any = world.manager
        first = await _now(manager.submit_in(driver.connection, keyed, 2))
        assert await _now(manager.submit_in(driver.connection, keyed, 3)) == first
        assert sorted(args for _, args in owner.rows()) == ["[1]", "[2]"]


async def test_submit_in_leaves_the_task_of_a_key_as_it_is(schema_url: str) -> None:
    """As in a file: also one that has ended, and one that another transaction has written meanwhile."""
    async with running(schema_url) as world:
        keyed = world.work.with_options(idempotency_key="k")
        handle = keyed.enqueue(1)
        await handle
        with world.connected() as connection:
            assert world.manager.submit_in(connection, keyed, 2) == handle.task_id
            connection.commit()
        info = await world.manager.get(handle.task_id)
        assert info is not None
        assert (info.args, info.status.value) == ("[1]", "COMPLETED")
        assert len(world.rows()) == 1


async def test_insert_statement_on_a_server_serves_every_driver(schema_url: str) -> None:
    """Its marks are `%s`, and the first parameter is the id."""
    async with running(schema_url) as world:
        with world.connected(autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
            sql, parameters = world.manager.insert_statement(world.work, 7)
            assert sql.count("%s") == len(parameters)
            assert "RETURNING" not in sql
            connection.execute(sql.encode(), parameters)
            assert await world.next_start() == 7
            await world.manager.handle(str(parameters[0]))


async def test_submit_in_takes_a_schema_with_an_odd_name(cluster: Cluster) -> None:
    """Percent signs, quotes, dollars and capitals mean nothing."""
    name = "Jo%s b's $1 %(x)s"
    url = cluster.url(name)
    try:
        world = World(url)
        world.address, world.schema = url.partition("?")[0], f'"{name}"'
        async with world.manager:
            for kind in (Psycopg, AsyncPsycopg, Asyncpg, Alchemy, AsyncAlchemy, AsyncpgAlchemy):
                async with opened(kind, world) as driver:
                    await driver.submit(1)
                    assert await world.next_start() == 1
    finally:
        cluster.psql(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')


KINDS = [Psycopg, AsyncPsycopg, Asyncpg, Alchemy, AsyncAlchemy, AsyncpgAlchemy]


@pytest.mark.parametrize("kind", KINDS)
async def test_submit_in_on_a_server_says_what_to_do_about_an_error(schema_url: str, kind: type[Driver]) -> None:
    """No tables yet, a transaction that only reads, one that has failed before."""
    world = World(schema_url)
    async with opened(kind, world) as driver:
        with pytest.raises(StoreError, match="start the manager"):
            await driver.submit(1)
        async with world.manager:
            pass
        await driver.execute("BEGIN READ ONLY")
        with pytest.raises(StoreError, match="may write"):
            await driver.submit(1)
        with pytest.raises(StoreError, match="roll back, and repeat all of it"):
            await driver.submit(1)
        await driver.execute("ROLLBACK")
        await driver.submit(2)
        assert [args for _, args in world.rows()] == ["[2]"]


@pytest.mark.parametrize("kind", KINDS)
async def test_submit_in_may_be_repeated_where_others_were_in_the_way(schema_url: str, kind: type[Driver]) -> None:
    """The key was written by a transaction that this one cannot see: `StoreUnavailable`, as for a stale snapshot."""
    world = await made(schema_url)
    keyed, manager = world.work.with_options(idempotency_key="k"), world.manager
    async with opened(kind, world) as driver:
        await driver.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await driver.submit(1)
        with world.connected(autocommit=True) as other:
            manager.submit_in(other, keyed, 2)
        with pytest.raises(StoreUnavailable, match="roll back, and repeat all of it"):
            await _now(manager.submit_in(driver.connection, keyed, 3))
        await driver.execute("ROLLBACK")
        await _now(manager.submit_in(driver.connection, keyed, 3))
        assert [args for _, args in world.rows()] == ["[2]"]


@pytest.mark.parametrize("kind", KINDS)
async def test_submit_in_refuses_another_database_of_the_same_names(
    schema_url: str, cluster: Cluster, kind: type[Driver]
) -> None:
    """There the task would wait for ever. A copy has the same schema, and even the same numbers of its tables."""
    async with running(schema_url) as world:
        copy = f"copy_{world.schema}"
        cluster.psql(f"CREATE DATABASE {copy}")
        try:
            of_copy = World(schema_url.replace("/postgres?", f"/{copy}?"))
            async with of_copy.manager:
                pass
            async with opened(kind, of_copy) as driver:
                manager: Any = world.manager
                with pytest.raises(StoreError, match="another database"):
                    await _now(manager.submit_in(driver.connection, world.work, 1))
                assert of_copy.rows() == []
        finally:
            cluster.psql(f"DROP DATABASE {copy} WITH (FORCE)")


def test_submit_in_on_a_server_refuses_what_is_no_connection_to_it(tmp_path: Path) -> None:
    """A file, a cursor, an address, what a driver lends inside. No server is asked."""
    manager: Any = TaskManager("postgresql://localhost:1/nowhere")
    work = manager.task(name="work", persist=True)(len)
    sqlalchemy = pytest.importorskip("sqlalchemy")
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/t.db", poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        with pytest.raises(StoreError, match="leads to sqlite"):
            manager.submit_in(connection, work, "")
        for odd in (object(), "postgresql://localhost", engine, connection.connection):
            with pytest.raises(ConfigurationError, match="connection of psycopg, asyncpg or SQLAlchemy"):
                manager.submit_in(odd, work, "")
    engine.dispose()


IMPORTS = """
import sys
import psycopg
from taskmanager import ConfigurationError, TaskManager
manager = TaskManager("postgresql://localhost:1/nowhere")
@manager.task(persist=True)
async def work(number: int): ...
try:
    manager.submit_in(object(), work, 1)
except ConfigurationError:
    print(sorted({"asyncpg", "sqlalchemy"} & set(sys.modules)))
"""


def test_submit_in_imports_no_driver_that_the_caller_does_not_use() -> None:
    """Whoever has a connection of a driver has imported it."""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", IMPORTS], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
