"""`run_on_startup`: one run when the application starts, and none when a process joins others."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from taskmanager import TaskManager
from taskmanager.duties import schedules

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


def instance_on(db: Path, **options: Any) -> TaskManager:
    """One process of the application: all of them declare the same."""
    manager = TaskManager(db, store_poll=0.02, **options)

    async def warm_up() -> None: ...

    # With the default, a run of the start before that still waits would be a reason to skip the next one.
    every_hour = manager.schedule(every=3600, run_on_startup=True, overlap="allow", name="warm up")
    every_hour(manager.task(name="warm up")(warm_up))
    return manager


def state(db: Path) -> tuple[int, str]:
    """How often the schedule has fired, and who owns it."""
    with closing(sqlite3.connect(db)) as connection:
        return connection.execute("SELECT run_count, owner_id FROM taskmanager_schedule_state").fetchone()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110  # what another instance does in the file has no event
            await asyncio.sleep(0.005)


async def test_instances_that_start_together_fire_once(tmp_path: Path) -> None:
    """Whoever declares the schedule first owns its row, and owes the run: a producer and two workers are one start."""
    db = tmp_path / "tasks.db"
    instances = [instance_on(db, run_queues=()), instance_on(db), instance_on(db, run_queues=("default",))]
    for start in (1, 2):
        await asyncio.gather(*(each.start() for each in instances))
        await until(lambda: state(db)[0] >= start)  # noqa: B023  # awaited in this round
        await asyncio.gather(*(each.schedules() for each in instances))
        await asyncio.gather(*(each.stop() for each in instances))
        assert state(db)[0] == start


async def test_an_instance_that_is_replaced_beside_others_does_not_fire_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others take over what its owner has left before the next one can be there, and not at their next round."""
    monkeypatch.setattr(schedules, "RECHECK_S", 3600)
    db = tmp_path / "tasks.db"
    first, second = instance_on(db), instance_on(db)
    async with second:
        await until(lambda: state(db)[0] == 1)
        stopped = second.status().instance_id
        async with first:
            await second.stop()
            await until(lambda: state(db)[1] != stopped)
            await second.start()
            await second.schedules()
            await (await second.run_schedule("warm up")).result(timeout=10)
            assert state(db)[0] == 2
