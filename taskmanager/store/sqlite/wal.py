"""The size of the write-ahead log, and what is done about it: moved, cut, reported, and at last refused to grow.

A log grows as long as some other connection reads an old state of the file, a forgotten SELECT for example: what is
behind that state can be moved into the file, and its room cannot be used again. Nothing is lost by it, but a log that
fills the disk takes the application with it, so from `refuse_bytes` on the store counts as unavailable.
"""

from pathlib import Path
from typing import Final, NamedTuple

from taskmanager.model.errors import StoreUnavailable
from taskmanager.model.logger import logger
from taskmanager.store.sqlite.connection import WAL_LIMIT_BYTES

_MB: Final = 1024 * 1024


class WalLimits(NamedTuple):
    """Sizes of the log in bytes: above the first it is cut when everything in it is moved; from the second on a reader
    that keeps it from being moved is reported; from the third on no change of a task is committed. Claims and
    what the duties write are few, and go on.
    """

    truncate_bytes: int = WAL_LIMIT_BYTES
    report_bytes: int = 256 * _MB
    refuse_bytes: int = 1024 * _MB


WAL_LIMITS: Final = WalLimits()


class Wal:
    """The log beside one file, between two looks at it."""

    def __init__(self, database: Path, limits: WalLimits) -> None:
        real = database.resolve()
        self._path = real.with_name(f"{real.name}-wal")
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
        return self.size() > self._limits.truncate_bytes

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
