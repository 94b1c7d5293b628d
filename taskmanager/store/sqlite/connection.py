"""One SQLite connection in its thread: how it is opened, used in one hop, and left alone after a fork."""

import asyncio
import os
import sqlite3
import threading
from asyncio import _get_running_loop as _running_loop  # None outside of one, where get_running_loop() would raise
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, Literal, NoReturn, TypeVar, TypeVarTuple

import aiosqlite
from aiosqlite.core import _STOP_RUNNING_SENTINEL as _STOP
from aiosqlite.core import set_exception, set_result

from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.model.gil import LendingUntil
from taskmanager.model.wording import MORE_THREADS, remedy
from taskmanager.store.sql.rows import text_of
from taskmanager.store.sqlite.files import IS_FORKED, FileConnection, open_existing
from taskmanager.store.sqlite.forks import new_guard
from taskmanager.store.sqlite.session import BUSY_TIMEOUT_S, SqliteSession, primary_code

Synchronous = Literal["full", "normal"]
R = TypeVar("R")
Ts = TypeVarTuple("Ts")

_Future = asyncio.Future[Any]
_Queue = SimpleQueue[tuple[_Future | None, Callable[[], Any]]]

THREAD_ENDS_S: Final = 1.0
CLOSE_PATIENCE_S: Final = 0.2
MINIMUM_SQLITE: Final = (3, 37, 0)
INLINE_TIMEOUT_S: Final = 0.5
"""The same while the program waits for it at its end."""
OPEN_PATIENCE_S: Final = 30.0
_OPEN_PAUSE_S: Final = 0.05
CACHED_STATEMENTS: Final = 256
WAL_LIMIT_BYTES: Final = 64 * 1024 * 1024
_CACHE_KIB: Final = 16_384
_FILE_MODE: Final = 0o600

_TRANSIENT: Final = {
    sqlite3.SQLITE_BUSY: "another connection holds its lock (`taskmanager doctor` says whose); close that program or "
    "let it finish, then try again",
    sqlite3.SQLITE_LOCKED: "a table is locked by another statement; try again",
    sqlite3.SQLITE_FULL: "the disk is full; free some space and the store goes on",
    sqlite3.SQLITE_READONLY: "it is read-only; make the file and its directory writable for this user",
    sqlite3.SQLITE_IOERR: "the disk reports an error; check the volume",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; check that the path exists, that this user may read and write it, "
    "and that there is room for more files beside it (`df -i`)",
    sqlite3.SQLITE_PERM: "access is denied; make the file readable and writable for this user",
    sqlite3.SQLITE_NOMEM: "memory ran out; free some and try again",
    sqlite3.SQLITE_PROTOCOL: "its lock protocol is contended; try again",
    sqlite3.SQLITE_INTERRUPT: "the statement was interrupted; try again",
}
# SQLite reports damage and a disk that cannot be read for a while alike. A file that opened well may be well again.
_MAY_BE_UNREADABLE: Final = (
    "it is damaged, or the disk cannot be read; check the volume, and restore a backup if that is well"
)
_BROKEN: Final = {
    sqlite3.SQLITE_NOTADB: "it is not a database; choose another path, or move that file away",
    sqlite3.SQLITE_CORRUPT: "it is damaged; move it away and restore a backup, or save what can be read with "
    "`sqlite3 FILE .recover`",
}


def has_no_room(error: StoreError) -> bool:
    """Whether a write found the disk full, or its quota: some file systems say only that it failed."""
    cause = error.__cause__
    return isinstance(cause, sqlite3.Error) and primary_code(cause) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


def translate(path: str, error: sqlite3.Error, *, was_well: bool = False) -> StoreError:
    """The one place where an error of the driver becomes ours. `was_well`: the file has been opened and read."""
    code = primary_code(error)
    if was_well and code in _BROKEN:
        return StoreUnavailable(f"{path} is not available ({error}): {_MAY_BE_UNREADABLE}")
    if code in _TRANSIENT:
        return StoreUnavailable(f"{path} is not available ({error}): {_TRANSIENT[code]}")
    if code in _BROKEN:
        return StoreError(f"{path} cannot be used ({error}): {_BROKEN[code]}")
    return StoreError(f"{path} refused a statement ({error}); run `taskmanager doctor --db {path}`")


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Translate the errors of statements on a database that has been opened and read."""
    try:
        yield
    except SqliteSession.faults as error:
        raise of_statement(path, error) from error


def of_statement(path: str, error: Exception) -> StoreError:
    """Return what a statement on a database that has been opened and read has raised, as an error of ours."""
    if isinstance(error, sqlite3.Error):
        return translate(path, error, was_well=True)
    return StoreError(f"{path} cannot hold that value: {error}")


class Threaded(aiosqlite.Connection):
    """A connection that its own thread opens, uses and closes. Await it to open it. It does whole functions.

    It uses private names of aiosqlite, for three reasons. A transaction made of separate awaited calls costs a thread
    hop for each, and a cancelled await would leave it half done with the lock held. aiosqlite's thread keeps the last
    future while it waits for work, so a start that was left in the middle could never be collected, nor the thread ever
    end. And where no loop runs, aiosqlite would make one, and leave it open.
    """

    def __init__(self, connector: Callable[[], SqliteSession]) -> None:
        super().__init__(connector, iter_chunk_size=1)  # no statement is iterated
        # Not awaited at the interpreter's exit: a store that nobody closed must not hold it up, and threads that are no
        # daemons are joined before any exit hook could end them.
        self._thread = threading.Thread(
            target=_work, args=(self._tx, new_guard()), name="taskmanager-store", daemon=True
        )

    def __del__(self) -> None:
        """End what was collected with a loop that was closed in the middle of a start. aiosqlite would warn of that."""
        if self._connection is not None:
            self.stop()

    @property
    def has_thread(self) -> bool:
        """Whether its thread lives. It has ended when it could not tell its loop, because that is closed."""
        return self._thread.is_alive()

    def begin(
        self, loop: asyncio.AbstractEventLoop, work: Callable[[SqliteSession, *Ts], R], *args: *Ts
    ) -> "asyncio.Future[R]":
        """Begin `work(connection, *args)` from any thread. It goes to its end even when the caller is cancelled."""
        result: asyncio.Future[R] = asyncio.Future(loop=loop)
        self._tx.put_nowait((result, partial(work, self._conn, *args)))  # type: ignore[arg-type]  # it is one of ours
        return result

    def refuse(self, error: StoreError) -> None:
        """Raise this where that is awaited which has not begun."""
        with suppress(Empty):
            while True:
                future, _ = self._tx.get_nowait()
                if future is not None:
                    with suppress(RuntimeError):  # its loop is closed
                        future.get_loop().call_soon_threadsafe(set_exception, future, error)

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


def _work(queue: _Queue, guard: "threading.RLock") -> None:
    while _work_once(guard, *queue.get()):
        pass  # what was done is forgotten here, with the frame that did it


def _work_once(guard: "threading.RLock", future: _Future | None, function: Callable[[], Any]) -> bool:
    """Do it, and tell its loop. Return False when there is no more to do."""
    tell: Callable[[_Future, Any], None] = set_result
    try:
        with guard:
            found = function()
    except BaseException as error:  # noqa: BLE001  # raised where it is awaited
        tell, found = set_exception, error
    if future is not None:
        try:
            future.get_loop().call_soon_threadsafe(tell, future, found)
        except RuntimeError:  # the loop is closed
            return False
    return found is not _STOP


class Connection:
    """One connection, used by whole functions only: in its own thread, or, where there is none, in the caller's."""

    __slots__ = ("_inner", "_is_closed", "_lending", "_path", "_raw")

    def __init__(self, path: str) -> None:
        self._path = path
        self._raw: FileConnection | None = None
        self._is_closed = False
        self._lending = LendingUntil()
        self._inner = Threaded(partial(self._make, BUSY_TIMEOUT_S))

    def __repr__(self) -> str:
        return f"<Connection {self._path} {'inherited' if self._is_inherited else 'open'}>"

    @property
    def _is_inherited(self) -> bool:
        return self._raw is not None and self._raw.is_inherited

    @property
    def has_thread(self) -> bool:
        """Whether its thread lives. It ends when it cannot tell its loop what it has done, because that is closed."""
        return self._inner.has_thread

    async def open(self, configure: Callable[[SqliteSession], None]) -> None:
        """Start the thread, which makes the connection and configures it. The file is there."""
        try:
            with self._lending.meanwhile():
                await self._inner
        except BaseException:  # cancelled, perhaps because the file does not answer
            self.end()
            raise
        try:
            await self._lending.until(self._inner.begin(asyncio.get_running_loop(), configure))
        except GeneratorExit:  # collected with its loop: there is nothing to be awaited any more
            self.end()
            raise
        except BaseException:
            await self.close()
            raise

    def open_here(self, configure: Callable[[SqliteSession], None]) -> None:
        """Make the connection in this thread. Another one may go on with it, one at a time."""
        configure(self._make(INLINE_TIMEOUT_S))

    def _make(self, timeout_s: float) -> FileConnection:
        options = {"timeout": timeout_s, "cached_statements": CACHED_STATEMENTS, "check_same_thread": False}
        self._raw = raw = open_existing(self._path, "mode=rw", **options)
        if self._is_closed:  # who waited was cancelled meanwhile
            raw.close()
        return raw

    async def hop(self, work: Callable[[SqliteSession, *Ts], R], *args: *Ts) -> R:
        """Run `work(connection, *args)` in the connection's thread, to its end even when the caller is cancelled."""
        assert self._raw is not None
        if self._raw.is_inherited:
            raise StoreError(f"{self._path} {IS_FORKED}; return the work to the parent process")
        try:  # written out: each commit would pay for another coroutine, and for a context manager
            if not self._inner.has_thread:
                return work(self._raw, *args)
            return await self._lending.until(self._inner.begin(asyncio.get_running_loop(), work, *args))
        except SqliteSession.faults as error:
            raise of_statement(self._path, error) from error

    def begin(
        self, loop: asyncio.AbstractEventLoop, work: Callable[[SqliteSession, *Ts], R], *args: *Ts
    ) -> Coroutine[Any, Any, R]:
        """Begin the same from any thread, and return what `loop` awaits to get the result.

        Raises `StoreUnavailable` where there is no thread that does it.
        """
        if self._raw is None or self._raw.is_inherited or not self.has_thread:
            raise StoreUnavailable(f"{self._path} has no thread that works on it")
        return self._finish(self._inner.begin(loop, work, *args))

    async def _finish(self, result: "asyncio.Future[R]") -> R:
        with translated(self._path):
            return await self._lending.until(result)

    async def let_end(self) -> None:
        """Let what was begun come to its end, before `close`. What has not begun after a while is refused: the lock of
        somebody else may cost each call a second.
        """
        if not self.has_thread or self._is_closed or self._is_inherited:
            return
        last = self._inner.begin(asyncio.get_running_loop(), _nothing)
        await asyncio.wait([last], timeout=CLOSE_PATIENCE_S)
        if last.cancel():  # it has not begun
            self._inner.refuse(StoreUnavailable(f"{self._path} is being closed, and could not be written in time"))

    async def close(self) -> None:
        """Close it and end its thread. An inherited connection is only forgotten."""
        if self._is_closed or self._is_inherited:
            return
        self._is_closed = True
        if self.has_thread:
            with self._lending.meanwhile():
                await self._inner.close()
            self._inner.join()  # it has told that it is closed, and has nothing else to do
        else:
            self._close_here()

    def end(self) -> None:
        """Close it and end its thread, without a loop: that which used it is gone."""
        if self._is_closed or self._is_inherited:
            return
        self._is_closed = True
        if self.has_thread:
            self._inner.stop()
            self._inner.join()
        if not self.has_thread:  # else it closes the connection when it has done what it is at
            self._close_here()

    def _close_here(self) -> None:
        if self._raw is not None:
            self._raw.close()
        self._inner.forget()


def _nothing(_: SqliteSession) -> None:
    pass


def create_private(path: Path) -> None:
    """Create an empty file that only this user can read, unless there is one. SQLite gives side files its mode."""
    try:
        target = path.resolve()
    except RuntimeError as error:  # so says Python before 3.13
        raise StoreError(f"{path} leads to itself through symbolic links; give the path of a file") from error
    parent = target.parent
    try:
        if target.is_dir():
            raise StoreError(f"{path} is a directory; give the path of a file in it")
        if target.exists() and not target.is_file():
            raise StoreError(f"{path} is a device, a pipe or a socket; give the path of a file")
        if not parent.is_dir():
            hint = " (`~` is not expanded; `Path.expanduser` does that)" if "~" in path.parts else ""
            raise StoreUnavailable(
                f"{path} cannot be opened: the directory {parent} does not exist; create it first{hint}"
            )
        # With O_EXCL an existing file is never opened: closing a second descriptor would drop SQLite's locks on it.
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR, _FILE_MODE))
    except FileExistsError:
        _check_access(path, target)
    except OSError as error:
        raise StoreUnavailable(
            f"{path} cannot be created ({error.strerror}): {remedy(error, f'make {parent} writable, with room on it')}"
        ) from error


def _check_access(path: Path, target: Path) -> None:
    if not os.access(target, os.R_OK):
        raise StoreUnavailable(f"{path} cannot be read: make it readable for this user")
    if not os.access(target, os.W_OK):
        raise StoreUnavailable(f"{path} is read-only: make it writable for this user")


def check_sqlite_version() -> None:
    """STRICT tables came with 3.37."""
    if sqlite3.sqlite_version_info < MINIMUM_SQLITE:
        raise StoreError(
            f"SQLite {sqlite3.sqlite_version} is too old, 3.37 is needed; use a newer Python or system library"
        )


async def connect(path: str, configure: Callable[[SqliteSession], None]) -> Connection:
    """An open, configured connection. A lock held by somebody else is waited for, `OPEN_PATIENCE_S` at most."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + OPEN_PATIENCE_S
    while True:
        connection = Connection(path)
        try:
            await connection.open(configure)
        except sqlite3.Error as error:
            if primary_code(error) != sqlite3.SQLITE_BUSY or loop.time() >= deadline:
                raise translate(path, error) from error
        except RuntimeError as error:
            raise StoreUnavailable(f"{path} cannot be opened ({error}); {MORE_THREADS}") from error
        else:
            return connection
        await asyncio.sleep(_OPEN_PAUSE_S)


def connect_inline(path: str, synchronous: Synchronous) -> Connection:
    """A connection without a thread."""
    connection = Connection(path)
    try:
        connection.open_here(partial(configure_writer, synchronous=synchronous))
    except sqlite3.Error as error:
        connection.end()
        raise translate(path, error, was_well=True) from error
    return connection


def configure_writer(connection: SqliteSession, synchronous: Synchronous) -> None:
    """Settings of the writer. `auto_vacuum` only takes effect before a new file has its first page."""
    if connection.execute("PRAGMA page_count").fetchone() == (0,):  # on any other file it would only be a write
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA journal_mode = WAL").fetchone()
    connection.execute(f"PRAGMA synchronous = {'FULL' if synchronous == 'full' else 'NORMAL'}")
    if synchronous == "full":
        # Elsewhere than on macOS this is ignored; there, fsync alone does not reach the platter.
        connection.execute("PRAGMA fullfsync = ON")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}").fetchone()
    # Evicted history is no secret worth writing zeros for; some distributions turn it on.
    connection.execute("PRAGMA secure_delete = OFF").fetchone()
    # An update of many rows goes through temporary tables.
    connection.execute("PRAGMA temp_store = MEMORY")
    configure_any(connection)


def configure_reader(connection: SqliteSession) -> None:
    """Settings of the reader."""
    connection.execute("PRAGMA query_only = ON")
    configure_any(connection)


def configure_any(connection: SqliteSession) -> None:
    """Settings of every connection."""
    connection.text_factory = text_of
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")


def raise_not_open(path: str) -> NoReturn:
    """For a store that is closed, was never opened, or lost its file and waits for it; users read this only then."""
    raise StoreUnavailable(f"{path} is not open: it is made anew as soon as its directory is there and can be written")
