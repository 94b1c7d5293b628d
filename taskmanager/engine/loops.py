"""The host of one instance: one asyncio task, whose task group holds duties and lanes from the start to the end.

The host begins a loop again that ends before it was told to. A program may cancel every task that it finds, and an
exception for the interpreter may come in the middle of one of ours. Without its claimer or its reaper an instance would
go on and break its promises. The host keeps exceptions of a member from the group, which would end all the others.
"""

import asyncio
import contextlib
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context
from functools import partial
from typing import Any, Final

from taskmanager.model.dataclass import dataclass
from taskmanager.model.logger import logger

AGAIN_AFTER_S: Final = 0.1
"""Not at once: code that cancels all tasks before it closes their loop must not find new ones for ever."""
CLOSE_PATIENCE_S: Final = 1.0
"""How long the host waits at its end for members that have not ended."""

Run = Callable[[], Coroutine[Any, Any, None]]


@dataclass(eq=False, slots=True)
class _Loop:
    """A loop that is begun again until it is told to end, and the task that runs it now."""

    name: str
    begin: Callable[["_Loop"], None]
    task: "asyncio.Task[Any] | None" = None


@dataclass(eq=False, slots=True)
class _Member:
    """A member of the task group: waiting for the group, entered without a first step (`entered`), or running."""

    run: Run
    name: str
    entered: Coroutine[Any, Any, None] | None = None
    task: "asyncio.Task[Any] | None" = None

    def leave(self) -> None:
        """Wait for a group again. Python would warn of a coroutine that nobody has awaited."""
        if self.entered is not None:
            self.entered.close()
            self.entered = None


class Host:
    """Owns the task group of one instance. `faults` tells, by the name of a loop, why it does not run."""

    def __init__(self, loop: asyncio.AbstractEventLoop, faults: dict[str, str]) -> None:
        self._loop = loop
        self._faults = faults
        self._loops: dict[str, _Loop] = {}
        """The loops that are begun again when they end."""
        self._members: list[_Member] = []
        """The members that have not ended."""
        self._task: asyncio.Task[None] | None = None
        self._group: asyncio.TaskGroup | None = None
        self._is_closed = False
        self._is_over = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Host of {', '.join(each.name for each in self._loops.values() if each.task) or 'nothing'}>"

    def start(self, name: str, run: Run) -> None:
        """Begin this loop. Begin it again whenever it ends in another way than by returning."""
        self._begin(_Loop(name, lambda loop: self.spawn(partial(self._keep, loop, run), name)))

    def start_task(self, name: str, begin: Callable[[], "asyncio.Task[Any]"]) -> None:
        """Do the same for a loop that makes a task of its own, outside of the group."""

        def watch(loop: _Loop) -> None:
            loop.task = begin()
            loop.task.add_done_callback(partial(self._task_ended, loop))

        self._begin(_Loop(name, watch))

    def _begin(self, loop: _Loop) -> None:
        assert loop.name not in self._loops, loop.name
        self._loops[loop.name] = loop
        loop.begin(loop)

    def spawn(self, run: Run, name: str) -> None:
        """Run this once in the group; nothing that it raises reaches its neighbours."""
        if self._is_closed:
            return
        member = _Member(run, name)
        self._members.append(member)
        if self._group is not None:
            self._enter(self._group, member)
        elif self._task is None:
            self._begin_host()

    def _begin_host(self) -> None:
        if self._task is None and not self._is_closed:
            # An empty context: what lives as long as the instance must not hold the context of a task, or log with it.
            self._task = Context().run(self._loop.create_task, self._live(), name="taskmanager-host")
            self._task.add_done_callback(self._host_ended)

    def _enter(self, group: asyncio.TaskGroup, member: _Member) -> None:
        member.entered = self._alone(member)
        group.create_task(member.entered, name=f"taskmanager-{member.name}", context=Context())

    def is_running(self, name: str) -> bool:
        """Whether this loop runs at this moment."""
        return name in self._loops and self._loops[name].task is not None

    def leave(self, name: str) -> None:
        """Forget this loop, which its owner ends. It is not begun again."""
        self._loops.pop(name, None)

    def leave_loop(self) -> None:
        """Forget all tasks, because their event loop will not run again. Python must not warn when it collects them."""
        self._is_closed = True
        for member in self._members:
            member.leave()
        tasks = [self._task, *(each.task for each in self._members), *(each.task for each in self._loops.values())]
        self._loops.clear()
        self._task = None
        for task in filter(None, tasks):
            let_loop_close(task)

    async def stop(self, *, but: str | None = None) -> None:
        """End all loops, or all but one. Members that a lane has spawned go on."""
        ended = [self._loops.pop(name) for name in list(self._loops) if name != but]
        tasks = [loop.task for loop in ended if loop.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """End the host. This is the last step of a stop."""
        self._is_closed = True
        self._is_over.set()
        if (task := self._task) is not None:
            await asyncio.wait([task], timeout=CLOSE_PATIENCE_S)
            task.cancel()

    async def _live(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            self._group = await stack.enter_async_context(asyncio.TaskGroup())
            try:
                for member in list(self._members):
                    if member.task is None:
                        self._enter(self._group, member)
                await self._is_over.wait()
            except GeneratorExit:  # collected with its loop: there is nothing to be awaited any more
                stack.pop_all()
                raise
            finally:
                self._group = None

    def _host_ended(self, task: "asyncio.Task[None]") -> None:
        """Begin the host again if members wait that had not made their first step. Loops begin again by themselves.

        Other code has cancelled the host, or it ended with one of its members.
        """
        if not task.cancelled():
            task.exception()
        self._task = None
        for member in self._members:
            member.leave()
        if any(member.task is None for member in self._members):
            self._loop.call_later(AGAIN_AFTER_S, self._begin_host)

    async def _keep(self, loop: _Loop, run: Run) -> None:
        if not self._has(loop):
            return  # stopped before its first step
        task = loop.task = asyncio.current_task()
        try:
            await run()
        except (asyncio.CancelledError, Exception) as exc:  # noqa: BLE001  # logged when it is begun again
            self._ended(loop, exc)
        except (KeyboardInterrupt, SystemExit) as exc:
            self._ended(loop, exc)
            raise
        else:
            if self._has(loop):
                del self._loops[loop.name]
        finally:
            if loop.task is task:
                loop.task = None

    async def _alone(self, member: _Member) -> None:
        member.task, member.entered = asyncio.current_task(), None
        try:
            await member.run()
        except Exception:
            logger.critical("the %s failed unexpectedly", member.name, exc_info=True)
        except (KeyboardInterrupt, SystemExit) as exc:
            self._loop.call_soon(_raise, exc)  # from here it would end the group, which would raise it once more
        finally:
            self._members.remove(member)

    def _task_ended(self, loop: _Loop, task: "asyncio.Task[Any]") -> None:
        if loop.task is task:
            loop.task = None
        exc = asyncio.CancelledError() if task.cancelled() else task.exception()
        if exc is not None:
            self._ended(loop, exc)

    def _has(self, loop: _Loop) -> bool:
        return self._loops.get(loop.name) is loop

    def _ended(self, loop: _Loop, exc: BaseException) -> None:
        if self._has(loop):
            is_cancelled = isinstance(exc, asyncio.CancelledError)
            why = "cancelled by somebody else" if is_cancelled else f"ended by {type(exc).__name__}"
            self._faults[loop.name] = why
            self._loop.call_later(AGAIN_AFTER_S, self._again, loop, why, None if is_cancelled else exc)

    def _again(self, loop: _Loop, why: str, exc: BaseException | None) -> None:
        if self._has(loop):
            logger.critical("the %s was %s, and is begun again", loop.name, why, exc_info=exc)
            self._faults.pop(loop.name, None)
            loop.begin(loop)


def _raise(exc: BaseException) -> None:
    raise exc


async def shielded(work: Coroutine[Any, Any, object]) -> None:
    """Let `work` end, whatever happens to the waiter. Raise a cancellation of the waiter only then."""
    task = asyncio.get_running_loop().create_task(work)
    cancelled = await outlast(task)
    task.result()
    if cancelled is not None:
        raise cancelled


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
