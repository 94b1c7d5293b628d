"""Fires that were missed while the application was down, the machine slept or the clock was set."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from taskmanager import TaskManager
from taskmanager.model.clock import to_us
from taskmanager.testing import World, isolated
from tests.unit.schedules.fires import Fires, away

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("catch_up", "made_up"), [("skip", []), ("latest", [10]), ("all", [2, 3, 4, 5, 6, 7, 8, 9, 10])]
)
async def test_fires_missed_while_the_application_was_down(
    manager: TaskManager, fires: Fires, catch_up: Any, made_up: list[float]
) -> None:
    """None of them, the latest, or each one; and then the schedule goes on, on its old grid."""

    @manager.schedule(every=60, catch_up=catch_up, name="tick")
    async def tick() -> None:
        await fires.run()

    async with isolated(manager) as world:
        await world.advance(60)
        await away(world, 9.5)
        await world.advance(1)
        assert fires.minutes() == [1, *made_up]
        await world.advance(60)
    assert fires.minutes() == [1, *made_up, 11]


@pytest.mark.parametrize("overlap", ["skip", "queue", "allow"])
async def test_catch_up_runs_are_bounded_and_the_newest(manager: TaskManager, fires: Fires, overlap: Any) -> None:
    """A week of downtime is no storm; one by one unless runs may overlap."""
    most = running = 0

    @manager.schedule(cron="*/10 * * * *", catch_up="all", max_catch_up_runs=5, overlap=overlap, name="tick")
    async def tick() -> None:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await fires.run()
        await asyncio.sleep(20)
        running -= 1

    async with isolated(manager) as world:
        await away(world, 7 * 24 * 60 + 5)
        await world.advance(4 * 60)
    assert sorted(fires.minutes()) == [7 * 24 * 60 - 10 * number for number in (4, 3, 2, 1, 0)]
    assert most == (5 if overlap == "allow" else 1)


async def test_a_clock_that_is_stepped_back_repeats_nothing(manager: TaskManager, fires: Fires) -> None:
    """The next fire stays the next fire, and comes when the clock gets there."""

    @manager.schedule(cron="* * * * *", name="tick")
    async def tick() -> None:
        await fires.run()

    async with isolated(manager) as world:
        await world.advance(150)
        world.clock.step(-3600)
        await world.advance(3600 - 30)
        assert fires.minutes() == [1, 2]
        await world.advance(120)
    assert fires.minutes() == [1, 2, 3, 4]


@pytest.mark.parametrize("is_restarted", [False, True], ids=["while it runs", "before a start"])
@pytest.mark.parametrize(
    "options", [{}, {"jitter": 5}, {"run_on_startup": True, "overlap": "allow"}, {"catch_up": "all"}]
)
async def test_an_interval_goes_on_after_a_clock_that_was_ahead(
    manager: TaskManager, options: dict[str, Any], is_restarted: bool
) -> None:
    """A minute is a minute: it must not be silent for as long as the clock was wrong, and nothing comes in a burst."""
    runs: list[float] = []

    @manager.schedule(every=60, name="tick", **options)
    async def tick() -> None:
        runs.append(asyncio.get_running_loop().time())

    async with isolated(manager) as world:
        world.clock.step(10 * 365 * 86_400)
        await world.advance(150)
        if is_restarted:
            await world.manager.stop()
            world.clock.step(-10 * 365 * 86_400)
            await world.start()
        else:
            world.clock.step(-10 * 365 * 86_400)
        at_start = len(runs) + (is_restarted and "run_on_startup" in options)
        await world.advance(6)  # within which it is noticed
        await world.advance(64)
        assert len(runs) == at_start + 1
        await world.advance(5 * 60)
        assert len(runs) == at_start + 6


@pytest.mark.parametrize("every_s", [1, 7])
async def test_a_virtual_clock_does_not_jump_over_an_interval_after_a_step_back(
    manager: TaskManager, every_s: int
) -> None:
    """By the clock nothing is due for a day. Its user sees what a real process would do."""
    runs: list[float] = []

    @manager.schedule(every=every_s, name="tick")
    async def tick() -> None:
        runs.append(asyncio.get_running_loop().time())

    async with isolated(manager) as world:
        await world.advance(every_s * 2.5)
        world.clock.step(-86_400)
        await world.advance(every_s * 10 + 5)
    assert len(runs) >= 11


async def test_only_the_owner_of_an_interval_lets_it_go_on_from_now(manager: TaskManager) -> None:
    """Two whose clocks differ would do it in turns, and it would fire ever sooner."""

    @manager.schedule(every=60, name="tick")
    async def tick() -> None: ...

    async with isolated(manager) as world:
        schedules: Any = world.manager._lifecycle.duties.schedules  # type: ignore[union-attr]
        (row,) = await world.store.sound.schedules()
        world.clock.step(-7_200)
        schedules.book.take_in([row._replace(owner_id="another instance")], to_us(world.now))
        assert not await schedules._firing.fire_due()
        assert await world.store.sound.schedules() == [row]
        schedules.book.take_in([row], to_us(world.now))
        assert await schedules._firing.fire_due()
        (after,) = await world.store.sound.schedules()
        assert after.next_run_at == to_us(world.now) + 60_000_000


async def test_an_interval_goes_on_when_an_older_file_says_that_it_is_far_off(manager: TaskManager) -> None:
    """A copy from before the clock was set back is put in place: its owner sees that in the row, without a step."""

    @manager.schedule(every=60, name="tick")
    async def tick() -> None: ...

    async with isolated(manager) as world:
        schedules: Any = world.manager._lifecycle.duties.schedules  # type: ignore[union-attr]
        await schedules.run_once()
        store: Any = world.store.sound
        store._connection.execute("UPDATE taskmanager_schedule_state SET next_run_at = next_run_at + 7200000000")
        await schedules.refresh()
        await schedules.run_once()
        (after,) = await world.store.sound.schedules()
        assert after.next_run_at == to_us(world.now) + 60_000_000


def step_forward(world: World) -> None:
    """Somebody sets the clock."""
    world.clock.step(3_600)


def sleep(world: World) -> None:
    """The machine sleeps. All clocks go on, so that no step tells of it: nobody has looked for a while."""
    assert world.virtual is not None
    world.virtual.elapsed_us += 3_600 * 1_000_000


@pytest.mark.parametrize("lose_an_hour", [step_forward, sleep])
@pytest.mark.parametrize(("catch_up", "made_up"), [("skip", []), ("latest", [62]), ("all", list(range(3, 63)))])
async def test_an_hour_that_nobody_saw_is_time_that_was_missed(
    manager: TaskManager, fires: Fires, catch_up: Any, made_up: list[float], lose_an_hour: Callable[[World], None]
) -> None:
    """As if the application had been down; noticed within seconds."""

    @manager.schedule(cron="* * * * *", catch_up=catch_up, name="tick")
    async def tick() -> None:
        await fires.run()

    async with isolated(manager) as world:
        await world.advance(150)
        lose_an_hour(world)
        await world.advance(6)
        assert fires.minutes() == [1, 2, *made_up]
        await world.advance(30)
    assert fires.minutes() == [1, 2, *made_up, 63]
