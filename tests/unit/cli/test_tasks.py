"""`list`, `show`, `retry` and `cancel`: what they show of tasks, what they change, and what they ask first."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from taskmanager import TaskManager, step
from tests.unit.cli.documents import INSTANT, AnswerDocument, RecordDocument, ShownDocument
from tests.unit.command_line import digest, statuses, taskmanager


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
        (["--error", "UNHANDLED_EXCEPTION", "--limit", "1"], ["worse"]),
        (["--tag", "user=1"], ["good"]),
        (["--tag", "user=1", "--tag", "kind=mail"], []),
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
    """What a person reads; the layout is compared in test_console_record.py."""
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


def test_steps_are_shown_kept_by_a_retry_and_forgotten_from_the_start(tmp_path: Path) -> None:
    """Through the command line alone: the file is all it has."""
    database, manager = tmp_path / "tasks.db", TaskManager(tmp_path / "tasks.db")

    async def charge(number: int) -> int:
        if number == 2:
            raise ValueError("no money")
        return number

    @manager.task(name="job", persist=True)
    async def job() -> None:
        await step.with_options(name="charge")(charge, 1)
        await step.with_options(name="second", key="k")(charge, 2)

    async def main() -> str:
        async with manager:
            handle = job.enqueue()
            await manager.join()
            return handle.task_id

    task_id = asyncio.run(main())
    out = taskmanager("show", task_id, "--db", database).out
    first, second = [line for line in out[out.index("\nSteps") :].splitlines() if "after" in line][:2]
    assert first.split()[0] == "1"
    assert "charge  after" in first
    assert second.split()[0] == "k"
    assert "UNHANDLED_EXCEPTION: ValueError:" in second
    shown = taskmanager("show", task_id, "--db", database, "--json").document(ShownDocument)
    told = [(each.number, each.key, each.result, each.error_code) for each in shown.steps]
    assert told[0] == (1, None, {"ok": 1}, None)
    assert told[1][:2] == (None, "k")
    assert taskmanager("retry", task_id, "--db", database).code == 0
    assert len(taskmanager("show", task_id, "--db", database, "--json").document(ShownDocument).steps) == 2
    taskmanager("cancel", task_id, "--db", database)
    assert taskmanager("retry", task_id, "--from-start", "--db", database).code == 0
    assert taskmanager("show", task_id, "--db", database, "--json").document(ShownDocument).steps == []


def test_doctor_names_tasks_that_come_near_the_limit_of_their_steps(tmp_path: Path) -> None:
    """Before they fail, while a successor can still be enqueued."""
    database, manager = tmp_path / "tasks.db", TaskManager(tmp_path / "tasks.db")

    @manager.task(name="job", persist=True)
    async def job() -> None:
        pass

    async def main() -> str:
        async with manager:
            handle = job.with_options(delay=3_600).enqueue()
            await handle.saved()
            return handle.task_id

    task_id = asyncio.run(main())
    assert "every unfinished task may record more" in taskmanager("doctor", "--db", database).out
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 8000)"
            " INSERT INTO taskmanager_steps (task_id, kind, number, key, name, started_at, attempts, is_final)"
            " SELECT ?, 'step', i, '', 'a', 1, 1, 0 FROM n",
            (task_id,),
        )
    ran = taskmanager("doctor", "--db", database)
    assert ran.code == 1
    assert "1 task near the limit" in ran.out
    assert "STEP_LIMIT" in ran.out
