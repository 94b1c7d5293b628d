"""The store without a file: SQLite's database in memory, for one process, gone with it.

Every call works at once in the thread of its caller. None of them waits, so a virtual clock has nothing to count.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple
from weakref import finalize

from taskmanager.model.clock import Clock, SystemClock
from taskmanager.model.errors import StoreUnavailable
from taskmanager.model.record import Write
from taskmanager.rules.figures import Span
from taskmanager.store.protocol import CommitReport, FreeQueue
from taskmanager.store.sql import claims, queries, transitions
from taskmanager.store.sql.counting import add_counted
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.statements import is_live
from taskmanager.store.sql.verbs import Verbs
from taskmanager.store.sqlite.connection import CACHED_STATEMENTS, check_sqlite_version, configure_any, translated
from taskmanager.store.sqlite.schema import create, migrations
from taskmanager.store.sqlite.session import SqliteSession
from taskmanager.store.watch_protocol import Whereabouts

if TYPE_CHECKING:
    from taskmanager.store.statistics import StoreOverview

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

MAX_HISTORY: Final = 10_000
_SLACK: Final = 50
"""The history is cut when that part of it may be new. To find its end in 10,000 tasks takes 0.3 ms."""
_END: Final = "coalesce(completed_at, failed_at, updated_at)"
_BY_END: Final = f"CREATE INDEX memory_ended ON taskmanager_tasks ({_END}) WHERE NOT {is_live()}"
_EVICT: Final = f"""
DELETE FROM taskmanager_tasks WHERE rowid IN (
    SELECT rowid FROM taskmanager_tasks INDEXED BY memory_ended
    WHERE NOT {is_live()} AND is_workflow_task = 0 ORDER BY {_END} DESC, rowid DESC LIMIT -1 OFFSET ?
)
"""
_EVICT_FIGURES: Final = "DELETE FROM taskmanager_figures WHERE span = ? AND at < ?"
_CLOCK: Final = SystemClock()

_in_use: Final = threading.RLock()
"""Held during every call. A fork waits for it: the child of a fork in the middle of a call would wait for ever for the
locks inside SQLite, which a thread holds that the child does not have.
"""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_in_use.acquire, after_in_parent=_in_use.release, after_in_child=_in_use.release)


class MemoryStore(Verbs):
    """Tasks in memory. When more than `max_history` have ended, the oldest ends leave."""

    def __init__(self, *, max_history: int = MAX_HISTORY, clock: Clock = _CLOCK) -> None:
        super().__init__(clock)
        self._clock = clock
        check_sqlite_version()
        self._max_history = max_history
        self._new_count = 0
        with _in_use:
            self._connection = _new_database()
        # Not at the end of the program: what nobody has stopped is still written then.
        finalize(self, _close, self._connection).atexit = False

    def __repr__(self) -> str:
        with _in_use:
            counts = queries.counts(self._connection)
        ended = sum(count for status, count in counts.items() if status.is_terminal)
        live = sum(counts.values()) - ended
        return f"<MemoryStore {live} live, {ended} ended>"

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close; what it holds stays for the next start."""

    def work_inline(self) -> None: ...

    def end(self) -> None: ...

    async def _read(self, work: Callable[[SqliteSession, *Ts], R], *args: *Ts) -> R:
        with _in_use, translated("memory"):
            return work(self._connection, *args)

    _write = _write_unsynced = _read

    async def commit(self, writes: Sequence[Write]) -> CommitReport:
        report = await self._write(transitions.commit, writes, self._counting)
        self._new_count += len(writes)
        if self._new_count * _SLACK > self._max_history:
            self._new_count = 0
            await self.add_figures()
            await self._write(_evict, self._max_history, self._clock.now_us())
        return report

    works_in_thread = False
    clock_offset_us = 0

    def begin_commit(
        self, writes: Sequence[Write], loop: asyncio.AbstractEventLoop
    ) -> Coroutine[Any, Any, CommitReport]:
        raise StoreUnavailable("memory has no thread that works on it")

    def free_now(self) -> list[FreeQueue]:
        """Return what waits unowned; the testing kit reads from it when the next one is due."""
        with _in_use:
            return claims.free_queues(self._connection)

    def presence(self, instance_id: str) -> None:
        return None

    def open_beater(self) -> None:
        return None

    async def shrink(self) -> bool:
        return False

    async def upkeep(self, *, is_idle: bool) -> None:
        return None

    async def changes(self) -> int:
        """Nobody else can write here."""
        return 0

    def news_mark(self) -> None:
        return None

    def mark(self) -> None:
        return None

    def watch(self) -> None:
        return None

    is_told = False

    async def look_after(self) -> Whereabouts:
        return Whereabouts.WHOLE

    def recent_ids(self) -> tuple[()]:
        return ()

    def describe(self, found: Whereabouts) -> str:
        return f"the memory is {found.value}"

    async def mend(self) -> None:
        """Nothing to mend."""

    def look(self, work: Callable[[Session], R]) -> R:
        """Return what a function reads of the tasks. Any thread may call it."""
        with _in_use, translated("memory"), self._connection.snapshot():
            return work(self._connection)

    def overview(self, now: int, *, counts_all: bool) -> "StoreOverview":
        from taskmanager.store.sql.statistics import overview
        from taskmanager.store.statistics import FileSize

        with _in_use:
            add_counted(self._connection, self._counting)  # no duty does that here
        with _in_use, self._connection.snapshot():
            found = overview(self._connection, now, counts_all=counts_all)
        return found._replace(statistics=replace(found.statistics, size=FileSize(0, 0, 0)))


def _evict(connection: SqliteSession, max_history: int, now: int) -> None:
    connection.execute(_EVICT, (max_history,))
    for span in Span:
        connection.execute(_EVICT_FIGURES, (span.value, now - span.kept_us))


def _new_database() -> SqliteSession:
    connection = SqliteSession(
        ":memory:", isolation_level=None, cached_statements=CACHED_STATEMENTS, check_same_thread=False
    )
    configure_any(connection)
    _fresh().backup(connection)
    return connection


@cache
def _fresh() -> SqliteSession:
    """Return a database without rows, to be copied: that takes 0.1 ms, where its statements take 6."""
    connection = SqliteSession(":memory:", isolation_level=None, check_same_thread=False)
    create(connection, migrations())
    connection.execute(_BY_END)
    atexit.register(_let_go, connection)
    return connection


def _let_go(connection: SqliteSession) -> None:
    _fresh.cache_clear()
    _close(connection)


def _close(connection: SqliteSession) -> None:
    with _in_use:
        connection.close()
