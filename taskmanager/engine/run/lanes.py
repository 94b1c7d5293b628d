"""The lanes that are not the event loop: daemon threads of our own, and child processes.

The threads are daemons, so that a function that never returns cannot hold up the end of the process. They belong to the
library alone, so that its tasks and the pools of the application never starve each other.

The system may give a lane no further thread, or child process. A task whose code could not begin has not failed: it
waits until something in its lane has ended. Whether the system gives more again is tried with one task, ever more
seldom, and with more tasks once that one has begun. So the log has one line for the shortage and one for its end,
however long it lasts.
"""

import asyncio
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from taskmanager.engine.choose.dispatch import Dispatcher
from taskmanager.engine.run.child import ChildCall, ChildReply, Heard, Levels, end_if_copy, framed_call, unpacked
from taskmanager.engine.words.loops import Host, let_loop_close
from taskmanager.engine.words.outcome import Outcome, words_of
from taskmanager.model.gil import Lending
from taskmanager.model.logger import logger
from taskmanager.model.states import Lane

if TYPE_CHECKING:
    from taskmanager.engine.run.child_link import Child

CLOSE_PATIENCE_S: Final = 0.5
IDLE_S: Final = 300.0
"""A child that has been idle for this long is ended when another one becomes idle."""
RISE_S: Final = 120.0
"""How long a child may take to load the main module. One that hangs there would keep its place for ever."""
TRIES: Final = 3
"""How many dead children one task may meet before it is said that none can start."""
NOTHING_PASSES: Final = 1 << 30
"""The level that a child uses for a logger that is disabled in the parent."""
FIRST_RETRY_S: Final = 0.5
LAST_RETRY_S: Final = 30.0
"""How long a lane that is short waits before it tries to start one more."""


class Ended(NamedTuple):
    """The end of a call. An error is a value here: a future calls its code, and treats some exceptions as its own."""

    value: Any = None
    error: BaseException | None = None


class ThreadLane:
    """Threads that are started when they are needed, and kept. While a thread hangs, another one replaces it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle = 0
        self._thread_count = 0
        self._lock = threading.Lock()
        self._on_outlived: Callable[[], None] | None = None
        self._executing: set[asyncio.Future[Ended]] = set()
        """The futures of jobs whose code has not ended."""
        self._lending = Lending.fairly(self._executing.__len__)

    def submit(self, call: Callable[[], Any], context: Context) -> "asyncio.Future[Ended]":
        """Run `call` in a thread. The future gets its end. Cancelling the future does not stop the thread.

        Raises `CannotStart` if the system gives no thread for it.
        """
        future: asyncio.Future[Ended] = self._loop.create_future()
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self._start_thread()
            self._executing.add(future)
        self._jobs.put(partial(self._do, call, context, future))
        self._lending.begin(self._loop)
        return future

    def _start_thread(self) -> None:
        name = f"taskmanager-thread-{self._thread_count + 1}"
        try:
            threading.Thread(target=self._work, name=name, daemon=True).start()
        except RuntimeError as exc:
            raise CannotStart(f"no thread can be started: {words_of(exc)}") from exc
        self._thread_count += 1

    def close(self) -> None:
        """Let idle threads end; busy ones end after their job."""
        with self._lock:
            for _ in range(self._thread_count):
                self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # or the thread would keep the last task's arguments alive while it waits
            with self._lock:
                self._idle += 1

    def _do(self, call: Callable[[], Any], context: Context, future: "asyncio.Future[Ended]") -> None:
        pid = os.getpid()
        try:
            ended = Ended(context.run(call))
        except BaseException as exc:  # SystemExit too: it ends the task, never the thread
            ended = Ended(error=exc)
        end_if_copy(pid, ended.error)
        with self._lock:  # first of all: the loop may be closed before it hears of the end
            self._executing.discard(future)
            on_outlived = self._on_outlived
        try:
            self._loop.call_soon_threadsafe(_deliver, future, ended)
        except RuntimeError:  # the manager has stopped and recorded this attempt as interrupted
            if on_outlived is not None:
                on_outlived()
        finally:
            del ended, call, context, future  # the exception refers to this frame, which must not hold it

    def outlive(self, on_outlived: Callable[[], None]) -> "frozenset[asyncio.Future[Ended]]":
        """Return the futures of running code. A thread calls `on_outlived` at its end if its loop is closed by then."""
        with self._lock:
            self._on_outlived = on_outlived
            return frozenset(self._executing)

    @property
    def is_executing(self) -> bool:
        """Whether a thread runs code of a task."""
        with self._lock:
            return bool(self._executing)

    def __repr__(self) -> str:
        return f"<ThreadLane {self._thread_count} threads, {self._idle} idle>"


def _deliver(future: "asyncio.Future[Any]", ended: Ended) -> None:
    if not future.done():
        future.set_result(ended)


class ProcessLane:
    """Child processes of our own: spawned, reused, and killed one by one when their task must end.

    A task may be cancelled while its child is starting. The child would then be left behind, unknown, for as long as
    this process lives. So a child is started by a task of its own, and the one that wanted it may go.
    """

    def __init__(self, limit: int, host: Host) -> None:
        self._limit = limit
        self._host = host
        self._children: set[Child] = set()
        """The children that live, and are not being killed."""
        self._idle: list[Child] = []
        self._coming: set[asyncio.Task[None]] = set()
        self._rising: set[Child] = set()
        """The children that are loading the main module."""
        self._wanted_count = 0
        """How many tasks wait for a child."""
        self._refusals: list[Exception] = []
        """Why children did not come up, for as many of these tasks."""
        self._changed = asyncio.Event()
        """Replaced by another one when it is set: when there may be a child, room for one, or a refusal."""
        self._is_closed = False
        self.is_ending = False
        """Whether `close` waits for children to end."""

    def __repr__(self) -> str:
        return f"<ProcessLane {len(self._children)} children, {len(self._idle)} idle, {len(self._coming)} coming up>"

    async def run(self, call: ChildCall, on_child: Callable[[], None], heard: Heard) -> ChildReply:
        """Run one call in a child. `on_child` is called when there is a child for it, and `heard` gets its reports.

        Cancelling kills the child. Raises `BrokenProcess` when it died by itself, `CannotStart` when there is none.
        """
        from taskmanager.engine.run.child_link import Died

        framed, context = framed_call(call, _levels()), copy_context()
        why = ""
        for _ in range(TRIES):
            found = await self._child()
            on_child()
            try:
                reply = await found.ask(framed, lambda news: context.run(heard, news))
            except Died as exc:
                if exc.has_begun:
                    raise BrokenProcess(f"the child process died while it ran the task: {exc}", exc.tail) from None
                why = str(exc)  # it died while it was idle, which is noticed only now
            except BaseException:
                self._forget(found)
                raise
            else:
                self._has_idle(found)
                return unpacked(reply)
        raise CannotStart(f"child processes die before they take a task: {why}")

    async def close(self, patience_s: float) -> None:
        """Let children end in order, and kill those that do not. Wait a moment for children that are starting."""
        self._is_closed = True
        for each in self._rising:
            each.kill()
        if self._coming:
            await asyncio.wait(self._coming, timeout=min(patience_s, CLOSE_PATIENCE_S))
        children, self._idle = list(self._children), []
        if not children:
            return
        self.is_ending = True
        for each in children:
            await each.dismiss()
        gone = [asyncio.ensure_future(each.gone.wait()) for each in children]
        await asyncio.wait(gone, timeout=min(patience_s, CLOSE_PATIENCE_S))
        for each in children:
            each.kill()
        await asyncio.wait(gone, timeout=CLOSE_PATIENCE_S)
        self.is_ending = False

    @property
    def is_coming_up(self) -> bool:
        """Whether a child is starting, so that nobody knows yet if it will come up."""
        return bool(self._coming)

    async def _child(self) -> "Child":
        self._wanted_count += 1
        try:
            while not self._idle:
                if self._refusals:
                    raise self._refusals.pop(0)
                self._bring_up_wanted()
                await self._changed.wait()
        finally:
            self._wanted_count -= 1
            del self._refusals[self._wanted_count :]  # nobody is left to hear of them
        return self._idle.pop()  # the one used last, so that the others may grow old

    def _tell_changed(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _has_idle(self, child: "Child") -> None:
        if child not in self._children:
            return
        now_s = child.idle_since_s = asyncio.get_running_loop().time()
        self._idle.append(child)
        while now_s - self._idle[0].idle_since_s > IDLE_S:
            old = self._idle.pop(0)
            self._forget(old)
            self._host.spawn(old.dismiss, f"child {old.pid}")
        self._tell_changed()

    def _has_none(self, why: Exception) -> None:
        if len(self._refusals) < self._wanted_count:
            self._refusals.append(why)

    def _forget(self, child: "Child") -> None:
        """Forget a child that is gone or ending. Another one may take its place."""
        self._children.discard(child)
        if child in self._idle:
            self._idle.remove(child)
        self._tell_changed()

    def _bring_up_wanted(self) -> None:
        most = min(self._wanted_count, self._limit - len(self._children))
        while not self._is_closed and len(self._coming) < most:
            coming = asyncio.get_running_loop().create_task(self._come_up(), name="taskmanager-child")
            # `asyncio.run` cancels every task it knows and waits for it; a subprocess that is cancelled while it is
            # made may never end (CPython before 3.12.4). The child ends by itself: its channel is closed with the loop.
            let_loop_close(coming)
            self._coming.add(coming)
            coming.add_done_callback(self._came_up)

    async def _come_up(self) -> None:
        from taskmanager.engine.run.child_link import Died, spawned

        child, loop = None, asyncio.get_running_loop()
        until_s, timer = loop.time() + RISE_S, None
        try:
            child = await spawned(self._host, self._forget)
            self._rising.add(child)
            if self._is_closed:
                child.kill()
            timer = loop.call_at(until_s, child.kill)
            failed = unpacked(await child.load_main())
        except Died as exc:
            last_line = exc.tail.rpartition("\n")[2]
            why = _why_none_came_up(f"{exc}: {last_line}" if last_line else str(exc))
            self._has_none(CannotStart(_WHY_SO_LATE if loop.time() >= until_s else why))
        except Exception as exc:  # of the system; what user code raises comes as a reply
            self._has_none(CannotStart(f"no child process can be started: {words_of(exc)}"))
        else:
            if failed.words is None:
                self._children.add(child)
                self._has_idle(child)
            elif failed.kind is not None and issubclass(failed.kind, KeyboardInterrupt):
                self._has_none(CannotStart(_why_none_came_up(failed.words)))
            else:
                self._has_none(BrokenProcess(_why_main_failed(failed.words)))
        finally:
            if timer is not None:
                timer.cancel()
            if child is not None:
                self._rising.discard(child)

    def _came_up(self, coming: "asyncio.Task[None]") -> None:
        self._coming.discard(coming)
        self._tell_changed()


def _levels() -> Levels:
    """Return the levels of the loggers of this process, for those of a child."""
    manager = logging.root.manager
    levels = {"root": logging.root.level}
    for name, each in list(manager.loggerDict.items()):
        if isinstance(each, logging.Logger) and (each.level or each.disabled):
            levels[name] = NOTHING_PASSES if each.disabled else each.level
    return manager.disable, levels


_WHY_SO_LATE: Final = (
    f"a child process had not loaded the main module of the program after {RISE_S:g} s, and was killed: what that "
    "module does when it is imported must come to an end"
)


def _why_none_came_up(why: str) -> str:
    return (
        f"a child process ended while it came up ({why}): the main module of the program, which it reads, must not "
        "exit outside of `if __name__ == '__main__':`"
    )


def _why_main_failed(words: str) -> str:
    path = getattr(sys.modules["__main__"], "__file__", "the main module of the program")
    return (
        f"{path} cannot be loaded in a child process ({words}): what the program does when it "
        "is started must stand below `if __name__ == '__main__':` there. A server may have a command of its own, to be "
        "used instead of `python -m ...`"
    )


class CannotStart(Exception):
    """The system gave no thread, or no child process. The code of the task has not begun."""


class BrokenProcess(Exception):
    """A child of the process lane died while it ran a task. `tail` is the end of what it had written."""

    def __init__(self, why: str, tail: str = "") -> None:
        super().__init__(why)
        self.tail = tail


class Shortage:
    """One lane that is short of threads, or of processes, and what is tried there."""

    __slots__ = ("is_vain", "pause_s", "step")

    def __init__(self) -> None:
        self.is_vain = True
        """Whether the last try was in vain, so that nothing more starts before the next one."""
        self.pause_s = FIRST_RETRY_S
        self.step = 1
        """How many tasks more than run now are tried next."""


class LaneFaults:
    """Holds back lanes that are short. `faults` says, by the name of a lane, why it starts no more tasks."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        dispatcher: Dispatcher,
        processes: ProcessLane,
        faults: dict[str, str],
    ) -> None:
        self._loop = loop
        self._dispatcher = dispatcher
        self._processes = processes
        self._faults = faults
        self._shortages: dict[Lane, Shortage] = {}

    def __repr__(self) -> str:
        return f"<LaneFaults of {', '.join(self._shortages) or 'no lane'}>"

    def note(self, lane: Lane, outcome: Outcome) -> None:
        """Note the outcome of an attempt of this lane, once its slot is free again."""
        if outcome.kind != "unstarted" or outcome.reason is None:
            return
        reason, slots = outcome.reason, self._dispatcher.lanes[lane]
        slots.cap = slots.running
        self._faults[f"{lane} lane"] = reason
        shortage = self._shortages.get(lane)
        if shortage is None:
            shortage = self._shortages[lane] = Shortage()
            logger.error("the %s lane starts no more tasks now; they wait, and it is tried again: %s", lane, reason)
            self._loop.call_later(shortage.pause_s, self._try_again, lane, shortage)
        shortage.is_vain = True

    def _try_again(self, lane: Lane, shortage: Shortage) -> None:
        """Let one more start, or twice as many as last time. Unless one comes back to `note`, the system gives more."""
        slots = self._dispatcher.lanes[lane]
        if shortage.is_vain:
            shortage.is_vain, shortage.step = False, 1
            shortage.pause_s = min(shortage.pause_s * 2, LAST_RETRY_S)
            slots.cap = slots.running + 1
        elif lane == "process" and self._processes.is_coming_up:
            pass  # nobody knows yet whether that child will run
        elif slots.limit is None or (slots.cap is not None and slots.cap >= slots.limit):
            slots.cap = None
            del self._shortages[lane]
            self._faults.pop(f"{lane} lane", None)
            logger.warning("the %s lane starts tasks again", lane)
        else:
            shortage.step *= 2
            if not slots.has_room:  # all that were let in have begun
                shortage.pause_s = FIRST_RETRY_S
            slots.cap = slots.running + shortage.step
        self._dispatcher.wants_take()
        if slots.cap is not None:
            self._loop.call_later(shortage.pause_s, self._try_again, lane, shortage)
