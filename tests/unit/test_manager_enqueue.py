"""The call: what is accepted before, during and after a start, when it starts, and what is refused."""

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from taskmanager import (
    ArgumentError,
    ConfigurationError,
    ManagerStopped,
    ManagerStopping,
    TaskInterrupted,
    TaskManager,
    TaskStatus,
    UnknownTask,
)
from taskmanager.engine.intake.intake import warn_of_held_tasks
from taskmanager.testing import START, World

pytestmark = pytest.mark.anyio


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
