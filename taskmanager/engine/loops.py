"""The host of one instance: one asyncio task, whose task group holds duties and lanes from the start to the end.

The host begins a loop again that ends before it was told to. A program may cancel every task that it finds, and an
exception for the interpreter may come in the middle of one of ours. Without its claimer or its reaper an instance would
go on and break its promises. The host keeps exceptions of a member from the group, which would end all the others.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from taskmanager.model.logger import logger

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

AGAIN_AFTER_S: Final = 0.1
"""Not at once: code that cancels all tasks before it closes their loop must not find new ones for ever."""
CLOSE_PATIENCE_S: Final = 1.0
"""How long the host waits at its end for members that have not ended."""

Run = Callable[[], Coroutine[Any, Any, None]]


class Host:
    """Owns the task group of one instance. `faults` tells, by the name of a loop, why it does not run."""

    def __init__(self, loop: asyncio.AbstractEventLoop, faults: dict[str, str]) -> None:
        self._loop = loop
        self._faults = faults
        self._begins: dict[str, Callable[[], None]] = {}
        self._running: dict[str, asyncio.Task[Any]] = {}
        self._unbegun: list[tuple[Run, str]] = []
        """The members that are in no group yet, or have not made their first step there."""
        self._entered: dict[tuple[Run, str], Coroutine[Any, Any, None]] = {}
        """Those without a first step. A cancelled group forgets them, and Python would warn that none was awaited."""
        self._task: asyncio.Task[None] | None = None
        self._group: TaskGroup | None = None
        self._members: set[asyncio.Task[Any]] = set()
        self._is_closed = False
        self._is_over = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Host of {', '.join(self._running) or 'nothing'}>"

    def start(self, name: str, run: Run) -> None:
        """Begin this loop. Begin it again whenever it ends in another way than by returning."""
        assert name not in self._begins, name
        self._begins[name] = lambda: self.spawn(partial(self._keep, name, run), name)
        self._begins[name]()

    def start_task(self, name: str, begin: Callable[[], "asyncio.Task[Any]"]) -> None:
        """Do the same for a loop that makes a task of its own, outside of the group."""

        def watch() -> None:
            task = self._running[name] = begin()
            task.add_done_callback(partial(self._task_ended, name))

        self._begins[name] = watch
        watch()

    def spawn(self, run: Run, name: str) -> None:
        """Run this once in the group; nothing that it raises reaches its neighbours."""
        if self._is_closed:
            return
        self._unbegun.append((run, name))
        if self._group is not None:
            self._enter(self._group, run, name)
        elif self._task is None:
            self._begin_host()

    def _begin_host(self) -> None:
        if self._task is None and not self._is_closed:
            # An empty context: what lives as long as the instance must not hold the context of a task, or log with it.
            self._task = Context().run(self._loop.create_task, self._live(), name="taskmanager-host")
            self._task.add_done_callback(self._host_ended)

    def _enter(self, group: "TaskGroup", run: Run, name: str) -> None:
        member = self._entered[run, name] = self._alone(run, name)
        Context().run(lambda: group.start_soon(lambda: member, name=f"taskmanager-{name}"))

    def _close_entered(self) -> None:
        for member in self._entered.values():
            member.close()
        self._entered.clear()

    def is_running(self, name: str) -> bool:
        """Whether this loop runs at this moment."""
        return name in self._running

    def leave(self, name: str) -> None:
        """Forget this loop, which its owner ends. It is not begun again."""
        self._begins.pop(name, None)
        self._running.pop(name, None)

    def leave_loop(self) -> None:
        """Forget all tasks, because their event loop will not run again. Python must not warn when it collects them."""
        self._begins.clear()
        self._is_closed = True
        self._close_entered()
        for task in (*self._members, *self._running.values()):
            let_loop_close(task)
        if self._task is not None:
            let_loop_close(self._task)
            self._task = None
        self._running.clear()

    async def stop(self, *, but: str | None = None) -> None:
        """End all loops, or all but one. Members that a lane has spawned go on."""
        self._begins = {name: begin for name, begin in self._begins.items() if name == but}
        tasks = [task for name, task in self._running.items() if name != but]
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
        from anyio import create_task_group

        async with contextlib.AsyncExitStack() as stack:
            self._group = await stack.enter_async_context(create_task_group())
            try:
                for run, name in self._unbegun:
                    self._enter(self._group, run, name)
                await self._is_over.wait()
            except GeneratorExit:  # collected with its loop: there is nothing to be awaited any more
                stack.pop_all()
                raise
            finally:
                self._group = None

    def _host_ended(self, task: "asyncio.Task[None]") -> None:
        """Begin the host again if members wait that had not made their first step. Loops begin again by themselves.

        The host was cancelled by other code, or ended with one of its members.
        """
        if not task.cancelled():
            task.exception()
        self._task = None
        self._close_entered()
        if self._unbegun:
            self._loop.call_later(AGAIN_AFTER_S, self._begin_host)

    async def _keep(self, name: str, run: Run) -> None:
        if name not in self._begins:
            return  # stopped before its first step
        task = asyncio.current_task()
        assert task is not None
        self._running[name] = task
        try:
            await run()
        except (asyncio.CancelledError, Exception) as exc:  # noqa: BLE001  # logged when it is begun again
            self._ended(name, exc)
        except (KeyboardInterrupt, SystemExit) as exc:
            self._ended(name, exc)
            raise
        else:
            self._begins.pop(name, None)
        finally:
            if self._running.get(name) is task:
                del self._running[name]

    async def _alone(self, run: Run, name: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._members.add(task)
        self._unbegun.remove((run, name))
        del self._entered[run, name]
        try:
            await run()
        except asyncio.CancelledError:
            pass  # a group takes a member that was cancelled for its own end
        except Exception:
            logger.critical("the %s failed unexpectedly", name, exc_info=True)
        finally:
            self._members.discard(task)

    def _task_ended(self, name: str, task: "asyncio.Task[Any]") -> None:
        if self._running.get(name) is task:
            del self._running[name]
        exc = asyncio.CancelledError() if task.cancelled() else task.exception()
        if exc is not None:
            self._ended(name, exc)

    def _ended(self, name: str, exc: BaseException) -> None:
        if name in self._begins:
            is_cancelled = isinstance(exc, asyncio.CancelledError)
            why = "cancelled by somebody else" if is_cancelled else f"ended by {type(exc).__name__}"
            self._faults[name] = why
            self._loop.call_later(AGAIN_AFTER_S, self._again, name, why, None if is_cancelled else exc)

    def _again(self, name: str, why: str, exc: BaseException | None) -> None:
        if name in self._begins:
            logger.critical("the %s was %s, and is begun again", name, why, exc_info=exc)
            self._faults.pop(name, None)
            self._begins[name]()


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
    from anyio import CancelScope

    scope = CancelScope(shield=True)
    scope.__enter__()
    try:
        yield
    finally:
        with contextlib.suppress(RuntimeError):  # collected with its loop: no task runs that could leave the scope
            scope.__exit__(None, None, None)


def let_loop_close(task: "asyncio.Task[None]") -> None:
    """`asyncio.run` waits for every task it knows; one that ignores its cancellation must not hold up the exit."""
    asyncio._unregister_task(task)  # noqa: SLF001  # documented in "Extending asyncio"
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001  # the stop has said it already
