"""Schedules on a virtual clock: when they fire, what happens to fires that were missed, and what overlaps."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from taskmanager import (
    TaskManager,
    current_task,
)
from taskmanager.testing import START, isolated

pytestmark = pytest.mark.anyio

MINUTE = timedelta(minutes=1)


@pytest.fixture
def manager() -> TaskManager:
    return TaskManager(None)


class Fires(list[datetime]):
    """A task body that notes the scheduled time of each run."""

    async def run(self) -> None:
        scheduled_for = current_task().scheduled_for
        assert scheduled_for is not None
        self.append(scheduled_for)

    def minutes(self) -> list[float]:
        return [(each - START) / MINUTE for each in self]


@pytest.fixture
def fires() -> Fires:
    return Fires()


# --- when they fire ---------------------------------------------------------------------------------------------------


async def test_an_interval_fires_on_its_own_grid_and_never_drifts(manager: TaskManager, fires: Fires) -> None:
    """However long a run takes: the next is reckoned from the fire before it, not from its end."""

    @manager.schedule(every=60, overlap="allow", name="tick")
    async def tick() -> None:
        await fires.run()
        await asyncio.sleep(37)

    async with isolated(manager) as world:
        await world.advance(10 * 60)
    assert fires.minutes() == list(range(1, 11))


async def test_a_cron_expression_fires_in_its_zone(manager: TaskManager, fires: Fires) -> None:
    """And the run reads the fire it stands for, aware and in UTC."""

    @manager.schedule(cron="30 2 * * *", timezone="Asia/Kolkata", name="nightly")
    async def nightly() -> None:
        await fires.run()

    async with isolated(manager) as world:
        await world.advance(timedelta(days=2))
    assert fires == [datetime(2026, 1, 1, 21, 0, tzinfo=UTC), datetime(2026, 1, 2, 21, 0, tzinfo=UTC)]
    assert all(each.utcoffset() == timedelta(0) for each in fires)


async def test_intervals_shorter_than_a_second_work(manager: TaskManager, fires: Fires) -> None:
    """Ten a second are ten a second."""

    @manager.schedule(every=0.1, name="fast")
    async def fast() -> None:
        await fires.run()

    async with isolated(manager) as world:
        await world.advance(3)
    assert [round((each - START).total_seconds(), 6) for each in fires] == [
        round(0.1 * number, 6) for number in range(1, 31)
    ]
