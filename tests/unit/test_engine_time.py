"""Time: a wall clock that is stepped, a process that is stopped; what is due, what expires, what times out."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from taskmanager import TaskExpired, TaskManager
from taskmanager.duties.retention import Retention
from taskmanager.engine.engine import Engine
from taskmanager.engine.steps import HOLD_S, StepWatch
from taskmanager.testing import World, isolated

pytestmark = pytest.mark.anyio

TWO_HOURS = timedelta(hours=2)
TEN_YEARS = timedelta(days=3_653)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A manager with one slot, on a virtual clock."""
    async with isolated(TaskManager("never-opened.db", concurrency=1, requeue_pending=True)) as made:
        yield made


def engine_of(world: World) -> Engine:
    """The engine of the start that runs now."""
    lifecycle = world.manager._lifecycle
    assert lifecycle is not None
    return lifecycle.engine


class TwoClocks:
    """A wall and an elapsed clock that a test moves apart; `freeze_s` passes between two readings, once."""

    def __init__(self) -> None:
        self.wall_us = 1_000_000_000
        self.elapsed = 10.0
        self.freeze_s = 0.0

    def now_us(self) -> int:
        freeze_s, self.freeze_s = self.freeze_s, 0.0
        self.pass_s(freeze_s)
        return self.wall_us

    def elapsed_s(self) -> float:
        return self.elapsed

    def pass_s(self, seconds: float) -> None:
        self.elapsed += seconds
        self.wall_us += round(seconds * 1_000_000)


# Noticing.


def test_time_that_passes_is_no_step_and_a_clock_that_is_set_is_one() -> None:
    """A night of suspend moves both clocks; a person moves one of them. Who keeps the count sees each step once."""
    clock = TwoClocks()
    watch = StepWatch(clock)
    clock.pass_s(28_800)
    assert (watch.now_us(), watch.count, watch.last) == (clock.wall_us, 0, None)
    assert not watch.holds_expiry
    for by_us in (7_200_000_000, -7_200_000_000):
        clock.wall_us += by_us
        watch.now_us()
        watch.now_us()
        assert watch.last is not None
        assert (watch.last.noticed_s, watch.last.by_us) == (clock.elapsed, by_us)
    assert watch.count == 2


def test_a_slewed_clock_never_adds_up_to_a_step() -> None:
    """NTP corrects slowly; what it corrected in a month is no jump."""
    clock = TwoClocks()
    watch = StepWatch(clock)
    for _ in range(100):
        clock.wall_us += 400_000
        watch.now_us()
    assert watch.count == 0


def test_a_process_stopped_between_the_two_clocks_saw_no_step() -> None:
    """Reading two clocks takes two calls, and an hour may pass between them."""
    clock = TwoClocks()
    watch = StepWatch(clock)
    clock.freeze_s = 3_600.0
    watch.now_us()
    assert watch.count == 0


def test_expiry_is_held_for_a_minute_after_a_step() -> None:
    """Elapsed time counts it, which no further step shortens."""
    clock = TwoClocks()
    watch = StepWatch(clock)
    clock.wall_us += 5_000_000
    watch.now_us()
    clock.pass_s(HOLD_S - 0.001)
    assert watch.holds_expiry
    clock.pass_s(0.001)
    assert not watch.holds_expiry


# Expiry.


async def test_a_clock_ten_years_ahead_for_half_a_minute_expires_nothing(world: World) -> None:
    """What waits for a slot waits on while the clock is wrong, and starts when it has been corrected."""

    @world.manager.task
    async def long() -> None:
        await asyncio.sleep(40)

    @world.manager.task
    async def offer() -> str:
        return "in time"

    long.enqueue()
    handle = offer.with_options(good_until=world.now + timedelta(minutes=5)).enqueue()
    await world.idle()
    world.clock.step(TEN_YEARS)
    await world.advance(30)
    assert handle.status == "PENDING"
    world.clock.step(-TEN_YEARS)
    assert await handle == "in time"


@pytest.mark.parametrize("is_slot_free", [False, True])
async def test_a_clock_that_stays_ahead_expires_after_the_minute(world: World, is_slot_free: bool) -> None:
    """Then the step was right: `good_until` has passed, and what is past it never starts, a free slot or not."""

    @world.manager.task
    async def long() -> None:
        await asyncio.sleep(20 if is_slot_free else 1_000)

    started = []

    @world.manager.task
    async def offer() -> None:
        started.append(1)

    long.enqueue()
    handle = offer.with_options(good_until=world.now + timedelta(minutes=5)).enqueue()
    await world.idle()
    world.clock.step(TEN_YEARS)
    await world.advance(HOLD_S - 1)
    assert handle.status == "PENDING"
    await world.advance(7)
    with pytest.raises(TaskExpired):
        await handle
    assert started == []


# Retention.


async def test_the_sweep_after_a_step_deletes_nothing(world: World) -> None:
    """What a jump made old is young again when the clock is corrected; if it stays, the next sweep deletes."""

    @world.manager.task
    async def job() -> None: ...

    handle = job.enqueue()
    await handle
    await world.manager.flush()
    retention = Retention(engine_of(world))
    world.clock.step(TEN_YEARS)
    assert await retention.run_once() == {}
    assert await world.manager.get(handle.task_id) is not None
    assert (await retention.run_once())["ended tasks"] == 1
    world.clock.step(-TEN_YEARS)
    assert await retention.run_once() == {}
