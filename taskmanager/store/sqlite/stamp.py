"""A look at the log from outside that costs a microsecond: can anybody have committed since the last thorough look?

A commit writes to the log, and a write moves the time at which the file was changed. Three things weaken that, and each
only on the side of a look too many, or of one that comes a second late:

- The time is coarse, so a log that was changed in the last moments is looked at thoroughly.
- A commit counts some time after its write: the disk comes between, or the process is stopped there. Hence those last
  moments are seconds, and a quiet log is looked at thoroughly about every second all the same.
- A file system may be lazy about the time; Windows is, and is not asked.
"""

import os
from typing import Final

from taskmanager.model.clock import SystemClock

TRUSTED_S: Final = 0.9
"""For so long a log that looks the same is taken to be the same."""
SETTLED_US: Final = 2_000_000
"""A log that was changed less than this ago may be about to count, or be changed again at what looks the same time."""
_CLOCK: Final = SystemClock()  # the files' times are those of the machine, whatever clock a test has
_HAS_PROMPT_TIMES: Final = os.name == "posix"

_Stamp = tuple[int, int, int, int]


class LogStamp:
    """The log of one database, between two thorough looks."""

    def __init__(self, database: str) -> None:
        self._path = f"{os.path.realpath(database)}-wal"
        self._seen: _Stamp | None = None
        self._trusted_until_s = 0.0

    def __repr__(self) -> str:
        return f"<LogStamp of {self._path}, {'unknown' if self._seen is None else 'known'}>"

    @property
    def is_unchanged(self) -> bool:
        """Whether a thorough look would find what the last one found."""
        return self._seen is not None and _CLOCK.elapsed_s() < self._trusted_until_s and self._seen == self.read()

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
