"""A disk without room, and a log that cannot be moved: the store is degraded until there is room, and says so."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from taskmanager import StoreUnavailable, TaskManager
from taskmanager.duties import supervisor
from taskmanager.store.sqlite import SqliteStore
from taskmanager.store.sqlite.wal import WalLimits
from tests.acceptance.file_faults import ROOT, World, eventually

pytestmark = pytest.mark.anyio


async def test_a_full_disk_is_a_degraded_store_until_there_is_room(tmp_path: Path) -> None:
    """`SQLITE_FULL`: reported, waited for, and everything written in the end."""
    world = World(tmp_path / "tasks.db")
    async with world.manager as manager:
        await world.once.enqueue("before")
        await _limit_pages(manager, extra=2)
        big = [world.safe.enqueue(f"{n}" + "x" * 20_000) for n in range(20)]
        await eventually(lambda: manager.status().storage_degraded_since is not None)
        with pytest.raises(StoreUnavailable, match="disk is full"):
            await big[-1].saved(timeout=0.1)
        assert await world.memory.enqueue("m") == "m"
        await _limit_pages(manager, extra=1_000_000)
        await manager.flush()
        assert manager.status().storage_degraded_since is None
    assert list(world.statuses().values()).count("COMPLETED") >= 21
    world.assert_whole()


async def _limit_pages(manager: TaskManager, extra: int) -> None:
    assert manager._lifecycle is not None
    writer = manager._lifecycle.engine.store._writer  # type: ignore[attr-defined]

    def limit(connection: sqlite3.Connection) -> None:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + extra}").fetchone()

    await writer.hop(limit)


_WITH_A_QUOTA = """
import asyncio, resource, sys
from taskmanager import TaskManager
manager = TaskManager(sys.argv[1])

@manager.task(persist=True)
async def work(text: str) -> int:
    return len(text)

async def main():
    async with manager:
        for number in range(60):
            await work.enqueue("x" * 500)
        print(manager.status().storage_degraded_since)

resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no quotas of this kind")
async def test_a_log_that_cannot_grow_is_moved_into_the_file_and_used_again(tmp_path: Path) -> None:
    """Where a disk is full of the log itself, nothing else would ever make room: the writer is never idle."""
    db = tmp_path / "tasks.db"
    command = [sys.executable, "-c", _WITH_A_QUOTA, str(db)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert done.stdout == "None\n", done.stdout + done.stderr
    assert "unavailable" in done.stderr, "the quota was never reached"
    with closing(sqlite3.connect(db)) as connection:
        found = connection.execute("SELECT status, count(*) FROM taskmanager_tasks GROUP BY status").fetchall()
        assert found == [("COMPLETED", 60)]
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_a_reader_that_pins_the_log_holds_up_no_stop(tmp_path: Path) -> None:
    """A forgotten SELECT in another program lets the log grow; it blocks neither work nor the end of it."""
    world = World(tmp_path / "tasks.db")
    async with world.manager as manager:
        await world.once.enqueue("before")
        with closing(sqlite3.connect(world.db, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM taskmanager_tasks").fetchone()
            await asyncio.gather(*(world.once.enqueue(f"t{n}") for n in range(300)))
            began = time.monotonic()
            await manager.stop()
            assert time.monotonic() - began < 2
    assert list(world.statuses().values()) == ["COMPLETED"] * 301
    world.assert_whole()


async def test_a_log_pinned_beyond_its_limit_degrades_the_store_until_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like a full disk, which it is not to become: what may go on goes on, the rest waits, and all of it is written."""
    monkeypatch.setattr(supervisor, "UPKEEP_INTERVAL_S", 0.02)
    world = World(tmp_path / "tasks.db")
    world.manager._make_store = lambda: SqliteStore(world.db, wal_limits=WalLimits(50_000, 100_000, 300_000))
    async with world.manager as manager:
        with closing(sqlite3.connect(world.db, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM taskmanager_tasks").fetchone()
            number = 0
            async with asyncio.timeout(20):
                while manager.status().storage_degraded_since is None:
                    await world.safe.enqueue(f"{number}" + "x" * 20_000)
                    number += 1
            waits = world.once.enqueue("waits")
            assert await world.memory.enqueue("m") == "m"
            with pytest.raises(StoreUnavailable, match="another connection reads an old state"):
                await waits.saved(timeout=0.1)
        assert await waits == "waits"
        assert manager.status().storage_degraded_since is None
    assert list(world.statuses().values()).count("COMPLETED") >= number + 1
    world.assert_whole()
