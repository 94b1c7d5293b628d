"""What `taskmanager workflow` does to a whole graph, and what it refuses, on a file that the store has written."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from taskmanager.model.ids import node_task_id
from taskmanager.model.record import TaskWrite, expected_of
from taskmanager.store.sqlite import SqliteStore
from tests.unit.cli import workflow_file
from tests.unit.cli.rich_file import write_empty
from tests.unit.command_line import taskmanager


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with one workflow, of which the first node is free."""
    database = tmp_path / "tasks.db"
    write_empty(database)
    asyncio.run(_started(database))
    monkeypatch.chdir(tmp_path)
    return database


async def _started(database: Path) -> None:
    store = SqliteStore(database)
    await store.open()
    await store.start_workflow(workflow_file.graph(workflow_file.releasing(), "release-1", 7), 7)
    await store.close()


def rows(database: Path, query: str) -> list[Any]:
    """What another program reads."""
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(query).fetchall()


def test_paused_workflow_is_held_until_it_is_resumed(release: Path) -> None:
    """A second pause is refused, and changes nothing."""
    assert taskmanager("workflow", "pause", "release").out == "workflow release-1 is paused\n"
    assert rows(release, "SELECT status, claimed_by_worker_id FROM taskmanager_tasks") == [("PENDING", "held")]
    ran = taskmanager("workflow", "pause", "release-1")
    assert (ran.code, ran.out) == (1, "")
    assert "workflow release-1 is PAUSED; there is nothing to pause, and nothing was changed" in ran.err
    assert taskmanager("workflow", "resume", "release-1").out == "workflow release-1 goes on\n"
    assert rows(release, "SELECT status, claimed_by_worker_id FROM taskmanager_tasks") == [("PENDING", None)]


def test_cancelled_workflow_ends_at_once_where_nothing_runs(release: Path) -> None:
    """Its free task is CANCELLED with it, and the rest is skipped."""
    found = taskmanager("workflow", "cancel", "release-1", "--json").document(dict[str, str])
    assert found == {"workflow_id": "release-1", "status": "CANCELLED"}
    assert rows(release, "SELECT status FROM taskmanager_tasks") == [("CANCELLED",)]
    ran = taskmanager("workflow", "cancel", "release-1")
    assert "workflow release-1 is CANCELLED; there is nothing to cancel" in ran.err


def test_cancelled_workflow_ends_later_where_a_task_runs(release: Path) -> None:
    """Somebody has the task, so it is asked, and the answer says so."""
    with closing(sqlite3.connect(release)) as connection, connection:
        connection.execute(
            "UPDATE taskmanager_tasks"
            " SET status = 'RUNNING', start_count = 1, started_at = 7, claimed_by_worker_id = 'i'"
        )
    said = "workflow release-1 was asked to stop, and ends with what still runs of it\n"
    assert taskmanager("workflow", "cancel", "release-1").out == said
    assert rows(release, "SELECT status, cancel_requested_at IS NOT NULL FROM taskmanager_tasks") == [("RUNNING", 1)]
    assert "it ends when what still runs has ended" in taskmanager("workflow", "show", "release-1", columns=200).out


def test_retried_workflow_runs_again_what_has_failed(release: Path) -> None:
    """The failure has paused it, so its task is put back, and held until the workflow is resumed."""
    task_id = node_task_id("release-1", 0)
    assert taskmanager("cancel", task_id).code == 0
    assert rows(release, "SELECT status FROM taskmanager_workflows") == [("PAUSED",)]
    found = taskmanager("workflow", "retry", "release-1", "--json").document(dict[str, Any])
    assert found == {"workflow_id": "release-1", "retried": [task_id], "refused": []}
    assert rows(release, "SELECT status, claimed_by_worker_id FROM taskmanager_tasks") == [("PENDING", "held")]
    assert taskmanager("workflow", "resume", "release-1").code == 0
    assert rows(release, "SELECT status, claimed_by_worker_id FROM taskmanager_tasks") == [("PENDING", None)]
    assert rows(release, "SELECT status FROM taskmanager_workflows") == [("RUNNING",)]


def test_retry_says_what_a_paused_workflow_waits_for(release: Path) -> None:
    """Nobody has to guess why nothing runs then."""
    taskmanager("cancel", node_task_id("release-1", 0))
    said = "workflow release-1: 1 failed task put back to wait, until `taskmanager workflow resume release-1`\n"
    assert taskmanager("workflow", "retry", "release-1").out == said


def test_retry_takes_a_completed_task_whose_node_has_failed(release: Path) -> None:
    """Nobody has its value, so its node has failed, and by nothing else would the workflow go on."""
    task_id = node_task_id("release-1", 0)
    asyncio.run(_complete(release, task_id, '{"err":{"error_code":"RESULT_NOT_AVAILABLE","message":""}}'))
    assert rows(release, "SELECT status, error IS NULL FROM taskmanager_workflow_tasks LIMIT 1") == [("FAILED", 0)]
    found = taskmanager("workflow", "retry", "release-1", "--json").document(dict[str, Any])
    assert found == {"workflow_id": "release-1", "retried": [task_id], "refused": []}


async def _complete(database: Path, task_id: str, result: str) -> None:
    store = SqliteStore(database)
    await store.open()
    row = await store.fetch(task_id)
    assert row is not None
    ended = row._replace(status="COMPLETED", start_count=1, started_at=8, completed_at=9, updated_at=9, result=result)
    assert (await store.commit([TaskWrite(ended, expected_of(row))])).lost == {}
    await store.close()


def test_retry_of_a_workflow_without_a_failure_is_refused(release: Path) -> None:
    """There is nothing to run again, and nothing was changed."""
    ran = taskmanager("workflow", "retry", "release-1")
    assert ran.code == 1
    assert "workflow release-1 is RUNNING, and no task of it has failed" in ran.err
    assert rows(release, "SELECT status FROM taskmanager_tasks") == [("PENDING",)]


def test_doctor_finds_what_recover_puts_right(release: Path) -> None:
    """Somebody has ended a task by hand, so nothing follows from it; an application that runs would see to it."""
    with closing(sqlite3.connect(release)) as connection, connection:
        connection.execute(
            "UPDATE taskmanager_tasks SET status = 'COMPLETED', completed_at = 9, updated_at = 9, start_count = 1,"
            """ started_at = 8, result = '{"ok":"built"}'"""
        )
    found = taskmanager("doctor", columns=200).out
    assert "left half done: nodes whose task has ended (1)" in found
    assert "`taskmanager recover`, which puts it right" in found
    assert taskmanager("recover").code == 0
    assert "every one goes on by itself" in taskmanager("doctor", columns=200).out
    shown = taskmanager("workflow", "show", "release-1").out
    assert "1 completed, 5 waiting" in shown


def test_doctor_and_status_say_how_a_paused_workflow_goes_on(release: Path) -> None:
    """A person has paused it, or a failure: nothing but a person lets it go on."""
    taskmanager("workflow", "pause", "release-1")
    found = taskmanager("doctor", columns=200).out
    assert "paused: release-1" in found
    assert "`taskmanager workflow resume ID` lets it go on" in found
    seen = taskmanager("status", columns=100).out
    assert "! workflow release-1 is paused\n   to go on: taskmanager workflow resume release-1" in seen
    assert "1 waiting" in seen  # held by its workflow, and by no instance that could have died
