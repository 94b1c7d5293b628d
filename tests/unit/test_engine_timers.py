"""Time: a wall clock that is stepped, a process that is stopped; what is due, what expires, what times out."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taskmanager import Snooze, TaskExpired, TaskManager, current_task
from taskmanager.duties.retention import Retention
from taskmanager.engine.engine import Engine
from taskmanager.engine.words.timers import BEAT_S, HOLD_S, StallWatch, WatchedClock
from taskmanager.model import ids
from taskmanager.model.clock import HOUR_US, SECOND_US, SystemClock, to_us
from taskmanager.model.record import TaskRow, TaskWrite, expected_of
from taskmanager.store.memory import MemoryStore
from taskmanager.store.protocol import Beat, InstanceRow
from taskmanager.store.sqlite import SqliteStore
from taskmanager.testing import World, isolated
from taskmanager.testing.faulty import Fault, FaultyStore

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


DAY_US = 86_400_000_000


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


def test_time_that_passes_is_no_step_and_a_clock_that_is_set_is_one(caplog: pytest.LogCaptureFixture) -> None:
    """A night of suspend moves both clocks; a person moves one of them. Who keeps the count sees each step once."""
    clock = TwoClocks()
    wall_clock = WatchedClock(clock)
    clock.pass_s(28_800)
    assert (wall_clock.now_us(), wall_clock.step_count) == (clock.wall_us, 0)
    assert not wall_clock.holds_expiry
    for by_s in (7_200, -7_200):
        clock.wall_us += by_s * 1_000_000
        wall_clock.now_us()
        clock.pass_s(5.0)
        wall_clock.now_us()
        assert wall_clock.trusted_at_s == clock.elapsed - 5.0 + HOLD_S
        assert f"was stepped by {by_s:+.1f} s" in caplog.messages[-1]
    assert wall_clock.step_count == 2


def test_a_slewed_clock_never_adds_up_to_a_step() -> None:
    """NTP corrects slowly; what it corrected in a month is no jump."""
    clock = TwoClocks()
    wall_clock = WatchedClock(clock)
    for _ in range(100):
        clock.wall_us += 400_000
        wall_clock.now_us()
    assert wall_clock.step_count == 0


def test_a_process_stopped_between_the_two_clocks_saw_no_step() -> None:
    """Reading two clocks takes two calls, and an hour may pass between them."""
    clock = TwoClocks()
    wall_clock = WatchedClock(clock)
    clock.freeze_s = 3_600.0
    wall_clock.now_us()
    assert wall_clock.step_count == 0


def test_the_clock_of_the_database_is_gone_by_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts may be hours apart, and that is no step; only a clock that jumps later is one."""
    monkeypatch.setattr(ids, "_sequence", ids._Sequence())
    machine, clock = SystemClock(), SystemClock()
    wall_clock = WatchedClock(clock)
    before = ids.new_task_id()
    for ahead_us, is_first, steps in ((-HOUR_US, True, 0), (-HOUR_US + SECOND_US // 2, False, 0), (HOUR_US, False, 1)):
        wall_clock.go_by(ahead_us, is_first=is_first)
        assert abs(wall_clock.now_us() - machine.now_us() - ahead_us) < 60 * SECOND_US
        assert clock.ahead_us == ahead_us
        assert wall_clock.step_count == steps
        assert wall_clock.put_right_us == -HOUR_US, "what the start has found, and no later step"
        after = ids.new_task_id()
        assert after > before, "also behind the ids that were made by a clock that was ahead"
        before = after
    assert abs(int(before.replace("-", "")[:12], 16) * 1_000 - machine.now_us() - HOUR_US) < 60 * SECOND_US


def test_stamps_that_a_start_wrote_are_no_earlier_use_of_the_file() -> None:
    """A registration of unknown fate is tried again, and the file may say by then what a clock says that is ahead."""
    clock = TwoClocks()
    used_us = clock.wall_us
    clock.wall_us += 40 * DAY_US
    wall_clock = WatchedClock(clock)
    wall_clock.note_last_use(used_us)
    wall_clock.note_last_use(clock.wall_us)
    assert wall_clock.now_for_ages_us() == used_us + DAY_US


def test_expiry_is_held_for_a_minute_after_a_step() -> None:
    """Elapsed time counts it, which no further step shortens."""
    clock = TwoClocks()
    wall_clock = WatchedClock(clock)
    clock.wall_us += 5_000_000
    wall_clock.now_us()
    clock.pass_s(HOLD_S - 0.001)
    assert wall_clock.holds_expiry
    clock.pass_s(0.001)
    assert not wall_clock.holds_expiry


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


async def test_a_clock_ahead_expires_nothing_in_the_file_either(world: World) -> None:
    """What nobody holds is looked at again when the minute is over, and by then the clock has been corrected."""

    @world.manager.task(persist=True)
    async def offer() -> str:
        return "in time"

    handle = offer.with_options(delay=1_000, good_until=world.now + timedelta(hours=1)).enqueue()
    await world.restart()
    world.clock.step(TEN_YEARS)
    await world.advance(HOLD_S - 1)
    world.clock.step(-TEN_YEARS)
    await world.advance(HOLD_S + 6)
    assert await world.manager.handle(handle.task_id) == "in time"


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


@pytest.mark.parametrize("persist", [False, True])
async def test_the_retention_frees_a_key_with_the_record(world: World, persist: bool) -> None:
    """As a purge does; that of a younger record stays."""
    runs = []

    @world.manager.task(persist=persist)
    async def job(n: int) -> int:
        runs.append(n)
        return n

    async def called(n: int) -> int:
        return await job.with_options(idempotency_key="k").enqueue(n)

    retention = Retention(engine_of(world))
    assert await called(1) == 1
    await world.manager.flush()
    assert (await retention.run_once())["ended tasks"] == 0
    assert await called(2) == 1
    await world.advance(31 * 86_400)
    assert (await retention.run_once())["ended tasks"] == 1
    assert await called(3) == 3
    assert runs == [1, 3]


# What is due.


@pytest.fixture
async def crowded() -> AsyncIterator[World]:
    """A manager that holds two waiting tasks in memory; the others wait in the store."""
    manager = TaskManager("never-opened.db", concurrency=1, requeue_pending=True, max_in_memory=2)
    async with isolated(manager) as made:
        yield made


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_backlog_in_the_store_does_not_wait_for_a_clock_that_went_back(
    crowded: World, is_restarted: bool
) -> None:
    """What could have started before the step can start after it, in this process and in the next one."""

    @crowded.manager.task
    async def job() -> None:
        await asyncio.sleep(1)

    for _ in range(20):
        job.enqueue()
    await crowded.advance(1)
    if is_restarted:
        await crowded.manager.stop()
        crowded.clock.step(-TWO_HOURS)
        await crowded.start()
    else:
        crowded.clock.step(-TWO_HOURS)
    began = crowded.now
    await crowded.drain()
    assert crowded.now - began < timedelta(minutes=1)
    assert {task.status for task in crowded.enqueued} == {"COMPLETED"}


async def test_the_stamp_of_a_dead_instance_tells_of_a_clock_that_was_ahead(world: World) -> None:
    """It gave a task back while the clock was ten years ahead, and died before its first heartbeat."""

    @world.manager.task
    async def job() -> None: ...

    handle = job.with_options(delay=1).enqueue()
    await world.idle()
    await world.manager.stop()
    store = world.store.sound
    row, ahead = await store.fetch(handle.task_id), to_us(world.now + TEN_YEARS)
    assert row is not None
    await store.commit([TaskWrite(row._replace(enqueued_at=ahead, updated_at=ahead), expected_of(row))])
    await store.save_instance(InstanceRow("dead", None, "host", 1, "main", None, ahead, None, None, ahead))
    await world.start()
    await world.drain()
    row = await store.fetch(handle.task_id)
    assert row is not None
    assert row.status == "COMPLETED"


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize(
    "steps",
    [(TEN_YEARS, None, -TEN_YEARS), (TEN_YEARS, -TEN_YEARS, None), (None, TEN_YEARS, None)],
    ids=["ahead until it is gone", "ahead for a while", "set forwards while it waits"],
)
@pytest.mark.parametrize("kind", ["delay", "keyed", "retry", "snooze"])
async def test_a_pause_is_no_longer_after_a_clock_that_was_wrong(
    world: World, kind: str, steps: tuple[timedelta | None, ...], is_killed: bool
) -> None:
    """A delay is a time and no date, whoever counts it: a stop keeps what is left of it, a death begins it again."""
    starts = []

    @world.manager.task(retries=1, retry_delay=60, retry_backoff=1)
    async def job() -> Snooze | None:
        starts.append(_elapsed_s(world))
        if kind == "retry" and len(starts) == 1:
            raise ValueError("again")
        return Snooze(60) if kind == "snooze" and len(starts) == 1 else None

    before, while_it_waits, after = steps
    _step(world, before)
    options: dict[str, Any] = {"idempotency_key": "x"} if kind == "keyed" else {}
    handle = job.with_options(delay=60 if kind in ("delay", "keyed") else None, **options).enqueue()
    began_s = _elapsed_s(world)
    await world.advance(10)
    _step(world, while_it_waits)
    await world.advance(10)
    row = await world.store.sound.fetch(handle.task_id)
    await world.manager.stop()
    if is_killed:
        await _put_back(world, row)
    _step(world, after)
    await world.start()
    left_s = 90 if is_killed else 60  # a retry has its jitter
    await world.advance(left_s)
    pause_s = starts[-1] - began_s
    assert len(starts) == (2 if kind in ("retry", "snooze") else 1)
    assert pause_s <= 20 + 75 + 1 if is_killed else 44 < pause_s < 76
    assert (await world.manager.get(handle.task_id)).status == "COMPLETED"


def _elapsed_s(world: World) -> float:
    return 0.0 if world.virtual is None else world.virtual.time()


def _step(world: World, by: timedelta | None) -> None:
    if by is not None:
        world.clock.step(by)


async def _put_back(world: World, row: TaskRow | None) -> None:
    """The row as its instance had it, which has died."""
    assert row is not None
    store = world.store.sound
    now = await store.fetch(row.task_id)
    assert now is not None
    await store.commit([TaskWrite(row, expected_of(now))])
    stamp = to_us(world.now)
    await store.save_instance(InstanceRow("dead", None, "host", 1, "main", None, stamp, None, None, stamp))


async def test_a_promised_moment_is_kept_through_a_step_and_a_restart(world: World) -> None:
    """`run_at` is an instant of the wall clock, whatever the clock does in between."""
    started = []

    @world.manager.task
    async def job() -> None:
        started.append(world.now)

    due = world.now + timedelta(hours=1)
    job.with_options(run_at=due).enqueue()
    await world.idle()
    world.clock.step(-TWO_HOURS)
    await world.restart()
    await world.advance(timedelta(hours=2, minutes=59))
    assert started == []
    await world.drain()
    assert due <= started[0] < due + timedelta(seconds=6)


async def test_the_run_at_of_a_task_that_is_put_back_by_its_key_is_no_pause(world: World) -> None:
    """It was started before, and waits for an instant all the same: neither a stop nor a step of the clock moves it."""
    starts = []

    @world.manager.task
    async def job() -> None:
        starts.append(world.now)
        if len(starts) == 1:
            raise ValueError("once")

    await job.with_options(idempotency_key="x").enqueue().result()
    due = world.now + timedelta(hours=3)
    job.with_options(idempotency_key="x", run_at=due).enqueue()
    await world.advance(timedelta(hours=1))
    await world.restart()
    world.clock.step(-TWO_HOURS)
    await world.restart()
    await world.advance(timedelta(hours=4) - timedelta(minutes=1))
    assert len(starts) == 1
    await world.drain()
    assert due <= starts[1] < due + timedelta(seconds=6)


@pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped", "goes on"])
@pytest.mark.parametrize("kind", ["keyed", "put back by its key", "spilled"])
async def test_a_delay_whose_row_is_written_after_the_clock_went_back_is_as_long(kind: str, is_stopped: bool) -> None:
    """The file took no writes before. Whoever looked for such rows meanwhile has not seen this one."""
    starts: list[float] = []
    store = FaultyStore(MemoryStore())
    async with isolated(TaskManager("never-opened.db", requeue_pending=True), store=store.as_store()) as world:

        @world.manager.task
        async def job() -> None:
            starts.append(_elapsed_s(world))
            if kind == "put back by its key" and len(starts) == 1:
                raise ValueError("once")

        call = job.with_options(idempotency_key=None if kind == "spilled" else "x", delay=60)
        if kind == "put back by its key":
            await job.with_options(idempotency_key="x").enqueue().result()
        window = engine_of(world).window
        most, window.most = window.most, 0 if kind == "spilled" else window.most
        store.plan.append(Fault.fail(store.calls.count("commit") + 1, verb="commit", times=1_000))
        world.clock.step(TEN_YEARS)
        began_s = _elapsed_s(world)
        call.enqueue()
        await world.advance(0.2)
        window.most = most
        world.clock.step(-TEN_YEARS)
        await world.advance(0.2 if is_stopped else 6)
        if is_stopped:
            stopping = asyncio.ensure_future(world.manager.stop())
            await world.advance(0.2)
        store.plan.clear()
        if is_stopped:
            await stopping
            await world.start()
        await world.advance(70)
    assert 59 < starts[-1] - began_s < 66, starts


async def test_waits_of_a_living_process_do_not_follow_the_wall_clock(world: World) -> None:
    """A step of ten years makes no retry burst, a step back makes none wait."""
    starts = []

    @world.manager.task(retries=3, retry_delay=10, retry_backoff=1)
    async def job() -> None:
        starts.append(world.virtual.time() if world.virtual else 0.0)
        raise ValueError("again")

    handle = job.enqueue()
    await world.idle()
    for step in (TEN_YEARS, -TEN_YEARS - TWO_HOURS, TWO_HOURS):
        world.clock.step(step)
        await world.advance(13)
    assert handle.status == "FAILED"
    pauses = [after - before for before, after in pairwise(starts)]
    assert all(7.4 < pause < 12.6 for pause in pauses), pauses


async def test_progress_is_saved_after_the_clock_went_back(world: World) -> None:
    """Once a second at most, and not once in two hours."""

    @world.manager.task
    async def job() -> None:
        world.clock.step(-TWO_HOURS)
        current_task().progress(1, 2)
        await asyncio.sleep(1)

    handle = job.enqueue()
    await world.advance(0.5)
    row = await world.store.sound.fetch(handle.task_id)
    assert row is not None
    assert row.progress is not None


# Who is silent.


async def test_the_latest_heartbeat_is_the_one_written_last(tmp_path: Path) -> None:
    """By the greatest instant, an instance would look silent for as long as its clock was set back."""
    store = SqliteStore(tmp_path / "tasks.db")
    await store.open()
    beater = store.open_beater()
    for sent_at in (9_000_000, 1_000_000):
        beater.beat([Beat("other", "runner", sent_at, "host", 1)])
    assert await store.heartbeats() == [("other", "runner", 1_000_000)]
    assert await store.latest_stamp() == 1_000_000
    beater.close()
    await store.close()


def test_a_stall_is_lost_time_once_whoever_asks_how_often() -> None:
    """First by somebody who asks before the late beat has come, then by the beat itself."""
    now_s = 100.0
    timer = SimpleNamespace(cancel=lambda: None)
    loop: Any = SimpleNamespace(
        time=lambda: now_s, call_at=lambda at, beat: timer, call_later=lambda after_s, work, *args: timer
    )
    stall = StallWatch(loop)
    stall.start()
    began_s = stall.running_s()
    now_s += BEAT_S + 10
    assert [stall.lost_s(), stall.lost_s()] == [10.0, 10.0]
    stall._beat()
    assert stall.lost_s() == 10.0
    assert stall.running_s() - began_s == BEAT_S
