"""Schedules that cannot fire: a full queue, a store that fails, a stop. Each fire still runs once."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taskmanager import QueueConfig, StoreUnavailable, TaskManager, current_task
from taskmanager.store.memory import MemoryStore
from taskmanager.testing import START, Fault, FaultyStore, World, isolated
from tests.unit.schedules.fires import MINUTE, Fires

pytestmark = pytest.mark.anyio


async def test_a_full_queue_holds_up_its_own_schedules_only(
    manager: TaskManager, fires: Fires, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, and the fire comes when there is room."""
    manager = TaskManager("never-opened.db", queues=[QueueConfig("small", max_pending=1, max_concurrency=1)])
    gate = asyncio.Event()

    @manager.task(queue_name="small")
    async def filler() -> None:
        await gate.wait()

    @manager.schedule(every=60, name="stuck")
    @manager.task(queue_name="small")
    async def stuck() -> None:
        await fires.run()

    other = Fires()

    @manager.schedule(every=60, name="free")
    async def free() -> None:
        await other.run()

    async with isolated(manager) as world:
        filler.enqueue()
        await world.idle()
        filler.enqueue()
        await world.advance(150)
        assert (fires.minutes(), other.minutes()) == ([], [1, 2])
        gate.set()
        await world.advance(60)
    assert fires.minutes() == [2, 3]
    assert len([record for record in caplog.records if "full" in record.getMessage()]) == 1


async def test_a_store_that_is_away_for_a_while_loses_no_fire(
    manager: TaskManager, fires: Fires, caplog: pytest.LogCaptureFixture
) -> None:
    """The fire is tried again until the store answers; it is said once, not every second."""
    store = FaultyStore(MemoryStore())

    @manager.schedule(cron="@hourly", name="tick")
    async def tick() -> None:
        await fires.run()

    async with isolated(manager, store=store.as_store()) as world:
        await world.advance(3590)
        store.is_down = True
        await world.advance(60)
        store.is_down = False
        await world.advance(10)
        assert fires.minutes() == [60]
    assert len([record for record in caplog.records if "schedules wait" in record.getMessage()]) == 1


@pytest.mark.parametrize("verb", ["declare_schedules", "schedules", "fire_schedules"])
@pytest.mark.parametrize("overlap", ["skip", "allow", "queue"])
async def test_a_run_at_the_start_is_one_run_whatever_call_fails(fires: Fires, overlap: Any, verb: str) -> None:
    """Also when the call took effect and only its answer was lost, so that it is repeated."""
    for nth, after in itertools.product((1, 2), (False, True)):
        fires.clear()
        manager = TaskManager("never-opened.db")
        store = FaultyStore(MemoryStore())
        async with isolated(manager, store=store.as_store()) as world:
            await world.advance(1)
            store.plan.append(Fault.fail(store.calls.count(verb) + nth, verb=verb, after=after))

            @manager.schedule(every=60, run_on_startup=True, overlap=overlap, name="tick")
            async def tick() -> None:
                await fires.run()

            await world.advance(50)
        assert len(fires) == 1, (nth, after)


async def test_a_schedule_can_be_paused_while_its_declaration_is_under_way() -> None:
    """Whoever tells the store of it, all who need it there wait for that."""
    manager = TaskManager("never-opened.db")
    store = FaultyStore(MemoryStore())
    async with isolated(manager, store=store.as_store()) as world:
        store.plan.append(Fault.hold(1, verb="declare_schedules"))

        @manager.schedule(every=60, name="tick")
        async def tick() -> None: ...

        await world.advance(1)
        assert store.held == ["declare_schedules"]
        pause = asyncio.create_task(manager.pause_schedule("tick"))
        await world.advance(1)
        store.let_go()
        await pause
        (info,) = await manager.schedules()
    assert info.is_paused


async def test_one_schedule_that_cannot_be_reckoned_does_not_stop_the_others(
    manager: TaskManager, fires: Fires, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A broken database of time zones, say: one ERROR with its name, again and again tried."""

    @manager.schedule(every=60, name="good")
    async def good() -> None:
        await fires.run()

    @manager.schedule(cron="* * * * *", name="bad")
    async def bad() -> None: ...

    async with isolated(manager) as world:
        timing = manager._registry.schedules["bad"].plan.timing
        monkeypatch.setattr(timing, "_cron", None)
        await world.advance(130)
    assert fires.minutes() == [1, 2]
    assert any("schedule bad" in each.getMessage() and each.levelno == logging.ERROR for each in caplog.records)


async def test_nothing_fires_once_a_stop_has_begun(manager: TaskManager, fires: Fires) -> None:
    """Also not while running tasks are waited for; what came due then was missed."""

    @manager.task
    async def slow() -> None:
        await asyncio.sleep(200)

    @manager.schedule(every=60, name="tick")
    async def tick() -> None:
        await fires.run()

    async with isolated(manager) as world:
        slow.enqueue()
        await world.advance(70)
        await world.manager.stop(timeout=500)
        assert (fires.minutes(), world.now) == ([1], START + timedelta(seconds=200))
        await world.start()
        await world.advance(1)
    assert fires.minutes() == [1, 3]


async def test_join_waits_for_runs_and_not_for_fires_to_come(manager: TaskManager, fires: Fires) -> None:
    """Else it would never return."""

    @manager.schedule(every=60, name="tick")
    async def tick() -> None:
        await asyncio.sleep(10)
        await fires.run()

    async with isolated(manager) as world:
        await world.advance(61)
        await manager.join()
        assert world.now == START + timedelta(seconds=70)
        assert fires.minutes() == [1]


async def test_the_scheduled_time_survives_a_retry_and_a_restart(manager: TaskManager) -> None:
    """A report of the night before is that of the night before, whenever it is written."""
    seen = []

    @manager.schedule(cron="0 1 * * *", name="report")
    @manager.task(retries=2, retry_delay=600, persist=True, requeue_on_interrupt=True)
    async def report() -> None:
        seen.append((current_task().attempt, current_task().scheduled_for))
        if current_task().attempt == 1:
            raise ValueError("not yet")
        if current_task().attempt == 2:
            await asyncio.sleep(600)

    async with isolated(manager) as world:
        await world.advance(timedelta(hours=1, minutes=15))
        await world.manager.stop(timeout=0)
        await world.start()
        await world.drain()
    night = datetime(2026, 1, 1, 1, tzinfo=UTC)
    assert seen == [(1, night), (2, night), (3, night)]


async def test_every_failing_call_of_the_store_leaves_each_fire_run_once(manager: TaskManager) -> None:
    """The n-th call fails, before it takes effect and after, for every n that a run has."""

    @manager.schedule(cron="@yearly", name="start", run_on_startup=True)
    @manager.schedule(every=60, name="tick", overlap="allow", catch_up="all")
    @manager.schedule(cron="*/2 * * * *", name="tock")
    @manager.task(persist=True, requeue_on_interrupt=True)
    async def job() -> None:
        context = current_task()
        runs.append((context.tags["schedule"], context.scheduled_for))

    reached = 0
    for verb in ("fire_schedules", "busy_schedules", "schedules", "declare_schedules", "changes"):
        for after in (False, True):
            nth, is_spent = 1, True
            while is_spent and nth < 20:
                runs: list[tuple[str, datetime | None]] = []
                store = FaultyStore(MemoryStore(), [Fault.fail(nth, verb=verb, after=after)])
                async with isolated(manager, store=store.as_store()) as world:
                    await world.advance(START + 5.5 * MINUTE - world.now)
                    await world.drain()
                ticks = sorted(at for name, at in runs if name == "tick" and at is not None)
                # Where the first try to start was the one that failed, the interval begins with the second.
                assert ticks[0] - START - MINUTE < timedelta(seconds=1)
                assert ticks == [ticks[0] + number * MINUTE for number in range(5)], (verb, nth, after)
                tocks = sorted(at for name, at in runs if name == "tock" and at is not None)
                assert tocks == [START + 2 * MINUTE, START + 4 * MINUTE], (verb, nth, after)
                at_start = len([name for name, _ in runs if name == "start"])
                assert at_start == 1, (verb, nth, after)
                is_spent = store.is_spent
                reached += is_spent
                nth += 1
    assert reached > 20


@asynccontextmanager
async def ticking(manager: TaskManager, fires: Fires) -> AsyncIterator[tuple[World, FaultyStore]]:
    """A schedule that fires each minute, one second after the start."""
    store = FaultyStore(MemoryStore())

    @manager.schedule(every=60, name="tick")
    async def tick() -> None:
        await fires.run()

    async with isolated(manager, store=store.as_store()) as world:
        await world.advance(1)
        yield world, store


@pytest.mark.parametrize("verb", ["run_schedule", "pause_schedule", "resume_schedule"])
async def test_an_act_that_stands_in_the_store_is_not_told_as_a_failure(
    manager: TaskManager, fires: Fires, verb: str
) -> None:
    """Whoever is told of one repeats it, and would get a second run. What could not be read behind it is read later."""
    async with ticking(manager, fires) as (world, store):
        if verb == "resume_schedule":
            await manager.pause_schedule("tick")
        read_count = store.calls.count("schedules") + (1 if verb == "run_schedule" else 0)
        store.plan.append(Fault.fail(read_count + 1, verb="schedules"))
        await getattr(manager, verb)("tick")
        assert store.is_spent
        (info,) = await manager.schedules()
        assert info.is_paused == (verb == "pause_schedule")
        await world.advance(60)
    assert len(fires) == {"run_schedule": 2, "pause_schedule": 0, "resume_schedule": 1}[verb]


@pytest.mark.parametrize("verb", ["run_schedule", "pause_schedule"])
async def test_an_act_that_the_store_did_not_take_is_told(manager: TaskManager, fires: Fires, verb: str) -> None:
    """Only the read behind the write is made up later, and not the write."""
    async with ticking(manager, fires) as (world, store):
        store.is_down = True
        with pytest.raises(StoreUnavailable):
            await getattr(manager, verb)("tick")
        store.is_down = False
        await world.advance(65)
    assert fires.minutes() == [1]
