"""The records of memory-only tasks that wait for the writer: as small as can be, and found by whoever asks for one."""

import gc
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from taskmanager import TaskHandle, TaskManager, TaskStatus
from taskmanager.engine.words.live_task import LiveTask

pytestmark = pytest.mark.anyio

MANY = 2_000


@contextmanager
def held_up(path: Path) -> Iterator[None]:
    """Let nobody else write to the file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


async def test_history_that_waits_is_nothing_to_the_garbage_collector(tmp_path: Path) -> None:
    """A look at the objects of a hundred thousand ended tasks would hold up the loop for 80 ms."""
    manager = TaskManager(tmp_path / "tasks.db")

    @manager.task
    async def double(number: int) -> int:
        return 2 * number

    async with manager:
        with held_up(tmp_path / "tasks.db"):
            for number in range(MANY):
                double.enqueue(number)
            await manager.join()
            gc.collect()
            assert manager.status().unsaved_count >= MANY
            mine = double.bound()[0]  # other tests may have left some of theirs
            lives = [each for each in gc.get_objects() if isinstance(each, LiveTask)]
            assert sum(getattr(each, "definition", None) is mine for each in lives) < MANY / 10
            assert len([each for each in gc.get_objects() if type(each) is tuple and len(each) == 9]) < MANY / 2
    with closing(sqlite3.connect(tmp_path / "tasks.db")) as found:
        assert found.execute("SELECT count(*), sum(result) FROM taskmanager_tasks").fetchone()[0] == MANY


async def test_task_that_ended_a_moment_ago_is_found_before_it_is_written(tmp_path: Path) -> None:
    """Its record, its attempt, its value: as after the commit."""
    manager = TaskManager(tmp_path / "tasks.db")

    @manager.task
    async def double(number: int) -> int:
        return 2 * number

    async with manager:
        with held_up(tmp_path / "tasks.db"):
            task_id = double.with_options(tags={"of": "ann"}).enqueue(21).task_id
            await manager.join()
            before = await manager.get(task_id, include_attempts=True)
            listed = await manager.list(tags={"of": "ann"})
            handle: TaskHandle[int] = manager.handle(task_id)
            assert await handle == 42
            assert (await manager.counts())[TaskStatus.COMPLETED] == 1
            assert not await manager.cancel(task_id)
        await manager.flush()
        after = await manager.get(task_id, include_attempts=True)
    assert before is not None
    assert after is not None
    assert (before.saved, after.saved) == (False, True)
    assert [each.task_id for each in listed] == [task_id]
    for name in ("status", "result", "tags", "args", "attempts", "sent_at", "started_at", "completed_at", "worker_pid"):
        assert getattr(before, name) == getattr(after, name), name


async def test_value_that_cannot_be_stored_is_there_until_the_record_is_written(tmp_path: Path) -> None:
    """It is nowhere else, so the task is kept as it is."""
    manager, value = TaskManager(tmp_path / "tasks.db"), object()

    @manager.task
    async def make() -> object:
        return value

    async with manager:
        with held_up(tmp_path / "tasks.db"):
            task_id = make.enqueue().task_id
            await manager.join()
            assert await manager.handle(task_id) is value
            found = await manager.get(task_id, include_attempts=True)
            assert found is not None
            assert [each.attempt for each in found.attempts or ()] == [1]
        await manager.flush()
        assert (await manager.handle(task_id).result()).err_value.error_code == "RESULT_NOT_AVAILABLE"


async def test_record_tells_queue_and_priority_of_each_call(tmp_path: Path) -> None:
    """What many records have in common is kept once, and calls of one function may differ in these."""
    manager = TaskManager(tmp_path / "tasks.db")

    @manager.task
    async def nothing(number: int) -> None: ...

    asked = [(f"queue-{number % 3}", 1 + number % 2) for number in range(600)]
    async with manager:
        for number, (queue, priority) in enumerate(asked):
            nothing.with_options(queue_name=queue, priority=priority).enqueue(number)
            nothing.enqueue(number)
        await manager.join()
    columns = "queue_name, priority, json_extract(args, '$[0]')"
    with closing(sqlite3.connect(tmp_path / "tasks.db")) as found:
        rows = found.execute(f"SELECT {columns} FROM taskmanager_tasks").fetchall()
    expected = [(*each, number) for number, each in enumerate(asked)]
    assert sorted(rows) == sorted(expected + [("default", 50, number) for number in range(len(asked))])
