"""One connection in its thread: whole functions are done there, and a connection that was lost is made anew.

What was lost in the middle of a commit is not known to have arrived or not. So whoever has sent it hears
`StoreUnavailable`, and sends it again: every write repeats its precondition.
"""

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, NoReturn, TypeVar, TypeVarTuple

import psycopg

from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.model.gil import LendingUntil
from taskmanager.model.wording import MORE_THREADS
from taskmanager.store.postgresql.address import KEEPALIVES, Address
from taskmanager.store.postgresql.faults import has_lost_connection, is_gone, is_repeated, is_stale, translate
from taskmanager.store.postgresql.schema import migrate
from taskmanager.store.postgresql.session import PostgresSession, adapt

R = TypeVar("R")
Ts = TypeVarTuple("Ts")
_Future = asyncio.Future[Any]

THREAD_ENDS_S: Final = 1.0
TRIES: Final = 4
"""How often a function is done that the server has broken off for the sake of another transaction."""
PREPARE_AFTER: Final = 3
IS_FORKED: Final = (
    "was connected in the parent process when this one was forked; both would use one connection. Start this process "
    "by spawn, or fork before the manager starts"
)


_SETTINGS: Final = "; ".join(
    f"SET {name} = {value}"
    # JIT takes seconds to compile what is over in a moment.
    for name, value in {"jit": "off", **KEEPALIVES}.items()
)


class Origin(NamedTuple):
    """What a new connection has found: as long as this is the same, it is the database of before.

    A server, and its standbys, have one `system`. The `timeline` counts their failovers. A schema, or a table, that was
    dropped and made anew has another `schema` or `tasks`; they are 0 while there is none.
    """

    timeline: str
    system: int
    database: int
    schema: int
    tasks: int

    def is_before(self, other: "Origin") -> bool:
        """Whether this is what was left behind by the failover that has led to the other."""
        return self.timeline < other.timeline and self._replace(timeline=other.timeline) == other


def connect(address: Address, use: str = "command", *, is_direct: bool = False) -> PostgresSession:
    """Connect in this thread, for a use that the server's lists show. Raises `psycopg.Error`."""
    conninfo = address.conninfo_of(use, is_direct=is_direct)
    raw = psycopg.connect(conninfo, autocommit=True, prepare_threshold=PREPARE_AFTER)
    try:
        adapt(raw)
        pid, encoding = raw.execute("SELECT pg_backend_pid(), current_setting('server_encoding')").fetchone() or (0, "")
        if encoding != "UTF8":
            raise StoreError(f"{address} has the encoding {encoding}; use a database that was made with UTF8")
        session = PostgresSession(raw, address)
        session.is_pooled = pid != raw.info.backend_pid
        if session.is_pooled:
            raw.prepare_threshold = None  # the next transaction may be with another server process
            session.read_settings = "; SET LOCAL jit = off"
        else:
            session.execute_plain(_SETTINGS)
    except BaseException:
        raw.close()
        raise
    return session


def origin_of(session: PostgresSession) -> Origin:
    """Return which database this is."""
    found = session.execute_plain(
        "SELECT CASE WHEN pg_is_in_recovery() THEN '' ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END,"
        " (SELECT system_identifier FROM pg_control_system()),"
        " (SELECT oid::bigint FROM pg_database WHERE datname = current_database()),"
        " coalesce(to_regnamespace(%s)::oid::bigint, 0), coalesce(to_regclass(%s)::oid::bigint, 0)",
        (session.address.quoted_schema, f"{session.address.quoted_schema}.taskmanager_tasks"),
    ).fetchone()
    assert found is not None
    return Origin(*found)


def lead_to_schema(session: PostgresSession) -> Origin:
    """Return which database this is, and name the locks of the session after its schema."""
    origin = origin_of(session)
    session.set_number(origin.schema)
    return origin


def to_newest_schema(session: PostgresSession, is_dead: Callable[[str], bool]) -> Origin:
    """Migrate the schema, and name the locks of the session after it. See `migrate`.

    Behind a pooler the migration takes the direct way, if the URL has one: some steps need a session of their own.
    """
    address = session.address
    schema, shown = address.schema, str(address)
    if session.is_pooled and address.direct is not None:
        with closing(connect(address, "migration", is_direct=True).raw) as direct:
            migrate(direct, schema, is_dead, shown=shown)
    else:
        migrate(session.raw, schema, is_dead, shown=shown, is_pooled=session.is_pooled)
    return lead_to_schema(session)


class Connection:
    """A connection that is used by whole functions only, one at a time: in its own thread, or in the caller's.

    `is_unsynced`: its commits do not wait for the disk.
    """

    def __init__(self, address: Address, use: str, *, is_unsynced: bool = False) -> None:
        self._address, self._use, self._is_unsynced = address, use, is_unsynced
        self._session: PostgresSession | None = None
        self._using = threading.RLock()
        """Held by whoever uses the session: its thread, or that of the heartbeat."""
        self._queue: SimpleQueue[tuple[_Future | None, Callable[[], Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._is_closed = False
        self._lending = LendingUntil()
        self.origin: Origin | None = None
        """Where the session leads that was opened last."""
        self.expected: Origin | None = None
        """Where it must lead. What was read of another database must not be written to this one."""

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "away" if self._session is None else "connected"
        return f"<Connection {self._address} {state}>"

    @property
    def is_connected(self) -> bool:
        """Whether it was connected when it was last used."""
        return self._session is not None

    @property
    def is_another(self) -> bool:
        """Whether the way leads to another database than before, or to what a failover has left of it."""
        return self.expected is not None and self.origin is not None and self.origin != self.expected

    @property
    def is_failover(self) -> bool:
        """Whether it is what a failover has left of it."""
        return self.expected is not None and self.origin is not None and self.expected.is_before(self.origin)

    @property
    def is_pooled(self) -> bool:
        """Whether a pooler stands between."""
        return self._session is not None and self._session.is_pooled

    def take_needed_look(self) -> bool:
        """See `PostgresSession.take_needed_look`."""
        session = self._session
        return session is not None and session.take_needed_look()

    @property
    def has_thread(self) -> bool:
        """Whether its thread lives."""
        return self._thread is not None and self._thread.is_alive()

    async def open(self, configure: Callable[[PostgresSession], None] | None = None) -> None:
        """Start the thread, connect, and configure."""
        thread = threading.Thread(target=_work, args=(self._queue,), name="taskmanager-store", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise StoreUnavailable(f"{self._address} cannot be opened ({error}); {MORE_THREADS}") from error
        self._thread = thread
        try:
            await self.hop(configure or ask_nothing)
        except GeneratorExit:  # collected with its loop: there is nothing to be awaited any more
            self.end()
            raise
        except BaseException:
            await self.close()
            raise

    def call(self, work: Callable[[PostgresSession, *Ts], R], *args: *Ts) -> R:
        """Do it in this thread, once nobody else uses the connection. Raises our errors."""
        if self._pid != os.getpid():
            raise StoreError(f"{self._address} {IS_FORKED}")
        with self._using:
            for left in reversed(range(TRIES)):
                try:
                    return work(self._connected(), *args)
                except psycopg.Error as error:
                    if is_stale(error):
                        self._let_go()
                    if left and (is_repeated(error) or is_stale(error)):
                        continue
                    if has_lost_connection(error, self._session) or is_gone(error):
                        self._let_go()
                    raise translate(self._address, error) from error
                except (OverflowError, UnicodeEncodeError) as error:
                    raise StoreError(f"{self._address} cannot hold that value: {error}") from error
        raise AssertionError(TRIES)  # the last one returns or raises

    def _connected(self) -> PostgresSession:
        if self._is_closed:
            raise_not_open(self._address)
        session = self._session
        if session is None or _was_ended(session):
            self._let_go()
            self._session = session = self._connect()
        if self.is_another:
            raise StoreUnavailable(
                f"{self._address} was failed over or replaced; what memory knows is written to it first"
            )
        return session

    def _connect(self) -> PostgresSession:
        """Connect anew. Refuse what must not be written: a standby, and what a failover has left behind."""
        session = connect(self._address, self._use)
        session.is_unsynced = self._is_unsynced
        try:
            origin = lead_to_schema(session)
            if not origin.timeline:
                raise StoreUnavailable(f"{self._address} leads to a standby; the way to the primary is tried again")
            if self.expected is not None and origin.is_before(self.expected):
                raise StoreUnavailable(
                    f"{self._address} leads to a server that was left behind by a failover (its timeline is "
                    f"{origin.timeline}, not {self.expected.timeline}); stop that server"
                )
        except BaseException:
            session.raw.close()
            raise
        self.origin = origin
        return session

    def _let_go(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with suppress(psycopg.Error, OSError):
                session.raw.close()

    async def hop(self, work: Callable[[PostgresSession, *Ts], R], *args: *Ts) -> R:
        """Run `work(session, *args)` in the connection's thread, to its end even when the caller is cancelled."""
        if not self.has_thread:
            return self.call(work, *args)
        return await self._lending.until(self._begin(asyncio.get_running_loop(), work, *args))

    def begin(
        self, loop: asyncio.AbstractEventLoop, work: Callable[[PostgresSession, *Ts], R], *args: *Ts
    ) -> "asyncio.Future[R]":
        """Begin the same from any thread, and return what `loop` awaits to get the result.

        Raises `StoreUnavailable` where there is no thread that does it.
        """
        if self._pid != os.getpid() or not self.has_thread or not self.is_connected:
            raise StoreUnavailable(f"{self._address} has no thread that works on it")
        return self._begin(loop, work, *args)

    def _begin(
        self, loop: asyncio.AbstractEventLoop, work: Callable[[PostgresSession, *Ts], R], *args: *Ts
    ) -> "asyncio.Future[R]":
        result: asyncio.Future[R] = asyncio.Future(loop=loop)
        self._queue.put_nowait((result, partial(self.call, work, *args)))
        return result

    async def close(self) -> None:
        """Close it and end its thread, behind what was asked for before. An inherited connection is only forgotten."""
        if self._is_closed or self._pid != os.getpid():
            return
        if self.has_thread:
            closed: asyncio.Future[None] = asyncio.Future(loop=asyncio.get_running_loop())
            self._queue.put_nowait((closed, self._close_here))
            self._queue.put_nowait(None)
            await asyncio.wait([self._lending.until(closed)], timeout=THREAD_ENDS_S)
        self.end(0.0)

    def end(self, patience_s: float = THREAD_ENDS_S) -> None:
        """Close it and end its thread, without a loop: that which used it is gone.

        After `patience_s` it is cut off: it waits for a server that does not answer, or for a standby that is away.
        """
        if self._pid != os.getpid():
            return
        self._is_closed = True
        self._queue.put_nowait(None)
        thread = self._thread
        if thread is not None:
            thread.join(patience_s)
            if thread.is_alive():
                self._cut_off()
                thread.join(THREAD_ENDS_S)
        if not self.has_thread:
            self._close_here()

    def _cut_off(self) -> None:
        """End the session while another thread waits for the server."""
        session = self._session
        if session is not None:
            with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(session.raw.fileno())) as other:
                other.shutdown(socket.SHUT_RDWR)

    def _close_here(self) -> None:
        with self._using:
            self._is_closed = True
            self._let_go()


def _was_ended(session: PostgresSession) -> bool:
    """Return whether the server has ended the session since it was last used, as a restart does.

    It has said so unasked, and nothing was sent to it. So a new session can do what this one cannot.
    """
    with suppress(psycopg.Error):
        session.raw.pgconn.consume_input()  # its last words
        session.raw.pgconn.consume_input()  # the end comes behind them
    return session.raw.closed


def ask_nothing(_session: PostgresSession) -> None:
    """Ask nothing: to connect is the question."""


def _work(queue: "SimpleQueue[tuple[_Future | None, Callable[[], Any]] | None]") -> None:
    while (asked := queue.get()) is not None:
        if not _work_once(*asked):
            return
        del asked  # what was done is forgotten, and may be collected


def _work_once(future: _Future | None, function: Callable[[], Any]) -> bool:
    """Do it, and tell its loop. Return False when that is closed."""
    tell: Callable[[_Future, Any], None] = _set_result
    try:
        found = function()
    except BaseException as error:  # noqa: BLE001  # raised where it is awaited
        tell, found = _set_exception, error
    if future is not None:
        try:
            future.get_loop().call_soon_threadsafe(tell, future, found)
        except RuntimeError:  # the loop is closed
            return False
    return True


def _set_result(future: _Future, result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: _Future, error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def raise_not_open(address: Address) -> NoReturn:
    """For a store that is closed, or was never opened."""
    raise StoreUnavailable(f"{address} is not open; start the manager")
