"""Waits inside a task under every kind of cancellation: each ends, within the limits, and the loop is idle meanwhile.

asyncio cancels a task once. anyio cancels it again in each turn of the loop, until the task leaves the scope.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any, cast

import anyio
import pytest

from taskmanager import QueueConfig, TaskCancelled, TaskHandle, TaskManager
from taskmanager.engine.words.attempt import Attempt
from taskmanager.testing import isolated
from tests.unit.engine_worlds import manager_of, world_of

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

FEW_TURNS = 300
"""Of the loop, for a handful of tasks. A wait that anyio cancels in each turn takes 100,000 of them a second."""

Wait = Callable[[TaskHandle[Any]], Awaitable[Any]]


@contextmanager
def at_most(turns: int) -> Iterator[None]:
    """Fail when the loop turns more often than that while the block runs."""
    loop: Any = asyncio.get_running_loop()
    turn, count = loop._run_once, 0

    def counted() -> None:
        nonlocal count
        count += 1
        turn()

    loop._run_once = counted
    try:
        yield
    finally:
        del loop._run_once
    assert count <= turns


async def plainly(handle: TaskHandle[Any]) -> None:
    await handle


async def for_its_result(handle: TaskHandle[Any]) -> None:
    await handle.result()


async def for_its_result_within_hours(handle: TaskHandle[Any]) -> None:
    await handle.result(timeout=7200)


async def several_gathered(handle: TaskHandle[Any]) -> None:
    await asyncio.gather(handle, handle.result(), asyncio.sleep(7200))


async def in_a_group_of_asyncio(handle: TaskHandle[Any]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(plainly(handle))
        group.create_task(for_its_result(handle))


async def in_a_group_of_anyio(handle: TaskHandle[Any]) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(plainly, handle)
        group.start_soon(for_its_result, handle)


async def in_a_scope_of_its_own(handle: TaskHandle[Any]) -> None:
    with anyio.move_on_after(7200):
        await asyncio.wait_for(handle, 7200)


async def move_on_after(wait: Wait, handle: TaskHandle[Any]) -> None:
    with anyio.move_on_after(1) as scope:
        await wait(handle)
    assert scope.cancelled_caught


async def fail_after(wait: Wait, handle: TaskHandle[Any]) -> None:
    with pytest.raises(TimeoutError), anyio.fail_after(1):
        await wait(handle)


async def a_sibling_fails(wait: Wait, handle: TaskHandle[Any]) -> None:
    async def fails() -> None:
        await asyncio.sleep(1)
        raise LookupError

    with pytest.raises(BaseExceptionGroup) as caught:  # noqa: PT012  # the group is what raises
        async with anyio.create_task_group() as group:
            group.start_soon(fails)
            await wait(handle)
    assert caught.group_contains(LookupError)


async def a_sibling_cancels(wait: Wait, handle: TaskHandle[Any]) -> None:
    async def cancels(scope: anyio.CancelScope) -> None:
        await asyncio.sleep(1)
        scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(cancels, group.cancel_scope)
        group.start_soon(wait, handle)
        await wait(handle)


async def timeout_of_asyncio(wait: Wait, handle: TaskHandle[Any]) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await wait(handle)


async def wait_for_of_asyncio(wait: Wait, handle: TaskHandle[Any]) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(wait(handle), 1)


async def both_anyio_first(wait: Wait, handle: TaskHandle[Any]) -> None:
    """The second cancellation comes while the task waits for its slot; the outer block is the one that ends."""

    async def work() -> None:
        with anyio.move_on_after(1):
            await wait(handle)
        raise AssertionError

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2):
            await work()


async def both_asyncio_first(wait: Wait, handle: TaskHandle[Any]) -> None:
    with anyio.move_on_after(2) as scope:
        try:
            async with asyncio.timeout(1):
                await wait(handle)
        finally:
            await asyncio.sleep(0)
        raise AssertionError
    assert scope.cancelled_caught


async def nested_in_anyio(wait: Wait, handle: TaskHandle[Any]) -> None:
    with anyio.move_on_after(2) as outer, anyio.CancelScope(), anyio.move_on_after(1) as inner:
        await wait(handle)
    assert inner.cancel_called
    assert outer.cancel_called


WAITS = [
    plainly,
    for_its_result,
    for_its_result_within_hours,
    several_gathered,
    in_a_group_of_asyncio,
    in_a_group_of_anyio,
    in_a_scope_of_its_own,
]
CANCELLATIONS = [
    move_on_after,
    fail_after,
    a_sibling_fails,
    a_sibling_cancels,
    timeout_of_asyncio,
    wait_for_of_asyncio,
    both_anyio_first,
    both_asyncio_first,
    nested_in_anyio,
]


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("cancelled", CANCELLATIONS)
async def test_a_cancelled_wait_ends_within_the_limit(cancelled: Callable[..., Awaitable[None]], wait: Wait) -> None:
    """The lane is full when the wait is cancelled: the task goes on when a slot is free, ahead of all that waits."""
    manager = TaskManager(None, concurrency=1)
    order: list[str] = []

    @manager.task(name="child")
    async def child(label: str) -> None:
        order.append(f"{label} begins")
        await asyncio.sleep(10)
        order.append(f"{label} ends")

    @manager.task(name="parent", timeout=60)
    async def parent() -> str:
        child.enqueue("child")
        child.enqueue("other")
        await cancelled(wait, child.with_options(delay=100).enqueue("last"))
        order.append("parent goes on")
        await asyncio.sleep(1)
        order.append("parent ends")
        return "done"

    async with isolated(manager) as world:
        with at_most(FEW_TURNS):
            handle = parent.enqueue()
            await world.drain()
        assert await handle == "done"
        assert manager.status().queues["default"].running == 0
    goes_on = ["parent goes on", "parent ends", "other begins", "other ends"]
    assert order == ["child begins", "child ends", *goes_on, "last begins", "last ends"]


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("cancelled", CANCELLATIONS[:6])
async def test_a_cancelled_wait_ends_at_once_with_a_free_slot(
    cancelled: Callable[..., Awaitable[None]], wait: Wait
) -> None:
    manager = TaskManager(None)

    @manager.task(name="child")
    async def child() -> None:
        await asyncio.sleep(10)

    @manager.task(name="parent")
    async def parent() -> float:
        await cancelled(wait, child.enqueue())
        return asyncio.get_running_loop().time()

    async with isolated(manager) as world:
        began_s = asyncio.get_running_loop().time()
        with at_most(FEW_TURNS):
            handle = parent.enqueue()
            await world.drain()
        assert await handle - began_s == pytest.approx(1)


def cancel_after(turns: int, scope: anyio.CancelScope) -> None:
    """As virtual time stands still while the store is asked."""
    if turns:
        asyncio.get_running_loop().call_soon(cancel_after, turns - 1, scope)
    else:
        scope.cancel()


OTHER_WAITS: dict[str, Callable[[TaskManager, TaskHandle[Any]], Awaitable[Any]]] = {
    "saved": lambda _, handle: handle.saved(),
    "saved in time": lambda _, handle: handle.saved(timeout=3600),
    "flush": lambda manager, _: manager.flush(),
    "info": lambda _, handle: handle.info(include_attempts=True),
    "handle from an id": lambda manager, handle: manager.handle(handle.task_id).result(),
    "room": lambda manager, _: manager.wait_for_room("small"),
}


@pytest.mark.parametrize("name", OTHER_WAITS)
async def test_waits_for_the_store_and_for_room_end_when_cancelled(name: str) -> None:
    """Also while the store answers nothing; and the slot, where it was lent, is there again."""
    manager = manager_of(concurrency=1, queues=[QueueConfig("small", max_pending=1)])

    @manager.task(name="filler", queue_name="small")
    async def filler() -> None: ...

    @manager.task(name="kept", persist=True)
    async def kept() -> None: ...

    @manager.task(name="parent")
    async def parent() -> str:
        filler.with_options(delay=100).enqueue()
        store.hold("commit")
        handle = kept.with_options(delay=100).enqueue()
        saving = asyncio.ensure_future(handle.saved())
        await store.until_held("commit")
        store.hold("fetch_attempts")
        with at_most(FEW_TURNS), anyio.CancelScope() as scope:
            asyncio.get_running_loop().call_soon(cancel_after, 20, scope)
            await OTHER_WAITS[name](manager, handle)
            raise AssertionError
        store.let_go()
        await saving
        return "went on" if scope.cancelled_caught else "swallowed"

    async with world_of(manager) as (world, store):
        handle = parent.enqueue()
        await world.drain()
        assert await handle == "went on"


async def test_a_task_that_waits_for_its_slot_is_cancelled_by_hand_at_once() -> None:
    """Shielded from anyio it still hears the engine: it cleans up without a slot to wait for."""
    manager = TaskManager(None, concurrency=1)
    seen: list[str] = []

    @manager.task(name="child")
    async def child() -> None:
        await asyncio.sleep(1000)

    @manager.task(name="parent")
    async def parent() -> None:
        try:
            with anyio.move_on_after(1):
                await child.enqueue()
        finally:
            seen.append("cleaned")

    async with isolated(manager) as world:
        handle = parent.enqueue()
        await world.advance(5)
        assert seen == []
        handle.cancel()
        await world.advance(0)
        with pytest.raises(TaskCancelled):
            await handle
        assert seen == ["cleaned"]


async def test_a_stop_in_a_cancelled_scope_goes_on_in_an_idle_loop() -> None:
    """It is waited for to its end, and only then is the cancellation let through."""
    manager = TaskManager(None)
    ended = asyncio.Event()

    @manager.task(name="work")
    async def work() -> None:
        await asyncio.sleep(3)
        ended.set()

    async with isolated(TaskManager(None)):  # for its virtual time
        with at_most(FEW_TURNS), anyio.move_on_after(1) as scope:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(manager)
                work.enqueue()
                await asyncio.Event().wait()
        assert scope.cancelled_caught
        assert ended.is_set()
        assert manager.status().state == "stopped"


def test_a_gather_over_many_handles_looks_at_each_of_them_once() -> None:
    """Each wait asks whether the task goes on without it. To search all the others for that made 10,000 waits slow."""
    looks = 0

    class Gathering:
        @property
        def _children(self) -> list[object]:
            nonlocal looks
            looks += 1
            return waiters

    waiters: list[Any] = [object() for _ in range(100)]
    attempt = Attempt.__new__(Attempt)
    attempt.held_up_by = Gathering()
    assert all(attempt.is_held_up_by(waiter) for waiter in waiters)
    assert not attempt.is_held_up_by(cast("Any", object()))
    assert looks == 1


async def gathers(side: Callable[[], Awaitable[None]]) -> None:
    await asyncio.gather(side(), asyncio.sleep(0))


async def begins_a_task(side: Callable[[], Awaitable[None]]) -> None:
    await asyncio.ensure_future(side())


async def waits_within_hours(side: Callable[[], Awaitable[None]]) -> None:
    await asyncio.wait_for(side(), 7200)


async def opens_a_group_of_asyncio(side: Callable[[], Awaitable[None]]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(cast("Any", side()))


async def opens_a_group_of_anyio(side: Callable[[], Awaitable[None]]) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(side)


BESIDE = [gathers, begins_a_task, waits_within_hours, opens_a_group_of_asyncio, opens_a_group_of_anyio]


@pytest.mark.parametrize("cancelled", [None, move_on_after, fail_after, timeout_of_asyncio, wait_for_of_asyncio])
@pytest.mark.parametrize("beside", BESIDE)
async def test_coroutines_that_a_task_begins_go_on_within_the_limit(
    beside: Callable[..., Awaitable[None]], cancelled: Callable[..., Awaitable[None]] | None
) -> None:
    """An attempt is without a slot only while a coroutine of it waits for a handle, whichever coroutine that is."""
    manager = TaskManager(None, concurrency=1)
    order: list[str] = []

    @manager.task(name="child")
    async def child(label: str) -> None:
        order.append(f"{label} begins")
        await asyncio.sleep(10)
        order.append(f"{label} ends")

    @manager.task(name="parent", timeout=60)
    async def parent() -> None:
        first = child.enqueue("child")
        child.enqueue("other")

        async def side() -> None:
            await (plainly(first) if cancelled is None else cancelled(plainly, first))
            order.append("parent goes on")
            await asyncio.sleep(1)
            order.append("parent waits again")
            await child.with_options(priority=1).enqueue("second")
            order.append("parent ends")

        await beside(side)

    async with isolated(manager) as world:
        with at_most(FEW_TURNS):
            handle = parent.enqueue()
            await world.drain()
        await handle
        assert manager.status().queues["default"].running == 0
    goes_on = ["parent goes on", "parent waits again", "second begins", "second ends", "parent ends"]
    assert order == ["child begins", "child ends", *goes_on, "other begins", "other ends"]


async def test_one_of_many_that_wait_needs_no_slot_to_go_on() -> None:
    """It may have to do so before the others, which wait for a child without a slot, come to their end."""
    manager = TaskManager(None, concurrency=1)

    @manager.task(name="child")
    async def child() -> None: ...

    @manager.task(name="parent")
    async def parent() -> None:
        first_is_done, second_is_done = asyncio.Event(), asyncio.Event()

        async def first() -> None:
            await child.enqueue()
            first_is_done.set()
            await second_is_done.wait()

        async def second() -> None:
            await first_is_done.wait()
            await child.enqueue()
            second_is_done.set()

        await asyncio.gather(first(), second(), plainly(child.with_options(delay=10).enqueue()))

    async with isolated(manager) as world:
        handle = parent.enqueue()
        await world.drain()
        await handle


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_all_that_ask_for_the_slot_go_on_with_it(*, is_cancelled: bool) -> None:
    """The task and what it has begun beside itself, at one time: it is taken once. A cancellation by hand takes it at
    once, for all of them."""
    manager = TaskManager(None, concurrency=1)
    went_on: list[str] = []

    @manager.task(name="child")
    async def child(seconds: float) -> None:
        await asyncio.sleep(seconds)

    @manager.task(name="parent", timeout=10_000)
    async def parent() -> None:
        child.enqueue(1000)

        async def side(label: str, begins_after_s: float) -> None:
            await asyncio.sleep(begins_after_s)
            with anyio.move_on_after(2):
                await child.enqueue(0)
            went_on.append(label)

        sides = [asyncio.ensure_future(side("a", 0)), asyncio.ensure_future(side("b", 4))]
        try:
            await asyncio.sleep(7)
        finally:
            await asyncio.wait(sides)
            went_on.append("parent")

    async with isolated(manager) as world:
        handle = parent.enqueue()
        await world.advance(100)
        assert went_on == []
        if is_cancelled:
            handle.cancel()
            await world.advance(0)
            assert len(went_on) == 3
        await world.drain()
        assert (await handle.result()).is_ok() is not is_cancelled
        assert sorted(went_on) == ["a", "b", "parent"]
        assert manager.status().queues["default"].running == 0
