"""What every command says to bad input, and to a file that cannot be used or that somebody else has written into."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from taskmanager.cli.options import as_document
from taskmanager.store.sqlite.presence import InstanceLock
from tests.unit.command_line import digest, taskmanager


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
        (["list", "--tag", "user"], 2, "'user' is no tag with a value; write NAME=VALUE"),
        (["list", "--limit", "0"], 2, "--limit"),
        (["list", "--limit", "all"], 2, "'all' is not a whole number"),
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


@pytest.mark.parametrize("command", ["status", "list", "watch", "doctor", "backup copy.db"])
def test_the_root_directory_is_refused_like_any_other(command: str) -> None:
    """It has an empty name, to which Python appends nothing: a file beside it has none either."""
    ran = taskmanager(*command.split(), "--db", Path("/"))
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (1, "", 1), ran.err
    assert "give the path of the database" in ran.err


HOSTILE: Final = "\x1b[2J\x1b]0;owned\x07\u202e[red]日本\u0301[/] [bold\r\n\t\x9b31m"


def test_foreign_text_in_the_file_is_shown_and_not_obeyed(
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


def test_a_document_shows_and_steers_nothing() -> None:
    """JSON itself leaves C1 control characters and turns of the direction of writing as they are."""
    value = {"\x9b31m": "\u202e\x7f\U000e0001 \x1b]0;owned\x07 Grüße 日本 🎉\n"}
    text = as_document(value).decode()
    assert all(line.isprintable() for line in text.splitlines())
    assert json.loads(text) == value
    assert "Grüße 日本 🎉" in text
    assert json.loads(as_document(["\ud800"])) == ["?"]
