"""Definitions of schedules: how they change from one release to the next, and which are refused."""

import logging
import sys
import zoneinfo
from typing import Any

import pytest

from taskmanager import ConfigurationError, TaskManager, TaskStatus, task
from taskmanager.store.memory import MemoryStore
from taskmanager.testing import isolated
from taskmanager.testing.virtual import virtual_time
from tests.unit.schedules.fires import MINUTE, Fires, pass_time

pytestmark = pytest.mark.anyio


def test_schedules_of_one_function_that_differ_need_names(manager: TaskManager) -> None:
    """A loop over cities that gives no names would leave the last one only, and say nothing."""

    async def poll(city: str) -> None: ...

    manager.schedule(every=60, args=("Rome",))(poll)
    manager.schedule(every=60, args=("Rome",))(poll)  # the same once more, as by a function that makes the application
    with pytest.raises(ConfigurationError, match="give one of them a name="):
        manager.schedule(every=60, args=("Oslo",))(poll)
    manager.schedule(every=60, args=("Oslo",), name="Oslo")(poll)


def release(fires: Fires, **options: Any) -> TaskManager:
    """One release of an application with at most one schedule."""
    made = TaskManager("never-opened.db")

    @made.task(name="job")
    async def job(*_: int) -> None:
        await fires.run()

    if options:
        made.schedule(name="tick", **options)(job)
    return made


async def test_a_changed_definition_is_reckoned_from_now_and_said(
    fires: Fires, caplog: pytest.LogCaptureFixture
) -> None:
    """At the registration, and only there."""
    caplog.set_level(logging.INFO, "taskmanager")
    store = MemoryStore()
    async with isolated(release(fires, cron="@daily"), store=store) as world:
        await world.advance(90)
    async with isolated(manager := release(fires, every=60), store=store) as world:
        (info,) = await manager.schedules()
        assert info.next_run_at == world.now + MINUTE
        await world.advance(61)
    assert len(fires) == 1
    assert any("schedule tick is every 60 s now" in record.getMessage() for record in caplog.records)


async def test_new_arguments_with_the_old_timing_make_up_what_was_missed(fires: Fires) -> None:
    """A deploy that changes a number does not forget the night."""
    store = MemoryStore()
    with virtual_time():
        async with isolated(release(fires, cron="@hourly"), store=store) as world:
            await world.advance(3630)
            hash_before = (await world.manager.schedules())[0].config_hash
        await pass_time(3600)
        async with isolated(manager := release(fires, cron="@hourly", args=(7,)), store=store) as world:
            await world.advance(1)
            (info,) = await manager.schedules()
    assert info.config_hash != hash_before
    assert fires.minutes() == [60, 120]


async def test_a_schedule_that_nobody_declares_any_more_is_kept_and_shown(
    fires: Fires, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not fire, its row and the log say so, and a release that has it again goes on with it."""
    caplog.set_level(logging.INFO, "taskmanager")
    store = MemoryStore()
    async with isolated(release(fires, every=60), store=store) as world:
        await world.advance(61)
    async with isolated(manager := release(fires), store=store) as world:
        await world.advance(200)
        (info,) = await manager.schedules()
        assert (info.schedule_name, info.is_declared, info.run_count) == ("tick", False, 1)
        assert manager.status().schedules == ()
    assert len(fires) == 1
    assert caplog.text.count("1 schedule of the file declared by no instance that runs, and not fired: tick") == 1
    async with isolated(manager := release(fires, every=60), store=store) as world:
        (info,) = await manager.schedules()
        assert info.is_declared


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "give cron= or every="),
        ({"cron": "* * * * *", "every": 5}, "give cron= or every="),
        ({"cron": "61 * * * *"}, "bad minute '61'; it takes 0 to 59"),
        ({"cron": "0 0 12 ? * MON"}, r"bad day-of-month '\?'; it takes 1 to 31"),
        ({"cron": "* * * *"}, "4 fields"),
        ({"cron": "@reboot"}, "run_on_startup"),
        ({"cron": "0 0 30 2 *"}, "no day 30 in month 2"),
        ({"cron": "*/5 2 * 3 7L", "timezone": "Europe/Berlin"}, "never fires"),
        ({"cron": "@daily", "timezone": "Europe/Atlantis"}, "timezone 'Europe/Atlantis'"),
        ({"cron": "@daily", "timezone": "Europe/Berln"}, "did you mean 'Europe/Berlin'"),
        ({"cron": "@daily", "timezone": "CEST"}, "no abbreviation"),
        ({"every": 5, "timezone": "UTC"}, "timezone goes with cron"),
        ({"every": 0}, "at least 0.01"),
        ({"every": "5 minutes"}, "every must be seconds"),
        ({"every": 5, "jitter": 5}, "jitter must be shorter"),
        ({"cron": "* * * * *", "jitter": 60}, "jitter must be shorter than the time between two fires"),
        ({"cron": "0,10 9 * * MON", "jitter": 600}, "jitter must be shorter than the time between two fires"),
        ({"every": 5, "catch_up": "some"}, "catch_up"),
        ({"every": 5, "overlap": "maybe"}, "overlap"),
        ({"every": 5, "max_catch_up_runs": 0}, "max_catch_up_runs"),
        ({"every": 5, "name": ""}, "name must be"),
        ({"every": 5, "args": ["a"]}, "args must be a tuple"),
        ({"every": 5, "args": (1, 2)}, "do not fit"),
        ({"every": 5, "kwargs": {"unknown": 1}}, "do not fit"),
        ({"every": 5, "args": (object(),)}, "do not fit"),
    ],
)
def test_a_wrong_definition_is_refused_where_it_stands(
    manager: TaskManager, options: dict[str, Any], words: str
) -> None:
    """Not at the first fire, in the night."""

    async def job(n: int = 0) -> None: ...

    with pytest.raises(ConfigurationError, match=words):
        manager.schedule(**options)(job)


def test_without_a_zone_database_utc_works_and_others_say_what_to_install(
    manager: TaskManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slim container image has neither the system's database nor the package tzdata."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "tzdata"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tzdata", None)
    search_path = zoneinfo.TZPATH
    zoneinfo.reset_tzpath(to=())

    async def job() -> None: ...

    try:
        with pytest.raises(ConfigurationError, match=r"'Asia/Kathmandu' is not known: .* package tzdata"):
            manager.schedule(cron="@daily", timezone="Asia/Kathmandu")(job)
        manager.schedule(cron="@daily", timezone="UTC")(job)
        manager.schedule(cron="@daily", name="also in UTC")(job)
    finally:
        zoneinfo.reset_tzpath(to=search_path)


def test_two_schedules_of_one_name_are_refused(manager: TaskManager) -> None:
    """The default name is that of the task, so the second one on a task needs its own."""

    @manager.schedule(every=60)
    async def job() -> None: ...

    with pytest.raises(ConfigurationError, match="name="):
        manager.schedule(every=90)(job)
    manager.schedule(every=90, name="another")(job)


def test_the_order_of_the_decorators_is_told(manager: TaskManager) -> None:
    """The other way round cannot work: the options of the task would come too late."""
    with pytest.raises(ConfigurationError, match=r"@manager.schedule\(...\) stands above @manager.task"):

        @manager.task(retries=3)
        @manager.schedule(every=60)
        async def job() -> None: ...


async def test_a_free_task_is_bound_by_its_schedule(manager: TaskManager, fires: Fires) -> None:
    """As by `register`."""

    @task(name="free")
    async def free() -> None:
        await fires.run()

    manager.schedule(every=60)(free)
    async with isolated(manager) as world:
        await world.advance(61)
        assert [each.status for each in await manager.list()] == [TaskStatus.COMPLETED]
