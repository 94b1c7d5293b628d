"""A server that runs out of something: the manager says what, waits until there is some again, and loses nothing."""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import psycopg
import pytest

from taskmanager import StoreUnavailable
from tests.acceptance.server_world import (
    OURS,
    SCHEMA,
    Records,
    ServerWorld,
    SmallDisk,
    app,
    eventually,
    records,
    schema,
    server_of_its_own,
)
from tests.conftest import NO_SERVER
from tests.servers import Cluster, find_binaries

__all__ = ["app", "records", "schema"]  # fixtures

pytestmark = [pytest.mark.anyio, pytest.mark.long]
MAX_CONNECTIONS: Final = 20
DISK_MB: Final = 64
FAILURES: Final = 10
"""So often a commit fails before there is room again."""
REFUSALS: Final = 30
"""So often the manager is refused before there is room again."""
LONG_S: Final = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    """A server that only this file uses, with few connections."""
    with server_of_its_own() as made:
        made.set("max_connections", str(MAX_CONNECTIONS))
        made.restart()
        yield made


class Crowd:
    """Sessions of another program, which takes every connection that it can get. The last ones are for superusers."""

    def __init__(self, server: Cluster) -> None:
        server.psql("CREATE ROLE crowd LOGIN")
        self._server = server
        self._sessions: list[psycopg.Connection[Any]] = []

    def take_all(self) -> None:
        """Take what is free, then end the sessions of managers, and take theirs before they do."""
        self._take()
        free_looks = 0
        while free_looks < 5:  # a session that is being made is not listed yet
            if self._server.psql(f"SELECT pg_terminate_backend(pid) {OURS}"):
                free_looks = 0
                self._take()
            else:
                free_looks += 1
                time.sleep(0.1)

    def _take(self) -> None:
        with suppress(psycopg.OperationalError):
            while True:
                self._sessions.append(psycopg.connect(self._server.url(user="crowd")))

    def leave(self) -> None:
        """Give them back."""
        for each in self._sessions:
            each.close()
        self._sessions.clear()


@pytest.fixture
def crowd(server: Cluster) -> Iterator[Crowd]:
    """They leave at the end."""
    made = Crowd(server)
    yield made
    made.leave()
    server.psql("DROP ROLE crowd")


def refusals(server: Cluster) -> int:
    """Return how often somebody has got no connection."""
    return server.log.read_text(errors="replace").count("remaining connection slots are reserved")


async def test_server_without_free_connections_is_waited_for(
    server: Cluster, schema: str, app: str, crowd: Crowd, records: Records
) -> None:
    """However often it is tried, it is said once what is missing, and what to do about it."""
    world = ServerWorld(app)
    await world.manager.start()
    async with world.load():
        await world.some_more()
        await asyncio.to_thread(crowd.take_all)
        before = refusals(server)
        await eventually(lambda: records.count("connection slots are reserved") >= 1, LONG_S)
        await eventually(lambda: refusals(server) >= before + REFUSALS, LONG_S)
        await eventually(lambda: records.count("could not be made anew so far") >= 1, LONG_S)
        with pytest.raises(StoreUnavailable, match="no connection is free; raise max_connections"):
            await world.once.enqueue().saved(timeout=0.1)
        crowd.leave()
        await world.some_more()
    await world.stop()
    world.judge(server, schema)
    for words in ("the store is unavailable", "the store is back", "could not be made anew so far"):
        assert records.count(words) == 1, records.told
    assert len(records.told) == len(set(records.told)), records.told


@pytest.fixture
def without_notices(server: Cluster) -> Iterator[Cluster]:
    """A server that refuses each notice, as one does whose queue of notices is full."""
    server.psql("REVOKE EXECUTE ON FUNCTION pg_notify(text, text) FROM PUBLIC")
    yield server
    server.psql("GRANT EXECUTE ON FUNCTION pg_notify(text, text) TO PUBLIC")


async def test_server_that_refuses_notices_costs_no_commit(
    without_notices: Cluster, schema: str, app: str, records: Records
) -> None:
    """Instances that hear nothing of each other poll. The session that would have notified is kept."""
    one, two = ServerWorld(app), ServerWorld(app)
    await one.manager.start()
    await two.manager.start()
    async with one.load(), two.load():
        await asyncio.gather(one.some_more(300), two.some_more(300))
    await one.stop()
    await two.stop()
    assert "permission denied for function pg_notify" in without_notices.log.read_text(errors="replace")
    assert not records.told
    one.starts.update(two.starts)
    one.saved |= two.saved
    one.judge(without_notices, schema)


@pytest.fixture
def small() -> Iterator[Cluster]:
    """A server of its own, which keeps little of its log. Mounting needs the rights of root."""
    if find_binaries() is None:
        pytest.skip(NO_SERVER)
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    made = Cluster.create()
    made.set("wal_keep_size", "0")
    made.set("max_wal_size", "32MB")
    yield made
    made.destroy()


@pytest.fixture
def disk(small: Cluster, request: pytest.FixtureRequest) -> Iterator[SmallDisk]:
    """The disk on which its tables are, or its log."""
    made = SmallDisk.instead_of(request.param, small, DISK_MB)
    yield made
    small.stop("immediate")
    made.unmount()


@pytest.mark.parametrize("disk", ["base", "pg_wal"], indirect=True)
async def test_server_whose_disk_is_full_is_waited_for(small: Cluster, disk: SmallDisk, records: Records) -> None:
    """Where tables cannot grow, each commit fails. Where the log cannot, the server panics, and somebody starts it."""
    world = ServerWorld(small.url(SCHEMA))
    await world.manager.start()
    async with world.load():
        await world.some_more()
        await asyncio.to_thread(disk.fill)
        await eventually(lambda: records.count("the server's disk is full; free some space there") == 1, LONG_S)
        if disk.folder.name == "pg_wal":
            await eventually(lambda: not small.is_running, LONG_S)
        else:
            await eventually(lambda: small.log.read_text(errors="replace").count("No space left") >= FAILURES, LONG_S)
        disk.empty()
        if not small.is_running:
            await asyncio.to_thread(small.start)
        await world.some_more()
    await world.stop()
    world.judge(small, SCHEMA)
    for words in ("the store is unavailable", "the store is back", "the server's disk is full"):
        assert records.count(words) == 1, records.told
    assert len(records.told) == len(set(records.told)), records.told
