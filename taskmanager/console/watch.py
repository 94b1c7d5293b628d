"""Keeps a file in view: looks when something was written to it, and otherwise does next to nothing.

Whether something was written is told by the sizes and times of the file and its log, and only then is the file opened,
once a second at most, and less often where its queries are dear. It is not kept open: a connection that outlives the
application's own would leave the log beside the file after a stop, for whoever copies the file to forget.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from sqlite3 import Connection
from typing import Final

from taskmanager.console.observer import Observer
from taskmanager.console.overview import Overview
from taskmanager.model.clock import Clock
from taskmanager.model.errors import StoreError
from taskmanager.model.states import TaskStatus
from taskmanager.store.sqlite.queries import counts
from taskmanager.store.sqlite.reading import snapshot
from taskmanager.store.sqlite.statistics import statistics
from taskmanager.store.statistics import Statistics

READ_S: Final = 1.0
"""The least time between two looks with queries."""
COST_FACTOR: Final = 50.0
"""Queries that took so long are made again after so many times as long, so that they take 2 % of a core at most."""
TICK_S: Final = 1.0
"""How often what runs is drawn anew, for its elapsed time."""
SLOW_S: Final = 10.0
"""How often the file is read although nobody wrote, so that ages and windows of time go on."""

Opener = Callable[[Path], AbstractContextManager[Connection]]
_Traces = tuple[tuple[int, ...], ...]


class Watch:
    """One file under observation. `fault` says why it cannot be read now, `last` is the overview of the last look."""

    def __init__(self, database: Path, clock: Clock, opener: Opener) -> None:
        self._database = database
        self._clock = clock
        self._opener = opener
        self._observer = Observer(database, clock)
        self._traces: _Traces = ()
        self._read_s = self._next_read_s = self._next_count_s = self._drawn_s = 0.0
        self._found: Statistics | None = None
        self._counts: Mapping[TaskStatus, int] = {}
        self._is_busy = False
        self.fault: str | None = None
        self.last: Overview | None = None

    def look(self) -> Overview | None:
        """Return the overview when there is something new to draw, else None. Raises nothing: see `fault`."""
        now_s = self._clock.elapsed_s()
        try:
            has_read = self._read_if_due(now_s)
        except StoreError as exc:
            self._found = None
            self.fault = str(exc)
            return None
        self.fault = None
        assert self._found is not None
        if not has_read and not (self._is_busy and now_s - self._drawn_s >= TICK_S):
            return None
        self._drawn_s = now_s
        self.last = self._observer.overview(replace(self._found, taken_at=self._clock.now_us()), self._counts)
        self._is_busy = bool(self.last.running)
        return self.last

    def _read_if_due(self, now_s: float) -> bool:
        file = self._database.resolve()
        traces = tuple(_trace(path) for path in (file, file.with_name(f"{file.name}-wal")))
        is_quiet = now_s < self._next_read_s or traces == self._traces
        if self._found is not None and is_quiet and now_s - self._read_s < SLOW_S:
            return False
        with self._opener(self._database) as connection, snapshot(connection):
            self._found = statistics(connection, self._clock.now_us())
            read_s = self._clock.elapsed_s()
            if read_s >= self._next_count_s:
                self._counts = counts(connection)
                counted_s = self._clock.elapsed_s()
                self._next_count_s = counted_s + (counted_s - read_s) * COST_FACTOR
        self._traces, self._read_s = traces, now_s
        self._next_read_s = now_s + max(READ_S, (read_s - now_s) * COST_FACTOR)
        return True


def _trace(path: Path) -> tuple[int, ...]:
    """Return what a write changes. An empty log is none: SQLite makes and removes it also for those who only read."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_ino, found.st_size, found.st_mtime_ns) if found.st_size else ()
