"""`taskmanager.engine.look.claiming`: rows that a claim has started, and claims whose answer is lost."""

import asyncio
import contextlib
from typing import Any

import pytest

from taskmanager import QueueConfig, StoreUnavailable, TaskManager, TaskStatus
from taskmanager.model.clock import SECOND_US
from taskmanager.model.record import TaskRow, TaskWrite
from taskmanager.store.protocol import ClaimRequest
from tests.unit.engine_worlds import Store, assert_counters, engine_of, manager_of, persisted, turns_until, world_of

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(20)]


async def put_free(manager: TaskManager, store: Store, work: Any, *labels: str, **changes: Any) -> list[str]:
    """Somebody else has written these tasks to the file. Return their ids."""
    made = [work.bound()[0] for _ in labels]
    rows: list[TaskRow] = []
    for definition, label in zip(made, labels, strict=True):
        live = manager._intake.make(definition, work.bound()[1], (label,), {})
        rows.append(live.row()._replace(claimed_by_worker_id=None, **changes))
    await store.memory.commit([TaskWrite(row, None) for row in rows])
    return [row.task_id for row in rows]


def look(manager: TaskManager, store: Store) -> None:
    """Let the poller hear of it now."""
    store.memory.others_wrote()
    engine_of(manager).life.wants_claim.set()


async def test_a_claimed_row_that_has_a_slot_is_started_by_its_claim() -> None:
    """One write less for each: between the claim and its code there is no commit. The others wait here, CLAIMED."""
    manager = manager_of(concurrency=2)
    log: list[str] = []
    gate = asyncio.Event()

    @manager.task(persist=True)
    async def work(label: str) -> None:
        log.append(label)
        await gate.wait()

    async with world_of(manager) as (_, store):
        before = store.calls.count("commit")
        ids = await put_free(manager, store, work, "a", "b", "c")
        look(manager, store)
        await turns_until(lambda: len(log) == 2)
        assert log == ["a", "b"]
        assert store.calls.count("commit") == before
        rows = [store.memory.live[each] for each in ids]
        assert [(row.status, row.start_count) for row in rows] == [("RUNNING", 1), ("RUNNING", 1), ("CLAIMED", 0)]
        assert_counters(engine_of(manager))
        gate.set()
        await manager.join()
        assert {row.status for row in store.memory.ended.values()} == {"COMPLETED"}
        assert all(store.memory.attempt_numbers(each) == [1] for each in ids)
        assert_counters(engine_of(manager))


async def test_join_during_a_claim_waits_for_what_the_claim_leaves() -> None:
    """What it has taken has ended when it is over, and the rest is still in the store."""
    manager, log = manager_of(concurrency=2, max_in_memory=2), list[str]()
    work = persisted(manager, log)
    async with world_of(manager) as (_, store):
        store.hold("claim")
        await put_free(manager, store, work, *"abcdefghij")
        look(manager, store)
        await store.until_held("claim")
        joining = asyncio.ensure_future(manager.join())
        store.hold("free_queues")
        store.let_go()
        await store.until_held("free_queues")
        await turns_until(lambda: len(store.memory.ended) >= 2 and not engine_of(manager).live)
        store.let_go()
        await joining
        assert log == list("abcdefghij")


async def test_a_claim_whose_answer_is_lost_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    """What it has started runs once, under the count that its row has. Nothing has crashed."""
    manager = manager_of(concurrency=1)
    log: list[str] = []
    work = persisted(manager, log)
    async with world_of(manager) as (world, store):
        store.fail("claim", after=True)
        ids = await put_free(manager, store, work, "a", "b")
        look(manager, store)
        await world.advance(5)
        await manager.join()
        assert log == ["a", "b"]
        ended = [store.memory.ended[each] for each in ids]
        assert [(row.status, row.start_count, row.crash_count) for row in ended] == [("COMPLETED", 1, 0)] * 2
        assert "given back" not in caplog.text
        assert_counters(engine_of(manager))


async def test_a_claim_is_asked_again_until_the_store_answers() -> None:
    """No stray is judged before that: what the claim has started would be taken for a crash."""
    manager = manager_of(concurrency=1)
    log: list[str] = []
    work = persisted(manager, log)  # not safe to repeat: a crash would end it
    async with world_of(manager) as (world, store):
        store.fail("claim", after=True)
        store.fail("fetch_claim", times=3)
        (task_id,) = await put_free(manager, store, work, "a")
        look(manager, store)
        await world.advance(10)
        await manager.join()
        assert log == ["a"]
        assert store.memory.ended[task_id].status == "COMPLETED"


async def test_a_stop_frees_what_a_claim_has_started_that_it_cuts_off() -> None:
    """Its code never ran, so it is no interruption. The start counts, and the task goes on at the next start."""
    manager = manager_of(concurrency=1)
    log: list[str] = []
    work = persisted(manager, log)
    async with world_of(manager) as (world, store):
        store.hold("claim", after=True)
        (task_id,) = await put_free(manager, store, work, "a")
        look(manager, store)
        await store.until_held("claim")
        await manager.stop()
        row = store.memory.live[task_id]
        assert (row.status, row.claimed_by_worker_id, row.start_count, row.started_at) == ("PENDING", None, 1, None)
        store.let_go()
        await world.start()
        await world.advance(1)
        await manager.join()
        assert log == ["a"]
        assert store.memory.attempt_numbers(task_id) == [2]


async def test_a_stop_that_cannot_ask_again_frees_the_claim_at_its_end() -> None:
    """The last call of a stop names the claim: the file may be readable again by then."""
    manager = manager_of(concurrency=1)
    work = persisted(manager)
    async with world_of(manager) as (_, store):
        store.hold("claim", after=True)
        (task_id,) = await put_free(manager, store, work, "a")
        look(manager, store)
        await store.until_held("claim")
        store.fail("fetch_claim")
        await manager.stop()
        row = store.memory.live[task_id]
        assert (row.status, row.claimed_by_worker_id, row.start_count) == ("PENDING", None, 1)


async def between(manager: TaskManager, store: Store, work: Any) -> str:
    """A claim has started a row, and its answer is on its way. Return the id of that row."""
    store.hold("claim", after=True)
    (task_id,) = await put_free(manager, store, work, "a")
    look(manager, store)
    await store.until_held("claim")
    assert store.memory.live[task_id].status == "RUNNING"
    return task_id


async def test_pause_without_an_answer_holds_where_it_was_asked_for_too() -> None:
    """It is in the file, so every other instance hears of it. Its own writes are no news to this one."""
    manager, log = manager_of(), list[str]()
    work = persisted(manager, log)
    async with world_of(manager) as (world, store):
        store.fail("set_paused", after=True)
        with pytest.raises(StoreUnavailable):
            await manager.pause("default")
        await world.advance(1)
        work.enqueue("a")
        await world.advance(1)
        assert log == []


async def test_a_started_row_waits_when_its_queue_was_paused_meanwhile() -> None:
    """A pause that has come back lets nothing start. The row is put back with its count, and starts again later."""
    manager = manager_of()
    log: list[str] = []
    work = persisted(manager, log)
    async with world_of(manager) as (world, store):
        task_id = await between(manager, store, work)
        await manager.pause("default")
        store.let_go()
        await world.advance(2)
        assert log == []
        row = store.memory.live[task_id]
        assert (row.status, row.start_count, row.started_at) == ("PENDING", 1, None)
        assert_counters(engine_of(manager))
        await manager.resume("default")
        await manager.join()
        assert log == ["a"]
        assert store.memory.attempt_numbers(task_id) == [2]
        assert_counters(engine_of(manager))


async def test_a_started_row_waits_when_its_slot_was_taken_meanwhile() -> None:
    """A task that came during the claim has it: no limit is exceeded, and both run."""
    manager = manager_of(concurrency=1)
    log: list[str] = []
    gate = asyncio.Event()
    work = persisted(manager, log)

    @manager.task
    async def light() -> None:
        log.append("light")
        await gate.wait()

    async with world_of(manager) as (world, store):
        await between(manager, store, work)
        light.enqueue()
        await turns_until(lambda: log == ["light"])
        store.let_go()
        await world.advance(1)
        assert log == ["light"]
        assert_counters(engine_of(manager))
        gate.set()
        await manager.join()
        assert log == ["light", "a"]
        assert_counters(engine_of(manager))


async def test_a_row_whose_claim_is_on_its_way_can_be_cancelled() -> None:
    """Its answer says nothing of the request. The task is asked as soon as it is here."""
    manager = manager_of()

    @manager.task(persist=True, name="endless")
    async def endless(label: str) -> None:
        await asyncio.Event().wait()

    async with world_of(manager) as (world, store):
        task_id = await between(manager, store, endless)
        cancelling = asyncio.create_task(manager.cancel(task_id))
        await turns_until(lambda: store.memory.live[task_id].cancel_requested_at is not None)
        store.let_go()
        assert await cancelling
        await world.advance(2)
        await manager.join()
        assert store.memory.ended[task_id].status == "CANCELLED"
        assert_counters(engine_of(manager))


async def test_a_row_whose_claim_is_on_its_way_is_asked_though_the_request_fails() -> None:
    """Its task is in memory a moment later, and nobody else would tell it."""
    manager = manager_of()

    @manager.task(persist=True, name="endless")
    async def endless(label: str) -> None:
        await asyncio.Event().wait()

    async with world_of(manager) as (world, store):
        task_id = await between(manager, store, endless)
        store.fail("request_cancel", after=True)
        cancelling = asyncio.create_task(manager.cancel(task_id))
        await turns_until(lambda: store.memory.live[task_id].cancel_requested_at is not None)
        store.let_go()
        with pytest.raises(StoreUnavailable):
            await cancelling
        await world.advance(2)
        await manager.join()
        assert store.memory.ended[task_id].status == "CANCELLED"


@pytest.mark.parametrize("kind", [{"crash_count": 1}, {"good_until": 2**52}], ids=["suspect", "may expire"])
async def test_a_row_that_is_not_plain_is_started_in_the_long_way(kind: dict[str, Any]) -> None:
    """By the dispatcher, which knows what may run beside it, and whether it is still good."""
    manager = manager_of()
    log: list[str] = []
    work = persisted(manager, log)
    async with world_of(manager) as (world, store):
        store.hold("claim", after=True)
        (task_id,) = await put_free(manager, store, work, "a", **kind)
        look(manager, store)
        await store.until_held("claim")
        assert store.memory.live[task_id].status == "CLAIMED"
        store.let_go()
        await world.advance(1)
        await manager.join()
        assert log == ["a"]


@pytest.mark.parametrize("better", ["first", "second"])
async def test_no_claim_starts_a_row_while_another_queue_may_hold_a_better_one(better: str) -> None:
    """Both queues are claimed then, and the best of both starts first."""
    manager = manager_of(concurrency=1, queues=[QueueConfig("first"), QueueConfig("second")])
    log: list[str] = []
    work = persisted(manager, log)
    async with world_of(manager) as (world, store):
        worse = "second" if better == "first" else "first"
        await put_free(manager, store, work, "worse", queue_name=worse)
        await put_free(manager, store, work, "better", queue_name=better, priority=1)
        look(manager, store)
        await world.advance(1)
        await manager.join()
        assert log == ["better", "worse"]


async def test_a_claim_of_a_better_queue_starts_first() -> None:
    """By the priority of the queue, whatever the priority of its tasks."""
    manager = manager_of(concurrency=1, queues=[QueueConfig("slow", priority=9), QueueConfig("fast", priority=1)])
    log: list[str] = []
    work = persisted(manager, log)
    async with world_of(manager) as (world, store):
        await put_free(manager, store, work, "slow", queue_name="slow", priority=1)
        (fast,) = await put_free(manager, store, work, "fast", queue_name="fast", priority=99)
        store.hold("claim", after=True)
        look(manager, store)
        await store.until_held("claim")
        assert store.memory.live[fast].status == "RUNNING"
        store.let_go()
        await world.advance(1)
        await manager.join()
        assert log == ["fast", "slow"]


async def test_a_running_row_of_mine_that_no_claim_explains_is_a_crash() -> None:
    """Only what an unanswered claim has started may run: of any other row it is not known whether its code ran."""
    manager = manager_of()
    log: list[str] = []
    work = persisted(manager, log)
    async with world_of(manager) as (world, store):
        me = engine_of(manager).identity.instance_id
        (task_id,) = await put_free(manager, store, work, "a")
        stray = store.memory.live[task_id]
        stray = stray._replace(status="RUNNING", claimed_by_worker_id=me, start_count=1, started_at=5, claimed_at=5)
        store.memory.put(stray)
        store.fail("claim", after=True)
        await put_free(manager, store, work, "b")
        look(manager, store)
        await world.advance(5)
        await manager.join()
        assert log == ["b"]
        assert store.memory.ended[task_id].error_code == "WORKER_CRASHED"
        assert (await manager.counts())[TaskStatus.COMPLETED] == 1


async def test_a_claim_for_which_no_slot_is_free_starts_nothing() -> None:
    """It says so to the store, which need not wait for the disk then."""
    manager = manager_of(concurrency=1)
    gate = asyncio.Event()

    @manager.task(persist=True)
    async def work(label: str) -> None:
        await gate.wait()

    async with world_of(manager) as (world, store):
        asked: list[ClaimRequest] = []
        claim = store.memory.claim

        async def note(request: ClaimRequest) -> list[TaskRow]:
            asked.append(request)
            return await claim(request)

        store.memory.claim = note  # type: ignore[method-assign]  # the one call that is looked at
        for label in "ab":
            await put_free(manager, store, work, label)
            look(manager, store)
            await world.advance(1)
        assert [request.starting is None for request in asked] == [False, True]
        gate.set()
        await manager.join()


async def test_nothing_is_taken_over_beside_a_suspect_however_late_it_came() -> None:
    """It may start between the look at the idle slots and the claim. What waits at others stays there until it ends."""
    manager = manager_of(concurrency=2)
    gate = asyncio.Event()

    @manager.task(persist=True, requeue_on_interrupt=True)
    async def work(label: str) -> None:
        await gate.wait()

    async with world_of(manager) as (world, store):
        await put_free(manager, store, work, "suspect", crash_count=1)
        look(manager, store)
        dispatcher, lifecycle = engine_of(manager).dispatcher, manager._lifecycle
        assert lifecycle is not None
        await turns_until(lambda: dispatcher.suspect is not None)
        (task_id,) = await put_free(manager, store, work, "theirs")
        waits = store.memory.live[task_id]._replace(claimed_by_worker_id="other")
        store.memory.put(waits)
        assert await lifecycle._claimer.take_over("default", waits.enqueued_at) == []
        assert store.memory.live[task_id] == waits
        gate.set()
        await manager.join()
        await world.advance(1)
        (taken,) = await lifecycle._claimer.take_over("default", waits.enqueued_at)
        assert (taken.task_id, taken.status) == (task_id, "RUNNING")
        await manager.join()
        assert_counters(engine_of(manager))


async def test_a_claim_leaves_the_place_of_a_run_that_was_given_up_until_it_ends() -> None:
    """Its row is another's, and its code has the slot here. A row that a claim started meanwhile could not run, and was
    freed and started again without end.
    """
    manager = manager_of(concurrency=2, queues=[QueueConfig("gpu", max_concurrency=1, scope="file")])
    log: list[str] = []
    gate = asyncio.Event()

    @manager.task(persist=True, queue_name="gpu")
    async def work(label: str) -> None:
        log.append(label)
        while not gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await gate.wait()

    async with world_of(manager) as (world, store):
        lost = work.enqueue("lost")
        await turns_until(lambda: log == ["lost"])
        engine, lifecycle = engine_of(manager), manager._lifecycle
        assert lifecycle is not None
        row = store.memory.live[lost.task_id]
        store.memory.put(row._replace(status="CANCELLED", failed_at=9, claimed_by_worker_id="other"))
        lifecycle._after_write.give_up(engine.live[lost.task_id])
        (task_id,) = await put_free(manager, store, work, "next", queue_name="gpu")
        for _ in range(3):
            look(manager, store)
            await world.advance(0.1)
        assert engine.runner.running, "its code goes on, and is not abandoned yet"
        assert store.memory.live[task_id].start_count == 0
        gate.set()
        await manager.join()
        await world.advance(5)
        assert log == ["lost", "next"]
        assert store.memory.attempt_numbers(task_id) == [1]
        assert_counters(engine)


async def test_nothing_is_taken_over_that_was_due_by_a_clock_set_back_since() -> None:
    """The look at what waits at others was made by the clock that was ahead. By now the task has to wait."""
    manager = manager_of()
    work = persisted(manager)
    async with world_of(manager) as (world, store):
        (task_id,) = await put_free(manager, store, work, "theirs")
        waits = store.memory.live[task_id]
        due_at = waits.enqueued_at + 60 * SECOND_US
        store.memory.put(waits._replace(claimed_by_worker_id="other", enqueued_at=due_at))
        lifecycle = manager._lifecycle
        assert lifecycle is not None
        assert await lifecycle._claimer.take_over("default", due_at + SECOND_US) == []
        await world.advance(61)
        (taken,) = await lifecycle._claimer.take_over("default", due_at)
        assert taken.task_id == task_id
        await manager.join()


async def test_no_sweep_of_a_start_comes_before_its_first_claim() -> None:
    """Whoever waits for a restart waits for its first task, and for no row that expires or is old."""
    manager = manager_of()
    log: list[str] = []
    work = persisted(manager, log)
    async with world_of(manager) as (world, store):
        await manager.stop()
        await put_free(manager, store, work, "a")
        before = store.calls.count("fetch_expired")
        store.hold("claim")
        starting = asyncio.ensure_future(world.start())
        await store.until_held("claim")
        for _ in range(20):
            await asyncio.sleep(0)
        assert store.calls.count("fetch_expired") == before
        store.let_go()
        await starting
        await manager.join()
        assert log == ["a"]
        await turns_until(lambda: store.calls.count("fetch_expired") > before)


def many_limited(count: int, concurrency: int = 100) -> tuple[TaskManager, list[Any], list[int]]:
    """A manager with so many queues of one place in the file, a task for each, and how many run in each."""
    queues = [QueueConfig(f"q{number}", max_concurrency=1, scope="file") for number in range(count)]
    manager, running = manager_of(concurrency=concurrency, queues=queues), [0] * count

    @manager.task(persist=True)
    async def work(number: int) -> int:
        running[number] += 1
        most = running[number]
        await asyncio.sleep(0.01)
        running[number] -= 1
        return most

    return manager, [work.with_options(queue_name=each.name) for each in queues], running


async def test_queues_with_limits_in_the_file_are_claimed_for_together() -> None:
    """Eighty tenants with one place each cost two claims a round, and not eighty. No place is taken twice."""
    manager, tasks, _ = many_limited(80)
    async with world_of(manager) as (world, store):
        before = store.calls.count("claim")
        handles = [task.enqueue(number) for _ in range(3) for number, task in enumerate(tasks)]
        await world.advance(2)
        await manager.join()
        assert {await handle for handle in handles} == {1}
        assert store.calls.count("claim") - before < 40
        assert_counters(engine_of(manager))


async def test_claims_for_many_queues_take_no_more_than_can_start_here() -> None:
    """What waited here for a slot would keep its place from other processes, for as long as the tasks run."""
    manager, tasks, _ = many_limited(80, concurrency=4)
    async with world_of(manager) as (world, _):
        handles = [task.enqueue(number) for number, task in enumerate(tasks)]
        most = 0
        while not all(handle.status.is_terminal for handle in handles):
            await world.advance(0.005)
            most = max(most, len(engine_of(manager).live))  # nothing else is here
        assert most <= 8
        assert_counters(engine_of(manager))


async def test_of_equal_queues_the_one_that_waits_longest_is_claimed_for_first() -> None:
    """The free rows of another one could fill all slots again and again."""
    manager = manager_of(concurrency=2, queues=[QueueConfig(name, max_concurrency=9, scope="file") for name in "ab"])
    begun: list[str] = []

    @manager.task(persist=True)
    async def work(name: str) -> None:
        begun.append(name)
        await asyncio.sleep(0.01)

    async with world_of(manager) as (world, _):
        for name, count in (("a", 4), ("b", 2), ("a", 20)):
            for _ in range(count):
                work.with_options(queue_name=name).enqueue(name)
            await world.advance(0.001)
        await world.advance(5)
        await manager.join()
        assert begun.count("a") == 24
        assert "".join(begun).rindex("b") < 10


async def test_a_lost_answer_to_claims_for_many_queues_is_asked_again_whole() -> None:
    """What stands in the file as claimed runs once, in each queue."""
    manager, tasks, _ = many_limited(5)
    async with world_of(manager) as (world, store):
        store.fail("claim", after=True)
        handles = [task.enqueue(number) for _ in range(2) for number, task in enumerate(tasks)]
        await world.advance(10)
        await manager.join()
        assert {await handle for handle in handles} == {1}
        assert {row.start_count for row in store.memory.ended.values()} == {1}
        assert_counters(engine_of(manager))
