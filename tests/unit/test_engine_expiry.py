"""A task expires once, however often it has waited, and whatever it waited for."""

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from taskmanager import QueueFull, RetryPolicy, Snooze, TaskExpired, TaskManager, TaskStatus, current_task
from taskmanager.testing import World
from tests.unit.engine_worlds import assert_counters, engine_of, manager_of, turns_until, world_of

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

GOOD_S = 100
AGAIN = 4


def working(manager: TaskManager, **options: Any) -> Any:
    """A task that does what its plan says in its first attempts, and would then wait for its slot behind `long`."""

    async def work(plan: str) -> Snooze | None:
        if current_task().attempt > AGAIN:
            raise AssertionError("it has expired by then")
        if plan == "snooze":
            return Snooze(1)
        raise ValueError(plan)

    policy = RetryPolicy.fixed([1] * AGAIN, auto_retry_for=["UNHANDLED_EXCEPTION"], jitter=False)
    return manager.task(name="work", retry_policy=policy, **options)(work)


async def assert_expired_once(world: World, handles: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    """One ending each, one line each, and counters as if they had never been."""
    for handle in handles:
        with pytest.raises(TaskExpired):
            await handle
    lines = [each.getMessage() for each in caplog.records if " expired" in each.getMessage()]
    assert len(lines) == len(handles)
    engine = engine_of(world.manager)
    assert_counters(engine)
    assert engine.dispatcher.queue("default").waiting == 0
    assert world.manager.status().waiting_count == 0
    assert (await world.manager.counts())[TaskStatus.EXPIRED] == len(handles)


@pytest.mark.parametrize("is_persisted", [False, True])
@pytest.mark.parametrize("plan", ["retry", "snooze"])
async def test_expiry_is_once_for_a_task_that_ran_several_times(
    plan: str, is_persisted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Each time it waits again it is watched again. With one entry per wait, it left the waiting once per entry."""
    caplog.set_level(logging.INFO, "taskmanager")
    manager = manager_of(concurrency=1, max_pending=3)
    work = working(manager, persist=is_persisted)

    @manager.task(priority=1)
    async def long() -> None:
        await asyncio.sleep(2 * GOOD_S)

    async with world_of(manager) as (world, _):
        handle = work.with_options(good_until=world.now + timedelta(seconds=GOOD_S)).enqueue(plan)
        await world.advance(AGAIN - 0.5)
        assert (await handle.info()).start_count == AGAIN
        blocker = long.enqueue()
        await world.advance(GOOD_S)
        await assert_expired_once(world, [handle], caplog)
        taken = [long.enqueue() for _ in range(3)]  # no fewer, and no more
        with pytest.raises(QueueFull):
            long.enqueue()
        for each in (blocker, *taken):
            each.cancel()


async def test_expiry_is_once_for_tasks_that_were_spilled(caplog: pytest.LogCaptureFixture) -> None:
    """Memory has no room for all that waits for its retry: some go to the store, and are claimed again."""
    caplog.set_level(logging.INFO, "taskmanager")
    manager = manager_of(concurrency=1, max_in_memory=2)
    work = working(manager, persist=True)

    @manager.task(priority=1)
    async def long() -> None:
        await asyncio.sleep(2 * GOOD_S)

    async with world_of(manager) as (world, _):
        good_until = world.now + timedelta(seconds=GOOD_S)
        handles = [work.with_options(good_until=good_until).enqueue("retry") for _ in range(8)]
        await world.advance(AGAIN / 2)
        blocker = long.enqueue()
        await world.advance(GOOD_S + 20)
        for handle in handles:
            with pytest.raises(TaskExpired):
                await handle
        blocker.cancel()
        await manager.join()
        engine = engine_of(manager)
        assert_counters(engine)
        assert engine.dispatcher.queue("default").waiting == 0
        assert (await manager.counts())[TaskStatus.EXPIRED] == len(handles)


async def test_expiry_is_once_for_a_task_whose_start_was_taken_back(caplog: pytest.LogCaptureFixture) -> None:
    """The store takes no writes, so what is not safe to repeat gives its slot back and waits again."""
    caplog.set_level(logging.INFO, "taskmanager")
    manager = manager_of()
    work = working(manager, persist=True)
    async with world_of(manager) as (world, store):
        for _ in range(AGAIN):
            store.is_down = True
            handle = work.with_options(good_until=world.now + timedelta(seconds=GOOD_S)).enqueue("retry")
            await turns_until(lambda: engine_of(manager).dispatcher.is_store_degraded)
            await world.advance(GOOD_S + 1)
            store.is_down = False
            await world.advance(2)
            with pytest.raises(TaskExpired):
                await handle
        engine = engine_of(manager)
        assert_counters(engine)
        assert engine.dispatcher.queue("default").waiting == 0


@pytest.mark.parametrize("is_slot_free", [False, True])
async def test_expiry_is_once_after_a_step_of_the_clock(is_slot_free: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Expiry is held for a minute, and a task whose turn comes meanwhile gives its slot back and waits again."""
    caplog.set_level(logging.INFO, "taskmanager")
    manager = manager_of(concurrency=1)
    work = working(manager, persist=True)

    @manager.task
    async def long() -> None:
        await asyncio.sleep(20 if is_slot_free else 2 * GOOD_S)

    async with world_of(manager) as (world, _):
        blocker = long.enqueue()
        handle = work.with_options(good_until=world.now + timedelta(seconds=GOOD_S)).enqueue("retry")
        await world.advance(1)
        world.clock.step(timedelta(days=1))
        await world.advance(GOOD_S)
        await assert_expired_once(world, [handle], caplog)
        blocker.cancel()


async def test_expiry_watches_a_task_again_whose_entry_was_cleared_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While a task runs its entry may go, so that long promises do not pile up; its next wait makes another one."""
    caplog.set_level(logging.INFO, "taskmanager")
    monkeypatch.setattr("taskmanager.engine.words.timers.STALE_CLEANUP_AT", 2)
    manager = manager_of(concurrency=1)
    work = working(manager, persist=True)

    @manager.task(priority=1)
    async def long() -> None:
        await asyncio.sleep(2 * GOOD_S)

    async with world_of(manager) as (world, _):
        engine = engine_of(manager)
        engine.dispatcher.delays._expiring_limit = 2
        good_until = world.now + timedelta(seconds=GOOD_S)
        handles = [work.with_options(good_until=good_until).enqueue("snooze") for _ in range(3)]
        await world.advance(AGAIN - 0.5)
        assert len(engine.dispatcher.delays._expiring) <= len(handles)
        blocker = long.enqueue()
        await world.advance(GOOD_S)
        await assert_expired_once(world, handles, caplog)
        blocker.cancel()
