"""The file that the dashboard is shown with has a bit of everything in it. No browser is needed to say so."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.shop import HOSTILE, LARGE_SIZE


@pytest.fixture(scope="module")
def rows(made_database: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(made_database)) as connection:
        yield connection


def words(rows: sqlite3.Connection, sql: str) -> set[str]:
    """The first column of what that selects."""
    return {word for word, *_ in rows.execute(sql)}


def test_content_has_tasks_of_every_status(rows: sqlite3.Connection) -> None:
    """None is left out, so that none is shown for the first time to a user."""
    assert words(rows, "SELECT DISTINCT status FROM taskmanager_tasks") == {
        "PENDING", "CLAIMED", "RUNNING", "COMPLETED", "FAILED", "CANCELLED", "EXPIRED", "INTERRUPTED",
    }  # fmt: skip


def test_content_has_workflows_that_go_on_and_that_have_ended(rows: sqlite3.Connection) -> None:
    """With one whose nodes are in every state at once."""
    assert words(rows, "SELECT DISTINCT status FROM taskmanager_workflows") >= {
        "RUNNING", "PAUSED", "COMPLETED", "FAILED",
    }  # fmt: skip
    running = "SELECT DISTINCT status FROM taskmanager_workflow_tasks WHERE workflow_id = 'weather-running'"
    assert words(rows, running) >= {"COMPLETED", "PENDING"}


def test_content_has_hostile_texts_in_every_place(rows: sqlite3.Connection) -> None:
    """As a value of a tag, as an argument, as the message of an error, and in the log of a task."""
    for text in HOSTILE.values():
        counts = rows.execute(
            "SELECT (SELECT count(*) FROM taskmanager_tasks, json_each(tags) WHERE value = :text),"
            " (SELECT count(*) FROM taskmanager_tasks, json_each(args) WHERE value = :text),"
            " (SELECT count(*) FROM taskmanager_tasks WHERE json_extract(log, '$[0].text') = :text),"
            " (SELECT count(*) FROM taskmanager_task_attempts WHERE error_message = 'ValueError: ' || :text)",
            {"text": text},
        ).fetchone()
        assert counts == (1, 2, 2, 1), text


def test_content_has_a_result_that_no_list_may_read(rows: sqlite3.Connection) -> None:
    """It is as large as a result may be expected to be."""
    (size,) = rows.execute("SELECT max(length(result)) FROM taskmanager_tasks").fetchone()
    assert size >= LARGE_SIZE


def test_content_is_spread_over_a_day(rows: sqlite3.Connection) -> None:
    """So that charts have something to draw."""
    hours = "SELECT DISTINCT completed_at / 3600000000 FROM taskmanager_tasks WHERE completed_at IS NOT NULL"
    assert len(words(rows, hours)) > 10
