"""A manager on a server under load, and the count at the end: nothing lost of what was promised, nothing done twice."""

import asyncio
import logging
import os
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from taskmanager import TaskManager, TaskManagerError, current_task
from tests.conftest import NO_SERVER
from tests.servers import Cluster, find_binaries

PATIENCE_S = 30.0
SCHEMA = "jobs"
OURS = "FROM pg_stat_activity WHERE application_name LIKE 'taskmanager%'"
"""The sessions of managers."""
PER_BURST = 5
BURST_S = 0.02
WAITING = 300
"""So many tasks wait at most, however long the server is away."""


class ServerWorld:
    """A manager with a task that must not be repeated and one that may be, and what came of each of them."""

    def __init__(self, url: str, **options: object) -> None:
        self.url = url
        self.manager = TaskManager(url, store_poll=0.1, **options)  # type: ignore[arg-type]
        self.starts: Counter[str] = Counter()
        """How often user code has begun, by task."""
        self.saved: set[str] = set()
        """What was promised."""
        self.unsaved: list[TaskManagerError] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.once = self.manager.task(name="once", persist=True)(self._work)
        self.safe = self.manager.task(name="safe", persist=True, requeue_on_interrupt=True)(self._work)
        self.held = self.manager.task(name="held", persist=True)(self._hold)

    async def _work(self) -> None:
        self.starts[current_task().task_id] += 1
        await asyncio.sleep(0.001)

    async def _hold(self) -> None:
        self.starts[current_task().task_id] += 1
        await self.gate.wait()

    @asynccontextmanager
    async def load(self) -> AsyncIterator[None]:
        """Enqueue all the time, and note what was saved. Whatever was begun is settled when the block is over."""
        promises: set[asyncio.Task[None]] = set()
        is_over = asyncio.Event()

        async def enqueue() -> None:
            while not is_over.is_set():
                for number in range(PER_BURST if len(promises) < WAITING else 0):
                    promise = asyncio.create_task(self._promise((self.once, self.safe)[number % 2].enqueue()))
                    promises.add(promise)
                    promise.add_done_callback(promises.discard)
                await asyncio.sleep(BURST_S)

        enqueuing = asyncio.create_task(enqueue())
        try:
            yield
        finally:
            is_over.set()
            await enqueuing
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*promises)

    async def _promise(self, handle: object) -> None:
        try:
            await handle.saved()  # type: ignore[attr-defined]
        except TaskManagerError as exc:
            self.unsaved.append(exc)
        else:
            self.saved.add(handle.task_id)  # type: ignore[attr-defined]

    async def stop(self) -> None:
        """Let everything end, and stop the manager."""
        self.gate.set()
        await self.manager.join(timeout=PATIENCE_S)
        await self.manager.flush()
        await self.manager.stop()

    async def some_more(self, count: int = 30) -> None:
        """Return when so many more tasks were saved: work goes on."""
        wanted = len(self.saved) + count
        await eventually(lambda: len(self.saved) >= wanted)

    def judge(self, cluster: Cluster, schema: str) -> None:
        """Whatever happened: what was promised has ended well, and nothing has begun twice."""
        rows = cluster.psql(f'SELECT id, status, start_count FROM "{schema}".taskmanager_tasks')
        found = {task_id: status for task_id, status, _ in rows}
        lost = {each: found.get(each) for each in self.saved if found.get(each) != "COMPLETED"}
        assert not lost, f"promised, and not done: {lost}"
        assert set(found.values()) <= {"COMPLETED"}, Counter(found.values())
        doubled = {each: count for each, count in self.starts.items() if count > 1}
        assert not doubled, f"begun again: {doubled}"
        twice = cluster.psql(
            f'SELECT task_id FROM "{schema}".taskmanager_task_attempts GROUP BY task_id HAVING count(*) > 1'
        )
        assert not twice


class SmallDisk:
    """A file system in memory that takes the place of one folder of a server's data, and can be filled."""

    def __init__(self, folder: Path, size_mb: int) -> None:
        owner = folder.stat()
        options = f"size={size_mb}m,mode=700,uid={owner.st_uid},gid={owner.st_gid}"
        command = ["mount", "-t", "tmpfs", "-o", options, "taskmanager-test", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
        self.folder, self._filler = folder, folder / "filler"

    @classmethod
    def instead_of(cls, name: str, server: Cluster, size_mb: int) -> "SmallDisk":
        """Move a folder of the data to such a disk, while the server is down."""
        server.stop()
        folder = server.data / name
        old = folder.with_name(f"{name}.old")
        folder.rename(old)
        folder.mkdir()
        os.chown(folder, old.stat().st_uid, old.stat().st_gid)
        disk = cls(folder, size_mb)
        subprocess.run(["cp", "-a", f"{old}/.", folder], check=True)
        server.start()
        return disk

    def fill(self) -> None:
        """Leave nothing."""
        found = os.statvfs(self.folder)
        with self._filler.open("xb") as filler:
            os.posix_fallocate(filler.fileno(), 0, found.f_bavail * found.f_frsize)

    def empty(self) -> None:
        """Make room."""
        self._filler.unlink()

    def unmount(self) -> None:
        """The server has ended."""
        subprocess.run(["umount", self.folder], check=True)


class Records(logging.Handler):
    """What was said at WARNING and above."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(f"{record.levelname} {record.getMessage()}")

    def count(self, words: str) -> int:
        """Return how many of them have these words."""
        return sum(words in each for each in self.told)


@contextmanager
def hearing(*names: str) -> Iterator[Records]:
    """Hear what these loggers say; the manager, if none is named."""
    handler, loggers = Records(), [logging.getLogger(name) for name in names or ("taskmanager",)]
    for each in loggers:
        each.addHandler(handler)
    yield handler
    for each in loggers:
        each.removeHandler(handler)


@contextmanager
def server_of_its_own() -> Iterator[Cluster]:
    """A server that only one file of tests uses."""
    if find_binaries() is None:
        pytest.skip(NO_SERVER)
    made = Cluster.create()
    yield made
    made.destroy()


# Fixtures, for files that have a server of their own.


@pytest.fixture
def schema(server: Cluster) -> Iterator[str]:
    """A schema that only this test has. It is not made, and is dropped afterwards."""
    yield SCHEMA
    server.psql(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")


@pytest.fixture
def app(server: Cluster, schema: str) -> Iterator[str]:
    """A role with the right to make the schema, and no other."""
    with app_of_its_own(server, schema) as url:
        yield url


@pytest.fixture
def records() -> Iterator[Records]:
    """What the managers say."""
    with hearing() as heard:
        yield heard


@contextmanager
def app_of_its_own(server: Cluster, schema: str) -> Iterator[str]:
    """A role `app` with the right to make the schema, and no other. What is set for it concerns the manager only."""
    server.psql("CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE postgres TO app")
    yield server.url(schema, user="app")
    server.psql("ALTER ROLE app NOLOGIN")
    terminate(server)
    server.psql("DROP OWNED BY app; DROP ROLE app")


def terminate(server: Cluster) -> None:
    """End all sessions of managers."""
    server.psql(f"SELECT pg_terminate_backend(pid) {OURS}")


async def eventually(is_so: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    """Wait for something that happens by itself."""
    async with asyncio.timeout(within_s):
        while not is_so():  # noqa: ASYNC110  # the state of another thread or process has no event
            await asyncio.sleep(0.01)
