"""Calls that are made wrongly: the wrong object, the wrong place, the wrong loop. Each is told what to do instead."""

import asyncio
import functools
import io
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from taskmanager import (
    ArgumentError,
    ConfigurationError,
    ManagerStopped,
    NotInTask,
    NotPersisted,
    Snooze,
    TaskCancelled,
    TaskError,
    TaskHandle,
    TaskManager,
    TaskStatus,
    UnknownTask,
    current_instance,
    current_task,
    task,
)
from taskmanager.testing import isolated

DEADLINE_S = 20.0


async def work(n: int = 1) -> int:
    """A task."""
    return n


def plain(n: int = 1) -> int:
    """A task of the thread lane."""
    return n


class Tool:
    """What people decorate beside functions."""

    def __call__(self, n: int) -> int:
        return n

    @classmethod
    def made(cls) -> None: ...


manager = TaskManager("never-opened.db")
kept = manager.task(persist=True)(work)
other = TaskManager("another.db").task(persist=True, name="other")(work)
memory = manager.task(name="memory")(work)
free = task(name="free")(work)
anything: Any = manager
anyone: Any = kept


# --- declaring and enqueueing, outside of any loop --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: anything.task(retires=3), TypeError, "no option 'retires'; did you mean 'retries'"),
        (lambda: anything.task(max_retries=3), TypeError, "did you mean 'retries'"),
        (lambda: anything.task(queue="mail"), TypeError, "did you mean 'queue_name'"),
        (lambda: anything.task(zzz=3), TypeError, "there are name, persist"),
        (lambda: anything.task(work, plain), TypeError, "one function"),
        (lambda: anything.task("send_mail"), ConfigurationError, "name='send_mail'"),
        (lambda: anything.task(None), ConfigurationError, "made from a function"),
        (lambda: anything.task(Tool), ConfigurationError, "class"),
        (lambda: anything.task(Tool()), ConfigurationError, "wrap it in a function"),
        (lambda: anything.task(functools.partial(plain, 1)), ConfigurationError, "wrap it in a function"),
        (lambda: anything.task([].append), ConfigurationError, "wrap it in a function"),
        (lambda: anything.task(vars(Tool)["made"]), ConfigurationError, "static method"),
        (lambda: anything.task(property(plain)), ConfigurationError, "made from a function"),
        (lambda: anything.schedule(work), TypeError, "brackets"),
        (lambda: anything.schedule("0 3 * * *"), TypeError, "keywords"),
        (lambda: anything.schedule(), ConfigurationError, "cron= or every="),
        (lambda: manager.task(manager.schedule(every=60)(plain)), ConfigurationError, "stands above"),
        (lambda: manager.schedule(every=60)(lambda n: n), ConfigurationError, "'n'"),
        (lambda: anything.register(work), ConfigurationError, "decorate the function with @task"),
        (lambda: anything.register([free]), ConfigurationError, "is not a task"),
        (lambda: anything.register(kept.with_options(delay=1)), ConfigurationError, "is not a task"),
        (lambda: manager.register(other), ConfigurationError, "one manager"),
        (lambda: anything.discover(3), ConfigurationError, "'app.jobs'"),
        (lambda: manager.discover(".jobs"), ConfigurationError, "'app.jobs'"),
        (lambda: manager.discover(""), ConfigurationError, "'app.jobs'"),
        (lambda: manager.get_task("wrok"), UnknownTask, "Import its module, or register it"),
        (lambda: anything.get_task(work), ConfigurationError, "must be text"),
        (lambda: anything.enqueue(kept, 1), ConfigurationError, "must be text"),
        (lambda: free.enqueue(1), ConfigurationError, "register"),
        (lambda: anyone.enqueue(1, 2), TypeError, "takes from 0 to 1 positional arguments but 2 were given"),
        (lambda: anyone.enqueue(1, delay=60), TypeError, "'delay'"),
        (lambda: anyone.enqueue("seven"), ArgumentError, "Expected `int`, got `str`"),
        (lambda: anyone.with_options(60), TypeError, "positional"),
        (lambda: anyone.with_options(dely=60), TypeError, "dely"),
        (lambda: anything.handle(kept), ConfigurationError, "handle.task_id"),
        (lambda: anything.handle(None), ConfigurationError, "handle.task_id"),
        (lambda: anything.submit_in(sqlite3.connect(":memory:"), work), ConfigurationError, "decorate"),
        (lambda: anything.submit_in(kept, sqlite3.connect(":memory:")), ConfigurationError, "is not a task"),
        (lambda: anything.submit_in("tasks.db", kept), ConfigurationError, "insert_statement"),
        (lambda: anything.submit_in(sqlite3.connect(":memory:").cursor(), kept), ConfigurationError, "connection"),
        (lambda: anything.submit_in(sqlite3.connect(":memory:"), memory), ConfigurationError, "persist=True"),
        (lambda: anything.insert_statement(work), ConfigurationError, "is not a task"),
        (lambda: manager.insert_statement(other), ConfigurationError, "another manager"),
        (lambda: anything.run(3), TypeError, "one async function"),
        (lambda: anything.run(work, work), TypeError, "one async function"),
        (current_task, NotInTask, "inside a running task"),
    ],
)
def test_a_wrong_call_is_told_what_is_right(call: Callable[[], object], error: type[Exception], words: str) -> None:
    """A mistake in the way of calling is Python's `TypeError`, one in what is given our own. Both say the next step."""
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value)
    assert "TaskOptions" not in str(caught.value)


def test_run_takes_the_function_and_starts_nothing_otherwise(tmp_path: Path) -> None:
    """`run(main())` and `run(3)` are found before the file is opened; a plain function when it has been called."""
    local: Any = TaskManager(tmp_path / "tasks.db")
    with pytest.raises(TypeError, match=r"not called: manager.run\(main\)"):
        local.run(work())
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(TypeError, match="it returned 1"):
        local.run(plain)
    assert local.run(work) == 1


@pytest.mark.anyio
async def test_a_task_of_another_manager_is_not_added() -> None:
    """Its own manager would never know of it."""
    async with asynccontextmanager(manager.background)() as background:
        add: Any = background.add_task
        with pytest.raises(ConfigurationError, match="another manager"):
            add(other, 1)
        with pytest.raises(ConfigurationError, match="decorate"):
            add(work, 1)


# --- acting, in a manager that runs -----------------------------------------------------------------------------------

NO_TEXT = [None, 3, True, b"x", [], {}, object(), "\ud800"]
NO_STATUS = ["failed", "x", "", 3, True, b"x", [], {}, TaskManager]
NO_TIMEOUT = ["3", "", b"x", [], {}, object(), True, float("nan"), timedelta(seconds=3)]
NO_THRESHOLD = [None, "2", [], {}, object(), True, -1, float("nan"), timedelta(minutes=2)]
NO_AGE = [3, 3.5, "7d", [], True, timedelta(-1)]
NO_TAGS = [3, "x", ["x"], b"x", {"a": 1}, {1: "a"}, object()]


@pytest.fixture
async def running(anyio_backend: str) -> AsyncIterator[TaskManager]:
    """One manager with one ended task and one that waits for an hour."""
    local = TaskManager(None)
    local.task(persist=False, name="work")(work)
    async with isolated(local):
        await local.enqueue("work", 1)
        local.get_task("work").with_options(delay=3600).enqueue(2)
        yield local


@pytest.mark.anyio
async def test_arguments_of_manager_methods_of_a_wrong_kind_are_refused(running: TaskManager) -> None:
    """A typo must not look like an empty list, a stale threshold below zero must not fail what runs, and no fault of
    the caller may reach the file and come back as one of the file."""
    ask: Any = running
    handle: Any = running.handle((await running.list())[0].task_id)
    asked: list[tuple[str, Callable[[Any], Awaitable[object]], list[Any]]] = [
        ("task_id", ask.get, NO_TEXT),
        ("task_id", ask.retry, NO_TEXT),
        ("task_id", ask.cancel, NO_TEXT),
        ("task_id", ask.cancel, [handle]),
        ("force", lambda value: ask.retry(handle.task_id, force=value), [None, 0, 1, "no"]),
        ("status", lambda value: ask.list(status=value), NO_STATUS),
        ("task_name", lambda value: ask.list(task_name=value), NO_TEXT[1:]),
        ("queue_name", lambda value: ask.list(queue_name=value), NO_TEXT[1:]),
        ("before", lambda value: ask.list(before=value), NO_TEXT[1:]),
        ("limit", lambda value: ask.list(limit=value), [None, -1, 1.5, True, "3", 10**40]),
        ("status", lambda value: ask.purge(status=value), NO_STATUS),
        ("PENDING", lambda value: ask.purge(status=value), ["PENDING", TaskStatus.PENDING]),
        ("older_than", lambda value: ask.purge(older_than=value), NO_AGE),
        ("threshold_minutes", ask.get_stale_tasks, NO_THRESHOLD),
        ("threshold_ms", ask.mark_stale_tasks_as_failed, NO_THRESHOLD),
        ("threshold_ms", ask.requeue_stale_claimed, NO_THRESHOLD),
        ("queue_name", ask.pause, [*NO_TEXT, "", " "]),
        ("queue_name", ask.resume, [*NO_TEXT, "", " "]),
        ("queue_name", ask.wait_for_room, [*NO_TEXT, "", " "]),
        ("schedule", ask.pause_schedule, NO_TEXT),
        ("schedule", ask.resume_schedule, NO_TEXT),
        ("schedule", ask.run_schedule, NO_TEXT),
        ("tags", lambda value: ask.join(tags=value), NO_TAGS),
        ("timeout", lambda value: ask.join(timeout=value), NO_TIMEOUT),
        ("timeout", lambda value: ask.stop(timeout=value), NO_TIMEOUT),
        ("timeout", lambda value: handle.result(timeout=value), NO_TIMEOUT),
        ("timeout", lambda value: handle.saved(timeout=value), NO_TIMEOUT),
    ]
    for word, call, values in asked:
        for value in values:
            with pytest.raises(ConfigurationError, match=word):
                await call(value)
    counts = await running.counts()
    assert (counts[TaskStatus.COMPLETED], counts[TaskStatus.PENDING]) == (1, 1)


async def inner() -> int:
    """What somebody forgot to await."""
    return 1


async def forgets_await() -> object:
    return inner()


@functools.wraps(inner)
def decorated() -> object:
    """As many a decorator does that was written for plain functions."""
    return inner()


async def forgets_result() -> object:
    return TaskError("RATE_LIMITED", "slow down")


async def forgets_seconds() -> object:
    return Snooze


@pytest.mark.anyio
@pytest.mark.filterwarnings(
    "ignore:coroutine 'inner' was never awaited", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("persist", [False, True])
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (forgets_await, "nobody has awaited it"),
        (decorated, "a decorator around an async function"),
        (forgets_result, "TaskResult(err=...)"),
        (forgets_seconds, "Snooze(30)"),
    ],
)
async def test_a_value_returned_by_mistake_is_no_success(
    function: Callable[..., Any], words: str, persist: bool
) -> None:
    """A coroutine that nobody awaits is work that was not done; it must not be recorded as COMPLETED."""
    local = TaskManager(None)
    async with isolated(local):
        handle = local.task(name="mistaken", persist=persist or None)(function).enqueue()
        error = (await handle.result()).err_value
        assert error.error_code == "UNHANDLED_EXCEPTION"
        assert words in error.message
        assert handle.status is TaskStatus.FAILED


@pytest.mark.anyio
async def test_a_status_may_be_written_out(running: TaskManager) -> None:
    """As everywhere where an enum of text is taken."""
    ask: Any = running
    assert len(await ask.list(status="COMPLETED")) == 1
    assert await ask.purge(status="COMPLETED") == 1


@pytest.mark.anyio
async def test_an_id_that_does_not_exist_is_not_saved(running: TaskManager) -> None:
    """To return would be to say that it is in the file."""
    nobody: TaskHandle[Any] = running.handle("01a22132-0000-7000-8000-000000000000")
    for ask in (nobody.saved, nobody.info, nobody.result, lambda: running.retry(nobody.task_id)):
        with pytest.raises(UnknownTask, match="purged, or never accepted"):
            await ask()


@pytest.mark.anyio
async def test_news_of_the_wrong_kind_breaks_nothing(tmp_path: Path) -> None:
    """What a task tells of itself must neither fail it nor blind whoever looks: it is shown as well as it can be."""
    local = TaskManager(tmp_path / "tasks.db")
    shown: list[object] = []

    @local.task(name="tells")
    async def tells() -> None:
        here: Any = current_task()
        news: list[tuple[Any, ...]] = [
            (1, 2, None), (1, 2, 3), ("x", [], object()), (None, None, ["a"]), (-1, -5), ({}, float("nan"), b"x"),
        ]  # fmt: skip
        for each in news:
            here.progress(*each)
            here.log(None, each=each)
            Console(file=io.StringIO()).print(local.console())
            info = await local.get(here.task_id)
            assert info is not None
            shown.append((info.progress or {})["text"])

    async with local:
        await tells.enqueue()
    assert [type(text) for text in shown] == [str] * 6
    assert shown[:2] == ["", "3"]


# --- the wrong loop, or none ------------------------------------------------------------------------------------------

METHODS = ["list", "counts", "flush", "join", "schedules", "stop", "wait_for_room", "get_stale_tasks", "purge"]


@pytest.mark.anyio
async def test_another_loop_may_enqueue_and_wait_for_handles_only() -> None:
    """What a manager awaits belongs to its loop: a stop from another one would wait for ever."""
    local = TaskManager(None)
    job = local.task(work)
    seen: dict[str, object] = {}

    async def elsewhere() -> None:
        for method in METHODS:
            with pytest.raises(ConfigurationError, match="run_coroutine_threadsafe"):
                await getattr(local, method)()
        with pytest.raises(ConfigurationError, match="runs already"):
            await local.start()
        seen["value"] = await job.enqueue(7)
        late = job.with_options(delay=3600).enqueue(8)
        assert late.cancel()
        with pytest.raises(TaskCancelled):
            await asyncio.wait_for(late, DEADLINE_S)

    async with local:
        thread = threading.Thread(target=lambda: seen.update(done=asyncio.run(elsewhere())))
        thread.start()
        await asyncio.to_thread(thread.join, DEADLINE_S)
        assert seen == {"value": 7, "done": None}
        assert await job.enqueue(9) == 9


def test_a_thread_without_a_loop_cancels_too() -> None:
    """As a route does that is no coroutine."""
    local = TaskManager(None)

    @local.task
    async def forever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with local:
            handle = forever.enqueue()
            assert await asyncio.to_thread(handle.cancel)
            with pytest.raises(TaskCancelled):
                await asyncio.wait_for(handle, DEADLINE_S)

    asyncio.run(main())


def test_a_start_that_was_not_awaited_is_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task would seem to hang. Once it is started, nothing is said any more."""
    monkeypatch.setattr(current_instance, "HINT_AFTER_S", 0.0)
    local = TaskManager("never-opened.db")
    job = local.task(work)

    async def main() -> None:
        handle = job.enqueue(1)
        for wait in (handle.result, handle.saved):
            with pytest.raises(TimeoutError if wait == handle.result else NotPersisted):
                await wait(timeout=0.05)
        started = TaskManager(None)
        async with started:
            await started.task(name="started")(work).enqueue(1)
        handle.cancel()

    asyncio.run(main())
    (said,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert "async with manager" in said


def test_run_inside_a_loop_is_told_of_async_with() -> None:
    """In a notebook, say. No coroutine is left behind unawaited, which would be a second message."""
    local = TaskManager(None)

    async def main() -> None:
        with pytest.raises(ConfigurationError, match="async with manager"):
            local.run(work)

    asyncio.run(main())


def test_after_a_loop_that_was_closed_without_a_stop_a_new_start_takes_over(tmp_path: Path) -> None:
    """`asyncio.run(manager.start())` ends the loop that the manager needs. A call says so and keeps nothing; a new
    start takes up what is in the file, as after a kill."""
    local = TaskManager(tmp_path / "tasks.db")
    ran: list[int] = []
    has_run = asyncio.Event()

    @local.task(persist=True, name="job")
    async def job(n: int) -> None:
        ran.append(n)
        has_run.set()

    async def start_only() -> None:
        await local.start()
        await job.with_options(delay=0.2).enqueue(1).saved()

    asyncio.run(start_only())
    with pytest.raises(ManagerStopped, match="async with manager"):
        job.enqueue(2)
    with pytest.raises(ManagerStopped, match=r"await manager\.stop\(\)"):
        asyncio.run(local.list())

    async def once_more() -> None:
        async with local, asyncio.timeout(DEADLINE_S):
            await has_run.wait()
            await local.join()

    asyncio.run(once_more())
    assert ran == [1]
