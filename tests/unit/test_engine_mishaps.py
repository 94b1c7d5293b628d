"""User code that misbehaves, corrupt rows, and mistakes of ours: each costs one task at most, and ends no loop."""

import asyncio
import contextlib
from typing import Any

import pytest

from taskmanager import (
    StoreUnavailable,
    TaskCancelled,
    TaskError,
    TaskFailed,
    TaskManager,
    TaskResult,
    TaskStatus,
    current_task,
)
from taskmanager.engine.intake.inbox import Inbox
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.model.record import TaskWrite
from taskmanager.testing import isolated
from tests.unit.engine_lives import new_live
from tests.unit.engine_worlds import assert_counters, engine_of, manager_of, persisted, turns_until, world_of

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(20)]


# User code and corrupt rows.


async def test_a_log_line_that_json_cannot_hold_ends_the_task_all_the_same() -> None:
    """News are for people: they lose detail, never the task."""
    manager = manager_of()

    @manager.task
    async def chatty() -> str:
        current_task().log("look at this", what=object(), how=float("nan"), where="\udc80")
        current_task().progress(float("nan"), None, "\udc80")
        return "done"

    async with world_of(manager):
        async with asyncio.timeout(5):
            assert await chatty.enqueue() == "done"


class _Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


async def test_an_exception_that_cannot_be_printed_is_a_failure() -> None:
    """Whatever user code raises ends that task and nothing else."""
    manager = manager_of()

    @manager.task
    async def bad() -> None:
        raise _Unspeakable

    @manager.task
    async def worse() -> TaskResult[None]:
        return TaskResult(err=TaskError("BAD", "", {"x": object()}))

    async with world_of(manager):
        async with asyncio.timeout(5):
            for each in (bad, worse):
                with pytest.raises(TaskFailed):
                    await each.enqueue()
        assert_counters(engine_of(manager))


class Untraceable(Exception):
    @property
    def __traceback__(self) -> Any:
        raise RuntimeError


class Untouchable(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError


class Exiting(Exception):
    def __str__(self) -> str:
        raise SystemExit


@pytest.mark.parametrize("lane", ["async", "thread"])
@pytest.mark.parametrize("kind", [Untraceable, Untouchable, Exiting])
async def test_an_exception_that_cannot_be_described_is_a_failure(lane: str, kind: type[Exception]) -> None:
    """Else the task would be RUNNING for ever, and its slot gone with it."""
    manager = manager_of(concurrency=1, threads=1)

    async def fails() -> None:
        raise kind

    def fails_in_thread() -> None:
        raise kind

    async with world_of(manager):
        fn: Any = fails if lane == "async" else fails_in_thread
        task = manager.task(name="fails", persist=True)(fn)
        for _ in range(2):
            with pytest.raises(TaskFailed, match=kind.__name__):
                await task.enqueue()
        assert_counters(engine_of(manager))


@pytest.mark.parametrize("exception", [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration])
@pytest.mark.parametrize("executor", ["async", "thread"])
async def test_an_exception_for_the_interpreter_ends_one_task(exception: type[BaseException], executor: str) -> None:
    """It was raised by user code, in a task; neither the loop nor the process ends of it."""
    manager = manager_of()

    async def work() -> None:
        raise exception

    def plain_work() -> None:
        raise exception

    task = manager.task(name="work")(work if executor == "async" else plain_work)
    async with world_of(manager):
        with pytest.raises(TaskFailed):
            await task.enqueue()
        assert_counters(engine_of(manager))


@pytest.mark.parametrize("options", ["not json", "[]", '{"persist": true, "timeout_s": "soon"}', "null"])
@pytest.mark.parametrize("owner", [None, "dead"])
async def test_a_corrupt_row_stops_neither_the_start_nor_the_others(options: str, owner: str | None) -> None:
    """One row that cannot be read is one task with a problem."""
    manager = manager_of()
    log: list[str] = []
    work = persisted(manager, log)
    async with world_of(manager) as (world, store):
        definition, call = work.bound()
        bad = manager._intake.make(definition, call, ("bad",), {}).row()
        good = manager._intake.make(definition, call, ("good",), {}).row()
        await manager.stop()
        await store.memory.commit(
            [
                TaskWrite(bad._replace(task_options=options, claimed_by_worker_id=owner), None),
                TaskWrite(good._replace(claimed_by_worker_id=owner), None),
            ]
        )
        await world.start()
        await world.advance(5)
        assert "good" in log
        assert_counters(engine_of(manager))


# Mistakes of ours: a loop that ends without a word is the worst of them.


@pytest.mark.parametrize("verb", ["commit", "changes"])
async def test_an_unexpected_error_of_the_store_is_said_and_survived(
    verb: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the writer nor the claimer ends by an exception that nobody has thought of."""
    manager = manager_of()
    work = persisted(manager)
    async with world_of(manager) as (world, store):
        right = getattr(store.memory, verb)
        failed: list[str] = []

        async def wrong(*args: Any) -> Any:
            if not failed:
                failed.append(verb)
                raise ZeroDivisionError(verb)
            return await right(*args)

        monkeypatch.setattr(store.memory, verb, wrong)
        handle = work.enqueue("a")
        await world.advance(10)
        assert failed == [verb]
        assert await handle == "a"
        assert [record.levelname for record in caplog.records].count("CRITICAL") >= 1
        lifecycle = manager._lifecycle
        assert lifecycle is not None
        assert lifecycle.engine.host.is_running("claimer")


@pytest.mark.parametrize("failing", ["look", "free_queues"])
async def test_a_look_that_fails_is_not_repeated_before_its_time(failing: str) -> None:
    """A store that is closed fails without a turn of the loop: who looked again at once would let nothing else run.

    Whatever of the look fails, who asked for it asks still, and is heard when the store is back.
    """
    manager = manager_of()
    work = persisted(manager)
    async with world_of(manager) as (world, store):
        engine, lifecycle = engine_of(manager), manager._lifecycle
        assert lifecycle is not None
        looks = 0

        async def fail(*_: object) -> None:
            nonlocal looks
            looks += 1
            if failing == "free_queues":
                engine.life.wants_claim.set()  # as a queue does that runs low
            raise StoreUnavailable("closed")

        target = store if failing == "free_queues" else lifecycle._poller.database_watch
        right = getattr(target, failing)
        setattr(target, failing, fail)
        call = work.bound()
        row = manager._intake.make(call[0], call[1], ("a",), {}).row()
        await store.memory.commit([TaskWrite(row, None)])
        engine.life.wants_claim.set()
        for _ in range(4):
            await world.advance(0.5)
        assert 2 <= looks <= 2 / engine.settings.store_poll_s + 1
        setattr(target, failing, right)
        await world.advance(1)
        assert (await manager.counts())[TaskStatus.COMPLETED] == 1


async def test_a_task_that_ignores_its_cancel_until_its_time_is_up_was_cancelled() -> None:
    """The request came first; that it was ignored for so long makes it no failure."""
    manager = manager_of()
    ends = asyncio.Event()

    @manager.task(persist=True, timeout=5, retries=3)
    async def stubborn() -> None:
        while not ends.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await ends.wait()

    async with world_of(manager) as (world, _store):
        handle = stubborn.enqueue()
        await world.advance(1)
        assert handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle
        ends.set()


async def test_the_status_of_a_duplicate_is_how_its_task_ended() -> None:
    """The key led to a task that this process did not run; once awaited, the handle knows."""
    manager = manager_of()
    work = persisted(manager)
    async with world_of(manager) as (_world, store):
        first = work.with_options(idempotency_key="k").enqueue("a")
        await first.saved()
        await first
        await manager.flush()
        ended = await store.memory.fetch(first.task_id)
        assert ended is not None
        store.memory.put(
            ended._replace(status="RUNNING", claimed_by_worker_id="other", started_at=1, completed_at=None)
        )
        second = work.with_options(idempotency_key="k").enqueue("a")
        await second.saved()
        assert (second.is_duplicate, str(second.status)) == (True, "RUNNING")
        store.memory.put(ended)
        store.memory.others_wrote()
        assert await second == "a"
        assert second.status == "COMPLETED"


async def test_a_forked_child_that_goes_on_in_the_loop_of_its_parent_starts_nothing() -> None:
    """Whatever is due is the parent's to start. In the child it would run a second time, and be recorded nowhere."""
    manager, log = TaskManager(None), []

    async def work(label: str) -> None:
        log.append(label)

    task = manager.task(name="work", persist=False)(work)
    async with isolated(manager) as world:
        engine = engine_of(manager)
        task.with_options(delay=5).enqueue("delayed")
        task.enqueue("waiting")
        engine.intake.forked()
        await world.advance(10)
        assert log == []
        engine.intake.is_forked = False  # the parent again
        engine.life.kick()
        await world.advance(1)
        assert sorted(log) == ["delayed", "waiting"]


async def test_a_call_that_cannot_be_accepted_does_not_keep_those_behind_it() -> None:
    """They asked for no turn of their own, because one was due."""
    manager = manager_of()
    broken, behind_it = new_live(), new_live()
    accepted: list[LiveTask] = []
    said: list[object] = []

    def accept(live: LiveTask) -> None:
        if live is broken:
            raise ValueError("boom")
        accepted.append(live)

    asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context["exception"]))
    async with world_of(manager):
        engine = engine_of(manager)
        inbox = Inbox(engine.live, engine.dispatcher, engine.writer, accept, lambda: None)
        inbox.put(broken)
        inbox.put(behind_it)
        await turns_until(lambda: accepted == [behind_it])
    assert [str(each) for each in said] == ["boom"]
