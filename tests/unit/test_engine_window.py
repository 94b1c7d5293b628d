"""What is in memory and what waits in the store: the window on a long backlog, and the room for new tasks."""

import asyncio
import contextlib
from datetime import timedelta

import pytest

from taskmanager import (
    ManagerStopped,
    QueueConfig,
    QueueFull,
    Snooze,
    TaskCancelled,
    TaskInterrupted,
    TaskManager,
    TaskStatus,
    current_task,
)
from taskmanager.engine.after_write import AfterWrite
from taskmanager.engine.look.claiming import Claimer
from taskmanager.engine.words.phases import Phase
from taskmanager.model.record import TaskWrite, expected_of
from taskmanager.testing.faulty import Fault
from tests.unit.engine_worlds import assert_counters, engine_of, manager_of, persisted, turns_until, world_of

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(20)]


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
        engine_of(manager).life.wants_claim.set()
        await store.until_held("free_queues")
        for label in "abcd":
            work.enqueue(label)
        await turns_until(
            lambda: (
                bool(store.memory.live) and any(row.claimed_by_worker_id is None for row in store.memory.live.values())
            )
        )
        store.let_go()
        gate.set()
        await manager.join()
        assert sorted(log) == list("abcd")
        assert_counters(engine_of(manager))


async def test_memory_that_empties_during_a_claim_is_filled_again() -> None:
    """The claim notes at its end that rows are left, when nothing that runs or waits asks for them any more."""
    manager = manager_of(max_in_memory=2, concurrency=1)
    gate = asyncio.Event()

    @manager.task(persist=True)
    async def work(label: str) -> None:
        await gate.wait()

    async with world_of(manager) as (world, store):
        handles = [work.enqueue(label) for label in "abcdefghij"]
        await world.idle()
        store.plan = [Fault.hold(store.calls.count("claim") + 2, verb="claim", after=True)]
        await cancel_waiting(manager)
        await store.until_held("claim")
        await cancel_waiting(manager)
        store.let_go()
        await world.idle()
        assert len([each for each in engine_of(manager).live.values() if each.is_waiting]) == 2
        gate.set()
        await asyncio.wait([asyncio.ensure_future(each.result()) for each in handles])


async def cancel_waiting(manager: TaskManager) -> None:
    """Cancel what waits in memory."""
    for live in list(engine_of(manager).live.values()):
        if live.is_waiting:
            assert await manager.cancel(live.task_id)


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


async def test_an_attempt_is_seen_while_the_commit_that_takes_it_along_is_under_way() -> None:
    """It is not due any more and not in the store yet: a task that failed would look as if it had never run."""
    manager = manager_of()
    gate = asyncio.Event()

    @manager.task(persist=True)
    async def work() -> None:
        await gate.wait()

    async with world_of(manager) as (_, store):
        handle = work.enqueue()
        await handle.saved()
        await turns_until(lambda: handle.status is TaskStatus.RUNNING)
        store.hold("commit")
        ending = asyncio.ensure_future(handle.result())  # so that its end waits for no other commit
        gate.set()
        await store.until_held("commit")
        store.hold("fetch_attempts", after=True)
        looking = asyncio.create_task(manager.get(handle.task_id, include_attempts=True))
        await store.until_held("fetch_attempts")  # read too early, and told when the commit has ended
        store.let_go()
        info = await looking
        assert info is not None
        assert info.status is TaskStatus.COMPLETED
        assert [each.attempt for each in info.attempts or ()] == [1]
        await ending


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
        engine_of(manager).life.wants_claim.set()
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


async def test_join_does_not_wait_for_a_look_that_is_under_way() -> None:
    """Nothing says that rows are missing then: it would return one `store_poll` later, now and then."""
    manager = manager_of()
    work = persisted(manager)
    async with world_of(manager) as (world, store):
        store.hold("changes")
        engine_of(manager).life.wants_claim.set()
        await store.until_held("changes")
        assert await work.enqueue("a") == "a"
        began = world.now
        await manager.join()
        assert world.now == began
        store.let_go()


async def test_a_row_that_is_free_again_after_its_end_is_another_run() -> None:
    """An older copy of the file was put in place. A claim had overtaken the answer to the write that spilled the task;
    its ended run must not be taken for the one that is claimed, or that never leaves memory.
    """
    manager = manager_of(queues=[QueueConfig("narrow", max_concurrency=1, scope="file")])
    log: list[str] = []
    work = persisted(manager, log).with_options(queue_name="narrow")
    async with world_of(manager) as (_, store):
        engine = engine_of(manager)
        store.hold("commit", after=True)
        handle = work.enqueue("a")
        await store.until_held("commit")
        engine.life.wants_claim.set()
        await turns_until(lambda: any(row.status == "RUNNING" for row in store.memory.live.values()))
        copy = next(iter(store.memory.live.values()))._replace(start_count=0, started_at=None)
        store.let_go()
        assert await handle == "a"
        store.memory.put(copy._replace(status="PENDING", claimed_by_worker_id=None))
        engine.dispatcher.queue("narrow").leave(copy.priority)
        engine.life.wants_claim.set()
        await turns_until(lambda: len(log) == 2)
        await manager.join()
        assert_counters(engine)


async def test_a_task_can_be_cancelled_in_the_moment_it_spills() -> None:
    """It is accepted, so it exists, though no row says so yet."""
    manager = manager_of(max_in_memory=1, concurrency=1)
    gate = asyncio.Event()

    @manager.task(persist=True)
    async def work(label: str) -> None:
        await gate.wait()

    async with world_of(manager) as (_, _store):
        handles = [work.enqueue(label) for label in "abcdef"]
        spilled = [each for each in handles if each.task_id in engine_of(manager).life.freed]
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
        spilled = [live for live in engine_of(manager).live.values() if live.is_freeing]
        for live in spilled:
            live.crash_count = -1  # no store takes that
        async with asyncio.timeout(5):
            for each in handles:
                await each
        assert sorted(log) == list("abcd")


async def test_a_delayed_task_that_cannot_be_stored_waits_in_memory_though_that_is_full() -> None:
    """It is refused once; to send it to the store again and again would keep the writer busy until it is due."""
    manager = manager_of(max_in_memory=1, concurrency=1)
    log: list[str] = []
    work = persisted(manager, log)
    async with world_of(manager) as (world, store):
        handles = [work.with_options(delay=60).enqueue(label) for label in "abcd"]
        spilled = [live for live in engine_of(manager).live.values() if live.is_freeing]
        assert spilled
        for live in spilled:
            live.crash_count = -1  # no store takes that
        for _ in range(200):
            await asyncio.sleep(0)
        assert store.calls.count("commit") < 10
        assert not any(live.is_awaiting_store for live in spilled)
        assert_counters(engine_of(manager))
        await world.advance(60)
        async with asyncio.timeout(5):
            for each in handles:
                await each
        assert sorted(log) == list("abcd")


async def test_a_stop_does_not_promise_that_a_task_goes_on_which_could_not_be_stored() -> None:
    """It waited in memory only, and ends with it, as a memory-only task does."""
    manager = manager_of()
    work = persisted(manager)
    async with world_of(manager):
        handle = work.with_options(delay=3600).enqueue("a")
        engine_of(manager).live[handle.task_id].crash_count = -1  # no store takes that
        await manager.flush()
        await manager.stop()
        result = await handle.result()
        assert result.err_value.error_code == "MANAGER_STOPPED"
        assert "could not be stored" in result.err_value.message


async def test_a_rejection_of_a_task_that_went_elsewhere_meanwhile_brings_nothing_of_it_back() -> None:
    """Another instance has it, or it is free in the store: it does not wait here for a slot as well."""
    manager = manager_of()
    log: list[str] = []
    work = persisted(manager, log)
    async with world_of(manager) as (_, _store):
        handle = work.with_options(delay=3600).enqueue("a")
        await handle.saved()
        live = engine_of(manager).live[handle.task_id]
        after_write = engine_of(manager).writer._listener
        assert isinstance(after_write, AfterWrite)
        after_write.give_up(live)
        after_write.rejected(live, "too big")
        assert live.has_left
        assert handle.task_id not in engine_of(manager).live
        assert_counters(engine_of(manager))


async def test_who_waits_for_a_record_is_answered_when_its_task_goes_elsewhere_before_the_next_try() -> None:
    """It was found in the store, and no write of it is made here any more that would answer."""
    manager = manager_of()
    work = persisted(manager)
    async with world_of(manager):
        handle = work.with_options(delay=3600).enqueue("a")
        engine = engine_of(manager)
        engine.inbox.take_all()
        after_write = engine.writer._listener
        assert isinstance(after_write, AfterWrite)
        async with asyncio.timeout(10):
            async with engine.writer.quiet:  # no commit begins
                waiting = asyncio.create_task(handle.saved())
                while not engine.live[handle.task_id].save_waiters:  # noqa: ASYNC110  # a turn or two
                    await asyncio.sleep(0)
                after_write.give_up(engine.live[handle.task_id])
            await waiting


async def test_a_spilled_task_that_its_limited_queue_cannot_hold_is_cancelled_and_its_caller_told() -> None:
    """Such a queue runs only what stands in the file, so what cannot stand there has ended."""
    manager = manager_of(queues=[QueueConfig("gpu", max_concurrency=1, scope="file")])
    log: list[str] = []
    work = persisted(manager, log, queue_name="gpu")
    async with world_of(manager):
        handle = work.enqueue("a")
        live = engine_of(manager).live[handle.task_id]
        assert live.is_freeing
        live.crash_count = -1  # no store takes that
        with pytest.raises(TaskCancelled, match="cannot be stored"):
            await handle
        await manager.flush()
        assert log == []
        assert_counters(engine_of(manager))


async def test_a_keyed_call_that_was_cancelled_so_is_answered_by_the_task_that_has_its_key() -> None:
    """That its record was refused says nothing of the key: where the store has a task of it, that one is meant."""
    manager = manager_of(queues=[QueueConfig("gpu", max_concurrency=1, scope="file")])
    log: list[str] = []
    work = persisted(manager, log, queue_name="gpu").with_options(idempotency_key="k")
    async with world_of(manager) as (_, store):
        assert await work.enqueue("a") == "a"
        await manager.flush()
        store.hold("commit")
        again = work.enqueue("b")
        engine = engine_of(manager)
        live = engine.live[again.task_id]
        assert live.is_unconfirmed
        await store.until_held("commit")
        after_write = engine.writer._listener
        assert isinstance(after_write, AfterWrite)
        waiter = asyncio.ensure_future(again.result())
        await asyncio.sleep(0)
        after_write.rejected(live, "too big")
        store.let_go()
        assert (await waiter).ok_value == "a"
        assert log == ["a"]
        assert_counters(engine)


@pytest.mark.parametrize("is_for_key", [True, False])
async def test_a_cancel_is_kept_when_the_row_of_its_key_is_claimed_in_the_same_moment(*, is_for_key: bool) -> None:
    """The call was told that it will be cancelled; the row, which was written before, knows nothing of that. What only
    the tags of the call were asked for is not kept.
    """
    manager = manager_of()
    log: list[str] = []
    work = persisted(manager, log)
    async with world_of(manager) as (_, store):
        first = work.with_options(idempotency_key="k", delay=3600).enqueue("a")
        await first.saved()
        engine = engine_of(manager)
        live = engine.live[first.task_id]
        for phase in (Phase.LEFT, Phase.ACCEPTED):
            engine.dispatcher.move(live, phase)
        engine.life.free_row(live)
        await manager.flush()
        row = await store.memory.fetch(first.task_id)
        assert row is not None
        assert row.claimed_by_worker_id is None
        store.hold("commit")
        again = work.with_options(idempotency_key="k").enqueue("a")
        engine_of(manager)
        await store.until_held("commit")
        assert engine.live[again.task_id].is_unconfirmed
        assert engine.life.cancel(engine.live[again.task_id], of_call=not is_for_key)
        claimed = row._replace(status="CLAIMED", claimed_by_worker_id=engine.identity.instance_id)
        await store.memory.commit([TaskWrite(claimed, expected_of(row))])
        after_write = engine.writer._listener
        assert isinstance(after_write, AfterWrite)
        Claimer(engine, after_write.give_up)._take(claimed)
        store.let_go()
        assert (await again.result()).is_err() is is_for_key
        assert log == ([] if is_for_key else ["a"])
        assert_counters(engine_of(manager))


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
        assert not engine.writer.unsaved_ended
        assert engine.inbox.unsaved_count() == 0
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
        store.memory.drop(store.memory.live)  # as good as another file
        store.memory.is_lost = True
        store.fail("save_instance")
        await world.advance(3)
        gate.set()
        assert await handle == "done"
        assert (await handle.info()).status is TaskStatus.COMPLETED


async def test_run_is_written_anew_if_a_cancel_ends_the_look_at_a_new_file() -> None:
    """Whoever cancels every task cancels the look too, and the next one sees nothing unusual: the file is in its place.
    What runs is not safe to repeat, and the older copy says that it waits.
    """
    manager = manager_of()
    gate, starts = asyncio.Event(), list[int]()

    @manager.task(persist=True)
    async def work() -> None:
        starts.append(1)
        await gate.wait()

    async with world_of(manager) as (world, store):
        handle = work.enqueue()
        await turns_until(lambda: bool(starts))
        row = await store.memory.fetch(handle.task_id)
        assert row is not None
        waits = row._replace(status="PENDING", claimed_by_worker_id=None, start_count=0, started_at=None)
        store.memory.put(waits)
        store.memory.is_lost = True
        store.hold("open", after=True)
        await world.advance(1)
        await store.until_held("open")
        (looking,) = (task for task in asyncio.all_tasks() if task.get_name() == "taskmanager-database-watch")
        looking.cancel()
        await world.advance(3)
        gate.set()
        await world.advance(1)
        row = await store.memory.fetch(handle.task_id)
        assert row is not None
        assert (row.status, row.start_count, len(starts)) == ("COMPLETED", 1, 1)


async def test_a_stop_that_comes_while_the_file_is_made_anew_waits_for_it() -> None:
    """The stop ends the loop that had noticed; the work on the file goes on, or the last batches had none to go to."""
    manager = manager_of()
    async with world_of(manager) as (world, store):
        log: list[str] = []
        work = persisted(manager, log)
        handle = work.with_options(delay=60).enqueue("later")
        await handle.saved()
        store.memory.drop(store.memory.live)
        store.memory.is_lost = True
        store.hold("open")
        await world.advance(1)
        await store.until_held("open")
        stopping = asyncio.ensure_future(manager.stop())
        await turns_until(lambda: engine_of(manager).life.is_stopping)
        for _ in range(100):
            await asyncio.sleep(0)
        store.let_go()
        await stopping
        row = await store.memory.fetch(handle.task_id)
        assert row is not None
        assert (row.status, row.claimed_by_worker_id) == ("PENDING", None)


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
        assert len(engine_of(manager).dispatcher.delays._expiring) < 2_500


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
        (row,) = store.memory.live.values()
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
        assert engine_of(manager).dispatcher.suspect is None
