"""`Task`: a decorated function that can be called, enqueued, and given options for one call."""

import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from functools import partial, wraps
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    final,
    get_args,
    overload,
)

from taskmanager.calling import by_caller, call_directly
from taskmanager.codec.annotations import named_function, signature_of
from taskmanager.model.call_options import NO_OPTIONS, CallOptions
from taskmanager.model.checks import is_storable, tags_fault, timeout_fault
from taskmanager.model.clock import to_us
from taskmanager.model.config import (
    MAX_NAME_LENGTH,
    ExceptionMapper,
    RetryPolicy,
    mapper_faults,
    name_fault,
    own_code_fault,
    priority_fault,
    queue_name_fault,
    raise_faults,
)
from taskmanager.model.dataclass import dataclass
from taskmanager.model.errors import ConfigurationError
from taskmanager.model.known_words import known_words, shows_options, with_known_words
from taskmanager.model.result import FailedTask, Seconds, Snooze, TaskResult, seconds_fault, seconds_of
from taskmanager.model.states import Lane
from taskmanager.rules.retry import shorthand_faults

if TYPE_CHECKING:
    from taskmanager.engine.words.definition import Definition
    from taskmanager.handle import TaskHandle
    from taskmanager.model.report import ManagerStatus

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
C_co = TypeVar("C_co", covariant=True)

DEFAULT_QUEUE: Final = "default"


@with_known_words("task()")
@dataclass(frozen=True, slots=True)
class TaskOptions:
    """The options of a decorator, checked as far as that is possible without a manager."""

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
    on_failure: "TaskCall[[FailedTask], Any] | None" = None

    def faults(self) -> list[str]:
        """Return everything that is wrong with these options."""
        found = [
            queue_name_fault(self.queue_name),
            priority_fault(self.priority),
            *mapper_faults(self.exception_mapper),
        ]
        if self.name is not None:
            found.append(name_fault(self.name))
        if self.default_unhandled_error_code is not None:
            found.append(own_code_fault(self.default_unhandled_error_code, "default_unhandled_error_code"))
        if self.retries is not None and self.retry_policy is not None:
            found.append("give retries= or retry_policy=, not both")
        if self.retry_policy is not None and not isinstance(self.retry_policy, RetryPolicy):
            found.append(f"retry_policy must be a RetryPolicy, not {self.retry_policy!r}")
        if self.persist is not None and not isinstance(self.persist, bool):
            found.append(f"persist must be True, False or None, not {self.persist!r}")
        if not isinstance(self.requeue_on_interrupt, bool):  # "no" would mean yes
            found.append(f"requeue_on_interrupt must be True or False, not {self.requeue_on_interrupt!r}")
        if self.persist is False and self.requeue_on_interrupt:
            found.append("requeue_on_interrupt=True needs persist=True: a memory-only task cannot come back")
        if self.executor is not None and self.executor not in get_args(Lane):
            found.append(f"executor must be 'async', 'thread' or 'process', not {self.executor!r}")
        found.extend((timeout_fault(self.timeout), *self._shorthand_faults(), self._on_failure_fault()))
        return [fault for fault in found if fault]

    def _on_failure_fault(self) -> str | None:
        then = self.on_failure
        if then is None:
            return None
        if isinstance(then, TaskCall):
            return then._options.fault_in_many_calls("on_failure", then._task.name)  # noqa: SLF001  # of this module
        return f"on_failure must be a task, with or without options, not {then!r}; decorate the function first"

    def _shorthand_faults(self) -> list[str]:
        if self.retries is not None:
            return shorthand_faults(self.retries, self.retry_delay, self.retry_backoff)
        given = [name for name in ("retry_delay", "retry_backoff") if getattr(self, name) != getattr(_DEFAULTS, name)]
        return [f"{name} means nothing without retries=; a retry_policy has delays of its own" for name in given]


_DEFAULTS: Final = TaskOptions()


def decorate(make: Callable[[Any, TaskOptions], Any], args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:
    """Make the task if the decorator is used bare, or return the decorator that makes it with these options."""
    options = TaskOptions(**given)
    if len(args) > 1:
        raise TypeError(f"a task is made from one function, not from {len(args)} arguments; options are keywords")
    return make(args[0], options) if args else TaskDecorator(lambda fn: make(fn, options))


def in_brackets(method: Callable[P, R]) -> Callable[P, R]:
    """Refuse a function as the first argument: the decorator was written without brackets."""

    @wraps(method)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if len(args) > 1:
            name = method.__name__
            raise TypeError(f"{name} takes keywords in brackets, as @manager.{name}(every=60), not {args[1]!r}")
        return method(*args, **kwargs)

    return checked


class Submitter(Protocol):
    """The part of a manager that a bound task uses."""

    def status(self) -> "ManagerStatus":
        """Describe the manager as it is now."""
        ...

    def enqueue_call(
        self, definition: "Definition", options: CallOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> "TaskHandle[Any]":
        """Check the call and hand the task over."""
        ...


class Binding(NamedTuple):
    """The link from a task to its manager. `forget` removes it, so that another manager can have the task."""

    definition: "Definition"
    submitter: Submitter
    forget: Callable[[str], None]


class TaskCall(Generic[P, C_co]):
    """A task with the options of one call. `enqueue` takes the arguments of the function."""

    __slots__ = ("_options", "_task")

    def __init__(self, task: "Task[P, C_co]", options: CallOptions) -> None:
        self._task: Task[P, C_co] = task
        self._options = options

    if not TYPE_CHECKING:  # a checker refuses such a call, and is right unless Starlette makes it

        @by_caller
        def __call__(self, /, *args, **kwargs):
            """Raises `TypeError`: options are for `enqueue`, which a `BackgroundTask` of Starlette calls instead."""
            advice = f"use .enqueue(...), or call {self._task.name} itself"
            raise TypeError(f"a task with options is not called but enqueued: {advice}")

    @overload
    def enqueue(
        self: "TaskCall[P, Coroutine[Any, Any, TaskResult[R] | Snooze]]", *args: P.args, **kwargs: P.kwargs
    ) -> "TaskHandle[R]": ...
    @overload
    def enqueue(
        self: "TaskCall[P, Coroutine[Any, Any, R | Snooze]]", *args: P.args, **kwargs: P.kwargs
    ) -> "TaskHandle[R]": ...
    @overload
    def enqueue(self: "TaskCall[P, TaskResult[R] | Snooze]", *args: P.args, **kwargs: P.kwargs) -> "TaskHandle[R]": ...
    @overload
    def enqueue(self: "TaskCall[P, R | Snooze]", *args: P.args, **kwargs: P.kwargs) -> "TaskHandle[R]": ...
    def enqueue(self, /, *args: Any, **kwargs: Any) -> "TaskHandle[Any]":  # type: ignore[misc]  # for a keyword named self
        """Hand the task over, and return its handle. It never blocks, and may be called from any thread.

        Raises `TypeError` for a wrong signature, `ArgumentError` for an argument that cannot be stored, `QueueFull`,
        `ManagerStopping`, `ManagerStopped`, `WrongProcess`, or `ConfigurationError` for a task without a manager.
        """
        binding = self._task.binding
        if binding is None:
            raise self._task.unbound()
        return binding.submitter.enqueue_call(binding.definition, self._options, args, kwargs)

    def bound(self, submitter: Submitter | None = None) -> "tuple[Definition, CallOptions]":
        """Return what is to be run and how. Raises `ConfigurationError` if the task has no manager, or another one."""
        if self._task.binding is None:
            raise self._task.unbound()
        if submitter is not None and self._task.binding.submitter is not submitter:
            raise ConfigurationError(f"task {self._task.name!r} is bound to another manager; use that one")
        return self._task.binding.definition, self._options

    def __repr__(self) -> str:
        return f"<TaskCall of {self._task.name!r}>"


@final
class Task(TaskCall[P, C_co]):
    """A function that can run in the background. Calling it runs the function directly."""

    __slots__ = ("__dict__", "__weakref__", "_name", "binding", "fn", "is_free", "options")

    def __init__(self, fn: Callable[P, C_co], options: TaskOptions, *, is_free: bool = False) -> None:
        is_static = isinstance(fn, staticmethod)
        plain = fn.__func__ if isinstance(fn, staticmethod) else fn
        super().__init__(self, NO_OPTIONS)
        self.fn: Callable[P, C_co] = plain
        self.options = options
        self.binding: Binding | None = None
        self.is_free = is_free
        """Whether it was declared without a manager. Then it may go from one that does not run to another."""
        own_name = getattr(plain, "__qualname__", None)
        subject = f"task {own_name!r}" if isinstance(own_name, str) and callable(plain) else "task"
        raise_faults(subject, [*options.faults(), *_function_faults(plain, options.name)])
        named = named_function(plain)
        self._name = options.name or default_name(plain)
        if len(self._name) > MAX_NAME_LENGTH:
            raise ConfigurationError(f"task name {self._name!r} is longer than {MAX_NAME_LENGTH}; give a shorter name=")
        if not is_static and _looks_like_method(plain, named.__qualname__):
            raise self._refused_method()
        for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
            self.__dict__[attribute] = getattr(named, attribute, None)
        self.__dict__["__wrapped__"] = plain

    @property
    def name(self) -> str:
        """The registered name: `module:qualname` unless one was given."""
        return self._name

    @by_caller
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> C_co:
        """Run the function directly, as if it were not decorated. `current_task()` inside is detached.

        There is one exception: a call by Starlette's `BackgroundTask` enqueues the task instead.
        """
        return cast("C_co", call_directly(self.fn, args, kwargs, self._name))

    @known_words("with_options()")
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
        """Return the same task with options for one call. Raises `ConfigurationError` with everything that is wrong.

        It starts not before `delay` (seconds) has passed or `run_at` (aware) has come, and not after `good_until`
        (aware). `priority` is from 1 (first) to 100, `timeout` is in seconds per attempt. Two calls of one task with
        the same `idempotency_key` are the same task. `tags` map text to text.
        """
        from taskmanager.codec.values import dumps

        faults = [
            _instant_fault("run_at", run_at),
            _instant_fault("good_until", good_until),
            timeout_fault(timeout),
            None if priority is None else priority_fault(priority),
            None if queue_name is None else queue_name_fault(queue_name),
            None if delay is None else seconds_fault(delay, "delay"),
            _key_fault(idempotency_key),
            tags_fault(tags),
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
        """Return the error for a task that has no manager."""
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


def bound_call(call: object, submitter: Submitter) -> "tuple[Definition, CallOptions]":
    """Return what was given as a task of this manager, with or without options. Raises `ConfigurationError`."""
    if not isinstance(call, TaskCall):
        raise ConfigurationError(f"{call!r} is not a task; decorate the function with @manager.task, and give that")
    return call.bound(submitter)


@final
class TaskDecorator:
    """Decorates one function. `@task(...)` and `@manager.task(...)` with options return it."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[Callable[..., Any]], Task[..., Any]]) -> None:
        self._make = make

    def __call__(self, fn: Callable[P, T], /) -> Task[P, T]:
        """Make the task. Raises `ConfigurationError` with everything that is wrong."""
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
    on_failure: "TaskCall[[FailedTask], Any] | None" = None,
) -> TaskDecorator: ...
@shows_options(TaskOptions)
def task(*args: Any, **options: Any) -> Any:
    """Declare a task without a manager, for a library. `manager.register` or `manager.discover` binds it later."""
    return decorate(partial(Task, is_free=True), args, options)


def default_name(fn: Callable[..., Any]) -> str:
    """Return `module:qualname`, the same however the program was started."""
    return f"{import_name(fn.__module__)}:{fn.__qualname__}"


def import_name(module: str) -> str:
    """Return the name by which others import `__main__`: its import name under `-m`, else the stem of its file."""
    if module not in ("__main__", "__mp_main__"):
        return module
    main = sys.modules.get(module)  # a child of `multiprocessing` has another `__main__` while it loads this one
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return cast("str", spec.name)
    path = getattr(main, "__file__", None)
    if not path:
        return module
    from pathlib import Path

    return Path(path).stem


def _function_faults(fn: Any, name: str | None) -> list[str]:
    if isinstance(fn, Task) or (isinstance(fn, partial) and isinstance(fn.func, Task)):
        return [
            f"a task is made from a function, not from {fn!r}; @manager.schedule(...) stands above @manager.task(...)"
        ]
    if isinstance(fn, str):
        return [f"a task is made from a function, not from {fn!r}; a name is given as name={fn!r}"]
    if isinstance(fn, classmethod):
        return ["a class method is not a task; its class could not be stored. Make it a static method"]
    if not callable(fn):
        return [f"a task is made from a function, not from {fn!r}"]
    is_named = isinstance(getattr(fn, "__qualname__", None), str) and isinstance(getattr(fn, "__module__", None), str)
    if not is_named and name is None:
        return [f"{fn!r} has no name to be known by; give it name=..., or wrap it in a function"]
    behind = named_function(fn)
    if inspect.isclass(behind):
        return ["a class is not a task; wrap it in a function"]
    if inspect.isgeneratorfunction(behind) or inspect.isasyncgenfunction(behind):
        return ["a generator function is not a task; return the values instead"]
    try:
        signature_of(fn)
    except (TypeError, ValueError) as exc:  # of some functions written in C nobody knows what they take
        return [f"its parameters cannot be found out ({exc}); wrap it in a function"]
    return []


def _takes_self(fn: Callable[..., Any]) -> bool:
    return next(iter(signature_of(fn).parameters), None) in ("self", "cls")


def _looks_like_method(fn: Callable[..., Any], qualname: str) -> bool:
    """Return whether the function was defined in a class body and takes self or cls.

    `__set_name__` cannot tell this: before Python 3.12 its errors reach users wrapped.
    """
    container, _, _ = qualname.rpartition(".")
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
    if key is None or (key and is_storable(key)):
        return None
    return f"idempotency_key must be text of at least one character, or None, not {key!r}"
