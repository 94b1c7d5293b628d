"""`pause`, `resume` and `schedules`: on the file of an application that has stopped, and beside one that runs."""

import asyncio
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from taskmanager import TaskManager
from taskmanager.cli import queues
from tests.unit.cli.documents import ShownDocument
from tests.unit.command_line import digest, taskmanager

FAR: Final = f"30 2 1 {(datetime.now(UTC).month + 5) % 12 + 1} *"


"""Months away, whenever the tests run: after whatever fires in an hour, and never while they run."""


class ScheduleDocument(msgspec.Struct, forbid_unknown_fields=True):
    """One schedule, as docs/command-line.md has it."""

    schedule_name: str
    task_name: str
    definition: str
    last_run_at: str | None
    next_run_at: str | None
    last_task_id: str | None
    run_count: int
    config_hash: str
    is_paused: bool
    paused_at: str | None
    is_declared: bool
    owner_id: str
    updated_at: str


def application(database: Path) -> TaskManager:
    manager = TaskManager(database)

    @manager.schedule(cron=FAR, timezone="Europe/Berlin", name="nightly", args=(7,))
    @manager.schedule(every=3600, name="hourly", args=(1,))
    @manager.task(name="app.jobs:report")
    async def report(n: int) -> int:
        return n

    return manager


def run(manager: TaskManager) -> None:
    async def work() -> None:
        async with manager:
            await manager.join()

    asyncio.run(work())


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A file with two schedules that have not fired yet."""
    run(application(tmp_path / "tasks.db"))
    return tmp_path / "tasks.db"


def documents(database: Path) -> dict[str, ScheduleDocument]:
    found = taskmanager("schedules", "--db", database, "--json").document(list[ScheduleDocument])
    return {each.schedule_name: each for each in found}


def test_schedules_are_listed_and_nothing_is_changed(database: Path) -> None:
    """Also while the application is down, which is said; in 80 columns and in many."""
    before = digest(database.parent)
    for columns in (80, 160):
        ran = taskmanager("schedules", "--db", database, columns=columns)
        assert (ran.code, ran.err) == (0, "")
        lines = ran.out.splitlines()
        assert max(map(len, lines)) <= columns
        assert lines[0].split()[:5] == ["schedule", "fires", "next", "last", "runs"]
        assert "every 1 h" in lines[1]
        assert f"{FAR} Europe/Berlin" in lines[2]
        assert lines[-1] == "no instance is running; schedules fire only while the application runs"
        assert ("app.jobs:report" in ran.out) == (columns > 80)
    assert digest(database.parent) == before


def test_a_file_without_schedules_is_no_error(tmp_path: Path) -> None:
    """An empty list is an answer."""
    run(TaskManager(tmp_path / "tasks.db"))
    ran = taskmanager("schedules", "--db", tmp_path / "tasks.db")
    assert (ran.code, ran.out) == (0, "no schedules\n")
    assert taskmanager("schedules", "--db", tmp_path / "tasks.db", "--json").document(list[ScheduleDocument]) == []


def test_a_schedule_is_paused_and_resumed(database: Path) -> None:
    """Over restarts; resumed, its next fire is reckoned when the application looks."""
    assert "schedule nightly is paused" in taskmanager("schedules", "pause", "nightly", "--db", database).out
    run(application(database))
    paused = documents(database)["nightly"]
    assert (paused.is_paused, paused.paused_at is not None) == (True, True)
    assert "paused" in taskmanager("schedules", "--db", database).out
    said = taskmanager("schedules", "resume", "nightly", "--db", database, "--json").document(dict[str, object])
    assert said == {"schedule_name": "nightly", "is_paused": False}
    assert documents(database)["nightly"].next_run_at is None


def test_a_schedule_is_run_by_hand_without_its_application(database: Path) -> None:
    """The file holds what is to be run; the next start runs it."""
    said = taskmanager("schedules", "run", "nightly", "--db", database, "--json").document(dict[str, str])
    assert documents(database)["nightly"].last_task_id == said["task_id"]
    manager = application(database)

    async def work() -> object:
        async with manager:
            return await manager.handle(said["task_id"])

    assert asyncio.run(work()) == 7
    assert documents(database)["nightly"].run_count == 1


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run", "weekly"], 1, "there is no schedule 'weekly'; there are: 'hourly', 'nightly'"),
        (["pause", "weekly"], 1, "there is no schedule 'weekly'"),
        (["resume", "weekly"], 1, "there is no schedule 'weekly'"),
        (["run"], 2, "Give the name of a schedule"),
        (["stop", "nightly"], 2, "'stop' is neither pause, resume nor run"),
    ],
)
def test_schedule_that_cannot_be_changed_is_one_line(
    database: Path, arguments: list[str], code: int, words: str
) -> None:
    """On stderr, with the exit code that tells a wrong command from a wrong name."""
    ran = taskmanager("schedules", *arguments, "--db", database)
    assert (ran.code, ran.out, ran.err.count("\n")) == (code, "", 1)
    assert words in ran.err


def test_a_schedule_that_no_running_instance_declares_is_shown_as_such(database: Path) -> None:
    """Its row is kept, and says why it does not fire."""
    without = TaskManager(database)

    async def beside() -> None:
        async with without:
            documents_now = await asyncio.to_thread(documents, database)
            assert not any(each.is_declared for each in documents_now.values())
            ran = await asyncio.to_thread(taskmanager, "schedules", "--db", database)
            assert ran.out.count("not declared") == 2

    asyncio.run(beside())


def test_of_very_many_the_next_ones_are_shown(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads a hundred thousand lines, and a program asks for JSON, where all of them are."""
    monkeypatch.setattr(queues, "MOST_SHOWN", 1)
    shown = taskmanager("schedules", "--db", database).out
    assert ("hourly" in shown) + ("nightly" in shown) == 1
    assert "and 1 more; --json has all of them" in shown
    assert len(documents(database)) == 2


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
