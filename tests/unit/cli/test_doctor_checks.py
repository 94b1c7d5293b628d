"""Judgements of `taskmanager doctor` on what a test cannot bring about: mounts, silence, logs of many megabytes."""

import json
import os
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from taskmanager.cli.doctor import clocks, functions, living
from taskmanager.console.observer import Observer
from taskmanager.console.overview import NO_COUNTS, InstanceView
from taskmanager.store.protocol import FreeQueue, InstanceRow
from taskmanager.store.sqlite import doctor, locks
from taskmanager.store.sqlite.doctor import disk, files_left, judge_log, mount
from taskmanager.store.sqlite.locks import Reader, WalState, read_wal_index
from taskmanager.store.statistics import FileSize, Pace, Statistics
from tests.unit.command_line import taskmanager, write_tasks

SECOND: Final = 1_000_000
NOW: Final = 1_000_000 * SECOND


def instance(name: str = "i1", **document: Any) -> InstanceRow:
    """A living one that started a thousand seconds ago."""
    return InstanceRow(
        name,
        None,
        "host",
        os.getpid(),
        "main",
        None,
        NOW - 1_000 * SECOND,
        None,
        json.dumps(document),
        NOW - 1_000 * SECOND,
    )


class SetClock:
    """A clock that stands still."""

    def now_us(self) -> int:
        return NOW

    def elapsed_s(self) -> float:
        return 0.0


def views(*rows: InstanceRow, beats: dict[str, int] | None = None) -> tuple[InstanceView, ...]:
    """These instances as they are seen at the first look; without a file, none of them is dead."""
    none = Pace(0, 0, 0)
    found = Statistics(
        taken_at=NOW, instances=rows, beats=beats or {}, owned={}, minute=none, hour=none, size=FileSize(0, 0, 0)
    )
    return Observer(None, SetClock()).overview(found, NO_COUNTS).instances


@pytest.mark.parametrize(
    ("file", "is_well", "found"),
    [
        ("/srv/tasks.db", True, "ext4 at /"),
        ("/srv/share/tasks.db", False, "/srv/share is a network mount (nfs4)"),
        ("/srv/share/local/tasks.db", True, "xfs at /srv/share/local"),
        ("/srv/shared/tasks.db", True, "ext4 at /"),
        ("/mnt/x/tasks.db", False, "/mnt/x is a network mount (fuse.sshfs)"),
    ],
)
def test_the_innermost_mount_says_what_kind_of_file_system_it_is(file: str, is_well: bool, found: str) -> None:
    """A name that begins alike is no parent; what is mounted later on the same point hides what was there."""
    kinds = [("/", "overlay"), ("/", "ext4"), ("/srv/share", "nfs4"), ("/srv/share/local", "xfs")]
    finding = mount(Path(file), [(point, kind, "rw") for point, kind in [*kinds, ("/mnt/x", "fuse.sshfs")]])
    assert (finding.is_well, finding.found) == (is_well, found)
    assert mount(Path(file), []).is_well


def test_an_instance_is_silent_when_the_console_calls_it_frozen() -> None:
    """By its own interval; one that has just started has not missed any."""
    fast, slow = instance(heartbeat_s=1), instance(heartbeat_s=500)
    assert living(views(fast, beats={"i1": NOW - 2 * SECOND})).is_well
    assert "no sign of life of process" in living(views(fast, beats={"i1": NOW - 3 * SECOND})).found
    assert living(views(slow, beats={"i1": NOW - 1_000 * SECOND})).is_well
    assert living(views(fast._replace(updated_at=NOW - SECOND))).is_well
    assert not living(views(instance())).is_well, "without an interval, the default"
    assert living(()).found == "none alive"


def test_instance_of_another_host_is_not_called_by_a_process_of_this_one() -> None:
    """Its number is that of another program here, and the command line would send somebody to the wrong one."""
    silent = instance(heartbeat_s=1)._replace(pid=os.getpid())
    here = living(views(silent._replace(hostname=socket.gethostname()), beats={"i1": NOW - 9 * SECOND}))
    there = living(views(silent._replace(hostname="another"), beats={"i1": NOW - 9 * SECOND}))
    assert f"process {os.getpid()} (" in here.found
    assert f"process {os.getpid()} on another" in there.found


def test_functions_are_judged_only_when_every_instance_tells_its_own() -> None:
    """One that does not may know them all."""
    waiting = [FreeQueue("a:known", "q", 3, NOW), FreeQueue("a:lost", "q", 2, NOW), FreeQueue("a:lost", "r", 1, NOW)]
    told = instance(task_names=["a:known"])
    finding = functions(waiting, views(told))
    assert (finding.is_well, finding.found) == (False, "known to no running instance: a:lost (3 waiting)")
    assert functions(waiting, views(told, instance("i2", task_names=["a:lost"]))).is_well
    assert functions(waiting, views(told, instance("i2", task_names=None))).is_well
    assert functions(waiting, views(told, told._replace(instance_id="i3", live_tasks="{broken"))).is_well
    assert functions(waiting, ()).is_well


def test_a_file_system_that_takes_no_writes_is_a_finding() -> None:
    """Linux mounts one read-only when its disk fails."""
    found = mount(Path("/srv/tasks.db"), [("/", "ext4", "ro")], is_read_only=True)
    assert (found.is_well, found.found) == (False, "it is mounted read-only")


def test_a_file_system_that_has_shut_itself_after_an_error_is_a_finding() -> None:
    """A newer Linux leaves `rw` beside it, and nothing else tells; what is mounted elsewhere does not matter."""
    mounts = [("/", "ext4", "rw"), ("/srv", "ext4", "rw,relatime,emergency_ro")]
    found = mount(Path("/srv/tasks.db"), mounts)
    assert (found.is_well, found.found) == (False, "the system has made /srv read-only after an error")
    assert mount(Path("/var/tasks.db"), mounts).is_well


def test_a_volume_that_has_bytes_but_no_inodes_is_full(tmp_path: Path) -> None:
    """SQLite says only that it cannot open the file: the log, its index and the lock file cannot be made."""
    plenty = 1 << 40
    finding = disk(tmp_path / "tasks.db", plenty, 200, 2)
    assert not finding.is_well
    assert "room for 2 more files only" in finding.found
    assert disk(tmp_path / "tasks.db", plenty, 200, 1_000).is_well
    assert disk(tmp_path / "tasks.db", plenty, 200, None).is_well, "some file systems have no such limit"
    left = files_left(tmp_path)
    assert left is None or left > 0


def test_a_log_is_a_finding_when_it_is_large_or_pinned_while_it_grows() -> None:
    """A reader of a small log is in nobody's way."""
    reader = Reader(os.getpid(), 10)
    assert judge_log(WalState(0), ()).is_well
    assert judge_log(WalState(1_000_000, 200, 10, (reader,)), [reader]).is_well
    assert f"pinned by process {os.getpid()}" in judge_log(WalState(5_000_000, 1_000, 10, (reader,)), [reader]).found
    assert not judge_log(WalState(70_000_000, 20_000, 20_000), ()).is_well


def test_a_writer_that_commits_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A busy application has the lock at every look; but the log grows meanwhile."""
    frames = iter(range(100))
    monkeypatch.setattr(locks, "read_wal_index", lambda path: WalState(1, next(frames), 0, (), 7))
    assert locks.WriterWatch(tmp_path / "tasks.db").judge() is None
    assert next(frames) < 5


LOCKER: Final = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("writing", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
connection.execute("PRAGMA locking_mode = EXCLUSIVE")
connection.execute("BEGIN EXCLUSIVE")
print("alone", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps to itself who holds a lock")
def test_doctor_names_who_keeps_others_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An application that cannot write, and commands that cannot read, are told by whom: there is something to end."""
    monkeypatch.setattr(locks, "LONG_S", 0.2)
    monkeypatch.setattr(doctor, "PIN_LOOK_S", 0.2)
    database = tmp_path / "tasks.db"
    write_tasks(database)
    held_open = sqlite3.connect(database)  # so that there is a log, as beside a running application
    held_open.execute("SELECT count(*) FROM taskmanager_tasks").fetchone()
    with subprocess.Popen(
        [sys.executable, "-c", LOCKER, str(database)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as locker:
        assert locker.stdin is not None
        assert locker.stdout is not None
        for word, said in (
            ("writing", "holds the write lock and commits nothing"),
            ("alone", "keeps the file to itself"),
        ):
            assert locker.stdout.readline() == f"{word}\n"
            if word == "writing":
                first = taskmanager("status", "--db", database, "--json").document(Any)["problems"][0]
                assert first["text"].startswith(f"process {locker.pid} (")
                assert first["text"].endswith("holds the write lock: nothing can be saved")
            ran = taskmanager("doctor", "--db", database, "--json")
            found = {each["name"]: each for each in json.loads(ran.out)["checks"]}
            assert (ran.code, found["locks"]["ok"], ran.err) == (1, False, "")
            assert found["locks"]["found"].startswith(f"process {locker.pid} (")
            assert found["locks"]["found"].endswith(said)
            assert ("file" in found) == (word == "alone")
            held_open.close()
            locker.stdin.write("go on\n")
            locker.stdin.flush()
        locker.communicate()


def test_a_log_without_an_index_is_only_as_large_as_it_is(tmp_path: Path) -> None:
    """A copy of a file, or one that another system has written."""
    database = tmp_path / "tasks.db"
    assert read_wal_index(database) == WalState(0)
    (tmp_path / "tasks.db-wal").write_bytes(b"x" * 5)
    assert read_wal_index(database) == WalState(5)
    (tmp_path / "tasks.db-shm").write_bytes(b"x" * 5)
    assert read_wal_index(database) == WalState(5)


def test_a_stamp_of_some_seconds_ahead_is_no_skew() -> None:
    """Two hosts with NTP differ by less."""
    assert clocks(None, NOW).is_well
    assert clocks(NOW + 5 * SECOND, NOW).is_well
    assert clocks(NOW + 90 * SECOND, NOW).found == "the newest stamp in the file lies 1m in the future"
