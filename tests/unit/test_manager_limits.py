"""Limits and order: full queues, room that is waited for, priorities, and what may run at once."""

import asyncio
from datetime import timedelta

import pytest

from taskmanager import QueueConfig, QueueFull, Snooze, TaskManager, TaskStatus, current_task, sleep
from taskmanager.testing import START, isolated

pytestmark = pytest.mark.anyio


async def test_a_full_queue_refuses_and_room_can_be_awaited() -> None:
    """Per queue; running tasks do not count."""
    manager = TaskManager(None, concurrency=1, queues=[QueueConfig("small", max_pending=2)])

    @manager.task(queue_name="small")
    async def job() -> None:
        await asyncio.sleep(10)

    async with isolated(manager) as world:
        job.enqueue()
        await world.idle()
        job.enqueue()
        job.enqueue()
        with pytest.raises(QueueFull, match=r"'small'.*wait_for_room"):
            job.enqueue()
        await manager.wait_for_room("small")
        assert world.now == START + timedelta(seconds=10)
        job.enqueue()
        job.with_options(queue_name="default").enqueue()
        await manager.wait_for_room("default")
        await world.drain()
        assert len(world.enqueued) == 5


async def test_a_queue_that_nobody_has_named_is_told_with_the_name_that_was_meant(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It may be one that is to come, so it is no error; mostly it is a slip, and the real queue goes on."""
    manager = TaskManager(None, queues=[QueueConfig("reports")])

    @manager.task(queue_name="mail")
    async def job() -> None: ...

    async with isolated(manager):
        for known in ("mail", "reports", "default"):
            await manager.pause(known)
            await manager.resume(known)
            await manager.wait_for_room(known)
        assert caplog.messages == []
        await manager.wait_for_room("mial")
        await manager.wait_for_room("mial")
        await manager.resume("mial")
        await manager.pause("rpeorts")
        assert caplog.messages == [
            "there is always room in queue 'mial', which no function or task has named yet; did you mean 'mail'?",
            "queue 'mial' was not paused, and no function, task or instance has named it yet; did you mean 'mail'?",
            "queue 'rpeorts' is paused, and no function, task or instance has named it yet; did you mean 'reports'?",
        ]
        caplog.clear()
        await manager.pause("rpeorts")
        assert caplog.messages == []


async def test_the_whole_manager_has_a_limit_too() -> None:
    """Waiting and unsaved tasks of all queues, also while they are held for the start."""
    manager = TaskManager(None, max_pending=3)

    @manager.task
    async def job() -> None: ...

    for _ in range(3):
        job.enqueue()
    with pytest.raises(QueueFull):
        job.enqueue()
    async with isolated(manager) as world:
        handles = [job.with_options(delay=60).enqueue() for _ in range(3)]
        with pytest.raises(QueueFull):
            job.enqueue()
        handles[0].cancel()
        await manager.flush()
        await manager.wait_for_room()
        job.enqueue()
        await world.drain()


@pytest.mark.req("DS-005", "DS-s6")
@pytest.mark.parametrize("persist", [False, True])
async def test_priority_first_then_first_come_first_served(persist: bool) -> None:
    """1 before 100; the same priority in the order of the calls; the queue's priority before the task's."""
    manager = TaskManager(None, concurrency=1, queues=[QueueConfig("vip", priority=1)])
    order: list[str] = []

    async with isolated(manager) as world:

        @manager.task(persist=persist)
        async def job(name: str) -> None:
            order.append(name)

        for queue in ("default", "vip"):
            await manager.pause(queue)
        for name, priority in (("a", 50), ("b", 100), ("c", 1), ("d", 50), ("e", 1)):
            job.with_options(priority=priority).enqueue(name)
        job.with_options(priority=100, queue_name="vip").enqueue("vip")
        await world.idle()
        for queue in ("vip", "default"):
            await manager.resume(queue)
        await world.drain()
    assert order == ["vip", "c", "e", "a", "d", "b"]


@pytest.mark.parametrize("max_in_memory", [2, 4, 10])
async def test_the_order_is_the_same_where_memory_holds_few_of_them(max_in_memory: int) -> None:
    """What waits in the file comes in time, whatever memory was filled with before it was called."""
    manager = TaskManager(None, concurrency=1, max_in_memory=max_in_memory)
    async with isolated(manager) as world:
        order = []

        @manager.task(persist=True)
        async def job(place: tuple[int, int]) -> None:
            order.append(place)
            await asyncio.sleep(1)

        priorities = [100] * 15 + [50] * 15 + [1] * 15 + [60, 50, 1, 100, 2] * 3
        await manager.pause("default")
        places = [(priority, n) for n, priority in enumerate(priorities)]
        for place in places:
            job.with_options(priority=place[0]).enqueue(place)
        await manager.flush()
        await manager.resume("default")
        await world.drain()
        assert order == sorted(places)


async def test_the_limit_of_a_queue_holds_beside_that_of_the_lane() -> None:
    """`max_concurrency` of one queue; the others are not held up by it."""
    manager = TaskManager(None, concurrency=10, queues=[QueueConfig("narrow", max_concurrency=2)])
    running: dict[str, int] = {"narrow": 0, "default": 0}
    peak = dict(running)

    @manager.task
    async def job(queue: str) -> None:
        running[queue] += 1
        peak[queue] = max(peak[queue], running[queue])
        await asyncio.sleep(1)
        running[queue] -= 1

    async with isolated(manager) as world:
        for queue in ["narrow"] * 6 + ["default"] * 6:
            job.with_options(queue_name=queue).enqueue(queue)
        await world.drain()
        assert world.now == START + timedelta(seconds=3)
    assert peak == {"narrow": 2, "default": 6}


@pytest.mark.parametrize("pause", ["sleeps", "is snoozed", "is retried"])
async def test_handle_tells_that_a_task_of_a_limited_queue_waits_again(pause: str) -> None:
    """It waits in the file, where it holds no place of the limit, and this instance has written that itself."""
    manager = TaskManager(queues=[QueueConfig("gpu", max_concurrency=1, scope="file")])

    @manager.task(queue_name="gpu", persist=True, retries=1, retry_delay=60, requeue_on_interrupt=True)
    async def job() -> None:
        if pause == "sleeps":
            await sleep(60)
        elif current_task().attempt == 1:
            raise Snooze(60) if pause == "is snoozed" else ValueError("the first time")

    async with isolated(manager) as world:
        handle = job.enqueue()
        await world.advance(10)
        assert handle.status is TaskStatus.PENDING
        await handle
