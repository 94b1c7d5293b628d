"""persist-queue, which is the queue alone: what takes and runs the items is written here."""

import asyncio
import contextlib
import pickle
import sqlite3
import threading
import time

from benchmarks.peers.interface import Contender, Kept, Peer, Promise, make_wal_file, no_op, no_op_in_thread


class AsyncQueue(Peer):
    """An AsyncSQLiteQueue, and a coroutine that runs what is in it."""

    async def open(self) -> None:
        """Open the file."""
        from persistqueue.async_sqlqueue import AsyncSQLiteQueue

        path = self.folder / "queue.db"
        if not path.exists():
            make_wal_file(path)
        self.queue = AsyncSQLiteQueue(str(path))
        await self.queue.__aenter__()

    async def start(self) -> None:
        await self.open()
        self.consumer = asyncio.create_task(self.consume())

    async def consume(self) -> None:
        """Run what is in the queue until the end."""
        while True:
            await no_op(await self.queue.get())

    async def put(self, number: int) -> None:
        await self.queue.put(number)

    async def stop(self) -> None:
        self.consumer.cancel()
        await asyncio.gather(self.consumer, return_exceptions=True)
        await self.queue.close()

    async def fill(self, waiting: int, ended: int) -> None:
        await self.open()
        await self.queue.close()
        rows = [(pickle.dumps(number), time.time()) for number in range(waiting)]
        with contextlib.closing(sqlite3.connect(self.folder / "queue.db")) as connection, connection:
            connection.executemany("INSERT INTO queue (data, timestamp) VALUES (?, ?)", rows)


class AckQueue(Peer):
    """An SQLiteAckQueue, and a thread that takes, runs and acknowledges."""

    def open(self) -> None:
        """Open the file."""
        from persistqueue import SQLiteAckQueue

        self.queue = SQLiteAckQueue(str(self.folder), multithreading=True)

    async def start(self) -> None:
        self.open()
        self.is_stopping = False
        self.consumer = threading.Thread(target=self.consume, daemon=True)
        self.consumer.start()

    def consume(self) -> None:
        """Run what is in the queue until the end."""
        from persistqueue import Empty

        while not self.is_stopping:
            try:
                item = self.queue.get(timeout=0.2, raw=True)
            except Empty:
                continue
            no_op_in_thread(item["data"])
            self.queue.ack(id=item["pqid"])

    def put_blocking(self, number: int) -> None:
        self.queue.put(number)

    async def put(self, number: int) -> None:
        self.queue.put(number)

    async def stop(self) -> None:
        self.is_stopping = True
        await asyncio.to_thread(self.consumer.join)
        self.queue.close()

    async def fill(self, waiting: int, ended: int) -> None:
        from persistqueue.sqlackqueue import AckStatus

        self.open()
        self.queue.close()
        kinds = [AckStatus.acked] * ended + [AckStatus.ready] * waiting
        rows = [(pickle.dumps(number), time.time(), kind) for number, kind in enumerate(kinds)]
        with contextlib.closing(sqlite3.connect(self.folder / "data.db")) as connection, connection:
            connection.executemany("INSERT INTO ack_queue_default (data, timestamp, status) VALUES (?, ?, ?)", rows)


CONTENDERS = (
    Contender(
        name="persist-queue, async",
        environment="persist-queue",
        make=AsyncQueue,
        promise=Promise(accepted=Kept.AT_ONCE, started=Kept.NEVER, ended=Kept.NEVER, is_synced=True),
        note=(
            "`AsyncSQLiteQueue`. The file is set to WAL, which it does not do. An item is deleted before it runs. "
            "The loop that runs the items is ours."
        ),
        against="taskmanager, saved()",
        count=1_000,
        waiting=1_000,
    ),
    Contender(
        name="persist-queue, acknowledged",
        environment="persist-queue",
        make=AckQueue,
        promise=Promise(accepted=Kept.AT_ONCE, started=Kept.AT_ONCE, ended=Kept.SOON, is_synced=True),
        note="`SQLiteAckQueue`. The loop that runs the items is ours.",
        against="taskmanager, saved()",
        count=1_000,
        waiting=1_000,
        ended=100_000,
        is_blocking=True,
    ),
)
