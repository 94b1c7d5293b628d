"""A look at the log from outside that costs a microsecond: can anybody have committed since the last thorough look?

A commit writes to the log, and a write moves the time at which the file was changed. Three things weaken that, and each
only on the side of a look too many, or of one that comes a second late:

- The time is coarse, so a log that was changed in the last moments is looked at thoroughly.
- A commit counts some time after its write: the disk comes between, or the process is stopped there. Hence those last
  moments are seconds, and a quiet log is looked at thoroughly about every second all the same.
- A file system may be lazy about the time; Windows is, and is not asked.
"""

import os
import sys
from contextlib import suppress
from typing import Final

from taskmanager.model.clock import SystemClock

TRUSTED_S: Final = 0.9
"""For so long a log that looks the same is taken to be the same."""
SETTLED_US: Final = 2_000_000
"""A log that was changed less than this ago may be about to count, or be changed again at what looks the same time."""
_CLOCK: Final = SystemClock()  # the files' times are those of the machine, whatever clock a test has
_MODIFIED: Final = 0x2
"""IN_MODIFY of inotify."""
_HAS_PROMPT_TIMES: Final = os.name == "posix"

_Stamp = tuple[int, int, int, int]


class LogEvents:
    """Tells of the next write to the log by inotify, so that a process with nothing to do need not look for itself.

    To wake it for a look 40 times a second would take 0.7 % of a core.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._inode = 0

    def __repr__(self) -> str:
        return f"<LogEvents of {self._path}, {'off' if self._descriptor is None else 'on'}>"

    def renew(self) -> int | None:
        """Return a descriptor that can be read after the next write. None where there is no inotify, or no log."""
        try:
            inode = os.stat(self._path).st_ino  # noqa: PTH116  # as below
        except OSError:
            return None
        if self._descriptor is None or inode != self._inode:
            self.close()
            self._descriptor, self._inode = _watched(self._path), inode
        elif self._descriptor is not None:
            with suppress(BlockingIOError):
                while os.read(self._descriptor, 4096):
                    pass
        return self._descriptor

    def close(self) -> None:
        """Tell nothing any more."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _watched(path: str) -> int | None:
    if sys.platform != "linux":
        return None
    import ctypes  # 10 ms, which only a process pays that waits for others

    descriptor: int = -1
    try:
        libc = ctypes.CDLL(None)
        descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if descriptor >= 0 and libc.inotify_add_watch(descriptor, os.fsencode(path), _MODIFIED) >= 0:
            return descriptor
    except (OSError, AttributeError):  # a system library without it
        return None
    if descriptor >= 0:
        os.close(descriptor)
    return None


class LogStamp:
    """The log of one database, between two thorough looks."""

    def __init__(self, database: str) -> None:
        self._path = f"{os.path.realpath(database)}-wal"
        self.events = LogEvents(self._path)
        self._seen: _Stamp | None = None
        self._trusted_until_s = 0.0

    def __repr__(self) -> str:
        return f"<LogStamp of {self._path}, {'unknown' if self._seen is None else 'known'}>"

    @property
    def is_unchanged(self) -> bool:
        """Whether a thorough look would find what the last one found."""
        return self._seen is not None and _CLOCK.elapsed_s() < self._trusted_until_s and self._seen == self.read()

    def mark(self) -> tuple[int, int, int] | None:
        """What differs after a write, for who looks again some moments later; None where there is no prompt time."""
        try:
            found = os.stat(self._path)  # noqa: PTH116  # as below
        except OSError:
            return (0, 0, 0)
        return (found.st_mtime_ns, found.st_size, found.st_ino) if _HAS_PROMPT_TIMES else None

    def read(self) -> _Stamp | None:
        """What tells one state of the log from another; None where it says nothing."""
        if not _HAS_PROMPT_TIMES:
            return None
        now_us = _CLOCK.now_us()
        try:
            found = os.stat(self._path)  # noqa: PTH116  # done all the time, and a Path costs more than the call
        except OSError:
            return None
        if now_us - found.st_mtime_ns // 1_000 < SETTLED_US:  # also one from the future: a clock was stepped
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev

    def note(self, stamp: _Stamp | None) -> None:
        """A thorough look was made, and this was read before it began."""
        self._seen = stamp
        self._trusted_until_s = _CLOCK.elapsed_s() + TRUSTED_S
