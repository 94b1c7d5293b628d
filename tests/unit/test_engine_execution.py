"""Ctrl-C in the middle of a task, where no handler of a loop catches it."""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest

from taskmanager import TaskManager
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
