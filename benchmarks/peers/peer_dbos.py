"""DBOS on SQLite: a workflow that is started at once, and one that goes through a queue."""

import asyncio
import importlib
import sqlite3
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers.interface import PROBE, STEPS, Contender, Kept, Peer, Promise, make_wal_file, no_op, no_step

OLDEST_SQLITE = (3, 42)


def newer_sqlite() -> None:
    """Put a newer SQLite in the place of the one of Python where that is too old for DBOS."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        newer = importlib.import_module("pysqlite3")
        sys.modules["sqlite3"] = newer
        sys.modules["sqlite3.dbapi2"] = newer.dbapi2


class Dbos(Peer):
    """The runtime with one workflow."""

    def __init__(self, folder: Path, *, is_queued: bool) -> None:
        super().__init__(folder)
        self.is_queued = is_queued
        self.database = folder / "dbos.db"

    async def start(self) -> None:
        if not self.database.exists():
            make_wal_file(self.database)
        newer_sqlite()
        from dbos import DBOS

        config: Any = {
            "name": "no-op",
            "system_database_url": f"sqlite:///{self.database}",
            "log_level": "CRITICAL",
            "application_version": "1",
        }
        self.dbos = DBOS
        DBOS(config=config)
        self.workflow = self.make_workflow()
        DBOS.launch()
        if self.is_queued:
            await DBOS.register_queue_async("queue")

    def make_workflow(self) -> Any:
        """Register what is run."""
        return self.dbos.workflow(name="no_op")(no_op)

    async def put(self, number: int) -> None:
        if self.is_queued:
            await self.dbos.enqueue_workflow_async("queue", self.workflow, number)
        else:
            await self.dbos.start_workflow_async(self.workflow, number)

    def connect(self) -> sqlite3.Connection:
        """Another connection, by the SQLite of DBOS: two of them in one process break each other's locks."""
        connection: sqlite3.Connection = sys.modules["sqlite3"].connect(self.database)
        return connection

    async def settled(self, count: int) -> None:
        unfinished = "SELECT 1 FROM workflow_status WHERE status IN ('PENDING', 'ENQUEUED') LIMIT 1"
        with closing(self.connect()) as connection:
            while connection.execute(unfinished).fetchone():
                await asyncio.sleep(0.005)

    async def stop(self) -> None:
        await asyncio.to_thread(self.dbos.destroy)

    async def fill(self, waiting: int, ended: int) -> None:
        await self.start()
        await (await self.dbos.enqueue_workflow_async("queue", self.workflow, 0)).get_result()
        await self.stop()
        with closing(self.connect()) as connection, connection:
            copy(connection, ended, "ended", {})
            blank = dict.fromkeys(("output", "started_at_epoch_ms", "completed_at", "executor_id"), "NULL")
            copy(connection, waiting, "waiting", blank | {"status": "'ENQUEUED'", "recovery_attempts": "0"})


class DbosInSteps(Dbos):
    """The runtime with one workflow of steps."""

    def make_workflow(self) -> Any:
        step = self.dbos.step(name="no_step")(no_step)

        async def in_steps(number: int) -> None:
            for _ in range(STEPS):
                await step()
            PROBE.hit()

        return self.dbos.workflow(name="in_steps")(in_steps)


def copy(connection: sqlite3.Connection, count: int, word: str, other: dict[str, str]) -> None:
    """Copy the workflow that has run, and its input, `count` times; `other` says which columns differ."""
    for table in ("workflow_status", "workflow_input"):
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        values = [f"'{word}-' || n" if name == "workflow_uuid" else other.get(name, name) for name in columns]
        connection.execute(
            f"WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count}) "
            f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(values)} FROM numbers, "
            f"(SELECT * FROM {table} ORDER BY rowid LIMIT 1)"
        )


KEPT = Promise(accepted=Kept.AT_ONCE, started=Kept.AT_ONCE, ended=Kept.SOON, is_synced=True)

CONTENDERS = (
    Contender(
        name="DBOS, started",
        environment="dbos",
        make=partial(Dbos, is_queued=False),
        promise=KEPT,
        note=(
            "`start_workflow_async`. The file is set to WAL, which it does not do. It needs SQLite 3.42, so it gets "
            "a newer one where Python has an older one."
        ),
        against="taskmanager, saved()",
        count=300,
        samples=40,
    ),
    Contender(
        name="DBOS, queued",
        environment="dbos",
        make=partial(Dbos, is_queued=True),
        promise=KEPT,
        note="`enqueue_workflow_async` on a queue that is looked at every second, which is the default.",
        against="taskmanager, saved()",
        count=200,
        samples=10,
        waiting=300,
        ended=100_000,
    ),
    Contender(
        name="DBOS, steps",
        environment="dbos",
        make=partial(DbosInSteps, is_queued=False),
        promise=KEPT,
        note="`start_workflow_async`, and each workflow awaits 20 times an async step. The file is set to WAL.",
        against="taskmanager, steps",
        count=0,
        samples=0,
        steps=200,
    ),
)
