"""Tasks are chosen by what they are: to be listed, retried, cancelled and deleted, in memory and in the file alike."""

import asyncio
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from taskmanager import ConfigurationError, TaskHandle, TaskManager, TaskStatus
from taskmanager.engine.people import actions
from taskmanager.model.states import WAITING
from taskmanager.store.memory import MemoryStore
from taskmanager.store.protocol import TaskFilter
from taskmanager.testing import isolated

pytestmark = pytest.mark.anyio


class Gate:
    """A manager with a task that fails while the gate is shut, and one that waits for it to open."""

    def __init__(self, manager: TaskManager) -> None:
        self.is_open = asyncio.Event()

        @manager.task(persist=True)
        async def fails(n: int) -> int:
            if not self.is_open.is_set():
                raise ValueError(n)
            return n

        @manager.task(persist=True, queue_name="slow")
        async def waits(n: int) -> int:
            await self.is_open.wait()
            return n

        self.fails, self.waits = fails, waits

    def fail(self, n: int, customer: str) -> TaskHandle[int]:
        return self.fails.with_options(tags={"customer": customer}).enqueue(n)


def ids(found: Any) -> list[str]:
    return [each.task_id for each in found]


async def ended(*handles: TaskHandle[Any]) -> None:
    await asyncio.wait([asyncio.ensure_future(each.result()) for each in handles])


@pytest.mark.parametrize("is_saved", [False, True])
async def test_list_takes_tags_error_code_and_since(tmp_path: Path, is_saved: bool) -> None:
    """A record fits or does not, wherever it stands at the moment."""
    manager = TaskManager(tmp_path / "tasks.db")
    gate = Gate(manager)
    async with manager:
        first, second = gate.fail(1, "ada"), gate.fail(2, "bob")
        await ended(first, second)
        waiting = gate.waits.enqueue(3)
        if is_saved:
            await manager.flush()
        assert ids(await manager.list(tags={"customer": "ada"})) == [first.task_id]
        assert ids(await manager.list(tags={"customer": "ada", "kind": "mail"})) == []
        assert ids(await manager.list(error_code="UNHANDLED_EXCEPTION")) == [second.task_id, first.task_id]
        assert ids(await manager.list(error_code="BOOM")) == []
        everything = [waiting.task_id, second.task_id, first.task_id]
        assert ids(await manager.list(since=timedelta(hours=1))) == everything
        assert ids(await manager.list(since=datetime.now(UTC) + timedelta(hours=1))) == []
        gate.is_open.set()


async def test_retry_all_puts_back_what_fits_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pages, each task once, the FAILED ones if no status is given."""
    monkeypatch.setattr(actions, "PAGE", 2)
    manager = TaskManager(tmp_path / "tasks.db")
    gate = Gate(manager)
    async with manager:
        of_ada = [gate.fail(n, "ada") for n in range(5)]
        of_bob = gate.fail(5, "bob")
        await ended(*of_ada, of_bob)
        assert await manager.retry_all(tags={"customer": "eve"}) == 0
        assert await manager.retry_all(tags={"customer": "ada"}) == 5
        await manager.join()
        assert {each.start_count for each in await manager.list(tags={"customer": "ada"})} == {2}
        gate.is_open.set()
        assert await manager.retry_all(task_name=gate.fails.name) == 6
        assert sorted(await asyncio.gather(*of_ada, of_bob)) == [0, 1, 2, 3, 4, 5]
        assert await manager.retry_all(task_name=gate.fails.name) == 0, "nothing is FAILED any more"


async def test_cancel_all_ends_what_waits_and_stops_what_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that memory holds, and those that wait in the file because it has no room for them."""
    monkeypatch.setattr(actions, "PAGE", 2)
    manager = TaskManager(tmp_path / "tasks.db", concurrency=2, max_in_memory=2)
    gate = Gate(manager)
    async with manager:
        many = [gate.waits.with_options(tags={"batch": "7"}).enqueue(n) for n in range(9)]
        other = gate.waits.enqueue(10)
        await manager.flush()
        assert await manager.cancel_all(tags={"batch": "7"}) == 9
        await ended(*many)
        assert {each.status for each in many} == {TaskStatus.CANCELLED}
        assert await manager.cancel_all(task_name=gate.fails.name) == 0
        gate.is_open.set()
        async with asyncio.timeout(10):  # the next look at the whole file would be after 30 s
            await ended(other)


class ChangingStore(MemoryStore):
    """One of the rows that it finds is gone before anything is done with it."""

    async def find_ids(self, wanted: TaskFilter, statuses: Collection[TaskStatus]) -> list[str]:
        return [*await super().find_ids(wanted, statuses), "gone"]


async def test_cancel_all_asks_each_task_once_however_often_it_looks() -> None:
    """A second cancellation would cut short what the task does after the first."""
    manager = TaskManager()
    seen: list[str] = []
    async with isolated(manager, store=ChangingStore()) as world:

        @manager.task(persist=True)
        async def cleans_up() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                seen.append("asked")
                await asyncio.sleep(1)
                seen.append("clean")

        handle = cleans_up.enqueue()
        await world.idle()
        assert await manager.cancel_all(task_name=cleans_up.name) == 1
        await ended(handle)
        assert seen == ["asked", "clean"]


class LateStore(MemoryStore):
    """What it finds has changed since, in all that may change: the status and the error code."""

    async def find_ids(self, wanted: TaskFilter, statuses: Collection[TaskStatus]) -> list[str]:
        return await super().find_ids(wanted._replace(status=None, error_code=None), list(TaskStatus))


async def test_rows_that_no_longer_fit_are_left_alone() -> None:
    """Somebody may have retried and cancelled a task between the look and the act."""
    manager = TaskManager()
    async with isolated(manager, store=LateStore()) as world:

        @manager.task(persist=True)
        async def fails() -> None:
            raise ValueError("no")

        failed, other = fails.enqueue(), fails.with_options(delay=60).enqueue()
        await ended(failed)
        assert await manager.cancel(other.task_id)
        await manager.pause("default")
        await world.idle()
        assert await manager.retry_all(task_name=fails.name, error_code="OTHER") == 0
        assert await manager.retry_all(task_name=fails.name) == 1
        assert await manager.cancel_all(task_name=fails.name, status=TaskStatus.RUNNING) == 0
        assert (await failed.info()).status in WAITING  # a paused queue keeps it from starting, and not from a claim
        assert (await other.info()).status is TaskStatus.CANCELLED


async def test_memory_only_tasks_are_cancelled_too() -> None:
    """Their records reach the file when they have ended; until then they are known here alone."""
    manager = TaskManager()
    async with isolated(manager):

        @manager.task
        async def sleeps() -> None:
            await asyncio.sleep(3600)

        handles = [sleeps.with_options(tags={"batch": "7"}).enqueue() for _ in range(3)]
        assert await manager.cancel_all(tags={"batch": "7"}) == 3
        await ended(*handles)
        assert {each.status for each in handles} == {TaskStatus.CANCELLED}


async def test_purge_takes_tags_and_error_code(tmp_path: Path) -> None:
    """The key of a memory-only task goes with its record, and that of another one stays."""
    manager = TaskManager(tmp_path / "tasks.db")

    @manager.task
    async def keyed(n: int) -> int:
        return n

    async with manager:
        options = [{"idempotency_key": who, "tags": {"customer": who}} for who in ("ada", "bob")]
        await asyncio.gather(*(keyed.with_options(**each).enqueue(1) for each in options))  # type: ignore[arg-type]  # options
        assert await manager.purge(error_code="BOOM") == 0
        assert await manager.purge(tags={"customer": "ada"}) == 1
        again = [keyed.with_options(**each).enqueue(1) for each in options]  # type: ignore[arg-type]  # options
        assert [each.is_duplicate for each in again] == [False, True]
        await asyncio.gather(*again)


@pytest.mark.parametrize("verb", ["retry_all", "cancel_all"])
async def test_an_action_on_many_needs_a_filter_that_can_fit(verb: str) -> None:
    """A call that forgot its filter must not mean all tasks, and a typo must not mean none."""
    manager = TaskManager()
    async with isolated(manager):
        act = getattr(manager, verb)
        for wrong, words in (
            ({}, "at least one of status, task_name"),
            ({"status": TaskStatus.COMPLETED}, "not for those that are COMPLETED"),
            ({"status": "FALED"}, "status must be one of"),
            ({"tags": {"customer": 1}}, "tags must map text to text"),
            ({"error_code": 5}, "error_code must be text"),
            ({"since": datetime(2026, 1, 1)}, "an aware datetime"),  # that is the mistake
            ({"since": timedelta(hours=-1)}, "timedelta"),
            ({"since": 3600}, "timedelta"),
        ):
            with pytest.raises(ConfigurationError, match=words):
                await act(**wrong)
