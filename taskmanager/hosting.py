"""Hosting a manager: signals while `run` has the process, and a stop that ends whatever happens to its waiter.

A program that a signal has ended must not look like one that has done its work: `python crawl.py && publish`. So when
`run(main)` has stopped in order, the signal has the effect that it has without this library. Shells, systemd and
containers understand that. A worker only waits for a signal, so an orderly stop is the end of its work.
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from asyncio import _get_running_loop as _running_loop  # None outside of one, where get_running_loop() would raise
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import FrameType, TracebackType
from typing import Any, Final, NoReturn, TypeVar

from taskmanager.engine.words.loops import let_loop_close, result_here
from taskmanager.engine.words.outcome import Exit, value_in
from taskmanager.engine.words.settings import Settings
from taskmanager.lifecycle import CANCEL_GRACE_S
from taskmanager.model.errors import ConfigurationError, StoreError, StoreUnavailable, TaskManagerError, error_line
from taskmanager.model.gil import Lending
from taskmanager.model.logger import logger
from taskmanager.model.states import TaskStatus
from taskmanager.model.wording import counted
from taskmanager.stop import leave_unstopped
from taskmanager.store.place import LOOP_PATIENCE_S, Place

T = TypeVar("T")
Main = Callable[[], Coroutine[Any, Any, Any]]
Asked = list[signal.Signals]
"""The signals that have come so far. The first one says how the program ends."""
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
ENDED_BY: Final = 128
"""Plus the number of a signal: the exit status of a program that this signal has ended."""
CTRL_C_EXIT: Final = ENDED_BY + signal.SIGINT
THREAD: Final = "taskmanager"
BEGINS_S: Final = 1.0
"""How long to wait for the first line of a thread when it is not known whether it was started."""


def run_hosted(
    started: AbstractAsyncContextManager[object],
    cut_short: Callable[[], None],
    mains: tuple[Main, ...],
    settings: Settings,
) -> Any:
    """Do `manager.run`. Raises what `main` raises, `TypeError` for what is no function, and `ConfigurationError` if a
    loop runs already.
    """
    if len(mains) > 1 or not all(callable(main) for main in mains):
        given = ", ".join(repr(main) for main in mains)
        for each in mains:
            if asyncio.iscoroutine(each):
                each.close()  # or Python would warn that nobody awaited it
        raise TypeError(f"run takes one async function, not called: manager.run(main), not {given}")
    if _running_loop() is not None:
        raise ConfigurationError("run() has an event loop of its own; where one runs use `async with manager:`")
    asked: Asked = []
    main: Main | None = mains[0] if mains else None
    try:
        answer = hosted(started, cut_short, main, asked, settings.drain_timeout_s)
    except StoreUnavailable as exc:
        if main is not None:
            raise  # its own, and its author needs the frames
        logger.error("%s", error_line(exc))
        raise SystemExit(1) from exc
    if asked:
        _say_what_waits(asked[0], waiting_in(settings.place))
        _end(asked[0], is_worker=main is None)
    return answer


def hosted(
    started: AbstractAsyncContextManager[object],
    cut_short: Callable[[], None],
    main: Main | None,
    asked: Asked,
    patience_s: float,
) -> Any:
    """Run `main`, or wait, in a new loop, until the stop has ended. Add the signals that come to `asked`.

    Then put the earlier handlers back. If SIGTERM would kill the program, it gets a handler instead, with which a
    further SIGTERM does not change how the program ends.
    """
    with _handlers_kept(asked) as handlers:
        answer = asyncio.run(host(started, cut_short, main, asked, patience_s))
        is_worker = main is None
        if asked and (is_worker or asked[0] == signal.SIGINT) and handlers.get(signal.SIGTERM) == signal.SIG_DFL:
            handlers[signal.SIGTERM] = _Again(asked[0], is_worker=is_worker)
    return answer


async def host(
    started: AbstractAsyncContextManager[object],
    cut_short: Callable[[], None],
    main: Main | None,
    asked: Asked,
    patience_s: float,
) -> Any:
    """Run `main`, or wait, inside `started`, until it ends or a signal comes; a second signal calls `cut_short`.

    After a cancellation `main` may take `patience_s` seconds, or until a second signal. Then it is left behind. Raises
    what `main` raises, whatever the stop has met. Without a `main`, raises the `StoreUnavailable` of the stop.
    """
    loop, signalled, hurried = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        asked.append(number)
        if signalled.is_set():
            hurried.set()
            cut_short()
        else:
            logger.info("stopping after %s: %g s for what runs; a second signal cuts it short", number.name, patience_s)
        signalled.set()

    has_started, ended, unwritten = False, None, None
    with _signals(loop, on_signal):
        if asked:  # a signal came before the loop could hear it
            signalled.set()
        try:
            async with started:
                has_started = True
                ended = await _until_over(main, signalled, hurried, max(patience_s, CANCEL_GRACE_S), cut_short)
        except asyncio.CancelledError:
            if has_started or not signalled.is_set():
                raise
            return None  # the second signal came while the start waited for the file
        except Exception as exc:
            if not has_started and isinstance(exc, TaskManagerError):
                raise SystemExit(error_line(exc)) from exc  # alone: the frames of a start say nothing to its user
            if not has_started or not _gives_way(exc, main, ended):
                raise
            unwritten = exc
    answer = None if ended is None else value_in(ended.result())
    if unwritten is not None:
        raise SystemExit(1) from unwritten
    return answer


async def _until_over(
    main: Main | None,
    signalled: asyncio.Event,
    hurried: asyncio.Event,
    patience_s: float,
    cut_short: Callable[[], None],
) -> "asyncio.Task[Any] | None":
    """Run `main`, or wait, until it ends or a signal comes. Return the task of `main` when it has ended by itself."""
    work = asyncio.get_running_loop().create_task(signalled.wait() if main is None else _run(main))
    await _either(work, signalled)
    if not work.done():
        await _cancel(work, hurried, patience_s, cut_short)
    is_left_behind, is_ended_by_signal = not work.done(), signalled.is_set() and work.cancelled()
    return None if main is None or is_left_behind or is_ended_by_signal else work


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


def _gives_way(exc: Exception, main: Main | None, ended: "asyncio.Task[Any] | None") -> bool:
    """Log what the stop has met, and return True, if `main` says more of how the program ends."""
    if main is not None and isinstance(exc, StoreUnavailable):
        logger.error("%s", error_line(exc))
        return True
    has_failed = ended is not None and (
        ended.cancelled() or ended.exception() is not None or isinstance(ended.result(), Exit)
    )
    if has_failed:
        logger.error("the stop has failed", exc_info=exc)
    return has_failed


async def _either(work: "asyncio.Task[Any]", event: asyncio.Event) -> None:
    """Wait until `work` is done or `event` is set."""
    waiting = asyncio.get_running_loop().create_task(event.wait())
    try:
        await asyncio.wait([work, waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


async def _run(main: Main) -> Any:
    """Run `main`, and return its `sys.exit()` as a value. Raised by a task it would break the loop before the stop."""
    work = main()
    if not asyncio.iscoroutine(work):
        raise TypeError(f"run takes an async function, and {main!r} is none: it returned {work!r}")
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as exc:
        return Exit(exc)


@contextlib.contextmanager
def _handlers_kept(asked: Asked) -> Iterator[dict[signal.Signals, Any]]:
    """Add signals to `asked` while the loop does not hear them yet, or any more. Yield the earlier handlers.

    At the end the yielded handlers are installed, with the changes that the block has made.
    """
    before: dict[signal.Signals, Any] = {}
    if sys.platform != "win32" and threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if handler is None:  # not installed from Python: it could not be put back
                continue
            # A handler that an earlier run has left belongs to that run only.
            before[number] = signal.SIG_DFL if isinstance(handler, _Again) else handler
            signal.signal(number, lambda number, frame: asked.append(signal.Signals(number)))
    try:
        yield before
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop, on_signal: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Let SIGTERM and SIGINT call `on_signal` while the block runs. Put the earlier handlers back afterwards."""
    installed: dict[signal.Signals, Any] = {}
    for number in SIGNALS:
        before = signal.getsignal(number)
        # Windows has none, nor has a thread that is not the main one: the host's own way of stopping is left as it is.
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            if before is not None:  # as above
                loop.add_signal_handler(number, on_signal, number)
                installed[number] = before
    try:
        yield
    finally:
        if installed:
            held = signal.pthread_sigmask(signal.SIG_BLOCK, installed)  # in between they have the default, which kills
            try:
                for number, before in installed.items():
                    loop.remove_signal_handler(number)
                    signal.signal(number, before)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, held)


# In a thread of its own.


class InThread(AbstractContextManager[T]):
    """Keeps `started` in a new loop, in a thread of its own, while the block runs. The block is given `given`.

    What the start or the stop raises is raised here. A program that ends inside of the block is stopped as one that
    ends without a stop: the thread does not keep it. A forked child has no such thread, and may leave the block.

    This is no generator: one that is collected at the end of the program would wait for a thread that has ended.
    """

    def __init__(self, given: T, started: AbstractAsyncContextManager[object], cut_short: Callable[[], None]) -> None:
        self._given, self._started, self._cut_short = given, started, cut_short
        self._up: Future[None] = Future()
        self._over: Future[None] = Future()
        self._leaving = asyncio.Event()
        self._has_begun = threading.Event()
        self._thread = threading.Thread(target=self._host, name=THREAD, daemon=True)

    def __enter__(self) -> T:
        if _running_loop() is not None:
            raise ConfigurationError("in_thread() would block this event loop; use `async with manager:` here")
        self._pid, self._loop = os.getpid(), asyncio.new_event_loop()
        try:
            self._thread.start()
            result_here(self._up)
        except BaseException:  # Ctrl-C, if neither has failed
            if self._has_begun.wait(BEGINS_S):
                self._leave_and_wait()
            raise
        return self._given

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None, /
    ) -> None:
        if os.getpid() == self._pid:
            self._leave_and_wait()

    def _leave_and_wait(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended by itself, and `_over` says why
            self._loop.call_soon_threadsafe(self._leave)
        result_here(self._over)

    def _leave(self) -> None:
        self._leaving.set()
        if not self._up.done():  # the start may wait for the file
            self._cut_short()

    def _host(self) -> None:
        self._has_begun.set()
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._until_left())
            self._over.set_result(None)
        except (Exception, SystemExit, KeyboardInterrupt) as exc:  # raised where the thread was asked for
            if not isinstance(exc, Exception):  # of a task that code of the application has made
                logger.critical("the manager has stopped: its event loop was ended by %r", exc, exc_info=exc)
            if not self._up.done():
                self._up.set_exception(exc)
            self._over.set_exception(exc)
        finally:  # whatever ends this thread, nobody waits for it any more
            self._up.cancel()
            self._over.cancel()

    async def _until_left(self) -> None:
        # The threads of the application have no loop of their own. Beside a busy one of ours they get their share.
        Lending.fairly(lambda: not self._over.done()).begin(self._loop)
        try:
            async with self._started:
                self._up.set_result(None)
                await self._leaving.wait()
        except asyncio.CancelledError:
            if self._up.done():
                raise


# How the program ends.


def _end(number: signal.Signals, *, is_worker: bool) -> None:
    """End the program as the first signal demands. Return only for a worker that SIGTERM has ended."""
    if is_worker:
        if number == signal.SIGINT:
            raise SystemExit(CTRL_C_EXIT)
        return
    if number == signal.SIGINT:
        if signal.getsignal(number) not in (signal.default_int_handler, signal.SIG_DFL):
            signal.raise_signal(number)
        raise KeyboardInterrupt
    with contextlib.suppress(OSError, ValueError, AttributeError):  # it is closed, None, or without a reader
        sys.stdout.flush()
    leave_unstopped()  # a program that dies of a signal runs no exit hooks
    signal.raise_signal(number)
    raise SystemExit(ENDED_BY + number)  # the first process of a container, or one that ignores the signal, lives on


class _Again:
    """The handler of SIGTERM while the program ends. A repeated signal does not change how the program ends.

    A worker that has stopped in order must not be killed by a second signal: a supervisor would report a failure.
    """

    def __init__(self, first: signal.Signals, *, is_worker: bool) -> None:
        self._first = first
        self._is_worker = is_worker

    def __call__(self, number: int, frame: FrameType | None) -> NoReturn:
        if self._is_worker:
            raise SystemExit(CTRL_C_EXIT if self._first == signal.SIGINT else 0)
        raise KeyboardInterrupt


def waiting_in(place: Place | None) -> int | None:
    """Return how many tasks wait in the database, or None if it cannot be read."""
    if place is None:
        return 0
    from taskmanager.store.sql.queries import counts

    try:
        with place.read(patience_s=LOOP_PATIENCE_S) as connection:
            by_status = counts(connection)
    except StoreError:
        return None
    return by_status[TaskStatus.PENDING] + by_status[TaskStatus.CLAIMED]


def _say_what_waits(number: signal.Signals, waiting: int | None) -> None:
    if waiting:
        wait = "waits" if waiting == 1 else "wait"
        logger.warning("stopped after %s; %s %s for the next start", number.name, counted(waiting, "task"), wait)
    else:
        logger.info("stopped after %s; %s", number.name, "nothing waits" if waiting == 0 else "the file cannot be read")
