"""Records in memory and in the file are one list, for those who page through it and for handles that look from afar."""

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from taskmanager import TaskFailed, TaskManager, TaskStatus, current_task
from taskmanager.model.record import PAYLOAD, TaskRow
from taskmanager.store.memory import MemoryStore
from taskmanager.store.protocol import TaskFilter
from taskmanager.testing import isolated
from tests.acceptance.odd_files import ENDED, insert, made_file

pytestmark = pytest.mark.anyio


@pytest.fixture
def manager(tmp_path: Path) -> TaskManager:
    return TaskManager(tmp_path / "tasks.db", store_poll=0.02)


async def ids_by_page(manager: TaskManager, limit: int, **wanted: object) -> list[str]:
    """Through the whole list, by the last id of each page."""
    found: list[str] = []
    before = None
    while page := await manager.list(limit=limit, before=before, **wanted):  # type: ignore[arg-type]  # filters
        found.extend(each.task_id for each in page)
        before = page[-1].task_id
    return found


async def test_pages_lose_nobody_whether_in_memory_in_the_file_or_both(manager: TaskManager) -> None:
    """The last record of a page may be one that is not in the file yet; the next page goes on behind it all the same.

    And a page is full as long as there are more, also where memory knows that those in the file have moved on.
    """

    @manager.task(persist=True)
    async def kept(n: int) -> None: ...

    @manager.task
    async def forgotten(n: int) -> None: ...

    @manager.task(persist=True)
    async def waiting(n: int) -> None: ...

    calls = kept, forgotten, waiting.with_options(delay=600)
    async with manager:
        handles = [calls[n % 3].enqueue(n) for n in range(30)]
        ids = [each.task_id for each in reversed(handles)]
        await asyncio.gather(*(each for n, each in enumerate(handles) if n % 3 < 2))
        await handles[-1].saved()
        for limit in (1, 2, 7):
            assert await ids_by_page(manager, limit) == ids
            assert await ids_by_page(manager, limit, task_name=kept.name) == ids[2::3]
            assert await ids_by_page(manager, limit, status=TaskStatus.PENDING) == ids[0::3]
            assert await ids_by_page(manager, limit, status=TaskStatus.COMPLETED) == [
                each for n, each in enumerate(ids) if n % 3
            ]


class SlowReader(MemoryStore):
    """Its answer arrives when everything that was in memory is committed."""

    def __init__(self, manager: TaskManager) -> None:
        super().__init__()
        self.manager = manager

    async def fetch_many(self, wanted: TaskFilter) -> list[TaskRow]:
        rows = await super().fetch_many(wanted)
        await self.manager.flush()
        return rows


async def test_a_record_on_its_way_to_the_file_is_listed() -> None:
    """It is read in the file, in memory, or in both, but never in neither because it went from one to the other."""
    manager = TaskManager(None, max_in_memory=1)

    async with isolated(manager, store=SlowReader(manager)):

        @manager.task(persist=True)
        async def too_many() -> None: ...

        @manager.task
        async def ended() -> None: ...

        handles = [ended.enqueue()]
        await handles[0]
        await manager.pause("default")
        handles += [too_many.enqueue() for _ in range(4)]
        for _ in range(2):
            assert [each.task_id for each in await manager.list()] == [each.task_id for each in reversed(handles)]


async def test_a_foreign_handle_tells_the_status_that_was_seen_last(tmp_path: Path) -> None:
    """By whoever looked: a wait that ended, one that was given up, `info`; also when nobody here waits any more."""
    release = asyncio.Event()
    managers = [TaskManager(tmp_path / "tasks.db", store_poll=0.02, drain_timeout=0) for _ in range(2)]

    for each in managers:

        @each.task(name="job", persist=True)
        async def job(n: int) -> int:
            await release.wait()
            if n < 0:
                raise ValueError(n)
            return n

    owner, other = managers
    async with owner, other:
        good, bad = (owner.get_task("job").enqueue(n) for n in (1, -1))
        await asyncio.gather(good.saved(), bad.saved())
        while {good.status, bad.status} != {TaskStatus.RUNNING}:
            await owner.flush()
        await owner.flush()
        foreign_good, foreign_bad = other.handle(good.task_id), other.handle(bad.task_id)
        assert {foreign_good.status, foreign_bad.status} == {TaskStatus.PENDING}
        with pytest.raises(TimeoutError):
            await foreign_good.result(timeout=0.05)
        assert foreign_good.status == TaskStatus.RUNNING
        assert (await foreign_bad.info()).status is TaskStatus.RUNNING
        assert foreign_bad.status is TaskStatus.RUNNING
        release.set()
        assert await foreign_good == 1
        with pytest.raises(TaskFailed):
            await foreign_bad
        assert foreign_good.status is TaskStatus.COMPLETED
        assert foreign_bad.status is TaskStatus.FAILED
        assert other.handle(good.task_id).status is TaskStatus.COMPLETED
        assert await other.retry(bad.task_id)
        assert not foreign_bad.status.is_terminal
        with pytest.raises(TaskFailed):
            await foreign_bad
        assert foreign_bad.status is TaskStatus.FAILED
    assert foreign_good.status is TaskStatus.COMPLETED
    assert foreign_bad.status is TaskStatus.FAILED


@pytest.mark.parametrize("persist", [False, True])
@pytest.mark.parametrize("is_saved", [False, True])
async def test_a_key_that_runs_again_keeps_what_a_retry_keeps(
    manager: TaskManager, persist: bool, is_saved: bool
) -> None:
    """Its id, when it was sent, its attempts and their count, also while they are in memory only."""
    fails = [True, False]

    @manager.task(persist=persist)
    async def job() -> None:
        if fails.pop(0):
            raise ValueError

    async with manager:
        first = job.with_options(idempotency_key="key").enqueue()
        with pytest.raises(TaskFailed):
            await first
        before = await first.info()
        if is_saved:
            await manager.flush()
        assert before.updated_at > before.sent_at, "the clock has moved on"
        second = job.with_options(idempotency_key="key").enqueue()
        await second
        for _ in range(2):
            after = await second.info(include_attempts=True)
            assert (after.task_id, after.sent_at, after.start_count) == (before.task_id, before.sent_at, 2)
            assert [each.outcome for each in after.attempts or ()] == ["FAILED", "COMPLETED"]
            await manager.flush()


@pytest.mark.parametrize("is_persisted", [True, False])
async def test_lists_carry_no_payloads(tmp_path: Path, is_persisted: bool) -> None:
    """Arguments, results and logs may be large: a list loads none of them, wherever the task is; `get` has them."""
    manager = TaskManager(tmp_path / "tasks.db" if is_persisted else None, drain_timeout=0)

    @manager.task(persist=is_persisted)
    async def work(text: str) -> str:
        current_task().log("here")
        return text

    @manager.task(persist=is_persisted)
    async def wait(text: str) -> None:
        await asyncio.Event().wait()

    async with manager:
        done, running = work.enqueue("large"), wait.enqueue("large")
        delayed = work.with_options(delay=3_600).enqueue("large")
        await done
        for _ in range(2):
            listed = await manager.list()
            assert {each.task_id for each in listed} == {done.task_id, running.task_id, delayed.task_id}
            for each in listed:
                assert (each.args, each.kwargs, each.result, each.log) == (None, None, None, None)
                assert (await manager.list(before=each.task_id)) == listed[listed.index(each) + 1 :]
            info = await manager.get(done.task_id)
            assert info is not None
            assert (info.args, info.kwargs) == ('["large"]', "{}")
            assert info.result is not None
            assert (info.result.ok_value, [each["text"] for each in info.log or ()]) == ("large", ["here"])
            await manager.flush()


async def test_a_list_does_not_read_payloads(tmp_path: Path) -> None:
    """Not even to drop them: what cannot be read there is not noticed."""
    rows = [{"id": "a", **ENDED, column: b"\xff"} for column in PAYLOAD]
    with closing(await made_file(tmp_path / "tasks.db")) as connection:
        for number, row in enumerate(rows):
            insert(connection, "taskmanager_tasks", {**row, "id": str(number)})
        connection.execute("COMMIT")
    async with TaskManager(tmp_path / "tasks.db") as manager:
        listed = await manager.list(limit=10)
        assert [each.failed_reason for each in listed] == [None] * len(PAYLOAD)
        for each in listed:
            info = await manager.get(each.task_id)
            assert info is not None
            assert info.failed_reason is not None
