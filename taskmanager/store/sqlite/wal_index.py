"""The write-ahead log from outside: how much of it is still to be moved into the file, and which processes hold what.

Read from the log's index, `FILE-shm`, whose layout SQLite documents (https://sqlite.org/walformat.html): a header with
the number of frames, then how many are moved, then the marks of up to five readers, then one lock byte for each.

A writer locks a byte of the index. A connection that keeps the whole file to itself (`locking_mode=EXCLUSIVE`) locks
bytes of the file (https://sqlite.org/lockingv3.html).

Nothing is read in a process that has a connection to the file: closing the index would drop its locks on it.
"""

import os
import struct
import sys
from pathlib import Path
from typing import Final, NamedTuple

from taskmanager.store.sqlite.open_files import check_process, is_open_here

try:
    import fcntl
except ImportError:  # Windows has other locks, and keeps to itself who holds them
    fcntl = None  # type: ignore[assignment]  # asked for before each use

_FRAMES_AT: Final = 16
_MOVED_AT: Final = 96
_MARKS_AT: Final = 100
_WRITER_LOCK_AT: Final = 120
_READER_LOCKS_AT: Final = 123
_READERS: Final = 5
_INDEX_HEADER_BYTES: Final = 136
_SHARED_LOCKS_AT: Final = 0x4000_0002
_SHARED_LOCKS: Final = 510

# `struct flock`: type, whence, start, length, pid; in another order where BSD comes from.
_IS_BSD: Final = sys.platform == "darwin" or "bsd" in sys.platform
_FLOCK: Final = struct.Struct("qqihh" if _IS_BSD else "hhqqi4x")


class Reader(NamedTuple):
    """A process in a read transaction that began when the log had `mark` frames; later ones cannot be reused."""

    pid: int
    mark: int


class WalState(NamedTuple):
    """The log at one moment. `frames` are all pages in it, `moved` those that are in the file already."""

    size_bytes: int
    frames: int = 0
    moved: int = 0
    readers: tuple[Reader, ...] = ()
    writer_pid: int | None = None
    """The process in a write transaction: nobody else can write meanwhile."""

    @property
    def pinned_by(self) -> tuple[Reader, ...]:
        """Readers of an older state: while they last, the log only grows."""
        return tuple(reader for reader in self.readers if reader.mark < self.frames)


def read_wal_index(path: Path) -> WalState:
    """The log of a database file; an empty one where there is none."""
    real = path.resolve()
    check_process(real)
    try:
        size = real.with_name(real.name + "-wal").stat().st_size
    except FileNotFoundError:
        return WalState(0)
    if is_open_here(real):
        return WalState(size)
    try:
        fd = os.open(real.with_name(real.name + "-shm"), os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError:
        return WalState(size)
    try:
        header = os.read(fd, _INDEX_HEADER_BYTES)
        if len(header) < _INDEX_HEADER_BYTES:
            return WalState(size)
        (frames,) = struct.unpack_from("=I", header, _FRAMES_AT)
        (moved,) = struct.unpack_from("=I", header, _MOVED_AT)
        marks = struct.unpack_from(f"={_READERS}I", header, _MARKS_AT)
        held = ((_holder(fd, _READER_LOCKS_AT + slot), mark) for slot, mark in enumerate(marks))
        readers = tuple(Reader(pid, mark) for pid, mark in held if pid is not None)
        return WalState(size, frames, moved, readers, _holder(fd, _WRITER_LOCK_AT))
    finally:
        os.close(fd)


def only_user_of(path: Path) -> int | None:
    """The process that keeps the whole file to itself, so that nobody else can even read; None when nobody does."""
    check_process(path)
    if is_open_here(path):
        return None
    try:
        fd = os.open(path.resolve(), os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError:
        return None
    try:
        return None if fcntl is None else _holder(fd, _SHARED_LOCKS_AT, _SHARED_LOCKS, against=fcntl.F_RDLCK)
    finally:
        os.close(fd)


def _holder(fd: int, byte: int, length: int = 1, *, against: int | None = None) -> int | None:
    """A process whose lock on these bytes is in the way, by default of a write lock; this one is never among them."""
    if fcntl is None:
        return None
    kind = fcntl.F_WRLCK if against is None else against
    wanted = (byte, length, 0, kind, os.SEEK_SET) if _IS_BSD else (kind, os.SEEK_SET, byte, length, 0)
    try:
        answer = fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(*wanted))
    except OSError:
        return None
    fields = _FLOCK.unpack(answer)
    kind, pid = (fields[3], fields[2]) if _IS_BSD else (fields[0], fields[4])
    return None if kind == fcntl.F_UNLCK else int(pid)
