"""Copies a file that is in use into a new one, through SQLite: the copy is the file as it was at one moment.

Reading the bytes of the file would miss what is in its log. In a process that has the file open it would also do harm,
because closing any descriptor of a file drops all of SQLite's locks on it.

The copy is made under another name. It is checked before it gets the name that was asked for. So a file of that name is
always a whole backup, the new one or the old one.
"""

import contextlib
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.model.wording import remedy
from taskmanager.store.sqlite.files import open_existing
from taskmanager.store.sqlite.health import damages
from taskmanager.store.sqlite.session import SqliteSession, primary_code

STEP_PAGES: Final = 1_000
"""How many pages one step copies. Ctrl-C is heard between two steps. No writer waits for a step."""
MAX_FAULTS: Final = 3
_SIDE_FILES: Final = ("-wal", "-shm", "-journal")


def back_up(source: SqliteSession, database: Path, file: Path, *, is_replacing: bool) -> int:
    """Write what `source` sees of `database` to `file`, with mode 0600. Return the size in bytes.

    Raises `StoreError`, and changes nothing, if `file` exists already and `is_replacing` is false, if it belongs to the
    database, if it cannot be made, or if the copy is damaged.
    """
    try:
        _check_place(database, file, is_replacing=is_replacing)
    except OSError as error:  # a name that is too long, a folder that may not be looked into
        raise StoreUnavailable(f"{file} cannot be looked at ({error.strerror}); give another path") from error
    with _new_file_beside(file) as part:
        try:
            with closing(open_existing(str(part), "mode=rw")) as copy:
                _copy_pages(source, copy)
                # A file that nobody writes to needs no log beside it. The application turns the log on again.
                copy.execute("PRAGMA journal_mode = DELETE").fetchone()
                faults = damages(copy, MAX_FAULTS)
        except sqlite3.Error as error:
            raise _explained(database, file, error) from error
        if faults:
            raise StoreError(
                f"the copy of {database} is damaged, as the file itself must be ({'; '.join(faults)}); {file} was left "
                f"as it was. Run `taskmanager doctor --db {database}`"
            )
        size_bytes = part.stat().st_size
        _put_in_place(part, file, is_replacing=is_replacing)
    return size_bytes


def _copy_pages(source: SqliteSession, copy: sqlite3.Connection) -> None:
    with source.snapshot():
        source.execute("SELECT count(*) FROM sqlite_master").fetchone()  # or each step begins its own
        source.backup(copy, pages=STEP_PAGES, progress=_hear_signals)


def _hear_signals(status: int, remaining: int, total: int) -> None:
    """Do nothing. Python handles signals whenever it calls this."""


def _check_place(database: Path, file: Path, *, is_replacing: bool) -> None:
    real = database.resolve()
    if file.resolve() in {real, *(real.with_name(real.name + ending) for ending in _SIDE_FILES)} or (
        file.exists() and file.samefile(database)
    ):
        raise StoreError(f"{file} is the database itself, or belongs to it; give the path of another file")
    if file.is_dir():
        raise StoreError(f"{file} is a directory; give the path of a file in it")
    if file.exists() and not file.is_file():
        raise StoreError(f"{file} is a device, a pipe or a socket; give the path of a file")
    if not is_replacing and _is_there(file):
        raise _taken(file)
    for ending in _SIDE_FILES:
        if _is_there(file.with_name(file.name + ending)):
            raise StoreError(
                f"{file}{ending} is there: a program has a database {file} open, or has left that, and it would be "
                "taken for a part of the backup; give another path, or remove it when nobody uses it"
            )


def _is_there(path: Path) -> bool:
    return os.path.lexists(path)  # a link that leads nowhere is there


def _taken(file: Path) -> StoreError:
    return StoreError(f"{file} is there already, and was left as it was; give another path, or --force to replace it")


@contextmanager
def _new_file_beside(file: Path) -> Iterator[Path]:
    """Make an empty file in the same folder, which only this user can read. Remove it and its side files at the end."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=".taskmanager-backup-", dir=file.parent)
    except OSError as error:
        raise StoreUnavailable(
            f"{file} cannot be made ({error.strerror}): "
            f"{remedy(error, f'{file.parent.absolute()} must be a folder that this user may write, with room on it')}"
        ) from error
    os.close(descriptor)
    part = Path(name)
    try:
        yield part
    finally:
        for ending in ("", *_SIDE_FILES):
            part.with_name(part.name + ending).unlink(missing_ok=True)


def _put_in_place(part: Path, file: Path, *, is_replacing: bool) -> None:
    """Rename the copy, so that a reader finds all of it or what was there before. SQLite has synced it already."""
    try:
        if is_replacing:
            part.replace(file)
        else:
            _rename_to_new(part, file)
    except FileExistsError as error:
        raise _taken(file) from error
    except OSError as error:
        raise StoreUnavailable(f"{file} cannot be made ({error.strerror}); nothing was changed") from error
    _sync_folder(file.parent)


def _rename_to_new(part: Path, file: Path) -> None:
    try:
        file.hardlink_to(part)  # fails if the file has been made meanwhile, where a rename would replace it
    except FileExistsError:
        raise
    except (OSError, NotImplementedError) as error:  # a file system without hard links
        if _is_there(file):
            raise FileExistsError from error
        part.rename(file)


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # Windows opens no folders
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _explained(database: Path, file: Path, error: sqlite3.Error) -> StoreError:
    advice = f"run `taskmanager doctor --db {database}`"
    if primary_code(error) == sqlite3.SQLITE_FULL:
        advice = f"the disk of {file} is full; free some space, or give a path on another disk"
    return StoreUnavailable(f"{database} could not be copied ({error}), and {file} was left as it was: {advice}")
