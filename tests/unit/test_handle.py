"""Handles: what they stand for when their task runs again, and what they keep of a failure."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from logging import CRITICAL
from traceback import extract_tb
from typing import Any
from weakref import ref

import pytest

from taskmanager import (
    NotPersisted,
    TaskCancelled,
    TaskError,
    TaskFailed,
    TaskHandle,
    TaskManager,
    TaskResult,
    TaskStatus,
)
from taskmanager.engine.people.actions import retry_stored
from taskmanager.model.record import TaskWrite, expected_of
from taskmanager.testing import World
from tests.unit.engine_worlds import Store, engine_of, happens, manager_of, world_of

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


class Flaky:
    """A task `flaky(number)` that fails, waits, or gives a value, as the test goes."""

    def __init__(self, manager: TaskManager, *, persist: bool) -> None:
        self.runs = 0
        self.fails = True
        self.gate = asyncio.Event()
        self.gate.set()
        self.task = manager.task(name="flaky", persist=persist)(self.run)

    async def run(self, number: int) -> int:
        self.runs += 1
        run = self.runs
        await self.gate.wait()
        if self.fails:
            raise LookupError(f"run {run}")
        return 100 * number + run

    def enqueue(self) -> TaskHandle[int]:
        return self.task.with_options(idempotency_key="key").enqueue(1)


Again = Callable[[World, Store, Flaky, TaskHandle[Any]], Awaitable[object]]


async def by_the_manager(world: World, store: Store, flaky: Flaky, handle: TaskHandle[Any]) -> None:
    assert await world.manager.retry(handle.task_id, force=True)


async def by_its_key(world: World, store: Store, flaky: Flaky, handle: TaskHandle[Any]) -> None:
    assert flaky.enqueue().task_id == handle.task_id


async def by_another_process(world: World, store: Store, flaky: Flaky, handle: TaskHandle[Any]) -> None:
    """Seen as soon as the row is claimed here."""
    await world.manager.flush()
    row = await store.memory.fetch(handle.task_id)
    assert row is not None
    await retry_stored(store.memory, [row], world.clock.now_us())
    store.memory.others_wrote()
    await world.advance(1)


WAYS = [by_the_manager, by_its_key, by_another_process]


@pytest.mark.parametrize("persist", [True, False])
@pytest.mark.parametrize("again", WAYS)
async def test_a_handle_follows_the_run_after_a_retry(again: Again, persist: bool) -> None:
    """As one that is made after it does: its status, its value, its next failure."""
    manager = manager_of()
    flaky = Flaky(manager, persist=persist)
    async with world_of(manager) as (world, store):
        handle = flaky.enqueue()
        for run in (1, 2, 3):
            with pytest.raises(TaskFailed, match=f"run {run}"):
                await handle
            assert handle.status is TaskStatus.FAILED
            flaky.gate.clear()
            await again(world, store, flaky, handle)
            assert not handle.status.is_terminal
            waiting = asyncio.ensure_future(handle.result())
            await world.advance(1)
            assert handle.status is TaskStatus.RUNNING
            assert not waiting.done()
            flaky.fails = run < 3
            flaky.gate.set()
            assert (await waiting).is_err() == flaky.fails
        assert (await handle, handle.status) == (104, TaskStatus.COMPLETED)


@pytest.mark.parametrize("persist", [True, False])
async def test_a_handle_of_a_success_follows_a_forced_retry(persist: bool) -> None:
    manager = manager_of()
    flaky = Flaky(manager, persist=persist)
    flaky.fails = False
    async with world_of(manager) as (world, store):
        handle = flaky.enqueue()
        assert await handle == 101
        await by_the_manager(world, store, flaky, handle)
        assert await handle == 102
        assert await handle == 102


async def test_a_handle_cancels_the_run_after_a_retry() -> None:
    manager = manager_of()
    flaky = Flaky(manager, persist=True)
    async with world_of(manager) as (world, store):
        handle = flaky.enqueue()
        assert (await handle.result()).is_err()
        flaky.gate.clear()
        await by_the_manager(world, store, flaky, handle)
        await world.advance(1)
        assert handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle


@pytest.mark.parametrize("persist", [True, False])
async def test_a_handle_follows_runs_that_never_started(persist: bool) -> None:
    """Cancelled while it waits, and enqueued again by its key: each handle knows the latest, also at the end."""
    manager = manager_of()
    flaky = Flaky(manager, persist=persist)
    flaky.fails = False
    later = flaky.task.with_options(idempotency_key="key", delay=100)
    held = later.enqueue(1)
    assert held.cancel()
    assert held.status is TaskStatus.CANCELLED
    with pytest.raises(NotPersisted):
        await held.saved()
    handles = [held]
    async with world_of(manager) as (world, _):
        for _ in range(2):
            handles.append(later.enqueue(1))
            assert [each.status for each in handles] == [TaskStatus.PENDING] * len(handles)
            waiting = [asyncio.ensure_future(each.result()) for each in handles]
            await world.advance(1)
            assert handles[0].cancel()
            assert {(await each).err_value.error_code for each in waiting} == {"TASK_CANCELLED"}
            assert [each.status for each in handles] == [TaskStatus.CANCELLED] * len(handles)
        handles.append(flaky.enqueue())
        assert [await each for each in handles] == [101] * 4
        assert [each.is_duplicate for each in handles[:2]] == [False, False]
        await manager.stop()
        assert [each.status for each in handles] == [TaskStatus.COMPLETED] * 4


async def test_a_key_finds_the_run_and_not_the_end_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a memory-only task: neither the end that the retry of another process left behind, nor the end that leaves the
    window while the task runs again."""
    monkeypatch.setattr("taskmanager.engine.intake.keys.KEYED_WINDOW", 1)
    manager = manager_of()
    flaky = Flaky(manager, persist=False)
    async with world_of(manager) as (world, store):
        handle = flaky.enqueue()
        for again in (by_another_process, by_its_key):
            assert (await handle.result()).is_err()
            flaky.gate.clear()
            await again(world, store, flaky, handle)
            await world.advance(1)
            runs = flaky.runs
            if again is by_its_key:
                other = flaky.task.with_options(idempotency_key="other").enqueue(1)
                assert other.cancel()
                await world.advance(1)
            assert flaky.enqueue().status is TaskStatus.RUNNING
            await world.advance(1)
            assert flaky.runs == runs
            flaky.gate.set()


async def test_a_retry_that_is_refused_changes_no_handle() -> None:
    manager = manager_of()
    flaky = Flaky(manager, persist=True)
    flaky.fails = False
    async with world_of(manager):
        handle = flaky.enqueue()
        assert await handle == 101
        assert not await manager.retry(handle.task_id)
        assert (await handle, handle.status) == (101, TaskStatus.COMPLETED)


async def test_the_memory_of_retries_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go first; a handle of one of those gives the end that it knows."""
    monkeypatch.setattr("taskmanager.engine.intake.keys.RERUN_WINDOW", 2)
    manager = manager_of()
    flaky = Flaky(manager, persist=True)
    async with world_of(manager) as (world, store):
        handles = [flaky.task.enqueue(1) for _ in range(3)]
        for handle in handles:
            assert (await handle.result()).is_err()
        flaky.fails = False
        for handle in handles:
            await by_the_manager(world, store, flaky, handle)
        assert [(await handle.result()).is_ok() for handle in handles] == [False, True, True]
        assert len(engine_of(manager).intake.keys._reruns) == 2


# Why it failed.


class Big:
    """What a frame of user code may hold."""


def failing(manager: TaskManager, lane: str, **options: Any) -> tuple[Any, list[BaseException], list[ref[Big]]]:
    """A task that fails; what it raised, if `keeps` is passed; and what its frames held."""
    raised: list[BaseException] = []
    held: list[ref[Big]] = []

    def fails(keeps: bool) -> None:
        big = Big()
        held.append(ref(big))
        exc = LookupError(f"raised {len(held)}")
        if keeps:
            raised.append(exc)
        try:
            raise exc
        finally:
            del exc

    async def fails_on_the_loop(keeps: bool) -> None:
        await asyncio.sleep(0)
        fails(keeps)

    return manager.task(name="fails", **options)(fails if lane == "thread" else fails_on_the_loop), raised, held


KINDS: list[dict[str, Any]] = [{"persist": False}, {"persist": True}]


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize("lane", ["async", "thread"])
async def test_the_cause_of_a_failure_is_the_exception_itself(lane: str, options: dict[str, Any]) -> None:
    """For whoever waits, however and whenever, as long as some handle was held; with the frames of user code only."""
    manager = manager_of()
    job, raised, _ = failing(manager, lane, **options)
    async with world_of(manager) as (world, _):
        first, second = (job.with_options(idempotency_key="key").enqueue(True) for _ in range(2))
        by_id = manager.handle(first.task_id)
        waiting = [asyncio.ensure_future(plainly(handle)) for handle in (first, second, by_id)]
        del first
        await world.drain()
        for each in (*waiting, plainly(second), plainly(by_id)):
            with pytest.raises(TaskFailed, match="raised 1") as caught:
                await each
            assert caught.value.__cause__ is raised[0]
    names = [frame.name for frame, _ in zip(extract_tb(raised[0].__traceback__), range(2), strict=False)]
    assert names[0] in ("fails", "fails_on_the_loop")


async def plainly(handle: TaskHandle[Any]) -> Any:
    return await handle


async def test_the_cause_is_that_of_the_last_attempt() -> None:
    """With retries, and of the run after a retry by hand."""
    manager = manager_of()
    job, raised, _ = failing(manager, "async", persist=True, retries=2, retry_delay=1)
    async with world_of(manager):
        handle = job.enqueue(True)
        for attempts in (3, 6, 9):
            with pytest.raises(TaskFailed) as caught:
                await handle
            assert len(raised) == attempts
            assert caught.value.__cause__ is raised[-1]
            assert await manager.retry(handle.task_id)


async def test_another_end_than_the_one_of_the_cause_has_none() -> None:
    """A later run failed elsewhere, and only its words are known."""
    manager = manager_of()
    job, _, _ = failing(manager, "async", persist=True)
    async with world_of(manager) as (_, store):
        handle = job.enqueue(True)
        assert (await handle.result()).is_err()
        await manager.flush()
        row = await store.memory.fetch(handle.task_id)
        assert row is not None
        again = row._replace(start_count=2)
        await store.memory.commit([TaskWrite(again, expected_of(row))])
        engine_of(manager).intake.keys.note_rerun(handle.task_id, 1)
        with pytest.raises(TaskFailed) as caught:
            await handle
        assert caught.value.__cause__ is None


async def test_a_failure_without_an_exception_has_no_cause() -> None:
    manager = manager_of()

    @manager.task
    async def says_so() -> TaskResult[int]:
        return TaskResult(err=TaskError("NO", "said"))

    @manager.task(timeout=1)
    async def too_long() -> None:
        await asyncio.Event().wait()

    async with world_of(manager):
        for job in (says_so, too_long):
            with pytest.raises(TaskFailed) as caught:
                await job.enqueue()
            assert caught.value.__cause__ is None


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize("lane", ["async", "thread"])
async def test_an_exception_is_kept_for_handles_only(
    lane: str, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Its frames hold what user code held. Nobody who has dropped the handle pays for them: neither the history that is
    not written yet, nor the memory of keys, nor a cycle that waits for the garbage collector."""
    manager = manager_of()
    job, _, held = failing(manager, lane, **options)

    def is_held(number: int) -> bool:
        return held[number]() is not None

    caplog.set_level(CRITICAL + 1, "taskmanager")  # records hold the exception too
    async with world_of(manager) as (world, _):
        with without_collector():
            for call in (
                job,
                job.with_options(idempotency_key="key"),
                job.with_options(good_until=world.now + timedelta(days=9)),
            ):
                held.clear()
                call.enqueue(False)
                await world.drain()
                await happens(lambda: not is_held(0))
                handles = [call.enqueue(False)]
                handles += [manager.handle(handles[0].task_id)]
                await world.drain()
                assert is_held(1)
                with pytest.raises(TaskFailed):
                    await handles[1]
                handles.pop(0)
                assert is_held(1)
                handles.clear()
                await happens(lambda: not is_held(1))


@contextmanager
def without_collector() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
