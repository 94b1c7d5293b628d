"""What `on_failure` promises to an application: which failure enqueues the task, with which options, and what is not
accepted.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taskmanager import (
    BuiltInTaskCode,
    ConfigurationError,
    FailedTask,
    RetryPolicy,
    Task,
    TaskError,
    TaskManager,
    TaskResult,
    TaskStatus,
    task,
)
from taskmanager.testing import World

pytestmark = pytest.mark.anyio

Alerts = list[FailedTask]
UNHANDLED = BuiltInTaskCode.UNHANDLED_EXCEPTION


@pytest.fixture
def alerts() -> Alerts:
    """What the alert was called with."""
    return []


@pytest.fixture
def alert(manager: TaskManager, world: World, alerts: Alerts) -> Task[[FailedTask], Any]:
    """The task that is told of failures."""

    @manager.task(name="alert", persist=True)
    async def tell(failed: FailedTask) -> None:
        alerts.append(failed)

    return tell


def failing(manager: TaskManager, then: Any, **options: Any) -> Task[[], Any]:
    """A task that fails each time it runs."""

    @manager.task(name="job", persist=True, on_failure=then, **options)
    async def job() -> None:
        raise OSError("no route")

    return job


async def test_last_attempt_enqueues_it_and_no_other(world: World, alert: Any, alerts: Alerts) -> None:
    """The retries are exhausted first. Join waits for what the failure has enqueued, which runs here at once."""
    job = failing(world.manager, alert, retries=2, retry_delay=10.0)
    handle = job.with_options(tags={"user": "7"}).enqueue()
    await world.advance(5)
    assert alerts == []
    await world.manager.join()
    error = TaskError(UNHANDLED, "OSError: no route")
    assert alerts == [FailedTask(handle.task_id, "job", error, attempts=3, tags={"user": "7"})]
    assert (await world.manager.counts())[TaskStatus.COMPLETED] == 1


async def test_retry_that_fails_again_enqueues_another(world: World, alert: Any, alerts: Alerts) -> None:
    """Each final failure is one of its own."""
    handle = failing(world.manager, alert).enqueue()
    await world.manager.join()
    await world.manager.retry(handle.task_id)
    await world.manager.join()
    assert [(each.task_id, each.attempts) for each in alerts] == [(handle.task_id, 1), (handle.task_id, 2)]


async def test_error_result_and_timeout_are_failures(world: World, alert: Any, alerts: Alerts) -> None:
    """The data of an error stays with the failed task."""

    @world.manager.task(persist=True, on_failure=alert)
    async def refused() -> TaskResult[int]:
        return TaskResult(err=TaskError("REFUSED", "no", {"card": "1234"}))

    @world.manager.task(persist=True, on_failure=alert, timeout=1)
    async def slow() -> None:
        await asyncio.Event().wait()

    for each in (refused, slow):
        each.enqueue()
        await world.manager.join()
    assert [each.error.error_code for each in alerts] == ["REFUSED", "TASK_TIMEOUT"]
    assert [each.error.data for each in alerts] == [None, None]


async def test_success_and_cancellation_enqueue_nothing(world: World, alert: Any, alerts: Alerts) -> None:
    """Nor does an expiry, or a retry that succeeds."""
    runs: list[int] = []

    @world.manager.task(persist=True, on_failure=alert, retries=1)
    async def second_try() -> None:
        runs.append(1)
        assert len(runs) > 1

    @world.manager.task(persist=True, on_failure=alert)
    async def endless() -> None:
        await asyncio.Event().wait()

    second_try.enqueue()
    handle = endless.enqueue()
    late = endless.with_options(delay=20, good_until=world.now + timedelta(seconds=10)).enqueue()
    await world.advance(30)
    handle.cancel()
    await world.manager.join()
    assert (handle.status, late.status, alerts) == ("CANCELLED", "EXPIRED", [])
    assert sum((await world.manager.counts()).values()) == 3


async def test_interruption_enqueues_nothing(world: World, alert: Any, alerts: Alerts) -> None:
    """A stop ends a task that is not safe to repeat, and that is no failure."""

    @world.manager.task(persist=True, on_failure=alert)
    async def endless() -> None:
        await asyncio.Event().wait()

    endless.enqueue()
    await world.idle()
    await world.restart()
    assert (await world.manager.counts())[TaskStatus.INTERRUPTED] == 1
    assert sum((await world.manager.counts()).values()) == 1


async def test_options_of_the_call_are_those_of_what_is_enqueued(world: World, alert: Any, alerts: Alerts) -> None:
    """A delay counts from the failure, and join waits for it."""
    then = alert.with_options(priority=7, queue_name="alerts", delay=60, timeout=5, tags={"kind": "alert"})
    handle = failing(world.manager, then).enqueue()
    await world.advance(5)
    (waiting,) = await world.manager.list(queue_name="alerts")
    assert (waiting.status, waiting.priority, waiting.tags) == ("PENDING", 7, {"kind": "alert"})
    assert waiting.task_options["timeout_s"] == 5.0
    info = await handle.info()
    assert info.failed_at is not None
    assert waiting.enqueued_at - info.failed_at == timedelta(seconds=60)
    await world.manager.join()
    assert len(alerts) == 1


async def test_following_task_is_retried_by_its_own_policy(world: World, alerts: Alerts) -> None:
    """What its own declaration says stands in its row too, for whoever recovers it."""
    policy = RetryPolicy.fixed([1, 1], auto_retry_for=["FLAKY"])

    @world.manager.task(
        persist=True, requeue_on_interrupt=True, retry_policy=policy, exception_mapper={OSError: "FLAKY"}
    )
    async def tell(failed: FailedTask) -> None:
        alerts.append(failed)
        if len(alerts) < 3:
            raise OSError

    failing(world.manager, tell).enqueue()
    await world.manager.join()
    assert len(alerts) == 3
    (row,) = await world.manager.list(task_name=tell.name)
    plain = tell.enqueue(alerts[0])
    await plain
    assert (row.max_retries, row.task_options) == (2, (await plain.info()).task_options)


async def test_chain_of_failures_ends_with_the_first_one(world: World, alert: Any, alerts: Alerts) -> None:
    """An `on_failure` of the task that a failure enqueues counts for its own calls only."""

    @world.manager.task(name="flawed", persist=True, on_failure=alert)
    async def flawed(failed: FailedTask) -> None:
        raise RuntimeError

    failing(world.manager, flawed).enqueue()
    await world.manager.join()
    assert (await world.manager.counts())[TaskStatus.FAILED] == 2
    assert alerts == []
    flawed.enqueue(FailedTask("id", "name", TaskError("X"), 1, {}))
    await world.manager.join()
    assert [each.task_name for each in alerts] == ["flawed"]


async def test_record_of_the_failed_task_may_be_purged_first(world: World, alert: Any, alerts: Alerts) -> None:
    """The argument says all there is to say."""
    failing(world.manager, alert.with_options(delay=60)).enqueue()
    await world.advance(5)
    assert await world.manager.purge(status=TaskStatus.FAILED) == 1
    await world.manager.join()
    assert [each.error.message for each in alerts] == ["OSError: no route"]


async def test_join_by_tags_waits_for_the_tags_of_what_is_enqueued(world: World, alert: Any, alerts: Alerts) -> None:
    failing(world.manager, alert.with_options(delay=60, tags={"kind": "alert"})).enqueue()
    await world.advance(5)
    await world.manager.join(tags={"kind": "other"})
    assert alerts == []
    await world.manager.join(tags={"kind": "alert"})
    assert len(alerts) == 1


async def test_failure_of_a_scheduled_run_enqueues_it(world: World, alert: Any, alerts: Alerts) -> None:
    """The run comes from a template in the store."""
    world.manager.schedule(every=60, name="hourly")(failing(world.manager, alert))
    await world.advance(90)
    await world.manager.join()
    assert [each.tags for each in alerts] == [{"schedule": "hourly"}]


# What is not accepted.


def refusal(declare: Callable[[], object]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        declare()
    return str(caught.value)


def declared() -> tuple[Task[[FailedTask], Any], Callable[..., Task[[], Any]]]:
    """A free task to be told, and a way to declare a task that names it."""

    @task(name="alert", persist=True)
    async def alert(failed: FailedTask) -> None: ...

    async def job() -> None: ...

    return alert, lambda then, persist=True: task(name="job", persist=persist, on_failure=then)(job)


def test_options_that_mean_one_call_are_refused() -> None:
    """Each failure makes another task."""
    alert, declare = declared()
    moment = datetime(2040, 1, 1, tzinfo=UTC)
    for name, value in (("idempotency_key", "k"), ("run_at", moment), ("good_until", moment)):
        options: dict[str, Any] = {name: value}
        said = refusal(lambda given=options: declare(alert.with_options(**given)))  # type: ignore[misc]
        assert f"on_failure=alert.with_options(...) enqueues it many times, and {name} would be" in said


def test_something_else_than_a_task_is_refused() -> None:
    _, declare = declared()
    for other in (print, "alert", 7):
        assert "on_failure must be a task, with or without options, not" in refusal(lambda each=other: declare(each))  # type: ignore[misc]


def test_memory_only_task_is_refused_when_it_is_registered() -> None:
    """Only the manager may say whether a task is persisted."""
    alert, declare = declared()
    cure = "is memory-only; give it persist=True, or the manager requeue_pending=True"
    assert f"'job' {cure}" in refusal(lambda: TaskManager().register(declare(alert, persist=False)))
    assert "nowhere to keep it" in refusal(lambda: TaskManager(None).register(declare(alert)))

    @task(name="light")
    async def light(failed: FailedTask) -> None: ...

    assert f"'light' {cure}" in refusal(lambda: TaskManager().register(declare(light)))
    TaskManager(requeue_pending=True).register(declare(light, persist=None))


def test_function_that_takes_no_failed_task_is_refused() -> None:
    """A mistake must not wait for the first failure to be seen."""
    _, declare = declared()

    @task(persist=True)
    async def takes_nothing() -> None: ...

    @task(persist=True)
    async def takes_two(failed: FailedTask, channel: str) -> None: ...

    @task(persist=True)
    async def takes_text(failed: str) -> None: ...

    @task(persist=True)
    async def says_nothing(failed) -> None: ...  # type: ignore[no-untyped-def]

    for wrong in (takes_nothing, takes_two, takes_text, says_nothing):
        said = refusal(lambda each=wrong: TaskManager().register(declare(each)))  # type: ignore[misc]
        assert "on_failure of task 'job' must take one FailedTask, and does not: " in said


def test_free_task_is_registered_with_the_one_that_names_it() -> None:
    alert, declare = declared()
    manager = TaskManager()
    manager.register(declare(alert))
    assert manager.get_task("alert") is alert


def test_task_of_another_manager_is_refused() -> None:
    """A failure is written where the task stands, and only there."""
    _, declare = declared()
    other = TaskManager("other.db")

    @other.task(persist=True)
    async def elsewhere(failed: FailedTask) -> None: ...

    assert "was declared by another manager" in refusal(lambda: TaskManager().register(declare(elsewhere)))
