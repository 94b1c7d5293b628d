"""The commands on a file, in this process: what they print, what they change, and what they refuse.

`tests/acceptance/test_second_terminal.py` runs them beside an application that lives, freezes and dies.
"""

import json
import re
import shutil
import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import click
import msgspec
import pytest

from taskmanager.cli.commands import SECTIONS, cli
from taskmanager.cli.output import as_document
from taskmanager.duties import recovery
from taskmanager.engine.instance import InstanceLock, put_back_lock
from tests.unit.command_line import digest, taskmanager, write_tasks

Instant = str
INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


class AttemptDocument(msgspec.Struct, forbid_unknown_fields=True):
    """One attempt, as docs/command-line.md has it."""

    task_id: str
    attempt: int
    outcome: str
    will_retry: bool
    started_at: Instant
    finished_at: Instant
    error_code: str | None
    error_message: str | None
    failed_reason: str | None
    worker_id: str | None
    worker_hostname: str | None
    worker_pid: int | None
    worker_process_name: str | None
    created_at: Instant


class NextDocument(msgspec.Struct, forbid_unknown_fields=True):
    """What comes next."""

    text: str
    at: Instant | None


class RecordDocument(msgspec.Struct, forbid_unknown_fields=True):
    """One record, as docs/command-line.md has it."""

    task_id: str
    task_name: str
    queue_name: str
    priority: int
    args: list[Any] | str | None
    kwargs: dict[str, Any] | str | None
    status: str
    sent_at: Instant
    enqueued_at: Instant
    claimed_at: Instant | None
    claimed_by_worker_id: str | None
    started_at: Instant | None
    completed_at: Instant | None
    failed_at: Instant | None
    result: dict[str, Any] | str | None
    failed_reason: str | None
    error_code: str | None
    good_until: Instant | None
    retry_count: int
    max_retries: int
    next_retry_at: Instant | None
    start_count: int
    crash_count: int
    snooze_count: int
    task_options: dict[str, Any]
    tags: dict[str, str] | None
    idempotency_key: str | None
    enqueue_sha: str | None
    scheduled_for: Instant | None
    cancel_requested_at: Instant | None
    progress: dict[str, Any] | None
    log: list[dict[str, Any]] | None
    worker_pid: int | None
    worker_hostname: str | None
    worker_process_name: str | None
    finalizing_at: Instant | None
    finalizing_by_worker_id: str | None
    claim_expires_at: Instant | None
    is_workflow_task: bool
    created_at: Instant
    updated_at: Instant


class ShownDocument(RecordDocument, forbid_unknown_fields=True, kw_only=True):
    """A record with its attempts and what comes next."""

    attempts: list[AttemptDocument]
    next: NextDocument


class AnswerDocument(msgspec.Struct, forbid_unknown_fields=True):
    """What became of one task that was acted on."""

    task_id: str
    done: bool
    outcome: str
    remark: str | None


class CheckDocument(msgspec.Struct, forbid_unknown_fields=True):
    """One look of `doctor`."""

    name: str
    ok: bool
    found: str
    advice: str | None


class DiagnosisDocument(msgspec.Struct, forbid_unknown_fields=True):
    """All of them."""

    db: str
    findings: int
    checks: list[CheckDocument]


class RecoveryDocument(msgspec.Struct, forbid_unknown_fields=True):
    """What `recover` gave back."""

    dead_instances: int
    recovered: int
    tasks: list[dict[str, str | None]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """One file for all tests of this module; those that change it take a copy."""
    database = tmp_path_factory.mktemp("written") / "tasks.db"
    return database, write_tasks(database)


@pytest.fixture
def copied(written: tuple[Path, dict[str, str]], tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A copy of that file, to be changed."""
    shutil.copy(written[0], tmp_path / "tasks.db")
    return tmp_path / "tasks.db", written[1]


def statuses(database: Path) -> dict[str, str]:
    with sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True) as connection:
        found = dict(connection.execute("SELECT id, status FROM taskmanager_tasks").fetchall())
    connection.close()
    return found


# Looking.


def test_a_list_in_json_is_an_array_of_records(written: tuple[Path, dict[str, str]]) -> None:
    """Columns by their names, newest first, instants as ISO 8601 in UTC, JSON as what it holds."""
    database, ids = written
    records = taskmanager("list", "--db", database, "--json").document(list[RecordDocument])
    assert [record.task_id for record in records] == [ids[name] for name in ("later", "worse", "bad", "good")]
    good = records[-1]
    assert (good.args, good.kwargs, good.tags, good.result) == ([1], {}, {"user": "1"}, {"ok": 1})
    assert all(INSTANT.fullmatch(instant) for instant in (good.sent_at, good.completed_at or "", good.updated_at))


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        (["--status", "failed"], ["worse", "bad"]),
        (["--status", "FAILED", "--status", "PENDING"], ["later", "worse", "bad"]),
        (["--task", "app.*:g*"], ["later", "good"]),
        (["--queue", "mail", "--limit", "1"], ["worse"]),
        (["--code", "UNHANDLED_EXCEPTION", "--since", "1h"], ["worse", "bad"]),
        (["--since", "0s"], []),
        (["--since", "9" * 400 + "w", "--status", "PENDING"], ["later"]),
        (["--code", "NO_SUCH_CODE"], []),
    ],
)
def test_a_list_is_narrowed_by_options(
    written: tuple[Path, dict[str, str]], filters: list[str], names: list[str]
) -> None:
    """Together they narrow further; nothing found is an answer, not an error."""
    database, ids = written
    ran = taskmanager("list", "--db", database, *filters, "--json")
    assert ran.code == 0
    assert [record["task_id"] for record in ran.document(list[dict[str, Any]])] == [ids[name] for name in names]


def test_a_list_goes_on_before_an_id(written: tuple[Path, dict[str, str]]) -> None:
    """A full page says how to see the next."""
    database, ids = written
    first = taskmanager("list", "--db", database, "--limit", "2")
    assert first.out.splitlines()[-1] == f"older ones: --before {ids['worse']}"
    second = taskmanager("list", "--db", database, "--limit", "2", "--before", ids["worse"][-8:], "--json")
    assert [record["task_id"] for record in second.document(list[dict[str, Any]])] == [ids["bad"], ids["good"]]
    assert taskmanager("list", "--db", database, "--code", "NONE").out == "no such tasks\n"
    slip = taskmanager("list", "--db", database, "--queue", "mial")
    assert (slip.code, slip.out) == (0, "no such tasks\n")
    assert slip.err == "taskmanager: there is no queue 'mial'; did you mean 'mail'?\n"
    slip = taskmanager("cancel", "--db", database, "--task", "good", "--yes")
    assert slip.err == "taskmanager: there is no function 'good'; did you mean 'app.jobs:good'?\n"


def test_a_record_in_json_has_its_attempts_and_what_comes_next(written: tuple[Path, dict[str, str]]) -> None:
    """A part of the id is enough."""
    database, ids = written
    shown = taskmanager("show", ids["bad"][-10:].upper(), "--db", database, "--json").document(ShownDocument)
    assert (shown.task_id, shown.kwargs, shown.error_code) == (ids["bad"], {"subject": "hi"}, "UNHANDLED_EXCEPTION")
    assert [(each.attempt, each.outcome, each.will_retry) for each in shown.attempts] == [
        (1, "FAILED", True),
        (2, "FAILED", False),
    ]
    assert "ValueError: no such mailbox: ann" in (shown.attempts[0].failed_reason or "")
    assert "retry" in shown.next.text
    later = taskmanager("show", ids["later"], "--db", database, "--json").document(ShownDocument)
    assert later.next.at == later.enqueued_at


def test_a_record_is_shown_with_its_traceback(written: tuple[Path, dict[str, str]]) -> None:
    """What a person reads; the layout is compared in test_console_records.py."""
    database, ids = written
    out = taskmanager("show", ids["bad"], "--db", database).out
    for part in ("app.jobs:bad  FAILED", '("ann", subject="hi")', "ValueError: no such mailbox: ann", "Attempts"):
        assert part in out


def test_looking_changes_nothing(written: tuple[Path, dict[str, str]]) -> None:
    """No byte of the file; only SQLite's own side files may appear."""
    database, ids = written
    before = digest(database.parent)
    for arguments in (["list"], ["show", ids["bad"]], ["doctor"], ["retry", "--status", "FAILED", "--dry-run"]):
        assert taskmanager(*arguments, "--db", database).code == 0
    assert digest(database.parent) == before
    assert {path.name for path in database.parent.iterdir()} <= {"tasks.db", "tasks.db-wal", "tasks.db-shm"}


# Acting.


def test_retry_puts_ended_tasks_back(copied: tuple[Path, dict[str, str]]) -> None:
    """Free, due now, with fresh counts; what has not ended, or is COMPLETED, is refused and stays as it is."""
    database, ids = copied
    ran = taskmanager("retry", ids["bad"], ids["good"], ids["later"], "--db", database, "--json")
    assert ran.code == 1
    assert "2 of 3 tasks refused" in ran.err
    waits = taskmanager("retry", ids["later"], "--db", database)
    assert f"has not ended; it runs in 59m; at once: taskmanager cancel {ids['later'][-8:]}, then retry it" in waits.out
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
    assert ran.document(RecoveryDocument) == RecoveryDocument(0, 0, [])
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
    assert ran.document(RecoveryDocument) == RecoveryDocument(0, 0, [])
    assert lock.path.exists()
    lock.drop()


# Refusing.


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["show", "no-such-id"], 1, "there is no task 'no-such-id'"),
        (["show", "0"], 1, "is ambiguous"),
        (["retry", "{good}", "no-such-id", "--force"], 1, "there is no task"),
        (["list", "--before", "abcdef"], 1, "there is no task"),
        (["resume", "mial"], 1, "did you mean 'mail'?"),
        (["purge"], 1, "nobody answered"),
        (["list", "--status", "LOST"], 2, "'LOST' is none of PENDING, CLAIMED"),
        (["list", "--since", "soon"], 2, "'soon' is no duration"),
        (["list", "--limit", "0"], 2, "--limit"),
        (["list", "--limit", "9" * 40], 2, "--limit"),
        (["list", "--db", "x" * 5_000], 1, "cannot be reached"),
        (["retry"], 2, "say which tasks"),
        (["retry", "{bad}", "--status", "FAILED"], 2, "say which tasks"),
        (["retry", "--status", "RUNNING"], 2, "retry is not for tasks that are RUNNING"),
        (["retry", "--status", "COMPLETED"], 2, "retry is not for tasks that are COMPLETED"),
        (["cancel", "--status", "FAILED"], 2, "cancel is not for tasks that are FAILED"),
        (["retry", "--status", "FAILED", "--json"], 2, "give --yes too"),
        (["purge", "--json"], 2, "give --yes too"),
        (["purge", "--status", "RUNNING"], 2, "'RUNNING' is none of COMPLETED"),
        (["show"], 2, "ID"),
        (["satus"], 2, "there is no command 'satus'; did you mean 'status'?"),
        (["--db", "tasks.db", "list"], 2, "Options stand behind the command"),
        (["list", "surplus"], 2, "surplus"),
    ],
)
def test_bad_input_is_one_line_and_an_exit_code(
    written: tuple[Path, dict[str, str]], arguments: list[str], code: int, said: str
) -> None:
    """One line on stderr, nothing on stdout, and nothing is changed, not even for the good part of it."""
    database, ids = written
    before = digest(database.parent)
    file = [] if "--db" in arguments else ["--db", str(database)]
    asks = arguments == ["purge"]
    for as_json in ([],) if asks or "--json" in arguments else ([], ["--json"]):
        ran = taskmanager(*(word.format(**ids) for word in arguments), *file, *as_json)
        assert (ran.code, ran.out) == (code, "")
        assert said in ran.err
        assert len(ran.err.splitlines()) == (2 if asks else 1)
    assert digest(database.parent) == before


def _missing(database: Path) -> None:
    database.unlink()


def _text(database: Path) -> None:
    database.write_text("this is no database, but it is long enough to have a header" * 100)


def _newer(database: Path) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE taskmanager_schema SET version = 999 WHERE version = 2")
    connection.close()


def _folder(database: Path) -> None:
    database.unlink()
    database.mkdir()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_missing, "there is no file"),
        (_text, "is not a database"),
        (_newer, "has schema version 999"),
        (_folder, "is a directory"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_every_command(
    copied: tuple[Path, dict[str, str]], spoil: Callable[[Path], None], said: str
) -> None:
    """Exit code 1, one line, and neither made nor changed. `doctor` has it as a finding where there is a file."""
    database, ids = copied
    spoil(database)
    before = {} if database.is_dir() else digest(database.parent)
    task_id = ids["bad"]
    commands = [["list"], ["show", task_id], ["retry", task_id], ["cancel", task_id], ["pause", "default"]]
    for arguments in [
        *commands,
        ["status"],
        ["watch"],
        ["resume", "default"],
        ["purge", "--older-than", "1d"],
        ["recover"],
        ["schedules"],
    ]:
        for as_json in ([], ["--json"]):
            ran = taskmanager(*arguments, "--db", database, *as_json)
            assert (ran.code, ran.out, len(ran.err.splitlines())) == (1, "", 1), arguments
            assert said in ran.err
    assert ({} if database.is_dir() else digest(database.parent)) == before


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


HOSTILE: Final = "\x1b[2J\x1b]0;owned\x07\u202e[red]日本\u0301[/] [bold\r\n\t\x9b31m"


def test_what_somebody_else_has_written_into_the_file_is_shown_and_not_obeyed(
    copied: tuple[Path, dict[str, str]],
) -> None:
    """Names, tags, arguments, errors and logs are foreign: nothing in them steers the terminal or counts as markup."""
    database, ids = copied
    document = json.dumps({HOSTILE: HOSTILE, "at": 1, "text": HOSTILE, "done": 1, "total": 2})
    live = json.dumps(
        {"tasks": [{"task_id": "t", "task_name": HOSTILE, "started_at": 1, "progress": {"text": HOSTILE}}]}
    )
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(
            """
            UPDATE taskmanager_tasks SET task_name = :text, queue_name = :text, worker_hostname = :text, log = :log,
                error_code = iif(status = 'FAILED', :text, NULL), failed_reason = iif(status = 'FAILED', :text, NULL),
                tags = :document, progress = :document, kwargs = :document
            """,
            {"text": HOSTILE, "document": document, "log": f"[{document}]"},
        )
        connection.execute(
            "UPDATE taskmanager_task_attempts SET error_code = :text, error_message = :text, failed_reason = :lines",
            {"text": HOSTILE, "lines": f"Traceback:\n{HOSTILE}"},
        )
        connection.execute(
            "INSERT INTO taskmanager_instances (instance_id, instance_name, hostname, pid, process_name, started_at, "
            "live_tasks, updated_at) VALUES ('me', :text, :text, 1, :text, 1, :live, strftime('%s', 'now') * 1000000)",
            {"text": HOSTILE, "live": live},
        )
        connection.execute("INSERT INTO taskmanager_queues VALUES (:text, 1)", {"text": HOSTILE})
    connection.close()
    lock = InstanceLock(database, "me")
    lock.take()
    looks: list[list[str]] = [
        ["status"],
        ["list"],
        ["schedules"],
        ["doctor"],
        *(["show", each] for each in ids.values()),
    ]
    acts = [["pause", "x"], ["retry", ids["bad"]], ["cancel", ids["later"]], ["list", "--task", HOSTILE], ["recover"]]
    for arguments in [*looks, *([*each, "--json"] for each in looks), *acts]:
        for columns in (40, 130):
            ran = taskmanager(*arguments, "--db", database, columns=columns)
            assert (ran.out + ran.err).replace("\n", "").isprintable(), (arguments, ran)
            assert "Traceback (most recent" not in ran.err
    assert "[red]日本" in taskmanager("show", ids["bad"], "--db", database).out
    lock.drop()


# Doctor. What needs another process is in tests/acceptance/test_second_terminal.py.


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
    """Ten looks, all well."""
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


# The command line itself.


def test_a_document_shows_and_steers_nothing() -> None:
    """JSON itself leaves C1 control characters and turns of the direction of writing as they are."""
    value = {"\x9b31m": "\u202e\x7f\U000e0001 \x1b]0;owned\x07 Grüße 日本 🎉\n"}
    text = as_document(value).decode()
    assert all(line.isprintable() for line in text.splitlines())
    assert json.loads(text) == value
    assert "Grüße 日本 🎉" in text
    assert json.loads(as_document(["\ud800"])) == ["?"]


def test_the_help_names_commands_that_exist() -> None:
    """It imports none of them, so it has a line for each by heart."""
    context = click.Context(cli)
    assert isinstance(cli, click.Group)
    for entry in (entry for entries in SECTIONS.values() for entry in entries):
        command = cli.get_command(context, entry.name)
        assert command is not None
        assert command.name == entry.name
        assert command.help
        assert 10 < len(entry.line) <= 70


def test_every_command_on_a_file_takes_db_and_json() -> None:
    """Whoever knows one knows all."""
    context = click.Context(cli)
    assert isinstance(cli, click.Group)
    for title, entries in SECTIONS.items():
        for entry in entries:
            command = cli.get_command(context, entry.name)
            assert command is not None
            commands = command.commands.values() if isinstance(command, click.Group) else [command]
            options = [{name for each in single.params for name in each.opts} for single in commands]
            assert title == "Try it, run it" or all(names >= {"--db", "--json"} for names in options), entry.name


def test_the_file_is_named_by_the_environment(
    written: tuple[Path, dict[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`--db` first, then `$TASKMANAGER_DB`, then tasks.db in the current directory."""
    monkeypatch.setenv("TASKMANAGER_DB", str(written[0]))
    assert len(taskmanager("list", "--json").document(list[RecordDocument])) == 4
    assert "no-such.db" in taskmanager("list", "--db", "no-such.db").err
    monkeypatch.delenv("TASKMANAGER_DB")
    monkeypatch.chdir(tmp_path)
    assert "there is no file tasks.db; name the application's database with --db" in taskmanager("list").err
    assert list(tmp_path.iterdir()) == []


def test_the_page_of_the_command_line_names_every_command_and_its_documents() -> None:
    """A command that is not there is not found; exit codes and JSON shapes are a promise."""
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
    for entries in SECTIONS.values():
        for entry in entries:
            assert re.search(rf"`{entry.name}\b", page), entry.name
    for document in (AnswerDocument, CheckDocument, DiagnosisDocument, RecoveryDocument):
        for field in document.__struct_fields__:
            assert f"`{field}`" in page, f"{document.__name__}.{field}"


def test_the_shell_completes_commands_and_statuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/command-line.md sets it up."""
    monkeypatch.setenv("_TASKMANAGER_COMPLETE", "bash_complete")
    for words, number, expected in (
        ("taskmanager re", "1", {"retry", "resume", "recover"}),
        ("taskmanager list --status FA", "3", {"FAILED"}),
        ("taskmanager show --js", "2", {"--json"}),
    ):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", number)
        assert {line.partition(",")[2] for line in taskmanager().out.splitlines()} == expected
