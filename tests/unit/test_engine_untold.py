"""`taskmanager.engine.tell.events`: rows that go on before the answer to the write that made them is here."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta

import pytest

from taskmanager import QueueConfig, StoreUnavailable, TaskEvent, TaskManager, current_task
from taskmanager.engine.tell.events import MOST_UNTOLD, Untold
from taskmanager.model.record import Expected
from tests.unit.engine_worlds import engine_of, manager_of, turns_until, world_of

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(20)]


def words_of(manager: TaskManager) -> Callable[[str], str]:
    """Listen, and return what tells the kinds that were heard of a task."""
    heard = defaultdict[str, list[str]](list)

    @manager.on()
    async def hear(event: TaskEvent) -> None:
        heard[event.task.task_id].append(event.kind)

    return lambda task_id: " ".join(heard[task_id])


def sharing() -> TaskManager:
    """A manager whose queue has one limit for the whole file: what waits there is free, also between two attempts."""
    return manager_of(queues=[QueueConfig("default", max_concurrency=1, scope="file")])


async def test_a_retry_is_told_before_the_claim_that_finds_it() -> None:
    """Memory has no room for it, so its row is free, and claimed while nobody knows here if its commit has arrived. Its
    failed attempt is told all the same.
    """
    manager, gate = manager_of(concurrency=1, max_in_memory=2), asyncio.Event()
    words = words_of(manager)

    @manager.task(persist=True, retries=1, retry_delay=0.01)
    async def work() -> None:
        await gate.wait()
        if current_task().attempt == 1:
            raise ValueError

    async with world_of(manager) as (world, store):
        handle, behind = work.with_options(priority=1).enqueue(), [work.enqueue() for _ in range(2)]
        await asyncio.gather(*(each.saved() for each in (handle, *behind)))
        store.fail("commit", after=True)
        gate.set()
        await turns_until(lambda: store.memory.live[handle.task_id].claimed_by_worker_id is None)
        engine_of(manager).life.wants_claim.set()  # as whatever frees a slot does
        await world.advance(0.04)
        row = store.memory.live[handle.task_id]
        assert (row.status, row.start_count) == ("CLAIMED", 1)
        await handle
        await manager.join()
        await manager.flush()
        await world.idle()
        assert words(handle.task_id) == "enqueued started retrying started completed"


async def test_a_free_row_is_told_before_it_expires() -> None:
    """It was put there by a commit that is not answered yet."""
    manager = sharing()
    words = words_of(manager)

    @manager.task(persist=True)
    async def work() -> None: ...

    async with world_of(manager) as (world, store):
        await manager.pause("default")
        store.hold("commit", after=True)
        handle = work.with_options(good_until=world.now + timedelta(seconds=1)).enqueue()
        await turns_until(lambda: handle.task_id in store.memory.live)
        await world.advance(10)
        store.let_go()
        await manager.flush()
        await world.idle()
        assert store.memory.ended[handle.task_id].status == "EXPIRED"
        assert words(handle.task_id) == "enqueued expired"


async def test_a_task_that_is_put_back_is_told_before_its_start() -> None:
    """A claim has found its row before the call of `retry` has its answer."""
    manager, log = manager_of(), list[int]()
    words = words_of(manager)

    @manager.task(persist=True)
    async def work() -> None:
        log.append(current_task().attempt)
        if len(log) == 1:
            raise ValueError

    async with world_of(manager) as (world, store):
        handle = work.enqueue()
        await handle.result()
        await manager.flush()
        store.hold("commit", after=True)
        putting_back = asyncio.create_task(manager.retry(handle.task_id))
        await store.until_held("commit")
        engine_of(manager).life.wants_claim.set()
        await turns_until(lambda: log == [1, 2])
        store.let_go()
        assert await putting_back
        await manager.flush()
        await world.idle()
        assert words(handle.task_id) == "enqueued started failed enqueued started completed"


async def test_a_key_that_is_enqueued_again_is_told_though_the_answer_is_lost() -> None:
    """Its row was put over the one that had failed, and the next write finds it there."""
    manager, log = manager_of(), list[int]()
    words = words_of(manager)

    @manager.task(persist=True)
    async def work() -> None:
        log.append(current_task().attempt)
        if len(log) == 1:
            raise ValueError

    async with world_of(manager) as (world, store):
        handle = work.with_options(idempotency_key="a").enqueue()
        await handle.result()
        await manager.flush()
        await manager.pause("default")
        store.hold("commit")
        again = work.with_options(idempotency_key="a").enqueue()
        await store.until_held("commit")  # that which finds the row of the first call
        store.fail("commit", after=True)
        store.let_go()
        await manager.flush()
        await manager.resume("default")
        await again
        await manager.flush()
        await world.idle()
        assert log == [1, 2]
        assert words(handle.task_id) == "enqueued started failed enqueued started completed"


async def test_a_task_that_is_put_back_in_two_ways_is_told_once() -> None:
    """By `retry`, which nobody knows to have arrived and which has not, and by a call of its key."""
    manager, log = sharing(), list[int]()
    words = words_of(manager)

    @manager.task(persist=True)
    async def work() -> None:
        log.append(current_task().attempt)
        if len(log) == 1:
            raise ValueError

    async with world_of(manager) as (world, store):
        keyed = work.with_options(idempotency_key="a")
        handle = keyed.enqueue()
        await handle.result()
        await manager.flush()
        store.fail("commit")
        with pytest.raises(StoreUnavailable):
            await manager.retry(handle.task_id)
        await keyed.enqueue()
        await manager.flush()
        await world.idle()
        assert words(handle.task_id) == "enqueued started failed enqueued started completed"


def test_the_oldest_is_forgotten_where_there_is_no_room() -> None:
    """The oldest of it: of these nobody hears any more here, and what is new must find room."""
    untold = Untold()
    untold.makes(str(number) for number in range(MOST_UNTOLD + 1))
    assert not untold.take_made("0")
    assert untold.take_made("1")
    assert not untold.take_made("1")
    for number in range(MOST_UNTOLD + 1):
        untold.snoozes("t", number, number)
    assert untold.snoozed_runs("t", None, Expected("RUNNING", "me", 3)) == {1: 1, 2: 2}
    assert untold.snoozed_runs("t", None, Expected("PENDING", "me", 3)) == {3: 3}


def test_a_row_that_is_written_again_is_told_once() -> None:
    """If another write than ours has made it, a later one of ours may make it again, and is told."""
    untold = Untold()
    untold.makes_once(["fire"])
    assert untold.take_made("fire")
    untold.makes_once(["fire"])
    assert not untold.take_made("fire")
    untold.makes_once(["lost"])
    assert untold.take_made("lost", is_ours=False)
    untold.makes_once(["lost"])
    assert untold.take_made("lost")
