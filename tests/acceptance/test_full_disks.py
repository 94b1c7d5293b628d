"""A disk without room, and a log that cannot be moved: the store is degraded until there is room, and says so."""

import asyncio
import os
import shutil
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
        await manager.flush()  # the last of them may have met the full log
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


_CLAIMS = """
import asyncio, os, sqlite3, sys
from taskmanager.model.record import TaskWrite
from taskmanager.rules.claims import Room, Starting
from taskmanager.store.protocol import ClaimRequest
from taskmanager.store.sql import claims
from taskmanager.store.sqlite import SqliteStore
from taskmanager.store.sqlite.connection import configure_writer
from tests.contract.rows import task
from tests.sessions import connect

async def made(path: str) -> None:
    store = SqliteStore(path)
    await store.open()
    await store.commit([TaskWrite(task("a"), None)])
    await store.close()

asyncio.run(made(sys.argv[1]))
connection = connect(sys.argv[1], isolation_level=None)
configure_writer(connection, "full")
row, room = task("a"), Room(frozenset({"app:job"}), 1)
request = ClaimRequest("me", ["app:job"], "default", 1, 1_000, starting=Starting(1, (room,), 7, "host", "main"))
connection.execute("CREATE TABLE in_the_log (a)")
try:
    os.fdatasync(999)
except OSError:
    pass  # the next sync is that of the claim
try:
    claims.claim(connection, [request])
except sqlite3.OperationalError as exc:
    print(exc.sqlite_errorname)
print([each.status for each in claims.fetch_claim(connection, "me", 1_000)])
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="nothing else here makes a sync fail")
def test_a_claim_whose_sync_failed_has_taken_nothing(tmp_path: Path) -> None:
    """Its answer is lost, and it is asked for again: what is found then runs without another sync. SQLite shows a
    commit to nobody, its own connection included, before it is on the disk.
    """
    said, syncs = _traced(tmp_path / "one.db", tmp_path / "one.txt")
    marker = next((number for number, line in enumerate(syncs, 1) if "(999)" in line), None)
    if marker is None:
        pytest.skip("no program may be traced here")
    assert said.splitlines() == ["['RUNNING']"]
    said, syncs = _traced(tmp_path / "two.db", tmp_path / "two.txt", f"inject=fdatasync:error=EIO:when={marker + 1}")
    assert ["INJECTED" in line for line in syncs].index(True) == marker
    assert said.splitlines() == ["SQLITE_IOERR_FSYNC", "[]"]


def _traced(db: Path, trace: Path, *more: str) -> tuple[str, list[str]]:
    """What the program says, and the syncs of its main thread."""
    options = [argument for each in ("trace=fdatasync", *more) for argument in ("-e", each)]
    command = ["strace", "-o", str(trace), *options, sys.executable, "-c", _CLAIMS, str(db)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    lines = trace.read_text().splitlines() if trace.exists() else []
    return done.stdout, [line for line in lines if line.startswith("fdatasync(")]
