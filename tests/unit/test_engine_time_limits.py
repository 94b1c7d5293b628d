"""Time limits: one timer serves all runs that have the same, and each run reaches its own."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from taskmanager import TaskManager, TaskStatus
from taskmanager.engine.words.attempt import Attempt
from taskmanager.engine.words.timers import TimeLimits
from taskmanager.testing import World, isolated
from tests.unit.engine_lives import new_live, running

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A manager on a virtual clock."""
    async with isolated(TaskManager("never-opened.db")) as made:
        yield made


async def test_each_run_reaches_its_own_limit(world: World) -> None:
    """Some have the same limit and began at different times, others have another one, and one ends before its limit."""

    @world.manager.task(timeout=10)
    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)

    reached: dict[str, int] = {}
    handles = {"first": work.enqueue(100), "ends": work.enqueue(6), "short": work.with_options(timeout=3).enqueue(100)}
    for second in range(1, 16):
        await world.advance(1)
        if second == 4:
            handles["later"] = work.enqueue(100)
            handles["last"] = work.with_options(timeout=11).enqueue(100)
        for name, handle in handles.items():
            if handle.status is TaskStatus.FAILED and name not in reached:
                reached[name] = second
    assert reached == {"short": 3, "first": 10, "later": 14, "last": 15}
    assert handles["ends"].status is TaskStatus.COMPLETED
    codes = {(await handles[name].result()).err_value.error_code for name in reached}
    assert codes == {"TASK_TIMEOUT"}


def timers() -> list[asyncio.TimerHandle]:
    """The timers of time limits that the running loop has."""
    scheduled = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    return [each for each in scheduled if not each.cancelled() and "TimeLimits._look" in repr(each)]


async def test_runs_with_the_same_limit_have_one_timer(tmp_path: Path) -> None:
    """One for each limit, as long as somebody has it."""
    gate, begun = asyncio.Event(), asyncio.Semaphore(0)
    manager = TaskManager(tmp_path / "tasks.db")

    @manager.task(timeout=60)
    async def work() -> None:
        begun.release()
        await gate.wait()

    async with manager:
        handles = [work.enqueue() for _ in range(20)] + [work.with_options(timeout=50).enqueue() for _ in range(20)]
        for _ in handles:
            await begun.acquire()
        assert len(timers()) == 2
        handles[-1].cancel()
        gate.set()
        await manager.join()
        assert timers() == []


async def test_limit_is_reached_when_only_a_rounding_error_is_left() -> None:
    """0.1 + 0.2 - 0.3 is more than nothing. A virtual clock would wait for that for ever."""
    now_s = 0.1
    reached: list[Attempt] = []
    limits = TimeLimits(asyncio.get_running_loop(), lambda: now_s, reached.append)
    attempt = running(new_live(), limits)  # type: ignore[arg-type]  # nobody asks for a slot
    limits.watch(attempt, 0.2)
    now_s = 0.3
    limits._look(0.2)
    assert reached == [attempt]
    assert timers() == []
