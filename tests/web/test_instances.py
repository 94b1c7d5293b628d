"""The page of instances, and what it does for the work of the dead."""

import asyncio
import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from taskmanager.console.overview import Health
from taskmanager.store.file_place import FilePlace
from taskmanager.store.sql.loads import Load
from taskmanager.web.app import file_site, pages_of
from taskmanager.web.guard import Guard
from taskmanager.web.instances import cards_of, fate_of, state_of
from tests.unit.cli import rich_file
from tests.unit.console_overviews import BAD_DAY, NOW, instance
from tests.web.visitor import Visitor, manager_on, visit

pytestmark = pytest.mark.anyio


async def test_instance_is_shown_with_its_process_and_lanes(tmp_path: Path) -> None:
    """Whoever is on call finds the process that a row is about."""
    manager = manager_on(tmp_path, instance_name="api <1>")
    async with manager, visit(manager) as visitor:
        page = await visitor.text("instances")
    assert "api &lt;1&gt;" in page
    assert "Runs <strong>every queue</strong>" in page
    assert 'aria-label="Lane async"' in page


async def test_work_of_the_dead_is_given_back_by_the_form(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At once, although the application that would do it is down; the living keep theirs."""
    database = tmp_path / "tasks.db"
    await asyncio.to_thread(rich_file.write, database)
    pages = pages_of(file_site(FilePlace(database), title="tasks"))

    def held_by(owner: str) -> int:
        with closing(sqlite3.connect(database)) as connection:
            query = "SELECT count(*) FROM taskmanager_tasks WHERE claimed_by_worker_id = ?"
            found: int = connection.execute(query, (owner,)).fetchone()[0]
            return found

    caplog.set_level(logging.INFO, "taskmanager")
    before = held_by(rich_file.ALIVE)
    with rich_file.living(database):
        async with Visitor(Guard(pages, lambda _request: "act", read_only=False, title="tasks")) as visitor:
            assert "The next start takes them over" in await visitor.text("instances")
            assert (await visitor.post("instances/recover", {})).status_code == 303
            assert "of dead instances recovered." in await visitor.text("instances")
    assert (held_by(rich_file.DEAD), held_by(rich_file.ALIVE)) == (0, before)
    (told,) = [each.getMessage() for each in caplog.records if each.getMessage().startswith("dashboard: ")]
    assert told.endswith(f" of dead instances: {rich_file.DEAD}")


async def test_recovery_with_nobody_dead_says_that_there_was_nothing(tmp_path: Path) -> None:
    """A press too many does no harm."""
    manager = manager_on(tmp_path)
    async with manager, visit(manager) as visitor:
        answer = await visitor.post("instances/recover", {})
        assert (answer.status_code, answer.headers["location"]) == (303, "../instances")
        assert "There was nothing to recover." in await visitor.text("instances")


def test_work_of_a_dead_instance_is_taken_over_by_whoever_lives() -> None:
    """Or by the next start, if nobody does."""
    dead = instance("web", 812, Health.DEAD, held_count=4)
    assert fate_of(dead, is_taken_over=True).startswith("A living instance takes them over")
    assert fate_of(dead, is_taken_over=False).startswith("The next start takes them over")
    assert fate_of(instance("web", 812), is_taken_over=True) == ""


def test_instance_that_cannot_write_or_is_stopping_says_so() -> None:
    """It is alive, which is not all there is to say."""
    assert state_of(instance("api", 77, degraded_since=NOW)) == "storage degraded"
    assert state_of(instance("api", 77, is_stopping=True)) == "stopping"
    assert state_of(instance("api", 77, Health.FROZEN, is_stopping=True)) == "frozen"


def test_load_is_shown_of_the_instance_that_has_told_it() -> None:
    """Memory and processor are in the file only for instances that write them."""
    loads = {"worker-9013": Load(NOW, 80.0, 0.0, 12.0)}
    assert [each.load for each in cards_of(BAD_DAY, loads)] == [None, loads["worker-9013"], None]
