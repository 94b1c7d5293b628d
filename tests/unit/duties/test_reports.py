"""What other processes see of the tasks in memory: the JSON in the instance's row, and when it is written."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from taskmanager import TaskManager, current_task
from taskmanager.duties import supervisor
from taskmanager.duties.reports import MAX_SHOWN_CHARS, MAX_SHOWN_QUEUES, MAX_SHOWN_TASKS, Reports
from taskmanager.store.sqlite.reading import open_read_only

pytestmark = pytest.mark.anyio


def shown(database: Path) -> dict[str, Any]:
    with open_read_only(database) as connection:
        ((text,),) = connection.execute("SELECT live_tasks FROM taskmanager_instances").fetchall()
    document: dict[str, Any] = json.loads(text)
    return document


def duty_of(manager: TaskManager) -> Reports:
    """A duty of the same instance that no loop drives."""
    lifecycle = manager._lifecycle
    assert lifecycle is not None
    return Reports(lifecycle.engine)


async def test_it_is_written_only_when_it_says_something_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start, a report of progress and an end are news; time that passes is none. The loop looks once a second."""
    assert supervisor.LIVE_TASKS_INTERVAL_S == 1.0
    monkeypatch.setattr(supervisor, "LIVE_TASKS_INTERVAL_S", 3600)
    manager = TaskManager(tmp_path / "tasks.db")
    steps: asyncio.Queue[int] = asyncio.Queue()
    reported = asyncio.Event()

    @manager.task(name="copy")
    async def copy() -> None:
        while (done := await steps.get()) < 10:
            current_task().progress(done, 10, "files")
            reported.set()

    async with manager:
        duty = duty_of(manager)
        assert [await duty.show() for _ in range(3)] == [True, False, False]
        handle = copy.enqueue()
        steps.put_nowait(4)
        await reported.wait()
        assert [await duty.show() for _ in range(3)] == [True, False, False]
        (task,) = shown(tmp_path / "tasks.db")["tasks"]
        assert task["progress"] == {"done": 4, "total": 10, "text": "files"}
        assert (task["task_id"], task["task_name"], task["attempt"]) == (handle.task_id, "copy", 1)
        assert task["is_persisted"] is False
        reported.clear()
        steps.put_nowait(5)
        await reported.wait()
        assert [await duty.show() for _ in range(2)] == [True, False]
        steps.put_nowait(10)
        await handle
        assert [await duty.show() for _ in range(2)] == [True, False]
        assert shown(tmp_path / "tasks.db")["tasks"] == []


async def test_a_hundred_running_tasks_are_shown_those_with_progress_first(tmp_path: Path) -> None:
    """The row stays small whatever the concurrency; the counts tell of the rest, and of what waits."""
    manager = TaskManager(tmp_path / "tasks.db", concurrency=120)
    go, full = asyncio.Event(), asyncio.Event()

    @manager.task
    async def wait(number: int) -> None:
        if number == 119:
            current_task().progress(1, 2, "x" * 10_000)
            full.set()
        await go.wait()

    async with manager:
        handles = [wait.enqueue(number) for number in range(130)]
        await full.wait()
        await duty_of(manager).show()
        document = shown(tmp_path / "tasks.db")
        assert len(document["tasks"]) == MAX_SHOWN_TASKS
        assert document["tasks"][0]["task_id"] == handles[119].task_id
        assert len(document["tasks"][0]["progress"]["text"]) == MAX_SHOWN_CHARS
        assert document["running_count"] == 120
        assert document["memory_only"] == {"running": 120, "waiting": 10}
        memory_only = document["memory_only"]
        whole = {"waiting": 10, "running": 120, "limit": None, "scope": "instance", "memory_only": memory_only}
        assert document["queues"] == {"default": whole}
        assert set(document["oldest_waiting"]) == {"default"}
        go.set()
        await asyncio.gather(*handles)


async def test_the_fullest_queues_are_listed_and_the_others_counted(tmp_path: Path) -> None:
    """Names are no measure of what a person looks for; what is not listed is still counted."""
    manager = TaskManager(tmp_path / "tasks.db", concurrency=1)
    go, began = asyncio.Event(), asyncio.Event()

    @manager.task
    async def wait() -> None:
        current_task().progress(1, 2, None)  # type: ignore[arg-type]  # what a task says must not stop the others
        began.set()
        await go.wait()

    async with manager:
        numbers = [*range(60), 59, 59]
        handles = [wait.with_options(queue_name=f"q{number:02}").enqueue() for number in numbers]
        await began.wait()
        await duty_of(manager).show()
        document = shown(tmp_path / "tasks.db")
        assert len(document["queues"]) == MAX_SHOWN_QUEUES
        assert document["queues"]["q59"]["waiting"] == 3
        assert document["unlisted_queues"] == {"count": 10, "waiting": 10}
        assert set(document["oldest_waiting"]) == {f"q{number:02}" for number in (*range(1, 49), 59)}
        assert document["memory_only"] == {"running": 1, "waiting": 61}
        assert document["tasks"][0]["progress"]["text"] == ""
        go.set()
        await asyncio.gather(*handles)


async def test_a_new_attempt_starts_without_the_progress_of_the_one_before(tmp_path: Path) -> None:
    """Half done and failed is not half done."""
    manager = TaskManager(tmp_path / "tasks.db")
    go, began = asyncio.Event(), asyncio.Event()

    @manager.task(persist=True, retries=1, retry_delay=0.0)
    async def halfway() -> None:
        if current_task().attempt == 1:
            current_task().progress(1, 2)
            raise RuntimeError("half")
        began.set()
        await go.wait()

    async with manager:
        handle = halfway.enqueue()
        await began.wait()
        assert (await handle.info()).progress is None
        go.set()
        await handle
