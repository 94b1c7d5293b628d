"""One schema of a PostgreSQL server as the place of the tasks: see `Place`.

Every method imports what it needs when it is called: whoever declares a manager at import has no use for the rest yet.
"""

import weakref
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import psycopg

from taskmanager.model.clock import Clock, SystemClock
from taskmanager.model.config import DEFAULT_RECOVERY, RecoveryConfig, longest_silence_s
from taskmanager.model.errors import StoreError
from taskmanager.store.place import READ_PATIENCE_S, Room
from taskmanager.store.postgresql.address import Address

if TYPE_CHECKING:
    from taskmanager.model.record import TaskRow
    from taskmanager.store.place import Place
    from taskmanager.store.postgresql.doctor import ServerChecks
    from taskmanager.store.postgresql.looks import Looks
    from taskmanager.store.postgresql.session import PostgresSession
    from taskmanager.store.postgresql.store import PostgresStore

MAX_KEPT: Final = 2
"""Sessions that are kept for those who look again and again: the dashboard has two threads that read."""


class ServerPlace:
    """A schema of a database on a server, named by a URL. `str()` is the URL without its password."""

    put_back_s = 0.0
    file = None

    def __init__(self, url: str | Address, *, max_kept: int = 0) -> None:
        self.address = url if isinstance(url, Address) else Address.of(url)
        self._max_kept = max_kept
        self._looks: Looks | None = None
        self._newest_store: Callable[[], PostgresStore | None] = lambda: None

    def __str__(self) -> str:
        return str(self.address)

    def __repr__(self) -> str:
        return f"<ServerPlace {self.address}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ServerPlace) and self.address == other.address

    def __hash__(self) -> int:
        return hash(self.address)

    @property
    def name(self) -> str:
        """The name of the schema."""
        return self.address.schema

    def absolute(self) -> "ServerPlace":
        """See `Place.absolute`."""
        return self

    def is_same(self, other: "Place | None") -> bool:
        """See `Place.is_same`. Whether two names lead to one server is not looked up."""
        return self == other

    def new_store(
        self,
        *,
        synchronous: Literal["full", "normal"] = "full",
        recovery: RecoveryConfig = DEFAULT_RECOVERY,
        clock: Clock | None = None,
    ) -> "PostgresStore":
        """See `Place.new_store`."""
        from taskmanager.store.postgresql.store import PostgresStore

        if self._looks is not None:  # the store has connections of its own
            self._looks.drop()
        made = PostgresStore(
            self.address,
            synchronous=synchronous,
            is_dead=self.is_dead,
            grace_s=recovery.crashed_worker_recovery_grace_ms / 1000,
            silence_s=longest_silence_s(recovery),
            clock=clock or SystemClock(),
        )
        self._newest_store = weakref.ref(made)
        return made

    @contextmanager
    def read(self, *, patience_s: float = READ_PATIENCE_S, is_any_version: bool = False) -> "Iterator[PostgresSession]":
        """See `Place.read`. Waited for is the server itself, and a table that somebody has locked as a whole."""
        from taskmanager.store.postgresql.faults import translate
        from taskmanager.store.postgresql.schema import check_version

        try:
            with self._looking().session(patience_s) as session:
                if not is_any_version:
                    check_version(session.raw, self.address.schema, shown=str(self))
                yield session
        except psycopg.Error as error:
            raise translate(self.address, error) from error

    def for_many_looks(self) -> "ServerPlace":
        """See `Place.for_many_looks`: sessions are kept between two looks."""
        return ServerPlace(self.address, max_kept=MAX_KEPT)

    def _looking(self) -> "Looks":
        from taskmanager.store.postgresql.looks import Looks

        if self._looks is None:
            self._looks = Looks(self.address, self._max_kept)
        return self._looks

    @contextmanager
    def write(self) -> "Iterator[PostgresSession]":
        """See `Place.write`."""
        from taskmanager.store.postgresql.connection import connect, to_newest_schema
        from taskmanager.store.postgresql.faults import translate

        try:
            session = connect(self.address)
            try:
                to_newest_schema(session, self.is_dead)
                yield session
            finally:
                session.raw.close()
        except psycopg.Error as error:
            raise translate(self.address, error) from error

    def traces(self) -> Hashable:
        """See `Place.traces`: which transactions are seen. Those of the whole server, for they have one order."""
        with self.read(is_any_version=True) as session:
            return session.execute_plain("SELECT pg_current_snapshot()::text").fetchone()

    def is_dead(self, instance_id: str) -> bool:
        """See `Place.is_dead`: whether nobody holds the lock of the instance, and its heart was silent for long."""
        from taskmanager.store.postgresql.lives import seems_dead

        with self.read(is_any_version=True) as session:
            return seems_dead(session, instance_id)

    def is_missing(self, instance_id: str) -> bool:
        """See `Place.is_missing`. A lock leaves no trace, and `is_dead` waits long enough by itself."""
        return False

    def sign_of_life(self, instance_id: str) -> int | None:
        """See `Place.sign_of_life`. There is none but the heartbeats."""
        return None

    async def clear_away(self, is_registered: Callable[[str], Awaitable[bool]]) -> None:
        """See `Place.clear_away`. A lock goes with its session, and leaves nothing."""

    def check_is_there(self, advice: str) -> None:
        """See `Place.check_is_there`. Every look says it by itself."""

    def check_process(self) -> None:
        """See `Place.check_process`. A child may connect anew, and inherits no connection that it could use."""

    def insert_through(self, connection: Any, row: "TaskRow") -> Coroutine[Any, Any, None] | None:
        """See `Place.insert_through`."""
        from taskmanager.store.postgresql.caller import insert_through

        store = self._newest_store()
        return insert_through(connection, row, self.address, None if store is None else store.origin)

    def insert_statement(self, row: "TaskRow") -> tuple[str, tuple[object, ...]]:
        """See `Place.insert_statement`. The placeholders are `%s`."""
        from taskmanager.store.postgresql.caller import insert_statement

        return insert_statement(row, self.address)

    def room(self) -> Room:
        """See `Place.room`. What the server has left is the server's."""
        return Room()

    def writer_watch(self) -> "_NobodyWaits":
        """See `Place.writer_watch`. No writer keeps all others from writing here."""
        return _NobodyWaits()

    def back_up(self, target: Path, *, is_replacing: bool) -> int:
        """See `Place.back_up`: refuse."""
        raise StoreError(
            f"{self} is backed up with the server's own tools: pg_dump --schema={self.address.schema}, or a base "
            "backup; `taskmanager copy` moves it into a file"
        )

    def version(self) -> int:
        """See `Place.version`."""
        from taskmanager.store.postgresql.schema import version

        with self.read(is_any_version=True) as session:
            return version(session.raw, self.address.schema)

    def script(self) -> str:
        """See `Place.script`. It needs no server."""
        from taskmanager.store.postgresql.schema import script

        return script(self.address.schema)

    def doctor(self) -> "ServerChecks":
        """See `Place.doctor`."""
        from taskmanager.store.postgresql.doctor import ServerChecks

        return ServerChecks(self.address)


class _NobodyWaits:
    """See `WriterWatch`."""

    def look(self) -> str | None:
        """See `WriterWatch.look`."""
        return None

    def judge(self) -> str | None:
        """See `WriterWatch.judge`."""
        return None
