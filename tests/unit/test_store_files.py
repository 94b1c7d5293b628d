"""Files that are deleted, replaced, emptied or moved away while they are in use: the database, its log, the index."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from taskmanager.model.errors import StoreUnavailable
from taskmanager.model.record import TaskWrite
from taskmanager.store.protocol import Beat
from taskmanager.store.sqlite import SqliteStore
from taskmanager.store.sqlite import store as store_module
from tests.contract.rows import FREE_ROW

pytestmark = pytest.mark.anyio
# ruff: noqa: ASYNC240  # a test has its loop to itself


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@contextmanager
def plain(path: Path) -> Iterator[sqlite3.Connection]:
    """Somebody else's connection to the same file."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as other:
        yield other


@pytest.mark.parametrize("names", [["-wal"], ["-shm"], ["-wal", "-shm"]])
async def test_a_log_that_was_deleted_is_noticed_and_made_anew(
    path: Path, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it held is in the file then, and whoever comes later reads and writes the same log."""
    monkeypatch.setattr(store_module, "RENEW_S", 0.0)
    store = SqliteStore(path)
    await store.open()
    beater = store.open_beater()
    await store.commit([TaskWrite(FREE_ROW._replace(task_id="a"), None)])
    assert await store.has_its_log()
    for name in names:
        path.with_name(path.name + name).unlink()
    assert await store.is_same_file()
    assert not await store.has_its_log()
    with pytest.raises(StoreUnavailable, match="was deleted"):
        beater.beat([Beat("me", "runner", 1, "host", 1)])
    await store.commit([TaskWrite(FREE_ROW._replace(task_id="b"), None)])
    await store.renew_log()
    assert await store.has_its_log()
    await store.commit([TaskWrite(FREE_ROW._replace(task_id="c"), None)])
    beater.beat([Beat("me", "runner", 1, "host", 1)])
    with plain(path) as other:
        assert other.execute("SELECT id FROM taskmanager_tasks ORDER BY id").fetchall() == [("a",), ("b",), ("c",)]
        assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert await store.heartbeats() == [("me", "runner", 1)]
    await store.close()


async def test_a_log_is_not_made_anew_beside_a_connection_that_uses_the_old_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process all connections share one index; two logs under it would be the end of the file."""
    monkeypatch.setattr(store_module, "RENEW_S", 0.0)
    store = SqliteStore(path)
    await store.open()
    await store.commit([TaskWrite(FREE_ROW._replace(task_id="a"), None)])
    with plain(path) as other:
        assert other.execute("SELECT id FROM taskmanager_tasks").fetchall() == [("a",)]
        path.with_name(path.name + "-wal").unlink()
        for nth in range(2):
            if nth:  # another process has made a log, and an index, that this process does not use
                path.with_name(path.name + "-wal").touch()
                path.with_name(path.name + "-shm").touch()
            with pytest.raises(StoreUnavailable, match="close it"):
                await store.renew_log()
            assert not await store.has_its_log()
            with pytest.raises(StoreUnavailable):
                await store.commit([TaskWrite(FREE_ROW._replace(task_id="b"), None)])
    await store.renew_log()
    await store.commit([TaskWrite(FREE_ROW._replace(task_id="b"), None)])
    assert {each.task_id for each in (await store.fetch_ids(["a", "b"])).values()} == {"a", "b"}
    await store.close()


@pytest.mark.parametrize("how", ["removed", "replaced", "emptied", "moved away"])
async def test_what_is_left_of_a_lost_file_is_no_part_of_the_next_one(path: Path, how: str) -> None:
    """Its log would be read into a backup that was put in its place; a file that was moved away is whole."""
    backup, moved = path.with_name("backup.db"), path.with_name("moved.db")
    store = SqliteStore(path)
    await store.open()
    await store.commit([TaskWrite(FREE_ROW._replace(task_id="a"), None)])
    with plain(path) as other:
        other.execute("VACUUM INTO ?", (str(backup),))
    await store.commit([TaskWrite(FREE_ROW._replace(task_id="b"), None)])
    if how == "removed":
        path.unlink()
    elif how == "replaced":
        backup.rename(path)
    elif how == "emptied":
        os.truncate(path, 0)
    else:
        path.rename(moved)
    assert not await store.is_same_file()
    await store.close()
    await store.open()
    assert await store.is_same_file()
    assert set(await store.fetch_ids(["a", "b"])) == ({"a"} if how == "replaced" else set())
    await store.close()
    for each in (path, moved):
        if each.exists():
            with plain(each) as other:
                assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    if how == "moved away":
        with plain(moved) as other:
            assert other.execute("SELECT id FROM taskmanager_tasks ORDER BY id").fetchall() == [("a",), ("b",)]
