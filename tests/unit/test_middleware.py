"""Middleware: async functions around each attempt, in every lane, inside its slot and its time limit."""

import asyncio
import gc
import os
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from taskmanager import (
    BuiltInTaskCode,
    ConfigurationError,
    Lane,
    Snooze,
    TaskCancelled,
    TaskContext,
    TaskError,
    TaskFailed,
    TaskManager,
    TaskResult,
    TaskStatus,
    current_task,
    task,
)
from taskmanager.engine.run import lanes
from taskmanager.testing import World

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

Call = Callable[[], Awaitable[Any]]
request: ContextVar[str] = ContextVar("request", default="none")


def passing_on(manager: TaskManager, seen: list[str], name: str = "only") -> None:
    @manager.middleware
    async def pass_on(context: TaskContext, call: Call) -> Any:
        seen.append(f"{name} before {context.task_name}")
        try:
            return await call()
        finally:
            seen.append(f"{name} after")


# --- what it gives and gets -------------------------------------------------------------------------------------------


async def test_the_first_middleware_is_outermost(world: World) -> None:
    """They are around each other as decorators are, and once per attempt."""
    manager, seen = world.manager, list[str]()
    passing_on(manager, seen, "first")
    passing_on(manager, seen, "second")

    @manager.task(name="job", retries=1)
    async def job() -> int:
        seen.append(f"attempt {current_task().attempt}")
        if current_task().attempt == 1:
            raise ValueError("no")
        return 7

    assert await job.enqueue() == 7
    one = ["first before job", "second before job", "attempt {}", "second after", "first after"]
    assert seen == [each.format(number) for number in (1, 2) for each in one]


async def test_the_value_that_a_middleware_returns_is_the_result(world: World) -> None:
    """It may change the value, and need not let the function run at all."""
    manager, ran = world.manager, list[int]()

    @manager.middleware
    async def double(context: TaskContext, call: Call) -> Any:
        return 0 if context.tags.get("skip") else 2 * await call()

    @manager.task(persist=True)
    async def job(n: int) -> int:
        ran.append(n)
        return n

    assert await job.enqueue(4) == 8
    assert await job.with_options(tags={"skip": "yes"}).enqueue(5) == 0
    assert ran == [4]


async def test_a_value_of_another_type_than_the_task_returns_is_not_kept(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A changed value is proven against the annotation of the function, as the value of the function is."""
    manager = world.manager

    @manager.middleware
    async def spoil(context: TaskContext, call: Call) -> Any:
        await call()
        return object()

    @manager.task(persist=True)
    async def job() -> int:
        return 1

    handle = job.enqueue()
    await handle.result()
    info = await manager.get(handle.task_id)
    assert info is not None
    assert info.status is TaskStatus.COMPLETED
    assert info.result is not None
    assert info.result.is_err()
    assert "a result of task" in caplog.text


async def test_snooze_and_task_result_pass_as_values(world: World) -> None:
    """A middleware sees what the function returns, and hands it on or not."""
    manager, seen = world.manager, list[object]()

    @manager.middleware
    async def look(context: TaskContext, call: Call) -> Any:
        value = await call()
        seen.append(value)
        return value

    @manager.task
    async def job() -> Snooze | TaskResult[int]:
        if current_task().attempt == 1:
            return Snooze(5)
        return TaskResult(err=TaskError("NO_MAIL", "nobody is there"))

    result = await job.enqueue().result()
    assert result.err_value.error_code == "NO_MAIL"
    assert [type(each) for each in seen] == [Snooze, TaskResult]


async def test_its_exceptions_go_through_the_exception_mapper(world: World) -> None:
    """Whether the function or a middleware raises makes no difference, and a caught exception is none."""
    manager = world.manager

    @manager.middleware
    async def guard(context: TaskContext, call: Call) -> Any:
        if context.tags.get("who") == "nobody":
            raise PermissionError("not allowed")
        try:
            return await call()
        except KeyError:
            return -1

    @manager.task(exception_mapper={PermissionError: "FORBIDDEN"})
    async def job() -> int:
        raise KeyError("x")

    assert await job.enqueue() == -1
    with pytest.raises(TaskFailed) as failed:
        await job.with_options(tags={"who": "nobody"}).enqueue()
    assert failed.value.error.error_code == "FORBIDDEN"
    assert isinstance(failed.value.__cause__, PermissionError)


@pytest.mark.parametrize("lane", ["async", "thread"])
async def test_a_traceback_has_no_frames_of_the_library(world: World, lane: Lane) -> None:
    """A tool that groups errors, and whoever reads the log, sees the middleware and then the function."""
    manager = world.manager
    passing_on(manager, [], "outer")
    passing_on(manager, [], "inner")

    async def here() -> None:
        raise ValueError

    def there() -> None:
        raise ValueError

    job = manager.task(here if lane == "async" else there)
    handle = job.enqueue()
    with pytest.raises(TaskFailed) as failed:
        await handle
    names = [step.name for step in traceback.extract_tb(failed.value.__cause__.__traceback__)]  # type: ignore[union-attr]
    assert names == ["pass_on", "pass_on", job.fn.__name__]
    reason = (await handle.info()).failed_reason or ""
    assert [reason.count(name) for name in ("in pass_on", f"in {job.fn.__name__}", "  File")] == [2, 1, 3]


async def test_call_may_be_awaited_once(world: World) -> None:
    """The function runs once in an attempt, so a second call is a mistake, which says what to do."""
    manager, ran = world.manager, list[int]()

    @manager.middleware
    async def twice(context: TaskContext, call: Call) -> Any:
        await call()
        with pytest.raises(ConfigurationError, match="retries="):
            await call()
        return "done"

    @manager.task
    async def job() -> str:
        ran.append(1)
        return "once"

    assert await job.enqueue() == "done"
    assert ran == [1]


async def test_context_variables_of_a_middleware_are_seen_by_the_function(world: World) -> None:
    """The function runs in the same context on the loop, and in a copy of it in a thread."""
    manager = world.manager

    @manager.middleware
    async def give_request(context: TaskContext, call: Call) -> Any:
        request.set(context.task_id)
        return await call()

    @manager.task
    async def here() -> tuple[str, str]:
        return request.get(), current_task().task_id

    @manager.task
    def there() -> tuple[str, str]:
        return request.get(), current_task().task_id

    for handle in (here.enqueue(), there.enqueue()):
        assert await handle == (handle.task_id, handle.task_id)


async def test_one_that_comes_while_the_manager_runs_is_around_what_begins_then(world: World) -> None:
    """As with tasks and listeners, nothing has to be declared before the start."""
    manager, seen = world.manager, list[str]()

    @manager.task(name="job")
    async def job() -> None:
        await asyncio.sleep(1)

    first = job.enqueue()
    await world.advance(0.5)
    passing_on(manager, seen)
    await asyncio.gather(first, job.enqueue())
    assert seen == ["only before job", "only after"]


async def test_calling_a_task_directly_runs_no_middleware(world: World) -> None:
    """A unit test of a function is a test of the function."""
    seen: list[str] = []
    passing_on(world.manager, seen)

    @world.manager.task
    async def job() -> int:
        return 1

    assert await job() == 1
    assert not seen


def test_a_function_that_cannot_be_a_middleware_is_refused() -> None:
    """At the decorator: a sync function, too few parameters, a task, and the same function once more."""
    manager = TaskManager(None)

    def sync(context: TaskContext, call: Call) -> Any: ...
    async def lonely(call: Call) -> Any: ...
    async def right(context: TaskContext, call: Call) -> Any: ...
    @task
    async def job(context: int, call: int) -> None: ...

    for wrong in (sync, lonely, job, "right", None):
        with pytest.raises(ConfigurationError, match=r"async function of two parameters"):
            manager.middleware(wrong)  # type: ignore[type-var]
    assert manager.middleware(right) is right
    with pytest.raises(ConfigurationError, match="already"):
        manager.middleware(right)
    manager.middleware(partial(right))


# --- the other lanes --------------------------------------------------------------------------------------------------


def plain() -> int:
    return 3


def refusing() -> TaskResult[int]:
    return TaskResult(err=TaskError("REFUSED", "not today"))


def raising() -> int:
    raise KeyError("x")


def snoozing() -> Snooze | int:
    return Snooze(0.01) if current_task().attempt == 1 else 5


def dying() -> object:
    os._exit(3)


@pytest.mark.parametrize("lane", ["thread", "process"])
async def test_it_is_around_threads_and_child_processes(lane: Lane) -> None:
    """On the loop of the parent: values, errors and exceptions of the function arrive there as they are."""
    manager, seen = TaskManager(None, processes=1), list[object]()

    @manager.middleware
    async def look(context: TaskContext, call: Call) -> Any:
        assert threading.current_thread() is threading.main_thread()
        try:
            value = await call()
        except Exception as exc:
            seen.append(type(exc))
            raise
        seen.append(value.err_value.error_code if isinstance(value, TaskResult) else value)
        return value

    tasks = [manager.task(executor=lane)(fn) for fn in (plain, refusing, raising, snoozing)]
    async with manager:
        results = [await each.enqueue().result() for each in tasks]
    assert (results[0].ok_value, results[3].ok_value) == (3, 5)
    assert results[1].err_value == TaskError("REFUSED", "not today")
    assert results[2].err_value.error_code == BuiltInTaskCode.UNHANDLED_EXCEPTION
    assert results[2].err_value.message.startswith("KeyError")
    assert [seen[0], seen[1], seen[2], seen[4]] == [3, "REFUSED", KeyError, 5]
    assert isinstance(seen[3], Snooze)


async def test_a_crash_of_a_child_stays_a_crash() -> None:
    """A middleware that lets it through leaves it what it is; one that answers for it has the last word."""
    manager = TaskManager(None, processes=1)

    @manager.middleware
    async def look(context: TaskContext, call: Call) -> Any:
        try:
            return await call()
        except Exception:
            if "calm" in context.tags:
                return "calm"
            raise

    job = manager.task(executor="process")(dying)
    async with manager:
        assert (await job.enqueue().result()).err_value.error_code == BuiltInTaskCode.WORKER_CRASHED
        assert await job.with_options(tags={"calm": "yes"}).enqueue() == "calm"


async def test_middleware_of_a_task_without_a_thread_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function has not run: its middleware gets a `CancelledError`, and the task is started again."""
    monkeypatch.setattr(lanes, "FIRST_RETRY_S", 0.02)
    manager, seen, refusals = TaskManager(None, threads=1), list[str](), [1]
    submit = lanes.ThreadLane.submit

    def refuse_once(self: lanes.ThreadLane, *args: Any) -> Any:
        if refusals.pop() if refusals else 0:
            raise lanes.CannotStart("no thread can be started")
        return submit(self, *args)

    monkeypatch.setattr(lanes.ThreadLane, "submit", refuse_once)

    @manager.middleware
    async def swallow(context: TaskContext, call: Call) -> Any:
        try:
            return await call()
        except asyncio.CancelledError:
            seen.append("cancelled")
            return 0

    job = manager.task(plain)
    async with manager:
        assert await job.enqueue() == 3
    assert seen == ["cancelled"]


# --- stopping ---------------------------------------------------------------------------------------------------------


def swallowing(manager: TaskManager, seen: list[str], before_s: float = 0.0, after_s: float = 0.0) -> None:
    @manager.middleware
    async def swallow(context: TaskContext, call: Call) -> Any:
        try:
            await asyncio.sleep(before_s)
            value = await call()
            await asyncio.sleep(after_s)
        except asyncio.CancelledError:
            seen.append("cancelled")
            return "swallowed"
        return value


@pytest.mark.parametrize(("before_s", "after_s"), [(0, 0), (20, 0), (0, 20)])
async def test_cancelling_wins_even_when_swallowed(world: World, before_s: float, after_s: float) -> None:
    """Before the call, inside it and after it: the middleware sees `CancelledError`, and the task is CANCELLED."""
    manager, seen = world.manager, list[str]()
    swallowing(manager, seen, before_s, after_s)

    @manager.task
    async def job() -> str:
        await asyncio.sleep(0 if before_s or after_s else 20)
        return "done"

    handle = job.enqueue()
    await world.advance(10)
    handle.cancel()
    with pytest.raises(TaskCancelled):
        await handle
    assert seen == ["cancelled"]


async def test_the_function_does_not_begin_after_a_request_to_stop(world: World) -> None:
    """A middleware that waited for something, and goes on although it was cancelled, cannot call any more."""
    manager, ran = world.manager, list[int]()

    @manager.middleware
    async def stubborn(context: TaskContext, call: Call) -> Any:
        try:
            await asyncio.sleep(20)
        finally:
            await call()

    @manager.task
    async def job() -> None:
        ran.append(1)

    handle = job.enqueue()
    await world.advance(10)
    handle.cancel()
    with pytest.raises(TaskCancelled):
        await handle
    assert not ran


async def test_a_function_that_ignores_its_cancellation_has_its_value(world: World) -> None:
    """As it has without middleware: it has decided to go on to its end."""
    manager, seen = world.manager, list[str]()
    passing_on(manager, seen)

    @manager.task
    async def job() -> str:
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            return "saved what there was"
        return "all"

    handle = job.enqueue()
    await world.advance(10)
    handle.cancel()
    assert await handle == "saved what there was"


@pytest.mark.parametrize("where", ["middleware", "function"])
async def test_it_runs_inside_the_time_limit(world: World, where: str) -> None:
    """The time that a middleware takes counts, in the thread lane too, where the loop can cancel it."""
    manager, seen = world.manager, list[str]()
    swallowing(manager, seen, 20 if where == "middleware" else 0)

    @manager.task(timeout=5)
    async def here() -> None:
        await asyncio.sleep(20)

    @manager.task(timeout=5)
    def there() -> None: ...

    for each in [here, there] if where == "middleware" else [here]:
        assert (await each.enqueue().result()).err_value.error_code == BuiltInTaskCode.TASK_TIMEOUT
    assert set(seen) == {"cancelled"}


async def test_a_stop_puts_a_task_back_whose_function_has_not_begun(tmp_path: Path) -> None:
    """A middleware that waits for its turn has not run the task: no task is INTERRUPTED for that."""
    manager = TaskManager(tmp_path / "tasks.db")
    ran, waits = list[int](), [asyncio.Event()]

    @manager.middleware
    async def take_turn(context: TaskContext, call: Call) -> Any:
        waits[0].set()
        if not ran:
            await asyncio.sleep(60)
        return await call()

    @manager.task(persist=True)
    async def job() -> int:
        return 1

    async with manager:
        handle = job.enqueue()
        await waits[0].wait()
        await manager.stop(timeout=0)
    ran.append(1)
    async with manager:
        assert await manager.handle(handle.task_id) == 1


async def test_a_thread_under_a_cancelled_middleware_is_waited_for() -> None:
    """A middleware with a time limit of its own cannot end a thread, so the attempt lasts until that has ended."""
    manager, may_end, events = TaskManager(None), threading.Event(), list[str]()
    is_over = asyncio.Event()

    @manager.middleware
    async def hurried(context: TaskContext, call: Call) -> Any:
        try:
            async with asyncio.timeout(0.01 if context.attempt == 1 else None):
                return await call()
        finally:
            is_over.set()

    @manager.task(retries=1, retry_delay=0)
    def job() -> int:
        events.append("begins")
        may_end.wait(30)
        events.append("ends")
        return current_task().attempt

    async with manager:
        handle = job.enqueue()
        await is_over.wait()
        may_end.set()
        assert await handle == 2
    assert events == ["begins", "ends"] * 2


async def test_middleware_hears_that_its_thread_has_timed_out() -> None:
    """When the thread has ended: what the middleware does then is for nothing, and keeps the next attempt waiting."""
    manager, never, heard = TaskManager(None), threading.Event(), list[str]()

    @manager.middleware
    async def lingering(context: TaskContext, call: Call) -> Any:
        try:
            value = await call()
        except asyncio.CancelledError:
            heard.append(f"attempt {context.attempt} cancelled")
            raise
        if context.attempt == 1:
            await asyncio.Event().wait()
        return value

    @manager.task(timeout=0.05, retries=1, retry_delay=0)
    def job() -> int:
        while current_task().attempt == 1 and not current_task().is_cancelled:
            never.wait(0.01)
        return current_task().attempt

    async with manager:
        assert await job.enqueue() == 2
    assert heard == ["attempt 1 cancelled"]


async def test_a_stranger_who_cancels_all_tasks_does_not_end_a_thread() -> None:
    """The middleware is unwound, and the attempt ends with what its thread comes to."""
    manager, may_end, seen = TaskManager(None), threading.Event(), list[str]()

    @manager.middleware
    async def look(context: TaskContext, call: Call) -> Any:
        asked.append(asyncio.current_task())
        try:
            return await call()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    @manager.task
    def job() -> int:
        seen.append("runs")
        runs.set()
        may_end.wait(30)
        return 1

    runs = threading.Event()
    asked: list[asyncio.Task[Any] | None] = []
    async with manager:
        handle = job.enqueue()
        await asyncio.to_thread(runs.wait, 30)
        assert asked[0] is not None
        asked[0].cancel()
        await asyncio.wait([asked[0]])
        may_end.set()
        assert await handle == 1
    assert seen == ["runs", "cancelled"]


def test_a_thread_goes_on_when_its_loop_with_middleware_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python collects the coroutine then, and nothing can be awaited in it any more."""
    manager, runs, may_end, unraisable = TaskManager(None), threading.Event(), threading.Event(), list[object]()
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)

    @manager.middleware
    async def pass_on(context: TaskContext, call: Call) -> Any:
        return await call()

    @manager.task
    def job() -> None:
        runs.set()
        may_end.wait(30)

    async def begin() -> None:
        await manager.start()
        job.enqueue()
        await asyncio.to_thread(runs.wait, 30)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()
    asyncio.run(manager.stop())
    may_end.set()
    gc.collect()
    assert not unraisable


# --- slots ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lane", ["async", "thread"])
async def test_a_middleware_that_awaits_a_task_lends_its_slot(lane: Lane) -> None:
    """Or a full lane of tasks, whose middleware waits for other tasks of it, would wait for ever."""
    manager = TaskManager(None, concurrency=1, threads=1)

    @manager.middleware
    async def with_token(context: TaskContext, call: Call) -> Any:
        return await call() + (await token.enqueue() if context.task_name == "job" else 0)

    async def as_coroutine() -> int:
        return 1

    def as_thread() -> int:
        return 1

    fn: Any = as_coroutine if lane == "async" else as_thread
    job, token = manager.task(name="job")(fn), manager.task(name="token")(fn)
    async with manager:
        assert [*await asyncio.gather(job.enqueue(), job.enqueue())] == [2, 2]


async def test_a_thread_keeps_its_slot_while_its_middleware_waits() -> None:
    """What a middleware has begun beside the call may wait for a task: the thread is busy all the same."""
    manager, running, most = TaskManager(None, threads=1), [0], [0]

    @manager.middleware
    async def with_token(context: TaskContext, call: Call) -> Any:
        beside = asyncio.ensure_future(token.enqueue().result()) if context.task_name == "job" else None
        value = await call()
        return value if beside is None else value + (await beside).ok_value

    def work() -> int:
        running[0] += 1
        most[0] = max(most[0], running[0])
        time.sleep(0.02)
        running[0] -= 1
        return 1

    job, token = manager.task(name="job")(work), manager.task(name="token")(work)
    async with manager:
        assert [*await asyncio.gather(job.enqueue(), job.enqueue())] == [2, 2]
    assert most == [1]
