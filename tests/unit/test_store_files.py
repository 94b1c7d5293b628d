"""Files that are deleted, replaced, emptied or moved away while they are in use: the database, its log, the index."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from taskmanager.model.errors import StoreUnavailable
from taskmanager.model.record import TaskWrite
from taskmanager.store.protocol import Beat, TaskFilter
from taskmanager.store.sqlite import SqliteStore
from taskmanager.store.sqlite import store as store_module
from taskmanager.store.watch_protocol import Whereabouts
from tests.contract.rows import FREE_ROW, task

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


async def test_heartbeats_follow_a_store_that_was_opened_anew_between_two_of_them(path: Path, tmp_path: Path) -> None:
    """A file put in the place of the first one is all that others read: in the old one a living instance looks dead."""
    store = SqliteStore(path)
    await store.open()
    beater = store.open_beater()
    beater.beat([Beat("me", "runner", 1, "host", 1)])
    path.rename(tmp_path / "moved.db")
    await store.close()
    await store.open()
    beater.beat([Beat("me", "runner", 2, "host", 1)])
    assert await store.heartbeats() == [("me", "runner", 2)]
    beater.close()
    await store.close()


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
    assert await store.look_after() is Whereabouts.WHOLE
    for name in names:
        path.with_name(path.name + name).unlink()
    assert await store.look_after() is Whereabouts.DAMAGED
    with pytest.raises(StoreUnavailable, match="was deleted"):
        beater.beat([Beat("me", "runner", 1, "host", 1)])
    await store.commit([TaskWrite(FREE_ROW._replace(task_id="b"), None)])
    await store.mend()
    assert await store.look_after() is Whereabouts.WHOLE
    await store.commit([TaskWrite(FREE_ROW._replace(task_id="c"), None)])
    beater.beat([Beat("me", "runner", 1, "host", 1)])
    with plain(path) as other:
        assert other.execute("SELECT id FROM taskmanager_tasks ORDER BY id").fetchall() == [("a",), ("b",), ("c",)]
        assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert await store.heartbeats() == [("me", "runner", 1)]
    await store.close()


@pytest.mark.parametrize("verb", ["checkpoint", "prune"])
async def test_an_emptied_file_gets_no_part_of_its_pages_from_the_log(path: Path, verb: str) -> None:
    """Else it would look like the one of before, and be damaged; nobody would make it anew."""
    store = SqliteStore(path)
    await store.open()
    await store.checkpoint()
    for number in range(20):
        rows = [FREE_ROW._replace(task_id=f"{number}-{each}", args=f'["{"x" * 900}"]') for each in range(10)]
        await store.commit([TaskWrite(row, None) for row in rows])
    await store.commit([TaskWrite(task("ended", status="COMPLETED"), None)])
    os.truncate(path, 0)
    await (store.checkpoint() if verb == "checkpoint" else store.purge(TaskFilter(), None, 10))
    assert (await store.look_after()).is_lost
    await store.close()
    await store.open()
    with plain(path) as other:
        assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)
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
                await store.mend()
            assert await store.look_after() is Whereabouts.DAMAGED
            with pytest.raises(StoreUnavailable):
                await store.commit([TaskWrite(FREE_ROW._replace(task_id="b"), None)])
    await store.mend()
    await store.commit([TaskWrite(FREE_ROW._replace(task_id="b"), None)])
    assert {each.task_id for each in (await store.fetch_ids(["a", "b"])).values()} == {"a", "b"}
    await store.close()


@pytest.mark.parametrize("how", ["removed", "replaced", "emptied", "moved away"])
async def test_the_log_of_a_lost_file_is_no_part_of_the_next_one(path: Path, how: str) -> None:
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
    assert (await store.look_after()).is_lost
    await store.close()
    await store.open()
    assert await store.look_after() is Whereabouts.WHOLE
    assert set(await store.fetch_ids(["a", "b"])) == ({"a"} if how == "replaced" else set())
    await store.close()
    for each in (path, moved):
        if each.exists():
            with plain(each) as other:
                assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    if how == "moved away":
        with plain(moved) as other:
            assert other.execute("SELECT id FROM taskmanager_tasks ORDER BY id").fetchall() == [("a",), ("b",)]


@pytest.fixture
def other_volume(tmp_path: Path) -> Iterator[Path]:
    """An empty folder on another device than the tests'."""
    device = tmp_path.stat().st_dev
    writable = [each for each in map(Path, ("/dev/shm", "/var/tmp")) if os.access(each, os.W_OK)]
    others = [each for each in writable if each.stat().st_dev != device]
    if not others:
        pytest.skip("there is no other volume here")
    with tempfile.TemporaryDirectory(dir=others[0]) as folder:
        yield Path(folder)


async def test_a_volume_that_is_not_mounted_took_nothing_with_it(tmp_path: Path, other_volume: Path) -> None:
    """Nothing is written to the folder it leaves bare, or to what is mounted over it: that would vanish when the volume
    is back. What is open goes on. An empty file says that the next one is to be made there all the same.
    """
    folder, away = tmp_path / "data", tmp_path / "away"
    folder.mkdir()
    path = folder / "tasks.db"
    store = SqliteStore(path)
    await store.open()
    beater = store.open_beater()
    beater.beat([Beat("me", "runner", 1, "host", 1)])
    folder.rename(away)
    folder.symlink_to(other_volume)
    with pytest.raises(StoreUnavailable, match="not mounted there now; mount it again"):
        await store.look_after()
    await store.commit([TaskWrite(FREE_ROW._replace(task_id="a"), None)])
    with plain(away / "tasks.db") as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"):
            beater.beat([Beat("me", "runner", 2, "host", 1)])
    beater.beat([Beat("me", "runner", 3, "host", 1)])
    assert list(other_volume.iterdir()) == []
    folder.unlink()
    away.rename(folder)
    assert await store.look_after() is Whereabouts.WHOLE
    assert set(await store.fetch_ids(["a"])) == {"a"}
    folder.rename(away)
    folder.symlink_to(other_volume)
    path.touch()
    assert (await store.look_after()).is_lost
    await store.close()
    await store.open()
    assert await store.look_after() is Whereabouts.WHOLE
    assert await store.fetch_ids(["a"]) == {}
    beater.close()
    await store.close()


_TWO_VOLUMES = """
import asyncio, subprocess, sys
from pathlib import Path
from taskmanager.model.record import TaskWrite
from taskmanager.store.sqlite import SqliteStore
from tests.contract.rows import FREE_ROW, task

folder = Path(sys.argv[1])
path = folder / "tasks.db"

def run(*words):
    subprocess.run(words, check=True)

async def main():
    store, other = SqliteStore(path), SqliteStore(path)
    run("mount", "-t", "tmpfs", "first", folder)
    await store.open()
    await store.commit([TaskWrite(FREE_ROW._replace(task_id="a"), None)])
    number = path.stat().st_ino
    run("umount", "--lazy", folder)
    run("mount", "-t", "tmpfs", "second", folder)
    await other.open()
    await other.commit([TaskWrite(FREE_ROW._replace(task_id="b"), None)])
    if path.stat().st_ino != number:
        sys.exit(77)
    await store.close()
    assert (await other.look_after()).value == "whole"
    await store.open()
    assert set(await store.fetch_ids(["a", "b"])) == {"b"}
    await store.close()
    await other.close()

asyncio.run(main())
"""


def test_a_volume_replaced_by_its_snapshot_does_not_take_the_other_log(tmp_path: Path) -> None:
    """The files of both have the same number, by which SQLite knows whether a file is its own when it deletes a log."""
    within = ("unshare", "--mount")
    if shutil.which("unshare") is None or subprocess.run([*within, "true"], capture_output=True).returncode:
        pytest.skip("no volume can be mounted here")
    command = [*within, sys.executable, "-c", _TWO_VOLUMES, str(tmp_path)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("the files of two new volumes have different numbers here")
    assert done.returncode == 0, done.stderr
