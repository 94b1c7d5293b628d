"""The interface of a peer: what each library is asked to do, and the words for what it promises.

A peer's module imports its library inside functions, so that the runner can read what stands beside it where the
library is not installed.
"""

import asyncio
import itertools
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

CONCURRENCY = 100
"""Tasks at a time, where a library can be told: the default of taskmanager."""
STEPS = 20
"""How many steps a task of steps has, one after the other."""


class Kept(IntEnum):
    """When a commit holds something. A larger one promises more."""

    NEVER = 0
    LATER = 1
    """Within a minute."""
    SOON = 2
    """Within some milliseconds and a commit; nobody waits for it."""
    AT_ONCE = 3
    """Before the program goes on."""


@dataclass(frozen=True, slots=True)
class Promise:
    """What a killed process leaves behind."""

    accepted: Kept
    """A task whose enqueue call has returned."""
    started: Kept
    """That a task has started. With NEVER, nothing tells of a task that ran when the process was killed."""
    ended: Kept
    """That a task has ended."""
    is_synced: bool
    """Whether those commits are synced to the disk, so that a power cut is no worse than a kill."""

    def covers(self, other: "Promise") -> bool:
        """Whether this one promises at least as much as the other in everything."""
        mine = (self.accepted, self.started, self.ended, self.is_synced)
        its = (other.accepted, other.started, other.ended, other.is_synced)
        return all(here >= there for here, there in zip(mine, its, strict=True))


NOTHING = Promise(Kept.NEVER, Kept.NEVER, Kept.NEVER, is_synced=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One way to use one library."""

    name: str
    environment: str
    """Where its requirements stand in environments.py."""
    make: Callable[[Path], "Peer"]
    promise: Promise
    note: str
    """How it is set up, and why so."""
    against: str | None = None
    """The contender of ours in whose table it stands. That one promises at least as much."""
    count: int = 10_000
    """How many tasks are run through at full speed. Slow ones run fewer, so that the benchmark ends."""
    callers: int = 100
    """How many coroutines enqueue them at the same time."""
    samples: int = 200
    """How many tasks are enqueued one by one."""
    waiting: int = 0
    """How many tasks wait in the file of the start with waiting tasks. Of these three, 0 leaves the measure out."""
    ended: int = 0
    """How many ended tasks are in that file too. 0 where the library keeps none."""
    steps: int = 0
    """How many tasks of steps are run, a hundred at a time. 0 leaves the measure out."""
    is_blocking: bool = False
    """Whether its enqueue call stops the event loop."""


class Peer:
    """A library at work in this process, in a folder of its own.

    The calls come in this order: `start`, any number of `put`, `settled`, `stop`. A file that `fill` has written is
    opened by the `start` of another process.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def start(self) -> None:
        """Open the file if there is one, and run what is in it and what will be put."""
        raise NotImplementedError

    async def put(self, number: int) -> None:
        """Enqueue the no-op as an application does, and wait as long as the promise asks for."""
        raise NotImplementedError

    def put_blocking(self, number: int) -> None:
        """Enqueue the no-op from a thread. Only libraries with blocking calls have it."""
        raise NotImplementedError

    async def settled(self, count: int) -> None:
        """Return when the ends of `count` tasks are recorded. All of them have run, and they are all since the start.

        Does nothing where the thread that ran a task records its end before it runs the next one.
        """

    async def stop(self) -> None:
        """End in order."""

    async def fill(self, waiting: int, ended: int) -> None:
        """Write a file as earlier processes would have left it."""
        raise NotImplementedError


class Probe:
    """Counts the runs of the no-op, from any thread, and tells when there were enough."""

    first_at = 0.0
    last_at = 0.0
    _numbers = itertools.count(1)
    _count = 0

    def expect(self, count: int) -> None:
        """Begin to count anew, in the loop that waits."""
        self._numbers = itertools.count(1)
        self._count = count
        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()

    def hit(self) -> None:
        """Count one run."""
        number = next(self._numbers)
        if number == 1:
            self.first_at = time.monotonic()
        if number == self._count:
            self.last_at = time.monotonic()
            self._loop.call_soon_threadsafe(self._done.set)

    async def wait(self) -> None:
        """Return when there were as many runs as expected."""
        await self._done.wait()


PROBE = Probe()


async def no_op(number: int) -> None:
    """The task, for libraries that run coroutines."""
    PROBE.hit()


async def no_step() -> None:
    """One step."""


def no_op_in_thread(number: int) -> None:
    """The task, for libraries that run functions."""
    PROBE.hit()


def make_wal_file(path: Path) -> None:
    """Make a database with a write-ahead log, for a library that uses the mode that it finds.

    The default of SQLite is a rollback journal, which syncs several times for each commit.
    """
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
