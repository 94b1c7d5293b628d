"""Defining tasks: names, lanes, options, binding, and every definition that is refused."""

import functools
import inspect
import multiprocessing
import re
import sqlite3
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

import pytest

from taskmanager import (
    ConfigurationError,
    RetryPolicy,
    Subclasses,
    Task,
    TaskManager,
    TaskResult,
    UnknownTask,
    task,
)
from taskmanager.testing import isolated


async def top_level(n: int) -> int:
    """Docstring of a task."""
    return n


def plain(n: int) -> int:
    return n


# --- what a task is ---------------------------------------------------------------------------------------------------


def test_a_task_is_named_after_its_function(manager: TaskManager) -> None:
    """`module:qualname`, and it still looks like the function."""
    made = manager.task(top_level)
    assert isinstance(made, Task)
    assert made.name == f"{__name__}:top_level"
    assert (made.__doc__, made.__name__, inspect.signature(made)) == (  # type: ignore[attr-defined]
        "Docstring of a task.",
        "top_level",
        inspect.signature(top_level),
    )
    assert made.name in repr(made)


@pytest.mark.anyio
async def test_calling_a_task_just_runs_the_function(manager: TaskManager) -> None:
    """With its own types; no manager is involved, running or not."""
    assert await manager.task(top_level)(3) == 3
    assert manager.task(plain)(4) == 4
    assert task(executor="thread")(plain)(5) == 5
    with pytest.raises(TypeError):
        manager.task(name="other")(plain)()  # type: ignore[call-arg]


def test_bare_and_with_options_give_the_same(manager: TaskManager) -> None:
    """`@task`, `@task()` and `@task(...)`."""
    assert manager.task(top_level).options == manager.task()(top_level).options
    assert manager.task(name="other")(top_level).name == "other"
    assert task(top_level).options == task()(top_level).options


def test_a_static_method_is_a_task(manager: TaskManager) -> None:
    """In either order of the decorators."""

    class Reports:
        @staticmethod
        @manager.task(name="inner")
        def inner(n: int) -> int:
            return n

        @manager.task(name="outer")
        @staticmethod
        def outer(n: int) -> int:
            return n

    assert Reports.inner(1) == 1
    assert Reports.outer(2) == 2
    assert Reports().inner(3) == 3
    assert {"inner", "outer"} <= set(manager._registry.tasks)


# --- lanes ------------------------------------------------------------------------------------------------------------


def test_the_lane_follows_from_the_function_unless_given(manager: TaskManager) -> None:
    """Async functions on the loop, plain ones in threads; processes only when asked for."""

    def lane(fn: Callable[..., Any], **options: Any) -> str:
        made = manager.task(name=f"{fn.__name__}{options}", **options)(fn)
        assert made.binding is not None
        return made.binding.definition.lane

    assert lane(top_level) == "async"
    assert lane(top_level, executor="async") == "async"
    assert lane(plain) == "thread"
    assert lane(plain, executor="thread") == "thread"
    assert lane(plain, executor="process") == "process"


@pytest.mark.anyio
async def test_an_object_whose_call_is_async_is_an_async_function(manager: TaskManager) -> None:
    """A decorator may be a class. In a thread it would make a coroutine that nobody awaits."""

    class Decorator:
        def __init__(self, fn: Callable[..., Any]) -> None:
            functools.update_wrapper(self, fn)

        async def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return await self.__wrapped__(*args, **kwargs)  # type: ignore[attr-defined]  # update_wrapper sets it

    task = manager.task(Decorator(top_level))
    assert task.binding is not None
    assert task.binding.definition.lane == "async"
    assert await task(3) == await top_level(3)
    with pytest.raises(ConfigurationError, match="is an async function"):
        manager.task(name="other", executor="thread")(Decorator(top_level))


def test_a_frozen_program_has_no_process_lane(manager: TaskManager, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its executable is no interpreter: each child would be the whole program again, which starts children as well."""
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(ConfigurationError, match="frozen into an executable.*Use executor='thread'"):
        manager.task(executor="process")(plain)
    manager.task(plain)


def _local() -> Callable[[], None]:
    def inner() -> None: ...

    return inner


class _Holder:
    def method(self) -> None: ...


class _Sender:
    """A callable object: its call is asynchronous."""

    def __init__(self, host: str) -> None:
        self.host = host

    async def __call__(self, n: int) -> str:
        return f"{self.host}{n}"


class _Adder:
    """Another, whose call is not."""

    def __init__(self, start: int) -> None:
        self.start = start

    def __call__(self, n: int) -> int:
        return self.start + n

    def add(self, n: int, *, more: int = 0) -> int:
        return self.start + n + more


def times(a: int, b: int) -> int:
    return a * b


async def plus(a: int, b: int = 1) -> int:
    return a + b


@pytest.mark.parametrize(
    ("fn", "lane", "words"),
    [
        (top_level, "thread", "'async'"),
        (top_level, "process", "'async'"),
        (plain, "async", "'thread' or 'process'"),
        (_local(), "process", "top level"),
        (lambda: None, "process", "top level"),
        (_Holder().method, "process", "."),
        (plain, "fibre", "'fibre'"),
    ],
)
def test_a_lane_that_does_not_fit_is_refused(
    manager: TaskManager, fn: Callable[..., Any], lane: Any, words: str
) -> None:
    """At the definition, saying what would fit."""
    with pytest.raises(ConfigurationError, match=words):
        manager.task(executor=lane)(fn)


# --- what is no task --------------------------------------------------------------------------------------------------


def _generator() -> Any:
    yield 1


async def _async_generator() -> Any:
    yield 1


def _unreadable() -> None:
    """As some functions written in C, `time.sleep` for one."""


_unreadable.__signature__ = 7  # type: ignore[attr-defined]  # what inspect looks for


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (7, "from a function"),
        ("name", "from a function"),
        (_Holder, "class"),
        (_generator, "generator"),
        (_async_generator, "generator"),
        (functools.partial(plain, 1), "no name to be known by; give it name="),
        (_Sender("a"), "no name to be known by; give it name="),
        (functools.partial(_Holder), "no name"),
        (_unreadable, "its parameters cannot be found out"),
    ],
)
def test_a_value_that_is_no_function_is_no_task(manager: TaskManager, thing: Any, words: str) -> None:
    """Each with what to do instead."""
    for make in (manager.task, task):
        with pytest.raises(ConfigurationError, match=words):
            make(thing)


@pytest.mark.anyio
@pytest.mark.parametrize("persist", [True, False])
@pytest.mark.parametrize(
    ("fn", "args", "value"),
    [
        (functools.partial(plus, 2), (3,), 5),
        (functools.partial(plus, b=5), (3,), 8),
        (functools.partial(times, 2), (3,), 6),
        (functools.partial(functools.partial(times, 2), b=4), (), 8),
        (functools.update_wrapper(functools.partial(times, 2), times), (5,), 10),
        (_Sender("mail-"), (7,), "mail-7"),
        (_Adder(10), (7,), 17),
        (_Adder(10).add, (7,), 17),
        (functools.partial(_Adder(10).add, more=100), (7,), 117),
        (functools.partial(_Sender("mail-"), 8), (), "mail-8"),
    ],
)
async def test_a_name_is_enough_for_partials_and_callable_objects(
    fn: Callable[..., Any], args: tuple[Any, ...], value: object, *, persist: bool
) -> None:
    """They have no name of their own, and nothing else is missing: only the arguments of a call are stored."""
    manager = TaskManager("tasks.db")
    work = manager.task(name="made", persist=persist)(fn)
    async with isolated(manager):
        assert await work.enqueue(*args) == value
        direct = work(*args)
        assert (await direct if inspect.isawaitable(direct) else direct) == value
        with pytest.raises(TypeError, match=r"takes|missing|unexpected"):
            work.enqueue(*args, 1, 2, 3)
    assert manager.get_task("made") is work
    assert isinstance(work.__qualname__, str)  # type: ignore[attr-defined]  # of the function behind it


@pytest.mark.parametrize(
    "fn", [functools.partial(times, 2), functools.update_wrapper(functools.partial(times, 2), times), _Adder(1)]
)
def test_a_bound_function_is_refused_in_the_process_lane(manager: TaskManager, fn: Any) -> None:
    """A child imports the function by its name, and would run it without what it is bound to."""
    with pytest.raises(ConfigurationError, match="without what .* is bound to. Define a function at the top level"):
        manager.task(name="bound", executor="process")(fn)


def test_a_name_stands_for_one_partial_or_object(manager: TaskManager) -> None:
    """A module that is executed again makes it anew; one that is bound to something else is another task."""
    for fn, same, other in (
        (functools.partial(times, 2), functools.partial(times, 2), functools.partial(times, 3)),
        (_Adder(1), _Adder(1), _Adder(2)),
        (functools.partial(_Adder(1), 1), functools.partial(_Adder(1), 1), functools.partial(_Adder(1), 2)),
    ):
        name = repr(fn)[:40]
        manager.task(name=name)(fn)
        manager.task(name=name)(same)
        with pytest.raises(ConfigurationError, match="there is a task .* already"):
            manager.task(name=name)(other)


def test_a_task_of_a_task_is_refused(manager: TaskManager) -> None:
    """Decorated twice by mistake."""
    with pytest.raises(ConfigurationError, match="from a function"):
        manager.task(manager.task(plain))


def test_a_method_is_refused_when_its_class_is_made(manager: TaskManager) -> None:
    """Its object could not be stored. A plain function of that shape is fine."""
    with pytest.raises(ConfigurationError, match="static method"):

        class Service:
            @manager.task
            async def work(self, n: int) -> None: ...

    with pytest.raises(ConfigurationError, match="static method"):

        class Other:
            @classmethod
            @manager.task
            async def work(cls) -> None: ...

    assert manager._registry.tasks == {} or all("work" not in name for name in manager._registry.tasks)


def test_a_result_type_with_two_forms_is_refused(manager: TaskManager) -> None:
    """`X | TaskResult[X]`: nobody could say which one is meant."""

    async def job() -> int | TaskResult[int]:
        return 1

    with pytest.raises(ConfigurationError, match="TaskResult"):
        manager.task(job)


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"name": ""},
        {"name": "x" * 1_000},
        {"priority": 0},
        {"priority": 101},
        {"priority": "high"},
        {"queue_name": ""},
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": "10"},
        {"retries": -1},
        {"retries": 1, "retry_delay": -1},
        {"retries": 1, "retry_backoff": 0.5},
        {"retries": 1, "retry_policy": RetryPolicy(auto_retry_for=["X"])},
        {"retry_policy": 3},
        {"persist": "yes"},
        {"exception_mapper": {ValueError: "lower"}},
        {"exception_mapper": {ValueError: "ValueError"}},
        {"exception_mapper": {"ValueError": "CODE"}},
        {"default_unhandled_error_code": "ValueError"},
        {"persist": False, "requeue_on_interrupt": True},
    ],
)
def test_options_that_mean_nothing_are_refused(manager: TaskManager, options: dict[str, Any]) -> None:
    """At the definition, naming the option and the task."""
    for make in (manager.task, task):
        option = next(reversed(options))
        with pytest.raises(ConfigurationError, match=option) as caught:
            make(**options)(top_level)
        assert "top_level" in str(caught.value)


def test_all_faults_of_a_definition_are_named_at_once(manager: TaskManager) -> None:
    """Not one after the other."""
    with pytest.raises(ConfigurationError) as caught:
        manager.task(priority=0, timeout=0, exception_mapper={ValueError: "lower"})(top_level)
    assert all(word in str(caught.value) for word in ("priority", "timeout", "lower"))


def test_an_option_that_does_not_exist_is_a_type_error(manager: TaskManager) -> None:
    """As for any function."""
    with pytest.raises(TypeError, match="retires"):
        manager.task(retires=3)(top_level)  # type: ignore[call-overload]


def test_codes_of_a_mapper_may_match_subclasses(manager: TaskManager) -> None:
    """`Subclasses("CODE")` is a value of a mapper."""
    made = manager.task(exception_mapper={LookupError: Subclasses("NOT_FOUND")})(top_level)
    assert made.binding is not None
    assert made.binding.definition.code_of(KeyError) == "NOT_FOUND"


@pytest.mark.req("PR-15")
def test_everything_is_off_unless_given() -> None:
    """Nothing persists, nothing is retried."""
    definition = TaskManager("never-opened.db").task(top_level).binding.definition  # type: ignore[union-attr]
    assert (definition.is_persisted, definition.requeue_on_interrupt, definition.retry.max_retries) == (False, False, 0)


@pytest.mark.req("PR-05", "PR-06", "PR-12", "PR-13", "PR-14")
@pytest.mark.parametrize(
    ("of_manager", "of_task", "persisted"),
    [(False, None, False), (True, None, True), (False, True, True), (True, False, False), (True, True, True)],
)
def test_a_task_persists_as_it_says_or_as_its_manager_says(
    of_manager: bool, of_task: bool | None, persisted: bool
) -> None:
    """`persist=None` means what `requeue_pending` says."""
    manager = TaskManager("never-opened.db", requeue_pending=of_manager)
    made = manager.task(persist=of_task)(top_level)
    assert made.binding is not None
    assert made.binding.definition.is_persisted is persisted


def test_persisting_without_a_file_is_refused(manager: TaskManager) -> None:
    """There is nowhere to keep it."""
    with pytest.raises(ConfigurationError, match="snapshot_db=None"):
        manager.task(persist=True)(top_level)


@pytest.mark.req("PR-26")
@pytest.mark.anyio
async def test_requeue_on_interrupt_that_nothing_persists_warns(tmp_path: Path) -> None:
    """It saves nothing by itself. Said once, at the first start, and of the line that declares the task."""

    async def start(manager: TaskManager, **options: Any) -> None:
        manager.task(requeue_on_interrupt=True, **options)(top_level)
        for _ in range(2):
            async with manager:
                pass

    for manager in (TaskManager(tmp_path / "a.db"), TaskManager(None), TaskManager(None, requeue_pending=True)):
        with pytest.warns(UserWarning, match="requeue_pending=True") as caught:
            await start(manager)
        assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings(record=True, action="always") as caught:
        await start(TaskManager(tmp_path / "b.db", requeue_pending=True))
        await start(TaskManager(tmp_path / "c.db"), persist=True)
    assert not caught


@pytest.mark.anyio
async def test_a_task_that_only_a_schedule_makes_is_persisted(tmp_path: Path) -> None:
    """So there is nothing to warn of, in whatever order the two are declared."""
    manager = TaskManager(tmp_path / "tasks.db")

    @manager.schedule(every=3600)
    @manager.task(requeue_on_interrupt=True)
    async def above() -> None: ...

    @manager.task(requeue_on_interrupt=True)
    async def later() -> None: ...

    manager.schedule(every=3600)(later)
    with warnings.catch_warnings(record=True, action="always") as caught:
        async with manager:
            pass
    assert not caught


@pytest.mark.anyio
async def test_a_warning_that_a_filter_makes_an_error_ends_no_start(capsys: pytest.CaptureFixture[str]) -> None:
    """With `python -W error`, a deploy must not fail because of advice; it is printed all the same, with its line."""
    manager = TaskManager(None)
    manager.task(requeue_on_interrupt=True, name="job")(top_level)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with manager:
            pass
    assert re.match(rf"{re.escape(__file__)}:\d+: UserWarning: task 'job' has requeue_on", capsys.readouterr().err)


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"threads": 0},
        {"processes": -1},
        {"max_pending": 0},
        {"max_in_memory": 0},
        {"drain_timeout": -1},
        {"store_poll": 0},
        {"snapshot_interval": 0},
        {"commit_interval": -0.1},
        {"synchronous": "off"},
        {"queues": ["q"]},
        {"exception_mapper": {ValueError: "lower"}},
        {"default_unhandled_error_code": "ValueError"},
        {"snapshot_db": "mysql://host/db"},
        {"requeue_pending": "no"},
        {"retry_policy": 3},
        {"codec": "zlib"},
        {"recovery": {"check_interval_ms": 1_000}},
        {"instance_name": 3},
    ],
)
def test_a_manager_is_validated_when_it_is_made(options: dict[str, Any]) -> None:
    """Naming the field."""
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        TaskManager(**options)


def test_the_constructor_does_no_io(tmp_path: Path) -> None:
    """Importing an application must not make files."""
    TaskManager(tmp_path / "tasks.db").task(persist=True)(top_level).enqueue(1)
    assert list(tmp_path.iterdir()) == []


# --- binding ----------------------------------------------------------------------------------------------------------


def test_a_free_task_needs_a_manager(manager: TaskManager) -> None:
    """The message names `register`."""
    free = task(name="free")(top_level)
    with pytest.raises(ConfigurationError, match="register"):
        free.enqueue(1)
    with pytest.raises(ConfigurationError, match="register"):
        free.with_options(delay=1).enqueue(1)
    manager.register(free)
    free.enqueue(1)
    manager.register(free)


def test_a_task_has_one_manager(manager: TaskManager) -> None:
    """Two would run it twice."""
    made = manager.task(top_level)
    with pytest.raises(ConfigurationError, match="one manager"):
        TaskManager(None).register(made)


@pytest.mark.anyio
async def test_a_free_task_goes_from_a_manager_that_does_not_run_to_another(manager: TaskManager) -> None:
    """A library's tasks, and a program that makes its manager in a function, can have a new one in every test.

    It has one manager at a time: not while calls of it wait for a start, and not while it may be running.
    """
    free = task(name="free")(top_level)
    manager.register(free)
    manager.schedule(every=60, name="often", args=(1,))(free)
    second = TaskManager(None)
    async with isolated(manager):
        assert await free.enqueue(1) == 1
        with pytest.raises(ConfigurationError, match="which runs"):
            second.register(free)
    second.register(free)
    with pytest.raises(UnknownTask):
        manager.enqueue("free", 1)
    async with second, manager:
        assert await free.enqueue(1) == 1
        assert await manager.schedules() == ()

    third = TaskManager(None)
    third.register(free)
    free.enqueue(1)
    with pytest.raises(ConfigurationError, match="holds 1 call for its start"):
        TaskManager(None).register(free)


def test_a_clash_of_names_is_refused(manager: TaskManager) -> None:
    """Names in the store must mean one function."""
    manager.task(name="same")(top_level)
    with pytest.raises(ConfigurationError, match="'same'"):
        manager.task(name="same")(plain)


def test_the_same_function_defined_anew_is_no_clash(manager: TaskManager) -> None:
    """A module that was reloaded."""
    manager.task(name="same")(top_level)
    second = manager.task(name="same")(top_level)
    assert manager.get_task("same") is second


def test_one_function_with_two_sets_of_options_is_a_clash(manager: TaskManager) -> None:
    """After a restart the task in the file is run by its name: with whose options? Two names are fine."""
    manager.task(name="same", retries=1)(top_level)
    manager.task(name="same", retries=1)(top_level)
    with pytest.raises(ConfigurationError, match="other options"):
        manager.task(name="same", retries=2)(top_level)
    manager.task(name="other", retries=2)(top_level)


def test_a_function_that_is_typed_anew_takes_the_place_of_the_one_before(
    manager: TaskManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook has no file; its cells are changed and run again. In a program the second one is a clash."""
    monkeypatch.setitem(sys.modules, "__main__", notebook := ModuleType("__main__"))
    notebook.__dict__["manager"] = manager
    cell = "@manager.schedule(every=60)\n@manager.task(name='job')\nasync def job(n: int = 0) -> int: return n + {}\n"
    exec(cell.format(1), notebook.__dict__)  # as a notebook does
    first = notebook.__dict__["job"]
    exec(cell.format(2), notebook.__dict__)
    assert manager.get_task(first.name) is notebook.__dict__["job"] is not first
    notebook.__file__ = "app.py"
    with pytest.raises(ConfigurationError, match="another name="):
        exec(cell.format(3), notebook.__dict__)


def _unwrapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator without `functools.wraps`: all that it makes have one name and one code."""

    def inner(*args: Any) -> Any:
        return fn(*args)

    return inner


def test_functions_that_only_share_their_text_are_a_clash(manager: TaskManager) -> None:
    """Else the second would run in the place of the first, wherever a task is found by its name."""

    def of(city: str) -> Callable[[], str]:
        def job() -> str:
            return city

        return job

    def with_default(city: str) -> Callable[..., str]:
        def job(here: str = city) -> str:
            return here

        return job

    for first, again, second in (
        (_unwrapped(plain), _unwrapped(plain), _unwrapped(top_level)),
        (of("Rome"), of("Rome"), of("Oslo")),
        (with_default("Rome"), with_default("Rome"), with_default("Oslo")),
        ((holder := _Holder()).method, holder.method, _Holder().method),
    ):
        local = TaskManager(None)
        local.task(first)
        local.task(again)  # the same once more, as after a reload
        with pytest.raises(ConfigurationError, match="another name="):
            local.task(second)
        local.task(name="other")(second)


def test_discover_binds_every_free_task_of_a_package(
    manager: TaskManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its modules and sub-packages; what has a manager already is left alone."""
    package = tmp_path / "jobs_of_discover"
    (package / "deep").mkdir(parents=True)
    source = textwrap.dedent(
        """
        from taskmanager import task

        @task
        async def job_{0}(n: int) -> int:
            return n
        """
    )
    for number, name in enumerate(("__init__.py", "mail.py", "deep/__init__.py", "deep/late.py")):
        (package / name).write_text(source.format(number))
    monkeypatch.syspath_prepend(tmp_path)
    found = manager.discover("jobs_of_discover")
    assert sorted(each.name for each in found) == [
        "jobs_of_discover.deep.late:job_3",
        "jobs_of_discover.deep:job_2",
        "jobs_of_discover.mail:job_1",
        "jobs_of_discover:job_0",
    ]
    assert manager.discover("jobs_of_discover") == found
    assert TaskManager(None).discover("jobs_of_discover") == ()
    with pytest.raises(ModuleNotFoundError):
        manager.discover("no_such_package_of_ours")


def test_an_annotation_missing_at_run_time_is_named(manager: TaskManager) -> None:
    """Arguments are stored by the annotations."""

    async def job(when: "Missing") -> None: ...  # type: ignore[name-defined] # noqa: F821  # that is the point

    with pytest.raises(ConfigurationError, match=r"when|Missing"):
        manager.task(job)


@pytest.mark.parametrize("how", ["script", "module"])
def test_main_is_replaced_by_the_name_others_import_it_by(tmp_path: Path, how: str) -> None:
    """So that a stored task is known however the program is started, and in the children of `multiprocessing`."""
    (tmp_path / "program.py").write_text(
        textwrap.dedent(
            """
            from taskmanager import TaskManager
            manager = TaskManager(None)

            @manager.task
            async def job() -> None: ...

            def say() -> None:
                print(job.name, flush=True)

            if __name__ == "__main__":
                import multiprocessing
                say()
                for method in multiprocessing.get_all_start_methods():
                    child = multiprocessing.get_context(method).Process(target=say)
                    child.start()
                    child.join()
                    print(method, flush=True)
            """
        )
    )
    command = ["program.py"] if how == "script" else ["-m", "program"]
    run = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=True)
    in_children = [f"program:job\n{each}\n" for each in multiprocessing.get_all_start_methods()]
    assert run.stdout == "".join(["program:job\n", *in_children])


@pytest.mark.anyio
async def test_a_parameter_that_can_never_be_stored_is_said_at_the_start(tmp_path: Path) -> None:
    """Not by the first user whose call is refused. What may still be passed, and memory-only tasks, are left alone."""
    manager = TaskManager(tmp_path / "tasks.db", requeue_pending=True)

    @manager.task(name="wrong")
    async def wrong(files: list[TextIO], connection: sqlite3.Connection) -> None: ...

    @manager.task(name="right")
    async def right(path: Path, text: str | None, value: object, log: TextIO | None = None) -> None: ...

    @manager.task(name="memory", persist=False)
    async def memory(connection: sqlite3.Connection) -> None: ...

    with pytest.warns(UserWarning, match="can") as said:
        async with manager:
            pass
    assert [str(each.message).partition(", which")[0] for each in said] == [
        "task 'wrong' is persisted, but its parameter 'files' takes TextIO",
        "task 'wrong' is persisted, but its parameter 'connection' takes Connection",
    ]
    assert {each.filename for each in said} == {__file__}
    with warnings.catch_warnings(record=True, action="always") as said:  # once is enough
        async with manager:
            pass
    assert not said
