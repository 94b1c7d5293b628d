"""What happens to a task while it runs: lanes, limits of time, failures, retries, ends, and acting on its record."""

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
    ConfigurationError,
    NotInTask,
    RetryPolicy,
    Snooze,
    Subclasses,
    TaskCancelled,
    TaskError,
    TaskExpired,
    TaskFailed,
    TaskManager,
    TaskResult,
    TaskStatus,
    UnknownTask,
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
async def test_whatever_user_code_raises_ends_that_task_only(world: World, lane: str, exc: BaseException) -> None:
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
    assert "engine/execution.py" not in info.failed_reason
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


# --- cancelling -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persist", [False, True])
async def test_waiting_and_delayed_tasks_are_cancelled_without_an_attempt(world: World, persist: bool) -> None:
    """They end at once, and user code never runs."""
    runs = []

    @world.manager.task(persist=persist)
    async def job() -> None:
        runs.append(1)

    await world.manager.pause("default")
    waiting, delayed = job.enqueue(), job.with_options(delay=60).enqueue()
    await world.idle()
    assert waiting.cancel()
    assert await world.manager.cancel(delayed.task_id)
    await world.manager.resume("default")
    for handle in (waiting, delayed):
        with pytest.raises(TaskCancelled) as caught:
            await handle
        assert caught.value.error.error_code == "TASK_CANCELLED"
        assert not handle.cancel()
        assert not await world.manager.cancel(handle.task_id)
        info = await handle.info(include_attempts=True)
        assert (info.attempts, info.start_count) == ((), 0)
        assert info.cancel_requested_at == START
    assert runs == []


@pytest.mark.parametrize("persist", [False, True])
async def test_a_running_task_is_cancelled_and_leaves_an_interrupted_attempt(world: World, persist: bool) -> None:
    """Code TASK_CANCELLED; no retry, whatever the policy."""
    started = asyncio.Event()

    @world.manager.task(persist=persist, retries=3)
    async def job() -> None:
        started.set()
        await asyncio.sleep(100)

    handle = job.enqueue()
    await started.wait()
    assert await world.manager.cancel(handle.task_id)
    with pytest.raises(TaskCancelled):
        await handle
    info = await handle.info(include_attempts=True)
    assert info.status is TaskStatus.CANCELLED
    assert info.attempts is not None
    assert [(each.outcome, each.error_code, each.will_retry) for each in info.attempts] == [
        ("INTERRUPTED", "TASK_CANCELLED", False)
    ]


async def test_a_task_that_is_done_despite_the_request_is_completed(world: World) -> None:
    """Code that catches the cancellation and returns a value has a value."""
    started = asyncio.Event()

    @world.manager.task
    async def job() -> str:
        started.set()
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            return "saved half"
        return "all"

    handle = job.enqueue()
    await started.wait()
    assert handle.cancel()
    assert await handle == "saved half"


async def test_an_exception_after_the_request_is_a_cancellation(world: World) -> None:
    """What the clean-up raises is not a failure of the task."""
    started = asyncio.Event()

    @world.manager.task
    async def job() -> None:
        started.set()
        try:
            await asyncio.sleep(100)
        finally:
            raise ValueError("in the clean-up")

    handle = job.enqueue()
    await started.wait()
    handle.cancel()
    with pytest.raises(TaskCancelled):
        await handle


async def test_a_thread_learns_of_its_cancellation(world: World) -> None:
    """It cannot be stopped from outside; it looks."""
    started, asked = threading.Event(), threading.Event()

    @world.manager.task
    def job() -> None:
        started.set()
        asked.wait(10)
        if current_task().is_cancelled:
            raise RuntimeError("stopping as asked")

    handle = job.enqueue()
    await asyncio.to_thread(started.wait)
    handle.cancel()
    asked.set()
    with pytest.raises(TaskCancelled):
        await handle


async def test_a_task_waiting_for_its_retry_is_cancelled(world: World) -> None:
    """Waiting for a retry is waiting."""

    @world.manager.task(retries=1, retry_delay=60)
    async def job() -> None:
        raise ValueError("again")

    handle = job.enqueue()
    await world.advance(1)
    assert handle.cancel()
    with pytest.raises(TaskCancelled):
        await handle


async def test_cancelling_what_does_not_exist_is_unknown(world: World) -> None:
    """False is for tasks that exist."""
    for action in (world.manager.cancel, world.manager.retry):
        with pytest.raises(UnknownTask):
            await action("00000000-0000-7000-8000-000000000000")


# --- snoozing and retrying --------------------------------------------------------------------------------------------


async def test_a_snooze_runs_again_and_spends_nothing(world: World) -> None:
    """No retry, no attempt row; the start is counted."""
    seen = []

    @world.manager.task(retries=0, persist=True)
    async def job() -> str | Snooze:
        seen.append((world.now, current_task().attempt))
        return "done" if len(seen) == 3 else Snooze(30)

    handle = job.enqueue()
    assert await handle == "done"
    assert seen == [(START + timedelta(seconds=30 * n), n + 1) for n in range(3)]
    info = await handle.info(include_attempts=True)
    assert (info.retry_count, info.snooze_count, info.start_count) == (0, 2, 3)
    assert info.attempts is not None
    assert [each.attempt for each in info.attempts] == [3]


@pytest.mark.req(
    "RP-02", "RP-19", "RP-40", "RP-41", "RP-43", "RP-44", "RP-45", "RP-46", "RP-47", "RP-48", "RP-49", "RP-53"
)
@pytest.mark.parametrize("persist", [False, True])
async def test_retries_follow_the_policy_and_leave_their_attempts(world: World, persist: bool) -> None:
    """60, 300, 900 seconds; then FAILED, with the numbers in the error."""
    starts = []

    @world.manager.task(
        persist=persist,
        retry_policy=RetryPolicy.fixed([60, 300, 900], auto_retry_for=["BUSY"], jitter=False),
    )
    async def job() -> TaskResult[int]:
        starts.append((world.now - START).total_seconds())
        return TaskResult(err=TaskError("BUSY", "try later", {"host": "a"}))

    handle = job.enqueue()
    await world.advance(1)
    info = await handle.info()
    assert (info.status, info.retry_count, info.error_code) == (TaskStatus.PENDING, 1, None)
    assert info.next_retry_at == START + timedelta(seconds=60)
    result = await handle.result()
    assert starts == [0, 60, 360, 1_260]
    assert result.err_value.data == {"host": "a", "retry": {"count": 3, "max": 3, "exhausted": True}}
    info = await handle.info(include_attempts=True)
    assert (info.status, info.retry_count, info.max_retries) == (TaskStatus.FAILED, 3, 3)
    assert info.next_retry_at is None
    assert info.attempts is not None
    assert [(each.attempt, each.outcome, each.will_retry, each.error_code) for each in info.attempts] == [
        (1, "FAILED", True, "BUSY"),
        (2, "FAILED", True, "BUSY"),
        (3, "FAILED", True, "BUSY"),
        (4, "FAILED", False, "BUSY"),
    ]


@pytest.mark.req("RP-21", "RP-56")
async def test_a_code_that_is_not_listed_is_not_retried(world: World) -> None:
    """Only what the policy names."""
    runs = []

    @world.manager.task(retry_policy=RetryPolicy(auto_retry_for=["BUSY"]))
    async def job() -> None:
        runs.append(1)
        raise ValueError("no")

    result = await job.enqueue().result()
    assert len(runs) == 1
    assert "retry" not in (result.err_value.data or {})


async def test_no_retries_opts_out_of_the_managers_policy() -> None:
    """`retries=0` against a manager-wide policy."""
    manager = TaskManager(None, retry_policy=RetryPolicy(auto_retry_for=["UNHANDLED_EXCEPTION"], max_retries=3))
    runs: list[str] = []

    @manager.task(name="a", retries=0)
    async def once() -> None:
        runs.append("once")
        raise ValueError

    @manager.task(name="b")
    async def often() -> None:
        runs.append("often")
        raise ValueError

    async with isolated(manager) as world:
        once.enqueue()
        often.enqueue()
        await world.drain()
    assert (runs.count("once"), runs.count("often")) == (1, 4)


async def test_a_success_after_retries_is_a_success(world: World) -> None:
    """The earlier errors are history."""

    @world.manager.task(retries=5, persist=True)
    async def job() -> int:
        if current_task().attempt < 3:
            raise ValueError("not yet")
        return current_task().attempt

    handle = job.enqueue()
    assert await handle == 3
    info = await handle.info(include_attempts=True)
    assert (info.error_code, info.failed_reason, info.next_retry_at, info.retry_count) == (None, None, None, 2)
    assert info.attempts is not None
    assert [each.outcome for each in info.attempts] == ["FAILED", "FAILED", "COMPLETED"]


# --- good_until -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persist", [False, True])
async def test_a_task_expires_without_an_attempt(world: World, persist: bool) -> None:
    """Too late to start is EXPIRED, and user code never ran."""
    runs = []

    @world.manager.task(persist=persist)
    async def job() -> None:
        runs.append(1)

    await world.manager.pause("default")
    handle = job.with_options(good_until=START + timedelta(seconds=60)).enqueue()
    await world.advance(59)
    assert handle.status == "PENDING"
    await world.advance(2)
    with pytest.raises(TaskExpired):
        await handle
    info = await handle.info(include_attempts=True)
    assert (info.status, info.error_code, info.attempts) == (TaskStatus.EXPIRED, "TASK_EXPIRED", ())
    await world.manager.resume("default")
    await world.advance(60)
    assert runs == []


@pytest.mark.req("RP-s5")
async def test_a_retry_that_would_come_too_late_is_refused(world: World) -> None:
    """The task fails with its own error, now."""

    @world.manager.task(retry_policy=RetryPolicy.fixed([60, 60], auto_retry_for=["UNHANDLED_EXCEPTION"], jitter=False))
    async def job() -> None:
        raise ValueError("busy")

    handle = job.with_options(good_until=START + timedelta(seconds=100)).enqueue()
    with pytest.raises(TaskFailed):
        await handle
    assert (await handle.info()).retry_count == 1
    assert world.now == START + timedelta(seconds=60)


async def test_what_nobody_holds_expires_in_the_file_within_five_seconds() -> None:
    """It may be due much later, or behind more than memory holds: its waiters are told, and it counts as expired."""
    runs = []
    manager = TaskManager(None, max_in_memory=1)
    async with isolated(manager) as world:

        @manager.task(persist=True)
        async def job() -> None:
            runs.append(1)

        soon = job.with_options(delay=3_600, good_until=START + timedelta(seconds=30))
        handles = [soon.enqueue() for _ in range(3)]
        await world.restart()
        await manager.pause("default")
        handles += [job.with_options(good_until=START + timedelta(seconds=30)).enqueue() for _ in range(3)]
        handles.append(job.with_options(delay=3_600, good_until=START + timedelta(seconds=36)).enqueue())
        results = [asyncio.ensure_future(manager.handle(each.task_id).result()) for each in handles]
        await world.advance(29)
        assert not any(each.done() for each in results)
        await world.advance(6)
        assert [each.done() for each in results] == [True] * 6 + [False]
        assert {each.result().err_value.error_code for each in results[:6]} == {"TASK_EXPIRED"}
        assert (await manager.counts())[TaskStatus.EXPIRED] == 6
        await manager.resume("default")
        await world.advance(60)
        assert await handles[-1].result() == await results[-1]
    assert runs == []


# --- acting on records ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persist", [False, True])
async def test_a_failed_task_is_retried_by_hand(world: World, persist: bool) -> None:
    """Counts are zeroed; id, time of the call, attempts and start count stay."""
    fails = [True, True]

    @world.manager.task(persist=persist, retries=1, retry_delay=1)
    async def job(n: int) -> int:
        if fails:
            fails.pop()
            raise ValueError("broken")
        return n

    handle = job.with_options(good_until=START + timedelta(hours=1)).enqueue(7)
    with pytest.raises(TaskFailed):
        await handle
    await world.advance(60)
    assert await world.manager.retry(handle.task_id)
    again = world.manager.handle(handle.task_id)
    assert await again == 7
    info = await again.info(include_attempts=True)
    assert (info.retry_count, info.start_count, info.sent_at, info.good_until) == (0, 3, START, None)
    assert info.attempts is not None
    assert [each.outcome for each in info.attempts] == ["FAILED", "FAILED", "COMPLETED"]


async def test_what_may_be_retried_by_hand(world: World) -> None:
    """FAILED, CANCELLED, EXPIRED; COMPLETED only with force; nothing that lives."""
    runs = []

    @world.manager.task(persist=True)
    async def job() -> None:
        runs.append(1)

    done = job.enqueue()
    await done
    assert not await world.manager.retry(done.task_id)
    assert await world.manager.retry(done.task_id, force=True)
    await world.drain()
    assert len(runs) == 2
    cancelled = job.with_options(delay=60).enqueue()
    assert not await world.manager.retry(cancelled.task_id)
    assert await world.manager.cancel(cancelled.task_id)
    expired = job.with_options(delay=60, good_until=START + timedelta(seconds=30)).enqueue()
    await world.advance(31)
    for handle in (cancelled, expired):
        assert await world.manager.retry(handle.task_id)
    await world.drain()
    assert len(runs) == 4


async def test_arguments_that_were_not_stored_cannot_be_retried(world: World) -> None:
    """Memory-only tasks may carry any object, and then nobody can call them again."""

    @world.manager.task
    async def job(thing: object) -> None:
        raise ValueError("no")

    handle = job.enqueue(object())
    await handle.result()
    assert not await world.manager.retry(handle.task_id)


async def test_a_task_whose_thread_still_runs_is_not_retried(world: World) -> None:
    """Two attempts of one task never run side by side."""
    started, go = threading.Event(), threading.Event()
    assert world.virtual is not None
    world.virtual.lane_patience_s = 0.0

    @world.manager.task(timeout=1)
    def stuck() -> None:
        started.set()
        go.wait(10)

    handle = stuck.enqueue()
    await asyncio.to_thread(started.wait)
    await world.advance(2)
    assert handle.status is TaskStatus.FAILED
    assert not await world.manager.retry(handle.task_id)
    go.set()
    world.virtual.lane_patience_s = 10.0
    while world.manager.status().abandoned_count:
        await asyncio.to_thread(threading.Event().wait, 0.001)
    assert await world.manager.retry(handle.task_id)
    assert await world.manager.handle(handle.task_id) is None


async def test_purge_deletes_ended_records_only(world: World) -> None:
    """By status and age; the live ones are never touched."""

    @world.manager.task
    async def job(fail: bool) -> None:
        if fail:
            raise ValueError

    await job.enqueue(False).result()
    await job.enqueue(True).result()
    waiting = job.with_options(delay=3_600).enqueue(False)
    assert await world.manager.purge(older_than=timedelta(seconds=10)) == 0
    await world.advance(60)
    assert await world.manager.purge(status=TaskStatus.FAILED, older_than=timedelta(seconds=10)) == 1
    with pytest.raises(ConfigurationError, match="ended"):
        await world.manager.purge(status=TaskStatus.PENDING)
    with pytest.raises(ConfigurationError, match="older_than"):  # it would take every record there is
        await world.manager.purge(older_than=timedelta(seconds=-1))
    assert await world.manager.purge() == 1
    assert await world.manager.purge() == 0
    for typo in ({"status": "FINISHED"}, {"limit": -1}):  # must not look like an empty list
        with pytest.raises(ConfigurationError, match=next(iter(typo))):
            await world.manager.list(**typo)
    assert [each.task_id for each in await world.manager.list()] == [waiting.task_id]


async def test_lists_are_newest_first_and_paged(world: World) -> None:
    """Memory and store together, each task once."""

    @world.manager.task(name="a", persist=True)
    async def stored(n: int) -> None: ...

    @world.manager.task(name="b", queue_name="other")
    async def light(n: int) -> None: ...

    handles = []
    for n in range(4):
        handles.append((stored if n % 2 else light).enqueue(n))
        await world.advance(1)
    await world.drain()
    handles.append(stored.with_options(delay=60).enqueue(9))
    ids = [handle.task_id for handle in reversed(handles)]
    manager = world.manager
    assert [each.task_id for each in await manager.list()] == ids
    assert [each.task_id for each in await manager.list(limit=2)] == ids[:2]
    assert [each.task_id for each in await manager.list(limit=2, before=ids[1])] == ids[2:4]
    assert [each.task_id for each in await manager.list(task_name="b")] == [ids[2], ids[4]]
    assert [each.task_id for each in await manager.list(queue_name="other")] == [ids[2], ids[4]]
    assert [each.task_id for each in await manager.list(status=TaskStatus.PENDING)] == ids[:1]
    await manager.flush()
    assert [each.task_id for each in await manager.list()] == ids
    with pytest.raises(UnknownTask):
        await manager.list(before="nobody")


async def test_counts_have_every_status_and_each_task_once(world: World) -> None:
    """Zeros included; the same before and after everything is written."""

    @world.manager.task(name="a", persist=True)
    async def stored(fail: bool) -> None:
        if fail:
            raise ValueError

    @world.manager.task(name="b")
    async def light() -> None: ...

    await stored.enqueue(True).result()
    await stored.enqueue(False)
    await light.enqueue()
    stored.with_options(delay=60).enqueue(False)
    light.with_options(delay=60).enqueue()
    before = await world.manager.counts()
    assert set(before) == set(TaskStatus)
    assert {status: n for status, n in before.items() if n} == {
        TaskStatus.FAILED: 1,
        TaskStatus.COMPLETED: 2,
        TaskStatus.PENDING: 2,
    }
    await world.manager.flush()
    assert await world.manager.counts() == before


async def test_a_result_that_cannot_be_stored_is_given_here(world: World) -> None:
    """In the process that ran it; the record says RESULT_NOT_AVAILABLE."""

    @world.manager.task(persist=True)
    async def job() -> Any:
        return object()

    handle = job.enqueue()
    assert type(await handle) is object
    await world.restart()
    with pytest.raises(TaskFailed) as caught:
        await world.manager.handle(handle.task_id)
    assert caught.value.error.error_code == BuiltInTaskCode.RESULT_NOT_AVAILABLE
