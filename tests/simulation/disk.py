"""The one place where all simulated processes keep their records: a store in memory, or a real SQLite file.

Every call runs to its end where it is made, without a thread, so that the order of effects is the simulation's.
"""

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar, TypeVarTuple, cast

from taskmanager.model.clock import LAST_US, Clock
from taskmanager.model.record import AttemptRow, TaskRow
from taskmanager.model.schedule import ScheduleRow
from taskmanager.model.states import TERMINAL
from taskmanager.store.memory import MemoryStore
from taskmanager.store.protocol import Beat, Beater, Store
from taskmanager.store.sql import schedules
from taskmanager.store.sql.queries import fetch_ids, task_rows
from taskmanager.store.sql.statements import ATTEMPT_COLUMNS, LIVE_SQL
from taskmanager.store.sqlite.connection import (
    Connection,
    configure_reader,
    configure_writer,
    create_private,
    translate,
)
from taskmanager.store.sqlite.files import Files
from taskmanager.store.sqlite.schema import migrate
from taskmanager.store.sqlite.session import SqliteSession
from taskmanager.store.sqlite.stamp import LogStamp
from taskmanager.store.sqlite.store import SqliteStore
from tests.sessions import connect
from tests.simulation.steps import settled
from tests.simulation.waits import ended_too_early, latest_due
from tests.simulation.workflows import RECOVER, Graphs, read_graphs
from tests.simulation.workflows import VERBS as WORKFLOW_VERBS

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

Attempts = dict[tuple[str, int], AttemptRow]


class Disk(Protocol):
    """What survives every process."""

    def connect(self, clock: Clock) -> "Connected":
        """The store as one process sees it, which has this clock."""
        ...

    def rows(self, *, is_last: bool = False) -> dict[str, TaskRow] | None:
        """Every task as it stands; None when nothing was written since the last look, but not at the last one."""
        ...

    def attempts(self) -> Attempts:
        """Every attempt."""
        ...

    def schedules(self) -> dict[str, ScheduleRow]:
        """Every schedule as it stands."""
        ...

    def settled_steps(self, task_id: str) -> frozenset[int]:
        """The steps of a task that are recorded for good."""
        ...

    def latest_due(self) -> int:
        """When the last of the open waits is over."""
        ...

    def ended_too_early(self) -> list[tuple[str, str]]:
        """The waits that ended before their time."""
        ...

    def graphs(self) -> Graphs:
        """All workflows as they stand."""
        ...

    def figures(self) -> dict[str, int]:
        """The sums of what the figures count."""
        ...

    def log_is_written(self, now_us: int) -> None:
        """Something was written to the log, whether it counts yet or not."""
        ...

    def close(self) -> None:
        """The end of the simulation."""
        ...


class Connected(Protocol):
    """One process and the disk."""

    store: Store

    @property
    def is_current(self) -> bool:
        """Whether it has the file open that others find."""
        ...

    def rows(self) -> list[TaskRow]:
        """Every task in the file that it has open, whatever others find."""
        ...

    def beater(self) -> Beater:
        """For its heart."""
        ...

    def cut(self) -> None:
        """The process is gone: the operating system closes what it had open."""
        ...


def read_attempts(connection: SqliteSession, condition: str = "", *values: int) -> Attempts:
    """Those that the condition names, or all."""
    names = ", ".join(ATTEMPT_COLUMNS)
    rows = connection.execute(f"SELECT {names} FROM taskmanager_task_attempts {condition}", values).fetchall()
    return {(row[0], row[1]): AttemptRow._make(row) for row in rows}


_COUNTED = ("started", "completed", "failed", "cancelled", "expired", "interrupted")


def read_figures(connection: SqliteSession) -> dict[str, int]:
    """Their sums, by the hour."""
    sums = ", ".join(f"coalesce(sum({name}), 0)" for name in _COUNTED)
    found = connection.execute(f"SELECT {sums} FROM taskmanager_figures WHERE span = 3600").fetchone()
    return dict(zip(_COUNTED, found, strict=True))


# In memory.


_NOTE_CHANGES = """
CREATE TEMP TABLE changed (id TEXT);
CREATE TEMP TRIGGER inserted AFTER INSERT ON taskmanager_tasks BEGIN INSERT INTO changed VALUES (new.id); END;
CREATE TEMP TRIGGER updated AFTER UPDATE ON taskmanager_tasks BEGIN INSERT INTO changed VALUES (new.id); END;
CREATE TEMP TRIGGER deleted AFTER DELETE ON taskmanager_tasks BEGIN INSERT INTO changed VALUES (old.id); END;
CREATE TEMP TRIGGER tried AFTER INSERT ON taskmanager_task_attempts BEGIN
    INSERT INTO changed VALUES (new.task_id);
END;
CREATE TEMP TRIGGER forgot AFTER DELETE ON taskmanager_task_attempts BEGIN
    INSERT INTO changed VALUES (old.task_id);
END;
"""
_OF_CHANGED = "task_id IN (SELECT id FROM changed)"


class MemoryDisk:
    """One `MemoryStore`, and what it leaves out because usually nobody else can see it: versions and heartbeats."""

    def __init__(self, clock: Clock) -> None:
        self.memory = MemoryStore(max_history=1_000_000, clock=clock)
        self.connection = self.memory._connection
        self.connection.executescript(_NOTE_CHANGES)
        self.writes: Counter[int] = Counter()
        self.beats: dict[tuple[str, str], int] = {}
        self.last_beat_at = 0
        self._seen = -1
        self._rows: dict[str, TaskRow] = {}
        self._attempts: Attempts = {}

    def connect(self, clock: Clock) -> "MemoryView":
        return MemoryView(self)

    def rows(self, *, is_last: bool = False) -> dict[str, TaskRow] | None:
        if self.connection.total_changes == self._seen and not is_last:
            return None
        changed = {task_id for (task_id,) in self.connection.execute("SELECT id FROM changed").fetchall()}
        found = fetch_ids(self.connection, sorted(changed))
        self._rows = {task_id: row for task_id, row in self._rows.items() if task_id not in changed} | found
        kept = {key: row for key, row in self._attempts.items() if key[0] not in changed}
        self._attempts = kept | read_attempts(self.connection, f"WHERE {_OF_CHANGED}")
        self.connection.execute("DELETE FROM changed")
        self._seen = self.connection.total_changes
        return self._rows

    def attempts(self) -> Attempts:
        return self._attempts

    def schedules(self) -> dict[str, ScheduleRow]:
        return {row.schedule_name: row for row in schedules.fetch(self.connection)}

    def settled_steps(self, task_id: str) -> frozenset[int]:
        return settled(self.connection, task_id)

    def latest_due(self) -> int:
        return latest_due(self.connection)

    def ended_too_early(self) -> list[tuple[str, str]]:
        return ended_too_early(self.connection)

    def figures(self) -> dict[str, int]:
        return read_figures(self.connection)

    def graphs(self) -> Graphs:
        return read_graphs(self.connection)

    def log_is_written(self, now_us: int) -> None:
        pass

    def close(self) -> None:
        pass


WRITES = frozenset(
    {
        "commit",
        "send_event",
        "claim",
        "release",
        "free_waiting",
        "make_due",
        "request_cancel",
        "purge",
        "save_instance",
        "forget_instances",
    }
    | {"set_paused", "declare_schedules", "fire_schedules", "set_schedule_paused"}
    | WORKFLOW_VERBS
)


class MemoryView:
    """The store in memory, as one of several processes sees it."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk
        self.store = cast("Store", self)
        self.is_current = True

    def __getattr__(self, verb: str) -> Any:
        method = getattr(self._disk.memory, verb)
        if verb not in WRITES:
            return method

        async def write(*args: Any) -> Any:
            before = self._disk.connection.total_changes
            answer = await method(*args)
            # Who looks for what others have left half done mostly finds nothing, and writes nothing then.
            self._disk.writes[id(self)] += verb != RECOVER or self._disk.connection.total_changes > before
            return answer

        return write

    async def close(self) -> None:
        """Nothing to close."""

    async def changes(self) -> int:
        return self._disk.writes.total() - self._disk.writes[id(self)]

    async def heartbeats(self) -> list[tuple[str, str, int]]:
        return [(sender, role, at) for (sender, role), at in self._disk.beats.items()]

    async def latest_stamp(self, until: int = LAST_US) -> int:
        beat_at = self._disk.last_beat_at
        return max(await self._disk.memory.latest_stamp(until), beat_at if beat_at <= until else 0)

    def beater(self) -> Beater:
        return _MemoryBeater(self._disk)

    def rows(self) -> list[TaskRow]:
        return task_rows(self._disk.connection, "taskmanager_tasks AS t", ())

    def cut(self) -> None:
        pass


class _MemoryBeater:
    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk

    def beat(self, beats: Sequence[Beat]) -> None:
        self._disk.beats.update({(beat.sender_id, beat.role): beat.sent_at for beat in beats})
        self._disk.last_beat_at = beats[-1].sent_at

    def let_go(self) -> None:
        pass

    def close(self) -> None:
        pass


# On a file.

TICK_US = 4_000
"""File systems take the time from a clock that ticks so seldom."""
WHOLE_LOOK = 16
"""Rows that have ended do not change; whether that is so is looked at this seldom, and at the end."""
TERMINAL_VALUES = frozenset(each.value for each in TERMINAL)
_LIVE = f"WHERE t.status IN ({LIVE_SQL}) OR t.id IN (SELECT value FROM json_each(?))"
_NEWER = "WHERE rowid > ?"
_LAST_ATTEMPT = "SELECT coalesce(max(rowid), 0) FROM taskmanager_task_attempts"


class InlineConnection(Connection):
    """A connection that is used in the thread of the caller."""

    __slots__ = ("_raw",)

    def __init__(self, path: str, configure: Callable[[SqliteSession], None]) -> None:
        self._path = path
        self._raw = connect(path, isolation_level=None, timeout=0)
        try:
            configure(self._raw)
        except sqlite3.Error as error:
            self.cut()
            raise translate(path, error) from error

    async def hop(self, work: Callable[[SqliteSession, *Ts], R], *args: *Ts) -> R:
        try:
            return work(self._raw, *args)
        except sqlite3.Error as error:
            raise translate(self._path, error, was_well=True) from error

    async def let_end(self) -> None:
        """Nothing of it is under way."""

    async def close(self) -> None:
        self.cut()

    def cut(self) -> None:
        """Its process is gone."""
        self._raw.close()


class InlineSqliteStore(SqliteStore):
    """The real statements on plain connections, in the thread of the caller."""

    async def open(self) -> None:
        if self._writer is not None:
            return
        create_private(Path(self.path))
        self._stamp = LogStamp(self.path)
        self._writer = InlineConnection(self.path, self._configure)
        self._reader = InlineConnection(self.path, configure_reader)
        self._files = Files.of(self.path)

    def _configure(self, connection: SqliteSession) -> None:
        configure_writer(connection, self._synchronous)
        connection.execute("PRAGMA synchronous = OFF")  # nobody cuts the power here
        migrate(connection, self.path)

    @property
    def is_open(self) -> bool:
        """Whether it can be asked."""
        return self._writer is not None

    def cut(self) -> None:
        """Its process is gone."""
        for connection in (self._reader, self._writer):
            if isinstance(connection, InlineConnection):
                connection.cut()
        self._reader = self._writer = None

    async def every_row(self) -> list[TaskRow]:
        """What stands in the file that it has open."""
        return await self._in_writer(task_rows, "taskmanager_tasks AS t ", ())


class FileTimes:
    """What `LogStamp` takes for the `os` module: the log as it is, changed by the clock of the simulation.

    Its size tells nothing, as that of a log that is written again from its beginning.
    """

    path = os.path

    def __init__(self, disk: "FileDisk") -> None:
        self._disk = disk

    def stat(self, path: str) -> Any:
        found = os.stat(path)  # noqa: PTH116  # as the library does
        tick_us = self._disk.log_changed_us // TICK_US * TICK_US
        return SimpleNamespace(st_mtime_ns=tick_us * 1_000, st_size=0, st_ino=found.st_ino, st_dev=found.st_dev)


class FileDisk:
    """A real file, and a connection of the judge's own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._copy = path.with_name("backup.db")
        first = InlineSqliteStore(path, synchronous="normal")
        _finish(first.open())
        _finish(first.close())
        self._judge = connect(path, isolation_level=None)
        self._judged = Files.of(str(path))
        self._seen: object = None
        self._look_count = 0
        self._rows: dict[str, TaskRow] = {}
        self._attempts: Attempts = {}
        self._live, self._last_attempt = "[]", 0
        self.log_changed_us = 0

    def connect(self, clock: Clock) -> "FileView":
        return FileView(self.path, clock)

    def lose(self) -> None:
        """Somebody deletes the file and what lies beside it."""
        for name in (self.path, *(self.path.with_name(f"{self.path.name}-{end}") for end in ("wal", "shm"))):
            name.unlink(missing_ok=True)
        self._judge.close()
        self._judge = connect(":memory:", isolation_level=None)
        migrate(self._judge, ":memory:")
        self._forget()

    def keep_copy(self) -> None:
        """Somebody makes a backup."""
        with closing(connect(self._copy)) as copy:
            self._judge.backup(copy)

    def restore(self) -> tuple[dict[str, TaskRow], Attempts]:
        """The backup is moved to the place of the file; what it holds."""
        for end in ("-wal", "-shm"):
            self.path.with_name(f"{self.path.name}{end}").unlink(missing_ok=True)
        self._copy.replace(self.path)
        self._open_anew()
        return self.rows(is_last=True) or {}, self._attempts

    def _open_anew(self) -> None:
        self._judge.close()
        self._judge = connect(self.path, isolation_level=None)
        self._judged = Files.of(str(self.path))
        self._forget()

    def _forget(self) -> None:
        self._seen, self._rows, self._attempts = None, {}, {}
        self._live, self._last_attempt = "[]", 0

    def _look_for_the_new_one(self) -> None:
        if not self._judged.is_database_there() and self.path.exists():
            self._open_anew()

    def rows(self, *, is_last: bool = False) -> dict[str, TaskRow] | None:
        self._look_for_the_new_one()
        version = self._judge.execute("PRAGMA data_version").fetchone()
        if version == self._seen and not is_last:
            return None
        self._seen = version
        self._look_count += 1
        rows = {**self._rows, **self._read_rows(_LIVE, self._live)}
        (count,) = self._judge.execute("SELECT count(*) FROM taskmanager_tasks").fetchone()
        if is_last or count != len(rows) or self._look_count % WHOLE_LOOK == 0:
            rows = self._read_rows()
            self._attempts = read_attempts(self._judge)
        else:
            self._attempts = {**self._attempts, **read_attempts(self._judge, _NEWER, self._last_attempt)}
        self._rows = rows
        self._live = json.dumps([task_id for task_id, row in rows.items() if row.status not in TERMINAL_VALUES])
        (self._last_attempt,) = self._judge.execute(_LAST_ATTEMPT).fetchone()
        return rows

    def _read_rows(self, condition: str = "", *values: str) -> dict[str, TaskRow]:
        found = task_rows(self._judge, f"taskmanager_tasks AS t {condition}", values)
        return {row.task_id: row for row in found}

    def attempts(self) -> Attempts:
        return self._attempts

    def log_is_written(self, now_us: int) -> None:
        self.log_changed_us = now_us

    def schedules(self) -> dict[str, ScheduleRow]:
        return {row.schedule_name: row for row in schedules.fetch(self._judge)}

    def settled_steps(self, task_id: str) -> frozenset[int]:
        return settled(self._judge, task_id)

    def latest_due(self) -> int:
        return latest_due(self._judge)

    def ended_too_early(self) -> list[tuple[str, str]]:
        return ended_too_early(self._judge)

    def figures(self) -> dict[str, int]:
        return read_figures(self._judge)

    def graphs(self) -> Graphs:
        return read_graphs(self._judge)

    def close(self) -> None:
        (answer,) = self._judge.execute("PRAGMA integrity_check").fetchone()
        self._judge.close()
        assert answer == "ok", answer


class FileView:
    """The file, as one process has it open."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self.inline = InlineSqliteStore(path, synchronous="normal", clock=clock)
        self.store: Store = self.inline

    @property
    def is_current(self) -> bool:
        return self.inline.is_open and not _finish(self.inline.look_after()).is_lost

    def rows(self) -> list[TaskRow]:
        return _finish(self.inline.every_row()) if self.inline.is_open else []

    def beater(self) -> Beater:
        return self.inline.open_beater()

    def cut(self) -> None:
        self.inline.cut()


def _finish(coroutine: Any) -> Any:
    """The result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError(f"{coroutine} waits")


finish = _finish
