"""Hosting a manager: signals while `run` has the process, and a stop that ends whatever happens to its waiter."""

import asyncio
import contextlib
import signal
from asyncio import _get_running_loop as _running_loop  # None outside of one, where get_running_loop() would raise
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from taskmanager.engine.lifecycle import CANCEL_GRACE_S
from taskmanager.engine.loops import let_loop_close
from taskmanager.model.errors import ConfigurationError, StoreUnavailable, TaskManagerError, error_line
from taskmanager.model.logger import logger

Main = Callable[[], Coroutine[Any, Any, Any]]


def run_hosted(
    started: AbstractAsyncContextManager[object],
    cut_short: Callable[[], None],
    mains: tuple[Main, ...],
    patience_s: float,
) -> Any:
    """`manager.run`. Raises `TypeError` for what is no function, and `ConfigurationError` where a loop runs already."""
    if len(mains) > 1 or not all(callable(main) for main in mains):
        given = ", ".join(repr(main) for main in mains)
        for main in mains:
            if asyncio.iscoroutine(main):
                main.close()  # or Python would warn that nobody awaited it
        raise TypeError(f"run takes one async function, not called: manager.run(main), not {given}")
    if _running_loop() is not None:
        raise ConfigurationError("run() has an event loop of its own; where one runs use `async with manager:`")
    try:
        return asyncio.run(host(started, cut_short, *(mains or (None,)), patience_s=patience_s))
    except StoreUnavailable as exc:
        logger.error("%s", exc)
        raise SystemExit(1) from exc


async def host(
    started: AbstractAsyncContextManager[object],
    cut_short: Callable[[], None],
    main: Main | None,
    *,
    patience_s: float,
) -> Any:
    """Run `main`, or wait, inside `started`, until it ends or a signal comes; a second signal calls `cut_short`.

    A `main` that was cancelled has `patience_s` seconds, or until the second signal, and is left behind then.
    """
    loop = asyncio.get_running_loop()
    signalled, hurried = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        if signalled.is_set():
            hurried.set()
            cut_short()
        signalled.set()

    has_started = False
    with _signals(loop, on_signal, signalled):
        try:
            async with started:
                has_started = True
                work = loop.create_task(signalled.wait() if main is None else _run(main))
                await _either(work, signalled)
                if not work.done():
                    await _cancel(work, hurried, max(patience_s, CANCEL_GRACE_S), cut_short)
                return None if main is None else _answer(work, was_asked=signalled.is_set())
        except asyncio.CancelledError:
            if has_started or not signalled.is_set():
                raise
            return None  # the second signal came while the start waited for the file
        except TaskManagerError as exc:
            if has_started:
                raise
            raise SystemExit(error_line(exc)) from exc  # the line alone: the frames of a start say nothing to its user


async def _cancel(
    work: "asyncio.Task[Any]", hurried: asyncio.Event, patience_s: float, cut_short: Callable[[], None]
) -> None:
    """Cancel `main`, and leave it behind when it does not end in time."""
    work.cancel()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience_s):
            await _either(work, hurried)
    if not work.done():
        logger.warning("main() goes on though it was cancelled; the manager stops without waiting for it")
        cut_short()
        let_loop_close(work)


def _answer(work: "asyncio.Task[Any]", *, was_asked: bool) -> Any:
    """What `main` returned; None when it was asked to end by a signal and was cancelled, or was left behind."""
    if not work.done() or (was_asked and work.cancelled()):
        return None
    found = work.result()
    if isinstance(found, _Exit):
        raise found.exc
    return found


async def _either(work: "asyncio.Task[Any]", event: asyncio.Event) -> None:
    """Wait until `work` is done or `event` is set."""
    waiting = asyncio.get_running_loop().create_task(event.wait())
    try:
        await asyncio.wait([work, waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


class _Exit(NamedTuple):
    """`main` asked for the end of the process."""

    exc: SystemExit | KeyboardInterrupt


async def _run(main: Main) -> Any:
    """`main`, whose `sys.exit()` waits for the stop: out of a task it would tear the loop, and fail all that runs."""
    work = main()
    if not asyncio.iscoroutine(work):
        raise TypeError(f"run takes an async function, and {main!r} is none: it returned {work!r}")
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as exc:
        return _Exit(exc)


@contextlib.contextmanager
def _signals(
    loop: asyncio.AbstractEventLoop, on_signal: Callable[[], None], was_asked: asyncio.Event
) -> Iterator[None]:
    """SIGTERM and SIGINT call `on_signal` while the block runs; the host's handlers come back afterwards.

    Who was asked to end, and has stopped in order, is not killed by being asked again on the way out of the process: a
    supervisor would read that as a failure.
    """
    installed: list[tuple[signal.Signals, Any]] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            before = signal.getsignal(number)
            if before is _exit_in_order:  # left by an earlier run, and true of that one only
                before = signal.SIG_DFL
            loop.add_signal_handler(number, on_signal)
            installed.append((number, before))
        except (NotImplementedError, RuntimeError, ValueError):
            # Windows, or not the main thread: the host's own way of stopping is left as it is.
            continue
    is_in_order = False
    try:
        yield
        is_in_order = was_asked.is_set()
    finally:
        with _held_back([number for number, _ in installed]):  # in between they have the default, which kills
            for number, before in installed:
                loop.remove_signal_handler(number)
                ends = is_in_order and number == signal.SIGTERM and before == signal.SIG_DFL
                signal.signal(number, _exit_in_order if ends else before)


@contextlib.contextmanager
def _held_back(numbers: list[signal.Signals]) -> Iterator[None]:
    """Signals that come meanwhile are delivered afterwards."""
    if not numbers or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _exit_in_order(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)
