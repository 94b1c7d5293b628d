"""What stands in one row never harms another: every column of every table holds what nobody would write."""

import asyncio
import io
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

import httpx
import pytest
from fastapi import FastAPI
from rich.console import Console

from taskmanager import TaskInfo, TaskManager, TaskStatus
from taskmanager.cli import database as cli_database
from taskmanager.integrations.fastapi import router
from tests.acceptance.odd_files import OTHERS, Odd, fill_healthy, fill_others, fill_tasks, made_file
from tests.unit.command_line import Ran, taskmanager

pytestmark = pytest.mark.anyio

EVERY: Final = 10_000
_CHECKED: Final = {"args", "kwargs", "task_options", "tags", "progress", "log"}
"""Columns whose text says what a task does, or is read by the library."""
_BYTES: Final = {"no UTF-8", "cut UTF-8", "raw surrogate"}
_NEVER_CLAIMED: Final = {"task_name", "enqueued_at", "status"}
"""Of a function that nobody knows, due in another millennium, or in no state that means anything."""


class OddFile:
    """The file, what its odd rows are, and the healthy rows that wait and run in it."""

    def __init__(self, path: Path, odd: list[Odd], ended: list[str], unfinished: list[str]) -> None:
        self.path = path
        self.odd = {each.task_id: each for each in odd}
        self.ended = ended
        self.unfinished = unfinished


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_database, "LOCK_PATIENCE_S", 0.0)


@pytest.fixture
def odd_file(tmp_path: Path) -> OddFile:
    """One file with all of it; nothing in it is paused, so that every queue runs."""
    with closing(asyncio.run(made_file(tmp_path / "tasks.db"))) as connection:
        odd = fill_tasks(connection)
        ended, free = fill_healthy(connection, "ended", 3), fill_healthy(connection, "free", 6)
        running = fill_healthy(connection, "running", 3)
        fill_others(connection, ended[0], tuple(OTHERS.keys() - {"taskmanager_queues"}))
        connection.execute("COMMIT")
    return OddFile(tmp_path / "tasks.db", odd, ended, [*free, *running])


def made_manager(path: Path) -> TaskManager:
    manager = TaskManager(path)

    @manager.task(persist=True, name="add", requeue_on_interrupt=True)
    async def add(number: int) -> int:
        return number

    return manager


def run(file: OddFile, *arguments: str) -> Ran:
    """A command that ends with an answer, or a refusal of one line."""
    ran = taskmanager(*arguments, "--db", file.path, columns=200)
    assert ran.code in (0, 1), (arguments, ran)
    assert ran.err.count("\n") <= 1, (arguments, ran)
    return ran


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_every_command_that_looks_answers(odd_file: OddFile, as_json: tuple[str, ...]) -> None:
    """A command shows what it can of a row, and the others as ever."""
    file = odd_file
    named = [each for each, odd in file.odd.items() if odd.column != "id"]
    assert run(file, "status", *as_json).code == 0
    assert run(file, "schedules", *as_json).code == 0
    assert "integrity" in run(file, "doctor", *as_json).out
    assert run(file, "backup", str(file.path.with_name("copy.db")), *as_json).code == 0
    listed = run(file, "list", "--limit", str(EVERY), *as_json).out
    assert [each for each in (*named, *file.ended, *file.unfinished) if each not in listed] == []
    for task_id in (*file.ended, *named[::13]):
        assert task_id in run(file, "show", task_id, *as_json).out


def test_every_command_that_acts_goes_on(odd_file: OddFile) -> None:
    """What can be ended is, and the healthy rows are dealt with whatever stands beside them."""
    file = odd_file
    for arguments in (
        ("recover",),
        ("cancel", "--task", "add", "--yes", "--json"),
        ("retry", "--status", "CANCELLED", "--yes", "--json"),
        ("cancel", "--task", "add", "--status", "PENDING", "--yes"),
        ("retry", "--task", "*", "--yes"),
        ("pause", "default"),
        ("resume", "default"),
        ("schedules", "run", "s-3"),
        ("schedules", "pause", "s-3"),
        ("purge", "--yes"),
    ):
        run(file, *arguments)
    left = run(file, "list", "--status", "COMPLETED", "--json").out
    assert [each for each in file.ended if each in left] == []
    assert [each for each in file.unfinished if each in left] == []


async def test_the_application_runs_what_is_healthy_and_ends_the_rest(odd_file: OddFile) -> None:
    """A start works, the healthy tasks run, every odd row is settled or shown, no duty fails, and a stop works."""
    file = odd_file
    manager = made_manager(file.path)
    async with manager:
        results = [await manager.handle(each).result(timeout=30) for each in file.unfinished]
        assert [each.ok_value for each in results] == [0, 1, 2, 3, 4, 5, 0, 1, 2]
        ending = [each for each, odd in file.odd.items() if _must_end(odd)]
        await asyncio.gather(*(manager.handle(each).result(timeout=60) for each in ending))
        infos = {each.task_id: each for each in await manager.list(limit=EVERY)}
        assert infos.keys() >= {*file.odd, *file.ended} - {each for each in file.odd if file.odd[each].column == "id"}
        for task_id, listed in infos.items():
            info = await manager.get(task_id, include_attempts=True)
            assert info is not None, listed
            if task_id in file.odd:
                _check(file.odd[task_id], info)
        assert sum((await manager.counts()).values()) >= len(infos)
        await _every_reading_road(manager)
        await _every_route(manager, file)
        assert manager.status().failing_duties == {}
    with closing(sqlite3.connect(file.path)) as connection:
        assert connection.execute("SELECT count(*) FROM taskmanager_tasks WHERE status = 'RUNNING'").fetchone() == (0,)


def _must_end(odd: Odd) -> bool:
    return odd.column != "id" and (odd.column not in _NEVER_CLAIMED or odd.kind in _BYTES)


def _check(odd: Odd, info: TaskInfo) -> None:
    """Whether this row became what the rule says."""
    if not _must_end(odd):
        return
    assert info.status.is_terminal, (odd, info.status)
    if odd.state == "ended" or odd.column in ("status", "id"):
        return
    if odd.kind in _BYTES and odd.column in (*_CHECKED, "task_name", "queue_name"):
        assert info.status is TaskStatus.FAILED, odd
        assert odd.column in (info.failed_reason or ""), (odd, info.failed_reason)
    if odd.column in _CHECKED - {"args", "kwargs"} and odd.kind in ("malformed", "deep", "closed deep"):
        assert info.status is TaskStatus.FAILED, odd
        assert odd.column in (info.failed_reason or ""), (odd, info.failed_reason)


async def _every_reading_road(manager: TaskManager) -> None:
    seen: list[str] = []
    before: str | None = None
    while page := await manager.list(limit=100, before=before):
        seen += [each.task_id for each in page]
        before = page[-1].task_id
        assert len(seen) < 2 * EVERY, "the pages never end"
    assert await manager.schedules()
    await manager.get_stale_tasks()
    await manager.mark_stale_tasks_as_failed()
    await manager.requeue_stale_claimed()
    Console(file=io.StringIO(), width=100).print(manager.console())


async def _every_route(manager: TaskManager, file: OddFile) -> None:
    app = FastAPI()
    app.include_router(router(manager, auth=None, tracebacks=True))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        for path in ("/tasks?limit=500", "/counts", "/schedules", "/healthz"):
            assert (await client.get(path)).status_code == 200, path
        for odd in list(file.odd.values())[::3]:
            if odd.column != "id":
                assert (await client.get(f"/tasks/{odd.task_id}")).status_code == 200, odd
