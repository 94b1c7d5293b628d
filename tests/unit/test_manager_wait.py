"""Waiting: for handles, for what is saved, for everything, for children from inside a task."""

import asyncio
from datetime import timedelta

import pytest

from taskmanager import (
    ConfigurationError,
    NotPersisted,
    QueueConfig,
    StoreUnavailable,
    TaskCancelled,
    TaskFailed,
    TaskHandle,
    TaskManager,
    TaskStatus,
    UnknownTask,
)
from taskmanager.store.memory import MemoryStore
from taskmanager.testing import START, Fault, FaultyStore, World, isolated

pytestmark = pytest.mark.anyio


# --- handles ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persist", [False, True])
async def test_a_handle_is_awaited_as_often_as_one_likes(world: World, persist: bool) -> None:
    """Before and after the end, by many at once."""

    @world.manager.task(persist=persist)
    async def job(n: int) -> int:
        await asyncio.sleep(5)
        return n

    handle = job.enqueue(3)
    first, second, result = await asyncio.gather(handle, handle, handle.result())
    assert (first, second, result.ok_value) == (3, 3, 3)
    assert await handle == 3
    assert await handle == 3


async def test_handles_go_with_gather_and_as_completed(world: World) -> None:
    """They are awaitables like any other."""

    @world.manager.task
    async def job(n: int) -> int:
        await asyncio.sleep(n)
        return n

    assert await asyncio.gather(*(job.enqueue(n) for n in (3, 1, 2))) == [3, 1, 2]
    seen = [await each for each in asyncio.as_completed([job.enqueue(n) for n in (3, 1, 2)])]
    assert seen == [1, 2, 3]


async def test_a_failure_is_raised_for_every_waiter(world: World) -> None:
    """Also for those who come late."""

    @world.manager.task
    async def job() -> None:
        raise ValueError("no")

    handle = job.enqueue()
    first, second = await asyncio.gather(handle, handle, return_exceptions=True)
    assert isinstance(first, TaskFailed)
    assert isinstance(second, TaskFailed)
    with pytest.raises(TaskFailed):
        await handle
    assert (await handle.result()).is_err()


async def test_cancelling_the_waiter_does_not_cancel_the_task(world: World) -> None:
    """The task does not care who waits."""
    ended = []

    @world.manager.task
    async def job() -> None:
        await asyncio.sleep(10)
        ended.append(world.now)

    handle = job.enqueue()

    async def wait() -> None:
        await handle

    waiter = asyncio.create_task(wait())
    await world.advance(1)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await handle
    await handle
    assert ended == [START + timedelta(seconds=10)]


async def test_a_cancelled_task_is_no_cancellation_of_its_waiter(world: World) -> None:
    """`TaskCancelled` is an exception to catch, not a `CancelledError`."""

    @world.manager.task
    async def job() -> None: ...

    handle = job.with_options(delay=60).enqueue()
    handle.cancel()
    with pytest.raises(TaskCancelled) as caught:
        await handle
    assert not isinstance(caught.value, asyncio.CancelledError)


async def test_result_and_saved_time_out(world: World) -> None:
    """With `TimeoutError`; the task goes on."""

    @world.manager.task
    async def job() -> int:
        await asyncio.sleep(10)
        return 1

    handle = job.enqueue()
    with pytest.raises(TimeoutError, match="has not ended after 5 s; it is RUNNING"):
        await handle.result(timeout=5)
    assert world.now == START + timedelta(seconds=5)
    assert (await handle.result(timeout=6)).ok_value == 1


async def test_saved_returns_with_the_commit(manager: TaskManager) -> None:
    """Not before; with a store that does not answer it times out, or says what is wrong with the store."""
    store = FaultyStore(MemoryStore(), [Fault.hold(1, verb="commit")])
    async with isolated(manager, store=store.as_store()):

        @manager.task(persist=True)
        async def job() -> None: ...

        handle = job.enqueue()
        with pytest.raises(TimeoutError, match="is not saved after 1 s"):
            await handle.saved(timeout=1)
        assert not (await handle.info()).saved
        store.is_down = True
        store.let_go()
        await handle.saved(timeout=1)
        second = job.enqueue()
        with pytest.raises(StoreUnavailable, match="not saved yet"):
            await second.saved(timeout=1)
        store.is_down = False
        await second.saved()
        await second


async def test_a_memory_only_task_is_never_saved(world: World) -> None:
    """Waiting for it would be waiting for ever."""

    @world.manager.task
    async def job() -> None: ...

    with pytest.raises(NotPersisted, match="persist=True"):
        await job.enqueue().saved()


async def test_before_the_start_saved_and_await_wait(manager: TaskManager) -> None:
    """What is held is written and run at the start. Its id is as good as its handle, also for a cancel."""

    async with isolated(manager) as world:
        await manager.stop()

        @manager.task(persist=True)
        async def job() -> int:
            return 1

        manager._intake.reopen_for_start(manager._settings)
        handle, unwanted = job.enqueue(), job.enqueue()
        saved = asyncio.create_task(handle.saved())
        values = [asyncio.ensure_future(each.result()) for each in (handle, manager.handle(handle.task_id))]
        assert manager.handle(unwanted.task_id).cancel()
        assert unwanted.status is TaskStatus.CANCELLED
        await world.idle()
        assert not any(each.done() for each in (saved, *values))
        await world.start()
        await saved
        assert [(await value).ok_value for value in values] == [1, 1]


async def test_a_cancel_at_once_says_what_is_known_of_the_task(world: World) -> None:
    """What only the file knows is asked there, in the background: the awaited cancel gives that answer."""

    @world.manager.task
    async def light() -> None: ...

    @world.manager.task(persist=True)
    async def kept() -> None: ...

    remembered, stored = light.enqueue(), kept.enqueue()
    await asyncio.gather(remembered, stored)
    handle = world.manager.handle(stored.task_id)
    assert not world.manager.handle(remembered.task_id).cancel()
    assert handle.cancel(), "nobody here has looked yet"
    await handle
    assert not handle.cancel()
    assert not await world.manager.cancel(stored.task_id)
    assert world.manager.handle("no such task").cancel()
    with pytest.raises(UnknownTask):
        await world.manager.cancel("no such task")


async def test_a_handle_is_made_from_an_id(world: World) -> None:
    """For running, ended, restarted and unknown tasks."""

    @world.manager.task(persist=True)
    async def job(n: int) -> int:
        await asyncio.sleep(5)
        return n

    running = job.enqueue(1)
    assert await world.manager.handle(running.task_id) == 1
    await world.restart()
    again: TaskHandle[int] = world.manager.handle(running.task_id)
    assert await again == 1
    assert (await again.result()).ok_value == 1
    assert (await again.info()).status == "COMPLETED"
    stranger = world.manager.handle("00000000-0000-7000-8000-000000000000")
    for awaitable in (stranger, stranger.result(), stranger.info()):
        with pytest.raises(UnknownTask):
            await awaitable


@pytest.mark.parametrize("persist", [False, True])
async def test_info_shows_every_step(world: World, persist: bool) -> None:
    """Status and instants of one life."""

    @world.manager.task(persist=persist, name="job", queue_name="q")
    async def job(n: int, *, note: str) -> int:
        await asyncio.sleep(5)
        return n

    handle = job.with_options(delay=10, tags={"a": "b"}, priority=7).enqueue(1, note="x")
    await world.advance(1)
    info = await handle.info()
    assert (info.status, info.task_name, info.queue_name, info.priority) == ("PENDING", "job", "q", 7)
    assert (info.args, info.kwargs, dict(info.tags)) == ("[1]", '{"note":"x"}', {"a": "b"})
    assert (info.sent_at, info.enqueued_at) == (START, START + timedelta(seconds=10))
    assert info.attempts is None
    await world.advance(11)
    info = await handle.info()
    assert (info.status, info.started_at, info.start_count) == ("RUNNING", START + timedelta(seconds=10), 1)
    assert await handle == 1
    info = await handle.info(include_attempts=True)
    assert (info.status, info.completed_at) == ("COMPLETED", START + timedelta(seconds=15))
    assert info.result is not None
    assert info.result.ok_value == 1
    assert info.attempts is not None
    assert [(each.attempt, each.outcome) for each in info.attempts] == [(1, "COMPLETED")]


# --- parents and children ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("together", [False, True])
async def test_parents_waiting_for_children_do_not_deadlock_a_full_lane(together: bool) -> None:
    """They lend their slots; and a limit is never exceeded."""
    manager = TaskManager(None, concurrency=2)
    running = peak = 0

    def enter() -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)

    def leave() -> None:
        nonlocal running
        running -= 1

    @manager.task
    async def child(n: int) -> int:
        enter()
        await asyncio.sleep(1)
        leave()
        return n

    @manager.task
    async def parent(n: int) -> int:
        enter()
        await asyncio.sleep(1)
        children = [child.enqueue(n * 10 + i) for i in range(3)]
        leave()
        if together:
            values = await asyncio.gather(*children)
        else:
            values = [await each for each in children]
        enter()
        await asyncio.sleep(1)
        leave()
        return sum(values)

    async with isolated(manager) as world:
        parents = [parent.enqueue(n) for n in range(4)]
        await world.drain()
        assert [await each for each in parents] == [n * 30 + 3 for n in range(4)]
        status = manager.status()
    assert peak <= 2
    assert status.lanes["async"].running == 0


async def test_grandchildren_in_a_lane_of_one(world: World) -> None:
    """Depth does not matter."""
    manager = TaskManager(None, concurrency=1)

    @manager.task
    async def depth(n: int) -> int:
        return 0 if n == 0 else 1 + await depth.enqueue(n - 1)

    async with isolated(manager):
        assert await depth.enqueue(5) == 5


async def test_a_parent_goes_on_ahead_of_waiting_tasks() -> None:
    """Its slot is taken back before anything new starts."""
    manager = TaskManager(None, concurrency=1)
    order = []

    @manager.task(name="child")
    async def child() -> None:
        order.append("child")
        await asyncio.sleep(1)

    @manager.task(name="other")
    async def other(n: int) -> None:
        order.append(f"other {n}")
        await asyncio.sleep(1)

    @manager.task(name="parent")
    async def parent() -> None:
        order.append("parent")
        handle = child.with_options(priority=1).enqueue()
        for n in range(3):
            other.enqueue(n)
        await handle
        order.append("parent goes on")
        await asyncio.sleep(1)

    async with isolated(manager) as world:
        parent.enqueue()
        await world.drain()
    assert order[:3] == ["parent", "child", "parent goes on"]


async def test_a_queue_with_a_limit_of_one_does_not_deadlock_either() -> None:
    """The slot of the queue is lent as well."""
    manager = TaskManager(None, queues=[QueueConfig("q", max_concurrency=1)])

    @manager.task(name="child", queue_name="q")
    async def child() -> int:
        return 1

    @manager.task(name="parent", queue_name="q")
    async def parent() -> int:
        return await child.enqueue()

    async with isolated(manager):
        assert await parent.enqueue() == 1


async def test_a_waiting_parent_that_is_cancelled_cleans_up_and_leaks_no_slot() -> None:
    """It is woken at once, even if the lane is full."""
    manager = TaskManager(None, concurrency=1)
    cleaned = []

    @manager.task(name="child")
    async def child() -> None:
        await asyncio.sleep(100)

    @manager.task(name="parent")
    async def parent() -> None:
        try:
            await child.enqueue()
        finally:
            cleaned.append(1)

    async with isolated(manager) as world:
        handle = parent.enqueue()
        await world.advance(1)
        handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle
        assert cleaned == [1]
        await world.drain()
        assert manager.status().lanes["async"].running == 0


async def test_a_parent_that_gathers_with_a_sleep_keeps_the_limit() -> None:
    """A task that also does other things while it waits for a handle does them within the limit."""
    manager = TaskManager(None, concurrency=1)
    log = []

    @manager.task(name="child")
    async def child() -> str:
        log.append("child")
        return "c"

    @manager.task(name="parent")
    async def parent() -> tuple[str, str]:
        async def other() -> str:
            await asyncio.sleep(5)
            return "o"

        return await asyncio.gather(child.enqueue(), other())

    async with isolated(manager) as world:
        assert list(await parent.enqueue()) == ["c", "o"]
        assert world.now == START + timedelta(seconds=5)
        assert manager.status().lanes["async"].running == 0


# --- everything -------------------------------------------------------------------------------------------------------


async def test_join_waits_for_all_that_was_accepted(world: World) -> None:
    """Delayed and retried tasks, and what they enqueue."""
    ended = []

    @world.manager.task(retries=1, retry_delay=30)
    async def job(depth: int) -> None:
        ended.append(depth)
        if depth:
            job.with_options(delay=60).enqueue(depth - 1)
        elif ended.count(0) == 1:
            raise ValueError("once")

    job.with_options(delay=60).enqueue(2)
    await world.manager.join()
    assert ended == [2, 1, 0, 0]
    await world.manager.join()


async def test_join_with_tags_waits_for_those_alone(world: World) -> None:
    """All of the given tags must match."""
    ended = []

    @world.manager.task
    async def job(name: str) -> None:
        ended.append(name)

    job.with_options(delay=60, tags={"user": "1", "kind": "a"}).enqueue("one")
    job.with_options(delay=120, tags={"user": "1"}).enqueue("two")
    job.with_options(delay=3_600, tags={"user": "2"}).enqueue("three")
    await world.manager.join(tags={"user": "1", "kind": "a"})
    assert ended == ["one"]
    await world.manager.join(tags={"user": "1"})
    assert ended == ["one", "two"]
    await world.manager.join(tags={"user": "9"})
    with pytest.raises(TimeoutError, match="after 60 s; 1 task here"):
        await world.manager.join(timeout=60)
    assert world.now == START + timedelta(seconds=180)


async def test_join_inside_a_task_is_refused(world: World) -> None:
    """It would wait for itself."""

    @world.manager.task
    async def job() -> None:
        await world.manager.join()

    result = await job.enqueue().result()
    assert ConfigurationError.__name__ in result.err_value.message


@pytest.mark.req("PR-52")
async def test_flush_writes_history_too(world: World) -> None:
    """Without it, history of memory-only tasks waits for the interval."""

    @world.manager.task
    async def job() -> None: ...

    first = job.enqueue()
    await first
    assert await world.store.sound.fetch(first.task_id) is None
    assert not (await first.info()).saved
    await world.manager.flush()
    assert await world.store.sound.fetch(first.task_id) is not None
    assert (await first.info()).saved
    second = job.enqueue()
    await second
    await world.advance(59)
    assert await world.store.sound.fetch(second.task_id) is None
    await world.advance(1)
    assert await world.store.sound.fetch(second.task_id) is not None
