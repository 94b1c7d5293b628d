"""What an idempotency key does: it leads to the task that has it, in every process, until the record is purged."""

import asyncio
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from taskmanager import ManagerStopped, QueueConfig, QueueFull, StoreUnavailable, TaskManager, TaskStatus, task
from taskmanager.engine.intake.inbox import Inbox
from taskmanager.engine.intake.keys import Keys
from taskmanager.engine.people import actions
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.store.memory import MemoryStore
from taskmanager.testing import START, Fault, FaultyStore, World, isolated

pytestmark = pytest.mark.anyio


async def test_a_refused_call_holds_no_key() -> None:
    """The next try with the same key is a new task."""
    manager = TaskManager(None, queues=[QueueConfig("small", max_pending=1)])

    @manager.task(queue_name="small")
    async def job() -> None: ...

    async with isolated(manager) as world:
        job.with_options(delay=60).enqueue()
        with pytest.raises(QueueFull):
            job.with_options(idempotency_key="k").enqueue()
        await world.advance(61)
        handle = job.with_options(idempotency_key="k").enqueue()
        assert handle.is_duplicate is False
        await handle


@pytest.mark.parametrize("persist", [False, True])
async def test_a_key_leads_to_the_task_that_has_it(world: World, persist: bool) -> None:
    """Waiting, running or completed: the handle follows it, and new arguments are ignored."""
    runs = []
    go = asyncio.Event()

    @world.manager.task(persist=persist)
    async def job(n: int) -> int:
        runs.append(n)
        await go.wait()
        return n

    call = job.with_options(idempotency_key="k")
    await world.manager.pause("default")
    handles = [call.enqueue(1), call.enqueue(1)]
    await world.manager.resume("default")
    await world.idle()
    assert handles[0].status == "RUNNING"
    handles.append(call.enqueue(2))
    go.set()
    assert await handles[0] == 1
    handles.append(call.enqueue(3))
    assert [await each for each in handles] == [1, 1, 1, 1]
    assert [each.is_duplicate for each in handles] == [False, True, True, True]
    assert len({each.task_id for each in handles}) == 1
    assert runs == [1]


@pytest.mark.parametrize("persist", [False, True])
async def test_a_key_whose_task_ended_badly_is_a_retry_with_the_new_arguments(world: World, persist: bool) -> None:
    """FAILED here; CANCELLED and EXPIRED below."""
    runs = []

    @world.manager.task(persist=persist)
    async def job(n: int) -> int:
        runs.append(n)
        if n == 1:
            raise ValueError("broken")
        return n

    call = job.with_options(idempotency_key="k")
    first = call.enqueue(1)
    assert (await first.result()).is_err()
    second = call.enqueue(2)
    assert second.task_id == first.task_id
    assert await second == 2
    assert second.is_duplicate is True
    info = await second.info(include_attempts=True)
    assert (info.status, info.args, info.start_count) == ("COMPLETED", "[2]", 2)
    assert runs == [1, 2]
    assert await call.enqueue(3) == 2


@pytest.mark.parametrize("persist", [False, True])
@pytest.mark.parametrize("end", ["cancelled", "expired"])
async def test_a_key_whose_task_never_ran_starts_again(world: World, persist: bool, end: str) -> None:
    """The new call's own options count."""

    @world.manager.task(persist=persist)
    async def job(n: int) -> int:
        return n

    late = job.with_options(idempotency_key="k", delay=60, good_until=START + timedelta(seconds=30))
    first = late.enqueue(1)
    await world.advance(1)
    if end == "cancelled":
        assert await world.manager.cancel(first.task_id)
    else:
        await world.advance(31)
    assert first.status == end.upper()
    second = job.with_options(idempotency_key="k").enqueue(2)
    assert await second == 2
    assert second.task_id == first.task_id
    assert (await second.info()).error_code is None


async def test_the_key_outlives_a_restart_where_the_task_does(world: World) -> None:
    """Persisted keys are in the store; memory-only ones are unique within the instance."""
    runs: list[str] = []

    @world.manager.task(name="stored", persist=True)
    async def stored(n: int) -> int:
        runs.append("stored")
        return n

    @world.manager.task(name="light")
    async def light() -> None:
        runs.append("light")

    call, light_call = stored.with_options(idempotency_key="k"), light.with_options(idempotency_key="k")
    first = call.enqueue(1)
    await first
    await light_call.enqueue()
    await world.restart()
    second = call.enqueue(2)
    assert second.is_duplicate is None
    assert await second == 1
    assert second.is_duplicate is True
    await light_call.enqueue()
    assert runs == ["stored", "light", "light"]


async def test_a_keyed_persisted_task_is_known_as_new_or_not_with_its_commit(world: World) -> None:
    """`is_duplicate` is None until `saved()`; a memory-only key is known at once."""

    @world.manager.task(name="stored", persist=True)
    async def stored() -> None: ...

    @world.manager.task(name="light")
    async def light() -> None: ...

    handle = stored.with_options(idempotency_key="k").enqueue()
    assert handle.is_duplicate is None
    await handle.saved()
    assert handle.is_duplicate is False
    assert light.with_options(idempotency_key="k").enqueue().is_duplicate is False
    assert stored.enqueue().is_duplicate is False


async def test_the_same_key_of_another_task_is_another_key(world: World) -> None:
    """The id is derived from name and key; None is no key."""

    @world.manager.task(name="a")
    async def one() -> None: ...

    @world.manager.task(name="b")
    async def two() -> None: ...

    ids = {each.with_options(idempotency_key="k").enqueue().task_id for each in (one, two)}
    ids |= {one.with_options(idempotency_key=None).enqueue().task_id for _ in range(2)}
    assert len(ids) == 4


@pytest.mark.parametrize("persist", [False, True])
async def test_a_purged_record_frees_its_key(world: World, persist: bool) -> None:
    """COMPLETED keeps the key until then, whatever else a purge deletes."""
    runs = []

    @world.manager.task(persist=persist)
    async def job(n: int) -> int:
        runs.append(n)
        return n

    call = job.with_options(idempotency_key="k")
    assert await call.enqueue(1) == 1
    assert await call.enqueue(2) == 1
    assert await world.manager.purge(status=TaskStatus.FAILED) == 0
    assert await world.manager.purge(older_than=timedelta(days=1)) == 0
    assert await call.enqueue(2) == 1
    assert await world.manager.purge(status=TaskStatus.COMPLETED) == 1
    assert await call.enqueue(3) == 3
    assert runs == [1, 3]


@pytest.mark.parametrize("fault", [Fault.hold(1, verb="purge", after=True), Fault.fail(2, verb="purge")])
async def test_a_purge_that_is_cut_short_frees_the_keys_of_what_it_deleted(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key without a record would stay taken until the manager stops; the record that is left keeps its key."""
    monkeypatch.setattr(actions, "PURGE_PAGE", 1)
    store, manager = FaultyStore(MemoryStore(), [fault]), TaskManager()
    runs: list[int] = []

    @manager.task
    async def job(n: int) -> int:
        runs.append(n)
        return n

    calls = [job.with_options(idempotency_key=key) for key in ("a", "b")]
    async with isolated(manager, store=store.as_store()):
        ids = [call.enqueue(1) for call in calls]
        for each in ids:
            await each
        purging = asyncio.ensure_future(manager.purge(status=TaskStatus.COMPLETED))
        if fault.kind == "hold":
            while not store.held:  # noqa: ASYNC110  # it has no event
                await asyncio.sleep(0)
            purging.cancel()
            store.let_go()
        await asyncio.wait([purging])
        assert purging.cancelled() or isinstance(purging.exception(), StoreUnavailable)
        kept = [await manager.get(each.task_id) is not None for each in ids]
        assert sorted(kept) == [False, True]
        assert [await call.enqueue(2) for call in calls] == [1 if is_kept else 2 for is_kept in kept]
    assert runs == [1, 1, 2]


async def test_ignored_arguments_are_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """When they differ; not when they are the same."""
    caplog.set_level("INFO", logger="taskmanager")

    @world.manager.task
    async def job(n: int) -> None: ...

    call = job.with_options(idempotency_key="k")
    call.enqueue(1)
    call.enqueue(1)
    assert "other arguments" not in caplog.text
    call.enqueue(2)
    assert "other arguments" in caplog.text


async def test_two_instances_with_one_key_share_the_task() -> None:
    """The second finds the row of the first, and follows it to its end."""
    store = MemoryStore()
    runs: list[str] = []

    def define(name: str) -> tuple[TaskManager, Any]:
        manager = TaskManager(None, store_poll=0.05)

        @task(name="job", persist=True)
        async def job(n: int) -> int:
            runs.append(name)
            await asyncio.sleep(1)
            return n

        return manager, job

    (one, job_one), (two, job_two) = define("one"), define("two")
    async with isolated(one, store=store) as first, isolated(two, store=store):
        one.register(job_one)
        two.register(job_two)
        a = job_one.with_options(idempotency_key="k").enqueue(1)
        await a.saved()
        b = job_two.with_options(idempotency_key="k").enqueue(2)
        await first.advance(2)
        assert await a == 1
        assert b.task_id == a.task_id
        assert b.is_duplicate is True
    assert runs == ["one"]


async def test_threads_race_for_one_key(world: World) -> None:
    """Exactly one of them wins."""

    @world.manager.task
    async def job() -> None: ...

    barrier = threading.Barrier(3)

    def caller() -> bool | None:
        barrier.wait(5)
        return job.with_options(idempotency_key="k").enqueue().is_duplicate

    found = await asyncio.gather(*(asyncio.to_thread(caller) for _ in range(3)))
    assert sorted(map(str, found)) == ["False", "True", "True"]


def test_a_key_answered_before_its_call_returns_is_free_after_a_purge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop of another thread may learn from the file that the key has a task, before the caller goes on. From then
    on the file answers for the key, so the memory of the caller's call must not."""
    manager, runs = TaskManager(tmp_path / "tasks.db"), []
    handed_over: list[LiveTask] = []
    has_answer = threading.Event()
    put, give, left = Inbox.put, Keys.give, Keys.left

    def put_noted(inbox: Inbox, live: LiveTask) -> None:
        handed_over.append(live)
        put(inbox, live)

    def give_late(keys: Keys, live: LiveTask) -> None:
        assert live not in handed_over or has_answer.wait(20)
        give(keys, live)

    def left_noted(keys: Keys, live: LiveTask) -> None:
        left(keys, live)
        has_answer.set()

    @manager.task(persist=True)
    async def job(n: int) -> int:
        runs.append(n)
        return n

    call = job.with_options(idempotency_key="k")
    with manager.in_thread():
        assert call.enqueue(1).wait() == 1
        manager.call(manager.flush())
        monkeypatch.setattr(Inbox, "put", put_noted)
        monkeypatch.setattr(Keys, "give", give_late)
        monkeypatch.setattr(Keys, "left", left_noted)
        assert call.enqueue(2).wait() == 1
        assert manager.call(manager.purge(older_than=timedelta(0))) == 1
        assert call.enqueue(3).wait() == 3
    assert runs == [1, 3]


async def test_a_call_whose_loop_closes_meanwhile_holds_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused at the last moment, where the loop is told of it."""
    manager = TaskManager(None)

    @manager.task
    async def job() -> None: ...

    def closed(inbox: Inbox) -> None:
        raise RuntimeError("Event loop is closed")

    call = job.with_options(idempotency_key="k")
    async with isolated(manager) as world:
        await world.idle()
        with monkeypatch.context() as patched:
            patched.setattr(Inbox, "_ring", closed)
            with pytest.raises(ManagerStopped):
                call.enqueue()
        handle = call.enqueue()
        assert handle.is_duplicate is False
        await handle
