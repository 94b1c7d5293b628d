"""Huey on SQLite, with the worker of its consumer in a thread of this process."""

import asyncio
import contextlib
import sqlite3

from benchmarks.peers.interface import Contender, Kept, Peer, Promise, no_op_in_thread


class Huey(Peer):
    """A SqliteHuey and its consumer."""

    def open(self) -> None:
        """Open the file and declare the task."""
        from huey import SqliteHuey

        self.huey = SqliteHuey(filename=str(self.folder / "huey.db"), fsync=True)
        self.task = self.huey.task(name="no_op")(no_op_in_thread)

    async def start(self) -> None:
        self.open()
        self.consumer = self.huey.create_consumer(workers=1, periodic=False)
        self.consumer.start()

    def put_blocking(self, number: int) -> None:
        self.task(number)

    async def put(self, number: int) -> None:
        self.task(number)

    async def stop(self) -> None:
        await asyncio.to_thread(self.consumer.stop, graceful=True)

    async def fill(self, waiting: int, ended: int) -> None:
        self.open()
        rows = [(self.huey.name, self.huey.serialize_task(self.task.s(number))) for number in range(waiting)]
        with contextlib.closing(sqlite3.connect(self.folder / "huey.db")) as connection, connection:
            connection.executemany("INSERT INTO task (queue, data, priority) VALUES (?, ?, 0)", rows)


CONTENDERS = (
    Contender(
        name="Huey",
        environment="huey",
        make=Huey,
        promise=Promise(accepted=Kept.AT_ONCE, started=Kept.NEVER, ended=Kept.NEVER, is_synced=True),
        note=(
            "`fsync=True`: without it the synchronisation is whatever SQLite was compiled with. A task is deleted "
            "before it runs. One worker, which looks every 0.1 s when idle, is the default of the consumer."
        ),
        against="taskmanager, saved()",
        count=2_000,
        samples=40,
        waiting=2_000,
        is_blocking=True,
    ),
)
