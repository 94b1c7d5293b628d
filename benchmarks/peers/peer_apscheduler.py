"""APScheduler 4, whose `add_job` runs a function once; in memory, and on SQLite."""

import asyncio
from functools import partial
from pathlib import Path

from benchmarks.peers.interface import CONCURRENCY, NOTHING, Contender, Kept, Peer, Promise, make_wal_file, no_op


class APScheduler(Peer):
    """An AsyncScheduler that runs in the background."""

    def __init__(self, folder: Path, *, has_file: bool) -> None:
        super().__init__(folder)
        self.database = folder / "jobs.db" if has_file else None

    async def open(self) -> None:
        """Open the file."""
        from apscheduler import AsyncScheduler
        from apscheduler.datastores.memory import MemoryDataStore
        from apscheduler.datastores.sqlalchemy import SQLAlchemyDataStore

        if self.database and not self.database.exists():
            make_wal_file(self.database)
        store = SQLAlchemyDataStore(f"sqlite:///{self.database}") if self.database else MemoryDataStore()
        self.scheduler = AsyncScheduler(store, max_concurrent_jobs=CONCURRENCY)
        await self.scheduler.__aenter__()

    async def start(self) -> None:
        await self.open()
        await self.scheduler.start_in_background()

    async def put(self, number: int) -> None:
        await self.scheduler.add_job(no_op, args=[number])

    async def settled(self, count: int) -> None:
        while await self.scheduler.get_jobs():
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        await self.scheduler.__aexit__(None, None, None)

    async def fill(self, waiting: int, ended: int) -> None:
        await self.open()
        for number in range(waiting):
            await self.put(number)
        await self.stop()


CONTENDERS = (
    Contender(
        name="APScheduler 4, no file",
        environment="apscheduler",
        make=partial(APScheduler, has_file=False),
        promise=NOTHING,
        note=f"`MemoryDataStore`, `max_concurrent_jobs={CONCURRENCY}`.",
        against="taskmanager, no file",
        count=2_000,
    ),
    Contender(
        name="APScheduler 4, SQLite",
        environment="apscheduler",
        make=partial(APScheduler, has_file=True),
        promise=Promise(accepted=Kept.AT_ONCE, started=Kept.AT_ONCE, ended=Kept.SOON, is_synced=True),
        note=(
            "`SQLAlchemyDataStore` with a synchronous engine, which is faster here than aiosqlite, and which its "
            "documentation does not advise against. The file is set to WAL, which it does not do. With 100 callers "
            "the file is locked too often and calls fail, so there are 10. An ended job is deleted."
        ),
        against="taskmanager, saved()",
        count=200,
        callers=10,
        samples=40,
        waiting=200,
    ),
)
