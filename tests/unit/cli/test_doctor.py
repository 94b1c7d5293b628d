"""`doctor` on a sound file and on one with a fault: each finding says what to do."""

import sqlite3
from pathlib import Path

import pytest

from taskmanager import TaskManager
from tests.unit.cli.documents import DiagnosisDocument
from tests.unit.command_line import taskmanager


def findings(database: Path, *arguments: str) -> dict[str, str]:
    """The names and findings of what is not well."""
    ran = taskmanager("doctor", "--db", database, "--json", *arguments)
    document = ran.document(DiagnosisDocument)
    bad = {check.name: check.found for check in document.checks if not check.ok}
    assert document.findings == len(bad)
    assert all(check.advice for check in document.checks if not check.ok)
    assert ran.code == bool(bad)
    return bad


def test_doctor_finds_nothing_in_a_sound_file(copied: tuple[Path, dict[str, str]]) -> None:
    """Eleven looks, all well."""
    assert findings(copied[0]) == {}
    ran = taskmanager("doctor", "--db", copied[0])
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "no findings")


def test_doctor_finds_a_file_that_others_can_read(copied: tuple[Path, dict[str, str]]) -> None:
    """Arguments may be secrets of the application's users."""
    copied[0].chmod(0o644)
    assert findings(copied[0]) == {"permissions": "tasks.db has mode 0644"}


def test_doctor_finds_a_disk_that_is_nearly_full(copied: tuple[Path, dict[str, str]]) -> None:
    """The limit is what the caller says."""
    assert "less than 999,999,999 MB" in findings(copied[0], "--min-free", "999999999")["disk"]


def test_doctor_finds_a_clock_that_is_ahead(copied: tuple[Path, dict[str, str]]) -> None:
    """A heartbeat from the future was sent by a host that keeps another time."""
    with sqlite3.connect(copied[0]) as connection:
        connection.execute(
            "INSERT INTO taskmanager_heartbeats (sender_id, role, sent_at)"
            " VALUES ('ahead', 'runner', 1000000 * CAST(strftime('%s', 'now', '+1 hour') AS INTEGER))"
        )
    connection.close()
    assert findings(copied[0]) == {"clocks": "the newest stamp in the file lies 59m in the future"}


def test_doctor_finds_damage(copied: tuple[Path, dict[str, str]]) -> None:
    """A page that was written over; and then a file that is not even readable as a database."""
    database = copied[0]
    with sqlite3.connect(database) as connection:
        (root,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'taskmanager_tasks_sent_at'"
        ).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    with database.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * size)
    assert "integrity" in findings(database)
    with database.open("r+b") as file:
        file.write(b"\xff" * size)
    assert "is not a database" in findings(database)["file"]


@pytest.mark.anyio
@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="reads /proc")
@pytest.mark.parametrize("ending", ["", "-shm"])
async def test_doctor_finds_a_process_that_has_read_the_file_as_bytes(tmp_path: Path, ending: str) -> None:
    """That drops SQLite's lock in silence: the next program that closes the file deletes the log in use, and the next
    one that opens it empties the log's index.
    """
    database, read = tmp_path / "tasks.db", tmp_path / f"tasks.db{ending}"
    async with TaskManager(database):
        assert findings(database) == {}
        assert len(read.read_bytes()) > 0
        assert "has the file open without SQLite's lock on it" in findings(database)["sharing"]
