"""`recover` and `purge`: what they move and delete, what is asked first, and what is refused."""

import sqlite3
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from taskmanager.duties import recovery
from taskmanager.store.file_place import FilePlace
from taskmanager.store.sqlite.presence import InstanceLock
from tests.unit.cli.documents import RecoveryDocument
from tests.unit.command_line import statuses, taskmanager


def test_purge_asks_unless_it_is_told_what(copied: tuple[Path, dict[str, str]]) -> None:
    """Ended records go, what waits stays."""
    database, ids = copied
    asked = taskmanager("purge", "--db", database, stdin="n\n")
    assert (asked.code, "delete all 3 records" in asked.err) == (1, True)
    assert taskmanager("purge", "--older-than", "1h", "--db", database).out == "0 records deleted\n"
    assert taskmanager("purge", "--status", "COMPLETED", "--db", database, "--json").document(dict[str, int]) == {
        "deleted": 1
    }
    assert taskmanager("purge", "--db", database, "--yes").out == "2 records deleted\n"
    assert statuses(database) == {ids["later"]: "PENDING"}


def test_purge_asks_in_words_that_fit_the_number(copied: tuple[Path, dict[str, str]]) -> None:
    """One record is one record."""
    database, _ = copied
    assert taskmanager("purge", "--error", "UNHANDLED_EXCEPTION", "--db", database).out == "2 records deleted\n"
    assert "delete 1 record of ended tasks?" in taskmanager("purge", "--db", database, stdin="n\n").err


def test_purge_takes_tags_and_the_error_code(copied: tuple[Path, dict[str, str]]) -> None:
    """It asks nothing then, because it does not mean everything."""
    database, ids = copied
    assert taskmanager("purge", "--tag", "user=2", "--db", database).out == "0 records deleted\n"
    assert taskmanager("purge", "--tag", "user=1", "--db", database).out == "1 record deleted\n"
    assert taskmanager("purge", "--error", "UNHANDLED_EXCEPTION", "--db", database).out == "2 records deleted\n"
    assert statuses(database) == {ids["later"]: "PENDING"}


def test_recover_finds_nothing_where_nobody_died(copied: tuple[Path, dict[str, str]]) -> None:
    """An empty answer is an answer."""
    ran = taskmanager("recover", "--db", copied[0], "--json")
    assert ran.document(RecoveryDocument) == RecoveryDocument(0, 0, 0, 0, [])
    assert taskmanager("recover", "--db", copied[0]).out == "nothing to recover\n"


@pytest.mark.skipif(sys.platform == "win32", reason="no flock on this platform")
def test_recover_counts_nobody_dead_whose_lock_file_is_put_back(
    copied: tuple[Path, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was tidied away, and its owner lives: neither it nor what it holds is recovered."""
    database, _ = copied
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(
            "INSERT INTO taskmanager_instances (instance_id, hostname, pid, process_name, started_at, updated_at) "
            "VALUES ('me', 'host', 1, 'main', 1, 1)"
        )
        connection.execute("UPDATE taskmanager_tasks SET claimed_by_worker_id = 'me' WHERE status = 'PENDING'")
        connection.commit()
    lock = InstanceLock(database, "me")
    lock.take()
    lock.path.unlink()

    def is_put_back_now(place: FilePlace, instance_id: str) -> bool:
        return lock.put_back()

    monkeypatch.setattr(FilePlace, "is_missing", is_put_back_now)
    monkeypatch.setattr(recovery, "PUT_BACK_S", 0.0)
    ran = taskmanager("recover", "--db", database, "--json")
    assert ran.document(RecoveryDocument) == RecoveryDocument(0, 0, 0, 0, [])
    assert lock.path.exists()
    lock.drop()


@pytest.mark.skipif(sys.platform == "win32", reason="no flock on this platform")
def test_recover_takes_from_frozen_instances_what_the_flag_allows(copied: tuple[Path, dict[str, str]]) -> None:
    """What waits in the memory of a process that hangs is PENDING or CLAIMED; without the flag nobody touches it."""
    database, ids = copied
    lock = InstanceLock(database, "frozen")
    lock.take()
    with closing(sqlite3.connect(database)) as connection, connection:
        now = "CAST(strftime('%s', 'now') AS INTEGER) * 1000000"
        connection.execute(
            "INSERT INTO taskmanager_instances (instance_id, hostname, pid, process_name, started_at, updated_at) "
            f"VALUES ('frozen', 'host', 1, 'main', {now}, {now})"
        )
        connection.execute(
            "INSERT INTO taskmanager_heartbeats (sender_id, role, sent_at) "
            f"VALUES ('frozen', 'claimer', {now} - 300000000)"
        )
        connection.execute(
            f"UPDATE taskmanager_tasks SET claimed_by_worker_id = 'frozen', updated_at = {now} - 300000000 "
            "WHERE status = 'PENDING'"
        )
    taken = RecoveryDocument(0, 1, 1, 0, [{"task_id": ids["later"], "task_name": "app:job", "status": "PENDING"}])
    for arguments, found in ((), 0), (("--frozen", "6"), 0), (("--frozen", "4"), 1), (("--frozen", "4"), 0):
        answer = taskmanager("recover", *arguments, "--db", database, "--json").document(RecoveryDocument)
        assert (answer.recovered, answer.of_frozen) == (found, found)
        assert [each["task_id"] for each in answer.tasks] == [each["task_id"] for each in taken.tasks][:found]
    assert taskmanager("recover", "--frozen", "0.5", "--db", database).code == 2
    lock.drop()


@pytest.mark.skipif(sys.platform == "win32", reason="no flock on this platform")
def test_a_lock_file_that_is_put_back_in_a_moment_was_never_missing(copied: tuple[Path, dict[str, str]]) -> None:
    """People tidy up; an instance that lives notices within half a second, and a look waits for that."""
    database, ids = copied
    with sqlite3.connect(database) as connection:
        connection.execute(
            "INSERT INTO taskmanager_instances (instance_id, hostname, pid, process_name, started_at, updated_at) "
            "SELECT 'me', 'host-1', 1, 'MainProcess', now, now FROM (SELECT strftime('%s', 'now') * 1000000 AS now)"
        )
        connection.execute("UPDATE taskmanager_tasks SET claimed_by_worker_id = 'me' WHERE id = ?", (ids["later"],))
    connection.close()
    lock = InstanceLock(database, "me")
    lock.take()
    for arguments in (["status"], ["doctor"], ["list"], ["show", ids["later"]]):
        lock.path.unlink()
        putting_back = threading.Timer(0.05, lock.put_back)
        putting_back.start()
        ran = taskmanager(*arguments, "--db", database)
        putting_back.join()
        assert "dead" not in ran.out.replace("no task is held by a dead instance", ""), arguments
    lock.drop()


def test_purge_gives_back_what_an_earlier_one_has_left(copied: tuple[Path, dict[str, str]]) -> None:
    """One that was cut short by Ctrl-C between its two parts: the file decides, not what this one has deleted."""
    with closing(sqlite3.connect(copied[0])) as connection, connection:
        connection.execute(
            "INSERT INTO taskmanager_heartbeats (sender_id, role, sent_at) VALUES (?, 'runner', 1)", ("x" * 400_000,)
        )
        connection.execute("DELETE FROM taskmanager_heartbeats")
    with closing(sqlite3.connect(copied[0])) as connection:
        assert connection.execute("PRAGMA freelist_count").fetchone()[0] > 90
        assert taskmanager("purge", "--older-than", "1000d", "--db", copied[0]).out == "0 records deleted\n"
        assert connection.execute("PRAGMA freelist_count").fetchone() == (0,)
