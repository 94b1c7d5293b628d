"""One manager that is started and stopped by several callers at once, or whose loop ends without a stop."""

import asyncio
import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from taskmanager import (
    ConfigurationError,
    ManagerStopped,
    StoreError,
    StoreUnavailable,
    TaskHandle,
    TaskInterrupted,
    TaskManager,
    Workflow,
)
from taskmanager.engine.words.loops import shielded
from tests.unit.engine_worlds import manager_of, turns_until, world_of

pytestmark = pytest.mark.timeout(60)


def application(path: Path) -> TaskManager:
    manager = TaskManager(path, drain_timeout=0.1)

    @manager.task(name="work", persist=True)
    async def work(number: int) -> int:
        return number

    @manager.task(name="long", persist=True, requeue_on_interrupt=True)
    async def long() -> None:
        await asyncio.sleep(100)

    return manager


async def begin(manager: TaskManager) -> TaskHandle[Any]:
    """Start it, and leave it so with its loop."""
    await manager.start()
    return manager.get_task("long").enqueue()


# Several callers.


@pytest.mark.parametrize("verbs", [("stop", "stop"), ("start", "start"), ("stop", "start"), ("start", "stop")])
def test_callers_that_find_a_closed_loop_do_not_block_each_other(tmp_path: Path, verbs: tuple[str, str]) -> None:
    """One of them writes what the closed loop has left, and the loop of all of them turns meanwhile."""
    manager = application(tmp_path / "tasks.db")
    asyncio.run(begin(manager))

    async def later() -> None:
        found = await asyncio.gather(*(getattr(manager, verb)() for verb in verbs), return_exceptions=True)
        refused = [each for each in found if each is not None]
        assert [type(each) for each in refused] == [ConfigurationError] * (verbs.count("start") - 1)
        if "start" in verbs:
            assert await manager.get_task("work").enqueue(1) == 1
        await manager.stop()

    asyncio.run(later())


async def start_and_stop(manager: TaskManager) -> str:
    try:
        await manager.start()
    except ConfigurationError:
        return "refused"
    await manager.stop()
    return "started"


def test_two_threads_that_start_a_manager_at_once_start_it_once(tmp_path: Path) -> None:
    """Or one after the other."""
    for number in range(20):
        manager, gate = application(tmp_path / f"{number}.db"), threading.Barrier(2)

        def in_thread(manager: TaskManager, gate: threading.Barrier) -> str:
            gate.wait()
            return asyncio.run(start_and_stop(manager))

        with ThreadPoolExecutor(2) as threads:
            found = [threads.submit(in_thread, manager, gate) for _ in range(2)]
            assert "started" in [each.result() for each in found]
        assert manager.status().state == "stopped"


@pytest.mark.anyio
async def test_stop_that_waited_for_a_start_that_failed_forgets_no_later_start(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    path.mkdir()
    manager = application(path)

    async def start_until_it_is_up() -> None:
        with pytest.raises(StoreError):
            await manager.start()
        path.rmdir()
        await manager.start()

    starting = asyncio.ensure_future(start_until_it_is_up())
    await turns_until(lambda: manager._lifecycle is not None)
    await asyncio.gather(starting, manager.stop())
    assert await manager.get_task("work").enqueue(1) == 1
    assert sum((await manager.counts()).values()) == 1
    await manager.stop()


def test_start_that_is_collected_with_its_loop_forgets_no_later_start(tmp_path: Path) -> None:
    manager = application(tmp_path / "tasks.db")
    with closing(asyncio.new_event_loop()) as loop:
        starting = loop.create_task(manager.start())
        loop.run_until_complete(asyncio.sleep(0))
        assert not starting.done()
        del starting

    async def later() -> None:
        async with manager:
            gc.collect()
            assert await manager.get_task("work").enqueue(1) == 1
            assert sum((await manager.counts()).values()) == 1

    gc.disable()
    try:
        asyncio.run(later())
    finally:
        gc.enable()


# Those who wait in another loop, or in a thread.


def by_await(_: TaskManager, handle: TaskHandle[Any]) -> object:
    async def main() -> object:
        return await handle

    return asyncio.run(main())


def by_wait(_: TaskManager, handle: TaskHandle[Any]) -> object:
    return handle.wait()


def by_call(manager: TaskManager, handle: TaskHandle[Any]) -> object:
    return manager.call(handle.result())


def by_workflow(manager: TaskManager, _: TaskHandle[Any]) -> object:
    return asyncio.run(manager.workflow("graph").result())


@pytest.mark.parametrize("wait", [by_await, by_wait, by_call, by_workflow])
@pytest.mark.parametrize("is_left", [False, True], ids=["closed", "left"])
def test_waiters_hear_that_the_loop_of_the_manager_is_gone(
    tmp_path: Path, wait: Callable[[TaskManager, TaskHandle[Any]], object], is_left: bool
) -> None:
    """It was closed without a stop, with all that waits in it, or `asyncio.run` has cancelled that first. A handle in a
    thread knows what the task has come to when the heartbeat's thread has written what was left.
    """
    manager, came_to = application(tmp_path / "tasks.db"), list[BaseException]()

    def in_thread(handle: TaskHandle[Any]) -> None:
        try:
            wait(manager, handle)
        except BaseException as exc:  # whatever it hears
            came_to.append(exc)

    async def main() -> threading.Thread:
        handle, graph = await begin(manager), Workflow("graph")
        graph.add(manager.get_task("long"))
        await manager.start_workflow(graph, workflow_id="graph")
        thread, task_count = threading.Thread(target=in_thread, args=[handle]), len(asyncio.all_tasks())
        thread.start()
        while len(asyncio.all_tasks()) == task_count:  # noqa: ASYNC110  # until the call of the thread has come here
            await asyncio.sleep(0.01)
        return thread

    if is_left:
        thread = asyncio.run(main())
    else:
        with closing(asyncio.new_event_loop()) as loop:
            thread = loop.run_until_complete(main())
    thread.join(10)
    assert [type(each) for each in came_to] in ([ManagerStopped], [TaskInterrupted])
    asyncio.run(manager.stop())


# What a caller is told.


@pytest.mark.anyio
async def test_cancelled_caller_is_cancelled_also_if_its_write_fails() -> None:
    """Else one that tries again while the store is away would go on for ever."""
    gate = asyncio.Event()

    async def write() -> None:
        await gate.wait()
        raise StoreUnavailable("away")

    caller = asyncio.ensure_future(shielded(write()))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.sleep(0)
    gate.set()
    with pytest.raises(asyncio.CancelledError) as caught:
        await caller
    assert isinstance(caught.value.__cause__, StoreUnavailable)


@pytest.mark.anyio
@pytest.mark.parametrize("is_back", [False, True], ids=["away", "back"])
async def test_nobody_is_told_that_a_task_goes_on_of_which_no_row_stands(is_back: bool) -> None:
    """The store is away at the stop: what was never written is lost. If it comes back in time, all of them go on."""
    manager = manager_of(drain_timeout=1.0)

    @manager.task(name="work", persist=True, requeue_on_interrupt=True)
    async def work() -> None:
        await asyncio.sleep(100)

    async with world_of(manager) as (world, store):
        saved = work.enqueue()
        await saved.saved()
        store.is_down = True
        unsaved = [
            work.enqueue(),
            work.with_options(delay=60).enqueue(),
            work.with_options(idempotency_key="k", delay=60).enqueue(),
        ]
        ends = asyncio.gather(*unsaved, return_exceptions=True)
        last = asyncio.gather(saved, return_exceptions=True)
        await world.advance(0.5)
        stopping = asyncio.ensure_future(manager.stop())
        await world.advance(1.1)
        store.is_down = not is_back
        (found,) = await asyncio.gather(stopping, return_exceptions=True)
        assert isinstance(found, StoreUnavailable) is not is_back
        heard = [*await ends, *await last]
        assert [isinstance(each, TaskInterrupted) and each.requeued for each in heard] == [*[is_back] * 3, True]
        assert {type(each) for each in heard} == {TaskInterrupted}
        assert len(store.memory.live) == (4 if is_back else 1)
        store.is_down = False
