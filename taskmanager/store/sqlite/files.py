"""The file, its log and the log's index: whether they still are the ones that were opened.

A deleted file gives no error: whoever has it open goes on using it, and whoever comes later makes a new one. When that
happens to the log or its index alone, both write to one database through two logs, until it is damaged
(https://sqlite.org/howtocorrupt.html). Only `stat` is used: opening and closing a file would drop SQLite's locks.
"""

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from taskmanager.model.errors import StoreUnavailable

FileId = tuple[int, int]


class Files(NamedTuple):
    """Which files the names led to when they were opened, and the device their folder was on. None: there was none."""

    path: str
    folder_path: str
    volume: int | None
    log_path: str
    log_index_path: str
    database: FileId | None
    log: FileId | None
    log_index: FileId | None

    @classmethod
    def of(cls, path: str) -> "Files":
        """As they are now."""
        real = os.path.realpath(path)  # the log lies beside the file itself, not beside a link to it
        log_path, log_index_path = f"{real}-wal", f"{real}-shm"
        folder_path = os.path.dirname(real)  # noqa: PTH120  # as in `_stat`
        return cls(
            path,
            folder_path,
            _device_of(folder_path),
            log_path,
            log_index_path,
            *map(id_at, (path, log_path, log_index_path)),
        )

    def is_database_there(self) -> bool:
        """Whether the path still leads to this file. One that was emptied is gone as well: it has a page at least.

        A volume that was unmounted, or has another one over it, took nothing with it: that raises `StoreUnavailable`.
        Made anew in what is there instead, the file would vanish with all that was promised since when it is back.
        """
        found = _stat(self.path)
        if found is None and _device_of(self.folder_path) not in (None, self.volume):
            raise StoreUnavailable(
                f"the volume that {self.path} is on is not mounted there now; mount it again, or put an empty file "
                "there to go on with a new one"
            )
        return found is not None and _id(found) == self.database and found.st_size > 0

    def has_namesake(self) -> bool:
        """Whether a file of the same number, and of another volume, is there now: a snapshot that was restored, say.

        SQLite compares the number alone. Whichever connection to this file is the last one to be closed would take that
        one for its own, and delete its log with all it holds: so one must stay open.
        """
        with contextlib.suppress(StoreUnavailable):
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
        return (self.log is None or id_at(self.log_path) == self.log) and (
            self.log_index is None or id_at(self.log_index_path) == self.log_index
        )

    def is_log_used_here(self) -> bool:
        """Whether the connections of this process use this index. All of one process share one, and so go on with one
        that was deleted as long as any of them is open, whatever others find by its name.
        """
        return self.log_index is not None and _is_open_here(self.log_index)

    def remove_log(self) -> None:
        """Take away what is left of this log and index, and nobody else's: no other database may be read through it."""
        _remove(self.log_path, self.log)
        _remove(self.log_index_path, self.log_index)

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


def _device_of(folder_path: str) -> int | None:
    found = _stat(folder_path)
    return None if found is None else found.st_dev


def _id(found: os.stat_result) -> FileId:
    return found.st_dev, found.st_ino


def _is_open_here(wanted: FileId) -> bool:
    found = ids_of_descriptors()
    return found is None or wanted in found


def ids_of_descriptors() -> frozenset[FileId] | None:
    """The files that this process has open, by whichever code; None where the system does not say."""
    try:
        descriptors = list(Path("/proc/self/fd").iterdir())
    except OSError:
        return None  # elsewhere than on Linux nobody says
    found = set()
    for each in descriptors:
        with contextlib.suppress(OSError):
            found.add(_id(os.fstat(int(each.name))))
    return frozenset(found)


def _remove(name: str, mine: FileId | None) -> None:
    if mine is not None and id_at(name) == mine:
        with contextlib.suppress(OSError):
            Path(name).unlink()
