"""The deadline of plain ends is kept by a thread while the event loop is blocked."""

import asyncio
import sqlite3
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from taskmanager import TaskManager, TaskStatus
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.engine.write import commits
from taskmanager.engine.write.writer import Writer
from taskmanager.model.errors import StoreUnavailable
from taskmanager.model.record import Write
from taskmanager.store.protocol import CommitReport
from tests.unit.engine_lives import Ticks, new_live
from tests.unit.engine_worlds import OpenStore, happens
from tests.unit.test_engine_writer import NEVER_S, Listener, start, until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

PATIENCE_S = 20.0


def block_until_file_says(path: Path, task_id: str, status: str) -> None:
    """Hold the event loop, as code of an application does, until another connection finds that status."""
    until_s = time.monotonic() + PATIENCE_S
    with sqlite3.connect(path) as connection:
        while True:
            query = "SELECT status FROM taskmanager_tasks WHERE id = ?"
            found = connection.execute(query, (task_id,)).fetchone()
            if found == (status,):
                break
            assert time.monotonic() < until_s, f"the file says {found}"
    connection.close()


async def test_plain_end_is_committed_while_the_loop_is_blocked(tmp_path: Path) -> None:
    """Or a task that has ended would be taken for one of which the process died."""
    path = tmp_path / "tasks.db"
    manager = TaskManager(path)

    @manager.task(persist=True)
    async def work() -> int:
        return 7

    async with manager:
        handle = work.enqueue()
        await happens(lambda: handle.status is TaskStatus.COMPLETED)
        block_until_file_says(path, handle.task_id, "COMPLETED")
        assert await handle == 7
        others = [work.enqueue() for _ in range(50)]
        await happens(lambda: all(each.status is TaskStatus.COMPLETED for each in others))
        block_until_file_says(path, others[-1].task_id, "COMPLETED")
        await manager.flush()
        info = await manager.get(others[-1].task_id, include_attempts=True)
        assert info is not None
        assert [each.attempt for each in info.attempts or ()] == [1]
        assert manager.status().unsaved_count == 0


class ThreadedStore(OpenStore):
    """Says that it works in a thread; what is begun happens when it is awaited, as the script says."""

    works_in_thread = True

    def __init__(self, *script: str) -> None:
        super().__init__()
        self.script = list(script)
        self.begun: list[list[str]] = []

    def begin_commit(
        self, writes: Sequence[Write], loop: asyncio.AbstractEventLoop
    ) -> Coroutine[Any, Any, CommitReport]:
        word = self.script.pop(0) if self.script else ""
        if word == "refuse":
            raise StoreUnavailable("as the script says")
        self.begun.append([write.task_id for write in writes])
        return self._finish(writes, word)

    async def _finish(self, writes: Sequence[Write], word: str) -> CommitReport:
        if word == "fail":
            raise StoreUnavailable("as the script says")
        return await self.commit(writes)


def watched(store: ThreadedStore, clock: Ticks) -> tuple[Writer, Listener]:
    """A writer whose loop never takes a plain end by itself: for its thread, that is a blocked loop."""
    writer, listener = Writer(store, clock, commit_interval_s=0.0, snapshot_interval_s=NEVER_S), Listener()
    writer.start(listener, watches_loop=True)
    writer.patience.begin = lambda: None  # type: ignore[method-assign]
    return writer, listener


async def ended(writer: Writer, task_id: str) -> LiveTask:
    """A task whose run is in the store, and whose end waits."""
    live = new_live(task_id=task_id)
    start(live)
    writer.mark(live)
    await until(lambda: live.saving.committed is not None)
    live.succeed(None, 9)
    live.result_text = "{}"
    writer.end(live)
    return live


@pytest.mark.parametrize("script", [(), ("refuse",), ("fail",)])
async def test_late_end_is_written_once_whatever_becomes_of_its_commit(
    script: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that cannot be begun is tried again; one that fails is put back and written by the loop."""
    monkeypatch.setattr(commits, "LATE_AGAIN_S", 0.001)
    store = ThreadedStore(*script)
    writer, listener = watched(store, Ticks())
    live = await ended(writer, "a")
    await happens(lambda: not writer.unsaved_count)
    assert store.begun == [["a"]]
    assert [word for word, *_ in listener.heard if word == "committed"] == ["committed"] * 2
    assert [each.attempt for each in await store.fetch_attempts("a")] == [1]
    assert live.attempts_due == ()
    assert await writer.close(1.0) == 0


async def test_late_end_that_has_changed_since_is_written_once_more() -> None:
    """Its file was replaced, for example, while its commit was on the way to the one before."""
    store = ThreadedStore()
    writer, _ = watched(store, Ticks())
    live = await ended(writer, "a")
    assert writer.late_ends is not None
    block_until_begun(writer)
    store.drop(store.live)
    writer.lose_everything_committed([live])
    await happens(lambda: not writer.unsaved_count)
    row = await store.fetch("a")
    assert row is not None
    assert row.status == "COMPLETED"
    assert await writer.close(1.0) == 0


def block_until_begun(writer: Writer) -> None:
    """Hold the event loop until the thread has begun a commit."""
    until_s = time.monotonic() + PATIENCE_S
    while writer.late_ends is None or writer.late_ends.late is None:
        assert time.monotonic() < until_s


async def test_late_end_is_put_back_when_the_loop_is_left() -> None:
    """It may be in the store or not; who writes in the place of the loop finds out."""
    store = ThreadedStore()
    writer, _ = watched(store, Ticks())
    live = await ended(writer, "a")
    block_until_begun(writer)
    writer.leave_loop()
    assert live.saving.is_urgent
    assert [state.status for state in live.saving.in_doubt] == ["COMPLETED"]
    assert [each.attempt for each in live.attempts_due] == [1]
    assert writer.unsaved_count == 1


async def test_nothing_is_begun_late_after_the_close() -> None:
    """The connection is closed next."""
    store = ThreadedStore()
    writer, _ = watched(store, Ticks())
    writer.stop_watching_loop()
    await ended(writer, "a")
    assert writer.late_ends is not None
    writer.late_ends.watch()
    assert await writer.close(1.0) == 0
    assert store.begun == []
