"""A server that goes away under load and comes back: nothing is lost of what was promised, and nothing begins twice."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final, Literal

import pytest

from tests.acceptance.server_world import (
    OURS,
    Records,
    ServerWorld,
    app,
    eventually,
    records,
    schema,
    server_of_its_own,
    terminate,
)
from tests.acceptance.tcp_cutter import Cutter
from tests.servers import EVERYBODY, Cluster

__all__ = ["app", "records", "schema"]  # fixtures

pytestmark = [pytest.mark.anyio, pytest.mark.long]


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    """A server that only this file uses, because it is restarted."""
    with server_of_its_own() as made:
        yield made


@pytest.fixture
async def cutter(server: Cluster) -> AsyncIterator[Cutter]:
    """A way to the server that can be cut."""
    made = Cutter(server.port)
    await made.open()
    yield made
    await made.close()


@pytest.mark.parametrize("how", ["fast", "immediate", "kill"])
async def test_server_restart_under_load_loses_and_doubles_nothing(
    server: Cluster, schema: str, records: Records, how: Literal["fast", "immediate", "kill"]
) -> None:
    """The manager goes on by itself. It is told once that the server went away, and once that it is back."""
    world = ServerWorld(server.url(schema))
    await world.manager.start()
    world.gate.clear()
    running = world.held.enqueue()
    await running.saved()
    async with world.load():
        await world.some_more()
        await asyncio.to_thread(server.kill if how == "kill" else lambda: server.stop(how))
        await eventually(lambda: records.count("the store is unavailable") == 1)
        await asyncio.to_thread(server.start)
        await world.some_more()
    await world.stop()
    await running
    world.judge(server, schema)
    assert records.count("the store is unavailable") == records.count("the store is back") == 1, records.told
    assert len(records.told) <= 2, records.told


async def test_sessions_terminated_in_the_middle_of_commits_double_nothing(
    server: Cluster, schema: str, records: Records
) -> None:
    """Nobody knows what has become of such a commit, so its rows are looked at and adopted. No task is judged dead."""
    world = ServerWorld(server.url(schema))
    await world.manager.start()
    world.gate.clear()
    running = world.held.enqueue()
    await running.saved()
    async with world.load():
        await world.some_more()
        for chosen in (1, 2, 3, "ALL", 1, 2, 3, "ALL"):
            which = "" if chosen == "ALL" else f"AND number = {chosen}"
            await eventually(lambda: server.psql(f"SELECT count(*) {OURS}") == [("3",)])
            ended = server.psql(
                "SELECT pg_terminate_backend(pid) FROM ("
                f" SELECT pid, row_number() OVER (ORDER BY backend_start) AS number {OURS}"
                f") AS numbered WHERE true {which}"
            )
            assert len(ended) == (3 if chosen == "ALL" else 1)
            await world.some_more(10)
    assert running.status == "RUNNING"
    await world.stop()
    await running
    world.judge(server, schema)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_connections_cut_at_a_commit_double_nothing(
    server: Cluster, schema: str, cutter: Cutter, when: Literal["before", "after"]
) -> None:
    """Cut before the server hears of the commit it must be repeated; cut before its answer comes it must not."""
    world = ServerWorld(cutter.url(server.url(schema)))
    await world.manager.start()
    async with world.load():
        await world.some_more()
        for count in range(1, 6):
            cutter.cut_at_next_commit(when)
            await eventually(lambda count=count: cutter.cut_count == count)  # type: ignore[misc]
            await world.some_more(10)
    await world.stop()
    world.judge(server, schema)


ROLES: Final = {
    "read-only": ("SET default_transaction_read_only = on", "RESET ALL"),
    "no-connection": ("CONNECTION LIMIT 0", "CONNECTION LIMIT -1"),
    "no-login": ("NOLOGIN", "LOGIN"),
    "statement-timeout": ("SET statement_timeout = 1", "RESET ALL"),
    "idle-timeout": ("SET idle_in_transaction_session_timeout = 1", "RESET ALL"),
    "lock-timeout": ("SET lock_timeout = 1", "RESET ALL"),
    "serializable": ("SET default_transaction_isolation = serializable", "RESET ALL"),
}


async def test_settings_that_stop_a_role_are_waited_out(server: Cluster, schema: str, app: str) -> None:
    """Whatever a DBA sets, what waits is written as soon as that is possible again, and nothing begins twice."""
    world = ServerWorld(app)
    await world.manager.start()
    async with world.load():
        for stop, go_on in ROLES.values():
            await world.some_more(20)
            server.psql(f"ALTER ROLE app {stop}")
            terminate(server)
            await asyncio.sleep(0.5)
            server.psql(f"ALTER ROLE app {go_on}")
            terminate(server)
        await world.some_more(20)
    await world.stop()
    world.judge(server, schema)


async def test_a_revoked_right_is_waited_for(server: Cluster, schema: str, app: str, records: Records) -> None:
    """The message names what is missing. When the right is granted again, all is written."""
    world = ServerWorld(app)
    await world.manager.start()
    table = f"{schema}.taskmanager_tasks"
    async with world.load():
        await world.some_more()
        server.psql(f"REVOKE ALL ON {table} FROM app")
        await eventually(lambda: records.count("a right is missing") == 1)
        server.psql(f"GRANT ALL ON {table} TO app")
        await world.some_more()
    await world.stop()
    world.judge(server, schema)


async def test_a_locked_table_is_waited_for(server: Cluster, schema: str, app: str) -> None:
    """A migration by somebody else, or a dump, holds a lock; a deadlock with it is done again."""
    world = ServerWorld(app)
    await world.manager.start()
    async with world.load():
        await world.some_more()
        await asyncio.to_thread(
            server.psql,
            f"BEGIN; LOCK {schema}.taskmanager_task_attempts; SELECT pg_sleep(0.3);"
            f" LOCK {schema}.taskmanager_tasks; SELECT pg_sleep(0.3); COMMIT",
        )
        await world.some_more()
    await world.stop()
    world.judge(server, schema)


async def test_a_password_that_changes_is_read_again(server: Cluster, schema: str, app: str, tmp_path: Path) -> None:
    """The file of passwords is read at each connect. No message shows one."""
    passfile = tmp_path / "passwords"
    server.psql("ALTER ROLE app PASSWORD 'first'")
    server.admit("host all app all scram-sha-256\n" + EVERYBODY)
    _write_password(passfile, "first")
    world = ServerWorld(f"{app}&passfile={passfile}")
    try:
        await world.manager.start()
        async with world.load():
            await world.some_more()
            server.psql("ALTER ROLE app PASSWORD 'second'")
            terminate(server)
            await asyncio.sleep(0.3)
            _write_password(passfile, "second")
            await world.some_more()
        await world.stop()
    finally:
        server.admit(EVERYBODY)
    world.judge(server, schema)


def _write_password(passfile: Path, password: str) -> None:
    passfile.write_text(f"*:*:*:app:{password}\n")
    passfile.chmod(0o600)
