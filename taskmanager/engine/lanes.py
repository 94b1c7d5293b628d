"""The lanes that are not the event loop: daemon threads of our own, and child processes.

Threads are daemons, so that a function which never returns cannot hold up the end of the process; they are ours alone,
so that the host's pools and ours never starve each other.
"""

import asyncio
import os
import queue
import sys
import threading
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final, NamedTuple

from taskmanager.engine.child import ChildCall, ChildReply, PackedReply
from taskmanager.engine.copies import end_if_copy
from taskmanager.engine.loops import let_loop_close

CLOSE_PATIENCE_S: Final = 0.5
FORGOTTEN_AFTER_S: Final = 240.0
"""The pool ends children that had nothing to do for five minutes, and says so to nobody."""


class _Job(NamedTuple):
    call: Callable[[], Any]
    context: Context
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"


class ThreadLane:
    """Threads that are started as they are needed and kept; a thread that hangs is replaced while it does."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._idle = 0
        self._thread_count = 0
        self._lock = threading.Lock()
        self.on_outlived: Callable[[], None] | None = None
        """Called in a thread whose job ended after its loop was closed."""

    def submit(self, call: Callable[[], Any], context: Context) -> "asyncio.Future[Any]":
        """Run `call` in a thread. The future gets its value or exception; cancelling it does not stop the thread.

        Raises `CannotStart` where the system gives no thread for it.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self._start_thread()
        self._jobs.put(_Job(call, context, loop, future))
        return future

    def _start_thread(self) -> None:
        name = f"taskmanager-thread-{self._thread_count + 1}"
        try:
            threading.Thread(target=self._work, name=name, daemon=True).start()
        except RuntimeError as exc:
            raise CannotStart(f"no thread can be started: {_words(exc)}") from exc
        self._thread_count += 1

    def close(self) -> None:
        """Let idle threads end; busy ones end after their job."""
        with self._lock:
            for _ in range(self._thread_count):
                self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if not _run(job) and self.on_outlived is not None:
                self.on_outlived()
            del job  # or the thread would keep the last task's arguments alive while it waits
            with self._lock:
                self._idle += 1

    def __repr__(self) -> str:
        return f"<ThreadLane {self._thread_count} threads, {self._idle} idle>"


def _run(job: _Job) -> bool:
    """Run it and deliver its outcome; False when its loop is closed and nobody can be told."""
    value: Any = None
    error: BaseException | None = None
    pid = os.getpid()
    try:
        value = job.context.run(job.call)
    except BaseException as exc:  # SystemExit too: it ends the task, never the thread
        error = exc
    end_if_copy(pid, error)
    try:
        job.loop.call_soon_threadsafe(_deliver, job.future, value, error)
    except RuntimeError:
        return False  # the manager has stopped and recorded this attempt as interrupted
    finally:
        del error, job  # the exception has this frame among its own, and would be held by that
    return True


def _deliver(future: "asyncio.Future[Any]", value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    elif issubclass(type(error), StopIteration):  # a future refuses it
        wrapped = RuntimeError("the task raised StopIteration")
        wrapped.__cause__ = error
        future.set_exception(wrapped)
    else:
        future.set_exception(error)


class ProcessLane:
    """Child processes of `anyio.to_process`: spawned, reused, and killed one by one when their task must end.

    A task that is cancelled while its child comes up would leave that behind, known to nobody, for as long as this
    process lives. So a child comes up by itself, and whoever wanted it may go.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._limiter: Any = None
        self._coming: set[asyncio.Task[None]] = set()
        self._seen: set[int] = set()
        self._live_count = self._busy_count = 0
        self._used_at = 0.0

    def __repr__(self) -> str:
        return f"<ProcessLane {self._live_count} children, {self._busy_count} busy, {len(self._coming)} coming up>"

    async def run(self, call: ChildCall, on_child: Callable[[], None]) -> ChildReply:
        """Run one call in a child, and say so when there is one for it. Cancelling kills the child; `BrokenProcess`
        when it died by itself, `CannotStart` when there is none.
        """
        from taskmanager.engine import child

        packed = child.packed_call(call)
        for _ in range(2):  # another task may have been faster to take the first child that came up
            if not self._has_idle():
                await self._come_up()
        on_child()
        self._busy_count += 1
        try:
            reply: PackedReply = await self._ask(child.run, os.getpid(), packed, is_task=True)
        except BaseException:
            self._live_count = max(0, self._live_count - 1)
            raise
        finally:
            self._busy_count -= 1
            self._used_at = asyncio.get_running_loop().time()
        return child.unpacked(reply)

    async def close(self, patience_s: float) -> None:
        """Wait a moment for children that come up: the end of the loop kills those that the pool knows."""
        if self._coming:
            await asyncio.wait(self._coming, timeout=min(patience_s, CLOSE_PATIENCE_S))

    @property
    def is_coming_up(self) -> bool:
        """Whether it is not known yet of some child if there will be one."""
        return bool(self._coming)

    def _has_idle(self) -> bool:
        if asyncio.get_running_loop().time() - self._used_at > FORGOTTEN_AFTER_S:
            self._live_count = self._busy_count
            self._seen.clear()
        return self._live_count > self._busy_count

    async def _come_up(self) -> None:
        coming = asyncio.get_running_loop().create_task(self._begin_child(), name="taskmanager-child")
        # `asyncio.run` cancels every task it knows and waits for it; a subprocess that is cancelled while it is made
        # may never end (CPython before 3.12.4). The child ends by itself: its standard input is closed with the loop.
        let_loop_close(coming)
        self._coming.add(coming)
        coming.add_done_callback(self._came_up)
        await asyncio.shield(coming)

    async def _begin_child(self) -> None:
        from taskmanager.engine import child

        pid = await self._ask(child.come_up, os.getpid(), is_task=False)
        self._used_at = asyncio.get_running_loop().time()
        if pid not in self._seen:
            self._seen.add(pid)
            self._live_count += 1

    def _came_up(self, coming: "asyncio.Task[None]") -> None:
        self._coming.discard(coming)
        if not coming.cancelled():
            coming.exception()  # whoever waited for it has it, or has gone

    async def _ask(self, call: Callable[..., Any], *args: Any, is_task: bool) -> Any:
        from anyio import BrokenWorkerProcess, CapacityLimiter, to_process

        if self._limiter is None:
            self._limiter = CapacityLimiter(self._limit)
        try:
            return await to_process.run_sync(call, *args, cancellable=is_task, limiter=self._limiter)
        except (BrokenWorkerProcess, ProcessLookupError) as exc:
            if is_task:
                raise BrokenProcess("the child process died while it ran the task") from exc
            # It was gone before it could be killed, or anyio says what ended it.
            cause = exc if isinstance(exc, ProcessLookupError) else exc.__cause__
            if _is_of_main(cause):
                raise BrokenProcess(_why_main_failed(cause)) from exc
            raise CannotStart(_why_none_came_up(cause)) from exc
        except (OSError, RuntimeError) as exc:  # what user code raises comes as a reply
            raise CannotStart(f"no child process can be started: {_words(exc)}") from exc


def _why_none_came_up(cause: BaseException | None) -> str:
    return (
        f"a child process ended while it came up ({type(cause).__name__}): the main module of the program, which it "
        "reads, must not exit outside of `if __name__ == '__main__':`"
    )


def _why_main_failed(cause: BaseException | None) -> str:
    path = getattr(sys.modules["__main__"], "__file__", "the main module of the program")
    return (
        f"{path} cannot be loaded in a child process ({type(cause).__name__}: {cause}): what the program does when it "
        "is started must stand below `if __name__ == '__main__':` there. A server may have a command of its own, to be "
        "used instead of `python -m ...`"
    )


def _words(exc: BaseException) -> str:
    """An exception of the system may have a name and no text."""
    return f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__


def _is_of_main(cause: BaseException | None) -> bool:
    """Whether a child came up, and the main module of the program raised in it: no next try would help.

    Unless it was Ctrl-C, which a child hears until the main module is read.
    """
    from anyio import BrokenResourceError, ClosedResourceError, EndOfStream, IncompleteRead

    system = (OSError, KeyboardInterrupt, EndOfStream, IncompleteRead, BrokenResourceError, ClosedResourceError)
    return cause is not None and not isinstance(cause, system)


class CannotStart(Exception):
    """The system gave no thread, or no child process: the code of the task has not begun."""


class BrokenProcess(Exception):
    """A child of the process lane died under its task."""
