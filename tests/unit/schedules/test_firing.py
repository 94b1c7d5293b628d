"""When a schedule fires, on a virtual clock: its own grid, its zone, its jitter, many at a time."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from taskmanager import TaskManager
from taskmanager.duties import schedule_firing, schedules
from taskmanager.duties.schedule_book import ScheduleBook
from taskmanager.testing import START, isolated
from tests.unit.schedules.fires import Fires

pytestmark = pytest.mark.anyio


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


async def test_several_schedules_on_one_task_have_their_own_arguments(manager: TaskManager) -> None:
    """And names; the task can be enqueued as ever."""
    seen = []

    @manager.schedule(every=60, name="mail Ada", args=("Ada",))
    @manager.schedule(every=90, name="mail Bob", args=("Bob",), kwargs={"copy": True})
    @manager.task(name="mail")
    async def mail(to: str, *, copy: bool = False) -> str:
        seen.append((to, copy))
        return to

    async with isolated(manager) as world:
        await world.advance(100)
        assert await mail.enqueue("Eve") == "Eve"
        infos = {each.schedule_name: each for each in await manager.schedules()}
    assert seen == [("Ada", False), ("Bob", True), ("Eve", False)]
    assert {name: each.task_name for name, each in infos.items()} == {"mail Ada": "mail", "mail Bob": "mail"}
    assert infos["mail Bob"].definition == "every 90 s"


async def test_a_schedule_that_is_declared_while_the_manager_runs_fires_too(manager: TaskManager, fires: Fires) -> None:
    """A module that is imported late is no less scheduled."""
    async with isolated(manager) as world:

        @manager.schedule(every=60)
        async def late() -> None:
            await fires.run()

        await world.advance(130)
    assert fires.minutes() == [1, 2]


async def test_many_schedules_are_declared_and_fired_some_at_a_time(
    manager: TaskManager, fires: Fires, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the loop nor the store is held for long by thousands; when the start returns, all are declared."""
    monkeypatch.setattr(schedules, "DECLARED_PAGE", 3)
    monkeypatch.setattr(schedule_firing, "PAGE", 4)
    job = manager.task(fires.run, name="job")
    for number in range(10):
        manager.schedule(every=60, name=f"schedule {number}")(job)
    async with isolated(manager) as world:
        assert [each.schedule_name for each in await world.store.schedules()] == [f"schedule {n}" for n in range(10)]
        await world.advance(90)
    assert fires.minutes() == [1] * 10


def test_all_that_is_parked_has_its_turn() -> None:
    """What others did to it is asked of the store, for some at a time."""
    book = ScheduleBook("me")
    book.declared = dict.fromkeys("abcdefg")  # type: ignore[assignment]  # only the names are asked for
    book.plan("c", 1)
    assert ["".join(book.parked(4)) for _ in range(4)] == ["abde", "fg", "abde", "fg"]
    book.park("c")
    assert book.parked(100) == list("abcdefg")


async def test_jitter_moves_each_start_by_the_same_amount_everywhere(manager: TaskManager, fires: Fires) -> None:
    """Within its bound, different from fire to fire, and the run still reads the fire and not its own start."""
    late: list[list[float]] = []

    @manager.schedule(every=60, jitter=30, name="spread")
    async def spread() -> None:
        await fires.run()
        late[-1].append((world.now - fires[-1]).total_seconds())

    for _ in range(2):
        late.append([])
        async with isolated(manager) as world:
            await world.advance(20 * 60)
    assert late[0] == late[1]
    assert fires.minutes()[:19] == list(range(1, 20))
    assert all(0 <= each < 30.1 for each in late[0])
    assert len({round(each) for each in late[0]}) > 5
