"""Listeners: functions that hear of what happens to the tasks of their manager, and harm none of them."""

import asyncio
import gc
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial, wraps
from pathlib import Path
from typing import get_args

import pytest

from taskmanager import (
    ConfigurationError,
    EventKind,
    FailedTask,
    NotInTask,
    Snooze,
    TaskEvent,
    TaskFailed,
    TaskManager,
    TaskStatus,
    Workflow,
    current_task,
    task,
)
from taskmanager.engine.tell import ears, listeners
from taskmanager.engine.tell.ears import Ear
from taskmanager.engine.tell.events import EventReader, Noted
from taskmanager.engine.tell.listeners import Listeners
from taskmanager.engine.words.definition import RowCodec
from taskmanager.engine.words.instance import new_identity
from taskmanager.engine.write.outbox import Sent
from taskmanager.engine.write.writes import write_of
from taskmanager.model.hooks import Hooks
from taskmanager.rules.events import steps_between
from taskmanager.store.memory import MemoryStore
from taskmanager.store.protocol import CommitReport
from taskmanager.testing import Fault, FaultyStore, World, isolated
from tests.contract.rows import OTHER, put
from tests.contract.rows import task as row_of
from tests.unit.engine_lives import new_live

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


class Heard:
    """What one listener has heard, task by task."""

    def __init__(self, manager: TaskManager, *kinds: EventKind) -> None:
        self.events: list[TaskEvent] = []

        @manager.on(*kinds)
        async def hear(event: TaskEvent) -> None:
            self.events.append(event)

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    def words(self) -> dict[str, str]:
        """The kinds that were told of each task, by its id."""
        found = defaultdict[str, list[str]](list)
        for event in self.events:
            found[event.task.task_id].append(event.kind)
        return {task_id: " ".join(kinds) for task_id, kinds in found.items()}


@pytest.fixture
def heard(manager: TaskManager) -> Heard:
    return Heard(manager)


# --- what is told -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persist", [False, True])
async def test_each_way_of_a_task_is_told_in_order(heard: Heard, world: World, persist: bool) -> None:
    """The same for tasks of memory and of the file."""
    manager = world.manager

    @manager.task(persist=persist)
    async def job(how: str) -> Snooze | str:
        first = current_task().attempt == 1
        if how == "snooze" and first:
            return Snooze(5)
        if how == "fail" or (how == "retry" and first):
            raise ValueError(how)
        await asyncio.sleep(60 if how == "cancel" else 1)
        return how

    retried = manager.task(name="retried", persist=persist, retries=1)(job.fn)
    calls = {
        "good": job.enqueue("good"),
        "snooze": job.enqueue("snooze"),
        "fail": job.enqueue("fail"),
        "retry": retried.enqueue("retry"),
        "exhaust": retried.enqueue("fail"),
        "cancel": job.enqueue("cancel"),
        "early": job.with_options(delay=50).enqueue("good"),
        "over": job.with_options(good_until=world.now + timedelta(seconds=2)).enqueue("snooze"),
        "late": job.with_options(delay=50, good_until=world.now + timedelta(seconds=20)).enqueue("good"),
    }
    await world.advance(10)
    calls["cancel"].cancel()
    calls["early"].cancel()
    await world.drain()
    await manager.flush()
    await world.idle()
    words = heard.words()
    assert {how: words[handle.task_id] for how, handle in calls.items()} == {
        "good": "enqueued started completed",
        "snooze": "enqueued started snoozed started completed",
        "over": "enqueued started snoozed expired",
        "fail": "enqueued started failed",
        "retry": "enqueued started retrying started completed",
        "exhaust": "enqueued started retrying started failed",
        "cancel": "enqueued started cancelled",
        "early": "enqueued cancelled",
        "late": "enqueued expired",
    }


async def test_an_event_has_the_record_as_of_that_moment(heard: Heard, world: World) -> None:
    """Also when it is read much later, and the error and the duration of the attempt that has ended."""

    @world.manager.task(name="job", retries=1, retry_delay=10)
    async def job(n: int) -> int:
        await asyncio.sleep(2)
        if current_task().attempt == 1:
            raise ValueError("no")
        return n

    began = world.now
    assert await job.with_options(tags={"user": "7"}).enqueue(3) == 3
    await world.idle()
    told = [(each.kind, each.task.status, each.task.start_count, each.duration_s) for each in heard.events]
    assert told == [
        ("enqueued", TaskStatus.PENDING, 0, None),
        ("started", TaskStatus.RUNNING, 1, None),
        ("retrying", TaskStatus.PENDING, 1, 2.0),
        ("started", TaskStatus.RUNNING, 2, None),
        ("completed", TaskStatus.COMPLETED, 2, 2.0),
    ]
    first, started, again, _, last = heard.events
    assert (first.at, started.at, again.at) == (began, began, began + timedelta(seconds=2))
    assert first.task.args == "[3]"
    assert first.task.tags == {"user": "7"}
    assert first.task.retry_count == started.task.retry_count == 0
    assert started.task.result is None
    assert again.error is not None
    assert again.error.message == "ValueError: no"
    assert again.task.next_retry_at is not None
    assert last.error is None
    assert last.task.result is not None
    assert last.task.result.ok_value == 3
    assert not last.task.saved


@pytest.mark.parametrize("persist", [False, True])
async def test_a_failure_is_told_with_its_error(heard: Heard, world: World, persist: bool) -> None:
    """As its waiters get it."""

    @world.manager.task(name="job", persist=persist)
    async def job() -> None:
        raise KeyError("x")

    with pytest.raises(TaskFailed) as failed:
        await job.enqueue()
    await world.idle()
    assert heard.kinds == ["enqueued", "started", "failed"]
    event = heard.events[-1]
    assert event.error == failed.value.error
    assert event.task.saved == persist
    assert "job" in repr(event)


async def test_a_persisted_task_is_told_of_when_it_is_committed(manager: TaskManager, heard: Heard) -> None:
    """What the file does not say has not happened."""
    store = FaultyStore(MemoryStore(), [Fault.hold(1, verb="commit")])
    async with isolated(manager, store=store.as_store()) as world:
        handle = manager.task(persist=True)(nothing).enqueue()
        await asyncio.wait([asyncio.ensure_future(handle.saved())], timeout=1)
        assert heard.kinds == []
        store.let_go()
        await handle
        await manager.flush()
        await world.idle()
        assert heard.kinds == ["enqueued", "started", "completed"]


async def test_an_end_is_told_once_where_the_store_takes_no_writes(manager: TaskManager, heard: Heard) -> None:
    """When its waiters are, with all that led to it; the commit tells nothing more."""
    store = FaultyStore(MemoryStore())
    async with isolated(manager, store=store.as_store()) as world:
        job = manager.task(persist=True, requeue_on_interrupt=True)(nothing)
        await job.enqueue()
        store.is_down = True
        second = job.enqueue()
        await second
        await world.idle()
        assert heard.words()[second.task_id] == "enqueued started completed"
        store.is_down = False
        await manager.flush()
        await world.idle()
    assert list(heard.words().values()) == ["enqueued started completed"] * 2


async def nothing() -> None: ...


async def test_each_event_is_told_where_the_change_was_made(tmp_path: Path) -> None:
    """Rows that are recovered, cancelled, put back or expired by an instance are told there, and there alone."""
    manager, other = TaskManager(tmp_path / "tasks.db"), TaskManager(tmp_path / "tasks.db")
    heard, heard_by_other = Heard(manager), Heard(other)
    async with manager:
        await put(
            manager._lifecycle.engine.store,  # type: ignore[union-attr]  # it runs
            row_of("safe", status="RUNNING", claimed_by_worker_id=OTHER, task_options='{"requeue_on_interrupt": true}'),
            row_of("unsafe", status="RUNNING", claimed_by_worker_id=OTHER),
            row_of("free"),
        )
        async with other:  # its start recovers the tasks of the dead
            assert await manager.cancel("free")
            assert await manager.retry("free")
    assert heard.words() == {"free": "cancelled enqueued"}
    assert heard_by_other.words() == {"safe": "requeued", "unsafe": "failed"}
    failed = next(each for each in heard_by_other.events if each.kind == "failed")
    assert failed.error is not None
    assert failed.error.error_code == "WORKER_CRASHED"
    assert failed.task.saved


async def test_a_task_of_a_schedule_and_of_a_failure_is_told(heard: Heard, world: World) -> None:
    """They come into the file by this instance, though nobody has called `enqueue`."""
    manager = world.manager

    @manager.task(name="alert", persist=True)
    async def alert(failed: FailedTask) -> None: ...

    @manager.schedule(every=60)
    @manager.task(name="often", persist=True, on_failure=alert)
    async def often() -> None:
        raise ValueError("no")

    await world.advance(60)
    await world.drain()
    await manager.flush()
    await world.idle()
    names = {event.task.task_id: event.task.task_name for event in heard.events}
    words = {names[task_id]: word for task_id, word in heard.words().items()}
    assert words["often"] == "enqueued started failed"
    assert words["alert"] == "enqueued started completed"


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_task_that_a_failure_enqueues_is_told_before_its_start(is_lost: bool) -> None:
    """And once, where a claim finds it in the store before the answer to the failure has come. If that `is_lost`, the
    failure is written once more, and enqueues nothing then.
    """
    manager, store, began = TaskManager(), FaultyStore(MemoryStore()), asyncio.Event()
    heard = Heard(manager)

    @manager.task(name="alert", persist=True)
    async def alert(failed: FailedTask) -> None:
        began.set()

    @manager.task(name="fails", persist=True, on_failure=alert)
    async def fails() -> None:
        raise ValueError("no")

    async with isolated(manager, store=store.as_store()) as world:
        earlier = manager.task(persist=True)(nothing).enqueue()
        await earlier
        number = store.calls.count("commit") + 2
        store.plan.append(Fault.hold(number, verb="commit", after=True))
        if is_lost:
            store.plan.append(Fault.fail(number, verb="commit", after=True))
        fails.enqueue()
        await world.advance(60)
        assert store.held == ["commit"]
        await manager.retry(earlier.task_id, force=True)  # this one's commit is let through, and so it is claimed
        await world.advance(60)
        assert began.is_set()
        store.let_go()
        await world.drain()
        await manager.flush()
        await world.idle()
    assert [event.kind for event in heard.events if event.task.task_name == "alert"] == [
        "enqueued", "started", "completed",
    ]  # fmt: skip


@pytest.mark.parametrize("alert_s", [0, 3])
async def test_a_task_that_a_failure_enqueues_is_told_once_if_that_is_repeated(alert_s: float) -> None:
    """The answer to the failure is lost. What it has enqueued runs before the failure is written once more, or then."""
    manager, store = TaskManager(), FaultyStore(MemoryStore())
    heard = Heard(manager)

    @manager.task(name="alert", persist=True)
    async def alert(failed: FailedTask) -> None:
        await asyncio.sleep(alert_s)

    @manager.task(name="fails", persist=True, on_failure=alert)
    async def fails() -> None:
        raise ValueError("no")

    async with isolated(manager, store=store.as_store()) as world:
        store.plan.append(Fault.fail(store.calls.count("commit") + 2, verb="commit", after=True))
        fails.enqueue()
        await world.drain()
        await manager.flush()
        await world.idle()
    assert sorted(heard.words().values()) == ["enqueued started completed", "enqueued started failed"]


async def test_a_run_of_a_schedule_is_told_once_if_its_fire_is_repeated() -> None:
    """The answer to the fire is lost, and it is written once more when its task has ended."""
    plan = [Fault.fail(1, verb="fire_schedules", after=True), Fault.fail(2, verb="busy_schedules", times=5)]
    manager, store = TaskManager(), FaultyStore(MemoryStore(), plan)
    heard = Heard(manager)

    @manager.schedule(every=600, overlap="skip", run_on_startup=True, name="tick")
    async def tick() -> None:
        """Has ended long before the store can be asked what runs."""

    async with isolated(manager, store=store.as_store()) as world:
        await world.advance(40)
        await world.idle()
        assert store.calls.count("fire_schedules") == 2
    assert list(heard.words().values()) == ["enqueued started completed"]


@pytest.mark.parametrize("kind", ["waits", "is retried", "runs again", "is put back while paused"])
async def test_task_of_a_node_is_told_as_enqueued_once_until_it_ends(kind: str) -> None:
    """A pause takes it out of memory, and the end of the pause puts it back; after its end a retry does."""
    manager = TaskManager(concurrency=1 if kind == "waits" else 9)
    heard, runs = Heard(manager), list[int]()

    @manager.task(name="node", persist=True, retries=1 if kind == "is retried" else 0, retry_delay=5)
    async def node(number: int) -> None:
        runs.append(number)
        if kind != "waits" and len(runs) == 1:
            raise ValueError("the first time")
        await asyncio.sleep(3)

    async with isolated(manager) as world:
        graph = Workflow("graph", on_error="pause" if kind == "is put back while paused" else "fail")
        for number in range(2 if kind == "waits" else 1):
            graph.add(node, number)
        workflow = await manager.start_workflow(graph)
        await world.advance(1)
        if kind in ("runs again", "is put back while paused"):
            (only,) = await workflow.nodes()
            assert await manager.retry(only.task_id or "")
        else:
            await workflow.pause()
        if kind != "runs again":
            await world.advance(4)
            await workflow.resume()
        await world.drain()
        assert (await workflow.result()).is_ok()
        await world.idle()
    told = {"waits": "", "is retried": "started retrying "}.get(kind, "started failed enqueued ")
    assert set(heard.words().values()) == {f"enqueued {told}started completed"}


@pytest.mark.parametrize("is_caller_cancelled", [False, True])
async def test_tasks_that_a_cancelled_workflow_takes_along_are_told(is_caller_cancelled: bool) -> None:
    """Those that wait in the file like those that wait in memory, and the one that runs. Also if whoever has cancelled
    the workflow is cancelled before their rows are read.
    """
    manager, store = TaskManager(), FaultyStore(MemoryStore())
    heard = Heard(manager)

    @manager.task(name="node", persist=True)
    async def node(number: int) -> None:
        await asyncio.sleep(3)

    async with isolated(manager, store=store.as_store()) as world:
        graph = Workflow("graph")
        for delay in (0, 50):
            graph.add(node.with_options(delay=delay), delay)
        workflow = await manager.start_workflow(graph)
        await world.advance(1)
        if is_caller_cancelled:
            store.plan.append(Fault.hold(store.calls.count("fetch_ids") + 1, verb="fetch_ids"))
        cancelling = asyncio.ensure_future(workflow.cancel())
        await world.idle()
        if is_caller_cancelled:
            assert store.held == ["fetch_ids"]
            cancelling.cancel()
            await world.idle()
            store.let_go()
        await asyncio.wait([cancelling])
        await world.drain()
        await world.idle()
    assert sorted(heard.words().values()) == ["enqueued cancelled", "enqueued started cancelled"]


async def test_a_task_that_is_put_back_is_not_told_to_have_ended_with_its_workflow() -> None:
    """Somebody starts the workflow again before the rows are read that its cancel has ended. Who waits for such a task
    is told what it comes to then, and who has cancelled the workflow that it was cancelled.
    """
    manager, store = TaskManager(), FaultyStore(MemoryStore())
    heard = Heard(manager)

    @manager.task(name="node", persist=True)
    async def node() -> str:
        return "done"

    async with isolated(manager, store=store.as_store()) as world:
        graph = Workflow("graph")
        graph.add(node.with_options(delay=50))
        workflow = await manager.start_workflow(graph, workflow_id="w")
        (only,) = await workflow.nodes()
        waiting = asyncio.ensure_future(manager.handle(only.task_id or "").result())
        await world.idle()
        store.plan.append(Fault.hold(store.calls.count("fetch_ids") + 1, verb="fetch_ids"))
        cancelling = asyncio.ensure_future(workflow.cancel())
        await world.idle()
        assert store.held == ["fetch_ids"]
        assert (await manager.start_workflow(graph, workflow_id="w")).is_duplicate
        store.let_go()
        assert await cancelling
        assert not waiting.done()
        await world.advance(100)
        assert (await waiting).ok_value == "done"
        await world.drain()
        await world.idle()
    assert "cancelled" not in str(heard.words())


async def test_plain_changes_are_told_as_the_rule_tells_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lean writes say themselves what they are, and the rule says the same."""
    hooks, noted = Hooks(), list[Noted]()
    hooks.listen(print, frozenset(get_args(EventKind)))
    monkeypatch.setattr(listeners.Listeners, "_note", lambda _, told: noted.append(told))
    made = listeners.Listeners(hooks, EventReader(RowCodec({}), new_identity(None, 1)))
    for stages in ("accepted, started, succeeded", "started, succeeded", "accepted, succeeded", "succeeded"):
        live, expected = new_live(), list[tuple[str, int]]()
        for stage in ("accepted", "started", "succeeded"):
            if stage == "started":
                live.status, live.start_count, live.started_at, live.updated_at = TaskStatus.RUNNING, 1, 2_000, 2_000
            elif stage == "succeeded":
                live.succeed(7, 3_000)
            if stage not in stages:
                continue
            base, state = live.saving.committed, live.expectation()
            write = write_of(live, base)
            live.saving.committed = state
            made.committed([Sent(live, state, base, write)], CommitReport({}, {}), ())
            expected += [step[:2] for step in steps_between(base, state, write.attempts)]
        assert [(told[0], told[2]) for told in noted] == expected, stages
        noted.clear()


# --- who is told ------------------------------------------------------------------------------------------------------


async def test_a_listener_hears_the_kinds_that_it_names(manager: TaskManager) -> None:
    """The same function may name more of them in a second line."""
    heard: list[str] = []

    @manager.on("failed")
    @manager.on("retrying")
    async def hear(event: TaskEvent) -> None:
        heard.append(event.kind)

    job = manager.task(retries=1)(failing)
    async with isolated(manager) as world:
        await job.enqueue().result()
        await world.idle()
    assert heard == ["retrying", "failed"]


async def failing() -> None:
    raise ValueError("no")


async def test_a_sync_listener_runs_in_a_thread_of_its_own(manager: TaskManager) -> None:
    """All of them in one, and never on the loop; an async one is no part of a task."""
    threads, kinds = set[str](), defaultdict[str, list[str]](list)

    @manager.on()
    def first(event: TaskEvent) -> None:
        threads.add(threading.current_thread().name)
        kinds["first"].append(event.kind)

    @manager.on()
    def second(event: TaskEvent) -> None:
        threads.add(threading.current_thread().name)
        kinds["second"].append(event.kind)

    @manager.on()
    async def third(event: TaskEvent) -> None:
        with pytest.raises(NotInTask):
            current_task()
        kinds["third"].append(event.kind)

    async with isolated(manager):
        await manager.task(nothing).enqueue()
    assert threads == {"taskmanager-listeners"}
    assert list(kinds.values()) == [["enqueued", "started", "completed"]] * 3


async def test_a_listener_that_comes_later_hears_from_then_on(world: World) -> None:
    """Also in a manager that runs, and that nobody has listened to so far."""
    job = world.manager.task(nothing)
    await job.enqueue()
    heard = Heard(world.manager)
    handle = job.enqueue()
    await handle
    await world.idle()
    assert heard.words() == {handle.task_id: "enqueued started completed"}


async def test_the_next_start_tells_the_same_listeners(heard: Heard, world: World) -> None:
    """They belong to the manager."""
    job = world.manager.task(nothing)
    await job.enqueue()
    await world.restart()
    await job.enqueue()
    await world.idle()
    assert heard.kinds == ["enqueued", "started", "completed"] * 2


def test_a_function_that_cannot_listen_is_refused() -> None:
    """With what was meant: an unknown kind, forgotten brackets, too few parameters, a task."""
    manager = TaskManager(None)

    @task
    async def job(event: object) -> None: ...
    def deaf() -> None: ...

    with pytest.raises(ConfigurationError, match=r"'fialed'; did you mean 'failed'\?; there are enqueued, started,"):
        manager.on("failed", "fialed")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"@manager.on\(\)"):
        manager.on(deaf)  # type: ignore[arg-type]
    for wrong in (deaf, job, "deaf", None):
        with pytest.raises(ConfigurationError, match="a function of one parameter"):
            manager.on()(wrong)  # type: ignore[type-var]


def test_listener_that_would_never_run_or_be_found_is_refused() -> None:
    """The body of a generator function would not run, and no event would tell of it."""
    manager, counted = TaskManager(None), list[str]()

    def generates(event: TaskEvent) -> Iterator[str]:
        yield event.kind

    async def generates_too(event: TaskEvent) -> AsyncIterator[str]:
        yield event.kind

    @wraps(generates)
    def runs_it(event: TaskEvent) -> None:
        counted.extend(generates(event))

    @dataclass
    class Alarm:
        count: int = 0

        def __call__(self, event: TaskEvent) -> None:
            self.count += 1

    for wrong in (generates, generates_too, partial(generates)):
        with pytest.raises(ConfigurationError, match="it is a generator function; call it from a plain function"):
            manager.on()(wrong)
    with pytest.raises(ConfigurationError, match="it is not hashable; call it from a plain function"):
        manager.on()(Alarm())
    manager.on()(runs_it)


# --- what a listener may do -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exc", [KeyError("x"), SystemExit(1), asyncio.CancelledError()])
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_listener_that_raises_harms_nobody(
    manager: TaskManager, heard: Heard, caplog: pytest.LogCaptureFixture, exc: BaseException, is_async: bool
) -> None:
    """One WARNING for the function, then it is counted, and hears what comes next."""
    calls: list[str] = []

    def fails(event: TaskEvent) -> None:
        calls.append(event.kind)
        raise exc

    async def fails_too(event: TaskEvent) -> None:
        fails(event)

    manager.on()(fails_too if is_async else fails)
    async with isolated(manager) as world:
        await manager.task(nothing).enqueue()
        await world.idle()
        if is_async and not isinstance(exc, asyncio.CancelledError):
            (trouble,) = manager.status().failing_duties.values()
            assert trouble == f"has raised 3 times, last {type(exc).__name__}"
    assert calls == heard.kinds == ["enqueued", "started", "completed"]
    told = [record.message for record in caplog.records if "listener" in record.message]
    assert len(told) == (0 if is_async and isinstance(exc, asyncio.CancelledError) else 1)


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_listener_that_returns_a_coroutine_is_told_of(
    manager: TaskManager, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody awaits it, so what it stands for is not done. A lambda around an async function is such a listener."""

    async def note(_: TaskEvent) -> None: ...

    async def notes(event: TaskEvent) -> object:
        return note(event)

    manager.on("completed")(notes if is_async else lambda event: note(event))
    async with isolated(manager) as world:
        await manager.task(nothing).enqueue()
        await world.idle()
    assert "has raised TypeError, which harms no task" in caplog.text
    assert "returned the coroutine" in caplog.text


async def test_a_listener_that_hangs_drops_the_newest(
    manager: TaskManager, heard: Heard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Others hear everything, and a stop waits a second for it."""
    monkeypatch.setattr(ears, "MOST_WAITING", 4)
    told: list[str] = []

    @manager.on()
    async def hang(event: TaskEvent) -> None:
        told.append(event.kind)
        await asyncio.sleep(1000)

    async with isolated(manager) as world:
        for _ in range(3):
            await manager.task(name="job")(nothing).enqueue()
            await world.idle()
        assert "listener tests.unit" in next(iter(manager.status().failing_duties))
        assert next(iter(manager.status().failing_duties.values())) == "4 events dropped"
        began = world.now
        await manager.stop()
        assert (world.now - began).total_seconds() < 2
        await world.start()
    assert told == ["enqueued"]
    assert heard.kinds == ["enqueued", "started", "completed"] * 3
    assert sum("does not keep up" in record.message for record in caplog.records) == 1
    assert "was not told of 4 events" in caplog.text


async def test_a_thread_that_hangs_in_a_listener_does_not_hold_up_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a daemon, and what waits behind it is told to nobody."""
    monkeypatch.setattr(listeners, "CLOSE_PATIENCE_S", 0.05)
    manager, may_end, told = TaskManager(None), threading.Event(), list[str]()

    @manager.on()
    def hang(event: TaskEvent) -> None:
        told.append(event.kind)
        may_end.wait(30)

    async with manager:
        await manager.task(nothing).enqueue()
    may_end.set()
    assert told == ["enqueued"]


def test_a_listener_that_swallows_its_cancellation_holds_up_no_program(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The stop leaves it behind and names it. Else the end of the loop would wait for it, and only SIGKILL would help.

    One that cleans up when it is cancelled has the time to do so.
    """
    monkeypatch.setattr(listeners, "CLOSE_PATIENCE_S", 0.05)
    manager, cleaned, cancel_count = TaskManager(None), list[str](), 0

    @manager.on("completed")
    async def swallow(event: TaskEvent) -> None:
        nonlocal cancel_count
        while cancel_count < 3:  # the end of the loop must not be among those that cancel it
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancel_count += 1

    @manager.on("completed")
    async def tidy(event: TaskEvent) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(event.kind)

    async def main() -> None:
        async with manager:
            await manager.task(nothing).enqueue()

    asyncio.run(main())
    assert cancel_count == 1
    assert cleaned == ["completed"]
    gc.collect()  # Python closes the coroutine with an exception, which is none of the application
    (told,) = [record.message for record in caplog.records if "listener" in record.message]
    assert "swallow goes on though it was cancelled; the stop does not wait for it" in told


async def test_the_thread_is_told_what_comes_just_before_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread may just have seen that nothing is left when the last event comes and the stop begins."""
    manager, told, tell = TaskManager(None), list[str](), Listeners._tell_slice
    has_told, never = threading.Event(), threading.Event()

    def tell_and_dawdle(self: Listeners, ear: Ear) -> bool:
        is_more = tell(self, ear)
        while told and not self._is_closing:
            never.wait(0.001)
        return is_more

    monkeypatch.setattr(Listeners, "_tell_slice", tell_and_dawdle)
    job = manager.task(nothing)

    @manager.on("completed")
    def hear(event: TaskEvent) -> None:
        told.append(event.kind)
        has_told.set()

    async with manager:
        await job.enqueue()
        await asyncio.to_thread(has_told.wait, 30)
        await job.enqueue()
    assert told == ["completed"] * 2


async def test_a_listener_may_enqueue(manager: TaskManager) -> None:
    """From the thread, or from the loop: it is code of the application like any other."""
    ran: list[str] = []

    @manager.task(name="alert")
    async def alert(about: str) -> None:
        ran.append(about)

    @manager.on("failed")
    def in_thread(event: TaskEvent) -> None:
        alert.enqueue(event.task.task_name).wait(timeout=30)

    @manager.on("failed")
    async def on_loop(event: TaskEvent) -> None:
        await alert.enqueue(event.task.task_name)

    async with manager:
        await manager.task(name="job")(failing).enqueue().result()
        while len(ran) < 2:  # noqa: ASYNC110  # a thread does it
            await asyncio.sleep(0)
    assert ran == ["job", "job"]
