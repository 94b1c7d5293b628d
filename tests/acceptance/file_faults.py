"""What tests of file faults share: a manager whose tasks are counted, a locked file, a loop that stays free."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

from taskmanager import Task, TaskManager

ROOT = Path(__file__).resolve().parents[2]

LOCKED_S = 3.0

MAX_LAG_S = 0.3
"""Far below the second that SQLite itself would wait on the loop; far above what a busy machine adds."""


class World:
    """A manager on a file, with one task of each kind."""

    def __init__(self, db: Path, **options: object) -> None:
        self.db = db
        self.started: list[str] = []
        self.gate = asyncio.Event()
        self.manager = TaskManager(db, store_poll=0.05, **options)  # type: ignore[arg-type]
        self.memory = self._define("memory", persist=False)
        self.safe = self._define("safe", persist=True, requeue_on_interrupt=True)
        self.once = self._define("once", persist=True)

        async def held(label: str) -> str:
            self.started.append(label)
            await self.gate.wait()
            return label

        self.held = self.manager.task(name="held", persist=True, requeue_on_interrupt=True)(held)

    def _define(self, name: str, **options: bool) -> Task[[str], object]:
        async def work(label: str) -> str:
            self.started.append(label)
            return label

        return self.manager.task(name=name, **options)(work)  # type: ignore[call-overload,no-any-return]

    def statuses(self) -> dict[str, str]:
        """Label → status, as any program sees it."""
        with closing(sqlite3.connect(self.db)) as connection:
            return dict(
                connection.execute("SELECT json_extract(args, '$[0]'), status FROM taskmanager_tasks").fetchall()
            )

    def assert_whole(self) -> None:
        """SQLite finds nothing wrong with the file."""
        with closing(sqlite3.connect(self.db)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@contextmanager
def locked(db: Path) -> Iterator[None]:
    """Somebody else is in a write transaction."""
    with closing(sqlite3.connect(db, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@asynccontextmanager
async def loop_is_free() -> AsyncIterator[None]:
    """The event loop is never blocked inside."""
    lags: list[float] = []
    loop = asyncio.get_running_loop()

    async def watch() -> None:
        while True:
            before = loop.time()
            await asyncio.sleep(0.005)
            lags.append(loop.time() - before - 0.005)

    task = loop.create_task(watch())
    try:
        yield
    finally:
        task.cancel()
    assert max(lags) < MAX_LAG_S


async def eventually(is_so: object, within_s: float = 10.0) -> None:
    """Wait for something the store does by itself."""
    async with asyncio.timeout(within_s):
        while not is_so():  # type: ignore[operator]  # noqa: ASYNC110  # the state of another thread has no event
            await asyncio.sleep(0.01)
