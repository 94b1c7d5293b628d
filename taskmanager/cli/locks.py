"""Who keeps everybody else from writing: seen from outside, by looking more than once at the lock of the log.

An application commits within milliseconds, so either its lock or the log changes from look to look. Another program may
leave a transaction open; then nothing can be saved, and the application cannot write that into the file.
"""

import time
from pathlib import Path
from typing import Final

from taskmanager.console.picture import Problem
from taskmanager.model.clock import SystemClock
from taskmanager.store.sqlite.wal_index import read_wal_index

LONG_S: Final = 1.0
"""A writer that commits nothing for so long is a finding."""
PAUSE_S: Final = 0.05


class WriterWatch:
    """Looks at one file again and again. Call it only while this process has no connection to the file."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._clock = SystemClock()
        self._seen: tuple[int | None, int] = (None, 0)
        self._since_s = 0.0

    def look(self) -> int | None:
        """The process that has held the write lock for `LONG_S` and has committed nothing, or None."""
        log, now_s = read_wal_index(self._database), self._clock.elapsed_s()
        seen = (log.writer_pid, log.frames)
        if seen != self._seen:
            self._seen, self._since_s = seen, now_s
        return log.writer_pid if now_s - self._since_s >= LONG_S else None

    def judge(self) -> int | None:
        """The same in one call. It waits only while the same writer holds the lock and commits nothing."""
        found = self.look()
        first = self._seen
        while found is None and self._seen == first and first[0] is not None:
            time.sleep(PAUSE_S)
            found = self.look()
        return found


def problem_of(writer_pid: int) -> Problem:
    """What a person reads first: everything else on the screen may be old."""
    return Problem(
        severity="error",
        text=f"{process_name(writer_pid)} holds the write lock: nothing can be saved",
        advice="let it finish its transaction, or end it; taskmanager doctor says more",
    )


def process_name(pid: int) -> str:
    """`process 123 (python report.py)`, as far as the system tells."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        words = []
    line = " ".join(word.decode("utf-8", "replace") for word in words if word)
    return f"process {pid} ({line[:60]})" if line else f"process {pid}"
