"""`backup`: a whole copy of a file in use under a new name, or nothing at all."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from taskmanager import TaskManager
from taskmanager.store.sqlite import backup as backing_up
from tests.unit.cli.documents import BackupDocument, RecordDocument
from tests.unit.command_line import digest, taskmanager

Written = tuple[Path, dict[str, str]]


def records(database: Path) -> list[RecordDocument]:
    found: list[RecordDocument] = taskmanager("list", "--limit", "99", "--json", "--db", database).document(
        list[RecordDocument]
    )
    return found


def refused(database: Path, *arguments: str | Path) -> str:
    """The one line of a backup that was refused; nothing has changed in the folder."""
    before = digest(database.parent)
    ran = taskmanager("backup", "--db", database, *arguments)
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (1, "", 1)
    assert digest(database.parent) == before
    assert not list(database.parent.glob(".taskmanager-backup-*"))
    return ran.err


def test_backup_is_whole_private_and_needs_no_log(copied: Written) -> None:
    """The records are those of the file; nobody else can read it; nothing lies beside it."""
    database = copied[0]
    copy = database.with_name("copy.db")
    document = taskmanager("backup", copy, "--db", database, "--json").document(BackupDocument)
    assert (document.db, document.file, document.size_bytes) == (str(database), str(copy), copy.stat().st_size)
    assert copy.stat().st_mode & 0o777 == 0o600
    assert not list(database.parent.glob("*copy.db-*"))
    assert records(copy) == records(database)
    assert taskmanager("doctor", "--db", copy).code == 0
    ran = taskmanager("backup", copy, "--force", "--db", database)
    assert (ran.code, ran.err) == (0, "")
    assert "was copied to" in ran.out


@pytest.mark.anyio
async def test_backup_of_a_file_in_use_has_all_that_was_committed(tmp_path: Path) -> None:
    """What is only in the log as well; and the application neither waits nor notices."""
    database, copy = tmp_path / "tasks.db", tmp_path / "copy.db"
    manager = TaskManager(database)

    @manager.task(persist=True)
    async def job(number: int) -> int:
        return number

    async with manager:
        handles = [job.enqueue(number) for number in range(50)]
        for each in handles:
            await each.saved()
        ran = taskmanager("backup", copy, "--db", database)
        assert (ran.code, ran.err) == (0, "")
        assert {each.task_id for each in records(copy)} == {each.task_id for each in handles}
        assert await job.enqueue(51) == 51
        assert manager.status().storage_degraded_since is None


def test_backup_is_of_one_moment_though_others_write(copied: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that saw different states would make a file with half a transaction; and one that began anew whenever
    somebody wrote would never end beside a busy application.
    """
    database, steps = copied[0], []

    def write(status: int, remaining: int, total: int) -> None:
        steps.append(remaining)
        with closing(sqlite3.connect(database)) as other, other:
            other.execute("INSERT INTO taskmanager_queues VALUES (?, 1)", (f"q{len(steps)}",))

    monkeypatch.setattr(backing_up, "STEP_PAGES", 3)
    monkeypatch.setattr(backing_up, "_hear_signals", write)
    copy = database.with_name("copy.db")
    assert taskmanager("backup", copy, "--db", database).code == 0
    assert steps == sorted(steps, reverse=True)
    assert len(steps) > 3
    with closing(sqlite3.connect(copy)) as found:
        assert found.execute("SELECT count(*) FROM taskmanager_queues").fetchone() == (0,)


def _file(path: Path) -> None:
    path.write_text("precious")


def _dangling_link(path: Path) -> None:
    path.symlink_to("nowhere")


def _other_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE mine (x)")


@pytest.mark.parametrize("make", [_file, _dangling_link, _other_database])
def test_backup_replaces_nothing_without_force(copied: Written, make: Callable[[Path], None]) -> None:
    """Whatever it is that has the name."""
    copy = copied[0].with_name("copy.db")
    make(copy)
    ran = taskmanager("backup", copy, "--db", copied[0])
    assert (ran.code, len(ran.err.splitlines())) == (1, 1)
    assert "is there already" in ran.err
    assert taskmanager("backup", copy, "--force", "--db", copied[0]).code == 0
    assert records(copy) == records(copied[0])


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_backup_never_touches_what_belongs_to_a_database(copied: Written, force: list[str]) -> None:
    """Neither the file itself, by whatever name, nor its log; nor a name whose log would be replayed into the copy."""
    database = copied[0]
    link, hard, beside = (database.with_name(name) for name in ("link", "hard", "other.db"))
    link.symlink_to(database)
    hard.hardlink_to(database)
    for name in (database, link, hard, f"{database}-wal", f"{database}-shm", f"{database}-journal"):
        refused(database, name, *force)
    beside.with_name("other.db-wal").write_bytes(b"left")
    assert "taken for a part of the backup" in refused(database, beside, *force)


def test_backup_goes_to_a_plain_file_only(copied: Written) -> None:
    """A rename over a device would take that away from everybody."""
    database = copied[0]
    pipe = database.with_name("pipe")
    os.mkfifo(pipe)
    try:
        assert "a device, a pipe or a socket" in refused_beside(database, pipe)
        assert "is a directory" in refused_beside(database, database.parent)
        assert "File name too long" in refused_beside(database, database.with_name("x" * 300))
        assert "must be a folder" in refused_beside(database, database.parent / "nowhere" / "copy.db")
    finally:
        pipe.unlink()


def refused_beside(database: Path, file: Path) -> str:
    """As `refused`, where the folder holds what cannot be read."""
    ran = taskmanager("backup", file, "--force", "--db", database)
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (1, "", 1)
    return ran.err


def test_a_damaged_copy_never_takes_the_place_of_a_good_one(copied: Written) -> None:
    """The backup of yesterday is what is needed then."""
    database = copied[0]
    copy = database.with_name("copy.db")
    assert taskmanager("backup", copy, "--db", database).code == 0
    with closing(sqlite3.connect(database)) as connection:
        (root,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'taskmanager_tasks_sent_at'"
        ).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    with database.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * size)
    assert "damaged" in refused(database, copy, "--force")
    assert len(records(copy)) == 4


def test_a_backup_that_fails_on_the_way_leaves_nothing_behind(copied: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, or Ctrl-C."""
    database = copied[0]
    copy = database.with_name("copy.db")

    def fails(status: int, remaining: int, total: int) -> None:
        raise KeyboardInterrupt

    def is_full(source: sqlite3.Connection, copy: sqlite3.Connection) -> None:
        copy.execute("PRAGMA max_page_count = 1")
        copy.execute("CREATE TABLE a (x)")

    before = digest(database.parent)
    with monkeypatch.context() as patched:
        patched.setattr(backing_up, "_hear_signals", fails)
        assert taskmanager("backup", copy, "--db", database).code == 130
    assert digest(database.parent) == before
    monkeypatch.setattr(backing_up, "_copy_pages", is_full)
    assert "is full; free some space" in refused(database, copy)


def test_somebody_who_makes_the_file_meanwhile_keeps_it(copied: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look before the copy is not what decides."""
    copy = copied[0].with_name("copy.db")
    monkeypatch.setattr(backing_up, "_hear_signals", lambda *_: copy.write_text("precious"))
    ran = taskmanager("backup", copy, "--db", copied[0])
    assert (ran.code, copy.read_text()) == (1, "precious")
    assert "is there already" in ran.err


def test_a_file_of_another_version_is_backed_up_and_a_foreign_one_is_not(copied: Written) -> None:
    """Before an upgrade is when backups are made. A file without tasks was most likely not meant."""
    database = copied[0]
    copy, foreign = database.with_name("copy.db"), database.with_name("foreign.db")
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE taskmanager_schema SET version = 999 WHERE version = 2")
    assert taskmanager("backup", copy, "--db", database).code == 0
    _other_database(foreign)
    assert "without tasks" in refused(foreign, database.with_name("none.db"))
    assert "there is no file" in taskmanager("backup", "none.db", "--db", database.with_name("missing.db")).err
