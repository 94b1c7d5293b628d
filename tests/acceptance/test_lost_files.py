"""A file that is deleted, replaced, or out of reach while the application runs: what lives is written anew."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from taskmanager import StoreUnavailable, TaskInterrupted, TaskManager, TaskStatus, wait_for
from taskmanager.store.sqlite import store as store_module
from tests.acceptance.file_faults import World, eventually

pytestmark = pytest.mark.anyio
MOVED_BYTES = 50_000
"""Fewer than the tables take in the file, and far more than it has while they stand in the log."""


@pytest.mark.slow
async def test_pauses_and_schedules_outlive_a_deleted_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What memory knows of them is written anew: the next fire is the one that was planned, and a pause stays one."""
    world = World(tmp_path / "tasks.db")
    half_a_day_on = (datetime.now(UTC).hour + 12) % 24  # it must not fire meanwhile
    daily = world.manager.schedule(cron=f"0 {half_a_day_on} * * *", name="daily")
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
            # The first move of the log makes the file anew that is emptied in the middle of it: all pages are in there.
            await eventually(lambda: world.db.stat().st_size > MOVED_BYTES)
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


async def test_a_stop_does_not_wait_for_a_file_replaced_by_a_locked_one(tmp_path: Path) -> None:
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


async def test_a_directory_in_the_place_of_the_file_is_said_once_and_in_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As at a start. What runs goes on, and the file is made anew when there is room for it."""
    world = World(tmp_path / "tasks.db")
    async with world.manager as manager:
        await world.once.enqueue("before")
        _delete(world.db)
        world.db.mkdir()
        await eventually(lambda: "claimer" in manager.status().failing_duties)
        waits = world.once.enqueue("waits")
        world.db.rmdir()
        assert await waits == "waits"
        await eventually(lambda: not manager.status().failing_duties)
    assert world.statuses() == {"waits": "COMPLETED"}
    assert caplog.text.count("is a directory; give the path of a file in it") == 1
    assert "Traceback" not in caplog.text


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


async def test_events_of_a_new_file_are_not_taken_for_those_of_the_lost_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A task that waits in a branch remembers what it has received, and the first event of a new file is a new one."""
    world, received = World(tmp_path / "tasks.db"), []

    @world.manager.task(persist=True, requeue_on_interrupt=True)
    async def collects() -> None:
        async def branch(number: int) -> None:
            received.append(await wait_for("go", int, key=str(number)))

        for number in range(3):
            await asyncio.gather(branch(number))

    async with world.manager as manager:
        handle = collects.enqueue()
        await handle.saved()
        await manager.send(handle.task_id, "go", 1)
        await eventually(lambda: received == [1])
        await manager.flush()
        _delete(world.db)
        await eventually(lambda: "was deleted" in caplog.text)
        await eventually(lambda: len(_rows(world.db, "taskmanager_tasks")) == 1)
        await manager.send(handle.task_id, "go", 2)
        await manager.send(handle.task_id, "go", 3)
        await asyncio.wait_for(handle, 10)
    assert received == [1, 2, 3]


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
