"""What is written of a task leaves in the store what memory says, however little of it was said."""

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from taskmanager import Snooze, TaskCancelled, TaskFailed, TaskManager, TaskStatus, current_task
from taskmanager.model.record import Write
from taskmanager.store.protocol import CommitReport
from taskmanager.store.sqlite import SqliteStore

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(20)]


class ComparingStore(SqliteStore):
    """Compares each row that a commit has changed with the task as it was in memory when the commit began."""

    manager: TaskManager

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.kinds: Counter[str] = Counter()
        self.differences: list[tuple[str, object, object]] = []

    async def commit(self, writes: Sequence[Write]) -> CommitReport:
        engine = self.manager._engine()
        tasks = {**engine.writer.unsaved_ended, **engine.live}
        live = {write.task_id: tasks[write.task_id].row() for write in writes if write.task_id in tasks}
        report = await super().commit(writes)
        stored = await self.fetch_ids(list(live))
        for write in writes:
            self.kinds[type(write).__name__] += 1
            if write.task_id in live and write.task_id not in report.lost:
                pairs = zip(live[write.task_id], stored[write.task_id], strict=True)
                names = live[write.task_id]._fields
                self.differences += [
                    (f"{write.task_name} {write.status} {name}", wanted, found)
                    for name, (wanted, found) in zip(names, pairs, strict=True)
                    if wanted != found
                ]
        return report


async def test_a_row_says_after_each_commit_what_memory_said_when_it_began(tmp_path: Path) -> None:
    """Every way in which a run can begin and end, with everything that may be in a row besides."""
    manager = TaskManager(tmp_path / "tasks.db", commit_interval=0.001)
    store = ComparingStore(tmp_path / "tasks.db")
    store.manager = manager
    manager._make_store = lambda: store
    tries: Counter[str] = Counter()
    released = threading.Event()

    @manager.task(persist=True)
    async def plain() -> int:
        return 7

    @manager.task(persist=True)
    def threaded() -> None:
        released.wait(20)

    @manager.task(persist=True)
    async def talkative() -> None:
        current_task().progress(1, 2, "half")
        current_task().log("half", of="it")
        await manager.flush()

    @manager.task(persist=True, retries=2, retry_delay=0.0)
    async def flaky() -> str:
        tries["flaky"] += 1
        if tries["flaky"] < 2:
            raise OSError("not yet")
        return "in the end"

    @manager.task(persist=True)
    async def snoozing() -> int | Snooze:
        tries["snoozing"] += 1
        return 1 if tries["snoozing"] > 1 else Snooze(0.0)

    @manager.task(persist=True)
    async def failing() -> None:
        raise ValueError("no")

    @manager.task(persist=True)
    async def stubborn() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "done all the same"
        return "too late"

    async with manager:
        soon = datetime.now(UTC) + timedelta(hours=1)
        for task in (plain, talkative, flaky, snoozing):
            task.enqueue()
            task.with_options(idempotency_key="k", priority=1, tags={"user": "1"}, good_until=soon).enqueue()
            tries.clear()
        early = plain.with_options(delay=0.01).enqueue()
        plain.with_options(priority=1, tags={"user": "1"}).enqueue()
        in_thread = threaded.enqueue()
        lost = failing.enqueue()
        deaf = stubborn.enqueue()
        while not (await deaf.info()).start_count:
            await manager.flush()
        deaf.cancel()
        released.set()
        with pytest.raises(TaskFailed):
            await lost
        await asyncio.gather(early, in_thread)
        await manager.retry(lost.task_id)
        await manager.join()
        await manager.flush()
    assert store.differences == []
    assert set(store.kinds) == {"TaskWrite", "StartWrite", "SuccessWrite", "NewWrite"}


async def test_history_says_what_memory_said(tmp_path: Path) -> None:
    """Of several functions in one commit, with and without arguments, options and tags; and of one alone."""
    manager = TaskManager(tmp_path / "tasks.db")
    store = ComparingStore(tmp_path / "tasks.db")
    store.manager = manager
    manager._make_store = lambda: store

    @manager.task
    async def first(item: int) -> int:
        return item

    @manager.task(retries=2, priority=7)
    async def second(text: str = "") -> None:
        if text == "fails":
            raise ValueError(text)

    async with manager:
        for number in range(5):
            first.with_options(priority=1, tags={"user": f"{number}"} if number % 2 else None).enqueue(number)
            second.enqueue(f"text {number}")
        await manager.join()
        await manager.flush()
        second.with_options(delay=0.001).enqueue()
        first.enqueue(0)
        await manager.join()
        await manager.flush()
    assert store.differences == []
    assert store.kinds == {"HistoryWrite": 11, "TaskWrite": 1}


async def test_a_cancel_that_is_recorded_stands_in_the_file(tmp_path: Path) -> None:
    """Also one that came before the start was committed: whoever recovers the task after a crash must honour it."""
    manager = TaskManager(tmp_path / "tasks.db", concurrency=1)
    store = ComparingStore(tmp_path / "tasks.db")
    store.manager = manager
    manager._make_store = lambda: store
    gate = asyncio.Event()

    @manager.task(persist=True, requeue_on_interrupt=True)
    async def work() -> None:
        await gate.wait()

    async with manager:
        first, second = work.enqueue(), work.enqueue()
        await asyncio.gather(first.saved(), second.saved())
        gate.set()
        async with asyncio.timeout(10):
            while second.status is TaskStatus.PENDING:  # noqa: ASYNC110  # an assignment has no event
                await asyncio.sleep(0)
        assert await manager.cancel(second.task_id)
        with pytest.raises(TaskCancelled):
            await second
    assert store.differences == []
