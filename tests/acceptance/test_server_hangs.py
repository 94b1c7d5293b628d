"""Sessions that hang and are not cut: the server's process for them stands still, so nothing is answered or refused."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from taskmanager import StoreUnavailable
from tests.acceptance.server_world import OURS, Records, ServerWorld, eventually, records, schema, server_of_its_own
from tests.servers import Cluster

__all__ = ["records", "schema"]  # fixtures

pytestmark = [pytest.mark.anyio, pytest.mark.long]
HANG: Final = "SELECT pg_sleep(13)"
"""For longer than the grace after which an instance without its lock, that is silent, is dead."""
USES: Final = ("writer", "reader", "watch")


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    """A server that only this file uses."""
    with server_of_its_own() as made:
        yield made


def sessions(server: Cluster, use: str) -> set[int]:
    """Return the server's processes for what managers use so."""
    pids = {int(pid) for (pid,) in server.psql(f"SELECT pid {OURS} AND application_name LIKE 'taskmanager {use}%'")}
    assert pids
    return pids


@contextmanager
def hanging(pids: set[int]) -> Iterator[None]:
    """Let these processes stand still."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("used", [*((use,) for use in USES), USES], ids=[*USES, "all"])
async def test_instance_whose_sessions_hang_is_not_taken_for_dead(
    server: Cluster, schema: str, records: Records, used: tuple[str, ...]
) -> None:
    """It lives, and its tasks stay its own. What it has accepted meanwhile is written when the server answers again,
    and the other instance works all the time.
    """
    one = ServerWorld(server.url(schema))
    await one.manager.start()
    pids = set[int]().union(*(sessions(server, use) for use in used))
    two = ServerWorld(server.url(schema))
    await two.manager.start()
    one.gate.clear()
    running = one.held.enqueue()
    await eventually(lambda: one.starts[running.task_id])
    async with one.load(), two.load():
        await asyncio.gather(one.some_more(), two.some_more())
        with hanging(pids):
            await asyncio.gather(asyncio.to_thread(server.psql, HANG), two.some_more(100))
        await asyncio.gather(one.some_more(100), two.some_more(100))
    await one.stop()
    await two.stop()
    await running
    one.starts.update(two.starts)
    one.saved |= two.saved
    one.judge(server, schema)
    assert records.count("claim lost") == records.count("WORKER_CRASHED") == 0, records.told


async def test_stop_does_not_wait_for_sessions_that_hang(server: Cluster, schema: str) -> None:
    """It ends in its time, and says what could not be written."""
    world = ServerWorld(server.url(schema), drain_timeout=0.1)
    await world.manager.start()
    await world.once.enqueue().saved()
    with hanging(set[int]().union(*(sessions(server, use) for use in USES))):
        handle = world.once.with_options(delay=3600).enqueue()
        async with asyncio.timeout(30):
            with pytest.raises(StoreUnavailable):
                await world.manager.stop()
    assert server.psql(f"SELECT id FROM {schema}.taskmanager_tasks WHERE id = '{handle.task_id}'") == []
