"""litequeue, which is the queue alone: the thread that takes, runs and marks the messages is written here."""

import asyncio
import threading
import time
from functools import partial
from pathlib import Path

from benchmarks.peers.interface import Contender, Kept, Peer, Promise, no_op_in_thread

IDLE_S = 0.001
"""The pause between two looks into an empty queue. It decides the idle latency."""


class Lite(Peer):
    """A LiteQueue and its consumer."""

    def __init__(self, folder: Path, *, is_synced: bool) -> None:
        super().__init__(folder)
        self.is_synced = is_synced

    def open(self) -> None:
        """Open the file."""
        from litequeue import LiteQueue

        self.queue = LiteQueue(self.folder / "queue.db")
        if self.is_synced:
            self.queue.conn.execute("PRAGMA synchronous = FULL")

    async def start(self) -> None:
        self.open()
        self.is_stopping = False
        self.consumer = threading.Thread(target=self.consume, daemon=True)
        self.consumer.start()

    def consume(self) -> None:
        """Run what is in the queue until the end."""
        while not self.is_stopping:
            message = self.queue.pop()
            if message is None:
                time.sleep(IDLE_S)
                continue
            no_op_in_thread(int(message.data))
            self.queue.done(message.message_id, claim_id=message.claim_id)

    def put_blocking(self, number: int) -> None:
        self.queue.put(str(number))

    async def put(self, number: int) -> None:
        self.queue.put(str(number))

    async def stop(self) -> None:
        self.is_stopping = True
        await asyncio.to_thread(self.consumer.join)
        self.queue.close()

    async def fill(self, waiting: int, ended: int) -> None:
        self.open()
        with self.queue.transaction(mode="IMMEDIATE"):
            for number in range(ended):
                self.queue.put(str(number))
            self.queue.conn.execute('UPDATE "Queue" SET status = 2, lock_time = in_time, done_time = in_time')
            for number in range(waiting):
                self.queue.put(str(number))
        self.queue.close()


CONTENDERS = (
    Contender(
        name="litequeue, synced",
        environment="litequeue",
        make=partial(Lite, is_synced=True),
        promise=Promise(accepted=Kept.AT_ONCE, started=Kept.AT_ONCE, ended=Kept.SOON, is_synced=True),
        note=(
            "It sets `synchronous=NORMAL`, which does not sync a commit; here its connection is set to `FULL`. "
            "The loop that runs the messages is ours, and looks every millisecond when idle."
        ),
        against="taskmanager, saved()",
        count=2_000,
        waiting=2_000,
        ended=100_000,
        is_blocking=True,
    ),
    Contender(
        name="litequeue",
        environment="litequeue",
        make=partial(Lite, is_synced=False),
        promise=Promise(accepted=Kept.AT_ONCE, started=Kept.AT_ONCE, ended=Kept.SOON, is_synced=False),
        note="As it comes: a power cut loses the latest commits. The loop is the same.",
        against="taskmanager, saved(), not synced",
        waiting=10_000,
        ended=100_000,
        is_blocking=True,
    ),
)
