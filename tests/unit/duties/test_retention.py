"""Retention: what goes, what is kept, and what a clock that is ahead must not delete."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from taskmanager import RecoveryConfig
from taskmanager.duties.retention import Retention
from taskmanager.model.errors import StoreUnavailable
from taskmanager.model.record import TaskRow
from tests.contract.rows import attempt, task
from tests.unit.duties.scene import HOUR_US, NOW_US, Scene

pytestmark = pytest.mark.anyio

ENDED = ("COMPLETED", "FAILED", "CANCELLED", "EXPIRED", "INTERRUPTED")


def ended(task_id: str, status: str, at: int) -> TaskRow:
    """A row that ended then; one column or another says so."""
    row = task(task_id, status=status, sent_at=at, enqueued_at=at, created_at=at, updated_at=at)
    if status == "COMPLETED":
        return row._replace(completed_at=at)
    return row._replace(failed_at=None if status == "INTERRUPTED" else at, error_code="X", claimed_by_worker_id=None)


def sweeping(scene: Scene) -> Retention:
    """Another one than that of the start, which may be under way: it deletes, 50 rows at a time."""
    retention = Retention(scene.engine)
    retention._settings = replace(scene.engine.settings, recovery=RecoveryConfig(retention_delete_batch_size=50))
    return retention


@pytest.mark.req(
    "RC-54", "RC-55", "RC-56", "RC-57", "RC-58", "RC-s7", "HB-51", "DS-116", "DS-117", "DS-118", "DS-119", "DS-120",
    "DS-123", "DS-s1", "RC-07",
)  # fmt: skip
async def test_old_records_are_deleted_in_batches_and_the_file_shrinks(stage: Any) -> None:
    """Ended tasks of every kind with their attempts, heartbeats, worker states; live tasks never, however old."""
    never = RecoveryConfig(
        heartbeat_retention_hours=None, worker_state_retention_hours=None, terminal_record_retention_hours=None
    )
    scene = await stage(recovery=never)  # or the sweep of the start would come between
    retention = sweeping(scene)
    old, young = NOW_US - 721 * HOUR_US, NOW_US - 719 * HOUR_US
    big = "x" * 20_000
    rows = [ended(f"old {status} {number}", status, old)._replace(args=big) for status in ENDED for number in range(30)]
    young_rows = [ended(f"young {status}", status, young) for status in ENDED]
    live = task("live", sent_at=old, enqueued_at=old, updated_at=old)
    await scene.put(*rows, *young_rows, live, attempts=(attempt("old FAILED 1"), attempt("young FAILED")))
    for table, column, role, hours in (
        ("taskmanager_heartbeats", "sent_at", "role, sender_id", 24),
        ("taskmanager_worker_states", "snapshot_at", "worker_id, hostname", 168),
    ):
        for age in (hours - 1, hours + 1):
            sql = f"INSERT INTO {table} ({column}, {role}) VALUES (?, 'runner', 'other')"
            with closing(sqlite3.connect(scene.db)) as connection, connection:
                connection.execute(sql, (NOW_US - age * HOUR_US,))
    await scene.engine.store.upkeep(is_idle=True)
    before = scene.db.stat().st_size
    gone = await retention.run_once()
    assert gone == {"heartbeats": 1, "worker states": 1, "ended tasks": 150}
    assert set(scene.statuses()) == {"live", *(row.task_id for row in young_rows)}
    assert scene.query("SELECT task_id FROM taskmanager_task_attempts") == [("young FAILED",)]
    await scene.engine.store.upkeep(is_idle=True)
    assert scene.db.stat().st_size < before - 150 * 20_000 / 2
    assert scene.query("PRAGMA freelist_count") == [(0,)]


async def test_figures_go_after_two_days_and_after_thirty(stage: Any) -> None:
    """By minute and by hour, without a setting. What lies ahead stays: the clock that is wrong may be the one here."""
    never = RecoveryConfig(
        heartbeat_retention_hours=None, worker_state_retention_hours=None, terminal_record_retention_hours=None
    )
    scene = await stage(recovery=never)
    kept = {(60, -47), (60, 0), (60, 25), (3600, -719), (3600, -49), (3600, 25)}
    gone = {(60, -49), (3600, -721)}
    with closing(sqlite3.connect(scene.db)) as connection, connection:
        for span, hours in kept | gone:
            at = NOW_US // HOUR_US * HOUR_US + hours * HOUR_US
            for number in range(3):
                connection.execute(
                    "INSERT INTO taskmanager_figures (span, at, task_name, queue_name) VALUES (?, ?, ?, 'default')",
                    (span, at, f"job {number}"),
                )
    await scene.duties._retention.run_once()
    found = scene.query("SELECT span, at FROM taskmanager_figures")
    hours_of = [(span, (at - NOW_US // HOUR_US * HOUR_US) // HOUR_US) for span, at in found]
    assert {each: hours_of.count(each) for each in hours_of} == dict.fromkeys(kept, 3)


async def test_a_start_whose_clock_is_ahead_deletes_no_history(stage: Any, tmp_path: Path) -> None:
    """A container that boots with a wrong clock, or an application that was not used for long: a day tells which."""
    scene = await stage()
    await scene.put(ended("recent", "COMPLETED", NOW_US), ended("old", "COMPLETED", NOW_US - 720 * HOUR_US))
    later = Scene(tmp_path)
    later.clock.pass_s(40 * 86_400)
    async with later.manager:
        retention = later.duties._retention
        with closing(sqlite3.connect(scene.db)) as connection, connection:
            now = (60, later.clock.now_us(), "job", "default")
            connection.execute(
                "INSERT INTO taskmanager_figures (span, at, task_name, queue_name) VALUES (?, ?, ?, ?)", now
            )
        await retention.run_once()
        assert later.statuses() == {"recent": "COMPLETED"}, "old is what was so a day after the file was used last"
        assert later.query("SELECT count(*) FROM taskmanager_figures WHERE task_name = 'job'") == [(1,)]
        later.clock.pass_s(86_399)
        assert (await retention.run_once())["ended tasks"] == 0
        later.clock.pass_s(1)
        assert (await retention.run_once())["ended tasks"] == 1


@pytest.mark.req("RC-59", "DS-124", "RC-55")
@pytest.mark.parametrize("kept", ["heartbeats", "worker states", "ended tasks"])
async def test_none_keeps_one_kind_for_ever_and_trouble_with_one_stops_no_other(stage: Any, kept: str) -> None:
    """The kinds are independent of each other, switched off or broken."""
    names = {
        "heartbeats": "heartbeat_retention_hours",
        "worker states": "worker_state_retention_hours",
        "ended tasks": "terminal_record_retention_hours",
    }
    scene = await stage(recovery=RecoveryConfig(**{names[kept]: None}))
    gone = await scene.duties._retention.run_once()
    assert set(gone) == set(names) - {kept}


async def test_a_sweep_ends_when_the_clock_is_stepped_under_it(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limit is of a clock that was ahead: what ends now, by one that was corrected, would be old by it at once."""
    scene = await stage(recovery=RecoveryConfig(terminal_record_retention_hours=None))
    retention = sweeping(scene)
    old = NOW_US - 721 * HOUR_US
    await scene.put(*(ended(f"old {number}", "COMPLETED", old) for number in range(51)))
    purge = scene.engine.store.purge

    async def purge_and_correct(*args: Any) -> int:
        count: int = await purge(*args)
        scene.clock.wall_us -= 1_000 * HOUR_US
        await scene.put(ended("ended now", "COMPLETED", scene.clock.wall_us))
        return count

    monkeypatch.setattr(scene.engine.store, "purge", purge_and_correct)
    await retention.run_once()
    monkeypatch.undo()
    assert len(scene.statuses()) == 2
    assert await retention.run_once() == {}
    assert "ended now" in scene.statuses()


def leave_free_pages(database: Path) -> None:
    """What a sweep has deleted that was cut short before it gave the space back, or another program."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")  # a sweep of the manager waits
        connection.execute("CREATE TABLE gone AS SELECT zeroblob(1000000)")
        connection.execute("DROP TABLE gone")
        ((pages,),) = connection.execute("PRAGMA freelist_count")
        connection.execute("COMMIT")
    assert pages > 200


@pytest.mark.parametrize("clock", ["steady", "stepped"])
async def test_free_space_is_given_back_whoever_has_deleted_the_rows(stage: Any, clock: str) -> None:
    """The state of the file decides, not what this sweep has deleted, which may be nothing, nor what time it is."""
    never = RecoveryConfig(
        heartbeat_retention_hours=None, worker_state_retention_hours=None, terminal_record_retention_hours=None
    )
    scene = await stage(recovery=never)
    leave_free_pages(scene.db)
    if clock == "stepped":
        scene.clock.wall_us += 1_000 * HOUR_US
    await scene.duties._retention.run_once()
    assert scene.query("PRAGMA freelist_count") == [(0,)]


async def test_a_shrink_that_a_stop_cut_short_is_taken_up_by_the_next_start(stage: Any, tmp_path: Path) -> None:
    """The first sweep of a start finds it."""
    scene = await stage()
    await scene.manager.stop()
    leave_free_pages(scene.db)
    later = Scene(tmp_path)
    async with later.manager:
        await later.duties._retention.run_once()
        assert later.query("PRAGMA freelist_count") == [(0,)]


async def test_a_file_that_cannot_be_shrunk_now_fails_no_sweep(
    stage: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said, and tried again by the next one."""
    scene = await stage()

    async def fails() -> bool:
        raise StoreUnavailable("locked")

    monkeypatch.setattr(scene.engine.store, "shrink", fails)
    assert set(await scene.duties._retention.run_once()) == {"heartbeats", "worker states", "ended tasks"}
    assert "could not be given back now: locked" in caplog.text
