"""The lanes that are not the event loop: daemon threads of our own, and child processes.

Threads are daemons, so that a function which never returns cannot hold up the end of the process; they are ours alone,
so that the host's pools and ours never starve each other.
"""

import asyncio
import os
import queue
import threading
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any, NamedTuple

from taskmanager.engine.child import ChildCall, ChildReply


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
            raise CannotStart(f"no thread can be started: {exc}") from exc
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
    try:
        value = job.context.run(job.call)
    except BaseException as exc:  # SystemExit too: it ends the task, never the thread
        error = exc
    try:
        job.loop.call_soon_threadsafe(_deliver, job.future, value, error)
    except RuntimeError:
        return False  # the manager has stopped and recorded this attempt as interrupted
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
    """Child processes of `anyio.to_process`: spawned, reused, and killed one by one when their task must end."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._limiter: Any = None

    async def run(self, call: ChildCall) -> ChildReply:
        """Run one call in a child. Cancelling kills the child; `BrokenProcess` when it died by itself, `CannotStart`
        when there is none.
        """
        from anyio import BrokenWorkerProcess, CapacityLimiter, EndOfStream, to_process

        from taskmanager.engine import child

        if self._limiter is None:
            self._limiter = CapacityLimiter(self._limit)
        packed = child.packed_call(call)
        run = partial(to_process.run_sync, cancellable=True, limiter=self._limiter)
        try:
            reply = await run(child.run, os.getpid(), packed)
        except BrokenWorkerProcess as exc:
            # Whether it had come up at all when it ended: what it loads then (the main module) is code of the user.
            if isinstance(exc.__cause__, OSError | EndOfStream) and exc.args:
                raise CannotStart(f"no child process can be started: {exc} ({exc.__cause__!r})") from exc
            raise BrokenProcess("the child process died while it ran the task") from exc
        except (OSError, RuntimeError) as exc:  # what user code raises comes as a reply
            raise CannotStart(f"no child process can be started: {exc}") from exc
        return child.unpacked(reply)


class CannotStart(Exception):
    """The system gave no thread, or no child process: the code of the task has not begun."""


class BrokenProcess(Exception):
    """A child of the process lane died under its task."""
