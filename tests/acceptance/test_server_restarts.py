"""A server that goes away under load and comes back: nothing is lost of what was promised, and nothing begins twice."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Literal

import pytest

from tests.acceptance.server_world import Records, ServerWorld, eventually
from tests.acceptance.tcp_cutter import Cutter
from tests.conftest import NO_SERVER
from tests.servers import Cluster, find_binaries

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
SCHEMA = "jobs"


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    """A server that only this file uses, because it is restarted."""
    if find_binaries() is None:
        pytest.skip(NO_SERVER)
    made = Cluster.create()
    yield made
    made.destroy()


@pytest.fixture
def schema(server: Cluster) -> Iterator[str]:
    """A schema that only this test has."""
    yield SCHEMA
    server.psql(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")


@pytest.fixture
def records() -> Iterator[Records]:
    """What the manager says."""
    handler = Records()
    logger = logging.getLogger("taskmanager")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


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
            ended = server.psql(
                "SELECT pg_terminate_backend(pid) FROM ("
                " SELECT pid, row_number() OVER (ORDER BY backend_start) AS number FROM pg_stat_activity"
                f" WHERE application_name = 'taskmanager') AS sessions WHERE true {which}"
            )
            assert ended
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


async def test_a_server_set_to_read_only_is_away_until_it_can_be_written(
    server: Cluster, schema: str, records: Records
) -> None:
    """Whoever could write is led elsewhere, or waits. Nothing that waits is lost."""
    world = ServerWorld(server.url(schema))
    await world.manager.start()
    async with world.load():
        await world.some_more()
        server.psql("ALTER DATABASE postgres SET default_transaction_read_only = on")
        terminate(server)
        try:
            await eventually(lambda: records.count("the store is unavailable") == 1)
        finally:
            server.psql("BEGIN READ WRITE; ALTER DATABASE postgres RESET ALL; COMMIT")
        await world.some_more()
    await world.stop()
    world.judge(server, schema)


def terminate(server: Cluster) -> None:
    """End all sessions of managers."""
    server.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'taskmanager'")


@pytest.mark.parametrize("setting", ["statement_timeout = '1ms'", "idle_in_transaction_session_timeout = '1ms'"])
async def test_short_timeouts_of_the_server_lose_and_double_nothing(server: Cluster, schema: str, setting: str) -> None:
    """A manager under timeouts that break off much of what it does gets through, or goes on when they are gone."""
    world = ServerWorld(server.url(schema))
    await world.manager.start()
    async with world.load():
        await world.some_more()
        server.psql(f"ALTER DATABASE postgres SET {setting}")
        terminate(server)
        try:
            await asyncio.sleep(1.0)
        finally:
            server.psql("SET statement_timeout = 0; ALTER DATABASE postgres RESET ALL")
            terminate(server)
        await world.some_more()
    await world.stop()
    world.judge(server, schema)
