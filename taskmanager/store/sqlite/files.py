"""The files of a database: whether they still are the ones that were opened, and which of them this process has open.

A deleted file gives no error: whoever has it open goes on using it, and whoever comes later makes a new one. When that
happens to the log or its index alone, both write to one database through two logs, until it is damaged
(https://sqlite.org/howtocorrupt.html). Only `stat` is used: opening and closing a file would drop SQLite's locks.

SQLite records in the memory of a process which locks it holds on a file. A fork copies that record, but the kernel does
not copy the locks. If the child opens the file, SQLite believes in locks that the child does not hold. The child then
waits for ever, or writes at the same time as its parent and damages the file. So the child may not open such a file at
all, by whatever name. The child neither uses nor closes inherited connections: closing rolls back, and may delete the
log of the parent.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from taskmanager.model.errors import StoreError, StoreUnavailable, WrongProcess
from taskmanager.store.sqlite.session import SqliteSession

FileId = tuple[int, int]
IS_FORKED: Final = (
    "was open in the parent process when this one was forked, and SQLite's record of its locks was copied with it: "
    "used here as well, the file would be damaged"
)
"""The end of a message that begins with the path of the file."""


class Files(NamedTuple):
    """Which files the names led to when they were opened, and the device their folder was on. None: there was none."""

    path: str
    real_path: str
    """The log lies beside the file itself, not beside a link to it."""
    volume: int | None
    database: FileId | None
    log: FileId | None
    log_index: FileId | None

    @classmethod
    def of(cls, path: str) -> "Files":
        """As they are now."""
        real = os.path.realpath(path)
        return cls(path, real, _volume_of(real), *map(id_at, (path, f"{real}-wal", f"{real}-shm")))

    def is_database_there(self) -> bool:
        """Whether the path still leads to this file. One that was emptied is gone as well: it has a page at least.

        A volume that was unmounted, or has another one over it, took nothing with it: that raises `StoreUnavailable`.
        Made anew in what is there instead, the file would vanish with all that was promised since when it is back.
        """
        found = _stat(self.path)
        if found is None and _volume_of(self.real_path) not in (None, self.volume):
            raise StoreUnavailable(
                f"the volume that {self.path} is on is not mounted there now; mount it again, or put an empty file "
                "there to go on with a new one"
            )
        return found is not None and _id(found) == self.database and found.st_size > 0

    def is_emptied(self) -> bool:
        """Whether the path leads to this file, and nothing is in it."""
        found = _stat(self.path)
        return found is not None and _id(found) == self.database and found.st_size == 0

    def has_namesake(self) -> bool:
        """Whether a file of the same number, and of another volume, is there now: a snapshot that was restored, say.

        SQLite compares the number alone. Whichever connection to this file is the last one to be closed would take that
        one for its own, and delete its log with all it holds: so one must stay open.
        """
        with suppress(StoreUnavailable):
            found = id_at(self.path)
            return (
                found is not None
                and self.database is not None
                and found != self.database
                and found[1] == self.database[1]
            )
        return False

    def is_log_there(self) -> bool:
        """Whether whoever opens the database finds this log and this index."""
        return (self.log is None or id_at(f"{self.real_path}-wal") == self.log) and (
            self.log_index is None or id_at(f"{self.real_path}-shm") == self.log_index
        )

    def is_log_used_here(self) -> bool:
        """Whether the connections of this process use this index. All of one process share one, and so go on with one
        that was deleted as long as any of them is open, whatever others find by its name.
        """
        open_here = _ids_of_descriptors()
        return self.log_index is not None and (open_here is None or self.log_index in open_here)

    def remove_log(self) -> None:
        """Take away what is left of this log and index, and nobody else's: no other database may be read through it."""
        _remove(f"{self.real_path}-wal", self.log)
        _remove(f"{self.real_path}-shm", self.log_index)

    def remove_leftovers(self) -> None:
        """The database is not there any more: remove what would be taken for a part of the next one."""
        real = os.path.realpath(self.path)
        found = _stat(real)
        if found is not None and found.st_size == 0:
            _remove(real, self.database)
        self.remove_log()


def _stat(name: str) -> os.stat_result | None:
    try:
        return os.stat(name)  # noqa: PTH116  # done all the time, and a Path costs more than the call
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:  # a directory that was closed, a volume that does not answer: nothing is known of it
        raise StoreUnavailable(f"{name} cannot be looked at ({error.strerror})") from error


def id_at(name: str) -> FileId | None:
    """The file that the name leads to, or None; `StoreUnavailable` where that cannot be looked at."""
    found = _stat(name)
    return None if found is None else _id(found)


def _volume_of(real_path: str) -> int | None:
    found = _stat(os.path.dirname(real_path))  # noqa: PTH120  # as in `_stat`
    return None if found is None else found.st_dev


def _id(found: os.stat_result) -> FileId:
    return found.st_dev, found.st_ino


def _ids_of_descriptors() -> frozenset[FileId] | None:
    """The files that this process has open, by whichever code; None where the system does not say."""
    try:
        descriptors = list(Path("/proc/self/fd").iterdir())
    except OSError:
        return None  # elsewhere than on Linux nobody says
    found = set()
    for each in descriptors:
        with suppress(OSError):
            found.add(_id(os.fstat(int(each.name))))
    return frozenset(found)


def _remove(name: str, mine: FileId | None) -> None:
    if mine is not None and id_at(name) == mine:
        with suppress(OSError):
            Path(name).unlink()


_open: Final[set["FileConnection"]] = set()
_of_parent: Final[set[FileId]] = set()


class FileConnection(SqliteSession):
    """A connection that is listed from before it opens its file until it has closed it. A fork may come between."""

    def __init__(self, path: str, database: str, *args: Any, **options: Any) -> None:
        check_process(path)
        self.is_inherited = False
        self.ids = {id_at(path)}
        _open.add(self)
        try:
            super().__init__(database, *args, **options)
            self.ids.add(id_at(path))  # the file may have been replaced in between
        except BaseException:
            _open.discard(self)
            raise

    def close(self) -> None:
        """Close it. An inherited one stays open."""
        if not self.is_inherited:
            super().close()
            _open.discard(self)


def open_existing(path: str, mode: str, **options: Any) -> FileConnection:
    """Connect to a file that exists. `mode` is the query of SQLite's URI: `mode=ro` or `mode=rw`, and perhaps more."""
    uri = f"{Path(path).absolute().as_uri()}?{mode}"
    return FileConnection(path, uri, uri=True, isolation_level=None, **options)


def check_process(path: str | os.PathLike[str]) -> None:
    """Raise `WrongProcess` if the parent of this process had the file open at the fork. Compares files, not paths.

    Call it before anything else is done with a file.
    """
    with suppress(StoreError):  # what cannot be looked at cannot be opened either
        if _of_parent and id_at(os.fspath(path)) in _of_parent:
            raise WrongProcess(
                f"{path} {IS_FORKED}. Start this process by spawn (a `spawn` context of multiprocessing, a "
                "subprocess), or fork before the manager starts; do not open the file with plain sqlite3 here either"
            )


def is_open_here(path: str | os.PathLike[str]) -> bool:
    """Whether a connection of this library has the file open in this process.

    If so, nothing else may open and close the file: a close drops SQLite's locks.
    """
    with suppress(StoreError):
        found = id_at(os.fspath(path))
        return found is not None and any(found in each.ids for each in list(_open))
    return False


def keep_open(kept: object) -> None:
    """Never let Python close it, not even at the end of the interpreter."""
    import ctypes  # imported late: only a forked child or the loss of a volume needs it

    # A set would be emptied when the interpreter ends, and the connections closed: one reference is leaked.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def _leave_to_parent() -> None:
    """Note in a forked child that no open file belongs to it, also those of the application's own connections."""
    for each in _open:
        each.is_inherited = True
        keep_open(each)
        _of_parent.update(filter(None, each.ids))
    _open.clear()
    _of_parent.update(_ids_of_descriptors() or ())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
