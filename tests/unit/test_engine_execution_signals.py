"""Ctrl-C in the middle of a task, where no handler of a loop catches it."""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import anyio
import pytest

from taskmanager import TaskManager
from taskmanager.engine.run.lanes import ProcessLane
from taskmanager.store.memory import MemoryStore

pytestmark = [
    pytest.mark.timeout(30),
    pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX"),
    pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals come there"),
]


@contextmanager
def handled_by(handler: Any) -> Iterator[None]:
    before = [(number, signal.signal(number, handler)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, each in before:
            signal.signal(number, each)


def in_a_moment() -> None:
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()


def at_once() -> None:
    signal.raise_signal(signal.SIGINT)


def between_two_lines() -> None:
    in_a_moment()
    end_s = time.monotonic() + 10
    while time.monotonic() < end_s:
        pass


def in_a_call_that_waits() -> None:
    in_a_moment()
    threading.Event().wait(10)


def raises_itself() -> NoReturn:
    raise KeyboardInterrupt


def exits() -> NoReturn:
    sys.exit(3)


def raise_interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def exit_in_order(number: int, frame: object) -> NoReturn:
    sys.exit(7)


def manager_with(work: Callable[[], None]) -> tuple[TaskManager, Any, Any]:
    manager = TaskManager("never-opened.db")
    manager._make_store = MemoryStore

    @manager.task(name="once", persist=True)
    async def once() -> None:
        work()

    @manager.task(name="again", persist=True, requeue_on_interrupt=True)
    async def again() -> None:
        work()

    return manager, once, again


CASES = [
    (signal.default_int_handler, at_once, KeyboardInterrupt),
    (signal.default_int_handler, between_two_lines, KeyboardInterrupt),
    (signal.default_int_handler, in_a_call_that_waits, KeyboardInterrupt),
    (raise_interrupt, at_once, KeyboardInterrupt),
    (raise_interrupt, in_a_call_that_waits, KeyboardInterrupt),
    (exit_in_order, between_two_lines, SystemExit),
]


@pytest.mark.parametrize(("handler", "work", "exception"), CASES)
def test_ctrl_c_in_a_task_goes_to_whoever_runs_the_loop(
    handler: Any, work: Callable[[], None], exception: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """Under a plain `loop.run_until_complete`, it is raised in whatever line runs. The task was interrupted by it; the
    loop can be run again, for the stop."""
    manager, once, again = manager_with(work)
    loop = asyncio.new_event_loop()
    with handled_by(handler):
        for job, status in ((once, "INTERRUPTED"), (again, "PENDING")):
            loop.run_until_complete(manager.start())
            handle = job.enqueue()
            waiting = loop.create_task(handle.result())
            with pytest.raises(exception):
                loop.run_until_complete(waiting)
            loop.run_until_complete(manager.stop())
            result = loop.run_until_complete(waiting)
            assert result.err_value.error_code == "TASK_INTERRUPTED"
            assert handle.status == status
    loop.close()
    assert "never retrieved" not in caplog.text


async def gathers(side: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(side(), asyncio.sleep(10))


async def awaits_a_task(side: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await asyncio.ensure_future(side())


async def opens_a_group_of_asyncio(side: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(side())


async def opens_a_group_of_anyio(side: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async with anyio.create_task_group() as outer:

        async def inner() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(side)

        outer.start_soon(inner)


@pytest.mark.parametrize("beside", [gathers, awaits_a_task, opens_a_group_of_asyncio, opens_a_group_of_anyio])
@pytest.mark.parametrize("handler", [signal.default_int_handler, raise_interrupt])
def test_ctrl_c_beside_a_task_goes_through_once(beside: Callable[..., Any], handler: Any) -> None:
    """In what the task has begun, it is raised where that runs, and again in the task that waits for it. Whoever runs
    the loop gets it by the one or by the other: the stop that follows must not be ended by the same Ctrl-C."""
    manager, _, _ = manager_with(at_once)

    async def side() -> None:
        in_a_call_that_waits()

    @manager.task(name="waits", persist=True)
    async def waits() -> None:
        await beside(side)

    loop = asyncio.new_event_loop()
    with handled_by(handler):
        loop.run_until_complete(manager.start())
        handle = waits.enqueue()
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(handle.result())
        loop.run_until_complete(manager.stop())
    assert handle.status == "INTERRUPTED"
    loop.close()


@pytest.mark.parametrize(("executor", "status"), [("thread", "COMPLETED"), ("process", "INTERRUPTED")])
def test_ctrl_c_in_our_wait_for_a_lane_goes_through(
    executor: Any, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs in a thread goes on, and nobody has stopped it; a child is told to end."""
    manager, _, _ = manager_with(at_once)
    job = manager.task(name="job", persist=True, executor=executor)(sleeps)
    wait = asyncio.shield if executor == "thread" else ProcessLane.run

    def interrupted(*args: Any) -> Any:
        monkeypatch.undo()
        at_once()
        return wait(*args)

    loop = asyncio.new_event_loop()
    with handled_by(signal.default_int_handler):
        loop.run_until_complete(manager.start())
        handle = job.enqueue()
        monkeypatch.setattr(*((asyncio, "shield") if executor == "thread" else (ProcessLane, "run")), interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(handle.result())
        loop.run_until_complete(manager.stop())
    loop.close()
    assert handle.status == status


def sleeps() -> None:
    threading.Event().wait(0.2)


@pytest.mark.parametrize("work", [raises_itself, exits])
def test_the_same_raised_by_a_task_is_its_own_end(work: Callable[[], None]) -> None:
    """Whatever user code raises ends that task and nothing else."""
    manager, once, _ = manager_with(work)
    loop = asyncio.new_event_loop()
    with handled_by(signal.default_int_handler):
        loop.run_until_complete(manager.start())
        result = loop.run_until_complete(once.enqueue().result())
        loop.run_until_complete(manager.stop())
    loop.close()
    assert result.err_value.error_code == "UNHANDLED_EXCEPTION"


def test_a_stop_whose_loop_cancels_every_task_takes_no_longer() -> None:
    """`asyncio.run` does that when Ctrl-C has torn it down, and the manager stops in the middle of it: what a task came
    to is written by a writer that was cancelled too, and is begun again."""
    manager, _, _ = manager_with(at_once)
    begun = asyncio.Event()

    @manager.task(name="waits", persist=True)
    async def waits() -> None:
        begun.set()
        await asyncio.Event().wait()

    def interrupt() -> NoReturn:
        raise KeyboardInterrupt

    async def main() -> None:
        async with manager:
            handle = waits.enqueue()
            await begun.wait()
            asyncio.get_running_loop().call_soon(interrupt)
            await handle

    began_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert time.monotonic() - began_s < 4
    assert manager.status().state == "stopped"
