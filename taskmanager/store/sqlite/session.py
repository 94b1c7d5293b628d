"""A connection to SQLite as the verbs see it: see `Session`.

Every `sqlite3_step` gives the GIL away and must win it back. A busy event loop takes it during each step that lasts,
and keeps it for the interpreter's switch interval of 5 ms. So a large batch is a handful of statements with many rows
each. Their sizes are fixed, so that each is prepared once; a batch that nearly fills a size is padded with rows without
an id, which the statement ignores. A few rows are written one by one: steps that short do not lose the GIL, and the
fixed statement needs no look at what the rows have in common.

Most values are the same in all rows of a batch (NULL, the owner, the worker, the queue): such a column is shared, which
means that it is bound once. Binding a None costs Python's driver ten times what an integer costs, because it looks for
an adapter first.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, lru_cache
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from taskmanager.model.record import Write
from taskmanager.store.constraints import encodable
from taskmanager.store.sql.rows import Undecodable
from taskmanager.store.sql.statements import ROWS, VALUE, Kind, Row
from taskmanager.store.sqlite import claims

if TYPE_CHECKING:
    from taskmanager.store.statistics import FileSize

BUSY_TIMEOUT_S: Final = 1.0
SIZES: Final = (512, 256, 128, 64, 32, 16, 8)
_PADDING_FRACTION: Final = 0.25
_MANY: Final = min(SIZES) * (1 - _PADDING_FRACTION)
"""Fewer rows are written one by one."""
VARIANTS: Final = 256
"""Statements that are kept; as many as a connection keeps prepared."""
_GUILTY_CODES: Final = frozenset({sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH})


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's primary result code of an error, 0 when SQLite had no part in it.

    No room for the index of the log is a full disk, whatever SQLite calls it.
    """
    code: int = getattr(error, "sqlite_errorcode", 0)
    return sqlite3.SQLITE_FULL if code == sqlite3.SQLITE_IOERR_SHMSIZE else code & 0xFF


sqlite3.register_adapter(Undecodable, lambda text: text.raw)


class Statement(NamedTuple):
    """SQL, and what picks its values: from one row those before and after the rows, from each row the others.

    Numbered parameters would need a shared value only once, but Python's driver takes them from mappings only.
    """

    sql: str
    before: Callable[[Row], Row]
    each: Callable[[Row], Row]
    after: Callable[[Row], Row]
    width: int
    """Values of each row."""


@lru_cache(VARIANTS)
def statement(kind: Kind, shared: tuple[str, ...], size: int) -> Statement:
    """Return what writes `size` rows that have the values of `shared` in common, or any one row."""
    bound = tuple(name for name in kind.used if size > 1 and name not in shared)
    places = {name: f"v.column{number}" for number, name in enumerate(bound, 1)}
    head, tail = (VALUE.sub(lambda found: places.get(found[1], found[0]), part) for part in kind.sql.split(ROWS))
    row = f"({', '.join('?' * len(bound))})"
    rows = ROWS.replace("VALUES", f"VALUES {', '.join([row] * size)}") if size > 1 else ""
    if bound == ("id",) and tail.startswith(by_id := f" WHERE t.id = {places['id']}"):  # no table of values to join
        rows, tail = f"WHERE t.id IN ({', '.join('?' * size)})", tail.removeprefix(by_id)
    before, each, after = (_picker(kind, names) for names in (VALUE.findall(head), bound, VALUE.findall(tail)))
    return Statement(VALUE.sub("?", head + rows + tail), before, each, after, len(bound))


def _picker(kind: Kind, names: Sequence[str]) -> Callable[[Row], Row]:
    places = [kind.columns.index(name) for name in names]
    if len(places) > 1:
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + 1) if places else slice(0))


class SqliteSession(sqlite3.Connection):
    """One connection to a file, or to a database in memory."""

    faults: ClassVar[tuple[type[Exception], ...]] = (sqlite3.Error, OverflowError, UnicodeEncodeError)
    too_large: ClassVar[type[Exception]] = sqlite3.DataError

    @contextmanager
    def transaction(self, *, is_beside: bool = False) -> Iterator[None]:
        """See `Session.transaction`. SQLite lets one write at a time anyway."""
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            # The method gives the interpreter lock away once, where `execute("COMMIT")` does it five times.
            self.commit()
        finally:
            self.rollback()  # does nothing once it is over, or where SQLite has rolled back by itself (full, I/O)

    def together(self) -> AbstractContextManager[object]:
        """See `Session.together`. The database is here."""
        return nullcontext()

    def by_indexes(self) -> AbstractContextManager[None]:
        """See `Session.by_indexes`. SQLite does that in any case."""
        return nullcontext()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """See `Session.snapshot`."""
        if self.in_transaction:
            yield
            return
        self.execute("BEGIN")
        try:
            yield
        finally:
            self.rollback()

    def write(self, kind: Kind, rows: Sequence[Row], changed_ids: set[str] | None = None) -> int:
        """See `Session.write`."""
        changed, start, shared = 0, 0, _alike(kind, rows) if len(rows) >= _MANY else ()
        while start < len(rows):
            left = len(rows) - start
            size = _size_for(left) if left >= _MANY else 1
            part = rows[start : start + size]
            made = statement(kind, shared if size > 1 else (), size)
            values = made.before(part[0])
            if size > 1:
                values += tuple(chain.from_iterable(map(made.each, part)))
                # Only the id marks what fills the statement up. Zeros bind faster than NULLs.
                values += (None, *(0,) * (made.width - 1)) * (size - len(part))
            values += made.after(part[0])
            if changed_ids is None:
                changed += self.execute(made.sql, values).rowcount
            else:
                found = self.execute(f"{made.sql} RETURNING id", values).fetchall()
                changed_ids.update(task_id for (task_id,) in found)
                changed += len(found)
            start += size
        return changed

    write_all = None

    def storable(self, write: Write) -> Write:
        """See `Session.storable`."""
        return encodable(write)

    def holdable(self, row: Row, tags: int | None = None) -> Row:
        """See `Session.holdable`: a file holds all that any database holds."""
        return row

    def skip_ids(self, table: str) -> None:
        """See `Session.skip_ids`: SQLite gives none that is not greater."""

    may_take = claims.may_take
    take = claims.take  # no method that calls it: each claim would pay for another call

    count_taken = claims.count_taken

    def is_rows_fault(self, error: Exception) -> bool:
        """See `Session.is_rows_fault`."""
        if not isinstance(error, sqlite3.Error):
            return True
        code = primary_code(error)
        # Without a code the driver itself refused a value (a type that SQLite has no column for).
        return code in _GUILTY_CODES or (
            code == 0 and isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError)
        )

    def size(self) -> "FileSize":
        """See `Session.size`."""
        from taskmanager.store.statistics import FileSize  # only those who look at it load this

        pages, page_bytes, free = (
            self.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size", "freelist_count")
        )
        (version,) = self.execute("SELECT coalesce(max(version), 0) FROM taskmanager_schema").fetchone()
        return FileSize(pages * page_bytes, free * page_bytes, version)

    def tidy(self) -> None:
        """See `Session.tidy`: the next commit that finds a large log would have to move it."""
        checkpoint(self)


def checkpoint(connection: sqlite3.Connection, is_cut: bool = False) -> bool:
    """Move the log into the file, and with `is_cut` make it empty; False when a reader kept part of it back.

    PASSIVE waits for nobody, and when another instance is at it, that one does it. TRUNCATE would wait for readers as
    long as for a lock, so it is not tried while one is known to be there, and does not wait for one that comes.

    A file that was emptied gets nothing: with a part of its pages it would be damaged, and look like the one of before.
    """
    if _is_emptied(connection):
        return True
    blocked, in_log, moved = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    if blocked:
        return True
    is_moved = in_log == moved
    if is_moved and is_cut:
        connection.execute("PRAGMA busy_timeout = 0").fetchone()
        try:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            connection.execute(f"PRAGMA busy_timeout = {round(BUSY_TIMEOUT_S * 1000)}").fetchone()
    return bool(is_moved)


def _is_emptied(connection: sqlite3.Connection) -> bool:
    _, _, path = connection.execute("PRAGMA database_list").fetchone()
    try:
        return Path(path).stat().st_size == 0
    except OSError:
        return False


@cache
def _size_for(left: int) -> int:
    """The largest size that `left` rows fill, or nearly fill; 1 if there is none."""
    return next((size for size in SIZES if left >= size * (1 - _PADDING_FRACTION)), 1)


def _alike(kind: Kind, rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the values that are the same in all rows."""
    columns = zip(*map(_picker(kind, kind.candidates), rows), strict=True)
    return tuple(
        name for name, values in zip(kind.candidates, columns, strict=True) if values.count(values[0]) == len(rows)
    )
