"""Realistic code of a user, never executed: both type checkers must read it as the contract means it.

An expected error carries an ignore for each checker. Both report an ignore that is not needed, so a line that stops
being an error fails the check just as one that starts to be.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import aiosqlite
import psycopg
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm

from taskmanager import (
    ArgumentError,
    AttemptInfo,
    Background,
    BuiltInTaskCode,
    Codec,
    ConfigurationError,
    EventKind,
    FailedTask,
    Join,
    Listener,
    ManagerStatus,
    Middleware,
    Node,
    NodeInfo,
    NodeStatus,
    QueueConfig,
    RecoveryConfig,
    RetryPolicy,
    ScheduleInfo,
    Snooze,
    StepCall,
    StepContext,
    StepFailed,
    StepInfo,
    Subclasses,
    Task,
    TaskCancelled,
    TaskContext,
    TaskError,
    TaskEvent,
    TaskExpired,
    TaskFailed,
    TaskHandle,
    TaskInfo,
    TaskInterrupted,
    TaskManager,
    TaskManagerError,
    TaskNotCompleted,
    TaskResult,
    TaskStatus,
    Workflow,
    WorkflowHandle,
    WorkflowInfo,
    WorkflowStatus,
    current_step,
    current_task,
    patched,
    sleep,
    step,
    task,
    wait_for,
)


@dataclass(frozen=True)
class Report:
    """What the tasks of this application make."""

    number: int
    pages: int


class Reversed:
    """An encrypting codec, near enough."""

    def encode(self, data: bytes, /) -> bytes:
        return data[::-1]

    def decode(self, data: bytes, /) -> bytes:
        return data[::-1]


codec: Codec = Reversed()

manager = TaskManager(
    "tasks.db",
    requeue_pending=True,
    concurrency=50,
    queues=[QueueConfig("mail", priority=10, max_concurrency=2), QueueConfig("reports", scope="file")],
    retry_policy=RetryPolicy.fixed([60, 300, 900], auto_retry_for=["TRANSIENT", BuiltInTaskCode.UNHANDLED_EXCEPTION]),
    exception_mapper={TimeoutError: "TIMED_OUT", OSError: Subclasses("IO")},
    recovery=RecoveryConfig(runner_heartbeat_interval_ms=60_000, running_stale_threshold_ms=600_000),
    codec=codec,
)
in_memory = TaskManager(None)
producer = TaskManager("tasks.db", run_queues=())
workers = [TaskManager("tasks.db", run_queues=each) for each in (("mail",), ["mail"], {"mail": 1}, None)]

# --- defining ---------------------------------------------------------------------------------------------------------


@manager.task
async def build_report(report_id: int, *, title: str = "") -> Report:
    """An async task, decorated bare."""
    return Report(report_id, len(title))


@manager.task(persist=True, requeue_on_interrupt=True, retries=3, timeout=timedelta(minutes=5))
async def build_or_wait(report_id: int) -> Report | Snooze:
    """A task that may ask to be run again later."""
    return Report(report_id, 1) if report_id else Snooze(30)


@manager.task(retry_policy=RetryPolicy.exponential(base_seconds=60, max_retries=5, auto_retry_for=["RATE_LIMITED"]))
async def call_api(url: str) -> TaskResult[Report]:
    """A task that says itself how it ended."""
    if not url:
        return TaskResult(err=TaskError("RATE_LIMITED", "429", {"url": url}))
    return TaskResult(ok=Report(1, 1))


@manager.task
async def call_or_wait(url: str) -> TaskResult[Report] | Snooze:
    """All three at once."""
    return TaskResult(ok=Report(1, 1)) if url else Snooze(timedelta(seconds=3))


@manager.task(executor="thread")
def resize(path: str, width: int) -> bytes:
    """A sync task."""
    return path.encode() * width


@manager.task
def resize_or_wait(path: str) -> bytes | Snooze:
    """A sync task that may snooze."""
    return path.encode() or Snooze(1.5)


@manager.task(executor="process")
def crunch(numbers: list[int]) -> TaskResult[int]:
    """A sync task with a result of its own."""
    return TaskResult(ok=sum(numbers))


@manager.task
def crunch_or_wait(numbers: list[int]) -> TaskResult[int] | Snooze:
    """All three, sync."""
    return TaskResult(ok=sum(numbers)) if numbers else Snooze(1)


@manager.task
async def nothing() -> None:
    """A task without a value."""


@manager.task
async def tell_support(failed: FailedTask) -> int:
    """What a failure enqueues."""
    assert_type(failed.error, TaskError)
    assert_type(failed.tags, Mapping[str, str])
    return failed.attempts


@manager.task(on_failure=tell_support)
async def deliver(order_id: int) -> None:
    """A task that another one follows when it has failed for good."""


@task(on_failure=tell_support.with_options(priority=1, delay=timedelta(minutes=1)))
def deliver_later(order_id: int) -> None:
    """With options."""


@task(on_failure=nothing)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # it takes no FailedTask
def deliver_never(order_id: int) -> None:
    """With a task that cannot be told."""


@task
async def greet(name: str) -> str:
    """A free task, for a library."""
    return f"hello {name}"


@task(name="mail.send", queue_name="mail", exception_mapper={ConnectionError: "UNREACHABLE"})
def send_mail(to: str, body: str) -> int:
    """A free task with options."""
    return len(to) + len(body)


@manager.schedule(cron="0 3 * * *", timezone="Europe/Berlin", catch_up="all", overlap="queue")
async def nightly() -> int:
    """A schedule is a task too."""
    return 1


@manager.schedule(every=timedelta(minutes=5), args=("x",), kwargs={"limit": 3}, jitter=2.0)
@manager.task(persist=True)
async def poll(source: str, limit: int) -> None:
    """Both decorators on one function."""
    assert_type(current_task().scheduled_for, datetime | None)


class Mailer:
    """Static methods may be tasks."""

    @staticmethod
    @manager.task
    async def deliver(to: str) -> bool:
        """One that lives on a class."""
        return bool(to)


manager.register(greet, send_mail)
assert_type(manager.discover("app.jobs", "app.mail"), tuple[Task[..., Any], ...])
assert_type(build_report.name, str)

# --- enqueueing -------------------------------------------------------------------------------------------------------

assert_type(build_report.enqueue(7), TaskHandle[Report])
assert_type(build_report.enqueue(7, title="t"), TaskHandle[Report])
assert_type(build_or_wait.enqueue(7), TaskHandle[Report])
assert_type(call_api.enqueue("u"), TaskHandle[Report])
assert_type(call_or_wait.enqueue("u"), TaskHandle[Report])
assert_type(resize.enqueue("a", width=3), TaskHandle[bytes])
assert_type(resize_or_wait.enqueue("a"), TaskHandle[bytes])
assert_type(crunch.enqueue([1]), TaskHandle[int])
assert_type(crunch_or_wait.enqueue([1]), TaskHandle[int])
assert_type(nothing.enqueue(), TaskHandle[None])
assert_type(greet.enqueue("you"), TaskHandle[str])
assert_type(send_mail.enqueue("a", "b"), TaskHandle[int])
assert_type(nightly.enqueue(), TaskHandle[int])
assert_type(Mailer.deliver.enqueue("a"), TaskHandle[bool])
assert_type(manager.enqueue("app.jobs:build_report", 7, title="t"), TaskHandle[Any])
assert_type(manager.handle("0196"), TaskHandle[Any])

later = build_report.with_options(
    delay=60,
    run_at=datetime(2030, 1, 1, tzinfo=UTC),
    good_until=datetime(2030, 1, 2, tzinfo=UTC),
    priority=1,
    queue_name="reports",
    timeout=timedelta(seconds=5),
    idempotency_key="report-7",
    tags={"user": "1"},
)
assert_type(later.enqueue(7, title="t"), TaskHandle[Report])
assert_type(build_or_wait.with_options(delay=timedelta(hours=1)).enqueue(7), TaskHandle[Report])
assert_type(call_api.with_options(priority=1).enqueue("u"), TaskHandle[Report])
assert_type(resize.with_options(priority=1).enqueue("a", 2), TaskHandle[bytes])

# --- what a checker must refuse ---------------------------------------------------------------------------------------

build_report.enqueue("x")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]  # an int
build_report.enqueue()  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]  # one argument is missing
build_report.enqueue(7, tite="t")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]  # misspelt
later.enqueue("x")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]  # an int
build_report.with_options(dely=60)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # misspelt
build_report.with_options(60)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # options are keywords
later(7)  # type: ignore[operator]  # pyright: ignore[reportCallIssue]  # options belong to enqueue, not to a call
manager.submit_in(sqlite3.connect("t"), build_report, "x")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]  # an int
manager.task(retires=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]  # misspelt
manager.task(executor="fibre")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # no such lane
TaskManager("tasks.db", synchronous="off")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # no such level
TaskManager("tasks.db", run_queues=(1,))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # no name
TaskManager("tasks.db", 60.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # options are keywords
RetryPolicy()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # auto_retry_for is required
TaskResult(ok=1, err=TaskError("A"))  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]  # one of the two

# --- results ----------------------------------------------------------------------------------------------------------

assert_type(TaskResult(ok=None).unwrap(), None)


@dataclass(frozen=True)
class Refusal:
    """An error of the application's own."""

    reason: str


def generics(short: TaskResult[Report], own: TaskResult[Report, Refusal]) -> None:
    """The error type has a default, and may be given."""
    assert_type(short, TaskResult[Report, TaskError])
    assert_type(short.ok_value, Report)
    assert_type(short.err_value, TaskError)
    assert_type(short.is_ok(), bool)
    assert_type(own.unwrap(), Report)
    assert_type(own.err_value, Refusal)
    assert_type(short.err_value.error_code, str)
    assert_type(short.err_value.data, Mapping[str, object] | None)


def choose(number: int) -> TaskResult[Report]:
    """Either side fits the annotation."""
    if number < 0:
        return TaskResult(err=TaskError(BuiltInTaskCode.TASK_TIMEOUT, "late"))
    return TaskResult(ok=Report(number, 1))


# --- waiting and acting -----------------------------------------------------------------------------------------------


async def waiting() -> None:
    """Everything a handle does."""
    handle = build_report.with_options(idempotency_key="report-7").enqueue(7)
    await handle.saved()
    await handle.saved(timeout=1.0)
    assert_type(await handle, Report)
    assert_type(await build_or_wait.enqueue(1), Report)
    assert_type(await call_or_wait.enqueue("u"), Report)
    assert_type(await resize.enqueue("a", 1), bytes)
    assert_type(await crunch_or_wait.enqueue([1]), int)
    assert_type(await build_report(7), Report)
    assert_type(await Mailer.deliver("a"), bool)
    assert_type(await Mailer().deliver("a"), bool)
    assert_type(await build_or_wait(7), Report | Snooze)
    assert_type(resize("a", 1), bytes)
    assert_type(crunch([1]), TaskResult[int])
    assert_type(await handle.result(timeout=5), TaskResult[Report])
    assert_type((await handle.result()).unwrap(), Report)
    assert_type(handle.task_id, str)
    assert_type(handle.status, TaskStatus)
    assert_type(handle.status.is_terminal, bool)
    assert_type(handle.is_duplicate, bool | None)
    assert_type(handle.cancel(), bool)
    info = await handle.info(include_attempts=True)
    assert_type(info, TaskInfo)
    assert_type(info.attempts, tuple[AttemptInfo, ...] | None)
    assert_type(info.result, TaskResult[Any] | None)
    first, second = await asyncio.gather(handle, resize.enqueue("a", 1))
    assert_type(first, Report)
    assert_type(second, bytes)


async def outcomes(handle: TaskHandle[Report]) -> Report | None:
    """The exceptions, from the narrow ones to the base."""
    try:
        return await handle
    except TaskFailed as failure:
        assert_type(failure.error, TaskError)
        assert_type(failure.task_id, str)
    except (TaskCancelled, TaskExpired) as failure:
        assert_type(failure.status, TaskStatus)
    except TaskInterrupted as failure:
        assert_type(failure.requeued, bool)
    except TaskNotCompleted as failure:
        assert_type(failure.error, TaskError)
    except TaskManagerError:
        raise
    return None


def refused() -> tuple[ValueError, ValueError]:
    """Refusals of values are ValueErrors too."""
    return ConfigurationError("x"), ArgumentError("x")


async def acting() -> None:
    """Everything the manager answers."""
    assert_type(await manager.get("0196"), TaskInfo | None)
    assert_type(await manager.list(status=TaskStatus.SUCCESS, limit=10, before="0196"), tuple[TaskInfo, ...])
    assert_type(await manager.counts(), dict[TaskStatus, int])
    assert_type(await manager.retry("0196", force=True), bool)
    assert_type(await manager.cancel("0196"), bool)
    assert_type(await manager.purge(status=TaskStatus.FAILED, older_than=timedelta(days=1)), int)
    assert_type(await manager.retry_all(tags={"customer": "42"}, since=timedelta(hours=1)), int)
    assert_type(await manager.cancel_all(queue_name="mail", error_code=None), int)
    assert_type(await manager.get_stale_tasks(stale_threshold_minutes=5), tuple[TaskInfo, ...])
    assert_type(await manager.mark_stale_tasks_as_failed(300_000), int)
    assert_type(await manager.requeue_stale_claimed(stale_threshold_ms=120_000), int)
    assert_type(await manager.schedules(), tuple[ScheduleInfo, ...])
    assert_type(await manager.run_schedule("nightly"), TaskHandle[Any])
    assert_type(manager.status(), ManagerStatus)
    await manager.pause_schedule("nightly")
    await manager.resume_schedule("nightly")
    await manager.pause("mail")
    await manager.resume("mail")
    await manager.wait_for_room("mail")
    await manager.flush()
    await manager.join(tags={"user": "1"}, timeout=10)


async def in_a_transaction(plain: sqlite3.Connection, other: aiosqlite.Connection) -> None:
    """A plain connection answers at once, the other one is awaited."""
    assert_type(manager.submit_in(plain, build_report, 7, title="t"), str)
    assert_type(manager.submit_in(plain, later, 7), str)
    assert_type(await manager.submit_in(other, build_report, 7), str)
    assert_type(await manager.submit_in(other, later, 7, title="t"), str)
    assert_type(manager.insert_statement(build_report, 7), tuple[str, tuple[object, ...]])


class OfAsyncpg:
    """What `asyncpg.connect` returns, which brings no types."""

    def is_closed(self) -> bool:
        return False

    async def close(self, *, timeout: float | None = None) -> None: ...


async def in_a_transaction_on_a_server(
    plain: "psycopg.Connection[dict[str, Any]]",
    other: "psycopg.AsyncConnection[Any]",
    alchemy: sqlalchemy.Connection,
    async_alchemy: sqlalchemy.ext.asyncio.AsyncConnection,
    session: sqlalchemy.orm.Session,
    asyncpg: OfAsyncpg,
) -> None:
    """As on a file, whichever driver it is. A session of SQLAlchemy has a connection, and is none."""
    assert_type(manager.submit_in(plain, build_report, 7, title="t"), str)
    assert_type(manager.submit_in(alchemy, later, 7), str)
    assert_type(manager.submit_in(session.connection(), later, 7), str)
    assert_type(await manager.submit_in(other, build_report, 7), str)
    assert_type(await manager.submit_in(async_alchemy, later, 7, title="t"), str)
    assert_type(await manager.submit_in(asyncpg, build_report, 7), str)
    manager.submit_in(session, build_report, 7)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    manager.submit_in(plain.cursor(), build_report, 7)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]


# --- inside a task, and around the manager ----------------------------------------------------------------------------


@manager.task
async def long_one(rows: list[str]) -> int:
    """What a task knows of itself."""
    context = current_task()
    assert_type(context, TaskContext)
    assert_type(context.attempt, int)
    assert_type(context.tags, Mapping[str, str])
    assert_type(context.deadline, datetime | None)
    assert_type(context.is_cancelled, bool)
    for done, row in enumerate(rows):
        context.progress(done, len(rows), text=row)
        context.log("row done", row=row, number=done)
    return len(rows)


@manager.on("failed", "expired")
def alert(event: TaskEvent) -> None:
    """Hears of what has failed for good."""
    assert_type(event.kind, EventKind)
    assert_type(event.at, datetime)
    assert_type(event.task, TaskInfo)
    assert_type(event.error, TaskError | None)
    assert_type(event.duration_s, float | None)


@manager.on()
async def count(event: TaskEvent) -> int:
    """Hears of everything."""
    return event.task.retry_count


async def tested(event: TaskEvent, context: TaskContext) -> None:
    """`on` and `middleware` give back the function as it is."""
    alert(event)
    assert_type(await count(event), int)

    async def call() -> str:
        return "value"

    await timed(context, call)
    manager.on("fialed")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # no kind of event


hears: Listener = count


@manager.middleware
async def timed(context: TaskContext, call: Callable[[], Awaitable[Any]]) -> Any:
    """Around each attempt."""
    context.log("begins")
    return await call()


def untimed(context: TaskContext, call: Callable[[], Awaitable[Any]]) -> None: ...


manager.middleware(untimed)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]  # it is not async
around: Middleware = timed


async def main() -> Report:
    """The body of a program."""
    return await build_report.enqueue(1)


def programs() -> None:
    """`run` gives what main gives, or waits for a signal."""
    assert_type(manager.run(main), Report)
    manager.run()


async def hosting(app: object) -> None:
    """The ways to start and stop."""
    async with manager as started:
        assert_type(started, TaskManager)
    await manager.start()
    await manager.stop(timeout=3.0)
    assert_type(manager.lifespan(app), AbstractAsyncContextManager[None])
    async with manager.live():
        pass
    assert_type(manager.background(), AsyncIterator[Background])
    async for background in manager.background():
        assert_type(background.add_task(print, "sent", flush=True), str)
        background.add_task(greet, "you")
        background.add_task(resize.with_options(priority=1), "a", 2)
        background.add_task(resize, "a", "wide")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # an int


# Steps. Two of one gather keep both types, and each is something to be awaited once.


async def charge(order_id: int, *, currency: str = "EUR") -> Report:
    assert_type(current_step(), StepContext)
    return Report(order_id, 1)


def blocking(order_id: int) -> str:
    return str(order_id)


@manager.task(persist=True, requeue_on_interrupt=True)
async def fulfil(order_id: int) -> str:
    assert_type(await step(charge, order_id, currency="USD"), Report)
    assert_type(await step(blocking, order_id), str)
    mail = step.with_options(name="mail", key="k", retries=5, timeout=timedelta(seconds=5))
    assert_type(await mail(charge, 7), Report)
    assert_type(await asyncio.gather(step(charge, 1), step(blocking, 2)), tuple[Report, str])
    running = asyncio.create_task(step(charge, 1))
    assert_type(running, asyncio.Task[Report])
    async with asyncio.TaskGroup() as group:
        assert_type(group.create_task(step.with_options(key="k2")(blocking, 1)), asyncio.Task[str])
    assert_type(await step(fulfil.enqueue, 5), str)
    assert_type(await patched("v2"), bool)
    await step(charge, "7")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    calling: StepCall = step.with_options(key="k3")
    try:
        return await calling(blocking, order_id)
    except StepFailed as exc:
        assert_type(exc.error, TaskError)
        raise


# Waits. A type says what comes back; for a union, which is no type, the checker asks nothing.


@manager.task(persist=True, requeue_on_interrupt=True)
async def approve(order_id: int) -> Report:
    assert_type(await sleep(60), None)
    await sleep(timedelta(days=1), key="later")
    await sleep("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(await wait_for("approval", Report, timeout=60), Report)
    assert_type(await wait_for("note", str | None, key="k"), Any)
    assert_type(await asyncio.gather(sleep(1, key="a"), wait_for("n", int, key="b")), tuple[None, int])
    assert_type(current_task().is_suspended, bool)
    waiting = asyncio.create_task(wait_for("report", Report, key="c"))
    return await waiting


async def send_events(handle: TaskHandle[Report]) -> None:
    assert_type(await manager.send(handle.task_id, "approval", Report(1, 1)), bool)
    assert_type(await manager.send(handle.task_id, "go", key="click-7"), bool)
    await manager.send(handle, "go")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def look_at_steps(handle: TaskHandle[str]) -> None:
    info = await handle.info(include_attempts=True)
    assert_type(info.steps, tuple[StepInfo, ...] | None)
    assert_type(await manager.retry(handle.task_id, from_start=True), bool)


# Workflows. A node has the type of what its task gives, without `Snooze` and `TaskResult`: it fits the next parameter.


@manager.task
def summarise(reports: list[Report], outcome: TaskResult[Report], *, node_id: str = "") -> str:
    return f"{len(reports)} {outcome.is_ok()} {node_id}"


imported = Workflow("import", on_error="pause")
assert_type(imported, Workflow[Any])
report_node = imported.add(build_or_wait, 7).named("report")
assert_type(report_node, Node[Report])
assert_type(report_node.node_id, str)
assert_type(report_node.value, Report)
assert_type(report_node.result, TaskResult[Report])
assert_type(imported.add(call_api.with_options(priority=1), "u"), Node[Report])
assert_type(imported.add(call_or_wait, "u"), Node[Report])
assert_type(imported.add(resize_or_wait, "a"), Node[bytes])
assert_type(imported.add(crunch, [1]), Node[int])
assert_type(imported.add(crunch_or_wait, [1]), Node[int])
assert_type(imported.add(nothing), Node[None])
summary_node = imported.add(summarise, [report_node.value], report_node.result, node_id="an argument of the task")
assert_type(summary_node.after(report_node, join="quorum", min_success=1, allow_failed=True), Node[str])
assert_type(imported.output(summary_node), Workflow[str])
assert_type(imported.output(summary_node).succeeds_if([report_node, summary_node], {summary_node}), Workflow[str])
assert_type(imported.output(summary_node).optional(report_node), Workflow[str])

whole = Workflow("whole")
inner_node = whole.add_workflow(imported.output(summary_node), node_id="import")
assert_type(inner_node, Node[str])
assert_type(whole.add(greet, inner_node.value), Node[str])
joins: list[Join] = ["all", "any", "quorum"]

imported.add(crunch, report_node.value)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]  # a list
imported.add(greet, report_node.result)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]  # a str
imported.add(greet, name="n", node_id="n")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]  # it is named(...)
imported.add(greet)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]  # one argument is missing
summary_node.after(report_node, join="most")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # no such join
Workflow("import", on_error="ignore")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # no such word


async def use_workflows() -> None:
    handle = await manager.start_workflow(imported.output(summary_node), workflow_id="import-7")
    assert_type(handle, WorkflowHandle[str])
    assert_type((handle.workflow_id, handle.is_duplicate), tuple[str, bool])
    assert_type(await handle, str)
    assert_type(handle.wait(timeout=1), str)
    assert_type(await handle.result(timeout=1), TaskResult[str])
    assert_type(await handle.status(), WorkflowStatus)
    assert_type(await handle.nodes(), tuple[NodeInfo, ...])
    assert_type(await handle.result_of("report"), TaskResult[Any])
    assert_type((await handle.pause(), await handle.resume(), await handle.cancel()), tuple[bool, bool, bool])
    assert_type(await manager.start_workflow(Workflow("untyped")), WorkflowHandle[Any])
    assert_type(manager.workflow("import-7"), WorkflowHandle[Any])
    assert_type(await manager.workflows(status="PAUSED", name="import", limit=5), tuple[WorkflowInfo, ...])
    assert_type(await manager.recover_stuck_workflows(), int)
    assert_type(manager.call(handle.status()), WorkflowStatus)
    assert_type(manager.call(handle), str)


async def look_at_workflows(info: WorkflowInfo, node: NodeInfo) -> None:
    assert_type(info.status, WorkflowStatus)
    assert_type(info.error, TaskError | None)
    assert_type(node.status, NodeStatus)
    if node.status == "SUCCESS":  # type: ignore[comparison-overlap]  # pyright: ignore[reportUnnecessaryComparison]  # COMPLETED
        assert_type(node.task_id, str | None)
