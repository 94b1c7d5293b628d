"""Schedules on a virtual clock: when they fire, what happens to fires that were missed, and what overlaps."""

import asyncio
import itertools
import logging
import sys
import zoneinfo
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taskmanager import ConfigurationError, QueueConfig, TaskManager, TaskStatus, UnknownTask, current_task, task
from taskmanager.duties.schedules import declaring, firing
from taskmanager.duties.schedules.book import ScheduleBook
from taskmanager.store.memory import MemoryStore
from taskmanager.testing import START, Fault, FaultyStore, World, isolated
from taskmanager.testing.virtual import virtual_time

pytestmark = pytest.mark.anyio

MINUTE = timedelta(minutes=1)


@pytest.fixture
def manager() -> TaskManager:
    """With a file, which nothing here ever opens."""
    return TaskManager("never-opened.db")


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


def test_schedules_of_one_function_that_differ_need_names(manager: TaskManager) -> None:
    """A loop over cities that gives no names would leave the last one only, and say nothing."""

    async def poll(city: str) -> None: ...

    manager.schedule(every=60, args=("Rome",))(poll)
    manager.schedule(every=60, args=("Rome",))(poll)  # the same once more, as by a function that makes the application
    with pytest.raises(ConfigurationError, match="give one of them a name="):
        manager.schedule(every=60, args=("Oslo",))(poll)
    manager.schedule(every=60, args=("Oslo",), name="Oslo")(poll)


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
    monkeypatch.setattr(declaring, "DECLARED_PAGE", 3)
    monkeypatch.setattr(firing, "PAGE", 4)
    job = manager.task(fires.run, name="job")
    for number in range(10):
        manager.schedule(every=60, name=f"schedule {number}")(job)
    async with isolated(manager) as world:
        assert [each.schedule_name for each in await world.store.schedules()] == [f"schedule {n}" for n in range(10)]
        await world.advance(90)
    assert fires.minutes() == [1] * 10


def test_all_that_is_parked_has_its_turn() -> None:
    """What others did to it is asked of the store, for some at a time."""
    book = ScheduleBook()
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


# --- what was missed --------------------------------------------------------------------------------------------------


async def pass_time(seconds: float) -> None:
    """On the virtual clock, without any application."""
    await asyncio.sleep(seconds)


async def away(world: World, minutes: float) -> None:
    """The application is down for so long."""
    await world.manager.stop()
    await asyncio.sleep(minutes * 60)
    await world.start()
    await world.idle()


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
async def test_what_is_made_up_is_bounded_and_the_newest(manager: TaskManager, fires: Fires, overlap: Any) -> None:
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


@pytest.mark.parametrize(("catch_up", "made_up"), [("skip", []), ("latest", [62]), ("all", list(range(3, 63)))])
async def test_a_clock_that_is_stepped_forward_is_time_that_was_missed(
    manager: TaskManager, fires: Fires, catch_up: Any, made_up: list[float]
) -> None:
    """As if the application had been down; noticed within seconds."""

    @manager.schedule(cron="* * * * *", catch_up=catch_up, name="tick")
    async def tick() -> None:
        await fires.run()

    async with isolated(manager) as world:
        await world.advance(150)
        world.clock.step(3600)
        await world.advance(6)
        assert fires.minutes() == [1, 2, *made_up]
        await world.advance(30)
    assert fires.minutes() == [1, 2, *made_up, 63]


@pytest.mark.parametrize(("catch_up", "made_up"), [("skip", []), ("latest", [62]), ("all", list(range(3, 63)))])
async def test_time_in_which_the_machine_slept_is_time_that_was_missed(
    manager: TaskManager, fires: Fires, catch_up: Any, made_up: list[float]
) -> None:
    """All clocks went on, so that no step tells of it: nobody has looked for a while."""

    @manager.schedule(cron="* * * * *", catch_up=catch_up, name="tick")
    async def tick() -> None:
        await fires.run()

    async with isolated(manager) as world:
        await world.advance(150)
        assert world.virtual is not None
        world.virtual.elapsed_us += 3_600 * 1_000_000
        await world.advance(6)
        assert fires.minutes() == [1, 2, *made_up]


# --- overlap ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overlap", "started"),
    [
        ("skip", {1: 1, 4: 4, 7: 7}),
        ("queue", {1: 1, 3.5: 3, 6: 6}),
        ("allow", {minute: minute for minute in range(1, 8)}),
    ],
)
async def test_a_run_that_takes_longer_than_its_period(
    manager: TaskManager, overlap: Any, started: dict[float, float]
) -> None:
    """Fires that come meanwhile are dropped; or the newest of them waits; or they all start. Never a backlog."""
    seen = {}

    @manager.schedule(every=60, overlap=overlap, name="slow")
    async def slow() -> None:
        scheduled_for = current_task().scheduled_for
        assert scheduled_for is not None
        seen[round((world.now - START) / MINUTE, 1)] = (scheduled_for - START) / MINUTE
        await asyncio.sleep(150)

    async with isolated(manager) as world:
        await world.advance(7 * 60 + 10)
    assert list(seen.values()) == list(started.values())
    assert all(abs(at - due) < 0.1 for at, due in zip(seen, started, strict=True))


@pytest.mark.parametrize("overlap", ["skip", "queue"])
async def test_a_run_in_back_off_has_not_ended(manager: TaskManager, overlap: Any) -> None:
    """Between two attempts too there is one run of the schedule, not two."""
    attempts = []

    @manager.schedule(every=60, overlap=overlap, name="shaky")
    @manager.task(retries=1, retry_delay=200, persist=True)
    async def shaky() -> None:
        attempts.append(((world.now - START) / MINUTE, current_task().task_id))
        if current_task().attempt == 1:
            raise ValueError("not now")

    async with isolated(manager) as world:
        await world.advance(3.5 * 60)
        assert len({task_id for _, task_id in attempts}) == 1
        await world.advance(4 * 60)
    assert len({task_id for _, task_id in attempts[:2]}) == 1
    assert len(attempts) >= 3


async def test_a_run_that_a_restart_interrupted_has_not_ended(manager: TaskManager) -> None:
    """It goes on first; the fire that was missed meanwhile follows it and does not run beside it."""
    running = most = 0
    seen = []

    @manager.schedule(every=60, name="long")
    @manager.task(persist=True, requeue_on_interrupt=True)
    async def long() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        seen.append((current_task().scheduled_for, current_task().attempt))
        try:
            await asyncio.sleep(30)
        finally:
            running -= 1

    async with isolated(manager) as world:
        await world.advance(65)
        await world.manager.stop(timeout=0)
        await world.advance(300)
        await world.start()
        await world.advance(50)
    first, missed = START + MINUTE, START + 6 * MINUTE
    assert seen[:3] == [(first, 1), (first, 2), (missed, 1)]
    assert most == 1


# --- what people do ---------------------------------------------------------------------------------------------------


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


# --- bad days ---------------------------------------------------------------------------------------------------------


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
    for verb in ("fire_schedules", "busy_schedules", "schedules", "declare_schedules", "data_version"):
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


# --- definitions that change ------------------------------------------------------------------------------------------


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


# --- what is refused --------------------------------------------------------------------------------------------------


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


def test_without_a_database_of_time_zones_utc_works_and_the_rest_says_what_to_install(
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
