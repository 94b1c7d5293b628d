"""Holds the tasks of one manager by name. A name in the file stands for a function only if it is here."""

import importlib
import inspect
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

from taskmanager.codec.annotations import annotated_function, is_async, named_function, signature_of
from taskmanager.codec.arguments import ArgumentCodec
from taskmanager.codec.results import ResultCodec
from taskmanager.codec.values import Codec
from taskmanager.engine.intake.intake import Door
from taskmanager.engine.words.definition import Definition
from taskmanager.engine.words.settings import Settings
from taskmanager.model.config import ExceptionMapper, RetryPolicy, raise_faults
from taskmanager.model.dataclass import dataclass
from taskmanager.model.errors import ConfigurationError, UnknownTask
from taskmanager.model.hooks import EventKind, Hooks, Listener, Middleware
from taskmanager.model.logger import logger, warn
from taskmanager.model.nearest import did_you_mean
from taskmanager.model.result import FailedTask, TaskError, seconds_of
from taskmanager.model.states import Lane
from taskmanager.model.wording import counted
from taskmanager.rules.retry import RetryRule, code_of
from taskmanager.task import DEFAULT_QUEUE, Binding, Submitter, Task, TaskCall

if TYPE_CHECKING:
    from taskmanager.duties.schedule import Schedule, ScheduleOptions
    from taskmanager.model.report import ManagerStatus

L = TypeVar("L", bound=Listener)
M = TypeVar("M", bound=Middleware)

_MAX_DEPTH: Final = 8
"""The depth at which the comparison of closures ends, because a function may hold itself."""
_IDLE: Final = (Door.HELD.value, Door.STOPPED.value)


@dataclass(frozen=True, slots=True)
class Defaults:
    """The manager's options for tasks that have none of their own. Raises `ConfigurationError` with every fault."""

    has_store: bool
    requeue_pending: bool
    retry_policy: RetryPolicy | None
    exception_mapper: ExceptionMapper
    default_code: str
    codec: Codec | None

    def __post_init__(self) -> None:
        faults = []
        if not isinstance(self.requeue_pending, bool):  # "no" would mean yes
            faults.append(f"requeue_pending must be True or False, not {self.requeue_pending!r}")
        if self.retry_policy is not None and not isinstance(self.retry_policy, RetryPolicy):
            faults.append(f"retry_policy must be a RetryPolicy, not {self.retry_policy!r}")
        if self.codec is not None and not all(callable(getattr(self.codec, way, None)) for way in ("encode", "decode")):
            faults.append(f"codec must have encode and decode, not be {self.codec!r}")
        if isinstance(self.codec, type):
            faults.append(f"codec must be an object, not its class: {self.codec.__name__}()")
        raise_faults("TaskManager", faults)


class Registry:
    """The tasks of one manager, by name."""

    def __init__(self, defaults: Defaults) -> None:
        self.defaults = defaults
        self.tasks: dict[str, Task[..., Any]] = {}
        self.definitions: dict[str, Definition] = {}
        self.schedules: dict[str, Schedule] = {}
        self._scheduled: dict[str, tuple[Task[..., Any], ScheduleOptions]] = {}
        self.hooks = Hooks()
        self._looked_at: set[str] = set()
        """The tasks that a start has looked at already."""

    def __repr__(self) -> str:
        return f"<Registry of {len(self.tasks)} tasks>"

    def bind(self, task: Task[..., Any], submitter: Submitter) -> None:
        """Bind a task to the manager.

        Raises `ConfigurationError` for a clash of names, for a bad lane, and if another manager of the task runs or
        holds calls.
        """
        if not isinstance(task, Task):
            raise ConfigurationError(f"{task!r} is not a task; decorate the function with @task, and register that")
        if task.binding is not None and task.binding.submitter is submitter:
            return
        if task.binding is not None:
            _check_may_move(task, task.binding.submitter.status())
        known = self.tasks.get(task.name)
        if known is not None:
            _check_stands_for_one(known, task)
        if (then := task.options.on_failure) is not None:  # a free one comes with the task that names it
            self.bind(then._task, submitter)  # noqa: SLF001  # it is of this package
        definition = define(task, self.defaults)
        if task.binding is not None:
            task.binding.forget(task.name)
        self.tasks[task.name] = task
        self.definitions[task.name] = definition
        task.binding = Binding(definition, submitter, self._forget)

    def _forget(self, name: str) -> None:
        self.tasks.pop(name, None)
        self.definitions.pop(name, None)
        for schedule in [each.name for each in self.schedules.values() if each.task_name == name]:
            del self.schedules[schedule], self._scheduled[schedule]

    def schedule(self, task: Task[..., Any], options: "ScheduleOptions") -> None:
        """Add a schedule of a bound task.

        Raises `ConfigurationError` for a second one of the same name, and for arguments that do not fit the function.
        """
        name = options.name or task.name
        known, said = self._scheduled.get(name, (None, None))
        if known is not None:
            is_another = known is task or (known.fn is task.fn and said != options)
            if is_another or not _is_defined_again(known, task):
                raise ConfigurationError(
                    f"there is a schedule {name!r} already, of {known.name}; give one of them a name="
                )
        from taskmanager.duties.schedule import make_schedule

        self.schedules[name] = make_schedule(name, self.definitions[task.name], options)
        self._scheduled[name] = (task, options)

    def listen_with(self, kinds: tuple[EventKind, ...]) -> Callable[[L], L]:
        """Return the decorator of a function that hears of these kinds of events, or of all.

        Raises `ConfigurationError` for an unknown kind, and the decorator for what cannot listen.
        """
        known = get_args(EventKind)
        for kind in kinds:
            if kind not in known:
                meant = did_you_mean(kind, known) if isinstance(kind, str) else "; write @manager.on() to hear all"
                raise ConfigurationError(f"there is no kind of event {kind!r}{meant}; there are {', '.join(known)}")

        def listen(fn: L) -> L:
            if isinstance(fn, Task) or not callable(fn) or not _takes(fn, 1):
                raise ConfigurationError(f"{fn!r} cannot listen: it must be a function of one parameter, the event")
            is_generator = _is_generator(fn)  # its body would not run
            if is_generator or not isinstance(fn, Hashable):
                reason = "a generator function" if is_generator else "not hashable"
                raise ConfigurationError(f"{fn!r} cannot listen, because it is {reason}; call it from a plain function")
            self.hooks.listen(fn, frozenset(kinds or known))
            return fn

        return listen

    def add_middleware(self, fn: M) -> M:
        """Put a function around each attempt that begins from now on. Raises `ConfigurationError` if it cannot be."""
        if isinstance(fn, Task) or not is_async(fn) or not _takes(fn, 2):
            raise ConfigurationError(
                f"{fn!r} cannot be a middleware, which is an async function of two parameters: "
                "async def timed(context, call): return await call()"
            )
        if fn in self.hooks.middlewares:
            raise ConfigurationError(f"{fn!r} is a middleware of this manager already")
        self.hooks.middlewares.append(fn)
        return fn

    def warn_at_start(self, settings: Settings) -> None:
        """Warn of tasks that cannot work as they are declared, once for each. Only a start knows all schedules.

        Warn of each queue that is run here and that nothing names. Mostly it is a slip, and its tasks would wait.
        """
        scheduled = {schedule.task_name for schedule in self.schedules.values()} if self.defaults.has_store else set()
        new = [each for name, each in self.definitions.items() if name not in self._looked_at]
        self._looked_at |= {each.name for each in new}
        for definition in new:
            for fault in _faults(definition, is_scheduled=definition.name in scheduled):
                warn(fault, UserWarning, *_place_of(definition))
        named = {DEFAULT_QUEUE, *(each.name for each in settings.queues)}
        named.update(each.queue_name for each in self.definitions.values())
        for name in sorted((settings.run_queues or frozenset()) - named):
            text = "queue %r is run here, and no function names it%s If it is right, add queues=[QueueConfig(%r)]"
            logger.warning(text, name, did_you_mean(name, named) or ".", name)

    @staticmethod
    def tasks_in(packages: Iterable[str]) -> Iterator[Task[..., Any]]:
        """Yield every task of these modules and, for packages, of their submodules, each once."""
        seen: set[int] = set()
        for package in packages:
            for module in _modules(package):
                for value in vars(module).values():
                    if isinstance(value, Task) and id(value) not in seen:
                        seen.add(id(value))
                        yield value

    def get(self, name: str) -> Task[..., Any]:
        """Return the task of that name. Raises `UnknownTask`."""
        if not isinstance(name, str):
            raise ConfigurationError(f"the name of a task must be text such as 'app.jobs:send', not {name!r}")
        task = self.tasks.get(name)
        if task is None:
            known = ", ".join(sorted(self.tasks)[:5]) or "none"
            more = f" and {len(self.tasks) - 5} more" if len(self.tasks) > 5 else ""
            meant = did_you_mean(name, self.tasks) or "."
            raise UnknownTask(
                f"no task is named {name!r}{meant} Registered: {known}{more}. Import its module, or register it"
            )
        return task


def _takes(fn: Callable[..., Any], count: int) -> bool:
    """Return whether a function can be called with that many arguments, as far as it says so."""
    try:
        signature_of(fn).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # it is written in C, and does not say
        return True
    return True


def _is_generator(fn: Callable[..., Any]) -> bool:
    behind = named_function(fn)
    return inspect.isgeneratorfunction(behind) or inspect.isasyncgenfunction(behind)


def _check_may_move(task: Task[..., Any], status: "ManagerStatus") -> None:
    """Raise if the task has another manager that runs or holds calls: a task has one manager at a time."""
    if not task.is_free:
        raise ConfigurationError(
            f"task {task.name!r} was declared by another manager, and a task has one manager; declare it with "
            "@taskmanager.task if it is to be registered with different ones, one after the other"
        )
    if status.state not in _IDLE or status.held_count:
        why = f"holds {counted(status.held_count, 'call')} for its start" if status.held_count else "runs"
        raise ConfigurationError(
            f"task {task.name!r} is bound to another manager, which {why}; a task has one manager at a time. Use that "
            "one, or stop it first"
        )


def _check_stands_for_one(known: Task[..., Any], task: Task[..., Any]) -> None:
    """Raise if another function has the name already: a restart finds the function by its name alone."""
    if known.fn is task.fn and known.options != task.options:
        raise ConfigurationError(
            f"there is a task {task.name!r} already, of the same function with other options; give one of them another "
            "name=, or use the task in the place of the function"
        )
    if not _is_defined_again(known, task):
        raise ConfigurationError(
            f"there is a task {task.name!r} already (from {vars(known)['__module__']}); give one of them another name="
        )


def _is_defined_again(known: Task[..., Any], task: Task[..., Any]) -> bool:
    """Return whether one module was executed twice (by reload, or as `__main__`) and defined one function again.

    A person at the prompt or in a notebook does so too, with other code.
    """
    if _is_same_code(inspect.unwrap(known.fn), inspect.unwrap(task.fn)):
        return True
    before, now = annotated_function(known.fn), annotated_function(task.fn)
    return (
        not hasattr(sys.modules.get("__main__"), "__file__")
        and before.__module__ == now.__module__ == "__main__"
        and before.__qualname__ == now.__qualname__
        and "<locals>" not in now.__qualname__
    )


def _is_same_code(a: Any, b: Any, depth: int = 0) -> bool:
    """Return whether both stand at one place in the source and, inside of a function, have the same surroundings.

    A decorator without `functools.wraps`, and a loop that defines functions, make many functions of one text. They
    differ in what they have closed over, or in the values of their defaults. At the top level of a module nothing is
    closed over, and a reload makes all defaults anew.
    """
    if a is b or depth > _MAX_DEPTH:
        return True
    one, other = _parts(a), _parts(b)
    return len(one) == len(other) and all(_is_same_value(x, y, depth) for x, y in zip(one, other, strict=True))


def _parts(fn: Any) -> tuple[object, ...]:
    """Return what must be the same: a function in C has its name only, a callable object its class and content."""
    if isinstance(fn, MethodType):
        return id(fn.__self__), *_parts(fn.__func__)
    if isinstance(fn, partial):
        return (fn.args, fn.keywords), *_parts(fn.func)
    if isinstance(fn, FunctionType):
        cells = map(_content, fn.__closure__ or ())
        around = (*cells, fn.__defaults__, fn.__kwdefaults__) if "<locals>" in fn.__qualname__ else ()
        return fn.__module__, fn.__qualname__, fn.__code__, *around
    if hasattr(fn, "__qualname__"):
        return (fn.__qualname__,)
    return type(fn).__module__, type(fn).__qualname__, getattr(fn, "__dict__", fn)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _is_same_value(x: Any, y: Any, depth: int) -> bool:
    if isinstance(x, FunctionType) and isinstance(y, FunctionType):
        return _is_same_code(x, y, depth + 1)
    try:
        return x is y or bool(x == y)
    except Exception:  # noqa: BLE001  # foreign comparisons may raise anything, or answer with an array
        return False


def define(task: Task[..., Any], defaults: Defaults) -> Definition:
    """Resolve all options of a task, once."""
    options = task.options
    is_persisted = defaults.requeue_pending if options.persist is None else options.persist
    if options.persist and not defaults.has_store:
        raise ConfigurationError(
            f"task {task.name!r} has persist=True, but the manager has snapshot_db=None and nowhere to keep it; give "
            "it a file, or leave persist out"
        )
    is_persisted = is_persisted and defaults.has_store
    lane = lane_of(task)
    codec = defaults.codec
    return Definition(
        name=task.name,
        fn=task.fn,
        lane=lane,
        queue_name=options.queue_name,
        priority=options.priority,
        timeout_s=None if options.timeout is None else seconds_of(options.timeout, "timeout"),
        is_persisted=is_persisted,
        requeue_on_interrupt=options.requeue_on_interrupt,
        retry=retry_rule(task, defaults.retry_policy),
        code_of=partial(
            code_of,
            task_mapper=options.exception_mapper,
            global_mapper=defaults.exception_mapper,
            task_default=options.default_unhandled_error_code,
            global_default=defaults.default_code,
        ),
        arguments=ArgumentCodec(task.fn, task_name=task.name, codec=codec),
        results=ResultCodec(task.fn, task_name=task.name, codec=codec),
        module=vars(task)["__module__"] or "",
        qualname=vars(task)["__qualname__"],
        on_failure=None if options.on_failure is None else _following(task.name, is_persisted, options.on_failure),
    )


def _following(name: str, is_persisted: bool, call: TaskCall[[FailedTask], Any]) -> Mapping[str, Any]:
    """Return what stands in the rows of a task about the task that its failure enqueues."""
    then, options = call.bound()
    for each, survives in ((name, is_persisted), (then.name, then.is_persisted)):
        if not survives:
            raise ConfigurationError(
                f"task {name!r} has on_failure={then.name!r}, and {each!r} is memory-only; give it persist=True, or "
                "the manager requeue_pending=True: a failure and what it enqueues are written together"
            )
    if (why := then.arguments.refusal_of(_SOME_FAILURE)) is not None:
        raise ConfigurationError(f"on_failure of task {name!r} must take one FailedTask, and does not: {why}")
    return then.as_following(options)


_SOME_FAILURE: Final = FailedTask("", "", TaskError("SOME_CODE"), 1, {})


def _place_of(definition: Definition) -> tuple[str, int]:
    """Return where its function stands, or only the module if it has no code of its own, such as a `partial`."""
    code = getattr(inspect.unwrap(definition.fn), "__code__", None)
    return (definition.module, 1) if code is None else (code.co_filename, code.co_firstlineno)


def _faults(definition: Definition, *, is_scheduled: bool) -> Iterator[str]:
    """Yield what cannot work: a parameter that cannot be stored, and a task that shall come back, but is not stored."""
    name = definition.name
    if not definition.is_persisted:
        if definition.requeue_on_interrupt and not is_scheduled:
            yield (
                f"task {name!r} has requeue_on_interrupt=True but nothing persists it; it will not come back. "
                "Give it persist=True, or the manager requeue_pending=True"
            )
        return
    for parameter, kind in definition.arguments.unstorable().items():
        yield (
            f"task {name!r} is persisted, but its parameter {parameter!r} takes {kind}, which cannot be stored: every "
            "call will be refused. Pass an id, a path or data, and open the rest inside the task; or give the task "
            "persist=False, and it is lost at a restart"
        )


def retry_rule(task: Task[..., Any], manager_policy: RetryPolicy | None) -> RetryRule:
    """Return the rule of the task, or else that of the manager. `retries=0` opts out of the manager's."""
    options = task.options
    if options.retries is not None:
        return RetryRule.shorthand(
            options.retries, seconds_of(options.retry_delay, "retry_delay"), options.retry_backoff
        )
    policy = options.retry_policy or manager_policy
    return RetryRule.none() if policy is None else RetryRule.from_policy(policy)


def lane_of(task: Task[..., Any]) -> Lane:
    """Return the lane that was asked for, or the one that fits. Raises `ConfigurationError` if it does not fit."""
    is_coroutine = is_async(task.fn)
    lane = task.options.executor
    if lane is None:
        return "async" if is_coroutine else "thread"
    if is_coroutine != (lane == "async"):
        kind = "an async function" if is_coroutine else "a plain function"
        fitting = "'async'" if is_coroutine else "'thread' or 'process'"
        raise ConfigurationError(f"task {task.name!r} is {kind}; its executor must be {fitting}, not {lane!r}")
    if lane == "process":
        _check_importable(task)
    assert lane in get_args(Lane)
    return lane


def _check_importable(task: Task[..., Any]) -> None:
    qualname: str = vars(task)["__qualname__"]
    if getattr(sys, "frozen", False):  # each child would be the whole program again, with children of its own
        raise ConfigurationError(
            f"task {task.name!r} cannot run in the process lane: a program that was frozen into an executable has no "
            "interpreter to start a child process with. Use executor='thread'"
        )
    if not inspect.isfunction(task.fn) and not inspect.isbuiltin(task.fn):
        raise ConfigurationError(
            f"task {task.name!r} cannot run in the process lane: a child process imports a function by its name, and "
            f"{qualname} is there without what {task.fn!r} is bound to. Define a function at the top level of a module"
        )
    if "<locals>" in qualname or "<lambda>" in qualname:
        raise ConfigurationError(
            f"task {task.name!r} cannot run in the process lane: {qualname} cannot be imported by a child process. "
            "Define it at the top level of a module"
        )


def _modules(name: str) -> Iterator[ModuleType]:
    import pkgutil

    if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
        raise ConfigurationError(f"discover takes names of modules and packages, such as 'app.jobs', not {name!r}")
    module = importlib.import_module(name)
    yield module
    for found in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
        yield importlib.import_module(found.name)
