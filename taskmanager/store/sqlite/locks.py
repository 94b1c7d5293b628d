"""Finds processes that keep everybody else from writing, and processes that have the file open without a lock.

An application commits within milliseconds, so either its lock or the log changes from look to look. Another program may
leave a transaction open; then nothing can be saved, and the application cannot write that into the file.

A process that reads the file as bytes drops SQLite's locks on it by that (`close` of any descriptor does). It does not
notice, but whichever process closes the database next takes itself for the last one, and deletes the log. With the
log's index it is the same: whoever opens the database next takes itself for the first one, and empties the index.
"""

import contextlib
import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

from taskmanager.model.clock import SystemClock
from taskmanager.store.sqlite.wal_index import read_wal_index

LONG_S: Final = 1.0
"""A writer that commits nothing for so long is a finding."""
PAUSE_S: Final = 0.05


class WriterWatch:
    """Watches the write lock of one file. Call it only while this process has no connection to the file."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._clock = SystemClock()
        self._seen: tuple[int | None, int] = (None, 0)
        self._since_s = 0.0

    def look(self) -> int | None:
        """Return the process that has held the write lock for `LONG_S` and has committed nothing, or None."""
        log, now_s = read_wal_index(self._database), self._clock.elapsed_s()
        seen = (log.writer_pid, log.frames)
        if seen != self._seen:
            self._seen, self._since_s = seen, now_s
        return log.writer_pid if now_s - self._since_s >= LONG_S else None

    def judge(self) -> int | None:
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
    for name in (real, real.with_name(real.name + "-shm")):
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


def process_name(pid: int) -> str:
    """Return `process 123 (python report.py)`, or less if the system does not tell its command line."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        words = []
    line = " ".join(word.decode("utf-8", "replace") for word in words if word)
    return f"process {pid} ({line[:60]})" if line else f"process {pid}"
