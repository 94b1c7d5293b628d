"""The thread of one connection. It does whole functions, and it lets go when its event loop is closed without a word.

The only module that uses private names of aiosqlite, for three reasons. A transaction made of separate awaited calls
costs a thread hop for each, and a cancelled await would leave it half done with the lock held. aiosqlite's thread keeps
the last future while it waits for work, so a start that was left in the middle could never be collected, nor the thread
ever end. And where no loop runs, aiosqlite would make one, and leave it open.
"""

import asyncio
import sqlite3
import threading
from asyncio import _get_running_loop as _running_loop  # None outside of one, where get_running_loop() would raise
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeVar, TypeVarTuple

import aiosqlite
from aiosqlite.core import _STOP_RUNNING_SENTINEL as _STOP
from aiosqlite.core import set_exception, set_result

THREAD_ENDS_S: Final = 1.0
_Future = asyncio.Future[Any]
_Queue = SimpleQueue[tuple[_Future | None, Callable[[], Any]]]
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class Threaded(aiosqlite.Connection):
    """A connection that its own thread opens, uses and closes. Await it to open it."""

    def __init__(self, connector: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(connector, iter_chunk_size=1)  # no statement is iterated
        # Not awaited at the interpreter's exit: a store that nobody closed must not hold it up, and threads that are no
        # daemons are joined before any exit hook could end them.
        self._thread = threading.Thread(target=_work, args=(self._tx,), name="taskmanager-store", daemon=True)

    @property
    def has_thread(self) -> bool:
        """Whether its thread lives. It has ended when it could not tell its loop, because that is closed."""
        return self._thread.is_alive()

    async def run(self, work: Callable[[sqlite3.Connection, *Ts], R], *args: *Ts) -> R:
        """Run `work(connection, *args)` in the thread, to its end even when the caller is cancelled."""
        result: R = await self._execute(work, self._conn, *args)  # type: ignore[no-untyped-call]  # aiosqlite's
        return result

    def begin(
        self, loop: asyncio.AbstractEventLoop, work: Callable[[sqlite3.Connection, *Ts], R], *args: *Ts
    ) -> "asyncio.Future[R]":
        """Begin the same from any thread, for `loop`, and wait for nothing."""
        result: asyncio.Future[R] = asyncio.Future(loop=loop)
        self._tx.put_nowait((result, partial(work, self._conn, *args)))
        return result

    def stop(self) -> _Future | None:
        """Close the connection and end its thread, when that has done what it is at."""
        if _running_loop() is not None:
            return super().stop()
        self._running = False
        self._tx.put_nowait((None, self._close_and_stop))
        return None

    def join(self) -> None:
        """Wait until the thread ends."""
        if self._thread.is_alive():
            self._thread.join(THREAD_ENDS_S)

    def forget(self) -> None:
        """Forget the connection, which somebody else has closed: aiosqlite would warn that nobody has."""
        self._connection = None

    def _close_and_stop(self) -> object:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        return _STOP


def _work(queue: _Queue) -> None:
    while _work_once(*queue.get()):
        pass  # what was done is forgotten here, with the frame that did it


def _work_once(future: _Future | None, function: Callable[[], Any]) -> bool:
    """Do it, and tell its loop. Return False when there is no more to do."""
    tell: Callable[[_Future, Any], None] = set_result
    try:
        found = function()
    except BaseException as error:  # noqa: BLE001  # raised where it is awaited
        tell, found = set_exception, error
    if future is not None:
        try:
            future.get_loop().call_soon_threadsafe(tell, future, found)
        except RuntimeError:  # the loop is closed
            return False
    return found is not _STOP
