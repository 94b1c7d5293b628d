"""Tasks that wait: for themselves, for each other, for a slot to go on, for the manager, for room."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from taskmanager import ConfigurationError, QueueConfig, TaskFailed, TaskHandle, TaskManager
from taskmanager.testing import isolated

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

Wait = Callable[[TaskHandle[Any]], Awaitable[Any]]


async def plainly(handle: TaskHandle[Any]) -> Any:
    return await handle


async def for_its_result(handle: TaskHandle[Any]) -> Any:
    return await handle.result()


async def gathered(handle: TaskHandle[Any]) -> Any:
    return await asyncio.gather(handle, asyncio.sleep(0))


async def in_a_group(handle: TaskHandle[Any]) -> Any:
    async with asyncio.TaskGroup() as group:
        group.create_task(plainly(handle))


async def patiently(handle: TaskHandle[Any]) -> Any:
    return await handle.result(timeout=3600)


WAYS = [plainly, for_its_result, gathered]


# For what never comes.


@pytest.mark.parametrize("wait", [*WAYS, in_a_group, patiently])
async def test_a_task_that_awaits_its_own_handle_is_told_at_once(wait: Wait) -> None:
    """It would wait for ever, and its slot be free for others meanwhile, so that nobody notices."""
    manager = TaskManager(None)
    handles: list[TaskHandle[Any]] = []
    told: list[BaseException] = []

    @manager.task(name="selfish")
    async def selfish() -> None:
        try:
            await wait(handles[0])
        except* ConfigurationError as group:
            told.extend(group.exceptions)

    async with isolated(manager) as world:
        handles.append(selfish.enqueue())
        await world.advance(1)
        assert handles[0].status.is_terminal
    assert "selfish" in str(told[0])
    assert "awaits its own handle" in str(told[0])


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("wait", WAYS)
async def test_tasks_that_wait_for_each_other_in_a_circle_are_told(wait: Wait, size: int) -> None:
    """A child that awaits its parent is such a circle too. The one that closes it fails; the others go on by that."""
    manager = TaskManager(None)
    handles: list[TaskHandle[Any]] = []
    told: list[str] = []

    @manager.task(name="one")
    async def one(number: int) -> None:
        await asyncio.sleep(number)
        try:
            await wait(handles[(number + 1) % size])
        except ConfigurationError as exc:
            told.append(str(exc))

    async with isolated(manager) as world:
        handles.extend(one.enqueue(number) for number in range(size))
        await world.advance(size + 1)
        assert all(handle.status.is_terminal for handle in handles)
    assert len(told) == 1
    assert "neither would ever end" in told[0]


async def test_a_wait_that_may_end_is_no_circle() -> None:
    """With a time limit, beside what a task does, or for one that does not wait back."""
    manager = TaskManager(None)
    handles: dict[str, TaskHandle[Any]] = {}
    seen: list[str] = []

    @manager.task(name="parent")
    async def parent() -> str:
        handles["child"] = child.enqueue()
        beside = asyncio.ensure_future(plainly(handles["child"]))
        with pytest.raises(TimeoutError):
            await handles["child"].result(timeout=2)
        beside.add_done_callback(lambda done: seen.append(done.result()))
        return "parent"

    @manager.task(name="child")
    async def child() -> str:
        await asyncio.sleep(1)
        seen.append(await handles["parent"])
        return "child"

    async with isolated(manager) as world:
        handles["parent"] = parent.enqueue()
        await world.drain()
        await asyncio.sleep(0)
    assert seen == ["parent", "child"]


# For the slot.


async def within_a_second(handle: TaskHandle[Any]) -> None:
    await handle.result(timeout=1)


async def inside_a_timeout(handle: TaskHandle[Any]) -> None:
    async with asyncio.timeout(1):
        await handle


@pytest.mark.parametrize("wait", [within_a_second, inside_a_timeout])
async def test_a_parent_whose_patience_ends_goes_on_within_the_limit(wait: Wait) -> None:
    """A limit is never exceeded: what it lent comes back first, ahead of everything that waits."""
    manager = TaskManager(None, queues=[QueueConfig("one", max_concurrency=1)])
    order: list[str] = []

    @manager.task(name="child", queue_name="one")
    async def child(label: str) -> None:
        order.append(f"{label} begins")
        await asyncio.sleep(10)
        order.append(f"{label} ends")

    @manager.task(name="parent", queue_name="one")
    async def parent() -> None:
        first = child.enqueue("child")
        child.enqueue("other")
        with pytest.raises(TimeoutError):
            await wait(first)
        order.append("parent goes on")
        await asyncio.sleep(1)

    async with isolated(manager) as world:
        handle = parent.enqueue()
        await world.drain()
        await handle
        assert manager.status().queues["one"].running == 0
    assert order == ["child begins", "child ends", "parent goes on", "other begins", "other ends"]


async def test_a_parent_that_waits_for_its_slot_can_be_cancelled_and_times_out() -> None:
    """What the engine asks to end cleans up at once: that no child holds up."""
    manager = TaskManager(None, concurrency=1)
    seen: list[str] = []

    @manager.task(name="child")
    async def child() -> None:
        await asyncio.sleep(1000)

    @manager.task(name="parent")
    async def parent() -> None:
        try:
            await child.enqueue().result(timeout=1)
        finally:
            seen.append("cleaned")

    async with isolated(manager) as world:
        cancelled = parent.enqueue()
        await world.advance(5)
        assert seen == []
        cancelled.cancel()
        await world.advance(1)
        assert (cancelled.status.value, seen) == ("CANCELLED", ["cleaned"])
        timed_out = parent.with_options(timeout=5).enqueue()
        await world.advance(1010)
        with pytest.raises(TaskFailed, match="longer than its timeout"):
            await timed_out


async def test_a_task_that_waits_for_room_makes_room() -> None:
    """What waits in the full queue may need the very slot of the task that waits for room in it."""
    manager = TaskManager(None, concurrency=1, queues=[QueueConfig("small", max_pending=1)])
    seen: list[int] = []

    @manager.task(name="page", queue_name="small")
    async def page(number: int) -> None:
        seen.append(number)

    @manager.task(name="crawl")
    async def crawl() -> None:
        for number in range(5):
            await manager.wait_for_room("small")
            page.enqueue(number)

    async with isolated(manager) as world:
        crawl.enqueue()
        await world.drain()
    assert seen == [0, 1, 2, 3, 4]


# For the manager.


async def test_a_task_cannot_wait_for_its_manager() -> None:
    """It would wait for itself: `stop()` until the drain time is over, `join()` for ever. `flush()` it may."""
    manager, other = TaskManager(None), TaskManager(None)
    told: list[str] = []

    @manager.task(name="asks")
    async def asks() -> None:
        await manager.flush()
        for call in (manager.stop, manager.join):
            with pytest.raises(ConfigurationError, match="inside task asks would wait for that task") as caught:
                await call()
            told.append(str(caught.value))
        async with other:
            await other.join()

    async with isolated(manager) as world:
        handle = asks.enqueue()
        await world.drain()
        await handle
    assert "set an event" in told[0]
    assert "await the handles" in told[1]


async def test_stop_is_allowed_in_code_that_an_ended_task_has_begun() -> None:
    """It is in the context of a task that is over."""
    manager = TaskManager(None)
    begun: list[asyncio.Task[None]] = []

    @manager.task
    async def begins() -> None:
        async def later() -> None:
            await asyncio.sleep(1)
            await manager.stop()

        begun.append(asyncio.ensure_future(later()))

    async with isolated(manager) as world:
        begins.enqueue()
        await world.advance(2)
        await begun[0]
        assert manager.status().state == "stopped"
