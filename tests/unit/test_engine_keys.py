"""What an idempotency key means: in memory, in the store, and in the first write of a call."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from taskmanager import TaskCancelled, TaskFailed
from taskmanager.engine.intake.keys import Answer, Keys, answer, answer_of
from taskmanager.model.record import UnreadableRow
from taskmanager.model.states import TERMINAL, TaskStatus
from tests.unit.engine_lives import LIGHT, WORK, new_live
from tests.unit.engine_worlds import assert_counters, engine_of, manager_of, persisted, turns_until, world_of

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(20)]


# The four answers.


def test_a_key_without_a_task_in_memory_is_new_or_known_to_the_store() -> None:
    """A memory-only task is recorded at its end only, so the store cannot know its key."""
    assert answer(new_live(LIGHT), None) is Answer.NEW
    assert answer(new_live(WORK), None) is Answer.ASK


@pytest.mark.parametrize("status", list(TaskStatus))
def test_a_key_means_its_task_unless_that_ended_badly(status: TaskStatus) -> None:
    """Memory and a row say the same. One call follows a bad end; a further one means that call."""
    here, live = new_live(), new_live()
    here.status = status
    row = new_live().row()._replace(status=str(status.value))
    expected = Answer.SUCCESSOR if status in TERMINAL - {TaskStatus.COMPLETED} else Answer.SAME
    assert (answer(live, here), answer_of(row)) == (expected, expected)
    here.successor = new_live()
    assert answer(live, here) is Answer.SAME


def test_a_key_asks_again_when_its_row_was_deleted() -> None:
    """The row stood in the way of the first write, and was gone when it was looked at."""
    assert answer_of(None) is Answer.ASK


def test_a_key_means_a_row_that_cannot_be_read() -> None:
    """It has failed, but nobody can say what it would be to run it again."""
    row = UnreadableRow(*new_live().row()._replace(status="FAILED"))
    assert answer_of(row) is Answer.SAME


@pytest.mark.parametrize(
    ("status", "start_count", "is_again"),
    [
        (TaskStatus.CLAIMED, 0, False),
        (TaskStatus.RUNNING, 1, False),
        (TaskStatus.CLAIMED, 1, True),
        (TaskStatus.RUNNING, 2, True),
    ],
)
def test_a_first_start_by_a_claim_is_no_run_again(status: TaskStatus, start_count: int, is_again: bool) -> None:
    """Beside a file that was replaced, a run again goes on over a row that has ended with as many starts. So a first
    one that was taken for it started a task that others had failed.
    """
    live = new_live()
    live.status, live.start_count = status, start_count
    Keys().claimed(live)
    assert bool(live.run_number) is is_again


# The first write.


async def test_a_keyed_call_is_one_insert_as_running_where_a_slot_is_free() -> None:
    """The row that is committed before user code runs is the answer for the key, too."""
    manager = manager_of()
    log: list[Any] = []
    work = persisted(manager, log)
    async with world_of(manager) as (_, store):
        before = store.calls.count("commit")
        store.hold("commit")
        handle = work.with_options(idempotency_key="k").enqueue("a")
        await store.until_held("commit")
        assert (handle.status, handle.is_duplicate, log) == ("RUNNING", None, [])
        store.let_go()
        await turns_until(lambda: log == ["a"])
        assert store.calls.count("commit") == before + 1
        assert handle.is_duplicate is False
        assert await handle == "a"


async def test_a_keyed_call_leaves_its_slot_to_others_when_its_key_has_a_task() -> None:
    """Nothing of it runs, and its handle reports the task that the key has."""
    manager = manager_of(concurrency=1)
    log: list[Any] = []
    work = persisted(manager, log)
    async with world_of(manager):
        assert await work.with_options(idempotency_key="k").enqueue("a") == "a"
        await manager.flush()
        again, other = work.with_options(idempotency_key="k").enqueue("b"), work.enqueue("c")
        assert (await other, await again) == ("c", "a")
        assert again.is_duplicate
        assert log == ["a", "c"]
        assert_counters(engine_of(manager))


async def test_a_keyed_call_that_waits_is_answered_before_it_starts() -> None:
    """Its row is inserted as a waiting one, because there is no slot."""
    manager = manager_of(concurrency=1)
    log: list[Any] = []
    work = persisted(manager, log)

    @manager.task
    async def busy() -> None:
        await gate.wait()

    async with world_of(manager) as (_, store):
        gate = asyncio.Event()
        busy.enqueue()
        handle = work.with_options(idempotency_key="k").enqueue("a")
        await handle.saved()
        assert handle.is_duplicate is False
        row = await store.memory.fetch(handle.task_id)
        assert row is not None
        assert (row.status, row.start_count, log) == ("PENDING", 0, [])
        gate.set()
        assert await handle == "a"


async def test_a_key_whose_task_ended_badly_is_put_back_before_its_call_starts() -> None:
    """The start that was tried at first is taken back; the run has the number after the last one of the row."""
    manager = manager_of()
    runs: list[int] = []

    @manager.task(persist=True)
    async def work() -> str:
        runs.append(1)
        if len(runs) == 1:
            raise ValueError
        return "done"

    async with world_of(manager) as (_, store):
        call = work.with_options(idempotency_key="k")
        first = call.enqueue()
        assert (await first.result()).is_err()
        await manager.flush()
        again = call.enqueue()
        assert await again == "done"
        assert again.is_duplicate
        await manager.flush()
        row = await store.memory.fetch(again.task_id)
        assert row is not None
        assert (row.status, row.start_count) == ("COMPLETED", 2)
        assert_counters(engine_of(manager))


# What must not happen before the answer.


async def test_a_keyed_call_does_not_run_while_the_store_cannot_answer() -> None:
    """Also where the task is safe to repeat: its key may have a task that was done long ago."""
    manager = manager_of()
    log: list[Any] = []
    work = persisted(manager, log, requeue_on_interrupt=True)
    async with world_of(manager) as (world, store):
        assert await work.with_options(idempotency_key="k").enqueue("a") == "a"
        await manager.flush()
        store.fail("commit", times=4)
        again = work.with_options(idempotency_key="k").enqueue("b")
        free = work.enqueue("c")
        await turns_until(lambda: "c" in log)  # without a key, memory may go on with it
        assert log == ["a", "c"]
        await world.advance(10)
        assert (await free, await again) == ("c", "a")
        assert log == ["a", "c"]
        assert_counters(engine_of(manager))


async def test_a_cancel_of_a_keyed_call_waits_for_the_answer() -> None:
    """Whether this call or an earlier one of its key is meant, the store says."""
    manager = manager_of()
    log: list[Any] = []
    work = persisted(manager, log)
    async with world_of(manager) as (_, store):
        store.hold("commit")
        handle = work.with_options(idempotency_key="k").enqueue("a")
        await store.until_held("commit")
        assert handle.cancel()
        store.let_go()
        with pytest.raises(TaskCancelled):
            await handle
        assert log == []
        assert_counters(engine_of(manager))


async def test_a_keyed_call_expires_when_it_was_answered_too_late() -> None:
    """It may not end before the store has said what its key means, and does not miss its time to expire for that."""
    manager = manager_of(concurrency=1)
    log: list[Any] = []
    work = persisted(manager, log)
    async with world_of(manager) as (world, store):
        store.fail("commit", times=8)
        handle = work.with_options(idempotency_key="k", good_until=world.now + timedelta(seconds=1)).enqueue("a")
        await world.advance(60)
        assert handle.status == "EXPIRED"
        assert log == []


async def test_key_runs_again_whose_moment_came_before_the_answer() -> None:
    """The moment was one of the wall clock, and is over: what is left of it must not be waited for by another clock."""
    manager = manager_of()

    @manager.task(persist=True)
    async def job(number: int) -> int:
        if number == 1:
            raise ValueError(number)
        return number

    async with world_of(manager) as (world, store):
        with pytest.raises(TaskFailed):
            await job.with_options(idempotency_key="k").enqueue(1)
        store.hold("commit")
        soon = world.now + timedelta(seconds=1)
        handle = job.with_options(idempotency_key="k", run_at=soon).enqueue(2)
        await store.until_held("commit")
        await world.advance(2)
        store.let_go()
        await world.advance(10)
        assert handle.status == TaskStatus.COMPLETED
