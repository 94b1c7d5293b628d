"""Tasks as users hold them: a decorated function that can be called, enqueued, and given options for one call."""

import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Generic, ParamSpec, Protocol, TypeVar, cast, final, get_args, overload

from taskmanager.calling import by_caller
from taskmanager.codec.values import dumps
from taskmanager.engine.context import await_detached, call_detached
from taskmanager.engine.definition import NO_OPTIONS, CallOptions, Definition
from taskmanager.handle import TaskHandle
from taskmanager.model.clock import to_us
from taskmanager.model.config import (
    MAX_NAME_LENGTH,
    ExceptionMapper,
    RetryPolicy,
    mapper_faults,
    own_code_fault,
    priority_fault,
    queue_name_fault,
    raise_faults,
)
from taskmanager.model.errors import ConfigurationError
from taskmanager.model.result import Seconds, Snooze, TaskResult, seconds_of
from taskmanager.model.states import Lane
from taskmanager.rules.retry import RetryRule

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
C_co = TypeVar("C_co", covariant=True)

DEFAULT_QUEUE: Final = "default"


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """What a decorator declared, checked as far as it can be without a manager."""

    name: str | None = None
    persist: bool | None = None
    requeue_on_interrupt: bool = False
    retries: int | None = None
    retry_delay: Seconds = 1.0
    retry_backoff: float = 2.0
    retry_policy: RetryPolicy | None = None
    exception_mapper: ExceptionMapper | None = None
    default_unhandled_error_code: str | None = None
    queue_name: str = DEFAULT_QUEUE
    priority: int = 50
    timeout: Seconds | None = None
    executor: Lane | None = None

    def faults(self) -> list[str]:
        """Everything that is wrong with these options."""
        found = [
            queue_name_fault(self.queue_name),
            priority_fault(self.priority),
            *mapper_faults(self.exception_mapper),
        ]
        if self.name is not None and not (isinstance(self.name, str) and 0 < len(self.name) <= MAX_NAME_LENGTH):
            found.append(f"name must be 1 to {MAX_NAME_LENGTH} characters of text, not {self.name!r}")
        if self.default_unhandled_error_code is not None:
            found.append(own_code_fault(self.default_unhandled_error_code, "default_unhandled_error_code"))
        if self.retries is not None and self.retry_policy is not None:
            found.append("give retries= or retry_policy=, not both")
        if self.retry_policy is not None and not isinstance(self.retry_policy, RetryPolicy):
            found.append(f"retry_policy must be a RetryPolicy, not {self.retry_policy!r}")
        if self.persist not in (None, True, False):
            found.append(f"persist must be True, False or None, not {self.persist!r}")
        if not isinstance(self.requeue_on_interrupt, bool):  # "no" would mean yes
            found.append(f"requeue_on_interrupt must be True or False, not {self.requeue_on_interrupt!r}")
        if self.persist is False and self.requeue_on_interrupt:
            found.append("requeue_on_interrupt=True needs persist=True: a memory-only task cannot come back")
        if self.executor is not None and self.executor not in get_args(Lane):
            found.append(f"executor must be 'async', 'thread' or 'process', not {self.executor!r}")
        found.extend((timeout_fault(self.timeout), self._shorthand_fault()))
        return [fault for fault in found if fault]

    def _shorthand_fault(self) -> str | None:
        if self.retries is None:
            return None
        try:
            RetryRule.shorthand(self.retries, seconds_of(self.retry_delay, "retry_delay"), self.retry_backoff)
        except ConfigurationError as exc:
            return str(exc)
        return None


def timeout_fault(timeout: Seconds | None) -> str | None:
    """What is wrong with a time limit, or None."""
    if timeout is None:
        return None
    try:
        return None if seconds_of(timeout, "timeout") > 0 else "timeout must be more than 0 seconds"
    except ConfigurationError as exc:
        return str(exc)


class Submitter(Protocol):
    """What a bound task needs of its manager."""

    def enqueue_call(
        self, definition: Definition, options: CallOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> TaskHandle[Any]:
        """Check the call and hand the task over."""
        ...


class Binding:
    """A task bound to its manager."""

    __slots__ = ("definition", "submitter")

    def __init__(self, definition: Definition, submitter: Submitter) -> None:
        self.definition = definition
        self.submitter = submitter


class TaskCall(Generic[P, C_co]):
    """A task with the options of one call; `enqueue` takes the arguments of the function."""

    __slots__ = ("_options", "_task")

    def __init__(self, task: "Task[P, C_co]", options: CallOptions) -> None:
        self._task: Task[P, C_co] = task
        self._options = options

    @overload
    def enqueue(
        self: "TaskCall[P, Coroutine[Any, Any, TaskResult[R] | Snooze]]", *args: P.args, **kwargs: P.kwargs
    ) -> TaskHandle[R]: ...
    @overload
    def enqueue(
        self: "TaskCall[P, Coroutine[Any, Any, R | Snooze]]", *args: P.args, **kwargs: P.kwargs
    ) -> TaskHandle[R]: ...
    @overload
    def enqueue(self: "TaskCall[P, TaskResult[R] | Snooze]", *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R]: ...
    @overload
    def enqueue(self: "TaskCall[P, R | Snooze]", *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R]: ...
    def enqueue(self, *args: Any, **kwargs: Any) -> TaskHandle[Any]:
        """Hand the task over. Never blocks; safe from any thread.

        Raises `TypeError` for a wrong signature, `ArgumentError` for an argument that cannot be stored, `QueueFull`,
        `ManagerStopping`, `ManagerStopped`, `WrongProcess`, or `ConfigurationError` for a task without a manager.
        """
        binding = self._task.binding
        if binding is None:
            raise self._task.unbound()
        return binding.submitter.enqueue_call(binding.definition, self._options, args, kwargs)

    def bound(self) -> tuple[Definition, CallOptions]:
        """What is to be run and how; raises `ConfigurationError` for a task without a manager."""
        if self._task.binding is None:
            raise self._task.unbound()
        return self._task.binding.definition, self._options

    def __repr__(self) -> str:
        return f"<TaskCall of {self._task.name!r}>"


@final
class Task(TaskCall[P, C_co]):
    """A function that can run in the background. Calling it just runs the function."""

    __slots__ = ("__dict__", "__weakref__", "_name", "binding", "fn", "options")

    def __init__(self, fn: Callable[P, C_co], options: TaskOptions) -> None:
        is_static = isinstance(fn, staticmethod)
        plain = fn.__func__ if isinstance(fn, staticmethod) else fn
        super().__init__(self, NO_OPTIONS)
        self.fn: Callable[P, C_co] = plain
        self.options = options
        self.binding: Binding | None = None
        raise_faults(f"task {getattr(plain, '__qualname__', plain)!r}", [*options.faults(), *_function_faults(plain)])
        self._name = options.name or default_name(plain)
        if len(self._name) > MAX_NAME_LENGTH:
            raise ConfigurationError(f"task name {self._name!r} is longer than {MAX_NAME_LENGTH}; give a shorter name=")
        if not is_static and _looks_like_method(plain):
            raise self._refused_method()
        for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
            self.__dict__[attribute] = getattr(plain, attribute, None)
        self.__dict__["__wrapped__"] = plain

    @property
    def name(self) -> str:
        """The registered name: `module:qualname` unless one was given."""
        return self._name

    @by_caller
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C_co:
        """Run the function here and now, as if it were not decorated; `current_task()` inside is detached.

        Only Starlette's `BackgroundTask`, which was given the task in the place of a function, enqueues it instead.
        """
        if inspect.iscoroutinefunction(self.fn):
            return cast("C_co", await_detached(self.fn(*args, **kwargs), self._name))
        return cast("C_co", call_detached(self.fn, self._name, args, kwargs))

    def with_options(
        self,
        *,
        delay: Seconds | None = None,
        run_at: datetime | None = None,
        good_until: datetime | None = None,
        priority: int | None = None,
        queue_name: str | None = None,
        timeout: Seconds | None = None,
        idempotency_key: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> TaskCall[P, C_co]:
        """The same task with options for one call. Raises `ConfigurationError` with everything that is wrong.

        `delay` (seconds) or `run_at` (aware) say when it may start, `good_until` (aware) when it is of no use any more;
        `priority` is 1 (first) to 100.
        """
        faults = [
            _instant_fault("run_at", run_at),
            _instant_fault("good_until", good_until),
            timeout_fault(timeout),
            None if priority is None else priority_fault(priority),
            None if queue_name is None else queue_name_fault(queue_name),
            _key_fault(idempotency_key),
            _tags_fault(tags),
            "give delay= or run_at=, not both" if delay is not None and run_at is not None else None,
        ]
        raise_faults(f"{self._name}.with_options", [fault for fault in faults if fault])
        return TaskCall(
            self,
            CallOptions(
                delay_s=None if delay is None else seconds_of(delay, "delay"),
                run_at_us=None if run_at is None else to_us(run_at),
                good_until_us=None if good_until is None else to_us(good_until),
                priority=priority,
                queue_name=queue_name,
                timeout_s=None if timeout is None else seconds_of(timeout, "timeout"),
                idempotency_key=idempotency_key,
                tags_text=dumps(dict(tags)) if tags else None,
            ),
        )

    def unbound(self) -> ConfigurationError:
        """What is raised when a task without a manager is enqueued."""
        return ConfigurationError(
            f"task {self._name!r} is bound to no manager; call manager.register(...) with it, or "
            "manager.discover(module)"
        )

    def __set_name__(self, owner: type, name: str) -> None:
        # A static method's Task is wrapped in the staticmethod and never gets here, unless it was decorated outside it.
        if _takes_self(self.fn):
            raise self._refused_method()

    def _refused_method(self) -> ConfigurationError:
        return ConfigurationError(
            f"{self._name!r} is a method; its object could not be stored. Make it a static method or a plain function"
        )

    def __repr__(self) -> str:
        return f"<Task {self._name!r}{'' if self.binding else ', bound to no manager'}>"


@final
class TaskDecorator:
    """What `@task(...)` and `@manager.task(...)` with options return: decorates one function."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[Callable[..., Any]], Task[..., Any]]) -> None:
        self._make = make

    def __call__(self, fn: Callable[P, T], /) -> Task[P, T]:
        """Make the task; raises `ConfigurationError` with everything that is wrong."""
        return cast("Task[P, T]", self._make(fn))


@overload
def task(fn: Callable[P, T], /) -> Task[P, T]: ...
@overload
def task(
    *,
    name: str | None = None,
    persist: bool | None = None,
    requeue_on_interrupt: bool = False,
    retries: int | None = None,
    retry_delay: Seconds = 1.0,
    retry_backoff: float = 2.0,
    retry_policy: RetryPolicy | None = None,
    exception_mapper: ExceptionMapper | None = None,
    default_unhandled_error_code: str | None = None,
    queue_name: str = DEFAULT_QUEUE,
    priority: int = 50,
    timeout: Seconds | None = None,
    executor: Lane | None = None,
) -> TaskDecorator: ...
def task(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Declare a task without a manager, for a library; `manager.register` or `manager.discover` binds it later."""
    if fn is not None:
        return Task(fn, TaskOptions())
    return TaskDecorator(lambda each: Task(each, TaskOptions(**options)))


def default_name(fn: Callable[..., Any]) -> str:
    """`module:qualname`, the same however the program was started."""
    return f"{import_name(fn.__module__)}:{fn.__qualname__}"


def import_name(module: str) -> str:
    """`__main__` as others would import it: by its import name under `-m`, else by the stem of its file."""
    if module not in ("__main__", "__mp_main__"):
        return module
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return cast("str", spec.name)
    path = getattr(main, "__file__", None)
    return Path(path).stem if path else module


def _function_faults(fn: Any) -> list[str]:
    if isinstance(fn, Task):
        return [
            f"a task is made from a function, not from {fn!r}; @manager.schedule(...) stands above @manager.task(...)"
        ]
    if not callable(fn):
        return [f"a task is made from a function, not from {fn!r}"]
    if not hasattr(fn, "__qualname__") or not hasattr(fn, "__module__"):
        return [f"{fn!r} has no name to be known by; wrap it in a function"]
    if inspect.isclass(fn):
        return ["a class is not a task; wrap it in a function"]
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        return ["a generator function is not a task; return the values instead"]
    return []


def _takes_self(fn: Callable[..., Any]) -> bool:
    try:
        first = next(iter(inspect.signature(fn).parameters), None)
    except (TypeError, ValueError):
        return False
    return first in ("self", "cls")


def _looks_like_method(fn: Callable[..., Any]) -> bool:
    """A function defined in a class body, taking self or cls. (Errors of `__set_name__` reach users wrapped
    before 3.12.)
    """
    container, _, _ = fn.__qualname__.rpartition(".")
    return bool(container) and not container.endswith("<locals>") and _takes_self(fn)


def _instant_fault(name: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, datetime):
        return f"{name} must be an aware datetime, not {value!r}"
    if value.utcoffset() is None:
        return f"{name} {value.isoformat()} has no time zone; use datetime.now(UTC) + ... or an aware datetime"
    return None


def _key_fault(key: object) -> str | None:
    if key is None or (isinstance(key, str) and key):
        return None
    return f"idempotency_key must be text of at least one character, or None, not {key!r}"


def _tags_fault(tags: object) -> str | None:
    if tags is None:
        return None
    if not isinstance(tags, Mapping) or not all(isinstance(k, str) and isinstance(v, str) for k, v in tags.items()):
        return f"tags must map text to text, not {tags!r}"
    return None
