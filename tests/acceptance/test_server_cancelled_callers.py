"""A caller that is cancelled while the server is in the middle of its transaction: between its first statement and its
commit. What was asked for is done once, or not at all; and the next call works.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import anyio
import psycopg
import pytest

from tests.acceptance.server_world import ServerWorld, eventually
from tests.servers import Cluster

pytestmark = pytest.mark.anyio
Call = Callable[[], Awaitable[object]]
STANDING: Final = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = '{0}.taskmanager_tasks'::regclass"


class Middle:
    """Keeps transactions that write tasks in their middle: their first statement is done, and the next one waits."""

    def __init__(self, cluster: Cluster, schema: str) -> None:
        self._cluster, self._schema = cluster, schema

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let them stand still. After 3 s each is broken off, and done again."""
        with psycopg.connect(self._cluster.url()) as holder:
            holder.execute(f"LOCK TABLE {self._schema}.taskmanager_tasks IN SHARE MODE".encode())
            yield

    async def reached(self) -> None:
        """Return when one has come so far."""
        await eventually(lambda: self._cluster.psql(STANDING.format(self._schema)) != [("0",)])

    def row(self, task_id: str) -> tuple[str, ...]:
        """Return the status of a task, and how often it was started."""
        table = f"{self._schema}.taskmanager_tasks"
        [row] = self._cluster.psql(f"SELECT status, start_count FROM {table} WHERE id = '{task_id}'")
        return row

    def is_asked_to_end(self, task_id: str) -> bool:
        """Whether somebody has asked for the task to be cancelled."""
        table = f"{self._schema}.taskmanager_tasks"
        asked = f"SELECT id FROM {table} WHERE id = '{task_id}' AND cancel_requested_at IS NOT NULL"
        return bool(self._cluster.psql(asked))


async def cancel_tasks(middle: Middle, *calls: Call, stays: bool = False) -> None:
    """Cancel the tasks that have called, as asyncio does. None of them waits for the server then, unless it `stays`."""

    async def calling(call: Call) -> None:
        await call()

    with middle.held():
        callers = [asyncio.create_task(calling(call)) for call in calls]
        await middle.reached()
        for each in callers:
            assert each.cancel()
        await asyncio.wait(callers, timeout=0.1 if stays else None)
        assert [each.done() for each in callers] == [not stays] * len(callers)
    for each in callers:
        with pytest.raises(asyncio.CancelledError):
            await each


async def cancel_scopes(middle: Middle, *calls: Call, stays: bool = False) -> None:
    """Cancel the scopes around the calls, as anyio does: again in each turn of the loop, until they were left."""
    scopes = [anyio.CancelScope() for _ in calls]

    async def calling(scope: anyio.CancelScope, call: Call) -> None:
        with scope:
            await call()

    with middle.held():
        callers = [asyncio.create_task(calling(scope, call)) for scope, call in zip(scopes, calls, strict=True)]
        await middle.reached()
        for scope in scopes:
            scope.cancel()
        await asyncio.wait(callers, timeout=0.1 if stays else None)
        assert [each.done() for each in callers] == [not stays] * len(callers)
    await asyncio.gather(*callers)
    assert all(scope.cancelled_caught for scope in scopes)


Cancelling = Callable[..., Coroutine[Any, Any, None]]
both_ways = pytest.mark.parametrize("cancel", [cancel_tasks, cancel_scopes])


@pytest.fixture
def middle(cluster: Cluster, schema_url: str) -> Middle:
    return Middle(cluster, schema_url.partition("?schema=")[2])


@asynccontextmanager
async def working(url: str) -> AsyncIterator[ServerWorld]:
    """A manager, which works at the end as before, and has begun nothing twice."""
    world = ServerWorld(url)
    async with world.manager:
        yield world
        again = world.once.enqueue()
        await again.saved()
        await again
    assert max(world.starts.values()) == 1


@pytest.fixture
async def world(schema_url: str) -> AsyncIterator[ServerWorld]:
    async with working(schema_url) as made:
        yield made


@both_ways
async def test_cancelled_saved_loses_no_task(world: ServerWorld, middle: Middle, cancel: Cancelling) -> None:
    """The commit is the writer's, and several callers share it."""
    handles = []

    async def call() -> None:
        handles.append(world.once.enqueue())
        await handles[-1].saved()

    await cancel(middle, call, call)
    for handle in handles:
        await handle.saved()
        await handle
    await world.manager.flush()
    assert [middle.row(handle.task_id) for handle in handles] == [("COMPLETED", "1")] * 2


@both_ways
async def test_cancelled_cancel_ends_the_task_and_no_other(
    world: ServerWorld, schema_url: str, middle: Middle, cancel: Cancelling
) -> None:
    """The write is made to its end before the caller hears that it was cancelled."""
    asked, kept = (world.once.with_options(delay=3600).enqueue() for _ in range(2))
    await asyncio.gather(asked.saved(), kept.saved())
    async with working(schema_url) as other:
        await cancel(middle, lambda: other.manager.cancel(asked.task_id), stays=True)
        assert middle.is_asked_to_end(asked.task_id)
        assert not middle.is_asked_to_end(kept.task_id)
        await eventually(lambda: middle.row(asked.task_id) == ("CANCELLED", "0"))
        assert not await other.manager.cancel(asked.task_id)
        assert await other.manager.cancel(kept.task_id)


@both_ways
async def test_cancelled_wait_keeps_the_end_of_the_task(
    world: ServerWorld, schema_url: str, middle: Middle, cancel: Cancelling
) -> None:
    """The end is being committed when they stop to wait for it, where it runs and at another instance."""
    world.gate.clear()
    handle = world.held.enqueue()
    await eventually(lambda: world.starts[handle.task_id])
    await world.manager.flush()

    async def end() -> None:
        world.gate.set()
        await handle

    bystander = asyncio.create_task(handle.result())
    async with working(schema_url) as other:
        await cancel(middle, end, other.manager.handle(handle.task_id).result)
        assert (await other.manager.handle(handle.task_id).result(timeout=30)).is_ok()
    assert (await bystander).is_ok()
    assert middle.row(handle.task_id) == ("COMPLETED", "1")


@both_ways
async def test_cancelled_submit_in_leaves_nothing_of_the_transaction(
    world: ServerWorld, cluster: Cluster, middle: Middle, cancel: Cancelling
) -> None:
    """It is the caller's own. psycopg closes the connection where the statement was cancelled again and again."""
    cluster.psql("CREATE TABLE IF NOT EXISTS orders (number integer)")
    for number in (1, 2):
        connection = await psycopg.AsyncConnection.connect(cluster.url())
        await connection.execute("INSERT INTO orders VALUES (%s)", (number,))
        if number == 1:
            await cancel(middle, lambda connection=connection: world.manager.submit_in(connection, world.once))
        else:
            task_id = await world.manager.submit_in(connection, world.once)
            await connection.commit()
        await connection.close()
    await world.manager.handle(task_id)
    await world.manager.flush()
    assert middle.row(task_id) == ("COMPLETED", "1")
    assert sum((await world.manager.counts()).values()) == 1
    assert cluster.psql("DELETE FROM orders RETURNING number") == [("2",)]
