"""The store on its bad days: locked, full, read-only, deleted, damaged. Work goes on, and the words help."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import pytest

from taskmanager import StoreError, StoreUnavailable, Task, TaskHandle, TaskInterrupted, TaskManager, TaskStatus
from taskmanager.duties import supervisor
from taskmanager.engine import lifecycle
from taskmanager.store.sqlite import SqliteStore
from taskmanager.store.sqlite import store as store_module
from taskmanager.store.sqlite.wal import WalLimits
from taskmanager.testing.faulty import Fault, FaultyStore
from tests.crash.harness import Site, killed_at_the_end

pytestmark = pytest.mark.anyio

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


@pytest.mark.slow
async def test_a_file_locked_by_somebody_else_stops_nobody_and_loses_nothing(tmp_path: Path) -> None:
    """Memory-only and repeatable work goes on, the rest waits; it is visible, and all is written when the lock goes."""
    world = World(tmp_path / "tasks.db")
    async with world.manager as manager, loop_is_free():
        running = world.held.enqueue("running")
        await running.saved()
        with locked(world.db):
            began = time.monotonic()
            safe = [world.safe.enqueue(f"safe{n}") for n in range(20)]
            once = [world.once.enqueue(f"once{n}") for n in range(20)]
            assert [await world.memory.enqueue(f"m{n}") for n in range(20)] == [f"m{n}" for n in range(20)]
            with pytest.raises((StoreUnavailable, TimeoutError)):
                await once[0].saved(timeout=0.2)
            await eventually(lambda: manager.status().storage_degraded_since is not None)
            assert [await each for each in safe] == [f"safe{n}" for n in range(20)]
            assert not (await safe[0].info()).saved
            world.gate.set()
            assert await running == "running"
            with pytest.raises(StoreUnavailable, match="not saved"):
                await once[0].saved(timeout=0.1)
            assert not any(label.startswith("once") for label in world.started)
            await asyncio.sleep(max(0.0, LOCKED_S - (time.monotonic() - began)))
            status = manager.status()
            assert (status.oldest_unsaved_s or 0) > LOCKED_S - 1
            assert status.unsaved_count >= 40
        assert [await each for each in once] == [f"once{n}" for n in range(20)]
        await manager.flush()
        assert manager.status().storage_degraded_since is None
        await once[0].saved()
        assert (await safe[0].info()).saved
        assert manager._lifecycle is not None
        assert not set(manager._lifecycle.engine.writer.unsaved_ids) & {each.task_id for each in safe}
    persisted = ["running", *(f"safe{n}" for n in range(20)), *(f"once{n}" for n in range(20))]
    statuses = world.statuses()
    assert {statuses[label] for label in persisted} == {"COMPLETED"}
    assert len(world.started) == len(set(world.started)), "nothing ran twice"
    world.assert_whole()


async def test_a_start_waits_for_a_lock_that_somebody_holds(tmp_path: Path) -> None:
    """A backup of a few seconds at the wrong moment is no reason not to start."""
    world = World(tmp_path / "tasks.db")
    async with world.manager:
        await world.once.enqueue("before")
    for new in (False, True):
        if new:
            world = World(tmp_path / "new.db")
        with locked(world.db):
            starting = asyncio.ensure_future(world.manager.start())
            await asyncio.sleep(LOCKED_S / 2)
            assert not starting.done()
        await starting
        await world.once.enqueue("after")
        await world.manager.stop()
        assert world.statuses()["after"] == "COMPLETED"


async def test_a_start_that_cannot_claim_yet_is_up_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dozens that start at once keep each other from the file. Whoever is registered, and has recovered what the dead
    have left, is no failed start for that: it claims as soon as it can.
    """
    monkeypatch.setattr(lifecycle, "START_PATIENCE_S", 0.1)
    before, after = World(tmp_path / "tasks.db", drain_timeout=0.0), World(tmp_path / "tasks.db")
    async with before.manager:
        await before.held.enqueue("left").saved()
    store = FaultyStore(SqliteStore(after.db), [Fault.fail(1, verb="claim", times=8)])
    after.manager._make_store = store.as_store
    after.gate.set()
    async with after.manager:
        await eventually(lambda: after.statuses() == {"left": "COMPLETED"})


@pytest.mark.parametrize("count", range(3))
async def test_a_start_for_which_there_are_too_few_threads_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """The writer, the reader and the heartbeat need one each. What has been started by then ends, and another start
    may find more.
    """
    world, before, start, started = World(tmp_path / "tasks.db"), set(threading.enumerate()), threading.Thread.start, []

    def refuse(thread: threading.Thread) -> None:
        started.append(thread)
        if len(started) > count:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(StoreUnavailable, match="can't start new thread.*ulimit -u"):
            await world.manager.start()
    await eventually(lambda: set(threading.enumerate()) <= before)
    async with world.manager:
        assert await world.once.enqueue("after") == "after"


async def test_a_full_disk_is_a_degraded_store_until_there_is_room(tmp_path: Path) -> None:
    """`SQLITE_FULL`: reported, waited for, and everything written in the end."""
    world = World(tmp_path / "tasks.db")
    async with world.manager as manager:
        await world.once.enqueue("before")
        await _limit_pages(manager, extra=2)
        big = [world.safe.enqueue(f"{n}" + "x" * 20_000) for n in range(20)]
        await eventually(lambda: manager.status().storage_degraded_since is not None)
        with pytest.raises(StoreUnavailable, match="disk is full"):
            await big[-1].saved(timeout=0.1)
        assert await world.memory.enqueue("m") == "m"
        await _limit_pages(manager, extra=1_000_000)
        await manager.flush()
        assert manager.status().storage_degraded_since is None
    assert list(world.statuses().values()).count("COMPLETED") >= 21
    world.assert_whole()


async def _limit_pages(manager: TaskManager, extra: int) -> None:
    assert manager._lifecycle is not None
    writer = manager._lifecycle.engine.store._writer  # type: ignore[attr-defined]

    def limit(connection: sqlite3.Connection) -> None:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + extra}").fetchone()

    await writer.hop(limit)


_WITH_A_QUOTA = """
import asyncio, resource, sys
from taskmanager import TaskManager
manager = TaskManager(sys.argv[1])

@manager.task(persist=True)
async def work(text: str) -> int:
    return len(text)

async def main():
    async with manager:
        for number in range(60):
            await work.enqueue("x" * 500)
        print(manager.status().storage_degraded_since)

resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no quotas of this kind")
async def test_a_log_that_cannot_grow_is_moved_into_the_file_and_used_again(tmp_path: Path) -> None:
    """Where a disk is full of the log itself, nothing else would ever make room: the writer is never idle."""
    db = tmp_path / "tasks.db"
    command = [sys.executable, "-c", _WITH_A_QUOTA, str(db)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert done.stdout == "None\n", done.stdout + done.stderr
    assert "unavailable" in done.stderr, "the quota was never reached"
    with closing(sqlite3.connect(db)) as connection:
        found = connection.execute("SELECT status, count(*) FROM taskmanager_tasks GROUP BY status").fetchall()
        assert found == [("COMPLETED", 60)]
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.slow
async def test_pauses_and_schedules_outlive_a_deleted_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What memory knows of them is written anew: the next fire is the one that was planned, and a pause stays one."""
    world = World(tmp_path / "tasks.db")
    daily = world.manager.schedule(cron="0 3 * * *", name="daily")
    daily(
        world.manager.schedule(every=100_000, name="paused")(world.manager.schedule(every=100_000, name="far")(_tick))
    )
    async with world.manager as manager:
        await manager.pause("default")
        await manager.pause_schedule("paused")
        before = await manager.schedules()
        await eventually(lambda: len(manager.status().schedules) == 3)
        _delete(world.db)
        await eventually(lambda: "was deleted" in caplog.text)
        await eventually(lambda: len(_rows(world.db, "taskmanager_schedule_state")) == 3)
        await eventually(lambda: bool(_rows(world.db, "taskmanager_queues")))
        after = await manager.schedules()
        assert [(each.schedule_name, each.next_run_at) for each in after if not each.is_paused] == [
            (each.schedule_name, each.next_run_at) for each in before if not each.is_paused
        ]
        assert [each.schedule_name for each in after if each.is_paused] == ["paused"]
        waits = world.safe.enqueue("waits")
        await waits.saved()
        await asyncio.sleep(0.2)
        assert waits.status is TaskStatus.PENDING


async def _tick() -> None: ...


def _rows(db: Path, table: str) -> list[object]:
    try:
        with closing(sqlite3.connect(db)) as connection:
            return connection.execute(f"SELECT * FROM {table}").fetchall()
    except sqlite3.OperationalError:
        return []  # made, but not finished


@pytest.mark.slow
@pytest.mark.parametrize("how", ["deleted", "emptied"])
async def test_a_deleted_file_is_made_anew_with_all_that_lives(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Unlinking gives no error by itself; it is noticed, said, and mended, and work that runs goes on."""
    world = World(tmp_path / "tasks.db")
    async with world.manager:
        running = world.held.enqueue("running")
        delayed = world.once.with_options(delay=60).enqueue("delayed")
        await asyncio.gather(running.saved(), delayed.saved())
        if how == "deleted":
            _delete(world.db)
        else:
            os.truncate(world.db, 0)
        await eventually(lambda: "was deleted" in caplog.text)
        await eventually(lambda: _holds(world, {"running": "RUNNING", "delayed": "PENDING"}))
        world.gate.set()
        assert await running == "running"
        await world.once.enqueue("after")
    assert world.statuses() == {"running": "COMPLETED", "delayed": "PENDING", "after": "COMPLETED"}
    world.assert_whole()


async def test_a_file_deleted_right_before_the_stop_loses_nothing_that_lives(tmp_path: Path) -> None:
    """The last batch must not go into a file that nobody can open any more."""
    world = World(tmp_path / "tasks.db", drain_timeout=0.1)
    async with world.manager:
        running = world.held.enqueue("running")
        delayed = world.once.with_options(delay=60).enqueue("delayed")
        await asyncio.gather(running.saved(), delayed.saved())
        _delete(world.db)
    assert world.statuses() == {"running": "PENDING", "delayed": "PENDING"}
    again = World(world.db)
    again.gate.set()
    async with again.manager:
        await eventually(lambda: again.statuses()["running"] == "COMPLETED")


async def test_a_stop_does_not_wait_for_a_file_that_was_replaced_by_one_that_is_locked(tmp_path: Path) -> None:
    """It ends in its time and says what could not be written, as for any other file that cannot be used."""
    path = tmp_path / "tasks.db"
    manager = TaskManager(path, drain_timeout=0)

    @manager.task(persist=True)
    async def work() -> None: ...

    await manager.start()
    await work.enqueue()
    path.rename(tmp_path / "moved.db")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        other.execute("CREATE TABLE others (x)")
        handle = work.with_options(delay=3600).enqueue()
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(manager.stop(), 15)
    with pytest.raises(TaskInterrupted):
        await handle


async def test_a_volume_that_goes_away_and_comes_back_is_found_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Work goes on meanwhile, it is said once, and everything is written when the file is there again."""
    folder, away = tmp_path / "data", tmp_path / "away"
    os.mkdir(folder)  # noqa: PTH102  # the test has its loop to itself
    world = World(folder / "tasks.db")
    async with world.manager as manager:
        running = world.held.enqueue("running")
        await running.saved()
        os.rename(folder, away)  # noqa: PTH104  # the same
        await eventually(lambda: "tried again" in caplog.text)
        safe, once = world.safe.enqueue("safe"), world.once.enqueue("once")
        assert await safe == "safe"
        world.gate.set()
        assert await running == "running"
        os.rename(away, folder)  # noqa: PTH104  # the same
        assert await once == "once"
        await manager.flush()
    assert [caplog.text.count(each) for each in ("was deleted", "tried again")] == [1, 1]
    assert "claim lost" not in caplog.text
    assert world.statuses() == {"running": "COMPLETED", "safe": "COMPLETED", "once": "COMPLETED"}
    assert sorted(world.started) == ["once", "running", "safe"]
    world.assert_whole()


async def test_an_older_copy_put_in_the_place_of_the_file_gets_what_lives(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A backup restored under a running application: what runs goes on, what waits is there, nothing runs twice."""
    world, backup = World(tmp_path / "tasks.db"), tmp_path / "backup.db"
    async with world.manager as manager:
        running = world.held.enqueue("running")
        delayed = world.once.with_options(delay=60).enqueue("delayed")
        await asyncio.gather(running.saved(), delayed.saved())
        with closing(sqlite3.connect(world.db)) as other:
            other.execute("VACUUM INTO ?", (str(backup),))
        later = world.held.enqueue("later")
        await later.saved()
        await manager.cancel(delayed.task_id)
        os.rename(backup, world.db)  # noqa: PTH104  # the test has its loop to itself
        await eventually(lambda: "deleted or replaced" in caplog.text)
        await world.once.enqueue("after")
        assert world.statuses() == {
            "running": "RUNNING",
            "later": "RUNNING",
            "delayed": "PENDING",
            "after": "COMPLETED",
        }
        world.gate.set()
        assert list(await asyncio.gather(running, later)) == ["running", "later"]
    assert "claim lost" not in caplog.text
    assert sorted(world.started) == ["after", "later", "running"]
    assert world.statuses() == {
        "running": "COMPLETED",
        "later": "COMPLETED",
        "delayed": "PENDING",
        "after": "COMPLETED",
    }
    world.assert_whole()


async def test_a_log_that_is_deleted_costs_nobody_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It gives no error by itself, and whoever opens the file next would write another log: both would lose."""
    monkeypatch.setattr(store_module, "RENEW_S", 0.1)
    world = World(tmp_path / "tasks.db")
    async with world.manager as manager:
        running = world.held.enqueue("running")
        await running.saved()
        for name in ("-wal", "-shm"):
            world.db.with_name(world.db.name + name).unlink()
        before = world.safe.enqueue("before")
        await eventually(lambda: "made anew" in caplog.text)
        await eventually(world.db.with_name(world.db.name + "-wal").exists)
        await manager.flush()
        assert await before == "before"
        await asyncio.to_thread(subprocess.run, [sys.executable, "-c", _PAUSE, str(world.db)], check=True)
        waits = world.safe.enqueue("waits")
        await eventually(lambda: any(each.is_paused for each in manager.status().queues.values()))
        world.gate.set()
        assert await running == "running"
        await manager.resume("default")
        assert await waits == "waits"
    assert world.statuses() == {"running": "COMPLETED", "before": "COMPLETED", "waits": "COMPLETED"}
    world.assert_whole()


_PAUSE = """
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as other:
    assert other.execute("SELECT count(*) FROM taskmanager_tasks").fetchone() == (2,)
    other.execute("INSERT INTO taskmanager_queues VALUES ('default', 1)")
"""


@pytest.mark.slow
async def test_lock_files_that_somebody_tidied_away_make_nobody_dead(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A lock that is not there proves no death: its owner puts it back, and who finds it gone looks again."""
    world, other = World(tmp_path / "tasks.db"), World(tmp_path / "tasks.db")

    def locks() -> list[Path]:
        return list(tmp_path.glob("*.lock"))

    async with world.manager:
        running = world.held.enqueue("running")
        delayed = world.once.with_options(delay=60).enqueue("delayed")
        await asyncio.gather(running.saved(), delayed.saved())
        await eventually(lambda: world.started == ["running"])
        for lock in locks():
            lock.unlink()
        async with other.manager:
            assert "put back" in caplog.text
            assert world.statuses() == {"running": "RUNNING", "delayed": "PENDING"}
            world.gate.set()
            assert await running == "running"
    assert other.started == []
    assert world.statuses() == {"running": "COMPLETED", "delayed": "PENDING"}
    assert not locks()


def _holds(world: World, wanted: dict[str, str]) -> bool:
    if not world.db.exists():
        return False  # or this look at it would create it
    try:
        return world.statuses() == wanted
    except sqlite3.OperationalError:
        return False  # made, but not finished


def _delete(db: Path) -> None:
    for name in (db.name, f"{db.name}-wal", f"{db.name}-shm"):
        db.with_name(name).unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("not a database", "move that file away"),
        ("damaged", "restore a backup"),
        ("newer", "upgrade taskmanager"),
        ("missing directory", "create it first"),
        ("a directory", "path of a file"),
    ],
)
async def test_a_file_that_cannot_be_used_is_refused_in_words_that_help(tmp_path: Path, kind: str, words: str) -> None:
    """`start()` raises `StoreError`, names the file and says what to do; the file is left as it was."""
    db = tmp_path / "tasks.db"
    if kind == "not a database":
        db.write_bytes(b"once upon a time " * 1_000)
    elif kind == "missing directory":
        db = tmp_path / "nowhere" / "tasks.db"
    elif kind == "a directory":
        db.mkdir()
    else:
        async with World(db).manager:
            pass
        _spoil(db, kind)
    before = db.read_bytes() if db.is_file() else None
    manager = World(db).manager
    with pytest.raises(StoreError, match=words) as caught:
        await manager.start()
    assert str(db) in str(caught.value)
    assert kind == "newer" or before is None or db.read_bytes() == before
    assert manager.status().running_count == 0


def _spoil(db: Path, kind: str) -> None:
    if kind == "newer":
        with closing(sqlite3.connect(db)) as connection, connection:
            connection.execute("INSERT INTO taskmanager_schema VALUES (999, 'from the future', 0)")
        with closing(sqlite3.connect(db)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return
    content = bytearray(db.read_bytes())
    content[100:4096] = b"\xff" * (4096 - 100)
    db.write_bytes(content)


_AS_NOBODY = """
import asyncio, os, sys
from taskmanager import StoreUnavailable, TaskManager
async def main(path):
    async with TaskManager(path):
        print("started")
asyncio.run(main(sys.argv[2]))  # loads all there is to load, while it can be read
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    asyncio.run(main(sys.argv[1]))
except StoreUnavailable as exc:
    print(exc)
"""


@pytest.mark.parametrize("what", ["file", "directory", "closed directory"])
async def test_a_place_that_may_not_be_written_is_refused_with_the_reason(tmp_path: Path, what: str) -> None:
    """Permissions bind no superuser, so the start is made by somebody who is none."""
    os.chmod(tmp_path, 0o777)  # noqa: PTH101  # a path of the test's own
    for parent in tmp_path.parents:
        if parent != Path("/") and "pytest" in str(parent):
            parent.chmod(0o755)
    folder = tmp_path / "data"
    folder.mkdir()
    db = folder / "tasks.db"
    if what == "file":
        async with World(db).manager:
            pass
        db.chmod(0o444)
        folder.chmod(0o777)
    else:
        folder.chmod(0o555 if what == "directory" else 0o600)
    command = [sys.executable, "-c", _AS_NOBODY, str(db), str(tmp_path / "other.db")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert done.stdout.count("started") == 1, done.stdout + done.stderr
    assert "writable" in done.stdout, done.stdout + done.stderr
    assert str(db) in done.stdout


async def test_a_reader_that_pins_the_log_holds_up_no_stop(tmp_path: Path) -> None:
    """A forgotten SELECT in another program lets the log grow; it blocks neither work nor the end of it."""
    world = World(tmp_path / "tasks.db")
    async with world.manager as manager:
        await world.once.enqueue("before")
        with closing(sqlite3.connect(world.db, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM taskmanager_tasks").fetchone()
            await asyncio.gather(*(world.once.enqueue(f"t{n}") for n in range(300)))
            began = time.monotonic()
            await manager.stop()
            assert time.monotonic() - began < 2
    assert list(world.statuses().values()) == ["COMPLETED"] * 301
    world.assert_whole()


async def test_a_log_that_a_reader_pins_beyond_its_limit_is_a_degraded_store_until_the_reader_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like a full disk, which it is not to become: what may go on goes on, the rest waits, and all of it is written."""
    monkeypatch.setattr(supervisor, "UPKEEP_INTERVAL_S", 0.02)
    world = World(tmp_path / "tasks.db")
    world.manager._make_store = lambda: SqliteStore(world.db, wal_limits=WalLimits(50_000, 100_000, 300_000))
    async with world.manager as manager:
        with closing(sqlite3.connect(world.db, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM taskmanager_tasks").fetchone()
            number = 0
            async with asyncio.timeout(20):
                while manager.status().storage_degraded_since is None:
                    await world.safe.enqueue(f"{number}" + "x" * 20_000)
                    number += 1
            waits = world.once.enqueue("waits")
            assert await world.memory.enqueue("m") == "m"
            with pytest.raises(StoreUnavailable, match="another connection reads an old state"):
                await waits.saved(timeout=0.1)
        assert await waits == "waits"
        assert manager.status().storage_degraded_since is None
    assert list(world.statuses().values()).count("COMPLETED") >= number + 1
    world.assert_whole()


async def test_a_stop_that_cannot_write_says_how_much_and_the_next_start_recovers(tmp_path: Path) -> None:
    """`StoreUnavailable` with the count; the last committed state is what the next start goes on from."""
    world = World(tmp_path / "tasks.db", drain_timeout=0.1)
    await world.manager.start()
    running = world.held.enqueue("running")
    delayed = world.once.with_options(delay=60).enqueue("delayed")
    await asyncio.gather(running.saved(), delayed.saved())
    with locked(world.db):
        unsaved = world.once.enqueue("never saved")
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"\b3 records"):
            await world.manager.stop()
        assert time.monotonic() - began < 0.1 + 2 + 1
        with pytest.raises(TaskInterrupted):
            await unsaved
        with pytest.raises(StoreUnavailable):
            await unsaved.saved()
    assert world.statuses() == {"running": "RUNNING", "delayed": "PENDING"}
    again = World(world.db)
    again.gate.set()
    async with again.manager as manager:
        await eventually(lambda: again.statuses()["running"] == "COMPLETED")
        info = await manager.get(delayed.task_id)
        assert info is not None
        assert info.status is TaskStatus.PENDING
    assert again.started == ["running"]


async def test_under_run_a_stop_that_cannot_write_exits_with_status_1(tmp_path: Path) -> None:
    """A supervisor must see that something is not on the disk."""
    site = Site(tmp_path)
    child = site.spawn(enqueue=[["safe", "a", 30, {}]], manager={"drain_timeout": 0.1})
    with killed_at_the_end(child):
        await asyncio.to_thread(child.until, "ready")
        await asyncio.to_thread(child.until_starts, 1)
        with locked(site.db):
            await asyncio.to_thread(child.stop)
    assert child.code == 1, child.errors()
    assert "could not be written" in child.errors()
    await asyncio.to_thread(site.finish)
    assert site.statuses() == {"a": "COMPLETED"}
    site.assert_sound()


_ARMED = """
import signal, sys, threading, time
from taskmanager import TaskManager

def tell():
    while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        time.sleep(0.01)
    print("armed", flush=True)

threading.Thread(target=tell, daemon=True).start()
TaskManager(sys.argv[1]).run()
"""


async def test_a_second_signal_ends_a_start_that_waits_for_the_file(tmp_path: Path) -> None:
    """The first one lets it begin, so that what was enqueued before the start is kept; nobody must wait for more."""
    world = World(tmp_path / "tasks.db")
    async with world.manager:
        pass
    with locked(world.db):
        command = [sys.executable, "-c", _ARMED, str(world.db)]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"armed\n"
        process.terminate()
        await asyncio.sleep(0.3)
        assert process.returncode is None
        process.terminate()
        _, errors = await process.communicate()
        assert (await process.wait(), errors) == (0, b""), "one that waits for the lock to its end says so, and fails"


_LOOP_IN_A_THREAD = """
import asyncio, sqlite3, sys, threading
from taskmanager import RecoveryConfig, TaskManager

quick = RecoveryConfig(runner_heartbeat_interval_ms=1_000, claimer_heartbeat_interval_ms=1_000)

async def main():
    async with TaskManager(sys.argv[1], recovery=quick), asyncio.timeout(20):
        while threading.main_thread().is_alive():
            await asyncio.sleep(0.05)
        with sqlite3.connect(sys.argv[1]) as db:
            before = db.execute("SELECT count(*) FROM taskmanager_heartbeats").fetchone()
            while db.execute("SELECT count(*) FROM taskmanager_heartbeats").fetchone() == before:
                await asyncio.sleep(0.05)
    print("beats")

threading.Thread(target=lambda: asyncio.run(main())).start()
"""


@pytest.mark.slow
async def test_the_heart_beats_while_its_loop_lives_whatever_became_of_the_main_thread(tmp_path: Path) -> None:
    """A loop may run in a thread that outlives the main one; silent, its tasks would be taken over beside it."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", _LOOP_IN_A_THREAD, str(tmp_path / "tasks.db")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout == "beats\n", done.stderr


async def test_handles_of_both_kinds_end_while_the_store_is_away(tmp_path: Path) -> None:
    """A waiter is never left hanging at the stop, whatever the store does."""
    world = World(tmp_path / "tasks.db", drain_timeout=0.1)
    await world.manager.start()
    handles: list[TaskHandle[object]] = [world.held.enqueue("running")]
    await handles[0].saved()
    with locked(world.db):
        handles += [world.once.enqueue("new"), world.once.with_options(idempotency_key="k").enqueue("keyed")]
        waiters = [asyncio.ensure_future(each.result()) for each in handles]
        await asyncio.sleep(0)
        with pytest.raises(StoreUnavailable):
            await world.manager.stop()
        results = await asyncio.wait_for(asyncio.gather(*waiters), 5)
    assert all(each.is_err() for each in results)
