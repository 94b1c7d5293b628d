"""The look at the log from outside: it spares the thorough look, and what others commit is seen all the same."""

import os
import select
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from taskmanager.store.memory import MemoryStore
from taskmanager.store.sqlite import SqliteStore, stamp
from taskmanager.store.sqlite import store as store_module
from taskmanager.store.sqlite.session import SqliteSession
from tests.sessions import connect

pytestmark = pytest.mark.anyio

LONG_AGO_S = 1_000_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@pytest.fixture
def thorough(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What each thorough look found."""
    found: list[int] = []
    look = store_module._data_version

    def counted(connection: SqliteSession) -> int:
        found.append(look(connection))
        return found[-1]

    monkeypatch.setattr(store_module, "_data_version", counted)
    return found


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def settle(path: Path) -> None:
    """Nobody has written to the log for a long time."""
    os.utime(log_of(path), (LONG_AGO_S, LONG_AGO_S))


def write(path: Path, *statements: str) -> None:
    with closing(connect(path, isolation_level=None)) as other:
        for each in statements:
            other.execute(each)


PAUSE = "INSERT OR REPLACE INTO taskmanager_queues VALUES ('mail', 1)"


async def opened(path: Path) -> SqliteStore:
    store = SqliteStore(path)
    await store.open()
    write(path, PAUSE)
    return store


async def test_a_log_that_nobody_writes_to_is_looked_at_thoroughly_once_in_a_while(
    path: Path, thorough: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stat costs a microsecond, the other look two changes of threads; but no file system is trusted for long."""
    store = await opened(path)
    settle(path)
    versions = {await store.changes() for _ in range(5)}
    assert len(versions) == len(thorough) == 1
    monkeypatch.setattr(stamp, "TRUSTED_S", -1.0)
    store._stamp.note(store._stamp.read())
    await store.changes()
    assert len(thorough) == 2
    await store.close()


@pytest.mark.parametrize("before_it", [None, "PRAGMA wal_checkpoint(RESTART)", "PRAGMA wal_checkpoint(TRUNCATE)"])
async def test_a_commit_of_others_is_seen_at_once(path: Path, before_it: str | None) -> None:
    """At the end of the log, in its first pages while it keeps its length, or in one that was cut."""
    store = await opened(path)
    for _ in range(3):
        settle(path)
        before, size = await store.changes(), log_of(path).stat().st_size
        assert store._stamp.is_unchanged
        write(path, *([before_it] if before_it else ()), PAUSE)
        assert await store.changes() != before
        if before_it and "RESTART" in before_it:
            assert log_of(path).stat().st_size == size, "or this shows nothing of a log that is begun anew in place"
    await store.close()


async def test_a_commit_that_counts_after_its_write_was_seen_comes_a_moment_late(path: Path) -> None:
    """A slow disk lies between the two, or the process is stopped there. It is not missed."""
    store = await opened(path)
    settle(path)
    before = await store.changes()
    write(path, PAUSE)
    settle(path)
    store._stamp.note(store._stamp.read())
    assert await store.changes() == before, "or this shows nothing"
    store._stamp._trusted_until_s = 0.0
    assert await store.changes() != before
    await store.close()


@pytest.mark.parametrize("changed_at", [lambda now_s: now_s, lambda now_s: now_s - 1, lambda now_s: now_s + 3_600])
async def test_a_log_that_was_changed_a_moment_ago_is_looked_at_thoroughly(
    path: Path, thorough: list[int], changed_at: Callable[[float], float]
) -> None:
    """The time of its change is coarse, and a clock may have been stepped: the same time may be another change."""
    store = await opened(path)
    at_s = changed_at(stamp._CLOCK.now_us() / 1_000_000)
    os.utime(log_of(path), (at_s, at_s))
    for _ in range(3):
        await store.changes()
    assert len(thorough) == 3
    await store.close()


async def test_a_file_that_was_opened_again_is_looked_at_anew(path: Path, thorough: list[Any]) -> None:
    """Numbers of two connections cannot be compared."""
    store = await opened(path)
    settle(path)
    await store.changes()
    await store.close()
    await store.open()
    write(path, PAUSE)
    settle(path)
    await store.changes()
    assert len(thorough) == 2
    await store.close()


@pytest.mark.skipif(sys.platform != "linux", reason="inotify")
async def test_the_system_tells_of_the_next_write_to_the_log(path: Path) -> None:
    """Each write is told once, also in a log that another one has replaced; a closed store holds no descriptor."""
    store = await opened(path)
    for _ in range(2):
        descriptor = store.watch()
        assert descriptor is not None
        assert not select.select([descriptor], [], [], 0)[0]
        mark = store.mark()
        write(path, PAUSE)
        assert select.select([descriptor], [], [], 10)[0]
        assert store.mark() != mark
    log_of(path).unlink()
    log_of(path).write_bytes(b"")
    descriptor = store.watch()
    assert descriptor is not None
    log_of(path).write_bytes(b"new")
    assert select.select([descriptor], [], [], 10)[0]
    await store.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


async def test_a_store_without_a_log_tells_of_no_write(path: Path) -> None:
    assert (MemoryStore().mark(), MemoryStore().watch()) == (None, None)
    assert SqliteStore(path).watch() is None
