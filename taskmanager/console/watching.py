"""A file kept in view: looks when something was written to it, and otherwise does next to nothing.

SQLite says for some microseconds' work whether anybody has committed since the last look (`PRAGMA data_version`), and
only then are queries made: once a second at most, and less often where they are dear.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from sqlite3 import Connection
from typing import Final

from taskmanager.console.looking import Observer
from taskmanager.console.picture import Picture
from taskmanager.model.clock import Clock
from taskmanager.model.errors import StoreError
from taskmanager.model.states import TaskStatus
from taskmanager.store.sqlite.queries import data_version
from taskmanager.store.statistics import Statistics

READ_S: Final = 1.0
"""The least time between two looks with queries."""
COST_FACTOR: Final = 50.0
"""Queries that took so long are made again after so many times as long, so that they take 2 % of a core at most."""
TICK_S: Final = 1.0
"""How often what runs is drawn anew, for its elapsed time."""
SLOW_S: Final = 10.0
"""How often the file is opened anew, so that ages and windows of time go on when nothing is written."""

Opener = Callable[[Path], AbstractContextManager[Connection]]


class Watch:
    """One file under observation. `fault` says why it cannot be read now."""

    def __init__(self, database: Path, clock: Clock, opener: Opener) -> None:
        self._database = database
        self._clock = clock
        self._opener = opener
        self._observer = Observer(database, clock)
        self._opened: AbstractContextManager[Connection] | None = None
        self._connection: Connection | None = None
        self._opened_s = 0.0
        self._version = 0
        self._read_s = 0.0
        self._next_read_s = 0.0
        self._next_count_s = 0.0
        self._found: Statistics | None = None
        self._counts: Mapping[TaskStatus, int] = {}
        self._drawn_s = 0.0
        self._is_busy = False
        self.fault: str | None = None

    def close(self) -> None:
        """Let go of the file."""
        opened, self._opened, self._connection = self._opened, None, None
        if opened is not None:
            opened.__exit__(None, None, None)

    def look(self) -> Picture | None:
        """The picture when there is something new to draw, else None. Raises nothing: see `fault`."""
        now_s = self._clock.elapsed_s()
        try:
            has_read = self._read_if_due(now_s)
        except StoreError as exc:
            self.close()
            self._found = None
            self.fault = str(exc)
            return None
        self.fault = None
        assert self._found is not None
        if not has_read and not (self._is_busy and now_s - self._drawn_s >= TICK_S):
            return None
        self._drawn_s = now_s
        picture = self._observer.picture(replace(self._found, taken_at=self._clock.now_us()), self._counts)
        self._is_busy = bool(picture.running)
        return picture

    def _read_if_due(self, now_s: float) -> bool:
        connection = self._connection
        if connection is None or now_s - self._opened_s >= SLOW_S:
            self.close()
            connection = self._open(now_s)
        elif now_s < self._next_read_s or data_version(connection) == self._version:
            return False
        self._version = data_version(connection)
        self._found = self._observer.statistics(connection)
        read_s = self._clock.elapsed_s()
        self._next_read_s = now_s + max(READ_S, (read_s - now_s) * COST_FACTOR)
        if read_s >= self._next_count_s:
            self._counts = self._observer.counts(connection)
            counted_s = self._clock.elapsed_s()
            self._next_count_s = counted_s + (counted_s - read_s) * COST_FACTOR
        return True

    def _open(self, now_s: float) -> Connection:
        opened = self._opener(self._database)
        self._connection = opened.__enter__()
        self._opened, self._opened_s = opened, now_s
        return self._connection
