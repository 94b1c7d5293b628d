"""fastapi-taskflow, used without a web application."""

import asyncio
import sqlite3
import uuid
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from benchmarks.peers.interface import CONCURRENCY, NOTHING, Contender, Kept, Peer, Promise, no_op


class Taskflow(Peer):
    """Its TaskManager with one named queue."""

    def __init__(self, folder: Path, *, has_file: bool) -> None:
        super().__init__(folder)
        self.database = folder / "tasks.db" if has_file else None

    async def start(self) -> None:
        from fastapi_taskflow import ManagedBackgroundTasks, TaskManager
        from fastapi_taskflow.models import QueueConfig

        options = {"snapshot_db": str(self.database), "requeue_pending": True} if self.database else {}
        self.manager = TaskManager(**options, queues={"default": QueueConfig(concurrency=CONCURRENCY)})
        self.manager.task(persist=self.database is not None)(no_op)
        self.ended_before = self.recorded() if self.database else 0
        await self.manager.startup()
        self.tasks = ManagedBackgroundTasks(self.manager)

    async def put(self, number: int) -> None:
        self.tasks.add_task(no_op, number)

    async def settled(self, count: int) -> None:
        while self.database and self.recorded() < self.ended_before + count:
            await asyncio.sleep(0.005)

    def recorded(self) -> int:
        """How many ended tasks the file has."""
        connection = sqlite3.connect(self.database)
        found = connection.execute("SELECT count(*) FROM task_snapshots WHERE status = 'success'").fetchone()[0]
        connection.close()
        return int(found)

    async def stop(self) -> None:
        await self.manager.shutdown()

    async def fill(self, waiting: int, ended: int) -> None:
        from fastapi_taskflow.backends.sqlite import SqliteBackend
        from fastapi_taskflow.models import TaskRecord, TaskStatus

        now = datetime.now(UTC)
        backend = SqliteBackend(str(self.database))
        new = partial(TaskRecord, func_name="no_op", executor="async")
        done = partial(new, status=TaskStatus.SUCCESS, created_at=now, start_time=now, end_time=now)
        await backend.save([done(task_id=str(uuid.uuid4()), args=(number,)) for number in range(ended)])
        pending = partial(new, status=TaskStatus.PENDING)
        await backend.save_pending([pending(task_id=str(uuid.uuid4()), args=(number,)) for number in range(waiting)])


CONTENDERS = (
    Contender(
        name="fastapi-taskflow, no file",
        environment="fastapi-taskflow",
        make=partial(Taskflow, has_file=False),
        promise=NOTHING,
        note=f"No backend, one named queue of {CONCURRENCY}.",
        against="taskmanager, no file",
    ),
    Contender(
        name="fastapi-taskflow, SQLite",
        environment="fastapi-taskflow",
        make=partial(Taskflow, has_file=True),
        promise=Promise(accepted=Kept.NEVER, started=Kept.NEVER, ended=Kept.SOON, is_synced=True),
        note=(
            "`persist=True` and `requeue_pending=True`. What waits is written by an orderly stop alone, and lost by "
            "a kill. Each end is a commit of its own."
        ),
        against="taskmanager, recorded at once",
        count=2_000,
    ),
    Contender(
        name="fastapi-taskflow, after a stop",
        environment="fastapi-taskflow",
        make=partial(Taskflow, has_file=True),
        promise=Promise(accepted=Kept.NEVER, started=Kept.NEVER, ended=Kept.SOON, is_synced=True),
        note="The same file after an orderly stop, which has written what waits.",
        against="taskmanager, persisted",
        count=0,
        samples=0,
        waiting=2_000,
        ended=100_000,
    ),
)
