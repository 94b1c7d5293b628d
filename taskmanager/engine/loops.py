"""The loops of one instance, each in a task of its own: one that ends before it was told to is begun again.

A program may cancel every task that it finds, and an exception for the interpreter may come in the middle of one of
ours. Without its writer, its claimer or its reaper an instance would go on and keep nothing of its promise.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Final

from taskmanager.model.logger import logger

AGAIN_AFTER_S: Final = 0.1
"""Not at once: whoever cancels all tasks of a loop before it is closed must not find ever new ones."""

Begin = Callable[[], "asyncio.Task[Any]"]


class Loops:
    """Some loops that are begun and told to end together. `faults` has why one does not run, by its name."""

    def __init__(self, loop: asyncio.AbstractEventLoop, faults: dict[str, str]) -> None:
        self._loop = loop
        self._faults = faults
        self._begins: dict[str, Begin] = {}
        self._tasks: dict[str, asyncio.Task[Any]] = {}

    def __repr__(self) -> str:
        running = [name for name, task in self._tasks.items() if not task.done()]
        return f"<Loops {', '.join(running) or 'none'} running>"

    def start(self, name: str, begin: Begin) -> None:
        """Begin this loop, and again whenever it ends otherwise than by returning."""
        self._begins[name] = begin
        self._begin(name)

    def is_running(self, name: str) -> bool:
        """Whether it runs at this moment."""
        return name in self._tasks and not self._tasks[name].done()

    def leave(self, name: str) -> None:
        """Whoever began it ends it too: it is not begun again."""
        self._begins.pop(name, None)
        self._tasks.pop(name, None)

    def leave_loop(self) -> None:
        """The loop of their tasks will not run again: forget them, without a word when they are collected."""
        self._begins.clear()
        for task in self._tasks.values():
            let_loop_close(task)
        self._tasks.clear()

    async def stop(self, *, but: str | None = None) -> None:
        """End all of them, or all but one."""
        tasks = [task for name, task in self._tasks.items() if name != but]
        self._begins = {name: begin for name, begin in self._begins.items() if name == but}
        self._tasks = {name: task for name, task in self._tasks.items() if name == but}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _begin(self, name: str) -> None:
        task = self._tasks[name] = self._begins[name]()
        task.add_done_callback(partial(self._ended, name))

    def _ended(self, name: str, task: "asyncio.Task[Any]") -> None:
        exc = None if task.cancelled() else task.exception()
        if name not in self._begins or (exc is None and not task.cancelled()):
            return
        self._faults[name] = why = "cancelled by somebody else" if exc is None else f"ended by {type(exc).__name__}"
        self._loop.call_later(AGAIN_AFTER_S, self._again, name, why, exc)

    def _again(self, name: str, why: str, exc: BaseException | None) -> None:
        if name in self._begins:
            logger.critical("the %s was %s, and is begun again", name, why, exc_info=exc)
            self._faults.pop(name, None)
            self._begin(name)


async def shielded(work: Coroutine[Any, Any, object]) -> None:
    """Let `work` end whatever happens to the waiter, then let the cancellation through."""
    task = asyncio.get_running_loop().create_task(work)
    cancelled = await outlast(task)
    task.result()
    if cancelled is not None:
        raise cancelled


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
        with contextlib.suppress(RuntimeError):  # collected with its loop: it runs in no task that could leave a scope
            scope.__exit__(None, None, None)


def let_loop_close(task: "asyncio.Task[None]") -> None:
    """`asyncio.run` waits for every task it knows; one that ignores its cancellation must not hold up the exit."""
    asyncio._unregister_task(task)  # noqa: SLF001  # documented in "Extending asyncio"
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001  # the stop has said it already
