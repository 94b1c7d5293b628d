"""`retry`, `cancel`, `pause`, `resume`, `purge`, `recover`: what is changed, what is asked first, what is refused."""

import sqlite3
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from taskmanager.duties import recovery
from taskmanager.engine.instance import InstanceLock, put_back_lock
from tests.unit.cli.documents import AnswerDocument, RecoveryDocument, ShownDocument
from tests.unit.command_line import digest, statuses, taskmanager


def test_retry_puts_ended_tasks_back(copied: tuple[Path, dict[str, str]]) -> None:
    """Free, due now, with fresh counts; what has not ended, or is COMPLETED, is refused and stays as it is."""
    database, ids = copied
    ran = taskmanager("retry", ids["bad"], ids["good"], ids["later"], "--db", database, "--json")
    assert ran.code == 1
    assert "2 of 3 tasks refused" in ran.err
    waits = taskmanager("retry", ids["later"], "--db", database)
    assert "has not ended; it runs in 5" in waits.out  # minutes
    assert f"m; to run it now: taskmanager cancel {ids['later'][-8:]}, then retry" in waits.out
    answers = ran._replace(err="").document(list[AnswerDocument])
    assert [(answer.task_id, answer.outcome) for answer in answers] == [
        (ids["bad"], "waiting"), (ids["good"], "refused"), (ids["later"], "refused"),
    ]  # fmt: skip
    shown = taskmanager("show", ids["bad"], "--db", database, "--json").document(ShownDocument)
    assert (shown.status, shown.retry_count, shown.start_count, shown.error_code) == ("PENDING", 0, 2, None)
    assert len(shown.attempts) == 2
    assert taskmanager("retry", "--force", ids["good"], "--db", database).code == 0
    assert statuses(database)[ids["good"]] == "PENDING"


def test_cancel_ends_what_waits(copied: tuple[Path, dict[str, str]]) -> None:
    """A free row is CANCELLED at once; one that has ended is refused."""
    database, ids = copied
    ran = taskmanager("cancel", ids["later"], "--db", database)
    assert (ran.code, ran.out) == (0, f"{ids['later']}  cancelled\n")
    again = taskmanager("cancel", ids["later"], "--db", database)
    assert again.code == 1
    assert "it is CANCELLED already" in again.err
    shown = taskmanager("show", ids["later"], "--db", database, "--json").document(ShownDocument)
    assert (shown.status, shown.error_code) == ("CANCELLED", "TASK_CANCELLED")


def test_many_are_shown_and_asked_for_first(copied: tuple[Path, dict[str, str]]) -> None:
    """Only a clear yes changes anything; --yes does not ask, --dry-run only shows."""
    database, ids = copied
    chosen = ["retry", "--status", "FAILED", "--task", "app.jobs:bad", "--since", "1h", "--db", database]
    before = digest(database.parent)
    for answer in ("", "n\n", "perhaps\n"):
        asked = taskmanager(*chosen, stdin=answer)
        assert (asked.code, "retry 2 tasks? [y/N]" in asked.err) == (1, True)
        assert all(ids[name][-8:] in asked.out for name in ("bad", "worse"))
    assert "2 tasks; nothing was changed" in taskmanager(*chosen, "--dry-run").out
    assert len(taskmanager(*chosen, "--dry-run", "--json").document(list[dict[str, str]])) == 2
    assert digest(database.parent) == before
    assert taskmanager(*chosen, stdin="y\n").code == 0
    assert statuses(database) == {**statuses(database), ids["bad"]: "PENDING", ids["worse"]: "PENDING"}
    cancelled = taskmanager("cancel", "--task", "app.jobs:*", "--yes", "--json", "--db", database)
    assert len(cancelled.document(list[AnswerDocument])) == 3
    assert set(statuses(database).values()) == {"CANCELLED", "COMPLETED"}
    assert taskmanager("cancel", "--task", "app.jobs:*", "--yes", "--db", database).out == "no such tasks\n"


def test_a_large_batch_is_told_in_sums(copied: tuple[Path, dict[str, str]]) -> None:
    """Pages of it are one transaction each; of more than ten the rest is counted before the question."""
    database, _ = copied
    with sqlite3.connect(database) as connection:
        columns = [name for _, name, *_ in connection.execute("PRAGMA table_info(taskmanager_tasks)")][1:]
        connection.execute(
            f"""
            WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1200)
            INSERT INTO taskmanager_tasks (id, {", ".join(columns)})
            SELECT printf('f0000000-%04d', i), {", ".join(columns)} FROM n, taskmanager_tasks WHERE status = 'PENDING'
            """
        )
    connection.close()
    asked = taskmanager("cancel", "--status", "PENDING", "--db", database, stdin="no\n")
    assert "... and 1,191 more" in asked.out
    ran = taskmanager("cancel", "--status", "PENDING", "--db", database, "--yes")
    assert (ran.code, ran.out) == (0, "1,201 tasks cancelled\n")


def test_a_queue_is_paused_and_resumed(copied: tuple[Path, dict[str, str]]) -> None:
    """Twice is as good as once."""
    database, ids = copied
    for paused, word in ((True, "pause"), (True, "pause"), (False, "resume"), (False, "resume")):
        ran = taskmanager(word, "default", "--db", database, "--json")
        assert ran.document(dict[str, Any]) == {"queue_name": "default", "is_paused": paused, "is_known": True}
        sentence = taskmanager("show", ids["later"], "--db", database, "--json").document(ShownDocument).next.text
        assert ("queue default is paused" in sentence) == paused


def test_a_queue_that_nobody_has_named_is_refused_unless_it_is_meant(copied: tuple[Path, dict[str, str]]) -> None:
    """A slip of the finger must not look like success while the queue that was meant goes on; a deploy may pause what
    it brings. The queue of everybody needs no task to be known."""
    database, _ = copied
    before = digest(database.parent)
    for word in ("pause", "resume"):
        ran = taskmanager(word, "defualt", "--db", database)
        assert (ran.code, ran.out) == (1, "")
        assert "there is no queue 'defualt'" in ran.err
        assert "did you mean 'default'? Nothing was changed; there are: default, mail" in ran.err
        assert ("--force" in ran.err) == (word == "pause")
    assert digest(database.parent) == before
    forced = taskmanager("pause", "defualt", "--db", database, "--force", "--json")
    assert forced.document(dict[str, Any]) == {"queue_name": "defualt", "is_paused": True, "is_known": False}
    assert taskmanager("resume", "defualt", "--db", database).code == 0
    with sqlite3.connect(database) as connection:
        connection.execute("DELETE FROM taskmanager_tasks")
    assert taskmanager("pause", "default", "--db", database).code == 0


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


def test_recover_finds_nothing_where_nobody_died(copied: tuple[Path, dict[str, str]]) -> None:
    """An empty answer is an answer."""
    ran = taskmanager("recover", "--db", copied[0], "--json")
    assert ran.document(RecoveryDocument) == RecoveryDocument(0, 0, 0, [])
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

    def is_put_back_now(database: Path, instance_id: str) -> bool:
        return not put_back_lock(instance_id)

    monkeypatch.setattr(recovery, "has_lock_file", is_put_back_now)
    monkeypatch.setattr(recovery, "PUT_BACK_S", 0.0)
    ran = taskmanager("recover", "--db", database, "--json")
    assert ran.document(RecoveryDocument) == RecoveryDocument(0, 0, 0, [])
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
    taken = RecoveryDocument(0, 1, 1, [{"task_id": ids["later"], "task_name": "app:job", "status": "PENDING"}])
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
