"""The database files that this process has open, and those that its parent had open when it was forked.

SQLite records in the memory of a process which locks it holds on a file. A fork copies that record, but the kernel does
not copy the locks. Whoever opens the file in the child holds locks that exist on paper only: it waits for ever, or
writes beside its parent, and the file is damaged. So the child may not open such a file at all, by whatever name.

What the child inherits is neither used nor closed there: closing rolls back, and may delete the log of the parent.
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
"""What is said of a file, behind its path."""

_open: Final[set["FileConnection"]] = set()
_of_parent: Final[set[FileId]] = set()


class FileConnection(sqlite3.Connection):
    """A connection that is on record from before it opens its file until it has closed it: a fork may come between."""

    def __init__(self, path: str, database: str, *args: Any, **options: Any) -> None:
        check_process(path)
        self.is_inherited = False
        self.kept_with: object = None
        """What a forked child must not collect either."""
        self.ids = {id_at(path)}
        _open.add(self)
        try:
            super().__init__(database, *args, **options)
            self.ids.add(id_at(path))  # it may have been replaced in between
        except BaseException:
            _open.discard(self)
            raise

    def close(self) -> None:
        """Close it. An inherited one stays open."""
        if not self.is_inherited:
            super().close()
            _open.discard(self)


class Factory:
    """The `factory` of one connection to this file. Who waits for the connection may be cancelled while another thread
    makes it: nobody has it then, and nobody else would ever close it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._made: FileConnection | None = None
        self._is_wanted = True

    def __call__(self, *args: Any, **options: Any) -> FileConnection:
        self._made = made = FileConnection(self._path, *args, **options)
        if not self._is_wanted:
            made.close()
        return made

    def forget(self) -> None:
        """Close what it has made, or makes from here on."""
        self._is_wanted = False
        if self._made is not None:
            self._made.close()


def open_existing(path: str, mode: str, **options: Any) -> FileConnection:
    """Connect to a file that is there; `mode` is the rest of SQLite's URI: `mode=ro` or `mode=rw`, and more."""
    uri = f"{Path(path).absolute().as_uri()}?{mode}"
    return FileConnection(path, uri, uri=True, isolation_level=None, **options)


def check_process(path: str | os.PathLike[str]) -> None:
    """Raise `WrongProcess` where the parent of this process had the file open at the fork. Compares files, not paths.

    Call it before anything else is done with a file.
    """
    with suppress(StoreError):  # what cannot be looked at cannot be opened either
        if _of_parent and id_at(os.fspath(path)) in _of_parent:
            raise WrongProcess(
                f"{path} {IS_FORKED}. Start this process by spawn (a `spawn` context of multiprocessing, a "
                "subprocess), or fork before the manager starts; do not open the file with plain sqlite3 here either"
            )


def is_open_here(path: str | os.PathLike[str]) -> bool:
    """Whether a connection of this library has the file open in this process: then nothing else may open and close it,
    which would drop SQLite's locks.
    """
    with suppress(StoreError):
        found = id_at(os.fspath(path))
        return found is not None and any(found in each.ids for each in list(_open))
    return False


def keep_open(kept: object) -> None:
    """Close it never, not even at the end of the interpreter."""
    import ctypes  # only a forked child with open connections, or who lost a volume, pays for it

    # A set would be emptied when the interpreter ends, and the connections closed: one reference is leaked.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def _leave_to_parent() -> None:
    """In a forked child: nothing that is open belongs to it, the application's own connections included."""
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
