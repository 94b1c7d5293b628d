"""What happens to a task while it runs: its lane and context, its failures, and its limits of time."""

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
from datetime import timedelta
from typing import Any

import pytest

from taskmanager import (
    BuiltInTaskCode,
    NotInTask,
    Subclasses,
    TaskError,
    TaskFailed,
    TaskManager,
    TaskResult,
    TaskStatus,
    current_task,
)
from taskmanager.testing import START, World, isolated

pytestmark = pytest.mark.anyio


# --- lanes and context ------------------------------------------------------------------------------------------------


async def test_async_functions_run_on_the_loop_and_plain_ones_in_threads(world: World) -> None:
    """Unless told otherwise."""

    @world.manager.task
    async def on_loop() -> int:
        return threading.get_ident()

    @world.manager.task
    def in_thread() -> tuple[int, bool]:
        return threading.get_ident(), threading.current_thread().daemon

    assert await on_loop.enqueue() == threading.get_ident()
    ident, is_daemon = await in_thread.enqueue()
    assert ident != threading.get_ident()
    assert is_daemon


def squared(n: int) -> tuple[int, int]:
    """Runs in a child process."""
    current_task().progress(n, 10, "half way")
    current_task().log("squaring", n=n)
    return n * n, os.getpid()


async def test_the_process_lane_runs_in_a_child(world: World) -> None:
    """And its progress and log come back."""
    task = world.manager.task(executor="process")(squared)
    handle = task.enqueue(5)
    value, pid = await handle
    assert value == 25
    assert pid != os.getpid()
    info = await handle.info()
    assert info.progress == {"done": 5, "total": 10, "text": "half way"}
    assert [line["n"] for line in info.log] == [5]


READS_AND_WRITES = "import os, sys; os.write(1, b'out' * 99_999); os.write(2, b'err' * 99_999); sys.stdin.read()"


def runs_a_program() -> int:
    """Runs in a child process, and so does the program, which inherits its standard streams."""
    return subprocess.run([sys.executable, "-c", READS_AND_WRITES], check=False, timeout=60).returncode


async def test_a_program_that_a_child_runs_does_not_disturb_the_lane(world: World) -> None:
    """Replies travel apart from what it prints, calls from what it reads, and its errors fill no pipe."""
    task = world.manager.task(executor="process")(runs_a_program)
    assert [await task.enqueue(), await task.enqueue()] == [0, 0]


@pytest.mark.parametrize("lane", ["async", "thread"])
async def test_the_callers_context_variables_are_seen(world: World, lane: str) -> None:
    """As they were at the call; what the task sets stays in the task."""
    request: contextvars.ContextVar[str] = contextvars.ContextVar("request", default="none")

    def work() -> str:
        seen = request.get()
        request.set("changed inside")
        return seen

    @world.manager.task(name="a")
    async def on_loop() -> str:
        return work()

    @world.manager.task(name="t")
    def in_thread() -> str:
        return work()

    request.set("r1")
    handle = on_loop.enqueue() if lane == "async" else in_thread.enqueue()
    request.set("r2")
    assert await handle == "r1"
    assert request.get() == "r2"


@pytest.mark.parametrize("lane", ["async", "thread"])
async def test_current_task_tells_what_runs(world: World, lane: str) -> None:
    """In every lane."""

    def facts() -> dict[str, Any]:
        ctx = current_task()
        return {
            "id": ctx.task_id,
            "name": ctx.task_name,
            "attempt": ctx.attempt,
            "tags": dict(ctx.tags),
            "deadline": ctx.deadline,
            "scheduled_for": ctx.scheduled_for,
            "flags": (ctx.is_cancelled, ctx.is_detached),
        }

    @world.manager.task(name="a", timeout=30)
    async def on_loop() -> dict[str, Any]:
        return facts()

    @world.manager.task(name="t", timeout=30)
    def in_thread() -> dict[str, Any]:
        return facts()

    task = on_loop if lane == "async" else in_thread
    handle = task.with_options(tags={"user": "1"}).enqueue()
    assert await handle == {
        "id": handle.task_id,
        "name": task.name,
        "attempt": 1,
        "tags": {"user": "1"},
        "deadline": START + timedelta(seconds=30),
        "scheduled_for": None,
        "flags": (False, False),
    }


async def test_outside_a_task_there_is_no_current_task(world: World) -> None:
    """And a direct call has a detached one."""
    with pytest.raises(NotInTask):
        current_task()

    @world.manager.task
    async def job() -> tuple[bool, int]:
        current_task().progress(1)
        current_task().log("nobody keeps this")
        return current_task().is_detached, current_task().attempt

    assert await job() == (True, 1)
    with pytest.raises(NotInTask):
        current_task()


async def test_a_direct_call_inside_a_task_is_detached_from_it(world: World) -> None:
    """The inner function's progress is not the outer task's."""

    @world.manager.task(name="inner")
    async def inner() -> bool:
        return current_task().is_detached

    @world.manager.task(name="outer")
    async def outer() -> tuple[bool, bool]:
        return await inner(), current_task().is_detached

    assert await outer.enqueue() == (True, False)


async def test_progress_and_log_are_recorded(world: World) -> None:
    """The newest progress, every line of the log, over all attempts."""

    @world.manager.task(retries=1, persist=True)
    async def job() -> None:
        current_task().log("begin", size=current_task().attempt)
        current_task().progress(1, 2)
        if current_task().attempt == 1:
            raise ValueError("once")

    handle = job.enqueue()
    await handle
    info = await handle.info()
    assert info.progress == {"done": 1, "total": 2, "text": ""}
    assert [(line["attempt"], line["text"], line["size"]) for line in info.log] == [(1, "begin", 1), (2, "begin", 2)]
    assert info.log[0]["at"] == info.sent_at
    assert info.log[1]["at"] == info.started_at


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exc", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), BaseException("odd")])
@pytest.mark.parametrize("lane", ["async", "thread"])
async def test_an_exception_of_user_code_ends_that_task_only(world: World, lane: str, exc: BaseException) -> None:
    """`SystemExit` in a task must not end the server."""

    @world.manager.task(name="a")
    async def on_loop() -> None:
        raise exc

    @world.manager.task(name="t")
    def in_thread() -> None:
        raise exc

    @world.manager.task(name="fine")
    async def fine() -> int:
        return 1

    with pytest.raises(TaskFailed) as caught:
        await (on_loop.enqueue() if lane == "async" else in_thread.enqueue())
    assert caught.value.error.error_code == "UNHANDLED_EXCEPTION"
    assert type(exc).__name__ in caught.value.error.message
    assert await fine.enqueue() == 1


async def test_a_cancelled_error_of_its_own_is_a_failure(world: World) -> None:
    """Nobody asked for a cancellation: it is the task's own mistake, and may be retried."""
    runs = []

    @world.manager.task(retries=1)
    async def job() -> None:
        runs.append(1)
        raise asyncio.CancelledError

    with pytest.raises(TaskFailed) as caught:
        await job.enqueue()
    assert caught.value.error.error_code == "UNHANDLED_EXCEPTION"
    assert len(runs) == 2


async def test_a_failure_is_recorded_with_its_traceback(world: World) -> None:
    """From the user's own frames on."""

    @world.manager.task
    async def job() -> None:
        raise ValueError("no such report")

    handle = job.enqueue()
    with pytest.raises(TaskFailed, match="no such report") as caught:
        await handle
    assert caught.value.task_id == handle.task_id
    info = await handle.info()
    assert info.status is TaskStatus.FAILED
    assert info.error_code == "UNHANDLED_EXCEPTION"
    assert info.failed_reason is not None
    assert "ValueError: no such report" in info.failed_reason
    assert "engine/run/execution.py" not in info.failed_reason
    assert info.result is not None
    assert info.result.is_err()


@pytest.mark.req("RP-36")
async def test_a_returned_error_fails_with_its_own_code(world: World) -> None:
    """It is not mapped, and its data is kept."""

    @world.manager.task(exception_mapper={ValueError: "MAPPED"})
    async def job() -> TaskResult[int]:
        return TaskResult(err=TaskError("NO_STOCK", "sold out", {"left": 0}))

    result = await job.enqueue().result()
    assert result.is_err()
    assert (result.err_value.error_code, result.err_value.data) == ("NO_STOCK", {"left": 0})


@pytest.mark.req("RP-58")
async def test_a_returned_ok_is_unwrapped(world: World) -> None:
    """`TaskResult(ok=None)` is a success."""

    @world.manager.task(name="n")
    async def nothing() -> TaskResult[None]:
        return TaskResult(ok=None)

    @world.manager.task(name="s")
    async def seven() -> TaskResult[int]:
        return TaskResult(ok=7)

    assert await nothing.enqueue() is None  # type: ignore[func-returns-value]
    assert await seven.enqueue() == 7


@pytest.mark.req("RP-26", "RP-27", "RP-31", "RP-32", "RP-33", "RP-34", "RP-37", "RP-29", "RP-30")
async def test_exceptions_become_codes_in_the_order_of_the_mappers() -> None:
    """The task's mapper, the manager's, the task's default, the manager's default; exact classes unless told."""

    class Odd(LookupError):
        pass

    manager = TaskManager(
        None, exception_mapper={OSError: "GLOBAL_OS", ValueError: "GLOBAL_VALUE"}, default_unhandled_error_code="GLOBAL"
    )
    raised: list[BaseException] = []

    @manager.task(
        name="mapped",
        exception_mapper={ValueError: "TASK_VALUE", LookupError: Subclasses("LOOKED")},
        default_unhandled_error_code="TASK_DEFAULT",
    )
    async def mapped() -> None:
        raise raised.pop()

    @manager.task(name="plain")
    async def plain() -> None:
        raise raised.pop()

    async def code_of(task: Any, exc: BaseException) -> str:
        raised.append(exc)
        return str((await task.enqueue().result()).err_value.error_code)

    async with isolated(manager):
        assert await code_of(mapped, ValueError()) == "TASK_VALUE"
        assert await code_of(mapped, OSError()) == "GLOBAL_OS"
        assert await code_of(mapped, ConnectionError()) == "TASK_DEFAULT"
        assert await code_of(mapped, Odd()) == "LOOKED"
        assert await code_of(plain, ValueError()) == "GLOBAL_VALUE"
        assert await code_of(plain, ConnectionError()) == "GLOBAL"


# --- limits of time ---------------------------------------------------------------------------------------------------


async def test_an_async_task_is_cancelled_at_its_timeout(world: World) -> None:
    """Its clean-up runs; the outcome is TASK_TIMEOUT."""
    cleaned = []

    @world.manager.task(timeout=5)
    async def job() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            cleaned.append(current_task().is_cancelled)

    with pytest.raises(TaskFailed) as caught:
        await job.enqueue()
    assert caught.value.error.error_code == BuiltInTaskCode.TASK_TIMEOUT
    assert cleaned == [True]
    assert world.now == START + timedelta(seconds=5)


async def test_one_call_may_have_its_own_timeout(world: World) -> None:
    """It replaces that of the definition, also after a restart."""

    @world.manager.task(timeout=5, persist=True)
    async def job() -> str:
        await asyncio.sleep(8)
        return "done"

    assert await job.with_options(timeout=timedelta(seconds=9)).enqueue() == "done"
    handle = job.with_options(timeout=9, delay=60).enqueue()
    await world.restart()
    await world.drain()
    assert await world.manager.handle(handle.task_id) == "done"


async def test_a_stubborn_task_is_given_up_and_its_late_result_discarded(world: World) -> None:
    """It ignores its cancellation; the slot is kept until it really ends."""
    go = asyncio.Event()

    @world.manager.task(timeout=5)
    async def stubborn() -> str:
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    handle = stubborn.enqueue()
    await world.advance(7)
    assert handle.status is TaskStatus.FAILED
    assert world.manager.status().abandoned_count == 1
    assert world.manager.status().lanes["async"].running == 1
    go.set()
    await world.idle()
    assert world.manager.status().abandoned_count == 0
    assert world.manager.status().lanes["async"].running == 0
    result = await handle.result()
    assert result.err_value.error_code == "TASK_TIMEOUT"


async def test_a_thread_past_its_timeout_is_retried_only_when_it_has_ended(world: World) -> None:
    """Two attempts of one task never run side by side; the late result is discarded."""
    started, go = threading.Semaphore(0), threading.Event()
    assert world.virtual is not None
    world.virtual.lane_patience_s = 0.0
    attempts = []

    @world.manager.task(timeout=5, retries=1, retry_delay=1)
    def slow() -> str:
        attempts.append(current_task().attempt)
        started.release()
        if current_task().attempt == 1:
            go.wait(10)
            assert current_task().is_cancelled
        return f"attempt {current_task().attempt}"

    handle = slow.enqueue()
    await asyncio.to_thread(started.acquire)
    await world.advance(100)
    assert attempts == [1]
    assert handle.status is TaskStatus.PENDING
    assert world.manager.status().abandoned_count == 1
    world.virtual.lane_patience_s = 10.0
    go.set()
    assert await handle == "attempt 2"
    assert world.manager.status().abandoned_count == 0
