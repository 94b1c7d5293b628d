"""A standby takes the place of the primary: what it lacks is written again, and what it has is not called lost."""

import asyncio
from collections.abc import Iterator

import pytest

from taskmanager import StoreUnavailable
from tests.acceptance.server_world import SCHEMA, Records, ServerWorld, eventually, records
from tests.conftest import NO_SERVER
from tests.servers import Cluster, find_binaries

__all__ = ["records"]  # fixtures

pytestmark = [pytest.mark.anyio, pytest.mark.long]


class Pair:
    """A primary and its standby, which may be asked for in one URL."""

    def __init__(self) -> None:
        self.primary = Cluster.create()
        self.standby = self.primary.standby()

    @property
    def url(self) -> str:
        """Name both; the one that can be written is meant."""
        hosts = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.standby.port}"
        return f"postgresql://postgres@{hosts}/postgres?schema={SCHEMA}"

    def fail_over(self) -> None:
        """Kill the primary, and promote the standby."""
        self.primary.kill()
        self.standby.promote()

    def destroy(self) -> None:
        """End both."""
        self.standby.destroy()
        self.primary.destroy()


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two servers that are used up."""
    if find_binaries() is None:
        pytest.skip(NO_SERVER)
    made = Pair()
    yield made
    made.destroy()


async def test_failover_without_loss_raises_no_false_alarm(pair: Pair, records: Records) -> None:
    """What a synchronous standby has is found there, so that nothing is lost, nothing begins twice, and nobody is told
    otherwise.
    """
    pair.primary.set("synchronous_standby_names", "*")
    world = ServerWorld(pair.url)
    await world.manager.start()
    world.gate.clear()
    running = world.held.enqueue()
    delayed = world.once.with_options(delay=3600).enqueue()
    await asyncio.gather(running.saved(), delayed.saved())
    async with world.load():
        await world.some_more()
        await asyncio.to_thread(pair.fail_over)
        await world.some_more()
    assert await world.manager.cancel(delayed.task_id)
    await world.stop()
    await running
    pair.standby.psql(f"DELETE FROM {SCHEMA}.taskmanager_tasks WHERE status = 'CANCELLED'")
    world.judge(pair.standby, SCHEMA)
    assert records.count("all that was acknowledged lately is there") == 1, records.told
    assert records.count("missing there") == records.count("claim lost") == 0, records.told


async def test_failover_with_loss_writes_again_and_counts_the_rest(pair: Pair, records: Records) -> None:
    """What a standby lacked that did not follow is written again from memory. What nobody knows any more is counted."""
    world = ServerWorld(pair.url)
    await world.manager.start()
    world.gate.clear()
    running = world.held.enqueue()
    await running.saved()
    pair.standby.until_it_has(pair.primary)
    pair.standby.set("primary_conninfo", "")
    await eventually(lambda: pair.primary.psql("SELECT count(*) FROM pg_stat_replication") == [("0",)])
    late = world.held.enqueue()
    delayed = [world.once.with_options(delay=3600).enqueue() for _ in range(20)]
    gone = [world.safe.enqueue() for _ in range(10)]
    await asyncio.gather(*(each.saved() for each in (late, *delayed)), *gone)
    await world.manager.flush()
    await asyncio.to_thread(pair.fail_over)
    await eventually(lambda: records.count("missing there") == 1)
    # 10 are gone for good, and 21 live ones were written again.
    assert records.count("31 tasks missing there") == 1, records.told
    world.gate.set()
    await asyncio.gather(running, late)
    await world.manager.flush()
    rows = dict(pair.standby.psql(f"SELECT id, status FROM {SCHEMA}.taskmanager_tasks"))
    assert {rows[each.task_id] for each in delayed} == {"PENDING"}
    assert {rows[each.task_id] for each in (running, late)} == {"COMPLETED"}
    assert not rows.keys() & {each.task_id for each in gone}
    assert max(world.starts.values()) == 1
    await world.manager.stop()


async def test_an_old_primary_that_comes_back_is_not_written(pair: Pair, records: Records) -> None:
    """It is the first host of the URL, and can be written. What it says of the tasks is the past."""
    world = ServerWorld(pair.url)
    await world.manager.start()
    async with world.load():
        await world.some_more()
        pair.standby.until_it_has(pair.primary)
        await asyncio.to_thread(pair.fail_over)
        await world.some_more()
        await asyncio.to_thread(pair.primary.start)
        await asyncio.to_thread(pair.standby.restart)
        await eventually(lambda: records.count("left behind by a failover"))
        await asyncio.to_thread(pair.primary.stop)
        await world.some_more()
    await world.manager.stop()


async def test_a_commit_that_no_standby_confirmed_is_not_saved(pair: Pair) -> None:
    """The server has given up to wait for it, and a standby may be promoted without it."""
    pair.primary.set("synchronous_standby_names", "*")
    world = ServerWorld(pair.url)
    await world.manager.start()
    await world.once.enqueue().saved()
    pair.standby.stop()
    handle = world.once.with_options(delay=3600).enqueue()
    promise = asyncio.create_task(_saved(handle))
    for _ in range(3):
        await eventually(lambda: pair.primary.psql(_CANCEL))
        assert not promise.done()
    [(count,)] = pair.primary.psql(f"SELECT count(*) FROM {SCHEMA}.taskmanager_tasks WHERE status = 'PENDING'")
    assert count == "1"
    assert not promise.done()
    await asyncio.to_thread(pair.standby.start)
    await promise
    await world.manager.stop()


_CANCEL = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


async def _saved(handle: object) -> None:
    await handle.saved()  # type: ignore[attr-defined]


async def test_a_stop_does_not_wait_for_a_standby_that_is_away(pair: Pair) -> None:
    """It ends in its time, and says what could not be written."""
    pair.primary.set("synchronous_standby_names", "*")
    world = ServerWorld(pair.url, drain_timeout=0.1)
    await world.manager.start()
    pair.standby.stop()
    world.once.with_options(delay=3600).enqueue()
    await eventually(lambda: pair.primary.psql(_CANCEL.replace("pg_cancel_backend(pid)", "pid")))
    async with asyncio.timeout(20):
        with pytest.raises(StoreUnavailable):
            await world.manager.stop()
