"""What ends a task early, or has it run again: cancelling, snoozing, retries, `good_until`, acting on its record."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from taskmanager import (
    BuiltInTaskCode,
    ConfigurationError,
    RetryPolicy,
    Snooze,
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
        persist=persist, retry_policy=RetryPolicy.fixed([60, 300, 900], auto_retry_for=["BUSY"], jitter=False)
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


async def test_a_free_row_expires_in_the_file_within_five_seconds() -> None:
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


async def test_which_statuses_may_be_retried_by_hand(world: World) -> None:
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
