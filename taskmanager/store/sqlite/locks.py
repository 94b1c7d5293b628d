"""The locks on a file and on its log, from outside: who holds them, and who has it open without one.

An application commits within milliseconds, so either its lock or the log changes from look to look. Another program may
leave a transaction open; then nothing can be saved, and the application cannot write that into the file.

How much of the log is still to be moved into the file, and who holds that up, is read from the log's index, `FILE-shm`,
whose layout SQLite documents (https://sqlite.org/walformat.html): a header with the number of frames, then how many are
moved, then the marks of up to five readers, then one lock byte for each. A writer locks a byte of the index. A
connection that keeps the whole file to itself (`locking_mode=EXCLUSIVE`) locks bytes of the file
(https://sqlite.org/lockingv3.html). Nothing is read in a process that has a connection to the file: closing what was
opened would drop its locks.

A process that reads the file as bytes drops SQLite's locks on it by that (`close` of any descriptor does). It does not
notice, but whichever process closes the database next takes itself for the last one, and deletes the log. With the
log's index it is the same: whoever opens the database next takes itself for the first one, and empties the index.
"""

import contextlib
import os
import struct
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from taskmanager.model.clock import SystemClock
from taskmanager.store.processes import process_name
from taskmanager.store.sqlite.files import check_process, is_open_here

try:
    import fcntl
except ImportError:  # Windows has other locks, and keeps to itself who holds them
    fcntl = None  # type: ignore[assignment]  # asked for before each use

LONG_S: Final = 1.0
"""A writer that commits nothing for so long is a finding."""
PAUSE_S: Final = 0.05

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
        size = Path(f"{real}-wal").stat().st_size
    except FileNotFoundError:
        return WalState(0)
    with _opened(real, Path(f"{real}-shm")) as fd:
        header = b"" if fd is None else os.read(fd, _INDEX_HEADER_BYTES)
        if fd is None or len(header) < _INDEX_HEADER_BYTES:
            return WalState(size)
        (frames,) = struct.unpack_from("=I", header, _FRAMES_AT)
        (moved,) = struct.unpack_from("=I", header, _MOVED_AT)
        marks = struct.unpack_from(f"={_READERS}I", header, _MARKS_AT)
        held = ((_holder(fd, _READER_LOCKS_AT + slot), mark) for slot, mark in enumerate(marks))
        readers = tuple(Reader(pid, mark) for pid, mark in held if pid is not None)
        return WalState(size, frames, moved, readers, _holder(fd, _WRITER_LOCK_AT))


def only_user_of(path: Path) -> int | None:
    """The process that keeps the whole file to itself, so that nobody else can even read; None when nobody does."""
    check_process(path)
    with _opened(path, path.resolve()) as fd:
        return None if fd is None else _holder(fd, _SHARED_LOCKS_AT, _SHARED_LOCKS, of_readers=False)


@contextlib.contextmanager
def _opened(database: Path, file: Path) -> Iterator[int | None]:
    """A descriptor of a file of this database; None where there is none to be had."""
    fd = None
    if not is_open_here(database):
        with contextlib.suppress(OSError):
            fd = os.open(file, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


def _holder(fd: int, byte: int, length: int = 1, *, of_readers: bool = True) -> int | None:
    """A process that has locked these bytes, for reading or writing, or for writing only; this one is never told."""
    if fcntl is None:
        return None
    kind = fcntl.F_WRLCK if of_readers else fcntl.F_RDLCK  # the lock that theirs would be in the way of
    wanted = (byte, length, 0, kind, os.SEEK_SET) if _IS_BSD else (kind, os.SEEK_SET, byte, length, 0)
    try:
        answer = fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(*wanted))
    except OSError:
        return None
    fields = _FLOCK.unpack(answer)
    kind, pid = (fields[3], fields[2]) if _IS_BSD else (fields[0], fields[4])
    return None if kind == fcntl.F_UNLCK else int(pid)


class WriterWatch:
    """Watches the write lock of one file. Call it only while this process has no connection to the file."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._clock = SystemClock()
        self._seen: tuple[int | None, int] = (None, 0)
        self._since_s = 0.0

    def look(self) -> str | None:
        """Return the name of the process that has held the write lock for `LONG_S` and committed nothing, or None."""
        log, now_s = read_wal_index(self._database), self._clock.elapsed_s()
        seen = (log.writer_pid, log.frames)
        if seen != self._seen:
            self._seen, self._since_s = seen, now_s
        is_long = now_s - self._since_s >= LONG_S
        return process_name(log.writer_pid) if is_long and log.writer_pid is not None else None

    def judge(self) -> str | None:
        """Return that process in one call, which waits only while one writer holds the lock and commits nothing."""
        found = self.look()
        first = self._seen
        while found is None and self._seen == first and first[0] is not None:
            time.sleep(PAUSE_S)
            found = self.look()
        return found


def without_lock(database: Path, pids: Collection[int]) -> set[int] | None:
    """Return the processes that have the file or its log's index open without a lock on it, at two looks.

    A connection to a file with a log holds a lock on both, from its first read on. None: the system does not say.
    """
    found = _without_lock(database, pids)
    if found:
        time.sleep(LONG_S)  # one that has just opened it is no finding
        found &= _without_lock(database, found) or set()
    return found


def _without_lock(database: Path, pids: Collection[int]) -> set[int] | None:
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    # `4: POSIX  ADVISORY  READ 29296 00:1b:14915 1073741826 1073742335`; the device is not that of `stat` everywhere.
    words = [line.split() for line in lines if " POSIX " in line and "->" not in line]
    held = {(int(each[4]), int(each[5].rpartition(":")[2])) for each in words}
    real, found = database.resolve(), set()
    for name in (real, Path(f"{real}-shm")):
        with contextlib.suppress(FileNotFoundError):
            file = name.stat()
            found |= {pid for pid in pids if (pid, file.st_ino) not in held and _has_open(pid, file)}
    return found


def _has_open(pid: int, file: os.stat_result) -> bool:
    with contextlib.suppress(OSError):  # it has ended, or is another user's
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.path.samestat(each.stat(), file):
                    return True
    return False
