"""The testing kit: worlds, virtual time, and the store that fails on purpose."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from taskmanager import (
    ConfigurationError,
    StepFailed,
    StoreUnavailable,
    TaskEvent,
    TaskInterrupted,
    TaskManager,
    TaskStatus,
    step,
    wait_for,
)
from taskmanager.store.memory import MemoryStore
from taskmanager.store.sqlite import SqliteStore
from taskmanager.testing import START, Fault, FaultyStore, World, isolated

pytestmark = pytest.mark.anyio


# --- what a test sees -------------------------------------------------------------------------------------------------


async def test_everything_enqueued_is_seen_in_order_with_its_python_values(world: World) -> None:
    """Asserts compare what the caller passed, not JSON text."""

    @world.manager.task(name="mail", persist=True)
    async def mail(address: str, *, when: datetime | None = None) -> None: ...

    @world.manager.task(name="note")
    async def note(thing: object) -> None: ...

    thing = object()
    mail.with_options(delay=60, tags={"user": "1"}, priority=3).enqueue("ada@example.org", when=START)
    note.enqueue(thing)
    first, second = world.enqueued
    assert (first.task_name, first.args, first.kwargs) == ("mail", ("ada@example.org",), {"when": START})
    assert (first.tags, first.priority, first.not_before) == ({"user": "1"}, 3, START + timedelta(seconds=60))
    assert (first.is_persisted, first.status) == (True, TaskStatus.PENDING)
    assert second.args == (thing,)
    assert second.not_before is None


async def test_the_status_of_what_was_enqueued_is_the_one_now(world: World) -> None:
    """Over attempts and restarts."""

    @world.manager.task(persist=True)
    async def job() -> None: ...

    job.with_options(delay=60).enqueue()
    before = world.enqueued[0]
    await world.restart()
    assert world.enqueued[0].status == "PENDING"
    await world.drain()
    assert world.enqueued[0].status == "COMPLETED"
    assert before.status is TaskStatus.PENDING


async def test_a_call_that_a_key_led_to_an_existing_task_is_seen_once(world: World) -> None:
    """`enqueued` is what was accepted."""

    @world.manager.task
    async def job() -> None: ...

    for _ in range(2):
        job.with_options(idempotency_key="k").enqueue()
    assert len(world.enqueued) == 1


# --- moving time ------------------------------------------------------------------------------------------------------


async def test_drain_runs_delays_and_back_offs_in_no_real_time(world: World) -> None:
    """Three retries an hour apart and a delay of a day."""
    runs = []

    @world.manager.task(retries=3, retry_delay=3_600, retry_backoff=1.0)
    async def job() -> None:
        runs.append(world.now)
        await asyncio.sleep(10)
        raise ValueError("again")

    began = time.monotonic()
    handle = job.with_options(delay=timedelta(days=1)).enqueue()
    await world.drain()
    assert handle.status is TaskStatus.FAILED
    assert len(runs) == 4
    assert runs[0] == START + timedelta(days=1)
    assert runs[3] - runs[0] > timedelta(hours=2)
    assert time.monotonic() - began < 5


async def test_drain_runs_what_tasks_enqueue(world: World) -> None:
    """Children of children too."""
    seen = []

    @world.manager.task
    async def count(down: int) -> None:
        seen.append(down)
        if down:
            count.with_options(delay=5).enqueue(down - 1)

    count.enqueue(3)
    await world.drain()
    assert seen == [3, 2, 1, 0]
    assert world.now == START + timedelta(seconds=15)


async def test_advance_runs_everything_due_on_the_way_in_order(world: World) -> None:
    """And nothing that is due later."""
    seen = []

    @world.manager.task
    async def job(name: str) -> None:
        seen.append((name, (world.now - START).total_seconds()))

    for name, delay in (("c", 61), ("b", 60), ("a", 0.5)):
        job.with_options(delay=delay).enqueue(name)
    await world.advance(60)
    assert seen == [("a", 0.5), ("b", 60.0)]
    await world.advance(timedelta(seconds=1))
    assert seen[-1] == ("c", 61.0)
    with pytest.raises(ConfigurationError, match="forwards"):
        await world.advance(-1)
    with pytest.raises(ConfigurationError, match="seconds must be seconds"):
        await world.advance("1")  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize("persist", [True, False])
@pytest.mark.parametrize("way", ["idle", "advance", "drain"])
async def test_async_listener_has_heard_all_when_a_world_is_idle(world: World, way: str, persist: bool) -> None:
    """Also of an end whose commit may wait for the next one: no time need pass for that."""
    manager, heard = world.manager, list[str]()

    @manager.on("completed")
    async def hear(event: TaskEvent) -> None:
        heard.append(event.task.task_name)

    @manager.task(name="next", persist=persist)
    async def following() -> None: ...

    @manager.task(name="job", persist=persist)
    async def job() -> None:
        following.enqueue()

    job.with_options(delay=60 if way == "advance" else 0).enqueue()
    await {"idle": world.idle, "advance": partial(world.advance, 60), "drain": world.drain}[way]()
    assert heard == ["job", "next"]
    assert world.now == START + timedelta(seconds=60 if way == "advance" else 0)


async def test_a_world_that_has_ended_does_nothing_more(tmp_path: Path) -> None:
    """After a line that slipped out of the block the hour would really pass, and the manager would open its file."""
    async with isolated(TaskManager(tmp_path / "tasks.db")) as world:
        pass
    for late in (world.advance(3_600), world.idle(), world.drain(), world.restart(), world.start()):
        with pytest.raises(ConfigurationError, match="has ended"):
            await late
    assert await asyncio.to_thread(lambda: [*tmp_path.iterdir()]) == []


async def test_a_persisted_delay_is_exact_after_a_restart(world: World) -> None:
    """The row is free in the store then, and found when it is due."""

    @world.manager.task(persist=True)
    async def job() -> None: ...

    job.with_options(delay=3_600).enqueue()
    await world.restart()
    await world.advance(3_590)
    assert world.enqueued[0].status == "PENDING"
    await world.advance(11)
    assert world.enqueued[0].status == "COMPLETED"


async def test_user_code_lives_in_virtual_time(world: World) -> None:
    """`asyncio.timeout`, `sleep` and `call_later` follow the loop."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    fired: asyncio.Future[float] = loop.create_future()
    loop.call_later(500, lambda: fired.set_result(loop.time() - began))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1_000):
            await asyncio.Event().wait()
    assert fired.result() == pytest.approx(500)
    assert loop.time() - began == pytest.approx(1_000)


@pytest.mark.parametrize("delay", [0.1, 0.3, 1 / 3, 0.000_001, 1e-9, 59.999_999_9, 1_234_567.891])
async def test_no_fraction_of_a_second_is_too_odd(world: World, delay: float) -> None:
    """Sums of floats are off by a hair; time must not stand still for it."""

    @world.manager.task
    async def job() -> None:
        await asyncio.sleep(delay)

    for _ in range(3):
        await job.with_options(delay=delay).enqueue()
    assert (world.now - START).total_seconds() == pytest.approx(6 * delay, abs=1e-4)


async def test_a_step_moves_wall_time_alone(world: World) -> None:
    """A retry and a delay do not care; `run_at` does."""

    @world.manager.task
    async def job() -> None: ...

    delayed = job.with_options(delay=100).enqueue()
    at_noon = job.with_options(run_at=START + timedelta(hours=12)).enqueue()
    world.clock.step(timedelta(hours=12))
    assert world.now == START + timedelta(hours=12)
    await world.advance(6)
    assert (str(delayed.status), str(at_noon.status)) == ("PENDING", "COMPLETED")
    world.clock.step(-3_600)
    assert world.now == START + timedelta(hours=11, seconds=6)
    await world.advance(94)
    assert delayed.status == "COMPLETED"


async def test_time_holds_still_while_a_thread_works(world: World) -> None:
    """However long it really takes, a timeout on the loop does not overtake it."""
    go = threading.Event()

    @world.manager.task(timeout=1)
    def job() -> str:
        go.wait(5)
        return "done"

    threading.Timer(0.05, go.set).start()
    handle = job.enqueue()
    async with asyncio.timeout(0.5):
        assert await handle == "done"
    assert world.now == START


async def test_time_holds_still_while_a_thread_works_for_a_step(world: World) -> None:
    """The task itself is on the loop, and its step is not."""
    go = threading.Event()

    def work() -> str:
        go.wait(5)
        return "done"

    @world.manager.task(persist=True, timeout=1)
    async def job() -> str:
        return await step.with_options(timeout=0.7)(work)

    threading.Timer(0.05, go.set).start()
    handle = job.enqueue()
    async with asyncio.timeout(0.5):
        assert await handle == "done"
    assert world.now == START


async def test_a_stuck_thread_of_a_step_meets_its_timeout(world: World) -> None:
    """Then the task goes on, and ends when the thread has, which only real time can bring about."""
    assert world.virtual is not None
    world.virtual.lane_patience_s = 0.01
    go = threading.Event()

    @world.manager.task(persist=True)
    async def job() -> str:
        try:
            await step.with_options(timeout=1)(go.wait, 5)
        except StepFailed as failed:
            threading.Timer(0.05, go.set).start()
            return failed.error.error_code
        return "not stuck"

    assert await job.enqueue() == "TASK_TIMEOUT"
    assert world.now >= START + timedelta(seconds=1)


async def test_time_holds_still_for_an_executor(world: World) -> None:
    """`asyncio.to_thread` in user code is in flight too."""
    go = threading.Event()
    threading.Timer(0.05, go.set).start()
    async with asyncio.timeout(1):
        assert await asyncio.to_thread(go.wait, 5)
    assert world.now == START


async def test_time_holds_still_while_a_file_is_written(manager: TaskManager, tmp_path: Path) -> None:
    """A world on a real store: its calls take real time, which no timeout of the loop may overtake."""
    store = SqliteStore(tmp_path / "tasks.db", synchronous="normal")
    async with isolated(manager, store=store) as world:

        @manager.task(persist=True)
        async def job() -> int:
            return 1

        async with asyncio.timeout(0.01):
            handle = job.enqueue()
            await handle.saved()
            assert await handle == 1
        await job.with_options(delay=60).enqueue()
        assert world.now >= START + timedelta(seconds=60)


async def test_a_stuck_thread_does_not_hang_the_test(world: World) -> None:
    """Patience is real time, and a test that wants a stuck thread has none."""
    started, go = threading.Event(), threading.Event()
    assert world.virtual is not None
    world.virtual.lane_patience_s = 0.0

    @world.manager.task(timeout=30)
    def stuck() -> None:
        started.set()
        go.wait(10)

    handle = stuck.enqueue()
    await asyncio.to_thread(started.wait)
    await world.advance(31)
    go.set()
    assert handle.status is TaskStatus.FAILED


async def test_an_await_that_never_ends_is_an_error(world: World) -> None:
    """Not a test that hangs; and it is raised where the test waits."""
    with pytest.raises(RuntimeError, match="will never end"):
        await asyncio.Event().wait()

    @world.manager.task
    async def waits() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="will never end"):
        await waits.enqueue()

    @world.manager.task(persist=True, requeue_on_interrupt=True)
    async def asks() -> str:
        return await wait_for("answer", str)

    handle = asks.enqueue()
    await world.idle()  # it is in the file now, where it sleeps
    with pytest.raises(RuntimeError, match="will never end"):
        await handle


async def test_an_endless_sleep_is_no_moment_to_jump_to(world: World) -> None:
    """`asyncio.sleep(inf)` is a usual way to wait for a cancellation: there is no time to jump to."""

    @world.manager.task
    async def sleeps() -> None:
        await asyncio.sleep(float("inf"))

    handle = sleeps.enqueue()
    await world.advance(10)
    with pytest.raises(TimeoutError):
        await handle.result(timeout=50)
    assert world.now == START + timedelta(seconds=60)
    with pytest.raises(RuntimeError, match="will never end"):
        await handle


async def test_drain_says_what_nobody_takes(world: World) -> None:
    """A paused queue, and a function that is not known any more."""

    @world.manager.task(persist=True, name="gone")
    async def job() -> None: ...

    await world.manager.pause("default")
    await job.enqueue().saved()
    with pytest.raises(RuntimeError, match="never end"):
        await world.drain()
    await world.manager.resume("default")
    await world.drain()
    await world.manager.pause("default")
    await job.enqueue().saved()
    del world.manager._registry.definitions["gone"]
    await world.restart()
    with pytest.raises(RuntimeError, match="'gone' in queue 'default'"):
        await world.drain()


async def test_two_runs_see_the_same_instants(manager: TaskManager) -> None:
    """The first instant is fixed, so a snapshot of records compares equal tomorrow."""

    @manager.task
    async def job() -> None:
        await asyncio.sleep(7)

    seen = []
    for _ in range(2):
        async with isolated(manager) as world:
            handle = job.enqueue()
            await handle
            info = await handle.info()
            seen.append((info.sent_at, info.completed_at, world.now))
    assert seen[0] == seen[1] == (START, START + timedelta(seconds=7), START + timedelta(seconds=7))


# --- restoring --------------------------------------------------------------------------------------------------------


async def test_the_file_is_never_touched(tmp_path: Path) -> None:
    """Not made, not opened, no lock beside it."""
    manager = TaskManager(tmp_path / "tasks.db")

    @manager.task(persist=True)
    async def job(day: datetime) -> datetime:
        return day

    day = datetime(2026, 5, 1, tzinfo=UTC)
    async with isolated(manager):
        assert await job.enqueue(day) == day
    assert not (tmp_path / "tasks.db").exists()
    async with manager:
        assert await manager.list() == ()


async def test_persisted_tasks_run_from_their_stored_form(world: World) -> None:
    """As with a file: what was mutated after the call does not count."""

    @world.manager.task(persist=True)
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    numbers = [1, 2, 3]
    handle = total.enqueue(numbers)
    numbers.append(100)
    assert await handle == 6


async def test_everything_is_put_back_after_an_error(manager: TaskManager, tmp_path: Path) -> None:
    """The loop's time, the manager's door, and that it does not run."""
    loop = asyncio.get_running_loop()

    @manager.task
    async def job() -> None: ...

    async def fail_inside() -> None:
        async with isolated(manager) as world:
            inside = job.with_options(delay=5).enqueue()
            await world.advance(3_600)
            assert inside.status is TaskStatus.COMPLETED
            assert held.status is TaskStatus.PENDING
            job.with_options(delay=5).enqueue()
            raise LookupError("of the test")

    held = job.enqueue()
    before = _parts(manager)
    with pytest.raises(LookupError, match="of the test"):
        await fail_inside()
    assert _parts(manager) == before
    assert manager.status().state == "held until start"
    assert loop.time() == pytest.approx(time.monotonic(), abs=5)
    assert not hasattr(loop._selector, "_inner")  # type: ignore[attr-defined]
    async with manager:
        await held


def _parts(manager: TaskManager) -> tuple[object, ...]:
    return manager._clock, manager._intake, manager._settings, manager._make_store, manager._registry.defaults


async def test_a_start_that_fails_is_put_back_too(manager: TaskManager) -> None:
    """Nothing is half isolated."""
    store = FaultyStore(MemoryStore(), [Fault.fail(1)])
    with pytest.raises(StoreUnavailable):
        async with isolated(manager, store=store.as_store()):
            pass
    assert not hasattr(asyncio.get_running_loop()._selector, "_inner")  # type: ignore[attr-defined]
    async with isolated(manager):
        pass
    async with manager:
        pass


async def test_a_running_manager_is_not_isolated(manager: TaskManager) -> None:
    """It would have to be stopped, which is the test's business."""
    async with manager:
        with pytest.raises(ConfigurationError, match="stop it first"):
            async with isolated(manager):
                pass
        assert manager.status().state == "open"


async def test_the_lifespan_of_an_application_goes_on_in_the_world(world: World) -> None:
    """`FastAPI(lifespan=manager.lifespan)` under test: the manager runs already."""

    @world.manager.task
    async def job() -> int:
        return 1

    async with world.manager.lifespan(object()):
        assert await job.enqueue() == 1
    assert await job.enqueue() == 1


async def test_two_worlds_share_the_time_of_their_loop(manager: TaskManager) -> None:
    """Two managers of one application."""
    other = TaskManager(None)

    @other.task
    async def job() -> None:
        await asyncio.sleep(60)

    async with isolated(manager) as one, isolated(other) as two:
        await job.enqueue()
        assert one.now == two.now == START + timedelta(seconds=60)
    assert not hasattr(asyncio.get_running_loop()._selector, "_inner")  # type: ignore[attr-defined]


async def test_the_real_clock_is_the_machines(manager: TaskManager) -> None:
    """The loop is left alone; only the store and the door are swapped."""

    @manager.task
    async def job() -> int:
        return 1

    async with isolated(manager, clock="real") as world:
        assert world.virtual is None
        assert await job.enqueue() == 1
        assert abs((world.now - datetime.now(UTC)).total_seconds()) < 5
        job.with_options(delay=0.02).enqueue()
        await world.drain()
        assert [each.status for each in world.enqueued] == [TaskStatus.COMPLETED] * 2
    with pytest.raises(ConfigurationError, match="clock must be"):
        async with isolated(manager, clock="fake"):  # type: ignore[arg-type]
            pass


def test_another_kind_of_loop_is_refused_by_name(manager: TaskManager) -> None:
    """uvloop has its own timers; the message says what to do."""

    class OtherLoop:
        """As much of a loop as is looked at."""

    async def main() -> None:
        async with isolated(manager):
            pass

    coro = main()
    asyncio._set_running_loop(OtherLoop())  # type: ignore[arg-type]
    try:
        with pytest.raises(ConfigurationError, match=r"OtherLoop.*clock='real'"):
            coro.send(None)
    finally:
        asyncio._set_running_loop(None)
        coro.close()


async def test_a_restart_requeues_what_may_run_again(world: World) -> None:
    """The whole life of an interrupted task, without a file or a second of time."""
    attempts = []
    started = asyncio.Event()

    @world.manager.task(persist=True, requeue_on_interrupt=True)
    async def job() -> str:
        attempts.append(1)
        started.set()
        if len(attempts) == 1:
            await asyncio.sleep(3_600)
        return "done"

    handle = job.enqueue()
    await started.wait()
    await world.restart()
    with pytest.raises(TaskInterrupted) as caught:
        await handle
    assert caught.value.requeued
    await world.drain()
    assert await world.manager.handle(handle.task_id) == "done"
    assert len(attempts) == 2


# --- the faulty store -------------------------------------------------------------------------------------------------


async def test_a_fault_happens_at_its_call_and_no_other() -> None:
    """Counted among all calls, or among those of one verb."""
    store = FaultyStore(MemoryStore(), [Fault.fail(2), Fault.fail(2, verb="counts", times=2)])
    await store.counts()
    with pytest.raises(StoreUnavailable, match="call 2, instances"):
        await store.instances()
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await store.counts()
    await store.counts()
    assert store.calls == ["counts", "instances", "counts", "counts", "counts"]
    assert store.is_spent


@pytest.mark.parametrize("after", [False, True])
async def test_a_failed_call_may_have_taken_effect(after: bool) -> None:
    """The unknown fate: the caller sees the same error in both cases."""
    inner = MemoryStore()
    store = FaultyStore(inner, [Fault.fail(1, after=after)])
    with pytest.raises(StoreUnavailable):
        await store.set_paused("q", True, 1)
    assert await inner.paused_queues() == (frozenset({"q"}) if after else frozenset())


@pytest.mark.parametrize("after", [False, True])
async def test_the_caller_is_cancelled_at_the_call(after: bool) -> None:
    """Before or after it took effect."""
    inner = MemoryStore()
    store = FaultyStore(inner, [Fault.cancel(1, after=after)])
    task = asyncio.create_task(store.set_paused("q", True, 1))
    await asyncio.wait([task])
    assert task.cancelled()
    assert bool(await inner.paused_queues()) is after


async def test_a_held_call_waits_for_its_release() -> None:
    """And only that one."""
    store = FaultyStore(MemoryStore(), [Fault.hold(1)])
    task = asyncio.create_task(store.counts())
    await asyncio.sleep(0)
    assert store.held == ["counts"]
    await store.instances()
    store.let_go()
    await task
    assert store.held == []


async def test_a_world_says_that_it_lives_on_another_loop(manager: TaskManager) -> None:
    """A fixture and a test that two plugins run, each on its own loop, would wait for each other for ever."""

    def on_another_loop(call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with pytest.raises(ConfigurationError, match="lives on another event loop"):
            asyncio.run(call())

    async with isolated(manager) as world:
        for call in (lambda: world.advance(1), world.idle, world.drain, world.restart):
            thread = threading.Thread(target=on_another_loop, args=(call,))
            thread.start()
            thread.join()
        await world.advance(1)


async def test_a_store_that_is_down_comes_back(manager: TaskManager) -> None:
    """Memory-only work goes on meanwhile; what was promised is written afterwards. Held calls do not stop time."""
    store = FaultyStore(MemoryStore(), [Fault.hold(1, verb="commit")])
    async with isolated(manager, store=store.as_store()) as world:

        @manager.task(persist=True)
        async def job() -> int:
            return 1

        handle = job.enqueue()
        await world.advance(60)
        assert store.held == ["commit"]
        assert world.now == START + timedelta(seconds=60)
        store.is_down = True
        store.let_go()
        second = job.enqueue()
        await world.advance(60)
        assert second.status is TaskStatus.PENDING
        assert "unavailable" not in repr(store)
        store.is_down = False
        assert await handle == await second == 1


async def test_a_world_runs_every_queue_of_a_manager_that_only_enqueues() -> None:
    """Nobody else is there who could: `drain` would wait for ever."""
    manager = TaskManager("never-opened.db", run_queues=())

    @manager.task(persist=True)
    async def work() -> int:
        return 7

    async with isolated(manager) as world:
        handle = work.enqueue()
        await world.drain()
        assert await handle == 7
    assert not manager._settings.runs("default")
