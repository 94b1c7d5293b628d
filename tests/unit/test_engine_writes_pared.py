"""A record that SQLite refuses for its content: what is guilty is left out, and how the task ended is stored."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from taskmanager import TaskError, TaskManager, TaskResult, current_task
from taskmanager.engine.words import attempt

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


def refuse(path: Path, where: str, table: str = "tasks") -> None:
    """From now on the file holds no such row, as one with a value that is too large."""
    with sqlite3.connect(path) as connection:
        for verb in ("INSERT", "UPDATE"):
            connection.execute(
                f"CREATE TRIGGER refuse_{verb}_{table} BEFORE {verb} ON taskmanager_{table} WHEN {where}"
                " BEGIN SELECT RAISE(ABORT, 'string or blob too big'); END"
            )
    connection.close()


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def manager_with_tasks(path: Path, *, persist: bool = True) -> tuple[TaskManager, Any, Any]:
    manager = TaskManager(path)

    @manager.task(name="succeeds", persist=persist)
    async def succeeds() -> str:
        current_task().log("too " + "long" * 100)
        return "big" * 100

    @manager.task(name="fails", persist=persist)
    async def fails(label: str = "") -> TaskResult[str]:
        return TaskResult(err=TaskError("BAD", "words", {"blob": "x" * 300}))

    return manager, succeeds, fails


@pytest.mark.parametrize("persist", [True, False])
async def test_how_a_task_ended_is_stored_without_what_the_file_refuses(*, tmp_path: Path, persist: bool) -> None:
    """Else it would be RUNNING in the file, and the next start would take it for one whose process died."""
    path = tmp_path / "tasks.db"
    manager, succeeds, fails = manager_with_tasks(path, persist=persist)
    async with manager:
        refuse(path, "length(new.result) > 200 OR length(new.log) > 100")
        done, failed = succeeds.enqueue(), fails.enqueue()
        assert await asyncio.wait_for(done, 10) == "big" * 100
        assert (await asyncio.wait_for(failed.result(), 10)).err_value.data == {"blob": "x" * 300}
        await asyncio.wait_for(manager.flush(), 10)
    found = rows(
        path,
        "SELECT task_name, status, json_extract(result, '$.err.error_code'), log FROM taskmanager_tasks ORDER BY 1",
    )
    assert found == [("fails", "FAILED", "BAD", None), ("succeeds", "COMPLETED", "RESULT_NOT_AVAILABLE", None)]
    assert len(rows(path, "SELECT 1 FROM taskmanager_task_attempts")) == 2


async def test_what_is_left_out_of_a_record_leaves_its_row_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that kept the progress of a task that has ended would change once more with its next write."""
    monkeypatch.setattr(attempt, "PROGRESS_US", 0)
    path = tmp_path / "tasks.db"
    manager = TaskManager(path)

    @manager.task(name="reports", persist=True)
    async def reports() -> str:
        current_task().progress(1, 2)
        await manager.flush()
        assert rows(path, "SELECT json_extract(progress, '$.done') FROM taskmanager_tasks") == [(1,)]
        refuse(path, "length(new.result) > 200")
        return "big" * 100

    async with manager:
        assert await asyncio.wait_for(reports.enqueue(), 10) == "big" * 100
        await asyncio.wait_for(manager.flush(), 10)
    assert rows(path, "SELECT status, progress FROM taskmanager_tasks") == [("COMPLETED", None)]


async def test_an_attempt_that_cannot_be_stored_does_not_keep_its_task_running(tmp_path: Path) -> None:
    """Nor out of its retry: the words of the attempt are cut."""
    path = tmp_path / "tasks.db"
    manager = TaskManager(path)

    @manager.task(persist=True, retries=1, retry_delay=0.0)
    async def fails() -> None:
        raise ValueError("words" * 1_000)

    async with manager:
        refuse(path, "length(new.error_message) > 1000", "task_attempts")
        handle = fails.enqueue()
        assert (await asyncio.wait_for(handle.result(), 10)).is_err()
        await asyncio.wait_for(manager.flush(), 10)
    assert rows(path, "SELECT status, retry_count FROM taskmanager_tasks") == [("FAILED", 1)]
    assert rows(path, "SELECT attempt, will_retry FROM taskmanager_task_attempts ORDER BY 1") == [(1, 1), (2, 0)]


async def test_a_task_whose_arguments_the_file_refuses_is_stored_without_them(tmp_path: Path) -> None:
    """It ran from memory; that it ran is known."""
    path = tmp_path / "tasks.db"
    manager, _, fails = manager_with_tasks(path)
    async with manager:
        refuse(path, "length(new.args) > 200")
        handle = fails.enqueue("y" * 300)
        assert (await asyncio.wait_for(handle.result(), 10)).is_err()
        await asyncio.wait_for(manager.flush(), 10)
        assert await manager.retry(handle.task_id) is False
    assert rows(path, "SELECT status, args FROM taskmanager_tasks") == [("FAILED", None)]


@pytest.mark.parametrize("persist", [True, False])
async def test_what_the_file_refuses_altogether_is_reported_and_told(
    *, tmp_path: Path, caplog: pytest.LogCaptureFixture, persist: bool
) -> None:
    """Nobody waits for ever, and nothing is tried for ever."""
    path = tmp_path / "tasks.db"
    manager, succeeds, _ = manager_with_tasks(path, persist=persist)
    async with manager:
        refuse(path, "new.status = 'COMPLETED'")
        assert await asyncio.wait_for(succeeds.enqueue(), 10) == "big" * 100
        await asyncio.wait_for(manager.flush(), 10)
        assert manager.status().unsaved_count == 0
    levels = [record.levelname for record in caplog.records if "cannot be stored" in record.message]
    assert levels == ["WARNING"] * (1 if persist else 2) + ["ERROR"], "once for each kind of thing left out"
