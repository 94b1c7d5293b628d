"""The thread of one connection, and a loop that is closed without a word."""

import asyncio
import sqlite3
import threading
import weakref
from pathlib import Path

import pytest

from taskmanager import StoreUnavailable
from taskmanager.store.sqlite.connection import Connection, configure_reader, connect

pytestmark = pytest.mark.anyio


class Thing:
    """Something that can be collected."""


async def opened(folder: Path) -> Connection:
    path = folder / "tasks.db"
    path.touch()
    return await connect(str(path), configure_reader)


async def test_thread_forgets_what_it_has_done_while_it_waits(tmp_path: Path) -> None:
    """A future that it keeps would keep the task that waited, and all that this task holds open."""
    connection = await opened(tmp_path)
    thing, is_gone = Thing(), threading.Event()
    weakref.finalize(thing, is_gone.set)
    await connection.hop(lambda _raw, _thing: None, thing)
    del thing
    assert await asyncio.to_thread(is_gone.wait, 20)
    await connection.close()


@pytest.mark.parametrize("fault", [ValueError("no"), SystemExit(3)], ids=["error", "exit"])
async def test_thread_raises_where_it_is_awaited_and_goes_on(tmp_path: Path, fault: BaseException) -> None:
    """Also what would end a thread: nobody would answer the next caller."""
    connection = await opened(tmp_path)

    def fails(_raw: sqlite3.Connection) -> None:
        raise fault

    with pytest.raises(type(fault)):
        await connection.hop(fails)
    assert await connection.hop(lambda raw: raw.execute("SELECT 7").fetchone()) == (7,)
    await connection.close()
    await asyncio.to_thread(connection._inner._thread.join, 20)
    assert not connection.has_thread


async def test_caller_that_is_cancelled_gets_no_answer_and_others_do(tmp_path: Path) -> None:
    """The work is done to its end. Its result has nobody to go to, which is no fault of the thread."""
    connection, may_end = await opened(tmp_path), threading.Event()
    done: list[int] = []

    def work(_raw: sqlite3.Connection) -> None:
        may_end.wait(20)
        done.append(1)

    waiting = asyncio.ensure_future(connection.hop(work))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    may_end.set()
    assert await connection.hop(lambda _raw: done) == [1]
    await connection.close()


@pytest.mark.parametrize("is_late", [False, True])
async def test_close_refuses_what_has_not_begun_in_time(
    tmp_path: Path, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is under way comes to its end: a stop waits for one lock of somebody else, and not for those behind it."""
    monkeypatch.setattr("taskmanager.store.sqlite.connection.CLOSE_PATIENCE_S", 0.05 if is_late else 20.0)
    connection, may_end, is_at_work = await opened(tmp_path), threading.Event(), threading.Event()

    def works(_raw: sqlite3.Connection) -> str:
        is_at_work.set()
        may_end.wait(20)
        return "done"

    first, *others = [asyncio.ensure_future(connection.hop(works)) for _ in range(4)]
    await asyncio.to_thread(is_at_work.wait, 20)
    if not is_late:
        may_end.set()
    await connection.let_end()
    may_end.set()
    await connection.close()
    assert await first == "done"
    found = await asyncio.gather(*others, return_exceptions=True)
    assert [type(each) for each in found] == [StoreUnavailable if is_late else str] * 3


def test_end_without_a_loop_ends_the_thread_and_makes_no_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the main thread that would make one which nobody closes."""
    connection = asyncio.run(opened(tmp_path))
    monkeypatch.setattr(asyncio, "get_event_loop", lambda: pytest.fail("asked for a loop"))
    connection.end()
    assert not connection.has_thread


def test_thread_ends_when_the_loop_that_waits_is_closed(tmp_path: Path) -> None:
    """Quietly: there is nobody whom it could tell what it has done."""
    connection, may_end = asyncio.run(opened(tmp_path)), threading.Event()

    async def begin() -> None:
        asyncio.ensure_future(connection.hop(lambda _raw: may_end.wait(20)))  # noqa: RUF006  # left in the middle
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()
    may_end.set()
    connection._inner._thread.join(20)
    assert not connection.has_thread
    connection.end()
