"""What the pages do to many tasks, and what the log says of it."""

import asyncio
import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from starlette.requests import Request

from taskmanager.console import acts
from taskmanager.model.record import TaskRow
from taskmanager.store.file_place import FilePlace
from taskmanager.web.acting import BATCH, act, retry_way
from taskmanager.web.app import file_site, pages_of
from taskmanager.web.site import Viewer
from tests.web.rows import DATABASE, first_failure, multiply, query

pytestmark = pytest.mark.anyio
COPIES = [f"copy-{number:07}" for number in range(1, 2 * BATCH + 1)]


def request_on(folder: Path) -> Request:
    """Return a request of somebody who may act on the file of this folder."""
    app = pages_of(file_site(FilePlace(folder / DATABASE), title="shop"))
    return Request({"type": "http", "app": app, "taskmanager.viewer": Viewer("act", "ada", "t" * 32)})


def told(caplog: pytest.LogCaptureFixture) -> dict[str, list[str]]:
    """Return what the log says was done, and to which tasks."""
    lines = [each.getMessage().split(": ", 3)[2:] for each in caplog.records if "dashboard: ada: " in each.getMessage()]
    found: dict[str, list[str]] = {}
    for what, names in lines:
        found.setdefault(what, []).extend(names.split(", "))
    return found


def put_back(folder: Path) -> list[object]:
    found = query(folder, "SELECT id FROM taskmanager_tasks WHERE status = 'PENDING' ORDER BY id")
    return [task_id for (task_id,) in found]


async def test_action_on_a_file_that_is_locked_tells_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first half has happened: the page goes on behind it, and the log names each task of it."""
    await first_failure(tmp_path)
    multiply(tmp_path, len(COPIES))
    monkeypatch.setattr(acts, "WRITE_PATIENCE_S", 0.0)
    caplog.set_level(logging.INFO, "taskmanager")
    with closing(sqlite3.connect(tmp_path / DATABASE, isolation_level=None)) as other:

        def fits(row: TaskRow) -> bool:
            if row.task_id == COPIES[BATCH]:
                other.execute("BEGIN IMMEDIATE")
            return True

        answers = await act(request_on(tmp_path), retry_way(), COPIES, fits=fits)
        other.execute("ROLLBACK")
    assert [answer.task_id for answer in answers if answer.done] == COPIES[:BATCH] == put_back(tmp_path)
    assert told(caplog) == {"retried": COPIES[:BATCH], "perhaps retried, without an answer": COPIES[BATCH:]}


async def test_action_that_is_broken_off_is_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A server that stops gives up its requests. What they were writing arrives all the same."""
    await first_failure(tmp_path)
    multiply(tmp_path, len(COPIES))
    caplog.set_level(logging.INFO, "taskmanager")

    def fits(row: TaskRow) -> bool:
        if row.task_id == COPIES[-1]:
            current = asyncio.current_task()
            assert current is not None
            current.cancel()
        return True

    acting = asyncio.create_task(act(request_on(tmp_path), retry_way(), COPIES, fits=fits))
    with pytest.raises(asyncio.CancelledError):
        await acting
    named = told(caplog)
    assert set(put_back(tmp_path)) <= set(named["retried"] + named["perhaps retried, without an answer"])
    assert named["retried"] == COPIES[:BATCH]
