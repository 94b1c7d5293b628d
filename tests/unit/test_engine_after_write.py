"""`taskmanager.engine.after_write`: a cancel whose write loses to another instance, which has taken the task over."""

import asyncio
import logging

import pytest

from taskmanager import StoreUnavailable, TaskCancelled, TaskHandle, TaskManager
from tests.unit.engine_worlds import Store, assert_counters, engine_of, manager_of, world_of

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(20)]


async def waiting(manager: TaskManager, gate: asyncio.Event) -> TaskHandle[None]:
    """A task in the file that waits here for the only slot, which is taken until the gate opens."""

    @manager.task(persist=True, name="work")
    async def work(label: str) -> None:
        await gate.wait()

    running, waits = work.enqueue("runs"), work.enqueue("waits")
    await asyncio.gather(running.saved(), waits.saved())
    return waits


def take(store: Store, task_id: str) -> None:
    """Another instance starts it, and nobody here has heard of that."""
    row = store.memory.live[task_id]
    taken = {"status": "RUNNING", "claimed_by_worker_id": "other", "start_count": 1, "claimed_at": 9, "started_at": 9}
    store.memory.put(row._replace(**taken))


async def test_a_cancel_follows_a_task_that_was_taken_over(caplog: pytest.LogCaptureFixture) -> None:
    """It came too late to end the task here. The request is in the file when a flush comes back, the handle waits for
    the end there, and so does a join. The log has no word of it: it is no fault.
    """
    manager, gate = manager_of(concurrency=1), asyncio.Event()
    async with world_of(manager) as (world, store):
        handle = await waiting(manager, gate)
        take(store, handle.task_id)
        assert handle.cancel()
        await manager.flush()
        row = store.memory.live[handle.task_id]
        assert (row.status, row.claimed_by_worker_id) == ("RUNNING", "other")
        assert row.cancel_requested_at is not None
        gate.set()
        joining = asyncio.ensure_future(manager.join())
        await world.advance(2)
        assert not joining.done()
        assert not handle.status.is_terminal
        ended = row._replace(status="CANCELLED", failed_at=10, error_code="TASK_CANCELLED")
        store.memory.put(ended)
        store.memory.others_wrote()
        await world.advance(2)
        await joining
        with pytest.raises(TaskCancelled):
            await handle
        assert_counters(engine_of(manager))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_cancel_that_was_told_without_the_store_follows_its_task_too() -> None:
    """The handle has told the end while the store took no writes. Whoever has the task by then is asked to end it."""
    manager, gate = manager_of(concurrency=1), asyncio.Event()
    async with world_of(manager) as (world, store):
        handle = await waiting(manager, gate)
        store.fail("commit", times=3)
        assert handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle
        take(store, handle.task_id)
        await world.advance(5)
        await manager.flush()
        assert store.memory.live[handle.task_id].cancel_requested_at is not None
        gate.set()


async def test_a_flush_raises_where_such_a_cancel_could_not_be_written(caplog: pytest.LogCaptureFixture) -> None:
    """As it does for every other write. The log names the task."""
    manager, gate = manager_of(concurrency=1), asyncio.Event()
    async with world_of(manager) as (_, store):
        handle = await waiting(manager, gate)
        take(store, handle.task_id)
        store.fail("request_cancel")
        assert handle.cancel()
        with pytest.raises(StoreUnavailable):
            await manager.flush()
        assert f"the cancel request for task {handle.task_id} could not be recorded" in caplog.text
        gate.set()


async def test_history_beside_a_lost_claim_is_taken_in_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """The record of a memory-only task goes with the batch whose other write loses. It is written all the same."""
    manager, gate = manager_of(concurrency=1), asyncio.Event()

    @manager.task
    async def note() -> None: ...

    async with world_of(manager) as (_, store):
        handle = await waiting(manager, gate)
        take(store, handle.task_id)
        noted = note.enqueue()
        assert noted.cancel()
        assert handle.cancel()
        await manager.flush()
        assert store.memory.ended.keys() == {noted.task_id}
        assert_counters(engine_of(manager))
        gate.set()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
