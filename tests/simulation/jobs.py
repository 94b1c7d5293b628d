"""The user code of the simulation: tasks of each kind of promise, doing what their plan says, and noted as they run."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from taskmanager import FailedTask, RetryPolicy, Snooze, Task, TaskContext, TaskManager, TaskResult, current_task
from tests.simulation.steps import work_in_steps
from tests.simulation.waits import work_in_waits

if TYPE_CHECKING:
    from tests.simulation.process import Process

ONCE = frozenset({"once", "narrow_once", "thread_once", "process_once", "shared_once", "node_once"})
"""Not safe to repeat, and without retries: user code starts at most once in all."""
UNSAFE = ONCE | {"crash_retry", "retried", "process_retry"}
"""Not safe to repeat: user code of one attempt starts at most once."""
FOLLOWED = frozenset({"once", "retried", "timed", "thread_safe", "process_once", "shared_once", "node_once"})
"""Their failures enqueue an alert."""
NARROW_LIMIT = 2
ALWAYS = ("safe", "once", "shared")
"""Every seed has these, and some of the others."""
OTHERS = (
    *("retried", "crash_retry", "timed", "narrow", "narrow_once", "memory", "thread_safe", "thread_once"),
    *("process_safe", "process_once", "process_retry", "shared_once", "shared_thread"),
)
QUEUES = ("narrow", "shared_once", "shared", "default")
Work = Callable[["Process", int, str], Awaitable[int]]
Jobs = dict[str, Task[..., Any]]


def queue_of(name: str) -> str:
    """The queue of one of these."""
    return next((queue for queue in QUEUES if name.startswith(queue)), "default")


def work_s(plan: str) -> float:
    """How long a thread or a child works at it."""
    kind, _, number = plan.partition(":")
    return float(number or 0) if kind not in ("fail", "die", "snooze") else 0.05


class Planned(Exception):
    """A failure that the plan asked for."""


def in_child(label: int, plan: str) -> int:
    """What the tasks of the process lane are. Never called: `SimulatedChildren` plays the child, and what it does."""
    raise AssertionError(f"{label} runs outside of its child: {plan}")


def define_jobs(manager: TaskManager, process: "Process") -> Jobs:
    """Declare every task of this seed on the manager of one process."""

    def make(name: str, **options: Any) -> Task[..., Any]:
        async def job(label: int, plan: str) -> int | Snooze:
            return await _live(process, name, label, plan)

        return manager.task(name=name, **options)(job)

    def make_thread(name: str, **options: Any) -> Task[..., Any]:
        def job(label: int, plan: str) -> int:
            return _work(process, name, label, plan)

        return manager.task(name=name, executor="thread", **options)(job)

    def make_steps(name: str, work: Work, **options: Any) -> Task[..., Any]:
        async def job(label: int, plan: str) -> int:
            context = current_task()
            run = process.world.runs.begin(process, name, context.task_id, context.attempt)
            try:
                return await work(process, label, plan)
            finally:
                process.world.runs.end(run)

        return manager.task(name=name, **options)(job)

    def make_node(name: str, **options: Any) -> Task[..., Any]:
        async def job(
            label: int, plan: str, inputs: list[int] | None = None, ended: list[TaskResult[int]] | None = None
        ) -> int | Snooze:
            process.world.workflows.begins(process, label, inputs or [])
            return await _live(process, name, label, plan)

        return manager.task(name=name, **options)(job)

    def make_process(name: str, **options: Any) -> Task[..., Any]:
        return manager.task(name=name, executor="process", persist=True, **options)(in_child)

    alert = _define_alert(manager, process)
    crash_policy = RetryPolicy.fixed([1, 1], auto_retry_for=["WORKER_CRASHED"])
    quick = {"retries": 2, "retry_delay": 0.2}
    safe = {"persist": True, "requeue_on_interrupt": True, **quick}
    followed: dict[str, Any] = {"persist": True, "on_failure": alert}
    makers: dict[str, Callable[[], Task[..., Any]]] = {
        "safe": partial(make, "safe", persist=True, requeue_on_interrupt=True, **quick),
        "once": partial(make, "once", persist=True, on_failure=alert),
        "retried": partial(make, "retried", persist=True, on_failure=alert.with_options(delay=2), **quick),
        "crash_retry": partial(make, "crash_retry", persist=True, retry_policy=crash_policy),
        "timed": partial(make, "timed", requeue_on_interrupt=True, timeout=1.5, **followed, **quick),
        "narrow": partial(make, "narrow", persist=True, requeue_on_interrupt=True, queue_name="narrow", **quick),
        "narrow_once": partial(make, "narrow_once", persist=True, queue_name="narrow"),
        "memory": partial(make, "memory", persist=False, **quick),
        "thread_safe": partial(make_thread, "thread_safe", requeue_on_interrupt=True, timeout=2, **followed, **quick),
        "thread_once": partial(make_thread, "thread_once", persist=True, timeout=2),
        "process_safe": partial(make_process, "process_safe", requeue_on_interrupt=True, timeout=2, **quick),
        "process_once": partial(make_process, "process_once", on_failure=alert.with_options(priority=1)),
        "process_retry": partial(make_process, "process_retry", retry_policy=crash_policy),
        "shared": partial(make, "shared", persist=True, requeue_on_interrupt=True, queue_name="shared", **quick),
        "shared_once": partial(make, "shared_once", queue_name="shared_once", **followed),
        "shared_thread": partial(
            make_thread, "shared_thread", persist=True, requeue_on_interrupt=True, queue_name="shared"
        ),
        "steps": partial(make_steps, "steps", work_in_steps, persist=True, requeue_on_interrupt=True, **quick),
        "node": partial(make_node, "node", **safe),
        "node_once": partial(make_node, "node_once", **followed),
        "narrow_node": partial(make_node, "narrow_node", queue_name="narrow", **safe),
        "shared_node": partial(make_node, "shared_node", queue_name="shared", **safe),
        "waits": partial(make_steps, "waits", work_in_waits, persist=True, requeue_on_interrupt=True, **quick),
    }
    return {name: makers[name]() for name in process.world.draw_release()}


async def around(process: "Process", context: TaskContext, call: Callable[[], Awaitable[Any]]) -> Any:
    """A middleware that may wait before and after the call, and may swallow what cancels it."""
    chance = process.world.chance
    habit = chance.choice(("plain", "plain", "before", "after", "swallow"))
    if habit == "before":
        await asyncio.sleep(chance.choice((0.01, 0.5)))
    try:
        value = await call()
        if habit == "after":
            await asyncio.sleep(chance.choice((0.01, 0.5)))
    except asyncio.CancelledError:
        if habit == "swallow":
            process.world.runs.answered.add((context.task_id, context.attempt))
            return "no value of a task"
        raise
    return value


def _define_alert(manager: TaskManager, process: "Process") -> Task[[FailedTask], Any]:
    """What follows a failure. It fails itself now and then, and nothing follows that."""
    world = process.world

    async def never(failed: FailedTask) -> None:
        world.fault(f"a failure of an alert is followed by an alert: {failed}")

    async def alert(failed: FailedTask) -> None:
        context = current_task()
        run = world.runs.begin(process, "alert", context.task_id, context.attempt)
        try:
            await asyncio.sleep(0.01)
            if failed.attempts > 1:
                raise Planned("an alert fails")
        finally:
            world.runs.end(run)

    last = manager.task(name="never", persist=True)(never)
    return manager.task(name="alert", persist=True, requeue_on_interrupt=True, on_failure=last)(alert)


async def _live(process: "Process", name: str, label: int, plan: str) -> int | Snooze:
    world = process.world
    context = current_task()
    run = world.runs.begin(process, name, context.task_id, context.attempt)
    kind, _, number = plan.partition(":")
    amount = float(number or 0)
    try:
        if kind == "sleep":
            await asyncio.sleep(amount)
        elif kind == "fail":
            await asyncio.sleep(0)
            if world.spend(label, amount):
                raise Planned(f"{label} fails")
        elif kind == "snooze":
            if world.spend(label, 1):
                world.runs.is_asked_for(run)
                return Snooze(amount)
        elif kind == "stubborn":
            await _ignore_cancellation(amount)
        elif kind == "parent":
            child = process.jobs["shared" if name.startswith("shared") else "safe"].enqueue(
                world.next_label(), f"sleep:{amount}"
            )
            run.is_waiting = True
            await child
            run.is_waiting = False
            world.runs.check_limits(run)
        elif kind == "exit":
            raise SystemExit(3)
        elif kind == "progress":
            for step in range(4):
                context.progress(step, 4)
                await asyncio.sleep(amount)
        return label
    finally:
        world.runs.end(run)


async def _ignore_cancellation(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    ends = loop.time() + seconds
    while loop.time() < ends:
        try:
            await asyncio.sleep(ends - loop.time())
        except asyncio.CancelledError:
            continue


def _work(process: "Process", name: str, label: int, plan: str) -> int:
    context = current_task()
    run = process.world.runs.begin(process, name, context.task_id, context.attempt)
    kind, _, number = plan.partition(":")
    threads: Any = process.engine.runner.threads if process.engine else None
    threads.works(work_s(plan), run)
    if kind == "fail" and process.world.spend(label, float(number or 0)):
        raise Planned(f"{label} fails")
    return label
