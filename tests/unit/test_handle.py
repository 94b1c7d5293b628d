"""Handles: what they stand for when their task runs again."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from taskmanager import TaskCancelled, TaskFailed, TaskHandle, TaskManager, TaskStatus
from taskmanager.engine.stored_tasks import retry_stored
from taskmanager.testing import World
from tests.unit.engine_worlds import Store, engine_of, manager_of, world_of

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


class Flaky:
    """A task `flaky(number)` that fails, waits, or gives a value, as the test goes."""

    def __init__(self, manager: TaskManager, *, persist: bool) -> None:
        self.runs = 0
        self.fails = True
        self.gate = asyncio.Event()
        self.gate.set()
        self.task = manager.task(name="flaky", persist=persist)(self.run)

    async def run(self, number: int) -> int:
        self.runs += 1
        run = self.runs
        await self.gate.wait()
        if self.fails:
            raise LookupError(f"run {run}")
        return 100 * number + run

    def enqueue(self) -> TaskHandle[int]:
        return self.task.with_options(idempotency_key="key").enqueue(1)


Again = Callable[[World, Store, Flaky, TaskHandle[Any]], Awaitable[object]]


async def by_the_manager(world: World, store: Store, flaky: Flaky, handle: TaskHandle[Any]) -> None:
    assert await world.manager.retry(handle.task_id, force=True)


async def by_its_key(world: World, store: Store, flaky: Flaky, handle: TaskHandle[Any]) -> None:
    assert flaky.enqueue().task_id == handle.task_id


async def by_another_process(world: World, store: Store, flaky: Flaky, handle: TaskHandle[Any]) -> None:
    """Seen as soon as the row is claimed here."""
    await world.manager.flush()
    row = await store.memory.fetch(handle.task_id)
    assert row is not None
    await retry_stored(store.memory, [row], world.clock.now_us())
    store.memory.others_wrote()
    await world.advance(1)


WAYS = [by_the_manager, by_its_key, by_another_process]


@pytest.mark.parametrize("persist", [True, False])
@pytest.mark.parametrize("again", WAYS)
async def test_a_handle_follows_the_run_after_a_retry(again: Again, persist: bool) -> None:
    """As one that is made after it does: its status, its value, its next failure."""
    manager = manager_of()
    flaky = Flaky(manager, persist=persist)
    async with world_of(manager) as (world, store):
        handle = flaky.enqueue()
        for run in (1, 2, 3):
            with pytest.raises(TaskFailed, match=f"run {run}"):
                await handle
            assert handle.status is TaskStatus.FAILED
            flaky.gate.clear()
            await again(world, store, flaky, handle)
            assert not handle.status.is_terminal
            waiting = asyncio.ensure_future(handle.result())
            await world.advance(1)
            assert handle.status is TaskStatus.RUNNING
            assert not waiting.done()
            flaky.fails = run < 3
            flaky.gate.set()
            assert (await waiting).is_err() == flaky.fails
        assert (await handle, handle.status) == (104, TaskStatus.COMPLETED)


@pytest.mark.parametrize("persist", [True, False])
async def test_a_handle_of_a_success_follows_a_forced_retry(persist: bool) -> None:
    manager = manager_of()
    flaky = Flaky(manager, persist=persist)
    flaky.fails = False
    async with world_of(manager) as (world, store):
        handle = flaky.enqueue()
        assert await handle == 101
        await by_the_manager(world, store, flaky, handle)
        assert await handle == 102
        assert await handle == 102


async def test_a_handle_cancels_the_run_after_a_retry() -> None:
    manager = manager_of()
    flaky = Flaky(manager, persist=True)
    async with world_of(manager) as (world, store):
        handle = flaky.enqueue()
        assert (await handle.result()).is_err()
        flaky.gate.clear()
        await by_the_manager(world, store, flaky, handle)
        await world.advance(1)
        assert handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle


async def test_a_retry_that_is_refused_changes_no_handle() -> None:
    manager = manager_of()
    flaky = Flaky(manager, persist=True)
    flaky.fails = False
    async with world_of(manager):
        handle = flaky.enqueue()
        assert await handle == 101
        assert not await manager.retry(handle.task_id)
        assert (await handle, handle.status) == (101, TaskStatus.COMPLETED)


async def test_the_memory_of_retries_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go first; a handle of one of those gives the end that it knows."""
    monkeypatch.setattr("taskmanager.engine.intake.AGAIN_WINDOW", 2)
    manager = manager_of()
    flaky = Flaky(manager, persist=True)
    async with world_of(manager) as (world, store):
        handles = [flaky.task.enqueue(1) for _ in range(3)]
        for handle in handles:
            assert (await handle.result()).is_err()
        flaky.fails = False
        for handle in handles:
            await by_the_manager(world, store, flaky, handle)
        assert [(await handle.result()).is_ok() for handle in handles] == [False, True, True]
        assert len(engine_of(manager).intake._again) == 2
