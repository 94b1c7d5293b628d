"""What waits in the store, or in place, on a virtual clock: the clock jumps to it, or the test gets an error."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from taskmanager import QueueConfig, TaskHandle, TaskManager, Workflow, sleep, step, wait_for
from taskmanager.store.memory import MemoryStore
from taskmanager.testing import START, FaultyStore, World, isolated, virtual

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(50)]

HOUR = timedelta(hours=1)
FEW_CALLS = 500
"""Of the store. One look every `store_poll` seconds would make several times 14,400 in an hour."""

Enqueue = Callable[[TaskManager], Awaitable[Awaitable[object]]]
Wait = Callable[[World, Awaitable[object]], Awaitable[object]]


@pytest.fixture
def manager() -> TaskManager:
    """A manager with a queue whose tasks wait in the file until they start."""
    return TaskManager("tasks.db", queues=[QueueConfig("one", max_concurrency=1, scope="file")])


async def drain(world: World, handle: Awaitable[object]) -> None:
    await world.drain()


async def join(world: World, handle: Awaitable[object]) -> None:
    await world.manager.join()


async def join_by_tags(world: World, handle: Awaitable[object]) -> None:
    await world.manager.join(tags={"kind": "slow"})


async def await_handle(world: World, handle: Awaitable[object]) -> None:
    await handle


# What is due in an hour.


async def sleeps(manager: TaskManager) -> Awaitable[object]:
    @manager.task(persist=True, requeue_on_interrupt=True)
    async def task() -> None:
        await sleep(HOUR)

    return task.with_options(tags={"kind": "slow"}).enqueue()


async def sleeps_in_a_branch(manager: TaskManager) -> Awaitable[object]:
    @manager.task(persist=True, requeue_on_interrupt=True)
    async def task() -> None:
        await asyncio.gather(sleep(HOUR, key="a"), sleep(HOUR / 2, key="b"))

    return task.with_options(tags={"kind": "slow"}).enqueue()


async def waits_beside_a_step(manager: TaskManager) -> Awaitable[object]:
    began = asyncio.Event()

    async def work() -> None:
        began.set()
        await asyncio.sleep(HOUR.total_seconds())

    @manager.task(persist=True, requeue_on_interrupt=True)
    async def task() -> None:
        working = asyncio.create_task(step.with_options(key="work")(work))
        await began.wait()
        with pytest.raises(TimeoutError):
            await wait_for("never", int, timeout=1_800)
        await working

    return task.with_options(tags={"kind": "slow"}).enqueue()


async def delayed_in_the_file(manager: TaskManager) -> Awaitable[object]:
    @manager.task(persist=True, queue_name="one")
    async def task() -> None: ...

    return task.with_options(tags={"kind": "slow"}, delay=HOUR).enqueue()


async def behind_a_long_task(manager: TaskManager) -> Awaitable[object]:
    @manager.task(persist=True, queue_name="one")
    async def task() -> None:
        await asyncio.sleep(HOUR.total_seconds() / 2)

    slow = task.with_options(tags={"kind": "slow"})
    slow.enqueue()
    return slow.enqueue()


async def node(manager: TaskManager) -> Awaitable[object]:
    @manager.task(persist=True, requeue_on_interrupt=True)
    async def task() -> None:
        await sleep(HOUR)

    graph = Workflow("graph")
    graph.add(task.with_options(tags={"kind": "slow"}))
    return await manager.start_workflow(graph)


@pytest.mark.parametrize("wait", [drain, join, join_by_tags, await_handle])
@pytest.mark.parametrize(
    "enqueue",
    [sleeps, sleeps_in_a_branch, waits_beside_a_step, delayed_in_the_file, behind_a_long_task, node],
)
async def test_clock_jumps_to_what_is_due(manager: TaskManager, enqueue: Enqueue, wait: Wait) -> None:
    """A test pays nothing for a long sleep: nobody looks into the store again and again until it is over."""
    store = FaultyStore(MemoryStore())
    async with isolated(manager, store=store.as_store()) as world:
        await wait(world, await enqueue(manager))
        assert timedelta(0) <= world.now - START - HOUR < timedelta(seconds=1)
        assert len(store.calls) < FEW_CALLS


async def test_sleep_in_place_is_over_after_a_step_of_the_wall_clock(world: World) -> None:
    """It waits for wall time. The clock does not jump to the end that it had before the step."""
    handle = await sleeps_in_a_branch(world.manager)
    await world.idle()
    world.clock.step(HOUR)
    began_s = world.clock.elapsed_s()
    await handle
    assert world.clock.elapsed_s() - began_s < 10


# What never ends.


async def waits_for_ever(manager: TaskManager) -> Awaitable[object]:
    @manager.task(persist=True, requeue_on_interrupt=True)
    async def task() -> None:
        await wait_for("never", int)

    return task.with_options(tags={"kind": "slow"}).enqueue()


async def waits_for_ever_beside_a_branch(manager: TaskManager) -> Awaitable[object]:
    @manager.task(persist=True, requeue_on_interrupt=True)
    async def task() -> None:
        branch = asyncio.create_task(wait_for("never", int, key="branch"))
        await wait_for("never", int)
        await branch

    return task.with_options(tags={"kind": "slow"}).enqueue()


async def in_a_paused_queue(manager: TaskManager) -> Awaitable[object]:
    await manager.pause("one")
    return await delayed_in_the_file(manager)


async def in_a_paused_workflow(manager: TaskManager) -> Awaitable[object]:
    @manager.task(persist=True)
    async def task() -> None: ...

    graph = Workflow("graph")
    graph.add(task.with_options(delay=5, tags={"kind": "slow"}))
    handle = await manager.start_workflow(graph)
    await handle.pause()
    return handle


async def in_a_full_queue(manager: TaskManager) -> TaskHandle[None]:
    @manager.task(persist=True, queue_name="one")
    async def task() -> None:
        await asyncio.Event().wait()

    slow = task.with_options(tags={"kind": "slow"})
    slow.enqueue()
    return slow.enqueue()


@pytest.mark.parametrize("wait", [drain, join, join_by_tags, await_handle])
@pytest.mark.parametrize(
    "enqueue",
    [waits_for_ever, waits_for_ever_beside_a_branch, in_a_paused_queue, in_a_paused_workflow, in_a_full_queue],
)
async def test_wait_that_never_ends_is_an_error(
    manager: TaskManager, enqueue: Enqueue, wait: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a test that hangs."""
    monkeypatch.setattr(virtual, "LAST_LOOK_S", 0.01)  # nothing comes from outside the loop
    async with isolated(manager) as world:
        handle = await enqueue(manager)
        with pytest.raises(RuntimeError, match="will never end"):
            await wait(world, handle)


async def test_paused_queue_does_not_keep_others_from_their_time(manager: TaskManager) -> None:
    """What is due later still comes before the error."""
    async with isolated(manager) as world:
        slow = await sleeps(manager)
        await in_a_paused_queue(manager)
        with pytest.raises(RuntimeError, match="will never end"):
            await world.drain()
        assert (await slow) is None
        assert world.now - START >= HOUR
