"""taskmanager itself, by its public names only."""

import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers.interface import NOTHING, PROBE, STEPS, Contender, Kept, Peer, Promise, no_op, no_step


class Ours(Peer):
    """One manager with one task."""

    function = staticmethod(no_op)

    def __init__(self, folder: Path, *, has_file: bool = True, persist: bool, saved: bool = False, **more: Any) -> None:
        super().__init__(folder)
        from taskmanager import TaskManager

        self.is_saved = saved
        self.manager = TaskManager(folder / "tasks.db" if has_file else None, **more)
        self.task = self.manager.task(name="no_op", persist=persist)(self.function)

    async def start(self) -> None:
        await self.manager.start()

    async def put(self, number: int) -> None:
        handle = self.task.enqueue(number)
        if self.is_saved:
            await handle.saved()

    async def settled(self, count: int) -> None:
        await self.manager.join()
        await self.manager.flush()

    async def stop(self) -> None:
        await self.manager.stop()

    async def fill(self, waiting: int, ended: int) -> None:
        await self.manager.start()
        for number in range(ended):
            self.task.enqueue(number)
            if number % 5_000 == 0:
                await self.manager.join()
        await self.settled(ended)
        await self.manager.stop()
        connection = sqlite3.connect(self.folder / "tasks.db", isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        for number in range(waiting):
            connection.execute(*self.manager.insert_statement(self.task, number))
        connection.execute("COMMIT")
        connection.close()


async def in_steps(number: int) -> None:
    """A task of steps."""
    from taskmanager import step

    for _ in range(STEPS):
        await step(no_step)
    PROBE.hit()


class OursInSteps(Ours):
    """One manager with one task of steps."""

    function = staticmethod(in_steps)


CONTENDERS = (
    Contender(
        name="taskmanager, no file",
        environment="taskmanager",
        make=partial(Ours, has_file=False, persist=False),
        promise=NOTHING,
        note="`snapshot_db=None`.",
    ),
    Contender(
        name="taskmanager, memory-only",
        environment="taskmanager",
        make=partial(Ours, persist=False),
        promise=Promise(accepted=Kept.NEVER, started=Kept.NEVER, ended=Kept.LATER, is_synced=True),
        note="The default. The history of the tasks is in the file, a minute late.",
        against="taskmanager, no file",
    ),
    Contender(
        name="taskmanager, recorded at once",
        environment="taskmanager",
        make=partial(Ours, persist=False, snapshot_interval=0.02),
        promise=Promise(accepted=Kept.NEVER, started=Kept.NEVER, ended=Kept.SOON, is_synced=True),
        note="The same with `snapshot_interval=0.02`.",
    ),
    Contender(
        name="taskmanager, persisted",
        environment="taskmanager",
        make=partial(Ours, persist=True),
        promise=Promise(accepted=Kept.SOON, started=Kept.AT_ONCE, ended=Kept.SOON, is_synced=True),
        note="`persist=True`.",
        against="taskmanager, saved()",
        waiting=10_000,
        ended=100_000,
    ),
    Contender(
        name="taskmanager, saved()",
        environment="taskmanager",
        make=partial(Ours, persist=True, saved=True),
        promise=Promise(accepted=Kept.AT_ONCE, started=Kept.AT_ONCE, ended=Kept.SOON, is_synced=True),
        note="`persist=True`, and each caller awaits `saved()`.",
        waiting=10_000,
        ended=100_000,
    ),
    Contender(
        name="taskmanager, saved(), not synced",
        environment="taskmanager",
        make=partial(Ours, persist=True, saved=True, synchronous="normal"),
        promise=Promise(accepted=Kept.AT_ONCE, started=Kept.AT_ONCE, ended=Kept.SOON, is_synced=False),
        note='The same with `synchronous="normal"`.',
        waiting=10_000,
        ended=100_000,
    ),
    Contender(
        name="taskmanager, steps",
        environment="taskmanager",
        make=partial(OursInSteps, persist=True, saved=True),
        promise=Promise(accepted=Kept.AT_ONCE, started=Kept.AT_ONCE, ended=Kept.SOON, is_synced=True),
        note="`persist=True`; each caller awaits `saved()`, and each task awaits 20 times `step(...)`.",
        count=0,
        samples=0,
        steps=1_000,
    ),
)
