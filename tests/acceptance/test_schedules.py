"""Schedules on the real clock and a real file: one short test for each thing they can do."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from taskmanager import ScheduleInfo, TaskManager, current_task
from taskmanager.duties import schedules
from taskmanager.model.clock import SystemClock

pytestmark = pytest.mark.anyio

PATIENCE_S = 20.0


class Runs:
    """What ran, and how often; a test waits for the next one."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, datetime]] = []
        self._changed = asyncio.Event()

    async def note(self) -> None:
        context = current_task()
        assert context.scheduled_for is not None
        self.seen.append((context.tags["schedule"], context.scheduled_for))
        self._changed.set()

    async def until(self, count: int, name: str | None = None) -> list[datetime]:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.of(name)) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.of(name)

    def of(self, name: str | None) -> list[datetime]:
        return [at for schedule, at in self.seen if name in (None, schedule)]


@pytest.fixture
def runs() -> Runs:
    return Runs()


def application(database: Path | None, runs: Runs, **schedules: dict[str, Any]) -> TaskManager:
    """One release: these schedules, all of one task."""
    manager = TaskManager(database, store_poll=0.05)

    @manager.task(name="job", requeue_on_interrupt=database is not None, persist=database is not None or None)
    async def job() -> None:
        await runs.note()

    for name, options in schedules.items():
        manager.schedule(name=name, **options)(job)
    return manager


async def only(manager: TaskManager) -> ScheduleInfo:
    (info,) = await manager.schedules()
    return info


async def test_intervals_and_cron_expressions_fire_on_time(tmp_path: Path, runs: Runs) -> None:
    """A quarter of a second on its grid, and every full second; without a file too."""
    for database in (tmp_path / "tasks.db", None):
        runs.seen.clear()
        quarter = {"every": 0.25, "overlap": "allow", "catch_up": "all"}
        second = {"cron": "* * * * * *", "timezone": "America/St_Johns"}
        async with application(database, runs, quarter=quarter, second=second):
            await runs.until(1, "second")
            fires = await runs.until(4, "quarter")
        assert {later - fire for fire, later in pairwise(sorted(fires))} == {timedelta(seconds=0.25)}
        assert all(at.microsecond == 0 and at.tzinfo is UTC for at in runs.of("second"))


async def test_a_missed_fire_is_made_up_after_a_restart(tmp_path: Path, runs: Runs) -> None:
    """By the state in the file: each time that was missed, once."""
    database, options = tmp_path / "tasks.db", {"every": 0.2, "catch_up": "all", "overlap": "allow"}
    async with application(database, runs, tick=options):
        await runs.until(1)
    await asyncio.sleep(0.7)
    async with application(database, runs, tick=options):
        fires = await runs.until(5)
    assert {later - fire for fire, later in pairwise(sorted(fires))} == {timedelta(seconds=0.2)}


async def test_pausing_resuming_and_running_by_hand(tmp_path: Path, runs: Runs) -> None:
    """From another manager on the same file, as a second process would."""
    database = tmp_path / "tasks.db"
    async with application(database, runs, tick={"every": 0.1}) as manager, TaskManager(database) as other:
        await runs.until(1)
        await other.pause_schedule("tick")
        assert (await only(manager)).is_paused
        await manager.join()
        before = len(runs.seen)
        await (await other.run_schedule("tick"))
        assert len(runs.seen) == before + 1
        await manager.resume_schedule("tick")
        await runs.until(before + 3)
        assert (await only(other)).run_count >= before + 2


async def test_two_managers_started_together_run_each_fire_once(tmp_path: Path, runs: Runs) -> None:
    """And only the first of the two runs what is to be run at the start."""
    database = tmp_path / "tasks.db"
    options = {"every": 0.1, "overlap": "allow", "run_on_startup": True}
    managers = [application(database, runs, tick=options) for _ in range(2)]
    await asyncio.gather(*(each.start() for each in managers))
    await runs.until(8)
    await asyncio.gather(*(each.stop() for each in managers))
    assert len(set(runs.seen)) == len(runs.seen)
    with closing(sqlite3.connect(database)) as connection:
        (anchor,) = connection.execute("SELECT next_run_at FROM taskmanager_schedule_state").fetchone()
        fires = [at for (at,) in connection.execute("SELECT scheduled_for FROM taskmanager_tasks")]
    assert len(fires) == len(set(fires))
    assert len([at for at in fires if (anchor - at) % 100_000]) == 1


async def test_releases_side_by_side_do_not_reset_each_other(
    tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The newer owns the schedule; the older says that it does not fire it, and takes it back when that one is gone."""
    monkeypatch.setattr(schedules, "RECHECK_S", 0.1)
    caplog.set_level(logging.WARNING, "taskmanager")
    database = tmp_path / "tasks.db"
    async with application(database, runs, tick={"every": 0.1}) as old:
        await runs.until(2)
        async with application(database, runs, tick={"every": 0.15}) as new:
            await until(lambda: "defines 1 schedule otherwise" in caplog.text)
            assert (await only(old)).definition == (await only(new)).definition == "every 0.15 s"
            await runs.until(len(runs.seen) + 3)
            assert (await only(old)).definition == "every 0.15 s"
        await until(lambda: old.status().schedules[0].definition == "every 0.1 s")
        await runs.until(len(runs.seen) + 2)
        assert (await only(old)).is_declared
    assert caplog.text.count("defines 1 schedule otherwise") == 1


class Behind(SystemClock):
    """A machine whose wall clock was never set."""

    def now_us(self) -> int:
        return super().now_us() - 3 * 3_600_000_000


async def test_instances_whose_clocks_are_hours_apart_hear_each_other(
    tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the one changes is stamped in the other's past; pausing and resuming hold at once all the same."""
    monkeypatch.setattr(schedules, "RECHECK_S", 0.1)
    database = tmp_path / "tasks.db"
    other = TaskManager(database)
    other._clock = Behind()
    async with application(database, runs, tick={"every": 0.1}) as manager, other:
        await runs.until(2)
        await other.pause_schedule("tick")
        await until(lambda: manager.status().schedules[0].is_paused)
        before = len(runs.seen)
        await other.resume_schedule("tick")
        await runs.until(before + 2)
    assert len(set(runs.seen)) == len(runs.seen)


async def until(holds: Callable[[], bool]) -> None:
    """Look often until it holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110  # what a log or a status says comes with no event
            await asyncio.sleep(0.02)


async def test_a_run_that_a_stop_interrupts_comes_back_for_the_same_fire(tmp_path: Path, runs: Runs) -> None:
    """Its scheduled time is in the file with it."""
    manager = TaskManager(tmp_path / "tasks.db", store_poll=0.05)
    gate = asyncio.Event()

    @manager.schedule(every=0.2, name="slow", jitter=0.05)
    @manager.task(persist=True, requeue_on_interrupt=True)
    async def slow() -> None:
        await runs.note()
        await gate.wait()

    async with manager:
        await runs.until(1)
        await manager.stop(timeout=0)
    gate.set()
    async with manager:
        await runs.until(2)
    assert runs.seen[0] == runs.seen[1]
