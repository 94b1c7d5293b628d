"""A file that cannot be used at all: refused in words that help, and left as it was."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from taskmanager import StoreError, StoreUnavailable
from tests.acceptance.file_faults import ROOT, World, eventually

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("count", range(3))
async def test_a_start_without_enough_threads_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """The writer, the reader and the heartbeat need one each. What has been started by then ends, and another start
    may find more.
    """
    world, before, start, started = World(tmp_path / "tasks.db"), set(threading.enumerate()), threading.Thread.start, []

    def refuse(thread: threading.Thread) -> None:
        started.append(thread)
        if len(started) > count:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(StoreUnavailable, match="can't start new thread.*ulimit -u"):
            await world.manager.start()
    await eventually(lambda: set(threading.enumerate()) <= before)
    async with world.manager:
        assert await world.once.enqueue("after") == "after"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("not a database", "move that file away"),
        ("damaged", "restore a backup"),
        ("newer", "upgrade taskmanager"),
        ("missing directory", "create it first"),
        ("a directory", "path of a file"),
        ("a long name", "use a shorter name"),
    ],
)
async def test_a_file_that_cannot_be_used_is_refused_in_words_that_help(tmp_path: Path, kind: str, words: str) -> None:
    """`start()` raises `StoreError`, names the file and says what to do; the file is left as it was."""
    db = tmp_path / "tasks.db"
    if kind == "not a database":
        db.write_bytes(b"once upon a time " * 1_000)
    elif kind == "missing directory":
        db = tmp_path / "nowhere" / "tasks.db"
    elif kind == "a long name":
        db = tmp_path / ("tasks" * 46)  # the name of a lock file is longer than that of the database
    elif kind == "a directory":
        db.mkdir()
    else:
        async with World(db).manager:
            pass
        _spoil(db, kind)
    before = db.read_bytes() if db.is_file() else None
    manager = World(db).manager
    with pytest.raises(StoreError, match=words) as caught:
        await manager.start()
    assert str(db) in str(caught.value)
    assert kind == "newer" or before is None or db.read_bytes() == before
    assert manager.status().running_count == 0


def _spoil(db: Path, kind: str) -> None:
    if kind == "newer":
        with closing(sqlite3.connect(db)) as connection, connection:
            connection.execute("INSERT INTO taskmanager_schema VALUES (999, 'from the future', 0)")
        with closing(sqlite3.connect(db)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return
    content = bytearray(db.read_bytes())
    content[100:4096] = b"\xff" * (4096 - 100)
    db.write_bytes(content)


_AS_NOBODY = """
import asyncio, os, sys
from taskmanager import StoreUnavailable, TaskManager
async def main(path):
    async with TaskManager(path):
        print("started")
asyncio.run(main(sys.argv[1]))  # loads all there is to load, while it can be read
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
for path in sys.argv[2:]:
    try:
        asyncio.run(main(path))
    except StoreUnavailable as exc:
        print(exc)
"""


async def test_a_place_that_may_not_be_written_is_refused_with_the_reason(tmp_path: Path) -> None:
    """A file, its directory, and one that cannot even be looked into. Permissions bind no superuser, so the starts are
    made by somebody who is none.
    """
    os.chmod(tmp_path, 0o777)  # noqa: PTH101  # a path of the test's own
    for parent in tmp_path.parents:
        if parent != Path("/") and "pytest" in str(parent):
            parent.chmod(0o755)
    modes = {"file": 0o777, "directory": 0o555, "closed directory": 0o600}
    places = [tmp_path / what / "tasks.db" for what in modes]
    for db, mode in zip(places, modes.values(), strict=True):
        db.parent.mkdir()
        if db.parent.name == "file":
            async with World(db).manager:
                pass
            db.chmod(0o444)
        db.parent.chmod(mode)
    command = [sys.executable, "-c", _AS_NOBODY, str(tmp_path / "other.db"), *map(str, places)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    first, *refusals = done.stdout.splitlines()
    assert (first, len(refusals)) == ("started", len(places)), done.stdout + done.stderr
    for db, words in zip(places, refusals, strict=True):
        assert "writable" in words
        assert str(db) in words
