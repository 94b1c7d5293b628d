"""The store on one SQLite file: its connections, its log, and what becomes of it when the file is gone."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple

from taskmanager.model.clock import Clock, SystemClock
from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.model.record import Write
from taskmanager.store.place import LOOP_PATIENCE_S
from taskmanager.store.protocol import CommitReport
from taskmanager.store.sql import transitions
from taskmanager.store.sql.counting import add_counted
from taskmanager.store.sql.verbs import Verbs
from taskmanager.store.sqlite import pages, wal
from taskmanager.store.sqlite.beat import SqliteBeater
from taskmanager.store.sqlite.connection import (
    Connection,
    Synchronous,
    check_sqlite_version,
    configure_reader,
    configure_writer,
    connect,
    connect_inline,
    create_private,
    has_no_room,
    raise_not_open,
)
from taskmanager.store.sqlite.files import Files, check_process, keep_open
from taskmanager.store.sqlite.presence import FilePresence
from taskmanager.store.sqlite.reading import open_read_only
from taskmanager.store.sqlite.schema import migrate, never_dead
from taskmanager.store.sqlite.session import SqliteSession, checkpoint
from taskmanager.store.sqlite.stamp import LogStamp
from taskmanager.store.sqlite.wal import WAL_LIMITS, Wal, WalLimits
from taskmanager.store.watch_protocol import Whereabouts

if TYPE_CHECKING:
    from taskmanager.store.statistics import StoreOverview

RENEW_S: Final = 1.5
"""How long the file is left alone when its log was deleted: all instances have noticed then, and have let go of it.
They look twice a second, however seldom they poll.
"""
BEATER_PATIENCE_S: Final = 3.0
_PAUSE_S: Final = 0.05
_CLOCK: Final = SystemClock()
_DESCRIBED: Final = {
    Whereabouts.WHOLE: "the database {path} is whole",
    Whereabouts.DAMAGED: (
        "the log beside the database {path} was deleted while in use; what it held is moved into the file, and it is "
        "made anew, but what others wrote in between may be gone"
    ),
    Whereabouts.LOST: "the database {path} was deleted or replaced while in use",
    Whereabouts.EMPTIED: "the database {path} was deleted or replaced while in use",
}
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class SqliteStore(Verbs):
    """Tasks in one SQLite file. `synchronous="full"` survives a power cut, `"normal"` may lose the last commits.

    `wal_limits`: what is done about a log that grows. `is_dead` tells whether a registered instance has ended; without
    it nothing is taken away from a file in which one is registered. `clock` is that of whoever writes.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Synchronous = "full",
        wal_limits: WalLimits = WAL_LIMITS,
        is_dead: Callable[[str], bool] = never_dead,
        clock: Clock = _CLOCK,
    ) -> None:
        super().__init__(clock)
        self.path = str(Path(path).absolute())
        self._synchronous: Synchronous = synchronous
        self._is_dead = is_dead
        self._writer: Connection | None = None
        self._reader: Connection | None = None
        self._files: Files | None = None
        self._had_no_room = False
        self._moves_after = 0
        self._beater: SqliteBeater | None = None
        self._wal = Wal(Path(self.path), wal_limits)
        self._stamp = LogStamp(self.path)
        self._version = 0

    def __repr__(self) -> str:
        return f"<SqliteStore {self.path} {'closed' if self._writer is None else 'open'}>"

    async def open(self) -> None:
        if self._writer is not None:
            return
        check_sqlite_version()
        check_process(self.path)
        create_private(Path(self.path))
        self._stamp = LogStamp(self.path)
        self._writer = await connect(self.path, self._prepare)
        try:
            self._reader = await connect(self.path, configure_reader)
            self._files = Files.of(self.path)
        except GeneratorExit:  # collected with its loop: there is nothing to be awaited any more
            self.end()
            raise
        except BaseException:
            await self.close()
            raise

    def _prepare(self, connection: SqliteSession) -> None:
        configure_writer(connection, self._synchronous)
        self._moves_after = self._wal.pages_to_move()
        wal.move_after(connection, self._moves_after)
        migrate(connection, self.path, self._is_dead)

    def work_inline(self) -> None:
        files = self._files
        if files is None:
            raise_not_open(self.path)
        if not (files.is_database_there() and files.is_log_there()):
            raise StoreUnavailable(f"{self.path} or its log was deleted or replaced")
        inline = connect_inline(self.path, self._synchronous)
        self.end()
        self._writer = inline

    def end(self) -> None:
        self._stamp.events.close()
        before = self._reader, self._writer
        self._reader = self._writer = None
        for each in before:
            if each is not None:
                each.end()

    async def close(self) -> None:
        self._stamp.events.close()
        reader, self._reader = self._reader, None
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.let_end()
        if writer is not None and self._counting.has_any:
            with suppress(StoreError):  # what is lost by that are the figures of some moments
                await writer.hop(_unsynced, add_counted, self._counting)
        if writer is not None and self._files is not None:
            if reader is not None and self._files.has_namesake():
                keep_open(reader)
                reader = None
            await self._leave_lost_file(self._files, writer)
        # The writer last: the last connection to close moves the log into the file, and the reader may not write.
        try:
            if reader is not None:
                await reader.close()
        finally:
            if writer is not None:
                await writer.close()

    async def _leave_lost_file(self, files: Files, writer: Connection) -> None:
        """Nothing of a file that was deleted or moved away gets into the next one; whoever moved it finds all of it."""
        with suppress(StoreError):
            if not files.is_database_there():
                self._files = None
                files.remove_leftovers()
                await writer.hop(wal.move_all)

    async def _write(self, work: Callable[[SqliteSession, *Ts], R], *args: *Ts) -> R:
        if self._had_no_room:
            with suppress(StoreError):  # what is moved into the file makes room in the log
                await self.checkpoint()
        try:
            if self._writer is None:  # as `_in_writer` does it: each commit would pay for another coroutine
                raise_not_open(self.path)
            return await self._writer.hop(work, *args)
        except StoreUnavailable as exc:
            self._had_no_room = self._had_no_room or has_no_room(exc)
            raise

    async def _in_writer(self, work: Callable[[SqliteSession, *Ts], R], *args: *Ts) -> R:
        if self._writer is None:
            raise_not_open(self.path)
        return await self._writer.hop(work, *args)

    async def _write_unsynced(self, work: Callable[[SqliteSession, *Ts], R], *args: *Ts) -> R:
        # The next commit that does wait for the disk makes it durable too: the log is written in order.
        if self._synchronous == "normal":
            return await self._write(work, *args)
        return await self._write(_unsynced, work, *args)

    async def _read(self, work: Callable[[SqliteSession, *Ts], R], *args: *Ts) -> R:
        if self._reader is None:
            raise_not_open(self.path)
        return await self._reader.hop(work, *args)

    async def commit(self, writes: Sequence[Write]) -> CommitReport:
        if self._wal.is_full:
            await self.checkpoint()
            if self._wal.is_full:
                raise self._wal.refusal()
        report = await self._write(transitions.commit, writes, self._counting)
        self._had_no_room = False
        return report

    works_in_thread = True
    clock_offset_us = 0

    def begin_commit(
        self, writes: Sequence[Write], loop: asyncio.AbstractEventLoop
    ) -> Coroutine[Any, Any, CommitReport]:
        if self._writer is None or self._wal.is_full:
            raise_not_open(self.path)
        return self._writer.begin(loop, transitions.commit, writes, self._counting)

    def presence(self, instance_id: str) -> FilePresence:
        return FilePresence(Path(self.path), instance_id)

    def open_beater(self) -> SqliteBeater:
        self._beater = SqliteBeater(self.path, lambda: self._files)
        return self._beater

    async def shrink(self) -> bool:
        return await self._in_writer(_unsynced, pages.shrink, self._batches["pages"])

    async def upkeep(self, *, is_idle: bool) -> None:
        if is_idle or self._wal.is_large:
            await self.checkpoint()
        if (pages := self._wal.pages_to_move()) != self._moves_after:
            await self._in_writer(wal.move_after, pages)
            self._moves_after = pages

    async def changes(self) -> int:
        if self._writer is not None and self._stamp.is_unchanged:
            return self._version
        stamp = self._stamp.read()
        self._version = await self._in_writer(_data_version)
        self._stamp.note(stamp)
        return self._version

    def news_mark(self) -> None:
        return None

    def mark(self) -> object:
        return self._stamp.mark()

    is_told = False  # the log changes before a commit counts, and with commits of this store

    def watch(self) -> int | None:
        return None if self._writer is None else self._stamp.events.renew()  # a closed store must leave none behind

    async def look_after(self) -> Whereabouts:
        files = self._files
        if files is None:
            return Whereabouts.LOST
        has_its_log = files.is_log_there()  # asked first: with the file, the log goes as well
        if not files.is_database_there():
            # What the log has no copy of is gone for good.
            return Whereabouts.EMPTIED if files.is_emptied() else Whereabouts.LOST
        return Whereabouts.WHOLE if has_its_log else Whereabouts.DAMAGED

    def recent_ids(self) -> tuple[()]:
        return ()

    def describe(self, found: Whereabouts) -> str:
        return _DESCRIBED[found].format(path=self.path)

    async def _until_beater_has_let_go(self) -> None:
        """Whoever closes a file last deletes its log by name, which may be somebody else's by now: that must be us."""
        for _ in range(round(BEATER_PATIENCE_S / _PAUSE_S)):
            if self._beater is None or not self._beater.is_open:
                return
            await asyncio.sleep(_PAUSE_S)
        raise StoreUnavailable(f"{self.path} has lost its log, and the heartbeat still writes to it")

    async def mend(self) -> None:
        """The log was deleted: move what it holds into the file, leave that alone for a while, in which all others do
        the same, and open it again.
        """
        await self._until_beater_has_let_go()
        files, writer = self._files, self._writer
        assert files is not None
        if writer is not None:
            self._writer = None  # nothing is written any more to what nobody else can find
            try:
                is_moved = await writer.hop(wal.move_all)
            finally:
                self._writer = writer
            if not is_moved:
                raise StoreUnavailable(f"{self.path} has lost its log, and a reader keeps it from being made anew")
            await self.close()
            files.remove_log()
            await asyncio.sleep(RENEW_S)
        await self.open()
        if self._files is not None and not self._files.is_log_used_here():
            await self.close()
            self._files = files
            raise StoreUnavailable(
                f"{self.path} has lost its log, and a connection of this process still uses that; close it"
            )

    def overview(self, now: int, *, counts_all: bool) -> "StoreOverview":
        from taskmanager.store.sql.statistics import overview

        with open_read_only(self.path, patience_s=LOOP_PATIENCE_S) as connection, connection.snapshot():
            return overview(connection, now, counts_all=counts_all)

    async def checkpoint(self) -> bool:
        """Move the log into the file, and cut it where it is large; False when a reader kept part of it back."""
        is_moved = await self._in_writer(checkpoint, self._wal.is_large)
        self._wal.note(is_moved)
        return is_moved

    def wal_size(self) -> int:
        """Bytes of the log beside the file, 0 when there is none."""
        return self._wal.size()


def _unsynced(connection: SqliteSession, work: Callable[[SqliteSession, *Ts], R], *args: *Ts) -> R:
    connection.execute("PRAGMA synchronous = NORMAL")
    try:
        return work(connection, *args)
    finally:
        connection.execute("PRAGMA synchronous = FULL")


def _data_version(connection: SqliteSession) -> int:
    """Only the writer's own connection leaves its own commits out."""
    (number,) = connection.execute("PRAGMA data_version").fetchone()
    return int(number)
