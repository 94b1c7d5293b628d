"""Watches the size of the write-ahead log: it is moved into the file, cut, reported, and in the end kept from growing.

The log grows for as long as another connection reads an old state of the file, in a forgotten SELECT for example: none
of its space can be used again meanwhile. Nothing is lost by that, but a log that fills the disk takes the application
with it, so from `refuse_bytes` on the store counts as unavailable.

Moving it makes the file larger, which needs room as well: a disk that the log itself has filled would stay full. So
where there is little room it is moved and cut much earlier.
"""

import os
import sqlite3
import sys
from pathlib import Path
from typing import Final, NamedTuple

from taskmanager.model.errors import StoreUnavailable
from taskmanager.model.logger import logger
from taskmanager.store.sqlite.connection import WAL_LIMIT_BYTES

_MB: Final = 1024 * 1024


class WalLimits(NamedTuple):
    """Sizes of the log in bytes. Above the first it is cut when all of it has been moved into the file; from the second
    on a reader that prevents that is reported; from the third on no change of a task is committed. Claims, and what
    the duties write, are little and go on.
    """

    truncate_bytes: int = WAL_LIMIT_BYTES
    report_bytes: int = 256 * _MB
    refuse_bytes: int = 1024 * _MB


WAL_LIMITS: Final = WalLimits()
_MOST_PAGES: Final = 8_192
"""The writer moves the log when it is idle; after so many pages of it one that never is does, too."""
_FEWEST_PAGES: Final = 128
_SHARE_OF_ROOM: Final = 8
_PAGE_BYTES: Final = 4_096


class Wal:
    """The log beside one file, between two looks at it."""

    def __init__(self, database: Path, limits: WalLimits) -> None:
        self._path = Path(f"{os.path.realpath(database)}-wal")
        self._limits = limits
        self._is_reported = False
        self.is_full = False
        """Whether the last look found it pinned by a reader, and as large as it may become."""

    def size(self) -> int:
        """Bytes on the disk, 0 when there is no log, or none that can be looked at."""
        try:
            return self._path.stat().st_size
        except OSError:
            return 0

    @property
    def is_large(self) -> bool:
        """Whether it is to be moved even if the writer has other things to do, and cut when that is done."""
        size = self.size()
        return size > self._limits.truncate_bytes or size > self._room()

    def _room(self) -> int:
        """Bytes that are free on its disk."""
        try:
            return _free_on(self._path.parent)
        except OSError:
            return sys.maxsize

    def pages_to_move(self) -> int:
        """After how many pages a commit moves the log: the fewer, the less room there is."""
        pages = min(self._room() // _SHARE_OF_ROOM // _PAGE_BYTES, _MOST_PAGES)
        return max(_FEWEST_PAGES, 1 << pages.bit_length() - 1 if pages else 0)

    def note(self, is_moved: bool) -> None:
        """After a try to move it into the file: what to say of it, and whether it may grow further."""
        size = self.size()
        is_pinned = not is_moved and size >= self._limits.report_bytes
        if is_pinned and not self._is_reported:
            logger.warning("%s; nothing is lost, but it grows until that reader ends", self._words(size))
        self._is_reported = is_pinned
        self.is_full = is_pinned and size >= self._limits.refuse_bytes

    def refusal(self) -> StoreUnavailable:
        """Why nothing is written now."""
        return StoreUnavailable(
            f"{self._words(self.size())}; end that program, or its transaction, and the store goes on"
        )

    def _words(self, size: int) -> str:
        return (
            f"the log {self._path} has {size / _MB:.0f} MB, because another connection reads an old state of the file "
            "in an open transaction (`taskmanager doctor` names its process)"
        )


def _free_on(folder: Path) -> int:
    if sys.platform == "win32":
        import shutil  # not elsewhere: each start would load all kinds of archives

        return shutil.disk_usage(folder).free
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def move_after(connection: sqlite3.Connection, pages: int) -> None:
    """Let each commit that finds so many pages in the log move them, as `checkpoint` does without cutting."""
    connection.execute(f"PRAGMA wal_autocheckpoint = {pages}").fetchone()


def move_all(connection: sqlite3.Connection) -> bool:
    """Move the log into the file, waiting for readers and writers as long as for a lock; whether all of it is there."""
    blocked, in_log, moved = connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
    return not blocked and in_log == moved
