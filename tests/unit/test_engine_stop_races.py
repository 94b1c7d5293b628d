"""What may happen between two lines of a start or a stop, and to what outlives the loop it began in."""

import asyncio
import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from taskmanager import (
    ManagerStopped,
    QueueFull,
    StoreUnavailable,
    Task,
    TaskCancelled,
    TaskFailed,
    TaskHandle,
    TaskInterrupted,
    TaskManager,
    TaskNotCompleted,
    TaskStatus,
)
from taskmanager.engine.intake.inbox import HELPING
from taskmanager.engine.words.attempt import Attempt
from taskmanager.engine.write.outbox import Sent
from taskmanager.engine.write.writer import MAX_BATCH
from taskmanager.store.protocol import CommitReport
from taskmanager.store.sqlite.presence import InstanceLock, is_dead, lock_path
from taskmanager.testing import Fault, FaultyStore
from tests.unit.engine_worlds import assert_counters, engine_of, happens, manager_of, persisted, turns_until, world_of

fcntl = pytest.importorskip("fcntl")
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(20)]


# Stop and start.


async def test_a_stop_whose_waiter_is_cancelled_goes_on_to_its_end() -> None:
    """Else the store stays open, the lock held, and every handle hangs."""
    manager = manager_of()

    @manager.task
    async def long() -> None:
        await asyncio.sleep(100)

    async with world_of(manager) as (_, store):
        handle = long.enqueue()
        await turns_until(lambda: handle.status is TaskStatus.RUNNING)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await manager.stop(timeout=3)
        assert manager._lifecycle is None
        assert "close" in store.calls
        with pytest.raises(TaskInterrupted):
            await handle


@pytest.mark.parametrize("turns", range(8))
async def test_a_stop_goes_on_when_somebody_cancels_every_task(turns: int) -> None:
    """In whatever turn of the stop, before its first step as well; whoever waits for it is cancelled all the same."""
    manager = manager_of()

    @manager.task
    async def long() -> None:
        await asyncio.sleep(100)

    async with world_of(manager) as (_, store):
        handle = long.enqueue()
        others = asyncio.all_tasks()
        stopping = asyncio.create_task(manager.stop(timeout=3))
        for _ in range(turns + 1):
            await asyncio.sleep(0)
        for task in asyncio.all_tasks() - others:
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        assert manager._lifecycle is None
        assert "close" in store.calls
        with pytest.raises(TaskNotCompleted):
            await handle


async def test_a_start_that_fails_keeps_what_was_held_for_it_and_one_that_cannot_claim_yet_runs_it() -> None:
    """Held tasks belong to the manager until it runs, and that needs no look at what the file has for it."""
    manager = manager_of()
    log: list[str] = []
    work = persisted(manager, log)

    @manager.task
    async def memory_only() -> str:
        return "done"

    async with world_of(manager) as (world, store):
        await manager.stop()
        manager._intake.reopen_for_start(manager._settings)
        first, second = work.enqueue("a"), memory_only.enqueue()
        store.is_down = True
        with pytest.raises(StoreUnavailable):
            await manager.start()
        store.is_down = False
        assert log == []
        store.fail("claim", times=1000)
        store.fail("free_queues", times=1000)
        await world.start()
        assert await first == "a"
        assert await second == "done"
        store.plan.clear()
        assert_counters(engine_of(manager))


async def test_a_stop_during_the_start_leaves_nothing_running() -> None:
    """The door must not open for an engine that nobody owns."""
    manager = manager_of()
    work = persisted(manager)
    async with world_of(manager) as (world, store):
        await manager.stop()
        store.hold("save_instance")
        starting = asyncio.create_task(manager.start())
        await store.until_held("save_instance")
        stopping = asyncio.create_task(manager.stop())
        await asyncio.sleep(0)
        store.let_go()
        await asyncio.wait([starting, stopping])
        assert manager._lifecycle is None
        assert manager.status().state == "stopped"
        await world.start()
        assert await work.enqueue("again") == "again"


async def test_a_start_waits_for_a_file_that_is_locked_for_a_while() -> None:
    """Somebody else's transaction of some seconds must not keep an application from starting."""
    manager = manager_of()
    work = persisted(manager)
    async with world_of(manager) as (world, store):
        await manager.stop()
        for verb in ("save_instance", "instances", "free_queues"):
            store.fail(verb, times=20)
        await world.start()
        assert await work.enqueue("a") == "a"


@pytest.mark.parametrize("verb", ["open", "save_instance", "instances", "fetch_orphans", "changes", "free_queues"])
async def test_a_cancelled_start_leaves_a_manager_that_can_be_started(verb: str) -> None:
    """Whatever it waited for: nothing runs, nothing is open, and what was held is still held."""
    manager = manager_of()
    work = persisted(manager)
    async with world_of(manager) as (world, store):
        await manager.stop()
        store.hold(verb)
        starting = asyncio.create_task(manager.start())
        await store.until_held(verb)
        handle = work.enqueue("held")
        starting.cancel()
        await asyncio.wait([starting])
        assert starting.cancelled()
        assert store.calls[-1] == "close"
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("taskmanager-")]
        store.let_go()
        await world.start()
        assert await handle == "held"


async def test_a_parent_gets_its_slot_back_during_the_drain() -> None:
    """A parent that awaited a child goes on when the child has ended, also when the manager stops meanwhile."""
    manager = manager_of(concurrency=2)
    gate = asyncio.Event()

    @manager.task
    async def child() -> str:
        await gate.wait()
        return "child"

    @manager.task
    async def parent() -> str:
        return "parent of " + await child.enqueue()

    async with world_of(manager) as (_, _store):
        handle = parent.enqueue()
        engine = engine_of(manager)
        await turns_until(lambda: len(engine.runner.running) == 2)
        stopping = asyncio.create_task(manager.stop(timeout=3))
        await asyncio.sleep(0)
        gate.set()
        assert await handle == "parent of child"
        await stopping


async def stopped_under_a_start(
    manager: TaskManager, work: Task[..., Any], store: FaultyStore
) -> tuple[TaskHandle[Any], "asyncio.Task[None]"]:
    """A task whose start is being committed, and the stop that has begun meanwhile."""
    store.hold("commit")
    handle = work.enqueue("a")
    await store.until_held("commit")
    stopping = asyncio.create_task(manager.stop(timeout=0))
    await asyncio.sleep(0)
    return handle, stopping


async def test_a_store_that_fails_in_the_last_moment_starts_no_user_code() -> None:
    """A start in flight when the manager stops is taken back, not carried out."""
    manager = manager_of()
    log: list[str] = []
    work = persisted(manager, log, requeue_on_interrupt=True)
    async with world_of(manager) as (world, store):
        handle, stopping = await stopped_under_a_start(manager, work, store)
        store.fail("commit")
        store.is_down = True
        store.let_go()
        with pytest.raises(StoreUnavailable):
            await stopping
        assert log == []
        with pytest.raises(TaskInterrupted) as caught:
            await handle
        assert caught.value.requeued
        store.is_down = False
        await world.start()
        await world.drain()
        assert log in (["a"], [])


async def test_a_start_that_is_committed_while_the_manager_stops_is_put_back_as_it_waited() -> None:
    """User code does not begin any more, and the row says nothing of a run that never was."""
    manager = manager_of()
    log: list[str] = []
    work = persisted(manager, log)
    async with world_of(manager) as (world, store):
        handle, stopping = await stopped_under_a_start(manager, work, store)
        store.let_go()
        await stopping
        row = await store.memory.fetch(handle.task_id)
        assert row is not None
        assert (row.status, row.claimed_by_worker_id, row.started_at, row.worker_pid) == ("PENDING", None, None, None)
        assert log == []
        await world.start()
        await world.drain()
        assert log == ["a"]


async def test_nobody_waits_for_a_commit_that_will_never_come() -> None:
    """`saved()` and `flush()` end with the manager, whether or not the store came back."""
    manager = manager_of()
    work = persisted(manager)
    async with world_of(manager) as (world, store):
        store.is_down = True
        handle = work.enqueue("a")
        saving = asyncio.create_task(handle.saved())
        flushing = asyncio.create_task(manager.flush())
        await world.advance(0.2)
        with pytest.raises(StoreUnavailable):
            await manager.stop(timeout=0)
        store.is_down = False
        done, pending = await asyncio.wait([saving, flushing], timeout=1)
        assert not pending
        for each in done:
            with pytest.raises(StoreUnavailable):
                each.result()


async def test_a_stop_writes_keyed_tasks_to_a_slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is written twice, asked for and freed, so that a batch may get through and leave no fewer than before."""
    manager = manager_of()
    work = persisted(manager)
    async with world_of(manager) as (_, store):
        writer = engine_of(manager).writer
        commit = writer._commit

        async def commit_slowly(batch: Sequence[Sent]) -> CommitReport:
            await asyncio.sleep(1)
            return await commit(batch)

        await manager.pause("default")
        for number in range(8 * MAX_BATCH):
            work.with_options(idempotency_key=str(number)).enqueue("a")
        monkeypatch.setattr(writer, "_commit", commit_slowly)
        await manager.stop(timeout=0)
        rows = store.memory.live.values()
        assert [(row.status, row.claimed_by_worker_id) for row in rows] == [("PENDING", None)] * 8 * MAX_BATCH


@pytest.mark.parametrize("is_persisted", [False, True])
async def test_a_stop_of_a_full_memory_leaves_the_loop_its_turns(is_persisted: bool) -> None:
    """What runs is in its drain meanwhile, and batches are written: a loop that stands still passes for a disk that
    does not answer.
    """
    manager = manager_of(concurrency=1)

    @manager.task(persist=is_persisted)
    async def work() -> None: ...

    turns: list[int] = []

    async def count_turns() -> None:
        for _ in range(100):  # virtual time stands still while the loop is busy
            turns.append(len(engine.live))
            await asyncio.sleep(0)

    async with world_of(manager):
        engine = engine_of(manager)
        await manager.pause("default")
        for number in range(10 * HELPING):
            (work.with_options(idempotency_key=str(number)) if is_persisted else work).enqueue()
        await manager.flush()
        counting = asyncio.create_task(count_turns())
        await asyncio.sleep(0)
        await manager.stop(timeout=3)
        counting.cancel()
        assert turns[0] == 10 * HELPING
        assert max(before - after for before, after in pairwise(turns)) <= max(HELPING, MAX_BATCH)


async def test_nobody_waits_for_room_in_a_manager_that_has_stopped() -> None:
    """Where nothing can be written there is none at the stop either; `enqueue` says why."""
    manager = manager_of(max_pending=3)

    @manager.task
    async def light() -> None:
        """Its record is what memory is full of."""

    async with world_of(manager) as (world, store):
        store.is_down = True
        for _ in range(3):
            await light.enqueue()
        flushing = asyncio.create_task(manager.flush())
        await world.advance(0.2)
        with pytest.raises(QueueFull):
            light.enqueue()
        waiting = asyncio.create_task(manager.wait_for_room())
        await asyncio.sleep(0)
        for stopped in (manager.stop(timeout=0), flushing):
            with pytest.raises(StoreUnavailable):
                await stopped
        store.is_down = False
        await asyncio.wait_for(waiting, 1)
        with pytest.raises(ManagerStopped):
            light.enqueue()


async def test_a_claim_that_the_stop_interrupts_is_given_back() -> None:
    """The statement goes on when its waiter is cancelled; its rows must not stay with an instance that is gone."""
    manager = manager_of()
    work = persisted(manager)
    async with world_of(manager) as (world, store):
        work.with_options(delay=1).enqueue("a")
        await manager.stop()
        await world.start()
        store.hold("claim", after=True)
        await world.advance(2)
        await store.until_held("claim")
        await manager.stop()
        store.let_go()
        rows = [*store.memory.live.values()]
        assert [(row.status, row.claimed_by_worker_id) for row in rows] == [("PENDING", None)]


async def test_a_retry_waits_for_the_old_thread_across_a_stop() -> None:
    """A timed-out thread goes on; another instance must not run the task beside it."""
    manager = manager_of()
    gate = threading.Event()

    @manager.task(persist=True, timeout=0.5, retries=3, retry_delay=0.0)
    def stuck() -> None:
        gate.wait()

    try:
        async with world_of(manager) as (world, store):
            assert world.virtual is not None
            world.virtual.lane_patience_s = 0  # the thread will not end, and time must go on
            stuck.enqueue()
            engine = engine_of(manager)
            await turns_until(lambda: bool(engine.runner.running))
            await world.advance(1)
            assert engine.runner.abandoned
            await manager.stop(timeout=0)
            (row,) = store.memory.live.values()
            assert row.claimed_by_worker_id == engine.identity.instance_id
    finally:
        gate.set()


async def test_a_successor_of_a_key_is_told_when_its_predecessor_could_not_be_written() -> None:
    """It was accepted; its handle must not hang."""
    manager = manager_of()

    gate = asyncio.Event()

    @manager.task(persist=True)
    async def failing(label: str) -> None:
        await gate.wait()
        raise ValueError(label)

    call = failing.with_options(idempotency_key="k")
    async with world_of(manager) as (_, store):
        first = call.enqueue("a")
        await turns_until(lambda: bool(engine_of(manager).runner.running))
        store.hold("commit")
        gate.set()
        await turns_until(lambda: first.status is TaskStatus.FAILED)
        second = call.enqueue("b")
        store.is_down = True
        store.let_go()
        waiting = asyncio.create_task(second.result())
        with pytest.raises(StoreUnavailable):
            await manager.stop(timeout=0)
        store.is_down = False
        done, _ = await asyncio.wait([waiting], timeout=1)
        assert done


# Lock files, and what outlives its loop.


def test_a_thread_that_outlives_its_loop_gives_its_task_back_when_it_ends(tmp_path: Path) -> None:
    """Nobody is left to be told; yet the row must not stay RUNNING for as long as the process lives."""
    gate, begun = threading.Event(), threading.Event()
    manager = TaskManager(tmp_path / "tasks.db", drain_timeout=0.0)
    starts: list[int] = []

    @manager.task(persist=True, requeue_on_interrupt=True)
    def stuck() -> int:
        starts.append(1)
        begun.set()
        gate.wait(10)
        return len(starts)

    async def first() -> str:
        async with manager:
            handle = stuck.enqueue()
            await asyncio.to_thread(begun.wait, 10)
            return handle.task_id

    async def second(task_id: str) -> int:
        async with manager:
            value: int = await manager.handle(task_id)
            return value

    started_before = set(threading.enumerate())
    task_id = asyncio.run(first())
    gate.set()
    for thread in set(threading.enumerate()) - started_before:
        thread.join(5)
    assert asyncio.run(second(task_id)) == 2
    assert not list(tmp_path.glob("*.lock"))


@pytest.mark.parametrize("has_thread", [False, True])
def test_a_coroutine_that_a_stop_abandons_goes_with_its_loop(tmp_path: Path, has_thread: bool) -> None:
    """Its code is gone when the loop is closed, so its instance is dead, though the process lives on.

    A thread that the stop abandoned as well, and that has ended, must not keep up the heartbeat for the coroutine.
    """
    gate, begun, has_ended = threading.Event(), threading.Event(), threading.Event()
    manager = TaskManager(tmp_path / "tasks.db", drain_timeout=0.0)
    kept: list[object] = []

    @manager.task(persist=True, requeue_on_interrupt=True)
    async def stubborn() -> str:
        kept.append(asyncio.current_task())  # or Python would collect it, and so end it
        while not gate.is_set():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue
        return "again"

    @manager.task(persist=True)
    def blocking() -> None:
        begun.set()
        gate.wait(10)
        has_ended.set()

    async def first() -> str:
        async with manager:
            handle = stubborn.enqueue()
            if has_thread:
                blocking.enqueue()
                await asyncio.to_thread(begun.wait, 10)
            await happens(lambda: bool(kept))
        gate.set()
        if has_thread:
            await asyncio.to_thread(has_ended.wait, 10)
        return handle.task_id

    async def second(task_id: str) -> str:
        async with manager:
            result = await manager.handle(task_id).result(timeout=10)
            return str(result.unwrap())

    assert asyncio.run(second(asyncio.run(first()))) == "again"


@pytest.mark.parametrize("is_persisted", [True, False])
async def test_a_cancelled_thread_that_is_abandoned_is_not_said_to_run_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_persisted: bool
) -> None:
    """It may be repeated after an interruption; but the next start records it as cancelled."""
    gate, begun = threading.Event(), threading.Event()
    manager = TaskManager(tmp_path / "tasks.db", drain_timeout=0.0)

    @manager.task(persist=is_persisted, requeue_on_interrupt=is_persisted)
    def work() -> None:
        begun.set()
        gate.wait(10)

    async with manager:
        handle = work.enqueue()
        await asyncio.to_thread(begun.wait, 10)
        assert handle.cancel()
    with pytest.raises(TaskInterrupted if is_persisted else TaskCancelled) as raised:
        await handle
    gate.set()
    if isinstance(raised.value, TaskInterrupted):
        assert not raised.value.requeued
    assert caplog.messages[-1].endswith("still executes after the stop; it is recorded as cancelled")
    async with manager:
        assert (await manager.handle(handle.task_id).result()).err_value.error_code == "TASK_CANCELLED"


@pytest.mark.parametrize("is_persisted", [True, False])
async def test_a_task_that_is_cancelled_while_a_stop_interrupts_it_is_cancelled(is_persisted: bool) -> None:
    """The next start would not run it again, so nobody is told that it would."""
    manager = manager_of()
    cleans_up = asyncio.Event()

    @manager.task(persist=is_persisted, requeue_on_interrupt=is_persisted)
    async def work() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            cleans_up.set()
            await asyncio.sleep(0.5)

    async with world_of(manager):
        handle = work.enqueue()
        await turns_until(lambda: handle.status is TaskStatus.RUNNING)
        stopping = asyncio.create_task(manager.stop(timeout=0))
        await cleans_up.wait()
        assert handle.cancel()
        await stopping
        with pytest.raises(TaskCancelled):
            await handle


def test_an_attempt_that_is_collected_with_its_closed_loop_is_not_said_to_have_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A program that ends without a stop leaves the wait for a thread behind. Python closes that coroutine when it
    comes across it; the task has not failed by that, and there is no loop that could be told.
    """
    begun, gate = threading.Event(), threading.Event()
    manager = TaskManager(None)
    attempts: list[Attempt] = []

    @manager.task
    def work() -> None:
        begun.set()
        gate.wait(10)

    async def main() -> None:
        await manager.start()
        work.enqueue()
        await asyncio.to_thread(begun.wait, 10)
        attempts.extend(engine_of(manager).runner.running.values())

    asyncio.run(main())
    gate.set()
    (attempt,) = attempts
    assert attempt.task is not None
    coroutine = attempt.task.get_coro()
    assert coroutine is not None
    coroutine.close()
    assert not [record for record in caplog.records if "failed" in record.getMessage()]


async def test_a_stop_that_still_writes_is_not_dead_when_its_last_thread_ends(tmp_path: Path) -> None:
    """Until the last batch is written its rows say less than it knows, and nobody else may judge by them."""
    database, gate = tmp_path / "tasks.db", threading.Event()
    manager = TaskManager(database)
    store = FaultyStore(manager._make_store())
    manager._make_store = store.as_store

    @manager.task(persist=True)
    def stuck(seconds: float) -> None:
        gate.wait(seconds)

    try:
        await manager.start()
        engine = engine_of(manager)
        with pytest.raises(TaskFailed):
            await stuck.with_options(timeout=0.05).enqueue(10)
        await stuck.with_options(delay=60).enqueue(0).saved()
        store.plan = [Fault.hold(store.calls.count("commit") + 1, verb="commit")]
        stop = asyncio.create_task(manager.stop(timeout=0))
        await happens(lambda: "commit" in store.held)
        gate.set()
        await happens(lambda: not engine.runner.abandoned)
        assert not is_dead(database, engine.identity.instance_id)
        store.let_go()
        await stop
        assert is_dead(database, engine.identity.instance_id)
    finally:
        gate.set()


def test_a_lock_whose_file_was_swept_meanwhile_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its creation and its lock the file may go; a lock on a file that nobody finds proves nothing."""
    database = tmp_path / "tasks.db"
    database.touch()
    flock, calls = fcntl.flock, 0

    def flock_after_a_sweep(fd: int, how: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            lock_path(database, "me-new").unlink()
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock_after_a_sweep)
    lock = InstanceLock(database, "me")
    lock.take()
    assert calls == 2
    assert not is_dead(database, "me")
    lock.drop()
    assert is_dead(database, "me")
