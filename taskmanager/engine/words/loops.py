"""The host of one instance: the asyncio tasks of its loops and of the children of its lanes.

The host begins a loop again that ends before it was told to. A program may cancel every task that it finds, and an
exception for the interpreter may come in the middle of one of ours. Without its claimer or its reaper an instance would
go on and break its promises. A task group would end all of its members with the first one that fails, so there is none.
"""

import asyncio
import contextlib
import inspect
import sys
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from taskmanager.model.dataclass import dataclass
from taskmanager.model.logger import logger

if TYPE_CHECKING:
    from concurrent.futures import Future

AGAIN_AFTER_S: Final = 0.1
"""Not at once: code that cancels all tasks before it closes their loop must not find new ones for ever."""
CLOSE_PATIENCE_S: Final = 1.0
"""How long the host waits at its end for spawned tasks that have not ended."""

LOOK_AROUND_S: Final = 0.5
"""How long a thread waits for a future before it looks whether a signal has come."""
LOOKS_AT_IDLE_LOOP: Final = 6
"""After so many of these looks (three seconds) a message says that the loop does not run."""

Run = Callable[[], Coroutine[Any, Any, None]]
R = TypeVar("R")


@dataclass(eq=False, slots=True)
class _Loop:
    """A loop that is begun again until it is told to end, and the task that runs it now."""

    name: str
    begin: "Callable[[], asyncio.Task[Any]]"
    task: "asyncio.Task[Any] | None" = None


class Host:
    """Owns the tasks of one instance. `faults` tells, by the name of a loop, why it does not run."""

    def __init__(self, loop: asyncio.AbstractEventLoop, faults: dict[str, str]) -> None:
        self._loop = loop
        self._faults = faults
        self._loops: dict[str, _Loop] = {}
        """The loops that are begun again when they end."""
        self._spawned: dict[asyncio.Task[None], bool] = {}
        """The tasks that run once, and whether each has made its first step."""
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Host of {', '.join(each.name for each in self._loops.values() if each.task) or 'nothing'}>"

    def start(self, name: str, run: Run) -> None:
        """Begin this loop. Begin it again whenever it ends in another way than by returning."""
        self.start_task(name, lambda: self._task_of(run(), name))

    def start_task(self, name: str, begin: "Callable[[], asyncio.Task[Any]]") -> None:
        """Do the same for a loop that makes its task itself."""
        assert name not in self._loops, name
        self._loops[name] = loop = _Loop(name, begin)
        self._begin(loop)

    def spawn(self, run: Run, name: str) -> None:
        """Run this once; nothing that it raises reaches its neighbours."""
        if not self._is_closed:
            task = self._task_of(self._once(run), name)
            self._spawned[task] = False
            task.add_done_callback(partial(self._spawned_ended, run, name), context=Context())

    def _task_of(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        # An empty context: what lives as long as the instance must not hold the context of a task, or log with it.
        return self._loop.create_task(work, name=f"taskmanager-{name}", context=Context())

    def is_running(self, name: str) -> bool:
        """Whether this loop runs at this moment."""
        return name in self._loops and self._loops[name].task is not None

    def leave(self, name: str) -> None:
        """Forget this loop, which its owner ends. It is not begun again."""
        self._loops.pop(name, None)

    def leave_loop(self) -> None:
        """Forget all tasks, because their event loop will not run again. Python must not warn when it collects them."""
        self._is_closed = True
        for task in filter(None, (*self._spawned, *(each.task for each in self._loops.values()))):
            let_loop_close(task)
            work = task.get_coro()
            if inspect.iscoroutine(work) and inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                work.close()
        self._loops.clear()
        self._spawned.clear()

    async def stop(self, *, but: str | None = None) -> None:
        """End all loops, or all but one. What a lane has spawned goes on."""
        ended = [self._loops.pop(name) for name in list(self._loops) if name != but]
        tasks = [loop.task for loop in ended if loop.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Wait for what was spawned, and end it if it takes too long. This is the last step of a stop."""
        self._is_closed = True
        if self._spawned:
            await asyncio.wait(self._spawned, timeout=CLOSE_PATIENCE_S)
        for task in self._spawned:
            task.cancel()

    async def _once(self, run: Run) -> None:
        if (task := asyncio.current_task()) is not None:
            self._spawned[task] = True
        await run()

    def _spawned_ended(self, run: Run, name: str, task: "asyncio.Task[None]") -> None:
        """Begin again what other code has cancelled before its first step: a child process has nobody else."""
        has_begun = self._spawned.pop(task, True)
        if task.cancelled():
            if not has_begun:
                self._loop.call_later(AGAIN_AFTER_S, self.spawn, run, name)
        elif isinstance(exc := task.exception(), Exception):
            logger.critical("the %s failed unexpectedly", name, exc_info=exc)

    def _begin(self, loop: _Loop) -> None:
        loop.task = loop.begin()
        loop.task.add_done_callback(partial(self._ended, loop), context=Context())

    def _ended(self, loop: _Loop, task: "asyncio.Task[Any]") -> None:
        loop.task = None
        exc = None if task.cancelled() else task.exception()
        if self._loops.get(loop.name) is not loop:
            return
        if exc is None and not task.cancelled():
            del self._loops[loop.name]
            return
        why = "cancelled by somebody else" if exc is None else f"ended by {type(exc).__name__}"
        self._faults[loop.name] = why
        self._loop.call_later(AGAIN_AFTER_S, self._again, loop, why, exc)

    def _again(self, loop: _Loop, why: str, exc: BaseException | None) -> None:
        if self._loops.get(loop.name) is loop:
            logger.critical("the %s was %s, and is begun again", loop.name, why, exc_info=exc)
            self._faults.pop(loop.name, None)
            self._begin(loop)


def result_here(
    future: "Future[R]", timeout_s: float | None = None, loop: asyncio.AbstractEventLoop | None = None
) -> R:
    """Wait in this thread for the result of a future. Raises `TimeoutError` after `timeout_s`, and `CancelledError` of
    `concurrent.futures` when `loop`, which is to set it, is closed.

    A signal that comes just before a thread begins to wait for a lock does not wake it: Ctrl-C would be lost. So it
    looks around now and then. It logs once that `loop` does not run: the thread may be the one that should run it.
    """
    left_s, idle_looks = timeout_s, 0
    while True:
        wait_s = LOOK_AROUND_S if left_s is None else min(LOOK_AROUND_S, left_s)
        try:
            return future.result(wait_s)
        except TimeoutError:
            is_closed = loop is not None and loop.is_closed()  # before the other look: it may set the result, and close
            if future.done():
                return future.result()
            if is_closed:
                raise CancelledError from None
            idle_looks = 0 if loop is None or loop.is_running() else idle_looks + 1
            if loop is not None and idle_looks == LOOKS_AT_IDLE_LOOP:
                say_no_loop(loop)
            if left_s is not None and (left_s := left_s - wait_s) <= 0:
                raise


def say_no_loop(loop: asyncio.AbstractEventLoop) -> bool:
    """Log that a call waits for a loop that does not run. Return True: it is said once."""
    if not loop.is_running():
        logger.warning(
            "a call waits, and the event loop that its manager was started in does not run; await it in that loop, or "
            "let that loop run in a thread"
        )
    return True


async def result_from(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, R]) -> R:
    """Let `work` run in another loop, and wait here for its result. Raises `CancelledError` of `concurrent.futures`
    when that loop is closed, or was left with all that ran in it.
    """
    try:
        waiting = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
    except RuntimeError:  # it was closed in this moment
        work.close()
        raise CancelledError from None
    look_s = LOOK_AROUND_S if has_real_time(asyncio.get_running_loop()) else None
    try:
        while not waiting.done() and not loop.is_closed():
            await asyncio.wait([waiting], timeout=look_s)
    except asyncio.CancelledError:
        if not loop.is_closed():
            waiting.cancel()
        raise
    if waiting.cancelled() or not waiting.done():
        raise CancelledError
    return waiting.result()


def has_real_time(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether a loop goes by its own clock. On the loop of a test time may jump, and a timer would move it."""
    return getattr(loop.time, "__self__", None) is loop


async def shielded(work: Coroutine[Any, Any, R]) -> R:
    """Return what `work` does. Let it end, whatever happens to the waiter, and raise a cancellation only then.

    A cancelled waiter is cancelled also if the work has failed, or whoever tries again would go on for ever.
    """
    task = asyncio.get_running_loop().create_task(work)
    cancelled = await outlast(task)
    if cancelled is None:
        return task.result()
    raise cancelled from (None if task.cancelled() else task.exception())


async def cancelled_once(work: Coroutine[Any, Any, object]) -> None:
    """Wait for `work`, and pass only one cancellation on to it: a second one would break off its cleanup."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError as exc:
        task.cancel()
        await outlast(task, exc)
        with contextlib.suppress(asyncio.CancelledError):
            task.result()
        raise
    task.result()


async def outlast(
    awaited: "asyncio.Future[Any]",
    cancelled: BaseException | None = None,
    *,
    is_hurried: Callable[[], bool] = lambda: False,
) -> BaseException | None:
    """Wait until `awaited` is done, or a cancelled waiter `is_hurried`; return the last cancellation.

    anyio cancels a task again in each turn of the loop until the task leaves the cancelled scope. From the first
    cancellation on, the wait goes on in a shielded scope, where only a `Task.cancel()` reaches it: one cancellation
    instead of 100,000 a second.
    """
    while not awaited.done() and not (cancelled is not None and is_hurried()):
        try:
            with contextlib.nullcontext() if cancelled is None else _shield():
                await asyncio.wait([awaited])
        except asyncio.CancelledError as exc:
            cancelled = exc
    return cancelled


@contextlib.contextmanager
def _shield() -> Iterator[None]:
    if "anyio" not in sys.modules:  # then nobody can cancel with it, and to load it takes 20 ms
        yield
        return
    from anyio import CancelScope

    scope = CancelScope(shield=True)
    scope.__enter__()
    try:
        yield
    finally:
        with contextlib.suppress(RuntimeError):  # collected with its loop: no task runs that could leave the scope
            scope.__exit__(None, None, None)


def let_loop_close(task: "asyncio.Task[None]") -> None:
    """Keep `asyncio.run` from waiting for this task, which may ignore its cancellation."""
    asyncio._unregister_task(task)  # noqa: SLF001  # documented in "Extending asyncio"
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001  # the stop has said it already
