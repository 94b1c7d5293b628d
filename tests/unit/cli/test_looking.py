"""`list` and `show`: what they tell of tasks, on a terminal and as JSON, and that looking changes nothing."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.documents import INSTANT, RecordDocument, ShownDocument
from tests.unit.command_line import digest, taskmanager


def test_a_list_in_json_is_an_array_of_records(written: tuple[Path, dict[str, str]]) -> None:
    """Columns by their names, newest first, instants as ISO 8601 in UTC, JSON as what it holds; what may be large is
    null.
    """
    database, ids = written
    records = taskmanager("list", "--db", database, "--json").document(list[RecordDocument])
    assert [record.task_id for record in records] == [ids[name] for name in ("later", "worse", "bad", "good")]
    good = records[-1]
    assert (good.args, good.kwargs, good.tags, good.result, good.log) == (None, None, {"user": "1"}, None, None)
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
