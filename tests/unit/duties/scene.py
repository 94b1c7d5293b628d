"""A manager whose duties and whose time are in the hands of the test, on a file that others have written to as well."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from taskmanager import TaskManager
from taskmanager.duties.supervisor import Supervisor
from taskmanager.engine.engine import Engine
from taskmanager.model.record import AttemptRow, TaskRow, TaskWrite
from taskmanager.store.protocol import Beat, CommitReport, InstanceRow
from taskmanager.store.sqlite.presence import InstanceLock

HOUR_US = 3_600_000_000

NOW_US = 2_000_000_000_000_000


class Clock:
    """Wall and elapsed time that pass when a test says so."""

    def __init__(self) -> None:
        self.wall_us, self.elapsed = NOW_US, 1_000.0

    def now_us(self) -> int:
        return self.wall_us

    def elapsed_s(self) -> float:
        return self.elapsed

    def pass_s(self, seconds: float) -> None:
        self.elapsed += seconds
        self.wall_us += int(seconds * 1_000_000)


class Scene:
    """A manager whose duties are called by the test, on a file that other instances have written to as well."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.db = folder / "tasks.db"
        self.clock = Clock()
        self.manager = TaskManager(self.db, **options)
        self.manager._clock = self.clock
        self.locks: list[InstanceLock] = []

    @property
    def engine(self) -> Engine:
        lifecycle = self.manager._lifecycle
        assert lifecycle is not None
        return lifecycle.engine

    @property
    def duties(self) -> Supervisor:
        lifecycle = self.manager._lifecycle
        assert lifecycle is not None
        assert isinstance(lifecycle.duties, Supervisor)
        return lifecycle.duties

    async def other(self, name: str, *rows: TaskRow, is_alive: bool = True, boot_id: str | None = None) -> None:
        """Another instance with these rows; alive means that it holds its lock, and a death leaves the file of it."""
        lock = InstanceLock(self.db, name)
        lock.take()
        if is_alive:
            self.locks.append(lock)
        else:
            lock.close_descriptor()
        await self.engine.store.save_instance(InstanceRow(name, None, "host", 1, "main", boot_id, 1, None, None, 1))
        await self.put(*(row._replace(claimed_by_worker_id=name) for row in rows))

    async def put(self, *rows: TaskRow, attempts: tuple[AttemptRow, ...] = ()) -> None:
        """Rows as somebody has left them."""
        writes = [TaskWrite(row, None, tuple(a for a in attempts if a.task_id == row.task_id)) for row in rows]
        assert await self.engine.store.commit(writes) == CommitReport({}, {})

    def beat(self, sender: str, *roles: str) -> None:
        """A sign of life of another instance, now."""
        beater = self.engine.store.open_beater()
        assert beater is not None
        beater.beat([Beat(sender, role, self.clock.now_us(), "host", 1) for role in roles])
        beater.close()

    async def sweep(self) -> dict[str, str]:
        """One round of the reaper; what it has left, by id."""
        await self.duties.reaper.run_once()
        return self.statuses()

    def statuses(self) -> dict[str, str]:
        return dict(self.query("SELECT id, status FROM taskmanager_tasks"))

    def query(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.db)) as connection:
            return connection.execute(sql, parameters).fetchall()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110  # what a duty does by itself has no event
            await asyncio.sleep(0.01)
