"""Where the dashboard looks."""

import asyncio
import threading
from contextlib import closing
from pathlib import Path

import pytest

from taskmanager import TaskManager
from taskmanager.console import observer
from taskmanager.store.file_place import FilePlace
from taskmanager.store.sql import statistics
from taskmanager.store.sql.session import Session
from taskmanager.store.sqlite.session import SqliteSession
from taskmanager.store.statistics import Statistics
from taskmanager.web.source import Source
from tests.sessions import connect
from tests.web.visitor import manager_on, visit

pytestmark = pytest.mark.anyio


def sum_of(connection: Session, one: int, *, other: int) -> int:
    found: int = connection.execute("SELECT ? + ?", (one, other)).fetchone()[0]
    return found


async def test_look_passes_what_is_asked_behind_the_connection(tmp_path: Path) -> None:
    """The functions that read a file take the connection first, and what is asked after it."""
    async with manager_on(tmp_path):
        source = Source(FilePlace(tmp_path / "tasks.db"))
        assert await source.read(sum_of, 1, other=2) == 3
        assert await source.look(sum_of, 2, other=3) == 5


@pytest.mark.parametrize("is_running", [True, False])
async def test_outcome_of_an_action_is_seen_behind_a_look_that_was_going_on(
    tmp_path: Path, is_running: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That look may have read the file before the action, and end behind it. Its answer is not kept."""
    manager = manager_on(tmp_path)
    source = Source(FilePlace(tmp_path / "tasks.db"), manager if is_running else None)
    read = observer.statistics

    def pausing(connection: SqliteSession, now: int) -> Statistics:
        found = read(connection, now)
        with closing(connect(tmp_path / "tasks.db")) as other, other:
            other.execute("INSERT OR IGNORE INTO taskmanager_queues (queue_name, paused_at) VALUES ('mail', 1)")
        source.look_again()
        return found

    async with manager:
        await source.overview()
        source.look_again()
        for module in (observer, statistics):
            monkeypatch.setattr(module, "statistics", pausing)
        await source.overview()
        for module in (observer, statistics):
            monkeypatch.setattr(module, "statistics", read)
        assert [queue.queue_name for queue in (await source.overview()).queues if queue.is_paused] == ["mail"]


async def test_manager_in_memory_of_another_loop_is_not_acted_on() -> None:
    """It would never hear of a task that is put back in its memory from here, and nobody would run it."""
    manager, ids, ended = TaskManager(None), list[str](), threading.Event()

    @manager.task
    async def fail() -> None:
        raise ValueError("no")

    async def run(begun: threading.Event) -> None:
        async with manager:
            handle = fail.enqueue()
            await handle.result()
            await manager.flush()
            ids.append(handle.task_id)
            begun.set()
            await asyncio.to_thread(ended.wait)

    begun = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(run(begun)))
    thread.start()
    try:
        await asyncio.to_thread(begun.wait)
        async with visit(manager) as visitor:
            assert (await visitor.post(f"tasks/{ids[0]}/retry", {}, page="tasks")).status_code == 503
            assert "Failed" in await visitor.text(f"tasks/{ids[0]}")
    finally:
        ended.set()
        await asyncio.to_thread(thread.join)


@pytest.mark.parametrize("has_file", [True, False])
async def test_memory_only_tasks_are_listed_as_soon_as_they_have_ended(tmp_path: Path, has_file: bool) -> None:
    """The manager writes them a minute later. Whoever looks at failures must not read that there is none."""
    manager = manager_on(tmp_path) if has_file else TaskManager(None)

    @manager.task
    async def fail() -> None:
        raise LookupError("nobody is there")

    async with manager, visit(manager) as visitor:
        await fail.enqueue().result()
        for page in ("tasks", "failures"):
            assert "nobody is there" in await visitor.text(page)


async def test_page_is_shown_while_history_cannot_be_written(tmp_path: Path) -> None:
    """A file that is locked can be read, and the page says what is in it."""
    manager = manager_on(tmp_path)

    @manager.task
    async def end() -> None: ...

    async with manager, visit(manager) as visitor:
        with closing(connect(tmp_path / "tasks.db")) as other:
            other.execute("BEGIN IMMEDIATE")
            await end.enqueue()
            assert "Tasks" in await visitor.text("tasks")
