"""What may happen between two lines of the engine: cancels, stops, threads, other instances and a store that fails.

Each test holds or fails one store call at a chosen point, lets one thing happen meanwhile, and states what must be true
afterwards. No real time passes: the world's clock is virtual.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from taskmanager import (
    ManagerStopped,
    QueueFull,
    Snooze,
    StoreUnavailable,
    TaskCancelled,
    TaskError,
    TaskFailed,
    TaskInterrupted,
    TaskManager,
    TaskResult,
    TaskStatus,
    current_task,
)
from taskmanager.engine.engine import Engine
from taskmanager.engine.instance import InstanceLock, is_dead, lock_path, remove_stray_lock_files
from taskmanager.engine.live_task import Phase
from taskmanager.model.record import TaskWrite, expected_of
from taskmanager.store.memory import MemoryStore
from taskmanager.testing import Fault, FaultyStore, World, isolated

fcntl = pytest.importorskip("fcntl")
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(20)]

TURNS = 2_000
"""Turns of the loop after which something that should happen never will."""


class SharedStore(MemoryStore):
    """A store in memory where `others_wrote` says that another instance has been here."""

    def __init__(self) -> None:
        super().__init__()
        self._version = 0
        self.is_lost = False

    def others_wrote(self) -> None:
        self._version += 1

    async def data_version(self) -> int:
        return self._version

    async def is_same_file(self) -> bool:
        return not self.is_lost

    async def open(self) -> None:
        self.is_lost = False


class Store(FaultyStore):
    """A faulty store whose next call of a verb can be chosen as the test goes."""

    def __init__(self) -> None:
        self.memory = SharedStore()
        super().__init__(self.memory)

    def hold(self, verb: str, *, after: bool = False) -> None:
        """The next call of `verb` waits for `let_go()`."""
        self.plan.append(Fault("hold", self.calls.count(verb) + 1, verb, after))

    def fail(self, verb: str, *, after: bool = False, times: int = 1) -> None:
        """The next call of `verb` fails."""
        self.plan.append(Fault("fail", self.calls.count(verb) + 1, verb, after, times))

    async def until_held(self, verb: str) -> None:
        await turns_until(lambda: verb in self.held)


async def turns_until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until something is true; no virtual time passes."""
    for _ in range(TURNS):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never happened")


async def happens(condition: Callable[[], bool]) -> None:
    """Wait for something that real threads do."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # it happens in other threads
            await asyncio.sleep(0.001)


def manager_of(**options: Any) -> TaskManager:
    return TaskManager("never-opened.db", **options)


def engine_of(manager: TaskManager) -> Engine:
    lifecycle = manager._lifecycle
    assert lifecycle is not None
    lifecycle.engine.turn.catch_up()
    return lifecycle.engine


def assert_counters(engine: Engine) -> None:
    """Every counter says what a count by hand says."""
    dispatcher = engine.dispatcher
    waiting = [live for live in engine.live.values() if live.is_waiting]
    for name, queue in dispatcher.queues.items():
        here = [live for live in waiting if live.queue_name == name]
        assert queue.waiting == len(here), (name, queue, here)
        assert queue.stored_waiting == sum(live.is_persisted for live in here), (name, queue.stored_waiting, here)
    holders = [a for a in (*engine.runner.running.values(), *engine.runner.abandoned) if a.has_slot]
    starting = [live for live in engine.live.values() if live.phase is Phase.STARTING]
    assert sum(slots.running for slots in dispatcher.lanes.values()) == len(holders) + len(starting)
    assert sum(queue.slots.running for queue in dispatcher.queues.values()) == len(holders) + len(starting)


@asynccontextmanager
async def world_of(manager: TaskManager) -> AsyncIterator[tuple[World, Store]]:
    store = Store()
    async with isolated(manager, store=store.as_store()) as world:
        yield world, store


def persisted(manager: TaskManager, log: list[Any] | None = None, **options: Any) -> Any:
    """A persisted task `work(label)` that notes each start."""
    seen = [] if log is None else log

    async def work(label: str) -> str:
        seen.append(label)
        return label

    return manager.task(name="work", persist=True, **options)(work)


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


async def test_a_start_that_fails_at_the_claim_keeps_what_was_held_for_it() -> None:
    """Held tasks belong to the manager until it runs: the next start runs them."""
    manager = manager_of()
    log: list[str] = []
    work = persisted(manager, log)

    @manager.task
    async def memory_only() -> str:
        return "done"

    async with world_of(manager) as (world, store):
        await manager.stop()
        manager._intake.reopen_for_start()
        first, second = work.enqueue("a"), memory_only.enqueue()
        store.is_down = True
        with pytest.raises(StoreUnavailable):
            await manager.start()
        store.is_down = False
        store.fail("claim", times=1000)
        store.fail("free_queues", times=1000)
        with pytest.raises(StoreUnavailable):
            await manager.start()
        store.plan.clear()
        assert log == []
        await world.start()
        assert await first == "a"
        assert await second == "done"
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


@pytest.mark.parametrize("verb", ["open", "save_instance", "instances", "fetch_orphans", "data_version", "free_queues"])
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


async def test_a_store_that_fails_in_the_last_moment_starts_no_user_code() -> None:
    """A start in flight when the manager stops is taken back, not carried out."""
    manager = manager_of()
    log: list[str] = []
    work = persisted(manager, log, requeue_on_interrupt=True)
    async with world_of(manager) as (world, store):
        store.hold("commit")
        handle = work.enqueue("a")
        await store.until_held("commit")
        stopping = asyncio.create_task(manager.stop(timeout=0))
        await asyncio.sleep(0)
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
        rows = [*store.memory._live.values()]
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
            (row,) = store.memory._live.values()
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


# The start of an attempt.


async def test_an_older_commit_does_not_start_the_next_attempt() -> None:
    """User code runs only when *this* start is committed; news of the attempt before prove nothing."""
    manager = manager_of()
    attempts: list[int] = []
    gate = asyncio.Event()

    @manager.task(persist=True, retries=3, retry_delay=0.0)
    async def flaky() -> None:
        attempts.append(current_task().attempt)
        await gate.wait()
        if len(attempts) == 1:
            raise ValueError

    async with world_of(manager) as (_, store):
        handle = flaky.enqueue()
        await turns_until(lambda: attempts == [1])
        engine = engine_of(manager)
        live = engine.live[handle.task_id]
        store.hold("commit")
        engine.writer.mark(live)  # as a progress report does
        await store.until_held("commit")
        store.hold("commit")
        gate.set()
        await turns_until(lambda: live.start_count == 2)
        store.let_go()
        await store.until_held("commit")
        for _ in range(20):
            await asyncio.sleep(0)
        assert attempts == [1]
        store.let_go()
        await handle


async def test_a_cancel_before_the_start_holds_when_the_store_fails() -> None:
    """A task cancelled while its start was being committed never runs, store or no store."""
    manager = manager_of()
    log: list[str] = []
    work = persisted(manager, log, requeue_on_interrupt=True)
    async with world_of(manager) as (_, store):
        store.hold("commit")
        handle = work.enqueue("a")
        await store.until_held("commit")
        assert handle.cancel()
        store.is_down = True
        store.let_go()
        with pytest.raises(TaskCancelled):
            await handle
        assert log == []
        store.is_down = False
        await manager.flush()
        assert_counters(engine_of(manager))


async def test_an_attempt_that_times_out_while_it_waits_for_a_handle_gives_its_slot_back_once() -> None:
    """It had lent its slot when it was given up, and takes one when it goes on at last."""
    manager = manager_of(concurrency=4)
    gate = asyncio.Event()

    @manager.task
    async def child() -> None:
        await gate.wait()

    @manager.task(timeout=1)
    async def stubborn() -> None:
        handle = child.enqueue()
        while not gate.is_set():
            try:
                await handle
            except asyncio.CancelledError:
                continue

    async with world_of(manager) as (_, _store):
        handle = stubborn.enqueue()
        with pytest.raises(TaskFailed):
            await handle
        gate.set()
        engine = engine_of(manager)
        await turns_until(lambda: not engine.runner.abandoned)
        await manager.join()
        assert_counters(engine)


@pytest.mark.parametrize("executor", ["async", "thread"])
async def test_a_cancel_between_assignment_and_first_step_leaks_no_slot(executor: str) -> None:
    """A coroutine that is cancelled before its first step never runs; its slot and its end must not go with it."""
    manager = manager_of()
    log: list[str] = []

    async def work() -> None:
        log.append("async")

    def plain_work() -> None:
        log.append("thread")

    task = manager.task(name="work")(work if executor == "async" else plain_work)
    async with world_of(manager):
        engine = engine_of(manager)
        start = engine.runner.start

        def start_and_cancel(attempt: Any) -> None:
            start(attempt)
            assert engine.cancel(attempt.live)

        engine.runner.start = start_and_cancel  # type: ignore[method-assign]
        with pytest.raises(TaskCancelled):
            await task.enqueue()
        assert log == []
        assert_counters(engine)


# The memory window.


async def test_a_task_that_spills_during_a_claim_is_claimed_later() -> None:
    """The claim found nothing left; what spilled meanwhile must not be forgotten by its answer."""
    manager = manager_of(max_in_memory=1, concurrency=1)
    log: list[str] = []
    gate = asyncio.Event()

    @manager.task(persist=True)
    async def work(label: str) -> None:
        log.append(label)
        await gate.wait()

    async with world_of(manager) as (_world, store):
        store.hold("free_queues", after=True)
        engine_of(manager).wants_claim.set()
        await store.until_held("free_queues")
        for label in "abcd":
            work.enqueue(label)
        await turns_until(
            lambda: (
                bool(store.memory._live)
                and any(row.claimed_by_worker_id is None for row in store.memory._live.values())
            )
        )
        store.let_go()
        gate.set()
        await manager.join()
        assert sorted(log) == list("abcd")
        assert_counters(engine_of(manager))


async def test_tasks_that_wait_for_tomorrow_do_not_keep_those_of_today_out_of_memory() -> None:
    """The memory window must leave room for what can start now."""
    manager = manager_of(max_in_memory=2)
    log: list[str] = []
    work = persisted(manager, log)
    async with world_of(manager) as (_, _store):
        for _ in range(5):
            work.with_options(delay=3600).enqueue("later")
        handle = work.enqueue("now")
        async with asyncio.timeout(10):
            assert await handle == "now"
        assert log == ["now"]


async def test_retries_that_wait_do_not_keep_new_tasks_out_of_memory() -> None:
    """An outage fills memory with tasks that wait for their next retry; what can start now starts."""
    manager = manager_of(max_in_memory=2)
    log: list[str] = []
    attempts: list[int] = []
    work = persisted(manager, log)

    @manager.task(persist=True, retries=1, retry_delay=600)
    async def failing() -> None:
        attempts.append(current_task().attempt)
        raise ValueError

    async with world_of(manager) as (world, _store):
        for _ in range(6):
            failing.enqueue()
        await world.advance(5)
        for _ in range(3):
            work.enqueue("now")
        await world.advance(5)
        assert log == ["now"] * 3
        await manager.join()
        assert sorted(attempts) == [1] * 6 + [2] * 6
        assert_counters(engine_of(manager))


async def test_join_waits_for_delayed_tasks_that_memory_had_no_room_for() -> None:
    """They were accepted here; that they wait in the store is nobody's business."""
    manager = manager_of(max_in_memory=2)
    log: list[str] = []
    work = persisted(manager, log)
    async with world_of(manager):
        for number in range(6):
            work.with_options(delay=10 * (number + 1)).enqueue(str(number))
        await manager.join()
        assert log == list("012345")


@pytest.mark.parametrize("tags", [None, {"of": "these"}])
@pytest.mark.parametrize("put_away", [False, True])
async def test_join_ends_with_the_manager(put_away: bool, tags: dict[str, str] | None) -> None:
    """Nobody ends these tasks any more, so nobody may wait for it; and that they have not ended is said."""
    manager = manager_of(max_in_memory=1)
    work = persisted(manager)
    async with world_of(manager):
        for label in "abcd" if put_away else "a":
            work.with_options(delay=3600, tags={"of": "these"}).enqueue(label)
        await manager.flush()
        joining = asyncio.create_task(manager.join(tags=tags))
        await asyncio.sleep(0)
        await manager.stop()
        with pytest.raises(ManagerStopped, match="next start"):
            await joining


@pytest.mark.parametrize("is_safe", [True, False])
@pytest.mark.parametrize("child_is_kept", [True, False])
@pytest.mark.parametrize("in_group", [True, False])
async def test_a_parent_whose_child_the_stop_puts_back_is_interrupted_and_has_not_failed(
    is_safe: bool, child_is_kept: bool, in_group: bool
) -> None:
    """It lets through what the stop says: the child waits for the next start, or is not taken any more."""
    manager = manager_of()
    gate, started = asyncio.Event(), asyncio.Event()

    @manager.task(persist=child_is_kept)
    async def child() -> None: ...

    @manager.task(persist=True, requeue_on_interrupt=is_safe, retries=3)
    async def parent() -> None:
        started.set()
        await gate.wait()
        if in_group:
            async with asyncio.TaskGroup():
                await child.enqueue()
        else:
            await child.enqueue()

    async with world_of(manager) as (_, store):
        handle = parent.enqueue()
        await started.wait()
        stopping = asyncio.create_task(manager.stop())
        await asyncio.sleep(0)
        gate.set()
        await stopping
        row = await store.memory.fetch(handle.task_id)
        assert row is not None
        assert (row.status, row.retry_count) == ("PENDING" if is_safe else "INTERRUPTED", 0)
        assert [each.outcome for each in await store.memory.fetch_attempts(handle.task_id)] == ["INTERRUPTED"]


async def test_join_returns_when_the_last_task_ends_during_the_drain() -> None:
    """Nothing is left then."""
    manager = manager_of()
    started = asyncio.Event()

    @manager.task(persist=True)
    async def work() -> None:
        started.set()
        await asyncio.sleep(1)

    async with world_of(manager):
        handle = work.enqueue()
        await started.wait()
        joining = asyncio.create_task(manager.join())
        await asyncio.sleep(0)
        await manager.stop()
        await joining
        assert handle.status is TaskStatus.COMPLETED


async def test_counts_do_not_count_a_task_twice_that_is_claimed_meanwhile() -> None:
    """The store counted it as free, memory as started: it counts once, and nothing below zero."""
    manager = manager_of()
    work = persisted(manager)
    async with world_of(manager) as (_, store):
        call = work.bound()
        row = manager._intake.make(call[0], call[1], ("a",), {}).row()
        store.hold("counts", after=True)
        counting = asyncio.create_task(manager.counts())
        await store.until_held("counts")
        await store.memory.commit([TaskWrite(row, None)])
        store.memory.others_wrote()
        engine_of(manager).wants_claim.set()
        await turns_until(lambda: row.task_id in engine_of(manager).live)
        await turns_until(lambda: engine_of(manager).live[row.task_id].status is TaskStatus.RUNNING)
        store.let_go()
        found = await counting
        assert min(found.values()) == 0
        assert sum(found.values()) == 0  # it came after the look


async def test_rows_left_by_an_earlier_start_run_when_they_are_due() -> None:
    """One is due at the start, one later: claiming the first must not forget the alarm for the second."""
    manager = manager_of()
    log: list[str] = []
    work = persisted(manager, log)
    async with world_of(manager) as (world, _store):
        work.with_options(delay=10).enqueue("first")
        work.with_options(delay=20).enqueue("second")
        await manager.stop()
        await world.advance(11)
        await world.start()
        await world.advance(1)
        assert log == ["first"]
        await world.advance(10)
        assert log == ["first", "second"]


@pytest.mark.parametrize("tags", [None, {}, {"of": "mine"}], ids=["drain", "all", "tagged"])
async def test_join_waits_for_what_a_claim_has_taken_when_its_answer_is_lost(tags: dict[str, str] | None) -> None:
    """The row is this instance's own, in the store and not in memory yet: neither free nor ended."""
    manager = manager_of()
    work = persisted(manager)
    async with world_of(manager) as (world, store):
        handle = work.with_options(delay=10, tags={"of": "mine"}).enqueue("later")
        await world.restart()
        store.fail("claim", after=True)
        await world.advance(9)
        while not store.is_spent:
            await world.advance(0.1)
        await (world.drain() if tags is None else manager.join(tags=tags))
        assert (await manager.get(handle.task_id)).status is TaskStatus.COMPLETED


async def test_a_task_can_be_cancelled_in_the_moment_it_spills() -> None:
    """It is accepted, so it exists, though no row says so yet."""
    manager = manager_of(max_in_memory=1, concurrency=1)
    gate = asyncio.Event()

    @manager.task(persist=True)
    async def work(label: str) -> None:
        await gate.wait()

    async with world_of(manager) as (_, _store):
        handles = [work.enqueue(label) for label in "abcdef"]
        spilled = [each for each in handles if each.task_id in engine_of(manager).spilled]
        assert spilled
        assert await manager.cancel(spilled[-1].task_id)
        gate.set()
        with pytest.raises(TaskCancelled):
            await spilled[-1]
        await manager.join()
        assert_counters(engine_of(manager))


async def test_a_spilled_task_that_cannot_be_stored_runs_from_memory() -> None:
    """Rejected by the store is not lost."""
    manager = manager_of(max_in_memory=1, concurrency=1)
    log: list[str] = []
    work = persisted(manager, log)
    async with world_of(manager) as (_, _store):
        handles = [work.enqueue(label) for label in "abcd"]
        spilled = [live for live in engine_of(manager).live.values() if live.is_spilled]
        for live in spilled:
            live.crash_count = -1  # no store takes that
        async with asyncio.timeout(5):
            for each in handles:
                await each
        assert sorted(log) == list("abcd")


async def test_a_stop_tells_its_waiters_when_a_release_of_unknown_fate_had_arrived() -> None:
    """The release has no owner that would tell whose it is; it is ours all the same, and no claim was lost."""
    manager = manager_of()
    work = persisted(manager)
    async with world_of(manager) as (_, store):
        handle = work.with_options(delay=3600).enqueue("a")
        await handle.saved()
        store.fail("commit", after=True)
        await manager.stop()
        with pytest.raises(TaskInterrupted) as caught:
            await handle
        assert caught.value.requeued


async def test_saved_ends_when_an_insert_of_unknown_fate_had_arrived() -> None:
    """The commit failed, yet its rows are there; a spilled one has no owner that would tell whose it is."""
    manager = manager_of(max_in_memory=1, concurrency=1)
    work = persisted(manager)
    async with world_of(manager) as (_, store):
        store.fail("commit", after=True)
        handles = [work.enqueue(label) for label in "abcd"]
        async with asyncio.timeout(5):
            for each in handles:
                await each.saved()
            for each in handles:
                await each
        await manager.join()
        assert_counters(engine_of(manager))


# Room.


async def test_max_pending_counts_every_task_once() -> None:
    """A task that waits and is not saved yet is one task."""
    manager = manager_of(max_pending=10)
    work = persisted(manager)
    async with world_of(manager):
        for number in range(10):
            work.enqueue(str(number))
        with pytest.raises(QueueFull):
            work.enqueue("one too many")
        await manager.join()


async def test_history_that_waits_for_its_interval_takes_no_room() -> None:
    """Ended memory-only tasks are written when their time comes; nothing is wrong meanwhile."""
    manager = manager_of(max_pending=3)

    @manager.task
    async def quick() -> None:
        pass

    async with world_of(manager):
        for _ in range(20):
            await quick.enqueue()


async def test_whoever_waits_for_room_is_woken_when_records_are_saved() -> None:
    """Unsaved records take room; their commit makes some."""
    manager = manager_of(max_pending=1)
    work = persisted(manager)
    async with world_of(manager) as (world, store):
        handle = work.enqueue("a")
        await handle.saved()
        store.is_down = True
        await turns_until(lambda: handle.status.is_terminal)
        await world.advance(0.2)
        waiting = asyncio.create_task(manager.wait_for_room())
        await world.advance(0.2)
        assert not waiting.done()
        store.is_down = False
        done, _ = await asyncio.wait([waiting], timeout=10)
        assert done


async def test_records_that_waited_for_the_store_leave_memory_with_their_commit() -> None:
    """They are found in memory while the store is away, and in the store when it is back."""
    manager = manager_of(max_pending=5)
    work = persisted(manager, requeue_on_interrupt=True)
    async with world_of(manager) as (_, store):
        await manager.flush()
        store.is_down = True
        handles = [work.enqueue(str(number)) for number in range(3)]
        for each in handles:
            await each
            info = await each.info()
            assert (info.status, info.saved) == (TaskStatus.COMPLETED, False)
        store.is_down = False
        await manager.flush()
        engine = engine_of(manager)
        assert not engine.writer.unsaved_ids
        assert engine.unsaved_count() == 0
        assert (await handles[0].info()).saved
        assert_counters(engine)


async def test_a_lost_file_that_cannot_be_made_at_once_loses_no_live_task() -> None:
    """The new file knows none of our rows; until all are marked anew, nothing may be written to it."""
    manager = manager_of()
    gate = asyncio.Event()

    @manager.task(persist=True, requeue_on_interrupt=True)
    async def work() -> str:
        await gate.wait()
        return "done"

    async with world_of(manager) as (world, store):
        handle = work.enqueue()
        await turns_until(lambda: bool(engine_of(manager).runner.running))
        store.memory._live.clear()  # as good as another file
        store.memory.is_lost = True
        store.fail("save_instance")
        await world.advance(3)
        gate.set()
        assert await handle == "done"
        assert (await handle.info()).status is TaskStatus.COMPLETED


async def test_a_stop_that_comes_while_the_file_is_made_anew_waits_for_it() -> None:
    """The stop ends the loop that had noticed; the work on the file goes on, or the last batches had none to go to."""
    manager = manager_of()
    async with world_of(manager) as (world, store):
        log: list[str] = []
        work = persisted(manager, log)
        handle = work.with_options(delay=60).enqueue("later")
        await handle.saved()
        store.memory._live.clear()
        store.memory.is_lost = True
        store.hold("open")
        await world.advance(1)
        await store.until_held("open")
        stopping = asyncio.ensure_future(manager.stop())
        await turns_until(lambda: engine_of(manager).is_stopping)
        for _ in range(100):
            await asyncio.sleep(0)
        store.let_go()
        await stopping
        row = await store.memory.fetch(handle.task_id)
        assert row is not None
        assert (row.status, row.claimed_by_worker_id) == ("PENDING", None)


# Other instances.


async def test_news_of_others_are_heard_after_a_failed_look() -> None:
    """A claim that failed is owed, though the store's version number was already read."""
    manager = manager_of()
    log: list[str] = []
    work = persisted(manager, log)
    async with world_of(manager) as (world, store):
        row = manager._intake.make(work.bound()[0], work.bound()[1], ("a",), {}).row()
        await store.memory.commit([TaskWrite(row, None)])
        store.fail("claim")
        store.memory.others_wrote()
        await world.advance(5)
        assert log == ["a"]


async def test_a_cancelled_free_row_wakes_those_who_follow_it() -> None:
    """Our own write does not change the version that we watch."""
    manager = manager_of()
    work = persisted(manager)
    async with world_of(manager) as (world, _store):
        handle = work.with_options(delay=3600).enqueue("a")
        await manager.stop()
        await world.start()
        again = manager.handle(handle.task_id)
        waiting = asyncio.create_task(again.result())
        await world.advance(0.5)
        assert await manager.cancel(handle.task_id)
        done, _ = await asyncio.wait([waiting], timeout=5)
        assert done


async def test_the_late_outcome_of_a_task_that_was_given_up_is_refused() -> None:
    """Who recovers a task leaves its old owner in the row; that is no licence for the old owner to overwrite it."""
    manager = manager_of()
    gate = asyncio.Event()

    @manager.task(persist=True)
    async def work() -> str:
        await gate.wait()
        return "late"

    async with world_of(manager) as (_, store):
        handle = work.enqueue()
        await turns_until(lambda: bool(engine_of(manager).runner.running))
        row = await store.memory.fetch(handle.task_id)
        assert row is not None
        failed = row._replace(status="FAILED", error_code="WORKER_CRASHED", failed_at=1)
        await store.memory.commit([TaskWrite(failed, expected_of(row))])
        gate.set()
        with pytest.raises(TaskFailed):
            await handle
        assert await store.memory.fetch(handle.task_id) == failed
        assert_counters(engine_of(manager))


async def test_a_key_is_free_again_when_its_claim_was_lost() -> None:
    """What another instance took over is asked for in the store, not in what is left of it here."""
    manager = manager_of()
    log: list[str] = []
    gate = asyncio.Event()

    @manager.task(persist=True)
    async def work(label: str) -> str:
        log.append(label)
        await gate.wait()
        return label

    call = work.with_options(idempotency_key="k")
    async with world_of(manager) as (_, store):
        first = call.enqueue("a")
        await turns_until(lambda: log == ["a"])
        row = await store.memory.fetch(first.task_id)
        assert row is not None
        failed = row._replace(status="FAILED", error_code="WORKER_CRASHED", failed_at=1)
        await store.memory.commit([TaskWrite(failed, expected_of(row))])
        gate.set()
        with pytest.raises(TaskFailed):
            await first
        assert await call.enqueue("b") == "b"
        await manager.join()
        assert_counters(engine_of(manager))


async def test_a_task_taken_back_from_us_and_claimed_again_has_one_attempt_at_a_time() -> None:
    """The attempt of the lost claim is over before its successor counts."""
    manager = manager_of()
    running: list[int] = []
    peak: list[int] = []
    gate = asyncio.Event()

    @manager.task(persist=True, requeue_on_interrupt=True)
    async def work() -> str:
        running.append(1)
        peak.append(len(running))
        try:
            await gate.wait()
        finally:
            running.pop()
        return "done"

    async with world_of(manager) as (world, store):
        handle = work.enqueue()
        await turns_until(lambda: bool(running))
        row = await store.memory.fetch(handle.task_id)
        assert row is not None
        free = row._replace(status="PENDING", claimed_by_worker_id=None, started_at=None)
        await store.memory.commit([TaskWrite(free, expected_of(row))])
        store.memory.others_wrote()
        await world.advance(1)
        gate.set()
        assert await handle == "done"
        await manager.join()
        assert max(peak) == 1
        attempts = await store.memory.fetch_attempts(handle.task_id)
        assert [each.attempt for each in attempts] == [2]
        assert_counters(engine_of(manager))


# Keys.


async def test_the_successor_of_a_key_is_counted() -> None:
    """The same key enqueued again before the failure is saved: one more task entered, and left again."""
    manager = manager_of()
    outcomes = ["fail", "ok"]

    @manager.task(persist=True)
    async def work(label: str) -> str:
        if outcomes.pop(0) == "fail":
            raise ValueError
        return label

    call = work.with_options(idempotency_key="k")
    async with world_of(manager) as (_, _store):
        first = call.enqueue("a")
        await first.saved()
        await turns_until(lambda: first.status is TaskStatus.FAILED)
        second = call.enqueue("b")
        with pytest.raises(TaskFailed):
            await first
        assert await second == "b"
        await manager.join()
        assert_counters(engine_of(manager))


async def test_a_key_enqueued_in_a_thread_while_its_row_is_claimed_is_one_task() -> None:
    """The claimed row and the call are the same task, whoever comes first."""
    manager = manager_of()
    log: list[str] = []
    work = persisted(manager, log)
    call = work.with_options(idempotency_key="k", delay=1)
    async with world_of(manager) as (world, store):
        call.enqueue("a")
        await manager.stop()
        await world.start()
        engine = engine_of(manager)
        await world.advance(0.5)
        store.hold("claim", after=True)
        await world.advance(1)
        await store.until_held("claim")
        handles: list[Any] = []
        engine.call_soon = lambda: None  # type: ignore[method-assign]  # the loop hears of it only after the claim
        thread = threading.Thread(target=lambda: handles.append(work.with_options(idempotency_key="k").enqueue("a")))
        thread.start()
        thread.join()
        store.let_go()
        await turns_until(lambda: bool(engine.live))
        engine.turn.empty_inbox()
        assert await handles[0] == "a"
        await manager.join()
        assert log == ["a"]
        assert_counters(engine)


async def test_a_cancelled_call_of_a_key_that_runs_elsewhere_leaves_the_counters_right() -> None:
    """The call was only a second name of a task that exists."""
    manager = manager_of()
    work = persisted(manager)
    call = work.with_options(idempotency_key="k")
    async with world_of(manager) as (world, store):
        row = manager._intake.make(call.bound()[0], call.bound()[1], ("a",), {}).row()
        elsewhere = row._replace(status="RUNNING", claimed_by_worker_id="other", started_at=1, start_count=1)
        await store.memory.commit([TaskWrite(elsewhere, None)])
        handle = call.enqueue("b")
        handle.cancel()
        await world.advance(1)
        found = await store.memory.fetch(handle.task_id)
        assert found is not None
        assert found.cancel_requested_at is not None
        assert found.status == "RUNNING"
        assert_counters(engine_of(manager))


async def test_a_retry_by_key_is_saved_only_when_it_is() -> None:
    """`saved()` speaks of this call, not of the failed record that it found."""
    manager = manager_of()

    @manager.task(persist=True)
    async def work(label: str) -> str:
        if label == "a":
            raise ValueError
        return label

    call = work.with_options(idempotency_key="k")
    async with world_of(manager) as (_, store):
        with pytest.raises(TaskFailed):
            await call.enqueue("a")
        await manager.flush()
        store.hold("commit")
        second = call.enqueue("b")
        await store.until_held("commit")
        store.hold("commit")
        store.let_go()
        await turns_until(lambda: second.is_duplicate is not None)
        await store.until_held("commit")
        saving = asyncio.create_task(second.saved())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not saving.done()
        store.let_go()
        await saving
        assert await second == "b"


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


def test_a_lock_file_of_an_instance_that_never_registered_is_swept(tmp_path: Path) -> None:
    """It died between its lock and its row; files of the living, and of other databases, stay."""
    database = tmp_path / "tasks.db"
    living = InstanceLock(database, "living")
    living.take()
    stray, known, other = lock_path(database, "stray"), lock_path(database, "known"), tmp_path / "other.db.x.lock"
    for path in (stray, known, other):
        path.touch()
    remove_stray_lock_files(database, {"known"})
    assert sorted(tmp_path.iterdir()) == sorted([living.path, known, other])
    living.drop()


def test_a_lock_whose_file_was_swept_meanwhile_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its creation and its lock the file may go; a lock on a file that nobody finds proves nothing."""
    database = tmp_path / "tasks.db"
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


# User code and corrupt rows.


async def test_a_log_line_that_json_cannot_hold_ends_the_task_all_the_same() -> None:
    """News are for people: they lose detail, never the task."""
    manager = manager_of()

    @manager.task
    async def chatty() -> str:
        current_task().log("look at this", what=object(), how=float("nan"), where="\udc80")
        current_task().progress(float("nan"), None, "\udc80")
        return "done"

    async with world_of(manager):
        async with asyncio.timeout(5):
            assert await chatty.enqueue() == "done"


class _Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


async def test_an_exception_that_cannot_be_printed_is_a_failure() -> None:
    """Whatever user code raises ends that task and nothing else."""
    manager = manager_of()

    @manager.task
    async def bad() -> None:
        raise _Unspeakable

    @manager.task
    async def worse() -> TaskResult[None]:
        return TaskResult(err=TaskError("BAD", "", {"x": object()}))

    async with world_of(manager):
        async with asyncio.timeout(5):
            for each in (bad, worse):
                with pytest.raises(TaskFailed):
                    await each.enqueue()
        assert_counters(engine_of(manager))


class Untraceable(Exception):
    @property
    def __traceback__(self) -> Any:
        raise RuntimeError


class Untouchable(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError


class Exiting(Exception):
    def __str__(self) -> str:
        raise SystemExit


@pytest.mark.parametrize("lane", ["async", "thread"])
@pytest.mark.parametrize("kind", [Untraceable, Untouchable, Exiting])
async def test_an_exception_that_cannot_be_described_is_a_failure(lane: str, kind: type[Exception]) -> None:
    """Else the task would be RUNNING for ever, and its slot gone with it."""
    manager = manager_of(concurrency=1, threads=1)

    async def fails() -> None:
        raise kind

    def fails_in_thread() -> None:
        raise kind

    async with world_of(manager):
        fn: Any = fails if lane == "async" else fails_in_thread
        task = manager.task(name="fails", persist=True)(fn)
        for _ in range(2):
            with pytest.raises(TaskFailed, match=kind.__name__):
                await task.enqueue()
        assert_counters(engine_of(manager))


@pytest.mark.parametrize("exception", [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration])
@pytest.mark.parametrize("executor", ["async", "thread"])
async def test_an_exception_for_the_interpreter_ends_one_task(exception: type[BaseException], executor: str) -> None:
    """It was raised by user code, in a task; neither the loop nor the process ends of it."""
    manager = manager_of()

    async def work() -> None:
        raise exception

    def plain_work() -> None:
        raise exception

    task = manager.task(name="work")(work if executor == "async" else plain_work)
    async with world_of(manager):
        with pytest.raises(TaskFailed):
            await task.enqueue()
        assert_counters(engine_of(manager))


@pytest.mark.parametrize("options", ["not json", "[]", '{"persist": true, "timeout_s": "soon"}', "null"])
@pytest.mark.parametrize("owner", [None, "dead"])
async def test_a_corrupt_row_stops_neither_the_start_nor_the_others(options: str, owner: str | None) -> None:
    """One row that cannot be read is one task with a problem."""
    manager = manager_of()
    log: list[str] = []
    work = persisted(manager, log)
    async with world_of(manager) as (world, store):
        definition, call = work.bound()
        bad = manager._intake.make(definition, call, ("bad",), {}).row()
        good = manager._intake.make(definition, call, ("good",), {}).row()
        await manager.stop()
        await store.memory.commit(
            [
                TaskWrite(bad._replace(task_options=options, claimed_by_worker_id=owner), None),
                TaskWrite(good._replace(claimed_by_worker_id=owner), None),
            ]
        )
        await world.start()
        await world.advance(5)
        assert "good" in log
        assert_counters(engine_of(manager))


# Threads and other loops.


async def test_a_waiter_whose_loop_is_closed_holds_up_nobody() -> None:
    """Its loop is gone; the others get their answer."""
    manager = manager_of()
    gate = asyncio.Event()

    @manager.task(persist=True)
    async def work() -> str:
        await gate.wait()
        return "done"

    async with world_of(manager):
        handle = work.enqueue()
        live = engine_of(manager).live[handle.task_id]

        def wait_and_leave() -> None:
            loop = asyncio.new_event_loop()
            waiter = loop.create_future()
            live.waiters_list().append(waiter)
            loop.close()

        thread = threading.Thread(target=wait_and_leave)
        thread.start()
        thread.join()
        gate.set()
        assert await handle == "done"
        assert await work.enqueue() == "done"
        await manager.join()


async def test_progress_from_a_thread_goes_through_the_loop() -> None:
    """The writer belongs to the loop's thread; a future touched from another one wakes nobody."""
    manager = manager_of()
    marked_in: list[int] = []

    clocks: list[Any] = []

    @manager.task(persist=True)
    def work() -> None:
        clocks[0].step(10)
        current_task().progress(1, 2)

    async with world_of(manager) as (world, _store):
        clocks.append(world.clock)
        writer = engine_of(manager).writer
        mark = writer.mark

        def noted(live: Any) -> None:
            marked_in.append(threading.get_ident())
            mark(live)

        writer.mark = noted  # type: ignore[method-assign]
        handle = work.enqueue()
        await handle
        assert set(marked_in) == {threading.get_ident()}


# Memory.


async def test_ended_tasks_with_a_far_expiry_leave_memory() -> None:
    """A `good_until` next month keeps nothing of a task that ended today."""
    manager = manager_of(concurrency=100)

    @manager.task
    async def quick() -> None:
        pass

    async with world_of(manager) as (world, _store):
        for _ in range(3_000):
            quick.with_options(good_until=world.now + timedelta(days=30)).enqueue()
            if _ % 500 == 0:
                await manager.join()
        await manager.join()
        assert len(engine_of(manager).dispatcher._expiring) < 2_500


async def test_snooze_and_retry_during_the_drain_come_back_at_the_next_start() -> None:
    """Persisted work that would wait again is released; memory-only work ends by name."""
    manager = manager_of()
    seen: list[str] = []
    gate = asyncio.Event()

    @manager.task(persist=True, retries=2, retry_delay=0.0)
    async def again() -> str | Snooze:
        seen.append("again")
        await gate.wait()
        if len(seen) < 2:
            return Snooze(1)
        return "done"

    async with world_of(manager) as (world, store):
        handle = again.enqueue()
        await turns_until(lambda: bool(seen))
        stopping = asyncio.create_task(manager.stop(timeout=3))
        await asyncio.sleep(0)
        gate.set()
        with pytest.raises(TaskInterrupted) as caught:
            await handle
        assert caught.value.requeued
        await stopping
        (row,) = store.memory._live.values()
        assert (row.status, row.claimed_by_worker_id) == ("PENDING", None)
        await world.start()
        await world.drain()
        assert seen == ["again", "again"]


async def test_a_memory_only_task_that_outlives_the_stop_leaves_its_attempt() -> None:
    """It is recorded as interrupted, so its attempt has ended, whatever its code still does."""
    manager = manager_of()
    ends = asyncio.Event()

    @manager.task
    async def stubborn() -> None:
        while not ends.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await ends.wait()

    async with world_of(manager) as (_world, store):
        handle = stubborn.enqueue()
        await turns_until(lambda: handle.status == "RUNNING")
        await manager.stop(timeout=0)
        row = await store.memory.fetch(handle.task_id)
        assert row is not None
        assert row.status == "INTERRUPTED"
        assert [each.outcome for each in await store.memory.fetch_attempts(handle.task_id)] == ["INTERRUPTED"]
        ends.set()


async def test_a_retry_that_memory_has_no_room_for_is_written_free_before_it_is_let_go() -> None:
    """The answer to the commit of its start comes later than its end, and is no answer to the row put away."""
    manager = manager_of(max_in_memory=1)
    fails = asyncio.Event()
    starts: list[int] = []

    @manager.task(persist=True, requeue_on_interrupt=True, retries=1, retry_delay=1)
    async def flaky() -> str:
        starts.append(1)
        await fails.wait()
        if len(starts) == 1:
            raise ValueError
        return "done"

    waits = persisted(manager)
    async with world_of(manager) as (world, store):
        waits.with_options(delay=100).enqueue("later")
        await manager.flush()
        store.fail("commit")
        handle = flaky.enqueue()
        await turns_until(lambda: bool(starts))
        store.hold("commit", after=True)
        await world.advance(0.1)  # until the writer tries again
        await store.until_held("commit")
        fails.set()
        await turns_until(lambda: handle.status == "PENDING")
        store.let_go()
        assert await handle == "done"


async def test_a_suspect_that_waits_for_its_child_does_not_hold_it_up() -> None:
    """Nothing unsafe starts beside a task that has crashed before; but what it waits for must start."""
    manager = manager_of()

    @manager.task(persist=True)
    async def child() -> str:
        return "done"

    @manager.task(persist=True, requeue_on_interrupt=True)
    async def parent() -> str:
        return await child.enqueue()

    async with world_of(manager) as (world, store):
        handle = parent.with_options(delay=1).enqueue()
        await manager.stop()
        row = await store.memory.fetch(handle.task_id)
        assert row is not None
        await store.memory.commit([TaskWrite(row._replace(crash_count=1), expected_of(row))])
        await world.start()
        assert await manager.handle(handle.task_id) == "done"
        assert engine_of(manager).dispatcher._suspect is None


# Mistakes of ours: a loop that ends without a word is the worst of them.


@pytest.mark.parametrize("verb", ["commit", "data_version"])
async def test_an_unexpected_error_of_the_store_is_said_and_survived(
    verb: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the writer nor the claimer ends by an exception that nobody has thought of."""
    manager = manager_of()
    work = persisted(manager)
    async with world_of(manager) as (world, store):
        right = getattr(store.memory, verb)
        failed: list[str] = []

        async def wrong(*args: Any) -> Any:
            if not failed:
                failed.append(verb)
                raise ZeroDivisionError(verb)
            return await right(*args)

        monkeypatch.setattr(store.memory, verb, wrong)
        handle = work.enqueue("a")
        await world.advance(10)
        assert failed == [verb]
        assert await handle == "a"
        assert [record.levelname for record in caplog.records].count("CRITICAL") >= 1
        lifecycle = manager._lifecycle
        assert lifecycle is not None
        assert lifecycle._loops.is_running("claimer")


@pytest.mark.parametrize("failing", ["check_file", "free_queues"])
async def test_a_look_that_fails_is_not_repeated_before_its_time(failing: str) -> None:
    """A store that is closed fails without a turn of the loop: who looked again at once would let nothing else run.

    Whatever of the look fails, who asked for it asks still, and is heard when the store is back.
    """
    manager = manager_of()
    work = persisted(manager)
    async with world_of(manager) as (world, store):
        engine, lifecycle = engine_of(manager), manager._lifecycle
        assert lifecycle is not None
        poller, looks = lifecycle._poller, 0

        async def fail(*_: object) -> None:
            nonlocal looks
            looks += 1
            if failing == "free_queues":
                engine.wants_claim.set()  # as a queue does that runs low
            raise StoreUnavailable("closed")

        target = store if failing == "free_queues" else poller
        right = getattr(target, failing)
        setattr(target, failing, fail)
        call = work.bound()
        row = manager._intake.make(call[0], call[1], ("a",), {}).row()
        await store.memory.commit([TaskWrite(row, None)])
        engine.wants_claim.set()
        for _ in range(4):
            await world.advance(0.5)
        assert 2 <= looks <= 2 / engine.settings.store_poll_s + 1
        setattr(target, failing, right)
        await world.advance(1)
        assert (await manager.counts())[TaskStatus.COMPLETED] == 1


async def test_a_task_that_ignores_its_cancel_until_its_time_is_up_was_cancelled() -> None:
    """The request came first; that it was ignored for so long makes it no failure."""
    manager = manager_of()
    ends = asyncio.Event()

    @manager.task(persist=True, timeout=5, retries=3)
    async def stubborn() -> None:
        while not ends.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await ends.wait()

    async with world_of(manager) as (world, _store):
        handle = stubborn.enqueue()
        await world.advance(1)
        assert handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle
        ends.set()


async def test_the_status_of_a_duplicate_is_how_its_task_ended() -> None:
    """The key led to a task that this process did not run; once awaited, the handle knows."""
    manager = manager_of()
    work = persisted(manager)
    async with world_of(manager) as (_world, store):
        first = work.with_options(idempotency_key="k").enqueue("a")
        await first.saved()
        await first
        await manager.flush()
        ended = await store.memory.fetch(first.task_id)
        assert ended is not None
        store.memory._put(
            ended._replace(status="RUNNING", claimed_by_worker_id="other", started_at=1, completed_at=None)
        )
        second = work.with_options(idempotency_key="k").enqueue("a")
        await second.saved()
        assert (second.is_duplicate, str(second.status)) == (True, "RUNNING")
        store.memory._put(ended)
        store.memory.others_wrote()
        assert await second == "a"
        assert second.status == "COMPLETED"


async def test_a_forked_child_that_goes_on_in_the_loop_of_its_parent_starts_nothing() -> None:
    """Whatever is due is the parent's to start. In the child it would run a second time, and be recorded nowhere."""
    manager, log = TaskManager(None), []

    async def work(label: str) -> None:
        log.append(label)

    task = manager.task(name="work", persist=False)(work)
    async with isolated(manager) as world:
        engine = engine_of(manager)
        task.with_options(delay=5).enqueue("delayed")
        task.enqueue("waiting")
        engine.intake.forked()
        await world.advance(10)
        assert log == []
        engine.intake.is_forked = False  # the parent again
        engine.kick()
        await world.advance(1)
        assert sorted(log) == ["delayed", "waiting"]
