"""Hosting a manager: signals while `run` has the process, and a stop that ends whatever happens to its waiter."""

import asyncio
import contextlib
import logging
import signal
from asyncio import _get_running_loop as _running_loop  # None outside of one, where get_running_loop() would raise
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

from taskmanager.model.errors import ConfigurationError, StoreUnavailable

logger = logging.getLogger("taskmanager")

Main = Callable[[], Coroutine[Any, Any, Any]]


async def shielded(work: Coroutine[Any, Any, None]) -> None:
    """Let `work` end whatever happens to the waiter, then let the cancellation through."""
    task = asyncio.get_running_loop().create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as exc:
            cancelled = exc
    task.result()
    if cancelled is not None:
        raise cancelled


def run_hosted(
    started: AbstractAsyncContextManager[object], cut_short: Callable[[], None], mains: tuple[Main, ...]
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
        return asyncio.run(host(started, cut_short, *(mains or (None,))))
    except StoreUnavailable as exc:
        logger.error("%s", exc)
        raise SystemExit(1) from exc


async def host(started: AbstractAsyncContextManager[object], cut_short: Callable[[], None], main: Main | None) -> Any:
    """Run `main`, or wait, inside `started`, until it ends or a signal comes; a second signal calls `cut_short`."""
    loop = asyncio.get_running_loop()
    signalled = asyncio.Event()

    def on_signal() -> None:
        if signalled.is_set():
            cut_short()
        signalled.set()

    has_started = False
    with _signals(loop, on_signal):
        try:
            async with started:
                has_started = True
                return await _until(signalled, main)
        except asyncio.CancelledError:
            if has_started or not signalled.is_set():
                raise
            return None  # the second signal came while the start waited for the file


async def _until(signalled: asyncio.Event, main: Main | None) -> Any:
    """What `main` returns; None when the signal came first, after `main` was cancelled."""
    loop = asyncio.get_running_loop()
    work = loop.create_task(signalled.wait() if main is None else _begun(main))
    waiting = loop.create_task(signalled.wait())
    await asyncio.wait([work, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not work.done():
        work.cancel()
        await asyncio.wait([work])
    return None if main is None or work.cancelled() else work.result()


def _begun(main: Main) -> Coroutine[Any, Any, Any]:
    work = main()
    if not asyncio.iscoroutine(work):
        raise TypeError(f"run takes an async function, and {main!r} is none: it returned {work!r}")
    return work


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop, on_signal: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT call `on_signal` while the block runs; the host's handlers come back afterwards."""
    installed = []
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            before = signal.getsignal(number)
            loop.add_signal_handler(number, on_signal)
            installed.append((number, before))
        except (NotImplementedError, RuntimeError, ValueError):
            # Windows, or not the main thread: the host's own way of stopping is left as it is.
            continue
    try:
        yield
    finally:
        for number, before in installed:
            loop.remove_signal_handler(number)
            signal.signal(number, before)
