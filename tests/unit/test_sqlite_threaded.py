"""The thread of one connection, and a loop that is closed without a word."""

import asyncio
import sqlite3
import threading
import weakref

import pytest

from taskmanager.store.sqlite.threaded import Threaded

pytestmark = pytest.mark.anyio


class Thing:
    """Something that can be collected."""


async def opened() -> Threaded:
    connection = Threaded(lambda: sqlite3.Connection(":memory:", check_same_thread=False))
    await connection
    return connection


async def test_thread_forgets_what_it_has_done_while_it_waits() -> None:
    """A future that it keeps would keep the task that waited, and all that this task holds open."""
    connection = await opened()
    thing, is_gone = Thing(), threading.Event()
    weakref.finalize(thing, is_gone.set)
    await connection.run(lambda _raw, _thing: None, thing)
    del thing
    assert await asyncio.to_thread(is_gone.wait, 20)
    await connection.close()


@pytest.mark.parametrize("fault", [sqlite3.OperationalError("no"), SystemExit(3)], ids=["error", "exit"])
async def test_thread_raises_where_it_is_awaited_and_goes_on(fault: BaseException) -> None:
    """Also what would end a thread: nobody would answer the next caller."""
    connection = await opened()

    def fails(_raw: sqlite3.Connection) -> None:
        raise fault

    with pytest.raises(type(fault)):
        await connection.run(fails)
    assert await connection.run(lambda raw: raw.execute("SELECT 7").fetchone()) == (7,)
    await connection.close()
    connection.join()
    assert not connection.has_thread


def test_stop_without_a_loop_ends_the_thread_and_makes_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the main thread aiosqlite would make one, which nobody closes."""
    connection = asyncio.run(opened())
    monkeypatch.setattr(asyncio, "get_event_loop", lambda: pytest.fail("asked for a loop"))
    connection.stop()
    connection.join()
    assert not connection.has_thread


def test_thread_ends_when_the_loop_that_waits_is_closed() -> None:
    """Quietly: there is nobody whom it could tell what it has done."""
    connection, may_end = asyncio.run(opened()), threading.Event()

    async def begin() -> None:
        asyncio.ensure_future(connection.run(lambda _raw: may_end.wait(20)))  # noqa: RUF006  # left in the middle
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()
    may_end.set()
    connection.join()
    assert not connection.has_thread
    connection.forget()
