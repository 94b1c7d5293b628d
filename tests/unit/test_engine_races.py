"""What may happen between two lines of a running engine: around the start of an attempt, among threads and loops.

Each test holds or fails one store call at a chosen point, lets one thing happen meanwhile, and states what must be true
afterwards. No real time passes: the clock of the world is virtual.
"""

import asyncio
import threading
from typing import Any

import pytest

from taskmanager import TaskCancelled, TaskFailed, current_task
from tests.unit.engine_worlds import assert_counters, engine_of, manager_of, persisted, turns_until, world_of

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(20)]


# The start of an attempt.


async def test_an_older_commit_does_not_start_the_next_attempt() -> None:
    """User code runs only when *this* start is committed; news of the attempt before prove nothing."""
    manager = manager_of()
    attempts: list[int] = []
    gate = asyncio.Event()

    @manager.task(persist=True, retries=3, retry_delay=0.0)
    async def flaky() -> None:
        attempts.append(current_task().attempt)
        await gate.wait()
        if len(attempts) == 1:
            raise ValueError

    async with world_of(manager) as (_, store):
        handle = flaky.enqueue()
        await turns_until(lambda: attempts == [1])
        engine = engine_of(manager)
        live = engine.live[handle.task_id]
        store.hold("commit")
        engine.writer.mark(live)  # as a progress report does
        await store.until_held("commit")
        store.hold("commit")
        gate.set()
        await turns_until(lambda: live.start_count == 2)
        store.let_go()
        await store.until_held("commit")
        for _ in range(20):
            await asyncio.sleep(0)
        assert attempts == [1]
        store.let_go()
        await handle


async def test_a_cancel_before_the_start_holds_when_the_store_fails() -> None:
    """A task cancelled while its start was being committed never runs, store or no store."""
    manager = manager_of()
    log: list[str] = []
    work = persisted(manager, log, requeue_on_interrupt=True)
    async with world_of(manager) as (_, store):
        store.hold("commit")
        handle = work.enqueue("a")
        await store.until_held("commit")
        assert handle.cancel()
        store.is_down = True
        store.let_go()
        with pytest.raises(TaskCancelled):
            await handle
        assert log == []
        store.is_down = False
        await manager.flush()
        assert_counters(engine_of(manager))


async def test_an_attempt_that_times_out_while_it_waits_for_a_handle_gives_its_slot_back_once() -> None:
    """It had lent its slot when it was given up, and takes one when it goes on at last."""
    manager = manager_of(concurrency=4)
    gate = asyncio.Event()

    @manager.task
    async def child() -> None:
        await gate.wait()

    @manager.task(timeout=1)
    async def stubborn() -> None:
        handle = child.enqueue()
        while not gate.is_set():
            try:
                await handle
            except asyncio.CancelledError:
                continue

    async with world_of(manager) as (_, _store):
        handle = stubborn.enqueue()
        with pytest.raises(TaskFailed):
            await handle
        gate.set()
        engine = engine_of(manager)
        await turns_until(lambda: not engine.runner.abandoned)
        await manager.join()
        assert_counters(engine)


@pytest.mark.parametrize("executor", ["async", "thread"])
async def test_a_cancel_between_assignment_and_first_step_leaks_no_slot(executor: str) -> None:
    """A coroutine that is cancelled before its first step never runs; its slot and its end must not go with it."""
    manager = manager_of()
    log: list[str] = []

    async def work() -> None:
        log.append("async")

    def plain_work() -> None:
        log.append("thread")

    task = manager.task(name="work")(work if executor == "async" else plain_work)
    async with world_of(manager):
        engine = engine_of(manager)
        start = engine.runner.start

        def start_and_cancel(attempt: Any) -> None:
            start(attempt)
            assert engine.life.cancel(attempt.live)

        engine.runner.start = start_and_cancel  # type: ignore[method-assign]
        with pytest.raises(TaskCancelled):
            await task.enqueue()
        assert log == []
        assert_counters(engine)


async def test_an_error_at_the_end_of_one_attempt_forgets_none_that_is_cancelled_beside_it() -> None:
    """Attempts that a stranger cancels before their first step are looked at together, and yet each ends by itself."""
    manager = manager_of()
    errors: list[BaseException] = []

    @manager.task
    async def work() -> None:
        pass

    async with world_of(manager):
        engine = engine_of(manager)
        start, report = engine.runner.start, engine.runner._report

        def start_for_a_stranger(attempt: Any) -> None:
            start(attempt)
            attempt.task.cancel()

        def report_and_fail_once(*args: Any) -> None:
            report(*args)
            if not errors:
                raise ZeroDivisionError

        engine.runner.start = start_for_a_stranger  # type: ignore[method-assign]
        engine.runner._report = report_and_fail_once
        asyncio.get_running_loop().set_exception_handler(lambda _, said: errors.append(said["exception"]))
        for handle in [work.enqueue() for _ in range(3)]:
            with pytest.raises(TaskFailed):
                await handle
        assert [type(error) for error in errors] == [ZeroDivisionError]
        assert_counters(engine)


# Threads and other loops.


async def test_a_waiter_whose_loop_is_closed_holds_up_nobody() -> None:
    """Its loop is gone; the others get their answer."""
    manager = manager_of()
    gate = asyncio.Event()

    @manager.task(persist=True)
    async def work() -> str:
        await gate.wait()
        return "done"

    async with world_of(manager):
        handle = work.enqueue()
        live = engine_of(manager).live[handle.task_id]

        def wait_and_leave() -> None:
            loop = asyncio.new_event_loop()
            waiter = loop.create_future()
            live.waiters_list().append(waiter)
            loop.close()

        thread = threading.Thread(target=wait_and_leave)
        thread.start()
        thread.join()
        gate.set()
        assert await handle == "done"
        assert await work.enqueue() == "done"
        await manager.join()


async def test_progress_from_a_thread_goes_through_the_loop() -> None:
    """The writer belongs to the loop's thread; a future touched from another one wakes nobody."""
    manager = manager_of()
    marked_in: list[int] = []

    clocks: list[Any] = []

    @manager.task(persist=True)
    def work() -> None:
        clocks[0].step(10)
        current_task().progress(1, 2)

    async with world_of(manager) as (world, _store):
        clocks.append(world.clock)
        writer = engine_of(manager).writer
        mark = writer.mark

        def noted(live: Any) -> None:
            marked_in.append(threading.get_ident())
            mark(live)

        writer.mark = noted  # type: ignore[method-assign]
        handle = work.enqueue()
        await handle
        assert set(marked_in) == {threading.get_ident()}
