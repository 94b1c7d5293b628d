"""What people do to schedules, and see of them: pause, resume, run by hand, the status, a run at the start."""

from typing import Any

import pytest

from taskmanager import TaskManager, UnknownTask
from taskmanager.testing import START, isolated
from tests.unit.schedules.fires import MINUTE, Fires, away

pytestmark = pytest.mark.anyio


async def test_a_paused_schedule_drops_its_fires_and_goes_on_from_the_resume(
    manager: TaskManager, fires: Fires
) -> None:
    """Whatever `catch_up` says: who pauses does not want the runs. Across a restart too."""

    @manager.schedule(cron="* * * * *", catch_up="all", name="tick")
    async def tick() -> None:
        await fires.run()

    async with isolated(manager) as world:
        await world.advance(70)
        await manager.pause_schedule("tick")
        (info,) = await manager.schedules()
        assert info.is_paused
        await world.advance(300)
        await away(world, 5)
        await world.advance(30)
        assert fires.minutes() == [1]
        await manager.resume_schedule("tick")
        await world.advance(1)
        (info,) = await manager.schedules()
        assert (info.is_paused, info.next_run_at) == (False, START + 12 * MINUTE)
        await world.advance(60)
    assert fires.minutes() == [1, 12]


async def test_a_schedule_run_by_hand_keeps_its_fires(manager: TaskManager, fires: Fires) -> None:
    """Paused or not; the handle is that of the run, and its scheduled time the moment it was asked for."""

    @manager.schedule(every=60, name="tick", args=(3,))
    async def tick(n: int) -> int:
        await fires.run()
        return n

    async with isolated(manager) as world:
        await world.advance(30)
        handle = await manager.run_schedule("tick")
        assert await handle == 3
        await world.advance(40)
        assert fires.minutes() == [0.5, 1]
        await manager.pause_schedule("tick")
        assert await (await manager.run_schedule("tick")) == 3
        (info,) = await manager.schedules()
    assert (info.run_count, info.next_run_at) == (3, START + 2 * MINUTE)


async def test_a_schedule_that_is_not_there_is_named(manager: TaskManager) -> None:
    """With those that are."""

    @manager.schedule(every=60, name="tick")
    async def tick() -> None: ...

    async with isolated(manager):
        for call in (manager.pause_schedule, manager.resume_schedule, manager.run_schedule):
            with pytest.raises(UnknownTask, match="'tock'.*'tick'"):
                await call("tock")


async def test_status_has_the_next_and_the_last_fires(manager: TaskManager) -> None:
    """Without a look at the store, the next first."""

    @manager.schedule(every=60, name="tick")
    async def tick() -> None: ...

    @manager.schedule(cron="@daily", name="nightly")
    async def nightly() -> None: ...

    assert manager.status().schedules == ()
    async with isolated(manager) as world:
        await world.advance(70)
        first, second = manager.status().schedules
        stored = await manager.schedules()
        (run,) = await manager.list()
    assert (first, second) == stored
    assert (first.schedule_name, first.last_run_at, first.next_run_at) == ("tick", START + MINUTE, START + 2 * MINUTE)
    assert (first.last_task_id, first.run_count, first.is_declared) == (run.task_id, 1, True)
    assert (second.schedule_name, second.last_run_at, second.next_run_at) == ("nightly", None, START + 1440 * MINUTE)
    assert (run.tags, run.scheduled_for, run.saved) == ({"schedule": "tick"}, START + MINUTE, True)


@pytest.mark.parametrize("overlap", ["skip", "allow"])
async def test_a_run_at_the_start_once_for_each_start(manager: TaskManager, fires: Fires, overlap: Any) -> None:
    """Beside its fires."""

    @manager.schedule(every=60, run_on_startup=True, overlap=overlap, name="tick")
    async def tick() -> None:
        await fires.run()

    async with isolated(manager) as world:
        await world.advance(70)
        await away(world, 0.5)
        await world.advance(60)
    assert [round(each, 1) for each in fires.minutes()] == [0, 1, 1.7, 2]
