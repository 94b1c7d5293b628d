"""Where the tasks live, made from what somebody wrote: the path of a file, or the URL of a server.

All that differs between a file and a server, for those above the store, is a method here. Making a place does no I/O.
"""

import os
import re
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

from taskmanager.model.errors import ConfigurationError

if TYPE_CHECKING:
    from taskmanager.model.clock import Clock
    from taskmanager.model.config import RecoveryConfig
    from taskmanager.model.record import TaskRow
    from taskmanager.store.protocol import InstanceRow, Store
    from taskmanager.store.sql.session import Session

READ_PATIENCE_S: Final = 5.0
"""How long a read waits for a database that somebody keeps to themselves; readers never wait for writers."""
LOOP_PATIENCE_S: Final = 0.5
"""The same where an event loop stands still meanwhile."""
_SCHEME: Final = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*)://")
_SERVERS: Final = ("postgresql", "postgres")
_LOST_SLASH: Final = re.compile(r"(postgresql|postgres):/[^/]")
"""What `Path` makes of a URL."""


class Room(NamedTuple):
    """What a database takes beside its tables, and what is left for it. None: that is not known here."""

    log_bytes: int = 0
    disk_free_bytes: int | None = None


class Finding(NamedTuple):
    """What one check of `taskmanager doctor` has found, and what to do; no advice where all is well."""

    name: str
    is_well: bool
    found: str
    advice: str = ""
    is_last: bool = False
    """Whether nothing more can be looked at before this is mended."""


class Checks(Protocol):
    """What `taskmanager doctor` looks at in one kind of database, beside the rows."""

    what: str
    """What the database is, for a message: "file"."""

    def around(self, min_free_mb: int) -> Iterable[Finding]:
        """Check what can be seen without a connection. Call it while this process has none.

        Raises `StoreError` where there is no such database to look at.
        """
        ...

    def inside(self, session: "Session") -> Iterable[Finding]:
        """Check the schema, and whether what is stored can be read."""
        ...

    def of_instances(self, session: "Session", alive: "Sequence[InstanceRow]") -> Iterable[Finding]:
        """Check how the living instances hold the database."""
        ...


class WriterWatch(Protocol):
    """Watches who writes. Call it only while this process has no connection to the database."""

    def look(self) -> str | None:
        """Return the name of the process that keeps all others from writing, and writes nothing; None mostly."""
        ...

    def judge(self) -> str | None:
        """Return the same in one call, which waits only while somebody is suspected."""
        ...


class Place(Protocol):
    """One database. `str()` is its name for people, without a password."""

    put_back_s: float
    """Time in which a living instance whose sign is missing has put it back."""

    @property
    def name(self) -> str:
        """What a person calls it in a word, for a title."""
        ...

    @property
    def file(self) -> Path | None:
        """The file, for what is about a file alone; None where there is none."""
        ...

    def absolute(self) -> "Place":
        """Return the same place, by a name that is good in every directory."""
        ...

    def is_same(self, other: "Place | None") -> bool:
        """Whether the other one leads to the same database."""
        ...

    def new_store(
        self,
        *,
        synchronous: Literal["full", "normal"] = ...,
        recovery: "RecoveryConfig" = ...,
        clock: "Clock | None" = ...,
    ) -> "Store":
        """Return a store there, not opened yet.

        `recovery` says how long others may be silent. `clock` is that of whoever writes; None means the machine's.
        """
        ...

    def read(
        self, *, patience_s: float = READ_PATIENCE_S, is_any_version: bool = False
    ) -> "AbstractContextManager[Session]":
        """Return a session that cannot write, for a `with` block. Make a new one for every look.

        Raises `StoreUnavailable` when the database is not there or cannot be read, and `StoreError` when it holds no
        tasks of this library, has another schema (unless `is_any_version`) or is damaged.
        """
        ...

    def for_many_looks(self) -> "Place":
        """Return the same place, for whoever looks again and again: it may keep what each look needs."""
        ...

    def write(self) -> "AbstractContextManager[Session]":
        """Return a session for a `with` block that writes, in this thread. What is not there is made, as at a start.

        Raises `StoreUnavailable` when the database cannot be reached or made, and `StoreError` when it has another
        schema, is damaged or refuses a statement.
        """
        ...

    def traces(self) -> Hashable:
        """Return what is different after each write."""
        ...

    def is_dead(self, instance_id: str) -> bool:
        """Whether the instance has ended, as far as can be seen now."""
        ...

    def is_missing(self, instance_id: str) -> bool:
        """Whether its sign is not there at all, which a living instance would put back."""
        ...

    def sign_of_life(self, instance_id: str) -> int | None:
        """Return a number that changes as long as the instance shows that it lives; None where none can be seen."""
        ...

    async def clear_away(self, is_registered: Callable[[str], Awaitable[bool]]) -> None:
        """Remove what dead instances have left beside the database, except those whose row is in it."""
        ...

    def check_is_there(self, advice: str) -> None:
        """Raise `StoreUnavailable` if there is no such database. `advice` says how to name another one."""
        ...

    def check_process(self) -> None:
        """Raise `WrongProcess` in a child that was forked while its parent had the database open."""
        ...

    def insert_through(self, connection: Any, row: "TaskRow") -> Coroutine[Any, Any, None] | None:
        """Insert a task through the caller's connection, in the caller's transaction.

        Return the coroutine that does it if the connection is asynchronous. Raises `StoreError` if the connection leads
        to another database, and `ConfigurationError` if it is of an unknown kind.
        """
        ...

    def insert_statement(self, row: "TaskRow") -> tuple[str, tuple[object, ...]]:
        """Return SQL and parameters that insert one free task."""
        ...

    def room(self) -> Room:
        """Look how much room there is. What cannot be looked at is not known."""
        ...

    def writer_watch(self) -> WriterWatch:
        """Return somebody who sees who keeps all others from writing."""
        ...

    def back_up(self, target: Path, *, is_replacing: bool) -> int:
        """Copy the database into a new file, and return its size in bytes.

        Raises `StoreError` where that is not how this kind of database is kept safe, and says how.
        """
        ...

    def version(self) -> int:
        """Return the version of the schema, 0 where there is none yet. Raises `StoreError` as `read` does."""
        ...

    def script(self) -> str:
        """Return the SQL that makes the schema, or brings it to the newest version, for somebody to run it by hand.

        Raises `StoreError` where nobody does that with this kind of database.
        """
        ...

    def doctor(self) -> Checks:
        """Return the checks of this kind of database."""
        ...


def place_of(snapshot_db: object) -> Place | None:
    """Return the place that a manager was given, None for memory only. Raises `ConfigurationError`."""
    if snapshot_db is None:
        return None
    path = os.fspath(snapshot_db) if isinstance(snapshot_db, str | os.PathLike) else None
    if not isinstance(path, str) or not path.strip() or not _is_path(path):
        raise ConfigurationError(
            f"snapshot_db must be the path of a file, or None for memory only, not {_shown(snapshot_db)}"
        )
    if path.startswith((":memory:", "file:")):
        raise ConfigurationError(
            f"snapshot_db must be the path of an SQLite file, not {path!r}; None keeps everything in memory"
        )
    if path.startswith("~/"):  # the advice to create that directory would be a trap
        raise ConfigurationError(
            "snapshot_db must be the path of a file, or None for memory only; Python does not replace the ~ of "
            f"{path!r}: give Path(...).expanduser()"
        )
    try:
        return place_at(path).absolute()
    except ConfigurationError as exc:
        raise ConfigurationError(f"snapshot_db is a path, a URL, or None for memory only: {exc}") from exc.__cause__


def place_at(text: str) -> Place:
    """Return the place of this path or URL. Raises `ConfigurationError` for a URL of another kind of database."""
    if (scheme := _SCHEME.match(text)) is not None:
        return _server(text.strip(), scheme[1])
    if (lost := _LOST_SLASH.match(text)) is not None:
        raise ConfigurationError(f"a {lost[1]}:// URL has lost a slash in a Path; give the URL as text")
    from taskmanager.store.file_place import FilePlace

    return FilePlace(Path(text))


def _server(url: str, scheme: str) -> Place:
    if scheme.lower() not in _SERVERS:
        raise ConfigurationError(f"give the path of an SQLite file, or a postgresql:// URL, and not a {scheme}:// URL")
    try:
        module = import_module("taskmanager.store.postgresql.place")
    except ImportError as exc:  # psycopg raises it too where it finds no libpq
        raise ConfigurationError(
            f"a {scheme}:// URL needs what is not installed ({exc}); install it with: pip install "
            "'taskmanager[postgres]'"
        ) from exc
    made: Place = module.ServerPlace(url)
    return made


def _is_path(text: str) -> bool:
    """Return whether an operating system takes it: also bytes that are no UTF-8, in the form that Python gives them."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _shown(value: object) -> str:
    """Return the value for a message. Of what may be a URL only the kind is shown, because a password may be in it."""
    text = repr(value)
    return f"a URL in {type(value).__name__}" if ":/" in text and "@" in text else text
