"""A fire that comes while the run before it has not ended: running, in back-off, or interrupted by a restart."""

import asyncio
from typing import Any

import pytest

from taskmanager import TaskManager, current_task
from taskmanager.testing import START, isolated
from tests.unit.schedules.fires import MINUTE

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("overlap", "started"),
    [
        ("skip", {1: 1, 4: 4, 7: 7}),
        ("queue", {1: 1, 3.5: 3, 6: 6}),
        ("allow", {minute: minute for minute in range(1, 8)}),
    ],
)
async def test_a_run_that_takes_longer_than_its_period(
    manager: TaskManager, overlap: Any, started: dict[float, float]
) -> None:
    """Fires that come meanwhile are dropped; or the newest of them waits; or they all start. Never a backlog."""
    seen = {}

    @manager.schedule(every=60, overlap=overlap, name="slow")
    async def slow() -> None:
        scheduled_for = current_task().scheduled_for
        assert scheduled_for is not None
        seen[round((world.now - START) / MINUTE, 1)] = (scheduled_for - START) / MINUTE
        await asyncio.sleep(150)

    async with isolated(manager) as world:
        await world.advance(7 * 60 + 10)
    assert list(seen.values()) == list(started.values())
    assert all(abs(at - due) < 0.1 for at, due in zip(seen, started, strict=True))


@pytest.mark.parametrize("overlap", ["skip", "queue"])
async def test_a_run_in_back_off_has_not_ended(manager: TaskManager, overlap: Any) -> None:
    """Between two attempts too there is one run of the schedule, not two."""
    attempts = []

    @manager.schedule(every=60, overlap=overlap, name="shaky")
    @manager.task(retries=1, retry_delay=200, persist=True)
    async def shaky() -> None:
        attempts.append(((world.now - START) / MINUTE, current_task().task_id))
        if current_task().attempt == 1:
            raise ValueError("not now")

    async with isolated(manager) as world:
        await world.advance(3.5 * 60)
        assert len({task_id for _, task_id in attempts}) == 1
        await world.advance(4 * 60)
    assert len({task_id for _, task_id in attempts[:2]}) == 1
    assert len(attempts) >= 3


async def test_a_run_that_a_restart_interrupted_has_not_ended(manager: TaskManager) -> None:
    """It goes on first; the fire that was missed meanwhile follows it and does not run beside it."""
    running = most = 0
    seen = []

    @manager.schedule(every=60, name="long")
    @manager.task(persist=True, requeue_on_interrupt=True)
    async def long() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        seen.append((current_task().scheduled_for, current_task().attempt))
        try:
            await asyncio.sleep(30)
        finally:
            running -= 1

    async with isolated(manager) as world:
        await world.advance(65)
        await world.manager.stop(timeout=0)
        await world.advance(300)
        await world.start()
        await world.advance(50)
    first, missed = START + MINUTE, START + 6 * MINUTE
    assert seen[:3] == [(first, 1), (first, 2), (missed, 1)]
    assert most == 1
