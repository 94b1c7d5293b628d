"""The call: what is accepted, when it starts, what is refused, and what an idempotency key does."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from taskmanager import (
    ArgumentError,
    ConfigurationError,
    ManagerStopped,
    ManagerStopping,
    QueueConfig,
    QueueFull,
    TaskInterrupted,
    TaskManager,
    TaskStatus,
    UnknownTask,
    task,
)
from taskmanager.engine.intake import warn_of_held_tasks
from taskmanager.store.memory import MemoryStore
from taskmanager.testing import START, World, isolated

pytestmark = pytest.mark.anyio


# --- the door ---------------------------------------------------------------------------------------------------------


async def test_before_the_start_calls_are_held_and_run_then(manager: TaskManager) -> None:
    """In the order of the calls; a held one can be cancelled."""
    order = []

    @manager.task
    async def job(n: int) -> None:
        order.append(n)

    handles = [job.enqueue(n) for n in range(3)]
    assert [str(each.status) for each in handles] == ["PENDING"] * 3
    assert manager.status().held_count == 3
    assert handles[1].cancel()
    assert not handles[1].cancel()
    async with manager:
        await handles[2]
    assert order == [0, 2]
    assert handles[1].status is TaskStatus.CANCELLED


def test_a_manager_never_started_warns_at_the_exit(manager: TaskManager, caplog: pytest.LogCaptureFixture) -> None:
    """With the count: those tasks are lost."""

    @manager.task
    async def job() -> None: ...

    job.enqueue()
    job.enqueue()
    warn_of_held_tasks()
    assert any("2 tasks" in record.getMessage() for record in caplog.records)


async def test_a_manager_that_nobody_starts_is_named_while_there_is_time(
    manager: TaskManager, caplog: pytest.LogCaptureFixture
) -> None:
    """An application with the wrong lifespan answers every request, and keeps nothing: one line says so, in time."""

    @manager.task
    async def job() -> None: ...

    def warnings() -> list[str]:
        return [line for line in caplog.messages if "has not started" in line]

    job.enqueue()
    job.enqueue()
    assert not warnings()
    manager._intake.held[0].sent_at -= 10_000_000
    job.enqueue()
    job.enqueue()
    assert len(warnings()) == 1
    assert "3 tasks wait in memory" in warnings()[0]
    async with manager:
        await manager.join()


async def test_enqueueing_by_name(world: World) -> None:
    """For callers that cannot import the function."""

    @world.manager.task(name="add")
    async def add(a: int, b: int = 1) -> int:
        return a + b

    assert await world.manager.enqueue("add", 2, b=3) == 5
    with pytest.raises(UnknownTask, match=r"'sub'.*add"):
        world.manager.enqueue("sub", 2)
    with pytest.raises(UnknownTask):
        world.manager.get_task("sub")
    assert world.manager.get_task("add").name == "add"


@pytest.mark.parametrize("persist", [False, True])
async def test_a_wrong_signature_is_a_type_error_as_for_a_call(world: World, persist: bool) -> None:
    """And nothing is kept."""

    @world.manager.task(persist=persist)
    async def job(a: int, *, b: int = 0) -> None: ...

    call: Any = job
    for args, kwargs in (((), {}), ((1, 2), {}), ((1,), {"c": 1}), ((1,), {"a": 1})):
        with pytest.raises(TypeError):
            call.enqueue(*args, **kwargs)
    assert world.enqueued == ()
    assert await world.manager.list() == ()


async def test_a_keyword_may_have_any_name(world: World) -> None:
    """Also those that this library gives its own parameters."""

    @world.manager.task(name="job", persist=True)
    async def job(**fields: int) -> dict[str, int]:
        return fields

    fields = {name: n for n, name in enumerate(("self", "fn", "task", "args", "kwargs", "options", "name", "context"))}
    assert await job.enqueue(**fields) == await world.manager.enqueue("job", **fields) == await job(**fields) == fields


async def test_an_argument_that_cannot_be_stored_is_named(world: World) -> None:
    """Persisted tasks only; memory-only ones carry any object."""

    @world.manager.task(name="stored", persist=True)
    async def stored(a: int, thing: Any) -> None: ...

    @world.manager.task(name="light")
    async def light(thing: Any) -> Any:
        return thing

    with pytest.raises(ArgumentError, match=r"thing.*object"):
        stored.enqueue(1, object())
    with pytest.raises(ArgumentError, match="thing"):
        stored.enqueue(1, float("nan"))
    thing = object()
    assert await light.enqueue(thing) is thing
    assert len(world.enqueued) == 1


async def test_any_thread_may_enqueue(world: World) -> None:
    """Without waiting; every call is accepted once."""
    seen: list[int] = []

    @world.manager.task
    async def job(n: int) -> None:
        seen.append(n)

    def caller(first: int) -> None:
        for n in range(first, first + 50):
            job.enqueue(n)

    await asyncio.gather(*(asyncio.to_thread(caller, first) for first in (0, 50, 100)))
    await world.drain()
    assert sorted(seen) == list(range(150))


async def test_a_task_enqueues_others_from_every_lane(world: World) -> None:
    """Inside a thread of ours too."""

    @world.manager.task(name="leaf")
    async def leaf(n: int) -> int:
        return n

    @world.manager.task(name="branch")
    def branch() -> str:
        return leaf.enqueue(7).task_id

    assert await world.manager.handle(await branch.enqueue()) == 7
    await world.drain()
    assert [each.status for each in world.enqueued] == ["COMPLETED", "COMPLETED"]


async def test_while_draining_only_persisted_tasks_are_accepted(world: World) -> None:
    """For the next start."""
    started = asyncio.Event()
    outcomes: list[object] = []

    @world.manager.task(name="stored", persist=True)
    async def stored() -> int:
        return 1

    @world.manager.task(name="light")
    async def light() -> None: ...

    @world.manager.task(name="long")
    async def long() -> None:
        started.set()
        await asyncio.sleep(2)
        outcomes.append(stored.enqueue())
        with pytest.raises(ManagerStopping):
            light.enqueue()

    ending = long.enqueue()
    await started.wait()
    await world.manager.stop()
    await ending
    (handle,) = outcomes
    with pytest.raises(TaskInterrupted) as caught:
        await handle  # type: ignore[misc]
    assert caught.value.requeued
    for each in (stored, light):
        with pytest.raises(ManagerStopped):
            each.enqueue()
    await world.start()
    await world.drain()
    assert world.enqueued[-1].status is TaskStatus.COMPLETED


def test_a_second_start_on_another_loop() -> None:
    """Is allowed, and gives a new instance id."""
    manager = TaskManager(None)
    seen = []

    @manager.task
    async def job() -> int:
        return 1

    async def once() -> None:
        async with manager:
            seen.append(manager.status().instance_id)
            assert await job.enqueue() == 1
        with pytest.raises(ManagerStopped):
            job.enqueue()

    asyncio.run(once())
    asyncio.run(once())
    assert len(set(seen)) == 2


async def test_a_second_start_of_a_running_manager_is_refused(world: World) -> None:
    """Stopping a stopped one does nothing."""
    with pytest.raises(ConfigurationError, match="runs already"):
        await world.manager.start()
    await world.manager.stop()
    await world.manager.stop()


# --- limits and order -------------------------------------------------------------------------------------------------


async def test_a_full_queue_refuses_and_room_can_be_awaited() -> None:
    """Per queue; running tasks do not count."""
    manager = TaskManager(None, concurrency=1, queues=[QueueConfig("small", max_pending=2)])

    @manager.task(queue_name="small")
    async def job() -> None:
        await asyncio.sleep(10)

    async with isolated(manager) as world:
        job.enqueue()
        await world.idle()
        job.enqueue()
        job.enqueue()
        with pytest.raises(QueueFull, match=r"'small'.*wait_for_room"):
            job.enqueue()
        await manager.wait_for_room("small")
        assert world.now == START + timedelta(seconds=10)
        job.enqueue()
        job.with_options(queue_name="default").enqueue()
        await manager.wait_for_room("default")
        await world.drain()
        assert len(world.enqueued) == 5


async def test_a_queue_that_nobody_has_named_is_told_with_the_name_that_was_meant(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It may be one that is to come, so it is no error; mostly it is a slip, and the real queue goes on."""
    manager = TaskManager(None, queues=[QueueConfig("reports")])

    @manager.task(queue_name="mail")
    async def job() -> None: ...

    async with isolated(manager):
        for known in ("mail", "reports", "default"):
            await manager.pause(known)
            await manager.resume(known)
            await manager.wait_for_room(known)
        assert caplog.messages == []
        await manager.wait_for_room("mial")
        await manager.wait_for_room("mial")
        await manager.resume("mial")
        await manager.pause("rpeorts")
        assert caplog.messages == [
            "there is always room in queue 'mial', which no function or task has named yet; did you mean 'mail'?",
            "queue 'mial' was not paused, and no function, task or instance has named it yet; did you mean 'mail'?",
            "queue 'rpeorts' is paused, and no function, task or instance has named it yet; did you mean 'reports'?",
        ]
        caplog.clear()
        await manager.pause("rpeorts")
        assert caplog.messages == []


async def test_the_whole_manager_has_a_limit_too() -> None:
    """Waiting and unsaved tasks of all queues, also while they are held for the start."""
    manager = TaskManager(None, max_pending=3)

    @manager.task
    async def job() -> None: ...

    for _ in range(3):
        job.enqueue()
    with pytest.raises(QueueFull):
        job.enqueue()
    async with isolated(manager) as world:
        handles = [job.with_options(delay=60).enqueue() for _ in range(3)]
        with pytest.raises(QueueFull):
            job.enqueue()
        handles[0].cancel()
        await manager.flush()
        await manager.wait_for_room()
        job.enqueue()
        await world.drain()


async def test_a_refused_call_holds_no_key() -> None:
    """The next try with the same key is a new task."""
    manager = TaskManager(None, queues=[QueueConfig("small", max_pending=1)])

    @manager.task(queue_name="small")
    async def job() -> None: ...

    async with isolated(manager) as world:
        job.with_options(delay=60).enqueue()
        with pytest.raises(QueueFull):
            job.with_options(idempotency_key="k").enqueue()
        await world.advance(61)
        handle = job.with_options(idempotency_key="k").enqueue()
        assert handle.is_duplicate is False
        await handle


@pytest.mark.req("DS-005", "DS-s6")
@pytest.mark.parametrize("persist", [False, True])
async def test_priority_first_then_first_come_first_served(persist: bool) -> None:
    """1 before 100; the same priority in the order of the calls; the queue's priority before the task's."""
    manager = TaskManager(None, concurrency=1, queues=[QueueConfig("vip", priority=1)])
    order: list[str] = []

    async with isolated(manager) as world:

        @manager.task(persist=persist)
        async def job(name: str) -> None:
            order.append(name)

        for queue in ("default", "vip"):
            await manager.pause(queue)
        for name, priority in (("a", 50), ("b", 100), ("c", 1), ("d", 50), ("e", 1)):
            job.with_options(priority=priority).enqueue(name)
        job.with_options(priority=100, queue_name="vip").enqueue("vip")
        await world.idle()
        for queue in ("vip", "default"):
            await manager.resume(queue)
        await world.drain()
    assert order == ["vip", "c", "e", "a", "d", "b"]


@pytest.mark.parametrize("max_in_memory", [2, 4, 10])
async def test_the_order_is_the_same_where_memory_holds_few_of_them(max_in_memory: int) -> None:
    """What waits in the file comes in time, whatever memory was filled with before it was called."""
    manager = TaskManager(None, concurrency=1, max_in_memory=max_in_memory)
    async with isolated(manager) as world:
        order = []

        @manager.task(persist=True)
        async def job(place: tuple[int, int]) -> None:
            order.append(place)
            await asyncio.sleep(1)

        priorities = [100] * 15 + [50] * 15 + [1] * 15 + [60, 50, 1, 100, 2] * 3
        await manager.pause("default")
        places = [(priority, n) for n, priority in enumerate(priorities)]
        for place in places:
            job.with_options(priority=place[0]).enqueue(place)
        await manager.flush()
        await manager.resume("default")
        await world.drain()
        assert order == sorted(places)


async def test_the_limit_of_a_queue_holds_beside_that_of_the_lane() -> None:
    """`max_concurrency` of one queue; the others are not held up by it."""
    manager = TaskManager(None, concurrency=10, queues=[QueueConfig("narrow", max_concurrency=2)])
    running: dict[str, int] = {"narrow": 0, "default": 0}
    peak = dict(running)

    @manager.task
    async def job(queue: str) -> None:
        running[queue] += 1
        peak[queue] = max(peak[queue], running[queue])
        await asyncio.sleep(1)
        running[queue] -= 1

    async with isolated(manager) as world:
        for queue in ["narrow"] * 6 + ["default"] * 6:
            job.with_options(queue_name=queue).enqueue(queue)
        await world.drain()
        assert world.now == START + timedelta(seconds=3)
    assert peak == {"narrow": 2, "default": 6}


# --- when ------------------------------------------------------------------------------------------------------------


@pytest.mark.req("DS-010", "DS-011")
@pytest.mark.parametrize("persist", [False, True])
async def test_delay_and_run_at_say_when_it_may_start(world: World, persist: bool) -> None:
    """Seconds, a timedelta, or an aware instant of any zone; one that has passed is now."""
    seen: dict[str, datetime] = {}

    @world.manager.task(persist=persist)
    async def job(name: str) -> None:
        seen[name] = world.now

    zone = timezone(timedelta(hours=5))
    job.with_options(delay=30).enqueue("delay")
    job.with_options(delay=timedelta(minutes=1)).enqueue("timedelta")
    job.with_options(run_at=(START + timedelta(hours=1)).astimezone(zone)).enqueue("run_at")
    job.with_options(run_at=datetime(2020, 1, 1, tzinfo=UTC)).enqueue("past")
    job.with_options(delay=0).enqueue("now")
    await world.drain()
    assert seen == {
        "delay": START + timedelta(seconds=30),
        "timedelta": START + timedelta(minutes=1),
        "run_at": START + timedelta(hours=1),
        "past": START,
        "now": START,
    }
    assert all(each.sent_at == START for each in world.enqueued)


@pytest.mark.parametrize(
    "options",
    [
        {"run_at": datetime(2026, 5, 1)},
        {"good_until": datetime(2026, 5, 1)},
        {"run_at": "tomorrow"},
        {"delay": 1, "run_at": START},
        {"delay": -1},
        {"delay": "1"},
        {"priority": 0},
        {"priority": 101},
        {"priority": True},
        {"queue_name": ""},
        {"timeout": 0},
        {"timeout": -1},
        {"idempotency_key": ""},
        {"idempotency_key": 7},
        {"tags": {"a": 1}},
        {"tags": ["a"]},
    ],
)
async def test_options_that_mean_nothing_are_refused(world: World, options: dict[str, Any]) -> None:
    """At the call, naming the option."""

    @world.manager.task
    async def job() -> None: ...

    with pytest.raises(ConfigurationError, match=next(iter(options))):
        job.with_options(**options)


async def test_all_faults_of_a_call_are_named_at_once(world: World) -> None:
    """Not one after the other."""

    @world.manager.task
    async def job() -> None: ...

    with pytest.raises(ConfigurationError, match=r"(?s)run_at.*priority|priority.*run_at"):
        job.with_options(run_at=datetime(2026, 5, 1), priority=0)


# --- idempotency ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persist", [False, True])
async def test_a_key_leads_to_the_task_that_has_it(world: World, persist: bool) -> None:
    """Waiting, running or completed: the handle follows it, and new arguments are ignored."""
    runs = []
    go = asyncio.Event()

    @world.manager.task(persist=persist)
    async def job(n: int) -> int:
        runs.append(n)
        await go.wait()
        return n

    call = job.with_options(idempotency_key="k")
    await world.manager.pause("default")
    handles = [call.enqueue(1), call.enqueue(1)]
    await world.manager.resume("default")
    await world.idle()
    assert handles[0].status == "RUNNING"
    handles.append(call.enqueue(2))
    go.set()
    assert await handles[0] == 1
    handles.append(call.enqueue(3))
    assert [await each for each in handles] == [1, 1, 1, 1]
    assert [each.is_duplicate for each in handles] == [False, True, True, True]
    assert len({each.task_id for each in handles}) == 1
    assert runs == [1]


@pytest.mark.parametrize("persist", [False, True])
async def test_a_key_whose_task_ended_badly_is_a_retry_with_the_new_arguments(world: World, persist: bool) -> None:
    """FAILED here; CANCELLED and EXPIRED below."""
    runs = []

    @world.manager.task(persist=persist)
    async def job(n: int) -> int:
        runs.append(n)
        if n == 1:
            raise ValueError("broken")
        return n

    call = job.with_options(idempotency_key="k")
    first = call.enqueue(1)
    assert (await first.result()).is_err()
    second = call.enqueue(2)
    assert second.task_id == first.task_id
    assert await second == 2
    assert second.is_duplicate is True
    info = await second.info(include_attempts=True)
    assert (info.status, info.args, info.start_count) == ("COMPLETED", "[2]", 2)
    assert runs == [1, 2]
    assert await call.enqueue(3) == 2


@pytest.mark.parametrize("persist", [False, True])
@pytest.mark.parametrize("end", ["cancelled", "expired"])
async def test_a_key_whose_task_never_ran_starts_again(world: World, persist: bool, end: str) -> None:
    """The new call's own options count."""

    @world.manager.task(persist=persist)
    async def job(n: int) -> int:
        return n

    late = job.with_options(idempotency_key="k", delay=60, good_until=START + timedelta(seconds=30))
    first = late.enqueue(1)
    await world.advance(1)
    if end == "cancelled":
        assert await world.manager.cancel(first.task_id)
    else:
        await world.advance(31)
    assert first.status == end.upper()
    second = job.with_options(idempotency_key="k").enqueue(2)
    assert await second == 2
    assert second.task_id == first.task_id
    assert (await second.info()).error_code is None


async def test_the_key_outlives_a_restart_where_the_task_does(world: World) -> None:
    """Persisted keys are in the store; memory-only ones are unique within the instance."""
    runs: list[str] = []

    @world.manager.task(name="stored", persist=True)
    async def stored(n: int) -> int:
        runs.append("stored")
        return n

    @world.manager.task(name="light")
    async def light() -> None:
        runs.append("light")

    call, light_call = stored.with_options(idempotency_key="k"), light.with_options(idempotency_key="k")
    first = call.enqueue(1)
    await first
    await light_call.enqueue()
    await world.restart()
    second = call.enqueue(2)
    assert second.is_duplicate is None
    assert await second == 1
    assert second.is_duplicate is True
    await light_call.enqueue()
    assert runs == ["stored", "light", "light"]


async def test_a_keyed_persisted_task_is_known_as_new_or_not_with_its_commit(world: World) -> None:
    """`is_duplicate` is None until `saved()`; a memory-only key is known at once."""

    @world.manager.task(name="stored", persist=True)
    async def stored() -> None: ...

    @world.manager.task(name="light")
    async def light() -> None: ...

    handle = stored.with_options(idempotency_key="k").enqueue()
    assert handle.is_duplicate is None
    await handle.saved()
    assert handle.is_duplicate is False
    assert light.with_options(idempotency_key="k").enqueue().is_duplicate is False
    assert stored.enqueue().is_duplicate is False


async def test_the_same_key_of_another_task_is_another_key(world: World) -> None:
    """The id is derived from name and key; None is no key."""

    @world.manager.task(name="a")
    async def one() -> None: ...

    @world.manager.task(name="b")
    async def two() -> None: ...

    ids = {each.with_options(idempotency_key="k").enqueue().task_id for each in (one, two)}
    ids |= {one.with_options(idempotency_key=None).enqueue().task_id for _ in range(2)}
    assert len(ids) == 4


@pytest.mark.parametrize("persist", [False, True])
async def test_a_purged_record_frees_its_key(world: World, persist: bool) -> None:
    """COMPLETED keeps the key until then, whatever else a purge deletes."""
    runs = []

    @world.manager.task(persist=persist)
    async def job(n: int) -> int:
        runs.append(n)
        return n

    call = job.with_options(idempotency_key="k")
    assert await call.enqueue(1) == 1
    assert await call.enqueue(2) == 1
    assert await world.manager.purge(status=TaskStatus.FAILED) == 0
    assert await world.manager.purge(older_than=timedelta(days=1)) == 0
    assert await call.enqueue(2) == 1
    assert await world.manager.purge(status=TaskStatus.COMPLETED) == 1
    assert await call.enqueue(3) == 3
    assert runs == [1, 3]


async def test_ignored_arguments_are_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """When they differ; not when they are the same."""
    caplog.set_level("INFO", logger="taskmanager")

    @world.manager.task
    async def job(n: int) -> None: ...

    call = job.with_options(idempotency_key="k")
    call.enqueue(1)
    call.enqueue(1)
    assert "other arguments" not in caplog.text
    call.enqueue(2)
    assert "other arguments" in caplog.text


async def test_two_instances_with_one_key_share_the_task() -> None:
    """The second finds the row of the first, and follows it to its end."""
    store = MemoryStore()
    runs: list[str] = []

    def define(name: str) -> tuple[TaskManager, Any]:
        manager = TaskManager(None, store_poll=0.05)

        @task(name="job", persist=True)
        async def job(n: int) -> int:
            runs.append(name)
            await asyncio.sleep(1)
            return n

        return manager, job

    (one, job_one), (two, job_two) = define("one"), define("two")
    async with isolated(one, store=store) as first, isolated(two, store=store):
        one.register(job_one)
        two.register(job_two)
        a = job_one.with_options(idempotency_key="k").enqueue(1)
        await a.saved()
        b = job_two.with_options(idempotency_key="k").enqueue(2)
        await first.advance(2)
        assert await a == 1
        assert b.task_id == a.task_id
        assert b.is_duplicate is True
    assert runs == ["one"]


async def test_threads_race_for_one_key(world: World) -> None:
    """Exactly one of them wins."""

    @world.manager.task
    async def job() -> None: ...

    barrier = threading.Barrier(3)

    def caller() -> bool | None:
        barrier.wait(5)
        return job.with_options(idempotency_key="k").enqueue().is_duplicate

    found = await asyncio.gather(*(asyncio.to_thread(caller) for _ in range(3)))
    assert sorted(map(str, found)) == ["False", "True", "True"]
