"""`TaskManager`, the face of the library: it only delegates. `engine/` does the work, `store/` keeps the tasks.

Methods import what does the work: a process that only imports this package loads few modules.
"""

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, overload

from taskmanager.model.call_options import CallOptions
from taskmanager.model.checks import check_event, check_task_id, check_timeout, filters_of
from taskmanager.model.clock import Clock, SystemClock
from taskmanager.model.config import DEFAULT_RECOVERY, ExceptionMapper, QueueConfig, RecoveryConfig, RetryPolicy
from taskmanager.model.errors import ConfigurationError
from taskmanager.model.known_words import known_words, shows_options, with_known_words
from taskmanager.model.result import FailedTask, Seconds
from taskmanager.model.states import Lane, TaskStatus
from taskmanager.task import (
    DEFAULT_QUEUE,
    Task,
    TaskCall,
    TaskDecorator,
    TaskOptions,
    bound_call,
    decorate,
    in_brackets,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import aiosqlite
    from rich.console import RenderableType

    from taskmanager.background import Background
    from taskmanager.codec.values import Codec
    from taskmanager.duties.schedule import ScheduleOptions
    from taskmanager.engine.engine import Engine
    from taskmanager.engine.intake.intake import Intake
    from taskmanager.engine.words.definition import Definition
    from taskmanager.handle import TaskHandle
    from taskmanager.lifecycle import Lifecycle
    from taskmanager.model.connections import AsyncpgConnection, AsyncServerConnection, ServerConnection
    from taskmanager.model.hooks import EventKind, Listener, Middleware
    from taskmanager.model.record import TaskInfo
    from taskmanager.model.report import ManagerStatus, ScheduleInfo
    from taskmanager.model.workflows import WorkflowInfo, WorkflowStatus
    from taskmanager.store.protocol import Store
    from taskmanager.workflow import Workflow
    from taskmanager.workflow_handle import WorkflowHandle

P = ParamSpec("P")
T = TypeVar("T")
L = TypeVar("L", bound="Listener")
M = TypeVar("M", bound="Middleware")


@with_known_words("TaskManager()")
class TaskManager:
    """Runs tasks inside your asyncio application, and keeps them in one SQLite file.

    The constructor does no I/O. `snapshot_db=None` keeps everything in memory. Durations are seconds.

    `requeue_pending` persists every task that does not say otherwise. A change of a persisted task waits at most
    `commit_interval` before its commit begins; the record of a memory-only task waits at most `snapshot_interval`.
    `concurrency`, `threads` and `processes` limit how many tasks run at once on the loop, in threads and in child
    processes, `max_pending` the waiting and unsaved tasks, `max_in_memory` the waiting persisted tasks of a queue in
    memory. A stop waits `drain_timeout` for running tasks. Only tasks of `run_queues` run here (None: of all queues).

    Raises `ConfigurationError` with everything that is wrong.
    """

    _is_isolated = False

    def __init__(
        self,
        snapshot_db: str | PathLike[str] | None = "tasks.db",
        *,
        snapshot_interval: float = 60.0,
        commit_interval: float = 0.02,
        requeue_pending: bool = False,
        synchronous: Literal["full", "normal"] = "full",
        concurrency: int = 100,
        threads: int | None = None,
        processes: int | None = None,
        queues: Sequence[QueueConfig] = (),
        max_pending: int | None = 1_000_000,
        max_in_memory: int = 10_000,
        retry_policy: RetryPolicy | None = None,
        exception_mapper: ExceptionMapper | None = None,
        default_unhandled_error_code: str = "UNHANDLED_EXCEPTION",
        recovery: RecoveryConfig = DEFAULT_RECOVERY,
        codec: "Codec | None" = None,
        drain_timeout: float = 5.0,
        store_poll: float = 0.25,
        instance_name: str | None = None,
        run_queues: Collection[str] | None = None,
    ) -> None:
        from taskmanager.engine.words.settings import Settings, check_collections, processes_of, threads_of
        from taskmanager.registry import Defaults, Registry
        from taskmanager.store.place import place_of

        run_here = check_collections(queues, exception_mapper, default_unhandled_error_code, run_queues)
        self._settings = Settings(
            place=place_of(snapshot_db), synchronous=synchronous, drain_timeout_s=drain_timeout, run_queues=run_here,
            commit_interval_s=commit_interval, store_poll_s=store_poll, concurrency=concurrency, recovery=recovery,
            threads=threads_of(threads), processes=processes_of(processes), snapshot_interval_s=snapshot_interval,
            queues=tuple(queues), max_pending=max_pending, max_in_memory=max_in_memory, instance_name=instance_name,
        )  # fmt: skip
        self._registry = Registry(Defaults(
            has_store=snapshot_db is not None, requeue_pending=requeue_pending, retry_policy=retry_policy, codec=codec,
            exception_mapper=dict(exception_mapper or {}), default_code=default_unhandled_error_code,
        ))  # fmt: skip
        self._wire()

    def _wire(self) -> None:
        from taskmanager.current_instance import CurrentInstance
        from taskmanager.handle import TaskHandle

        self._clock: Clock = SystemClock()
        self._intake = self._new_intake()
        self._instance = CurrentInstance(lambda: self._intake, lambda: self._settings)
        self._make_store: Callable[[], Store] = self._instance.new_store
        self._handle_of = partial(TaskHandle, self._instance)

    def _new_intake(self) -> "Intake":
        from taskmanager.engine.intake.intake import Intake

        return Intake(self._clock, max_pending=self._settings.max_pending, queues=self._settings.queues)

    @contextmanager
    def _isolated(
        self,
        clock: Clock,
        make_store: "Callable[[], Store]",
        make_intake: "Callable[[int | None, tuple[QueueConfig, ...]], Intake]",
    ) -> Iterator[None]:
        """Replace file, store, clock and intake while the block runs, for `taskmanager.testing`."""
        if self._lifecycle is not None:
            raise ConfigurationError("a manager that runs cannot be isolated; stop it first, or do not start it")
        kept = self._clock, self._make_store, self._intake, self._settings, self._registry.defaults
        self._clock, self._make_store, self._is_isolated = clock, make_store, True
        self._settings = replace(self._settings, place=None, run_queues=None)
        self._intake = make_intake(self._settings.max_pending, self._settings.queues)
        self._registry.defaults = replace(self._registry.defaults, has_store=True)
        try:
            yield
        finally:
            self._is_isolated = False
            self._clock, self._make_store, self._intake, self._settings, self._registry.defaults = kept

    @property
    def _lifecycle(self) -> "Lifecycle | None":
        return self._instance.lifecycle

    def __repr__(self) -> str:
        engine = "" if self._lifecycle is None else f" {self._lifecycle.engine!r}"
        return f"<TaskManager {self._settings.place or 'in memory'}, {self._intake.door.value}{engine}>"

    # Defining.

    @overload
    def task(self, fn: Callable[P, T], /) -> Task[P, T]: ...
    @overload
    def task(
        self,
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
        on_failure: TaskCall[[FailedTask], Any] | None = None,
    ) -> TaskDecorator: ...
    @shows_options(TaskOptions)
    def task(self, *args: Any, **options: Any) -> Any:
        """Make a task of a function, bare or with options, and bind it to this manager.

        `persist` keeps it in the file; None means what `requeue_pending` says. With `requeue_on_interrupt` it may run
        again after an interruption. `retries`, `retry_delay` and `retry_backoff` are the short form of `retry_policy`.
        `timeout` is in seconds per attempt, `executor` "async", "thread" or "process". A failure enqueues `on_failure`.
        """
        return decorate(lambda fn, options: self._bind(Task(fn, options)), args, options)

    def _bind(self, task: Task[..., Any]) -> Task[..., Any]:
        self._registry.bind(task, self)
        if self._lifecycle is not None:
            self._lifecycle.look_again()
        return task

    @in_brackets
    @known_words("schedule()")
    def schedule(
        self,
        *,
        cron: str | None = None,
        every: Seconds | None = None,
        timezone: str | None = None,
        name: str | None = None,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
        catch_up: Literal["skip", "latest", "all"] = "latest",
        max_catch_up_runs: int = 100,
        overlap: Literal["skip", "queue", "allow"] = "skip",
        run_on_startup: bool = False,
        jitter: Seconds = 0.0,
    ) -> TaskDecorator:
        """Run a task by a cron expression in a time zone (UTC if None), or every so many seconds.

        Write it above `@manager.task(...)`, or on a plain function. Its runs are persisted, and any instance on the
        file may run them; each fire runs once. `catch_up` says what becomes of missed fires, `overlap` of a fire that
        comes before the last run has ended. Raises `ConfigurationError` with everything that is wrong.
        """
        from taskmanager.duties.schedule import ScheduleOptions

        options = ScheduleOptions(
            cron=cron, every=every, timezone=timezone, name=name, args=args, kwargs=kwargs, catch_up=catch_up,
            max_catch_up_runs=max_catch_up_runs, overlap=overlap, run_on_startup=run_on_startup, jitter=jitter,
        )  # fmt: skip
        return TaskDecorator(lambda fn: self._schedule(fn, options))

    def _schedule(self, fn: Callable[..., Any], options: "ScheduleOptions") -> Task[..., Any]:
        task = self._bind(fn if isinstance(fn, Task) else Task(fn, TaskOptions()))
        self._registry.schedule(task, options)
        if (running := self._instance.running()) is not None:
            running.duties.schedules.add()
        return task

    def register(self, *tasks: Task[..., Any]) -> None:
        """Bind tasks that were declared with the free `@task`."""
        for each in tasks:
            self._bind(each)

    def discover(self, *packages: str) -> tuple[Task[..., Any], ...]:
        """Import these modules and packages with all their modules. Bind and return the tasks of no other manager."""
        found = tuple(self._registry.tasks_in(packages))
        self.register(*(each for each in found if each.binding is None))
        return tuple(each for each in found if each.binding is not None and each.binding.submitter is self)

    def on(self, *kinds: "EventKind") -> Callable[[L], L]:
        """Tell a function, sync or async, of these events or of all. An unknown kind raises `ConfigurationError`."""
        return self._registry.listen_with(kinds)

    def middleware(self, fn: M, /) -> M:
        """Run an async function around each attempt, as `await fn(context, call)`; the first registered is outermost.

        What it returns is the result of the task. Raises `ConfigurationError` if it is not async.
        """
        return self._registry.add_middleware(fn)

    def get_task(self, name: str, /) -> Task[..., Any]:
        """Return the task of that name. Raises `UnknownTask`."""
        return self._registry.get(name)

    # Enqueueing.

    def enqueue(self, name: str, /, *args: object, **kwargs: object) -> "TaskHandle[Any]":
        """Enqueue by name, for callers that cannot import the function. Raises `UnknownTask` as well."""
        return self._registry.get(name).enqueue(*args, **kwargs)

    def enqueue_call(
        self, definition: "Definition", options: CallOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> "TaskHandle[Any]":
        """Take in a call; the `enqueue` of a bound task calls this."""
        made = self._intake.make(definition, options, args, kwargs)
        handle: TaskHandle[Any] = self._handle_of(made.task_id, made)  # first: a thread with the loop may end the task
        live, was_there = self._intake.hand_over(made)
        return self._handle_of(live.task_id, live, found=True) if was_there else handle

    @overload
    def submit_in(
        self, connection: "sqlite3.Connection | ServerConnection", task: TaskCall[P, Any], /,
        *args: P.args, **kwargs: P.kwargs,
    ) -> str: ...  # fmt: skip
    @overload
    def submit_in(
        self, connection: "aiosqlite.Connection | AsyncServerConnection | AsyncpgConnection", task: TaskCall[P, Any], /,
        *args: P.args, **kwargs: P.kwargs,
    ) -> Awaitable[str]: ...  # fmt: skip
    def submit_in(self, connection: Any, task: TaskCall[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Write a task through your own connection to the same file or server, and return the task id.

        The write is part of the open transaction: the task exists only if that commits. Await the call if the
        connection is asynchronous. On a file use `BEGIN IMMEDIATE`; a stale snapshot raises `StoreUnavailable`.
        """
        return self._instance.submit(connection, bound_call(task, self), args, kwargs)

    def insert_statement(
        self, task: TaskCall[P, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> tuple[str, tuple[object, ...]]:
        """Return SQL and its parameters for any other driver. The placeholders are `?` on a file, `%s` on a server."""
        return self._instance.insert_statement(bound_call(task, self), args, kwargs)

    # Starting and stopping.

    async def start(self) -> None:
        """Open the file, recover the tasks of dead instances, claim what is free, and run.

        Raises `StoreError` if the file cannot be used, `ConfigurationError` if the manager runs already or holds
        memory-only tasks of queues that it does not run, and `WrongProcess` in a child that was forked while the file
        was open. A stopped manager may be started again, on another loop too.
        """
        from taskmanager.lifecycle import new_lifecycle

        self._instance.check_start()
        await self.stop()
        with self._instance.beginning():
            self._registry.warn_at_start(self._settings)
            self._intake.reopen_for_start(self._settings)
            parts = self._registry.definitions, self._registry.schedules, self._make_store(), self._clock, self._intake
            lifecycle = self._instance.lifecycle = new_lifecycle(self._settings, *parts, self._registry.hooks)
        try:
            await lifecycle.start()
        except BaseException:
            self._instance.forget(lifecycle)
            raise

    async def stop(self, *, timeout: float | None = None) -> None:
        """Wait `timeout` seconds (default `drain_timeout`) for running tasks, cancel the rest, write, and close.

        It takes at most two seconds longer than that, and does nothing if the manager does not run. Raises
        `StoreUnavailable` if not everything could be written, and `ConfigurationError` in another loop or in a task.
        """
        check_timeout(timeout)
        if (lifecycle := self._lifecycle) is None:
            return
        self._instance.check_stop(lifecycle)
        if lifecycle.is_stopping and not lifecycle.engine.inbox.is_loop_closed():
            await lifecycle.wait_stopped()
            return
        try:
            await lifecycle.stop(self._settings.drain_timeout_s if timeout is None else timeout)
        finally:
            self._instance.forget(lifecycle)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None, /
    ) -> None:
        await self.stop()

    def lifespan(self, app: object, /) -> AbstractAsyncContextManager[None]:
        """Run the manager while the application serves: `FastAPI(lifespan=manager.lifespan)`.

        In a test inside `taskmanager.testing.isolated` the manager runs already, and goes on afterwards.
        """
        return self._serving()

    def in_thread(self) -> "AbstractContextManager[Self]":
        """Run the manager in a thread of its own while the block runs: `with manager.in_thread(): ...`.

        For programs without an event loop: Flask, Django, scripts. `call` and `handle.wait()` reach it from any thread.
        Raises what `start` and `stop` raise. A server that forks its workers enters it in each of them, in its hook.
        """
        from taskmanager.hosting import InThread

        return InThread(self, self, self._instance.cut_short)

    def call(self, what: Awaitable[T], /, *, timeout: float | None = None) -> T:
        """Run what can be awaited on the loop of the manager, and wait for it in this thread: `call(manager.counts())`.

        Raises what it raises, `TimeoutError` after `timeout` seconds, `ManagerStopped` if the manager does not run, and
        `ConfigurationError` where that would wait for ever: on that loop, and inside a task of this manager.
        """
        return self._instance.call(what, timeout)

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        async with nullcontext() if self._is_isolated and self._lifecycle is not None else self:
            yield

    @overload
    def run(self) -> None: ...
    @overload
    def run(self, main: Callable[[], Coroutine[Any, Any, T]], /) -> T: ...
    def run(self, *mains: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Start the manager, run `main` or wait for a signal, and stop.

        SIGTERM and SIGINT cancel `main` and stop the manager; a second signal cuts the drain short. If there is a
        `main`, the signal then ends the program. The exit status is 1 if the file could not be written.
        """
        from taskmanager.hosting import run_hosted

        return run_hosted(self, self._instance.cut_short, mains, self._settings)

    async def join(self, *, tags: Mapping[str, str] | None = None, timeout: float | None = None) -> None:
        """Wait until every task that was accepted or claimed here has ended; with `tags`, those that carry them all.

        Delayed tasks count. Raises `TimeoutError`, `ConfigurationError` inside a task, and `ManagerStopped` if the
        manager stops while some are left for the next start.
        """
        await self._instance.join(tags, timeout)

    async def wait_for_room(self, queue_name: str = DEFAULT_QUEUE) -> None:
        """Wait until `enqueue` to that queue does not raise `QueueFull` because of its waiting tasks."""
        await self._instance.needed().queues.wait_for_room(queue_name)

    async def flush(self) -> None:
        """Wait until all that was accepted or has ended so far is committed, records of memory-only tasks included."""
        await self._instance.needed().engine.life.flush()

    def _engine(self) -> "Engine | None":
        return None if self._lifecycle is None else self._lifecycle.engine

    # Records.

    def handle(self, task_id: str, /) -> "TaskHandle[Any]":
        """Return a handle for an id, of any instance. Awaiting it raises `UnknownTask` if there is no such task."""
        check_task_id(task_id)
        return self._handle_of(task_id, self._instance.find_live(task_id))

    async def get(self, task_id: str, /, *, include_attempts: bool = False) -> "TaskInfo | None":
        """Return one record, or None."""
        return await self._instance.needed().records.get(task_id, include_attempts=include_attempts)

    async def list(
        self,
        *,
        status: TaskStatus | None = None,
        task_name: str | None = None,
        queue_name: str | None = None,
        limit: int = 100,
        before: str | None = None,
        tags: Mapping[str, str] | None = None,
        error_code: str | None = None,
        since: datetime | timedelta | None = None,
    ) -> "tuple[TaskInfo, ...]":
        """Return records, newest first. `before` is the id of the last record of the page before.

        A task fits if it has all that is given, each of the tags included. `since` is about its end, or else its last
        change: an aware datetime, or how long ago.
        """
        chosen = filters_of(status, task_name, queue_name, tags, error_code, since)
        return await self._instance.needed().records.list(limit, before, **chosen)

    async def counts(self) -> dict[TaskStatus, int]:
        """Return how many tasks have each status, in memory and file together, zeros included."""
        return await self._instance.needed().records.counts()

    async def retry(self, task_id: str, /, *, force: bool = False, from_start: bool = False) -> bool:
        """Run an ended task again with its stored arguments; a COMPLETED one needs `force`. Return whether it will run.

        Its finished steps are not done again, except `from_start`. Raises `UnknownTask` if there is no such task.
        """
        return await self._instance.needed().actions.retry(task_id, force=force, from_start=from_start)

    async def cancel(self, task_id: str, /) -> bool:
        """Ask for a task of any instance to be cancelled. Return True once that is recorded, False if it has ended.

        Raises `UnknownTask` if there is no such task.
        """
        return await self._instance.needed().actions.cancel(task_id)

    async def send(self, task_id: str, name: str, value: object = None, /, *, key: str | None = None) -> bool:
        """Store an event for a task of any instance, which gets it from `wait_for(name, ...)`, now or later.

        Return True once it is committed, False if the task has ended. An event with a `key` that the task has had is
        stored once. Raises `UnknownTask`, `NotPersisted`, `QueueFull` if a thousand events are not received yet, and
        `ArgumentError` if the value cannot be stored.
        """
        from taskmanager.codec.results import encode_event

        check_event(task_id, name, key)
        text = encode_event(name, value, self._registry.defaults.codec)
        return await self._instance.needed().actions.send(task_id, name, text, key)

    async def retry_all(
        self,
        *,
        status: TaskStatus | None = None,
        task_name: str | None = None,
        queue_name: str | None = None,
        tags: Mapping[str, str] | None = None,
        error_code: str | None = None,
        since: datetime | timedelta | None = None,
    ) -> int:
        """Run all FAILED tasks that fit again, or those with the other end that is given. Return how many will run.

        Tasks are chosen as by `list`; at least one filter is needed. COMPLETED ones are never meant.
        """
        chosen = filters_of(status, task_name, queue_name, tags, error_code, since)
        return await self._instance.needed().actions.retry_all(**chosen)

    async def cancel_all(
        self,
        *,
        status: TaskStatus | None = None,
        task_name: str | None = None,
        queue_name: str | None = None,
        tags: Mapping[str, str] | None = None,
        error_code: str | None = None,
        since: datetime | timedelta | None = None,
    ) -> int:
        """Ask for all unfinished tasks that fit to be cancelled, of every instance. Return how many were asked.

        Tasks are chosen as by `list`; at least one filter is needed.
        """
        chosen = filters_of(status, task_name, queue_name, tags, error_code, since)
        return await self._instance.needed().actions.cancel_all(**chosen)

    async def purge(
        self, *, status: TaskStatus | None = None, older_than: timedelta | None = None,
        tags: Mapping[str, str] | None = None, error_code: str | None = None,
    ) -> int:  # fmt: skip
        """Delete records of ended tasks with their attempts, and return how many. Other tasks are never touched."""
        return await self._instance.needed().actions.purge(older_than, status=status, tags=tags, error_code=error_code)

    async def get_stale_tasks(self, stale_threshold_minutes: float = 2) -> "tuple[TaskInfo, ...]":
        """Return the unfinished tasks of instances that have sent no heartbeat for that long."""
        return await self._instance.needed().duties.reaper.stale_tasks(stale_threshold_minutes)

    async def mark_stale_tasks_as_failed(self, stale_threshold_ms: int = 300_000) -> int:
        """Fail the RUNNING tasks of silent instances, or retry them by their policy. Return how many."""
        return await self._instance.needed().duties.reaper.recover_stale(stale_threshold_ms, is_running=True)

    async def requeue_stale_claimed(self, stale_threshold_ms: int = 120_000) -> int:
        """Free the tasks that wait in the memory of silent instances (PENDING or CLAIMED). Return how many."""
        return await self._instance.needed().duties.reaper.recover_stale(stale_threshold_ms, is_running=False)

    async def pause(self, queue_name: str, /) -> None:
        """Start nothing more of that queue, in any instance, until it is resumed."""
        await self._instance.needed().queues.set_paused(queue_name, True)

    async def resume(self, queue_name: str, /) -> None:
        """Start tasks of that queue again."""
        await self._instance.needed().queues.set_paused(queue_name, False)

    async def schedules(self) -> "tuple[ScheduleInfo, ...]":
        """Return every schedule in the file, also of other instances, ordered by the next fire."""
        return await self._instance.needed().duties.schedules.list()

    async def pause_schedule(self, name: str, /) -> None:
        """Pause a schedule in every instance. Fires that come due meanwhile are dropped. Raises `UnknownTask`."""
        await self._instance.needed().duties.schedules.set_paused(name, True)

    async def resume_schedule(self, name: str, /) -> None:
        """Resume a schedule, with its first fire after now. Raises `UnknownTask`."""
        await self._instance.needed().duties.schedules.set_paused(name, False)

    async def run_schedule(self, name: str, /) -> "TaskHandle[Any]":
        """Run a schedule once now, even if it is paused or a run has not ended. Raises `UnknownTask`."""
        return self.handle(await self._instance.needed().duties.schedules.run_by_hand(name))

    async def start_workflow(
        self, workflow: "Workflow[T]", /, *, workflow_id: str | None = None
    ) -> "WorkflowHandle[T]":
        """Start a workflow: it is in the file when this returns. An id that has one already follows that.

        A FAILED or CANCELLED one of that id goes on with the nodes that have not completed. Raises `ConfigurationError`
        with everything that is wrong, also if that one is defined in another way, and `ArgumentError`.
        """
        from taskmanager.workflow_handle import start

        return await start(self._instance, workflow, workflow_id, lambda task: bound_call(task, self)[0])

    def workflow(self, workflow_id: str, /) -> "WorkflowHandle[Any]":
        """Return a handle for an id, of any instance. Awaiting it raises `UnknownTask` if there is no such workflow."""
        from taskmanager.workflow_handle import WorkflowHandle

        return WorkflowHandle(self._instance, workflow_id)

    async def workflows(
        self, *, status: "WorkflowStatus | None" = None, name: str | None = None, limit: int = 100,
        before: str | None = None,
    ) -> "tuple[WorkflowInfo, ...]":  # fmt: skip
        """Return workflows, newest first. `before` is the id of the last one of the page before."""
        return await self._instance.needed().workflows.list(status, name, limit, before)

    async def recover_stuck_workflows(self) -> int:
        """Put right at once what other programs have left half done in workflows. Return how many nodes that was."""
        return await self._instance.needed().duties.reaper.recover_workflows(0)

    async def background(self) -> "AsyncIterator[Background]":
        """Hand tasks over once the route has succeeded, and drop them if it fails: `Depends(manager.background)`."""
        from taskmanager.background import Background

        background = Background(self._intake, self)
        try:
            yield background
        except BaseException as exc:
            background.broken_off(exc)
            raise
        background.hand_over()

    # Looking.

    def console(self) -> "RenderableType":
        """Return the screen of `taskmanager status`, for `rich.print`.

        It reads the file at once: a few milliseconds, or half a second if it is locked. Counts end at 50,000 each.
        """
        from taskmanager.console.terminal.live import instance_view

        return instance_view(self._engine(), len(self._intake.held))

    def live(self) -> AbstractAsyncContextManager[None]:
        """Show the screen of `taskmanager watch` while the block runs: `async with manager.live(): ...`."""
        from taskmanager.console.terminal.live import live_view

        return live_view(self._engine)

    def status(self) -> "ManagerStatus":
        """Describe this instance as it is now. It reads memory only, and awaits nothing."""
        return self._instance.status()
