"""Other instances on the same store: news of them, tasks taken back from us, and keys that both know."""

import asyncio
import threading
from typing import Any

import pytest

from taskmanager import TaskFailed, TaskStatus
from taskmanager.model.record import TaskWrite, expected_of
from taskmanager.store.protocol import InstanceRow
from tests.unit.engine_worlds import assert_counters, engine_of, manager_of, persisted, turns_until, world_of

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(20)]


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


async def test_news_are_heard_whose_mark_differs_before_the_version() -> None:
    """The thread that hears a notice counts first the one and then the other, and a look may come in between."""
    manager = manager_of()
    async with world_of(manager) as (world, store):
        mark = "before"
        store.memory.news_mark = lambda: mark  # type: ignore[assignment, return-value, method-assign]  # of a server
        store.memory.others_wrote()
        await world.advance(1)
        await store.memory.set_paused("default", True, 1)
        mark = "after"
        await world.advance(1)
        assert not engine_of(manager).dispatcher.queue("default").is_paused
        store.memory.others_wrote()
        await world.advance(1)
        assert engine_of(manager).dispatcher.queue("default").is_paused


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
        ended = await store.memory.fetch(handle.task_id)
        assert ended is not None
        # A claim started it meanwhile, and its code could not run beside the lost one: that start counts.
        assert [each.attempt for each in attempts] == [ended.start_count] == [3]
        assert_counters(engine_of(manager))


async def test_slow_looks_for_what_waits_at_others_are_seldom() -> None:
    """On a server they read all that has waited there since the oldest open transaction. One alone may be a mishap."""
    manager = manager_of()
    async with world_of(manager) as (world, store):
        await store.memory.save_instance(InstanceRow("other", None, "host", 1, "main", None, 1, None, None, 1))

        async def looks_in(seconds: float) -> int:
            before = store.calls.count("waiting_levels")
            for _ in range(round(seconds * 4)):
                store.memory.others_wrote()
                await world.advance(0.25)
            return store.calls.count("waiting_levels") - before

        async def look_for(seconds: float) -> None:
            store.hold("waiting_levels")
            while "waiting_levels" not in store.held:
                store.memory.others_wrote()
                await world.advance(0.05)
            await world.advance(seconds)
            store.let_go()
            await turns_until(lambda: not store.held)

        assert await looks_in(1) >= 3
        await look_for(0.1)
        assert await looks_in(1) >= 3
        await look_for(0.1)
        await look_for(0.1)
        assert await looks_in(1.5) == 0
        assert await looks_in(1.5) >= 2


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
        thread = threading.Thread(target=lambda: handles.append(work.with_options(idempotency_key="k").enqueue("a")))
        thread.start()
        thread.join()
        store.let_go()
        await turns_until(lambda: bool(engine.live))
        engine.inbox.take_all()
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
