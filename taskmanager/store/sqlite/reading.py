"""A database file opened only to look at it: no file is made, no write lock is taken, no row is changed.

Works while the application runs, after it has stopped, and on what a crash has left: SQLite itself replays a leftover
log in memory. A file of another schema is refused, not migrated; that is for the application to do.
"""

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.store.place import READ_PATIENCE_S
from taskmanager.store.sql.rows import text_of
from taskmanager.store.sqlite.connection import check_sqlite_version, translate
from taskmanager.store.sqlite.files import check_process, open_existing
from taskmanager.store.sqlite.forks import new_guard
from taskmanager.store.sqlite.schema import check_is_ours, check_version
from taskmanager.store.sqlite.session import SqliteSession, primary_code

_SLICE_S: Final = 0.1
"""How long SQLite waits at a time: no signal is heard meanwhile, and Ctrl-C should be."""

_NO_SIDE_FILES: Final = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL})


@contextmanager
def open_read_only(
    path: str | os.PathLike[str], *, patience_s: float = READ_PATIENCE_S, is_any_version: bool = False
) -> Iterator[SqliteSession]:
    """A connection that cannot write, in autocommit mode, for the `with` block.

    Open it anew for every look: where the directory cannot be written, what it shows is frozen at the opening.

    Raises `StoreUnavailable` when the file is not there or cannot be read, and `StoreError` when it is no database,
    holds no tasks of this library, has another schema or is damaged. Errors of the driver in the block are translated.
    """
    check_sqlite_version()
    check_process(path)
    target = Path(path)
    _check_file(target)
    try:
        with new_guard(), closing(_connect(target, patience_s)) as connection:
            (check_is_ours if is_any_version else check_version)(connection, str(target))
            yield connection
    except sqlite3.Error as error:
        raise _explained(target, error) from error


def _check_file(path: Path) -> None:
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise StoreUnavailable(
            f"there is no file {path}; the application makes it when it starts, and nothing was made here"
        ) from error
    except OSError as error:
        line = f"{path} cannot be reached ({error.strerror}); look at the directories above it"
        raise StoreUnavailable(line) from error
    if is_folder:
        raise StoreError(f"{path} is a directory; give the path of the database file in it")
    if not os.access(path, os.R_OK):
        raise StoreUnavailable(f"{path} cannot be read; make it readable for this user, or become the one who owns it")


def _connect(path: Path, patience_s: float) -> SqliteSession:
    """Connected and read from once: only then does SQLite look at the file, and need its side files."""
    try:
        return _open(path, "mode=ro", patience_s)
    except sqlite3.OperationalError as error:
        # The side files can neither be made nor written in this directory, or on this full disk. Without a log nobody
        # is connected, so the file alone is the truth; with one it is not.
        if primary_code(error) not in _NO_SIDE_FILES or _log_size(path):
            raise
        return _open(path, "mode=ro&immutable=1", patience_s)


def _open(path: Path, mode: str, patience_s: float) -> SqliteSession:
    for left in reversed(range(max(1, round(patience_s / _SLICE_S)))):
        connection = open_existing(str(path), mode, timeout=_SLICE_S)
        connection.text_factory = text_of
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            connection.execute(f"PRAGMA busy_timeout = {round(patience_s * 1000)}")
        except sqlite3.Error as error:
            connection.close()
            if primary_code(error) != sqlite3.SQLITE_BUSY or not left:
                raise
        else:
            return connection
    raise AssertionError(patience_s)  # the last one returns or raises


def _log_size(path: Path) -> int:
    try:
        # The log lies beside the file itself, whatever link has led there.
        return Path(f"{path.resolve()}-wal").stat().st_size
    except FileNotFoundError:
        return 0


def _explained(path: Path, error: sqlite3.Error) -> StoreError:
    code = primary_code(error)
    if code == sqlite3.SQLITE_NOTADB:
        return StoreError(f"{path} is not a database; give the path of the file that the application writes")
    if code in _NO_SIDE_FILES and _log_size(path):
        return StoreUnavailable(
            f"{path} has a log that cannot be replayed where the directory is read-only, or the disk full; "
            f"copy {path.name} and {path.name}-wal to a directory you can write, and look at them there"
        )
    return translate(str(path), error)
