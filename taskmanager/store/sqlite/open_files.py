"""The database files that this process has open, and those that its parent had open when it was forked.

SQLite records in the memory of a process which locks it holds on a file. A fork copies that record, but the kernel does
not copy the locks. If the child opens the file, SQLite believes in locks that the child does not hold. The child then
waits for ever, or writes at the same time as its parent and damages the file. So the child may not open such a file at
all, by whatever name.

The child neither uses nor closes inherited connections: closing rolls back, and may delete the log of the parent.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from taskmanager.model.errors import StoreError, WrongProcess
from taskmanager.store.sqlite.files import FileId, id_at, ids_of_descriptors

IS_FORKED: Final = (
    "was open in the parent process when this one was forked, and SQLite's record of its locks was copied with it: "
    "used here as well, the file would be damaged"
)
"""The end of a message that begins with the path of the file."""

_open: Final[set["FileConnection"]] = set()
_of_parent: Final[set[FileId]] = set()


class FileConnection(sqlite3.Connection):
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
        _of_parent.update(_known(each.ids))
    _open.clear()
    _of_parent.update(ids_of_descriptors() or ())


def _known(ids: set[FileId | None]) -> Iterator[FileId]:
    return (each for each in ids if each is not None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
