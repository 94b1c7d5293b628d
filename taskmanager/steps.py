"""`step`, `sleep`, `wait_for`, `current_step` and `patched`: work in several steps, none of which is done twice.

Outside of a task, and inside of a step, `step(fn, ...)` runs the function and records nothing. So functions that call
steps can be tested like any others, and a step is the smallest unit.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, final, overload

from taskmanager.codec.annotations import is_async
from taskmanager.model.checks import is_storable, timeout_fault
from taskmanager.model.config import MAX_NAME_LENGTH, raise_faults
from taskmanager.model.context import current
from taskmanager.model.errors import ConfigurationError, NotInTask
from taskmanager.model.known_words import known_words
from taskmanager.model.result import Seconds, seconds_fault, seconds_of
from taskmanager.model.steps import DETACHED, StepContext, running_step
from taskmanager.rules.retry import RetryRule, shorthand_faults
from taskmanager.rules.steps import StepOptions
from taskmanager.task import Task

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@final
class StepCall:
    """Calls a function as a step of the running task. Use `step`, or what `step.with_options(...)` returns."""

    __slots__ = ("_options",)

    def __init__(self, options: StepOptions) -> None:
        self._options = options

    def __repr__(self) -> str:
        return f"<StepCall with {self._options}>"

    @overload
    def __call__(
        self, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[object, None, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, R]: ...
    def __call__(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[object, None, Any]:
        """Call a step, and return what is to be awaited for its value. The call alone gives the step its number.

        A sync function runs in a thread, a `Task` in the lane of its executor. A step that an earlier run has recorded
        returns the recorded value. Raises `StepFailed` when awaited, if the function raises and no retry is left.

        The call raises `NotPersisted` in a memory-only task. It raises `ConfigurationError` in the thread and process
        lanes, in a middleware, and without a key in another asyncio task than that of the task.
        """
        definition = None
        if isinstance(fn, Task):
            is_process = fn.options.executor == "process"
            definition, fn = None if fn.binding is None else fn.binding.definition, fn.fn
            if is_process and definition is None:
                raise ConfigurationError(f"{fn.__qualname__} runs in the process lane, and is bound to no manager")
        if not callable(fn):
            raise ConfigurationError(f"step takes a function and its arguments, not {fn!r}: step(charge, 7)")
        attempt = _attempt()
        if attempt is None:
            return _run(fn, args, kwargs)
        coroutine: Coroutine[object, None, Any] = attempt.step_calls().call(fn, args, kwargs, self._options, definition)
        return coroutine

    @known_words("step.with_options()")
    def with_options(
        self,
        *,
        name: str | None = None,
        key: str | None = None,
        retries: int = 0,
        retry_delay: Seconds = 1.0,
        retry_backoff: float = 2.0,
        timeout: Seconds | None = None,
    ) -> "StepCall":
        """Return `step` with these options. Raises `ConfigurationError` with everything that is wrong.

        `name` is that of the function if it is not given. A `key`, unique in its task, stands for the step in place of
        its number. It is tried again in place up to `retries` times, as tasks are. `timeout` is in seconds, per try.
        """
        faults = [
            _text_fault("name", name),
            _text_fault("key", key),
            *shorthand_faults(retries, retry_delay, retry_backoff),
            timeout_fault(timeout),
        ]
        raise_faults("step.with_options", [fault for fault in faults if fault])
        rule = RetryRule.shorthand(retries, seconds_of(retry_delay, "retry_delay"), retry_backoff)
        timeout_s = None if timeout is None else seconds_of(timeout, "timeout")
        return StepCall(StepOptions(name, key, rule, timeout_s))


step = StepCall(StepOptions())
"""Calls a function as a step of the running task: `receipt = await step(charge, order_id)`."""


def sleep(delay: Seconds, /, *, key: str | None = None) -> Coroutine[object, None, None]:
    """Sleep, when awaited, until so much time has passed since the first run of the task that came here.

    The task holds no slot and no memory meanwhile, and a restart changes nothing: its run ends here, by a
    `CancelledError`, and a new run goes on here when it is time. In `gather`, or another asyncio task, it waits in
    place, and needs a `key` as steps do. Outside of a task, and inside of a step, it is `asyncio.sleep`.

    The call raises what the call of a step raises, and `ConfigurationError` without `requeue_on_interrupt=True`.
    """
    delay_s = seconds_of(delay, "delay")
    raise_faults("sleep", [fault for fault in [_text_fault("key", key)] if fault])
    attempt = _attempt()
    if attempt is None:
        return asyncio.sleep(delay_s)
    coroutine: Coroutine[object, None, None] = attempt.step_calls().wait("sleep", "", type(None), delay_s, key)
    return coroutine


@overload
def wait_for(
    name: str, type: type[T], /, *, timeout: Seconds | None = None, key: str | None = None
) -> Coroutine[object, None, T]: ...
@overload
def wait_for(
    name: str, type: object, /, *, timeout: Seconds | None = None, key: str | None = None
) -> Coroutine[object, None, Any]: ...
def wait_for(
    name: str,
    type: object,  # noqa: A002  # its name in messages is that of the overloads
    /,
    *,
    timeout: Seconds | None = None,
    key: str | None = None,
) -> Coroutine[object, None, Any]:
    """Return, when awaited, the next event of this name that `manager.send` has stored for the task, as this type.

    The task sleeps until it comes, as in `sleep`. Each event is received once, in the order in which they were sent.
    Awaiting it raises `TimeoutError` if none has come `timeout` seconds after the task came here, and `ArgumentError`
    for a value that does not fit the type; either is recorded, and raised again in each run.

    The call raises what the call of `sleep` raises, and `NotInTask` outside of a task and inside of a step.
    """
    faults = [
        _text_fault("name", name) if name is not None else "name must be text",
        _text_fault("key", key),
        None if timeout is None else seconds_fault(timeout, "timeout"),
    ]
    raise_faults("wait_for", [fault for fault in faults if fault])
    attempt = _attempt()
    if attempt is None:
        raise NotInTask(f"wait_for({name!r}) works in a running task only: nobody could send it anything here")
    timeout_s = None if timeout is None else seconds_of(timeout, "timeout")
    coroutine: Coroutine[object, None, Any] = attempt.step_calls().wait(f"wait:{name}", name, type, timeout_s, key)
    return coroutine


def current_step() -> StepContext:
    """Return the step that the calling function runs as; outside of a task, one with the key "detached:0".

    Raises `NotInTask` in a task that has called the function without `step`: there is no key that would be its own.
    """
    found = running_step.get()
    if found is None and _attempt() is not None:
        raise NotInTask("current_step() works inside a step, and this function was called without; use step(fn, ...)")
    return found or DETACHED


def patched(version: str, /) -> Coroutine[object, None, bool]:
    """Return, when awaited, whether the task runs the code from this version on. Outside of a task it does.

    The first run of a task that asks decides, and its answer is recorded: False if an earlier run has recorded steps
    that come behind this place, so that the task goes on with the code that made them.
    """
    raise_faults("patched", [fault for fault in [_text_fault("version", version)] if fault])
    attempt = _attempt()
    if attempt is None:
        return _yes()
    coroutine: Coroutine[object, None, bool] = attempt.step_calls().patched(version)
    return coroutine


def _attempt() -> Any:
    """Return the attempt that the calling code is part of. None outside of a task, and inside of a step."""
    source = current.get(None)
    if source is None or source.is_detached or running_step.get() is not None:
        return None
    if not hasattr(source, "step_calls"):  # a child process
        raise ConfigurationError(
            f"task {source.task_name} runs in the process lane, which has no steps; make it async def, and give the "
            "function that needs a process to step() as a task with executor='process'"
        )
    return source


async def _run(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = fn(*args, **kwargs) if is_async(fn) else await asyncio.to_thread(fn, *args, **kwargs)
    return await value if inspect.isawaitable(value) else value


async def _yes() -> bool:
    return True


def _text_fault(name: str, text: object) -> str | None:
    is_text = isinstance(text, str) and 0 < len(text) <= MAX_NAME_LENGTH and is_storable(text)
    return (
        None if text is None or is_text else f"{name} must be text of 1 to {MAX_NAME_LENGTH} characters, not {text!r}"
    )
