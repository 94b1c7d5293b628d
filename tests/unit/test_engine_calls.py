"""Calls from unusual places: a signal handler, a finalizer, a log handler, another thread, code beside the loop.

Whoever calls finds the manager in order, and so does everybody after him: nothing is lost, nothing waits for itself,
and what was enqueued before somebody looks or cancels is there to be seen and cancelled.
"""

import asyncio
import gc
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from taskmanager import (
    ManagerStopped,
    RetryPolicy,
    Snooze,
    TaskCancelled,
    TaskError,
    TaskFailed,
    TaskHandle,
    TaskManager,
    TaskResult,
    TaskStatus,
    current_task,
)
from taskmanager.engine.engine import Engine
from taskmanager.store.memory import MemoryStore
from taskmanager.testing import Fault, FaultyStore, isolated

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

CALLS = 50


def engine_of(manager: TaskManager) -> Engine:
    assert manager._lifecycle is not None
    return manager._lifecycle.engine


async def turns_until(condition: Callable[[], bool], meanwhile: Callable[[], object] = lambda: None) -> None:
    """Let the loop turn until something is true."""
    async with asyncio.timeout(20):
        while not condition():
            meanwhile()
            await asyncio.sleep(0)


def in_a_thread(call: Callable[[], Any]) -> Any:
    """What `call` returns in another thread, while the loop waits and cannot turn."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def assert_nothing_is_left(manager: TaskManager) -> None:
    status = manager.status()
    assert (status.waiting_count, status.running_count) == (0, 0)
    assert all(queue.waiting == queue.running == 0 for queue in status.queues.values())


# Calls that interrupt the manager in its own thread.


class EnqueueingHandler(logging.Handler):
    """Sends every log line somewhere, by a task."""

    def __init__(self, task: Any) -> None:
        super().__init__(logging.DEBUG)
        self.task = task
        self.handles: list[TaskHandle[Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.handles) < CALLS:
            self.handles.append(self.task.enqueue(record.getMessage()))


@pytest.fixture
def listener() -> Iterator[EnqueueingHandler]:
    logger, handler = logging.getLogger("taskmanager"), EnqueueingHandler(None)
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.setLevel(logging.NOTSET)
    logger.removeHandler(handler)


@pytest.mark.parametrize("persist", [False, True])
async def test_a_handler_of_our_log_lines_may_enqueue(listener: EnqueueingHandler, persist: bool) -> None:
    """Lines are written under the lock of the door, and in the middle of a settlement."""
    manager = TaskManager(None)

    @manager.task
    async def note(text: str) -> None: ...

    @manager.task
    async def work(label: str) -> None:
        raise ValueError(label)

    async with isolated(manager):
        if persist:
            manager.task(name="kept", persist=True)(note.fn)
        listener.task = manager.get_task("kept") if persist else note
        call = work.with_options(idempotency_key="k")
        first, second = call.enqueue("a"), call.enqueue("b")
        assert second.is_duplicate
        with pytest.raises(TaskFailed):
            await first
        await manager.join()
        assert len(listener.handles) >= 2
        assert {each.status for each in listener.handles} == {TaskStatus.COMPLETED}
        assert_nothing_is_left(manager)


async def test_a_finalizer_may_enqueue_wherever_the_collector_runs() -> None:
    """Also in the middle of another call, or of the engine's own work."""
    manager = TaskManager(None)
    seen: list[str] = []

    @manager.task
    async def work(label: str) -> None:
        seen.append(label)

    class Garbage:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            work.enqueue("finalizer")

    def litter() -> None:
        for _ in range(5):
            Garbage()
            work.enqueue("call")

    thresholds = gc.get_threshold()
    async with manager:
        gc.set_threshold(20)
        try:
            await turns_until(lambda: seen.count("finalizer") >= CALLS, litter)
        finally:
            gc.set_threshold(*thresholds)
        gc.collect()
        await manager.join()
        assert seen.count("finalizer") == seen.count("call")
        assert_nothing_is_left(manager)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="signals of a timer are POSIX")
async def test_a_signal_handler_may_enqueue() -> None:
    """A handler set with `signal.signal` interrupts whatever the main thread does, an `enqueue` too."""
    manager = TaskManager(None)
    seen: list[str] = []
    sent: list[TaskHandle[None]] = []

    @manager.task
    async def work(label: str) -> None:
        seen.append(label)

    before = signal.signal(signal.SIGALRM, lambda *_: sent.append(work.enqueue("signal")))
    async with manager:
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
        try:
            await turns_until(lambda: len(sent) >= CALLS, lambda: work.enqueue("call"))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        await manager.join()
        assert seen.count("signal") == len(sent)
        assert_nothing_is_left(manager)


# Calls beside the loop.


def test_code_between_two_runs_of_the_loop_may_enqueue_and_cancel() -> None:
    """As a program does that is not asynchronous itself; the task runs when the loop does."""
    manager = TaskManager(None)

    @manager.task
    async def work(label: str) -> str:
        return label

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(manager.start())
        first, second = work.enqueue("a"), work.enqueue("b")
        waiter = loop.create_task(second.result())
        loop.run_until_complete(first.result(timeout=20))
        third = work.with_options(delay=3600).enqueue("c")
        assert third.cancel()
        with pytest.raises(TaskCancelled):
            loop.run_until_complete(asyncio.wait_for(third, 20))
        assert loop.run_until_complete(waiter) == TaskResult(ok="b")
        loop.run_until_complete(manager.stop())
    finally:
        loop.close()


def test_a_loop_that_was_closed_without_a_stop_takes_nothing() -> None:
    """A clear error at the call, and nothing is kept."""
    manager = TaskManager(None)

    @manager.task
    async def work() -> None: ...

    loop = asyncio.new_event_loop()
    loop.run_until_complete(manager.start())
    before = work.with_options(delay=3600).enqueue()
    loop.run_until_complete(manager.flush())
    tasks = asyncio.all_tasks(loop)
    for each in tasks:
        each.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.close()
    with pytest.raises(ManagerStopped, match=r"closed.*stop"):
        work.enqueue()
    assert manager.status().waiting_count == 1
    assert not before.cancel()
    manager.schedule(every=60)(manager.task(name="defined later")(lambda: None))


async def test_a_start_that_has_ended_takes_nothing_from_the_next_one() -> None:
    """Also where something of it still turns: what is enqueued now belongs to those who run now."""
    manager = TaskManager(None)

    @manager.task
    async def work() -> str:
        return "done"

    async with manager:
        ended = engine_of(manager)
    async with manager:
        await turns_until(lambda: not engine_of(manager).inbox._is_due)
        ended.life.kick()
        assert await work.enqueue().result(timeout=20) == TaskResult(ok="done")


async def test_what_is_enqueued_while_a_stop_begins_is_counted_with_what_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is recorded as cancelled like all that waits, and the one line of the log has the number of all."""
    manager = TaskManager(None)

    @manager.task
    async def work() -> None: ...

    await manager.start()
    work.with_options(delay=3600).enqueue()
    await manager.flush()
    stopping = asyncio.create_task(manager.stop())
    asyncio.get_running_loop().call_soon(work.enqueue)
    await stopping
    assert "2 memory-only tasks waiting at the stop" in caplog.text


@pytest.mark.parametrize("persist", [False, True])
async def test_what_a_thread_enqueued_a_moment_ago_is_there(persist: bool) -> None:
    """For whoever looks for it, waits for it, or cancels it, though the loop has not turned since."""
    manager = TaskManager(None)
    seen: list[str] = []

    async def body(label: str) -> str:
        seen.append(label)
        return label

    async with isolated(manager):
        work = manager.task(name="work", persist=persist)(body)
        assert in_a_thread(lambda: work.enqueue("a")).cancel()
        assert await manager.cancel(in_a_thread(lambda: work.enqueue("b")).task_id)
        assert not await manager.retry(in_a_thread(lambda: work.enqueue("c")).task_id)
        assert await manager.handle(in_a_thread(lambda: work.enqueue("d")).task_id) == "d"
        assert in_a_thread(lambda: work.enqueue("e")).task_id in {each.task_id for each in await manager.list()}
        in_a_thread(lambda: work.enqueue("f"))
        assert sum((await manager.counts()).values()) == 6
        await manager.join()
        assert sorted(seen) == ["c", "d", "e", "f"]
        assert_nothing_is_left(manager)
        await manager.flush()


@pytest.mark.parametrize("persist", [False, True])
async def test_a_thread_may_cancel(persist: bool) -> None:
    """It asks; the loop does it."""
    manager = TaskManager(None)

    async def forever() -> None:
        await asyncio.Event().wait()

    async with isolated(manager, clock="real"):
        work = manager.task(name="work", persist=persist)(forever)
        running, waiting = work.enqueue(), work.with_options(delay=3600).enqueue()
        await turns_until(lambda: running.status is TaskStatus.RUNNING)
        for each in (running, waiting):
            assert in_a_thread(each.cancel)
            with pytest.raises(TaskCancelled):
                await each
            assert not in_a_thread(each.cancel)
        assert_nothing_is_left(manager)


# A cancel in an unusual moment.


class HeldStore(FaultyStore):
    """A store of which one commit can be held."""

    def __init__(self) -> None:
        self.memory = MemoryStore()
        super().__init__(self.memory)

    def hold_next_commit(self) -> None:
        self.plan.append(Fault("hold", self.calls.count("commit") + 1, "commit", True))


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_cancel_is_recorded_when_it_returns_also_while_the_start_is_on_its_way(key: str | None) -> None:
    """Else a crash in the next moment would start again what was cancelled."""
    manager, store = TaskManager("never-opened.db"), HeldStore()

    @manager.task(persist=True, requeue_on_interrupt=True)
    async def work() -> None: ...

    async with isolated(manager, store=store.as_store()):
        store.hold_next_commit()
        handle = work.with_options(idempotency_key=key).enqueue()
        await turns_until(lambda: "commit" in store.held)
        cancelling = asyncio.create_task(manager.cancel(handle.task_id))
        await turns_until(lambda: engine_of(manager).live[handle.task_id].cancel_requested_at is not None)
        store.let_go()
        assert await cancelling
        row = await store.memory.fetch(handle.task_id)
        assert row is not None
        assert row.cancel_requested_at is not None
        with pytest.raises(TaskCancelled):
            await handle


async def test_a_call_that_waits_for_the_end_of_its_key_can_be_cancelled() -> None:
    """The first task of the key has failed, and its end is on the way to the store; the second follows it."""
    manager, store = TaskManager("never-opened.db"), HeldStore()
    seen: list[str] = []

    @manager.task(persist=True)
    async def work(label: str) -> None:
        seen.append(label)
        raise ValueError

    call = work.with_options(idempotency_key="k")
    async with isolated(manager, store=store.as_store()):
        first = call.enqueue("a")
        await turns_until(lambda: first.status is TaskStatus.FAILED)
        second = call.enqueue("b")
        assert second.cancel()
        with pytest.raises(TaskCancelled):
            await second
        assert seen == ["a"]
        assert_nothing_is_left(manager)
        assert await call.enqueue("c").result() != TaskResult(ok=None)
        assert seen == ["a", "c"]


@pytest.mark.parametrize("persist", [False, True])
@pytest.mark.parametrize("lane", ["async", "thread"])
@pytest.mark.parametrize("answer", [Snooze(3600), TaskResult(err=TaskError("BUSY"))])
async def test_a_task_that_was_cancelled_does_not_wait_for_another_start(persist: bool, lane: str, answer: Any) -> None:
    """Neither for the end of its snooze, nor for a retry: it was asked to end."""
    manager = TaskManager(None)
    started = threading.Event()
    policy = RetryPolicy(auto_retry_for=["BUSY"], intervals=(3600,), max_retries=1)

    async def stubborn() -> Any:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return answer

    def in_thread() -> Any:
        started.set()
        while not current_task().is_cancelled:
            threading.Event().wait(0.001)
        return answer

    async with isolated(manager, clock="real"):
        fn: Any = stubborn if lane == "async" else in_thread
        handle = manager.task(name="work", persist=persist, retry_policy=policy)(fn).enqueue()
        await turns_until(started.is_set)
        assert handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle
        info = await handle.info(include_attempts=True)
        assert (info.status, info.start_count) == (TaskStatus.CANCELLED, 1)
        assert [each.will_retry for each in info.attempts or ()] == [False]


# Loops with an eager task factory.


@pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="Python 3.12 made eager tasks")
async def test_a_task_begins_in_a_turn_of_its_own_whatever_the_task_factory() -> None:
    """An eager one would run user code in the middle of a dispatch, where it could not be cancelled."""
    manager = TaskManager(None)
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()

    @manager.task
    async def work() -> None:
        assert manager.handle(current_task().task_id).cancel()
        await asyncio.Event().wait()

    loop.set_task_factory(asyncio.eager_task_factory)
    try:
        async with manager:
            with pytest.raises(TaskCancelled):
                await work.enqueue()
            assert_nothing_is_left(manager)
    finally:
        loop.set_task_factory(before)
