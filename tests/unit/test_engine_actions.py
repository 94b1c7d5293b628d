"""Acting on stored tasks: each write repeats what was read, so who comes too late changes nothing."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import pytest

from taskmanager import StoreUnavailable, TaskCancelled, TaskEvent, TaskHandle
from taskmanager.engine.people.actions import PAGE, cancel_stored, retry_stored, why_not_again
from taskmanager.engine.words.definition import RowCodec
from taskmanager.model.ids import keyed_task_id
from taskmanager.model.record import TaskRow, TaskWrite, expected_of
from taskmanager.model.states import TaskStatus
from taskmanager.store.memory import MemoryStore
from taskmanager.store.protocol import Store
from taskmanager.store.sqlite import SqliteStore
from tests.unit.engine_lives import new_live
from tests.unit.engine_worlds import manager_of, persisted, world_of

pytestmark = pytest.mark.anyio
UNTYPED: Final = RowCodec({})


def waiting(task_id: str, **values: Any) -> TaskRow:
    return new_live(task_id=task_id).row()._replace(claimed_by_worker_id=None, **values)


def failed(task_id: str, **values: Any) -> TaskRow:
    return waiting(task_id, status="FAILED", failed_at=2_000, error_code="X", start_count=3, retry_count=2, **values)


@pytest.fixture(params=[MemoryStore, SqliteStore])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    made: Store = SqliteStore(tmp_path / "tasks.db") if request.param is SqliteStore else MemoryStore()
    await made.open()
    yield made
    await made.close()


async def moved_on(store: Store, row: TaskRow) -> None:
    """Somebody else has run the task since `row` was read."""
    changed = row._replace(status="RUNNING", claimed_by_worker_id="other", started_at=3_000, start_count=9)
    changed = changed._replace(failed_at=None, error_code=None)
    assert not (await store.commit([TaskWrite(changed, expected_of(row))])).lost


async def test_a_free_task_is_ended_and_one_that_somebody_has_is_asked(store: Store) -> None:
    """A free row nobody else will end; of an owned one only the request is written."""
    free = waiting("free")
    owned = waiting("owned")._replace(claimed_by_worker_id="other")
    await store.commit([TaskWrite(row, None) for row in (free, owned)])
    assert await cancel_stored(store, UNTYPED, [free, owned], 5_000) == {"free", "owned"}
    rows = await store.fetch_ids(["free", "owned"])
    assert (rows["free"].status, rows["free"].error_code) == ("CANCELLED", "TASK_CANCELLED")
    assert (rows["owned"].status, rows["owned"].cancel_requested_at) == ("PENDING", 5_000)


async def test_a_retry_keeps_the_fence_and_clears_the_rest(store: Store) -> None:
    """`start_count` is never reset: what an old attempt still writes must be refused."""
    row = failed("t", good_until=1, next_retry_at=2_500, cancel_requested_at=2_600)
    await store.commit([TaskWrite(row, None)])
    assert await retry_stored(store, [row], 5_000) == {"t"}
    again = await store.fetch("t")
    assert again is not None
    assert (again.status, again.start_count, again.retry_count, again.enqueued_at) == ("PENDING", 3, 0, 5_000)
    assert (again.good_until, again.next_retry_at, again.cancel_requested_at, again.error_code) == (None,) * 4


@pytest.mark.parametrize(
    ("act", "row"),
    [
        (lambda store, rows: cancel_stored(store, UNTYPED, rows, 5_000), waiting("t")),
        (lambda store, rows: retry_stored(store, rows, 5_000), failed("t")),
    ],
    ids=["cancel", "retry"],
)
async def test_who_comes_too_late_changes_nothing(
    store: Store,
    act: Callable[[Store, list[TaskRow]], Coroutine[Any, Any, frozenset[str]]],
    row: TaskRow,
) -> None:
    """The row has moved on between the look and the write; the rest of the batch is done."""
    other = row._replace(task_id="other")
    await store.commit([TaskWrite(each, None) for each in (row, other)])
    await moved_on(store, row)
    assert await act(store, [row, other]) == {"other"}
    now = await store.fetch("t")
    assert now is not None
    assert (now.status, now.start_count, now.cancel_requested_at) == ("RUNNING", 9, None)


def test_what_cannot_be_run_again_says_why() -> None:
    """Live, COMPLETED without force, and arguments that are nowhere."""
    completed = waiting("t", status="COMPLETED", completed_at=2_000)
    assert why_not_again(failed("t"), force=False) is None
    assert why_not_again(completed, force=True) is None
    assert "by force" in (why_not_again(completed, force=False) or "")
    assert "arguments" in (why_not_again(failed("t")._replace(args=None), force=False) or "")
    for status in (TaskStatus.PENDING, TaskStatus.CLAIMED, TaskStatus.RUNNING):
        assert "has not ended" in (why_not_again(waiting("t")._replace(status=status), force=True) or "")


async def test_free_tasks_that_a_cancel_has_ended_are_told_though_a_request_fails() -> None:
    """They are one transaction, and the requests to those who have the others are another one. Its own writes are no
    news to an instance: what it does not draw from them at once, nobody draws.
    """
    manager, heard = manager_of(), list[tuple[str, str]]()

    @manager.on("cancelled")
    async def hear(event: TaskEvent) -> None:
        heard.append((event.kind, event.task.task_id))

    async with world_of(manager) as (world, faulty):
        free = waiting("00000000-0000-7000-8000-000000000001", task_name="unknown")
        owned = free._replace(task_id="00000000-0000-7000-8000-000000000002", claimed_by_worker_id="other")
        await faulty.memory.commit([TaskWrite(row, None) for row in (free, owned)])
        handle: TaskHandle[None] = manager.handle(free.task_id)
        result = asyncio.ensure_future(handle.result())
        await world.idle()
        faulty.fail("request_cancel")
        with pytest.raises(StoreUnavailable):
            await manager.cancel_all(task_name="unknown")
        assert faulty.memory.ended.keys() == {free.task_id}
        assert handle.status is TaskStatus.CANCELLED
        assert (await result).err_value.error_code == "TASK_CANCELLED"
        await world.idle()
        assert heard == [("cancelled", free.task_id)]


async def test_many_tasks_that_others_have_are_asked_in_few_transactions() -> None:
    """With one for each, those at the end would have run before they are asked."""
    manager = manager_of()
    async with world_of(manager) as (_, faulty):
        ids = [f"00000000-0000-7000-8000-{number:012}" for number in range(PAGE + 1)]
        owned = [waiting(each, task_name="unknown")._replace(claimed_by_worker_id="other") for each in ids]
        await faulty.memory.commit([TaskWrite(row, None) for row in owned])
        assert await manager.cancel_all(task_name="unknown") == PAGE + 1
        assert all(row.cancel_requested_at is not None for row in faulty.memory.live.values())
        assert faulty.calls.count("request_cancel") == 2


@pytest.mark.parametrize("group", ["of the task", "of the call"])
async def test_cancel_all_means_the_task_that_a_key_has_by_its_own_tags(group: str) -> None:
    """Another instance has a task of the key. A call of the key follows it, and its own tags are ignored; they choose
    nothing either, though it is not known yet that the key has a task.
    """
    manager = manager_of()
    work = persisted(manager)
    async with world_of(manager) as (_, faulty):
        call = work.with_options(idempotency_key="k", tags={"group": "of the call"})
        row = waiting(keyed_task_id("work", "k"), task_name="work", idempotency_key="k", tags='{"group":"of the task"}')
        await faulty.memory.commit([TaskWrite(row._replace(claimed_by_worker_id="other"), None)])
        faulty.hold("commit")
        handle = call.enqueue("a")
        assert handle.task_id == row.task_id
        cancelling = asyncio.ensure_future(manager.cancel_all(tags={"group": group}))
        await faulty.until_held("commit")
        faulty.let_go()
        is_meant = group == "of the task"
        assert await cancelling == is_meant
        assert (faulty.memory.live[row.task_id].cancel_requested_at is not None) is is_meant


@pytest.mark.parametrize("has_failed", [False, True])
async def test_cancel_all_ends_a_call_that_makes_a_task_before_it_starts(*, has_failed: bool) -> None:
    """It was asked for before the store could say that the key has no task, or one that is put back by the call."""
    manager, log = manager_of(), list[str]()
    work = persisted(manager, log)
    async with world_of(manager) as (_, faulty):
        if has_failed:
            row = failed(keyed_task_id("work", "k"), task_name="work", idempotency_key="k")
            await faulty.memory.commit([TaskWrite(row, None)])
        faulty.hold("commit")
        handle = work.with_options(idempotency_key="k", tags={"group": "1"}).enqueue("a")
        cancelling = asyncio.ensure_future(manager.cancel_all(tags={"group": "1"}))
        await faulty.until_held("commit")
        faulty.let_go()
        assert await cancelling == 1
        with pytest.raises(TaskCancelled):
            await handle
        assert log == []
