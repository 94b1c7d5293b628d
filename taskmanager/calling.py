"""Decides what calling a task does: it runs the function, but a `BackgroundTask` of Starlette enqueues it.

A route keeps its `BackgroundTasks` and adds a task in the place of a function: `add_task(send_email, "ada@...")`.
Starlette asks whether the function is asynchronous when it is added, and calls it when the response has been sent.
Only the caller tells these two from any other use of a task, so this module looks at the caller: is it the module
`starlette.background`? It imports and changes no framework. Every other call runs the function, also one by a plain
function of the same `BackgroundTasks`.

Any other framework learns the truth about the function: a task of an `async def` is a coroutine function. So a server
that is not recognised here runs it within the request, and does not lose it.
"""

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable
from functools import wraps
from types import FrameType, MethodType
from typing import Any, Final, TypeVar, cast

from taskmanager.codec.annotations import is_async, named_function
from taskmanager.model.context import TaskSource, current
from taskmanager.model.logger import logger

F = TypeVar("F", bound=Callable[..., Any])

_FRAMEWORK: Final = "starlette."
_BACKGROUND: Final = "starlette.background"


class _Call:
    """The `__call__` of a task, with or without options."""

    __slots__ = ("_asynchronous", "_direct")

    def __init__(self, direct: Callable[..., Any]) -> None:
        self._direct = direct
        self._asynchronous = _marked(direct)

    def __get__(self, call: Any, owner: type | None = None) -> Any:
        if call is None:
            return self._direct
        # Also reached by `task(...)`: Python looks `__call__` up on the type and binds it for every call.
        if _is_of_a_background_task(sys._getframe(1)):  # noqa: SLF001  # the only way to know who calls
            return MethodType(_enqueue, call)
        fn = call._task.fn  # noqa: SLF001  # a `TaskCall`, which is of this package
        return MethodType(self._asynchronous if is_async(fn) else self._direct, call)


def by_caller(direct: F) -> F:
    """Make a `__call__` that does `direct`, unless Starlette's `BackgroundTask` calls it."""
    return cast("F", _Call(direct))


def _is_of_a_background_task(frame: FrameType | None) -> bool:
    """Return whether the caller is `BackgroundTask`, which calls, or asks through a function of Starlette.

    It does not look further up: a plain function that a `BackgroundTask` calls may call a task directly.
    """
    name = _module_of(frame)
    if frame is not None and name != _BACKGROUND and name.startswith(_FRAMEWORK):
        name = _module_of(frame.f_back)
    return name == _BACKGROUND


def _module_of(frame: FrameType | None) -> str:
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))


async def _enqueue(call: Any, /, *args: Any, **kwargs: Any) -> None:
    try:
        call.enqueue(*args, **kwargs)
    except Exception as exc:
        # The response is gone; the server logs the traceback, this line says what is missing.
        text = "task %s was added to a response and is not accepted: %s"
        name = call._task.name  # noqa: SLF001  # it is of this package
        logger.error(text, name, exc, extra={"task_name": name})
        raise


def _marked(direct: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, marked so that `iscoroutinefunction` is true for it."""

    @wraps(direct)
    def asynchronous(*args: Any, **kwargs: Any) -> Any:
        return direct(*args, **kwargs)

    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(asynchronous)
    vars(asynchronous)["_is_coroutine"] = vars(asyncio.coroutines)["_is_coroutine"]
    return asynchronous


def call_directly(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
    """Call the function of the task of this name, outside of the surrounding task."""
    if is_async(fn):
        coro = fn(*args, **kwargs)
        waits: Any = _await_directly(coro, name)
        waits.__name__ = waits.__qualname__ = named_function(fn).__qualname__  # for warnings that nobody has awaited it
        return waits
    token = current.set(TaskSource(name))
    try:
        return fn(*args, **kwargs)
    finally:
        current.reset(token)


async def _await_directly(coro: Awaitable[Any], name: str) -> Any:
    token = current.set(TaskSource(name))
    try:
        return await coro
    finally:
        current.reset(token)
