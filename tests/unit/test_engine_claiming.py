"""`taskmanager.engine.look.claiming`: rows in the file that no version of this library has written."""

import asyncio
import copy
import logging
import pickle
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from taskmanager import TaskManager, TaskStatus
from taskmanager.engine.look import polling
from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.store.sqlite import SqliteStore
from taskmanager.store.sqlite.presence import has_lock_file, is_dead, lock_path
from tests.acceptance.odd_files import ENDED, FREE, LOST, RUNNING, insert, made_file
from tests.unit.engine_worlds import happens

pytestmark = pytest.mark.anyio


async def made_manager(path: Path, *rows: dict[str, Any]) -> TaskManager:
    """A manager that knows `add`, on a file with these rows."""
    with closing(await made_file(path)) as connection:
        for row in rows:
            insert(connection, "taskmanager_tasks", row)
        connection.execute("COMMIT")
    manager = TaskManager(path)

    @manager.task(persist=True, name="add", requeue_on_interrupt=True)
    async def add(number: int) -> int:
        return number

    return manager


async def test_whoever_waits_for_an_unreadable_task_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is FAILED by the claim, its handle says why, one ERROR names it, and the others run."""
    rows = [{"id": "odd", **FREE, "args": b"[\xff]"}, {"id": "a", **FREE}, {"id": "gone", **RUNNING, "kwargs": b"\xff"}]
    manager = await made_manager(tmp_path / "tasks.db", *rows)
    with caplog.at_level(logging.ERROR, "taskmanager"):
        async with manager:
            assert (await manager.handle("a").result(timeout=10)).ok_value == 1
            for task_id, column in (("odd", "args"), ("gone", "kwargs")):
                result = await manager.handle(task_id).result(timeout=10)
                assert result.err_value.message == f"the record cannot be read: {column} is not UTF-8"
                assert await manager.retry(task_id) is False
                info = await manager.get(task_id)
                assert info is not None
                assert info.status is TaskStatus.FAILED
    assert sorted(record.task_id for record in caplog.records) == ["gone", "odd"]  # type: ignore[attr-defined]  # extra


@pytest.mark.parametrize("task_name", ["add", "unknown"])
async def test_a_result_that_is_not_utf8_says_so(tmp_path: Path, task_name: str) -> None:
    """Never what it looks like with U+FFFD, and not in the words of the JSON library."""
    odd = {"id": "odd", **ENDED, "task_name": task_name, "result": b'{"ok":"caf\xc3"}'}
    async with await made_manager(tmp_path / "tasks.db", odd) as manager:
        result = await manager.handle("odd").result(timeout=10)
        assert result.err_value.error_code == "RESULT_NOT_AVAILABLE"
        assert result.err_value.message.endswith("the stored result cannot be read: it is not UTF-8")


async def test_the_view_of_an_unreadable_task_is_plain_data(tmp_path: Path) -> None:
    """It can be copied and sent like any other, and its id leads to the row again, though it is not UTF-8."""
    manager = await made_manager(tmp_path / "tasks.db", {**LOST, "id": b"\xff", "worker_hostname": b"caf\xc3"})
    async with manager:
        (listed,) = await manager.list()
        (again,) = pickle.loads(pickle.dumps((copy.deepcopy(listed),)))
        assert (again.task_id, again.worker_hostname) == ("\ufffd", "caf\ufffd")
        assert type(again.worker_hostname) is str
        for task_id in (again.task_id, "\ufffd"):
            info = await manager.get(task_id)
            assert info is not None
            assert "id is not UTF-8" in (info.failed_reason or "")
            assert await manager.cancel(task_id) is False


@pytest.mark.parametrize("name", ["q" * 5_000, "", " ", "two\nlines", "nul\0", "\x1b[31m"])
async def test_a_queue_name_that_this_version_refuses_is_kept(tmp_path: Path, name: str) -> None:
    """Another version has written it: its tasks run, in a queue of that name, which can be resumed."""
    manager = await made_manager(tmp_path / "tasks.db", {"id": "odd", **FREE, "queue_name": name})
    with closing(sqlite3.connect(tmp_path / "tasks.db")) as connection, connection:
        insert(connection, "taskmanager_queues", {"queue_name": name, "paused_at": 1})
    async with manager:
        await manager.resume(name)
        assert (await manager.handle("odd").result(timeout=10)).ok_value == 1
        info = await manager.get("odd")
        assert info is not None
        assert info.queue_name == name
        manager.console()


async def test_a_claimer_that_the_store_refuses_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instance that takes no work is seen in `failing_duties` and in the log."""
    manager = await made_manager(tmp_path / "tasks.db")
    async with manager:
        failed = asyncio.Event()

        async def refuse(self: SqliteStore, count_cap: int) -> Any:
            failed.set()
            raise StoreError("refused for good")

        with monkeypatch.context() as patched, caplog.at_level(logging.CRITICAL, "taskmanager"):
            patched.setattr(SqliteStore, "free_queues", refuse)
            engine = manager._engine()
            assert engine is not None
            engine.life.wants_claim.set()
            await asyncio.wait_for(failed.wait(), 5)
            await asyncio.sleep(0)
            assert manager.status().failing_duties == {"claimer": "StoreError: refused for good"}
            assert "the claimer failed" in caplog.text


async def test_a_store_that_stays_unreadable_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes may go through all the while, so nothing else would say why this instance takes no work."""
    monkeypatch.setattr(polling, "UNREAD_S", 0.05)
    manager = await made_manager(tmp_path / "tasks.db")

    async def fail(self: SqliteStore) -> int:
        raise StoreUnavailable("its log was cut off")

    async with manager:
        with monkeypatch.context() as patched:
            patched.setattr(SqliteStore, "changes", fail)
            await happens(lambda: bool(manager.status().failing_duties))
            assert manager.status().failing_duties == {"claimer": "its log was cut off"}
        await happens(lambda: not manager.status().failing_duties)
    assert caplog.text.count("the store cannot be read") == 1
    assert caplog.text.count("the store can be read again") == 1


@pytest.mark.parametrize(
    "owner", ["../../etc/passwd", "/etc/passwd", "..", "a\0b", "x" * 5_000, "", "caf\ufffd", "\ud800"]
)
def test_an_owner_of_any_name_is_dead_and_leads_nowhere_else(tmp_path: Path, owner: str) -> None:
    """Whatever a row names as its owner, the file of its lock is beside the database, or is not there."""
    database = tmp_path / "tasks.db"
    database.touch()
    assert lock_path(database, owner).parent == database.parent
    assert is_dead(database, owner)
    assert not has_lock_file(database, owner)
