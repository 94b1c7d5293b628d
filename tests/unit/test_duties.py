"""The duties beside the tasks: heartbeats, the reaper, retention, worker states, and what a person may do by hand."""

import asyncio
import json
import logging
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from taskmanager import QueueConfig, RecoveryConfig, TaskManager, TaskStatus
from taskmanager.duties import recovery, supervisor
from taskmanager.duties.heartbeat import BLOCKED_AFTER_S, LOOP_PROBE_S, Heartbeat, Rest
from taskmanager.duties.supervisor import Supervisor
from taskmanager.engine.engine import Engine
from taskmanager.engine.instance import InstanceLock, has_lock_file, lock_path, sign_of_life
from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.model.record import AttemptRow, TaskRow, TaskWrite
from taskmanager.store.protocol import Beat, InstanceRow
from tests.contract.rows import attempt, task

pytestmark = pytest.mark.anyio

HOUR_US = 3_600_000_000
NOW_US = 2_000_000_000_000_000


class Clock:
    """Wall and elapsed time that pass when a test says so."""

    def __init__(self) -> None:
        self.wall_us, self.elapsed = NOW_US, 1_000.0

    def now_us(self) -> int:
        return self.wall_us

    def elapsed_s(self) -> float:
        return self.elapsed

    def pass_s(self, seconds: float) -> None:
        self.elapsed += seconds
        self.wall_us += int(seconds * 1_000_000)


class Scene:
    """A manager whose duties are called by the test, on a file that other instances have written to as well."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.db = folder / "tasks.db"
        self.clock = Clock()
        self.manager = TaskManager(self.db, **options)
        self.manager._clock = self.clock
        self.locks: list[InstanceLock] = []

    @property
    def engine(self) -> Engine:
        lifecycle = self.manager._lifecycle
        assert lifecycle is not None
        return lifecycle.engine

    @property
    def duties(self) -> Supervisor:
        lifecycle = self.manager._lifecycle
        assert lifecycle is not None
        assert isinstance(lifecycle._duties, Supervisor)
        return lifecycle._duties

    async def other(self, name: str, *rows: TaskRow, is_alive: bool = True, boot_id: str | None = None) -> None:
        """Another instance with these rows; alive means that it holds its lock, and a death leaves the file of it."""
        lock = InstanceLock(self.db, name)
        lock.take()
        if is_alive:
            self.locks.append(lock)
        else:
            lock.close_descriptor()
        await self.engine.store.save_instance(InstanceRow(name, None, "host", 1, "main", boot_id, 1, None, None, 1))
        await self.put(*(row._replace(claimed_by_worker_id=name) for row in rows))

    async def put(self, *rows: TaskRow, attempts: tuple[AttemptRow, ...] = ()) -> None:
        """Rows as somebody has left them."""
        writes = [TaskWrite(row, None, tuple(a for a in attempts if a.task_id == row.task_id)) for row in rows]
        assert await self.engine.store.commit(writes) == ({}, {})

    def beat(self, sender: str, *roles: str) -> None:
        """A sign of life of another instance, now."""
        beater = self.engine.store.open_beater()
        assert beater is not None
        beater.beat([Beat(sender, role, self.clock.now_us(), "host", 1) for role in roles])
        beater.close()

    async def sweep(self) -> dict[str, str]:
        """One round of the reaper; what it has left, by id."""
        await self.duties._reaper.run_once()
        return self.statuses()

    def statuses(self) -> dict[str, str]:
        return dict(self.query("SELECT id, status FROM taskmanager_tasks"))

    def query(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.db)) as connection:
            return connection.execute(sql, parameters).fetchall()


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Makes started scenes, and ends them."""
    async with AsyncExitStack() as stack:

        async def start(**options: Any) -> Scene:
            scene = Scene(tmp_path, **options)
            await stack.enter_async_context(scene.manager)
            # The time in which this process could run is the loop's own; here all of it passes when the test says so.
            scene.engine.stall.running_s = scene.clock.elapsed_s
            stack.callback(lambda: [lock.drop() for lock in scene.locks])
            return scene

        yield start


async def test_what_others_write_while_a_start_waits_for_the_file_is_no_clock_that_was_set_back(
    stage: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many that start at once wait for each other."""
    scene = await stage()
    latest_stamp = scene.engine.store.latest_stamp

    async def latest_stamp_after_a_wait() -> int:
        scene.clock.pass_s(5)
        now = scene.clock.now_us()
        await scene.put(task("t1", task_name="elsewhere", enqueued_at=now, sent_at=now, updated_at=now))
        return int(await latest_stamp())

    monkeypatch.setattr(scene.engine.store, "latest_stamp", latest_stamp_after_a_wait)
    await scene.duties.recover()
    assert "set back" not in caplog.text


# The reaper.


@pytest.mark.req("RC-02", "RC-08", "RC-10", "RC-39", "HB-03", "HB-06", "HB-17", "HB-18", "HB-19", "HB-20")
async def test_silence_is_judged_by_role_and_a_beat_exactly_as_old_as_the_threshold_is_none(stage: Any) -> None:
    """Claims by the claimer's beat, runs by the runner's; one role keeps nothing of the other alive."""
    scene = await stage()
    await scene.other("quiet", task("claimed", status="CLAIMED"), task("running", status="RUNNING"))
    scene.beat("quiet", "claimer", "runner")
    waiting, started = {"claimed": "CLAIMED"}, {"running": "RUNNING"}
    assert await scene.sweep() == waiting | started
    scene.clock.pass_s(120)
    assert await scene.sweep() == waiting | started
    scene.clock.pass_s(1)
    assert await scene.sweep() == {"claimed": "PENDING"} | started
    scene.beat("quiet", "claimer")
    scene.clock.pass_s(179)
    assert await scene.sweep() == {"claimed": "PENDING"} | started
    scene.beat("quiet", "claimer")
    scene.clock.pass_s(1)
    assert await scene.sweep() == {"claimed": "PENDING", "running": "FAILED"}
    assert scene.query("SELECT error_code FROM taskmanager_tasks WHERE id = 'running'") == [("WORKER_CRASHED",)]
    (info,) = await scene.manager.list(status=TaskStatus.FAILED)
    attempts = (await scene.manager.get(info.task_id, include_attempts=True)).attempts
    assert [(each.attempt, each.outcome) for each in attempts] == [(1, "WORKER_FAILURE")]


async def test_a_task_that_a_crash_has_failed_is_one_error(stage: Any, caplog: pytest.LogCaptureFixture) -> None:
    """As one whose failure was seen to happen: nobody else would tell. What goes on is no error."""
    scene = await stage()
    safe = task("safe", status="RUNNING", task_options='{"requeue_on_interrupt": true}')
    await scene.other(
        "gone", task("running", status="RUNNING"), safe, task("claimed", status="CLAIMED"), is_alive=False
    )
    await scene.manager._lifecycle._duties.recover()
    (said,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert (said.task_id, said.task_name) == ("running", "app:job")
    assert "failed with WORKER_CRASHED" in said.getMessage()


@pytest.mark.parametrize(
    ("recovery", "left"),
    [
        (RecoveryConfig(auto_fail_stale_running=False), {"claimed": "PENDING", "running": "RUNNING"}),
        (RecoveryConfig(auto_requeue_stale_claimed=False), {"claimed": "CLAIMED", "running": "FAILED"}),
    ],
    ids=["running", "claimed"],
)
async def test_each_switch_holds_its_own_half_back(stage: Any, recovery: RecoveryConfig, left: dict[str, str]) -> None:
    """And the row of the dead instance stays with what is left: it tells who that was, and on which boot."""
    scene = await stage(recovery=recovery)
    await scene.other("dead", task("claimed", status="CLAIMED"), task("running", status="RUNNING"), is_alive=False)
    assert await scene.sweep() == left
    assert ("dead",) in scene.query("SELECT instance_id FROM taskmanager_instances")


@pytest.mark.parametrize(("is_same_boot", "crash_count"), [(True, 1), (False, 0)], ids=["killed", "power cut"])
async def test_only_a_death_on_the_same_boot_counts_as_a_crash(
    stage: Any, is_same_boot: bool, crash_count: int
) -> None:
    """A power cut says nothing about the tasks that ran, and must make none of them a suspect."""
    scene = await stage()
    safe = task("safe", status="RUNNING", task_options='{"requeue_on_interrupt": true}')
    boot_id = scene.engine.identity.boot_id if is_same_boot else "before the power cut"
    await scene.other("dead", safe, is_alive=False, boot_id=boot_id)
    await scene.sweep()
    assert scene.query("SELECT status, crash_count FROM taskmanager_tasks") == [("PENDING", crash_count)]


@pytest.mark.req("RC-30", "RC-31")
async def test_a_long_task_whose_instance_beats_is_healthy(stage: Any) -> None:
    """However long it runs: a beat whose value changes is a sign of life, whatever clock it was read from."""
    scene = await stage()
    await scene.other("busy", task("long", status="RUNNING"))
    for _ in range(10):
        scene.beat("busy", "runner")
        assert await scene.sweep() == {"long": "RUNNING"}
        scene.clock.pass_s(299)


async def test_what_runs_where_no_heartbeat_gets_through_is_not_run_a_second_time(stage: Any) -> None:
    """A slow disk lets some write, and others wait for longer than the threshold. What waits there may be freed."""
    scene = await stage()
    await scene.other("starved", task("claimed", status="CLAIMED"), task("running", status="RUNNING"))
    scene.beat("starved", "claimer", "runner")
    await scene.sweep()
    for _ in range(3):
        before = sign_of_life(scene.db, "starved")
        while sign_of_life(scene.db, "starved") == before:  # the time of a file is coarse
            scene.locks[0].show_life()
        scene.clock.pass_s(200)
        assert (await scene.sweep())["running"] == "RUNNING"
    assert scene.statuses()["claimed"] == "PENDING"
    scene.clock.pass_s(301)
    assert (await scene.sweep())["running"] == "FAILED", "nothing shows any more that it lives"


@pytest.mark.req("RC-12", "RC-32", "RC-33", "DS-032", "DS-033")
async def test_a_task_whose_outcome_is_on_its_way_has_the_longer_of_two_thresholds(stage: Any) -> None:
    """Its code has returned; only the write is missing, and both thresholds must have passed."""
    scene = await stage(recovery=RecoveryConfig(finalizing_stale_threshold_ms=600_000))
    ending = task("ending", status="RUNNING", finalizing_at=125, finalizing_by_worker_id="quiet")
    await scene.other("quiet", ending, task("running", status="RUNNING"))
    scene.beat("quiet", "claimer", "runner")
    await scene.sweep()
    scene.clock.pass_s(301)
    assert await scene.sweep() == {"ending": "RUNNING", "running": "FAILED"}
    scene.clock.pass_s(300)
    assert (await scene.sweep())["ending"] == "FAILED"


async def test_who_cannot_write_himself_calls_nobody_silent(stage: Any) -> None:
    """A file that was locked for minutes looks like silence to everybody; what was seen before it is worth nothing."""
    scene = await stage()
    await scene.other("quiet", task("claimed", status="CLAIMED"))
    scene.beat("quiet", "claimer")
    await scene.sweep()
    scene.duties._heartbeat.stop()  # or its next beat would say that all is well
    scene.clock.pass_s(500)
    scene.duties._heartbeat.failed_count = 1
    assert await scene.sweep() == {"claimed": "CLAIMED"}
    scene.duties._heartbeat.failed_count = 0
    scene.clock.pass_s(120)
    assert await scene.sweep() == {"claimed": "CLAIMED"}
    scene.clock.pass_s(1)
    assert await scene.sweep() == {"claimed": "PENDING"}


async def test_who_could_not_write_between_two_sweeps_calls_nobody_silent(stage: Any) -> None:
    """A sweep may be more seldom than the file is locked. Whoever gets through first must not take the others, which
    waited for the same lock, for dead.
    """
    scene = await stage()
    await scene.other("kept out", task("claimed", status="CLAIMED"))
    scene.beat("kept out", "claimer")
    await scene.sweep()
    heartbeat = scene.duties._heartbeat
    heartbeat.stop()  # it beats when the test says so

    class Locked:
        def beat(self, beats: object) -> None:
            raise StoreUnavailable("locked")

        def let_go(self) -> None: ...

    scene.clock.pass_s(60)
    heartbeat.pulse(Locked())
    scene.clock.pass_s(240)
    beater = scene.engine.store.open_beater()
    assert beater is not None
    heartbeat.pulse(beater)
    beater.close()
    assert heartbeat.is_well
    assert await scene.sweep() == {"claimed": "CLAIMED"}
    scene.clock.pass_s(121)
    assert await scene.sweep() == {"claimed": "PENDING"}, "nobody is in its way any more"


@pytest.mark.req("RC-62", "RC-63", "RC-64", "HB-50", "RC-65", "RC-66", "RC-67", "RC-68", "RC-69", "RC-s5", "RC-s4")
async def test_switched_off_stuck_tasks_stay_until_somebody_acts(stage: Any) -> None:
    """Then a person decides, by wall time; before a first beat, the claim or the start counts as the last sign."""
    recovery = RecoveryConfig(auto_requeue_stale_claimed=False, auto_fail_stale_running=False)
    scene = await stage(recovery=recovery)
    minutes_ago = NOW_US - 4 * 60 * 1_000_000
    rows = (
        task("claimed", status="CLAIMED", claimed_at=minutes_ago),
        task("running", status="RUNNING", started_at=minutes_ago),
    )
    await scene.other("dead", *rows, is_alive=False)
    scene.clock.pass_s(3)
    assert await scene.sweep() == {"claimed": "CLAIMED", "running": "RUNNING"}
    manager = scene.manager
    assert {each.task_id for each in await manager.get_stale_tasks()} == {"claimed", "running"}
    assert await manager.get_stale_tasks(stale_threshold_minutes=5) == ()
    assert await manager.mark_stale_tasks_as_failed() == 0, "300 s have not passed"
    assert await manager.requeue_stale_claimed() == 1, "120 s have"
    scene.beat("dead", "claimer")
    assert await manager.mark_stale_tasks_as_failed(stale_threshold_ms=240_000) == 1, "the other role's beat is none"
    assert scene.statuses() == {"claimed": "PENDING", "running": "FAILED"}


@pytest.mark.req("RC-04", "RC-22", "HB-04", "HB-34", "HB-55", "RC-15")
async def test_recovery_runs_by_itself_and_says_what_it_did(
    stage: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every `check_interval_ms`; the log tells that it was started, and what was moved."""
    caplog.set_level(logging.INFO, "taskmanager")
    scene = await stage(recovery=RecoveryConfig(check_interval_ms=1_000))
    assert "heartbeat, reaper and retention have started" in caplog.text
    await scene.other("dead", task("claimed", status="CLAIMED"), is_alive=False)
    await until(lambda: scene.statuses() == {"claimed": "PENDING"})
    await until(lambda: "recovered 1 task of 1 dead instance" in caplog.text)


async def test_who_dies_while_recovery_waits_for_a_lock_file_is_recovered_too(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose lock file is gone has time to put it back; a death in that time is not missed for another round."""
    monkeypatch.setattr(recovery, "PUT_BACK_S", 0.05)
    scene = await stage()

    def look_while_the_other_dies(database: Path, instance_id: str) -> bool:
        scene.locks[0].close_descriptor()
        return has_lock_file(database, instance_id)

    monkeypatch.setattr(recovery, "has_lock_file", look_while_the_other_dies)
    await scene.other("late", task("second", status="CLAIMED"))
    await scene.other("gone", task("first", status="CLAIMED"), is_alive=False)
    lock_path(scene.db, "gone").unlink()
    scene.beat("late", "claimer")  # so that both are heard of
    await until(lambda: scene.statuses() == {"first": "PENDING", "second": "PENDING"})


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110  # what a duty does by itself has no event
            await asyncio.sleep(0.01)


@pytest.mark.req("RC-s6")
async def test_a_duty_that_fails_for_good_three_times_in_a_row_is_given_up_loudly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Trouble that passes does not count, and a round that succeeds begins the count anew."""
    answers: list[Exception | None] = [StoreError("x"), StoreUnavailable("y"), StoreError("x"), None]
    answers += [StoreError("x")] * 3

    async def work() -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer

    faults: dict[str, str] = {}
    await asyncio.wait_for(supervisor._repeat("reaper", 0, work, True, faults), 10)
    assert answers == []
    assert faults == {"reaper": "given up until the next start: x"}
    critical = [each.getMessage() for each in caplog.records if each.levelno == logging.CRITICAL]
    assert critical == ["the reaper failed 3 times and is given up until the next start"]


async def test_an_outage_is_logged_when_it_begins_and_when_it_has_ended(caplog: pytest.LogCaptureFixture) -> None:
    """A disk that is away for a day is not worth a line for each round of each duty."""
    answers: list[Exception | None] = [StoreUnavailable("y")] * 3 + [None, None, StoreUnavailable("z"), None]
    answers += [StoreError("x")] * 3

    async def work() -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer

    with caplog.at_level(logging.INFO, "taskmanager"):
        await asyncio.wait_for(supervisor._repeat("upkeep", 0, work, True, {}), 10)
    told = [each.getMessage() for each in caplog.records if each.levelno < logging.ERROR]
    begun, ended = "the upkeep could not do its round, and tries again: ", "the upkeep does its rounds again"
    assert told == [begun + "y", ended, begun + "z", ended]


async def test_a_duty_that_fails_unexpectedly_is_tried_again_and_shown_until_it_succeeds(
    stage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistake of ours may have to do with what was there at that moment; nobody is left without a reaper for it."""
    scene = await stage()
    rounds_left, has_failed, has_ended = 5, asyncio.Event(), asyncio.Event()

    async def work() -> None:
        nonlocal rounds_left
        rounds_left -= 1
        if rounds_left > 0:
            raise ValueError("boom")
        has_failed.set()
        await has_ended.wait()

    scene.duties._begin("reaper", 0, work, at_once=True)
    await asyncio.wait_for(has_failed.wait(), 10)
    assert scene.manager.status().failing_duties == {"reaper": "ValueError: boom"}
    critical = [each for each in caplog.records if each.levelno == logging.CRITICAL]
    assert [each.getMessage() for each in critical] == ["the reaper failed unexpectedly, and tries again"]
    assert critical[0].exc_info is not None, "once in a row, with its traceback"
    has_ended.set()
    await until(lambda: scene.manager.status().failing_duties == {})


def test_a_duty_that_keeps_failing_is_tried_ever_more_seldom_and_never_given_up() -> None:
    """Twice its interval, and so on, up to ten minutes or its own interval."""
    assert [supervisor.pause_s(1.0, number) for number in range(4)] == [1, 2, 4, 8]
    assert supervisor.pause_s(1.0, 1_000_000) == 600
    assert supervisor.pause_s(3_600.0, 5) == 3_600


# Heartbeats.


@pytest.mark.req(
    "RC-40", "RC-41", "HB-02", "HB-08", "HB-09", "HB-10", "HB-11", "HB-12", "HB-13", "HB-14", "HB-15", "HB-43", "HB-44",
    "HB-45", "HB-46", "HB-47", "HB-48", "HB-49", "HB-s1", "DS-064", "DS-065", "DS-066", "DS-067", "DS-068", "DS-069",
    "DS-070", "DS-071",
)  # fmt: skip
async def test_an_instance_beats_for_all_its_tasks_in_both_roles_every_interval(stage: Any) -> None:
    """One row per role covers what waits and what runs, from the start on, by a thread beside the loop."""
    scene = await stage()
    who = scene.engine.identity
    rows = "SELECT id, task_id, sender_id, role, sent_at, hostname, pid FROM taskmanager_heartbeats ORDER BY id"
    await until(lambda: len(scene.query(rows)) == 2)
    expected = [
        (number, None, who.instance_id, role, NOW_US, who.hostname, who.pid)
        for number, role in ((1, "claimer"), (2, "runner"))
    ]
    assert scene.query(rows) == expected
    scene.clock.pass_s(30)
    await until(lambda: len(scene.query(rows)) == 4)
    assert {row[4] for row in scene.query(rows)[2:]} == {NOW_US + 30_000_000}


@pytest.mark.req("HB-s4")
async def test_a_heartbeat_that_cannot_be_written_harms_no_task_and_is_tried_again(stage: Any) -> None:
    """The file is locked when it is due: the beat comes late, and the task does not notice. The lock file says so."""
    scene = await stage()
    me = scene.engine.identity.instance_id
    gate = asyncio.Event()

    @scene.manager.task(persist=True)  # type: ignore[untyped-decorator]
    async def work() -> str:
        await gate.wait()
        return "done"

    handle = work.enqueue()
    await handle.saved()
    await until(lambda: len(scene.query("SELECT 1 FROM taskmanager_heartbeats")) >= 2)
    with closing(sqlite3.connect(scene.db, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        before = sign_of_life(scene.db, me)
        scene.clock.pass_s(30)
        await until(lambda: scene.duties._heartbeat.failed_count > 0)
        assert sign_of_life(scene.db, me) != before
        assert not scene.duties._heartbeat.is_well
        other.execute("ROLLBACK")
    await until(lambda: len(scene.query("SELECT 1 FROM taskmanager_heartbeats")) >= 4)
    await until(lambda: scene.duties._heartbeat.failed_count == 0)
    gate.set()
    assert await handle == "done"


async def test_a_start_that_waited_is_no_loop_that_was_blocked(stage: Any, caplog: pytest.LogCaptureFixture) -> None:
    """For the file, or for somebody's lock: the loop was free meanwhile, and a warning would blame the application."""
    scene = await stage()
    scene.duties.stop_heartbeat()
    heartbeat = Heartbeat(scene.engine)
    scene.clock.pass_s(BLOCKED_AFTER_S + 0.4)
    heartbeat.start()
    heartbeat.stop(10)
    assert "blocked" not in caplog.text


@pytest.mark.parametrize("phase", ["rest", "beat"])
async def test_a_process_that_was_stopped_is_no_loop_that_was_blocked(
    stage: Any, caplog: pytest.LogCaptureFixture, phase: str
) -> None:
    """Wherever the heart was when SIGSTOP came. A loop that is blocked from then on is said to be as soon as any."""
    scene = await stage()
    heart = scene.duties._heartbeat
    heart.stop()
    scene.engine.stall.close()

    class Slow:
        def beat(self, beats: object) -> None:
            if phase == "beat":
                scene.clock.pass_s(100)

        def let_go(self) -> None: ...

    heart._due_s = dict.fromkeys(heart._due_s, 0.0)
    heart.pulse(Slow())
    if phase == "rest":
        scene.clock.pass_s(100)
        heart.pulse(Slow())
    assert "blocked" not in caplog.text
    silent_s = 0.0
    while "blocked" not in caplog.text:
        scene.clock.pass_s(LOOP_PROBE_S)
        heart.pulse(Slow())
        silent_s += LOOP_PROBE_S
        assert silent_s <= BLOCKED_AFTER_S + 2 * LOOP_PROBE_S


class SetBack(threading.Event):
    """An event whose time-outs are measured by a wall clock that is set back while somebody waits: none ever comes."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(None)


async def test_a_wall_clock_that_is_set_back_makes_no_heart_stop(stage: Any) -> None:
    """Time-outs of locks go by the wall clock with some C libraries; all hearts of a machine would stop together."""
    scene = await stage()
    other = Heartbeat(scene.engine)
    other._stop = SetBack()
    rounds, pulse = threading.Semaphore(0), other.pulse

    def counted(beater: Any) -> bool:
        rounds.release()
        return pulse(beater)

    other.pulse = counted  # type: ignore[method-assign]  # to be told of each round
    other.start()
    for _ in range(3):
        assert await asyncio.to_thread(rounds.acquire, timeout=20)
    other.stop(20)
    assert other._thread is not None
    assert not other._thread.is_alive(), "and it ends at once when it is told to"


def test_who_rests_without_descriptors_rests_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may have none left, or close what it did not open; that is no reason to spin, or to end."""
    waits: list[float | None] = []
    stop = threading.Event()
    monkeypatch.setattr(stop, "wait", waits.append)
    closed = Rest(stop)
    closed.close()
    assert not closed.wait(0.5)
    with monkeypatch.context() as patch:
        patch.setattr("socket.socketpair", lambda: (_ for _ in ()).throw(OSError(24, "Too many open files")))
        bare = Rest(stop)
    assert not bare.wait(0.5)
    assert waits == [0.5, 0.5]
    stop.set()
    bare.end()
    assert bare.wait(0.5)
    bare.close()


async def test_a_loop_that_is_heard_of_is_not_woken_to_be_asked(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own beat says that it runs; one that was not heard of for a while is asked, and warned about in the end."""
    scene = await stage()
    heart, beater = scene.duties._heartbeat, scene.engine.store.open_beater()
    heart.stop()
    scene.engine.stall.close()
    heart.pulse(beater)
    await until(lambda: not heart._is_probing)
    asked: list[object] = []
    monkeypatch.setattr(
        scene.engine, "loop", SimpleNamespace(call_soon_threadsafe=asked.append, is_closed=lambda: False)
    )
    for _ in range(10):
        scene.clock.pass_s(LOOP_PROBE_S)
        scene.engine.stall.beat_count += 1
        assert heart.pulse(beater)
    assert asked == []
    for _ in range(2):
        scene.clock.pass_s(LOOP_PROBE_S)
        assert heart.pulse(beater)
    assert asked == [heart._answer]
    monkeypatch.undo()
    beater.close()


async def test_a_blocked_loop_frees_what_waits_and_keeps_what_runs(stage: Any) -> None:
    """After the threshold of running tasks the claimer beats no more, so that others start what waits here."""
    scene = await stage(recovery=RecoveryConfig(running_stale_threshold_ms=60_000))
    heart = scene.duties._heartbeat
    heart.stop()
    scene.engine.stall.close()
    beaten: list[str] = []
    beater = SimpleNamespace(beat=lambda beats: beaten.extend(each.role for each in beats), let_go=lambda: None)
    while not beaten or "claimer" in beaten:
        beaten.clear()
        heart._due_s = dict.fromkeys(heart._due_s, 0.0)
        scene.clock.pass_s(LOOP_PROBE_S)
        heart.pulse(beater)
        assert scene.clock.elapsed - heart._answered_s <= 60 + 2 * LOOP_PROBE_S
    assert beaten == ["runner"]
    assert scene.clock.elapsed - heart._answered_s > 60


async def test_no_mistake_of_ours_stops_the_heart(stage: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Without its beats others would take over what runs here."""
    scene = await stage()
    heartbeat = scene.duties._heartbeat
    heartbeat.stop()

    class Broken:
        def beat(self, beats: object) -> None:
            raise ValueError("boom")

        def let_go(self) -> None: ...

    scene.clock.pass_s(100)
    for _ in range(2):
        assert heartbeat._survives(Broken())
    assert scene.manager.status().failing_duties == {"heartbeat": "ValueError: boom"}
    assert heartbeat.failed_count == 2, "so that no observation of others is trusted"
    assert [each.levelno for each in caplog.records] == [logging.CRITICAL]
    beater = scene.engine.store.open_beater()
    assert heartbeat._survives(beater)
    beater.close()
    assert scene.manager.status().failing_duties == {}


async def test_the_heart_beats_until_the_last_task_of_a_drain_has_ended(stage: Any) -> None:
    """Else a long drain would look like a death, and others would start the tasks that are about to end."""
    scene = await stage()
    gate = asyncio.Event()

    @scene.manager.task(persist=True, requeue_on_interrupt=True)  # type: ignore[untyped-decorator]
    async def work() -> str:
        await gate.wait()
        return "done"

    handle = work.enqueue()
    await until(lambda: len(scene.engine.runner.running) == 1)
    await until(lambda: len(scene.query("SELECT 1 FROM taskmanager_heartbeats")) >= 2)
    stopping = asyncio.ensure_future(scene.manager.stop(timeout=30))
    await until(lambda: scene.manager.status().state == "draining")
    scene.clock.pass_s(30)
    await until(lambda: len(scene.query("SELECT 1 FROM taskmanager_heartbeats")) >= 4)
    assert not stopping.done()
    gate.set()
    await stopping
    assert await handle == "done"


# Retention.

ENDED = ("COMPLETED", "FAILED", "CANCELLED", "EXPIRED", "INTERRUPTED")


def ended(task_id: str, status: str, at: int) -> TaskRow:
    """A row that ended then; one column or another says so."""
    row = task(task_id, status=status, sent_at=at, enqueued_at=at, created_at=at, updated_at=at)
    if status == "COMPLETED":
        return row._replace(completed_at=at)
    return row._replace(failed_at=None if status == "INTERRUPTED" else at, error_code="X", claimed_by_worker_id=None)


@pytest.mark.req(
    "RC-54", "RC-55", "RC-56", "RC-57", "RC-58", "RC-s7", "HB-51", "DS-116", "DS-117", "DS-118", "DS-119", "DS-120",
    "DS-123", "DS-s1", "RC-07",
)  # fmt: skip
async def test_what_is_older_than_its_hours_goes_in_batches_and_the_file_shrinks(stage: Any) -> None:
    """Ended tasks of every kind with their attempts, heartbeats, worker states; live tasks never, however old."""
    never = RecoveryConfig(
        heartbeat_retention_hours=None, worker_state_retention_hours=None, terminal_record_retention_hours=None
    )
    scene = await stage(recovery=never)  # or the sweep of the start would come between
    scene.engine.settings = replace(scene.engine.settings, recovery=RecoveryConfig(retention_delete_batch_size=50))
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
    gone = await scene.duties._retention.run_once()
    assert gone == {"heartbeats": 1, "worker states": 1, "ended tasks": 150}
    assert set(scene.statuses()) == {"live", *(row.task_id for row in young_rows)}
    assert scene.query("SELECT task_id FROM taskmanager_task_attempts") == [("young FAILED",)]
    await scene.engine.store.upkeep(is_idle=True)
    assert scene.db.stat().st_size < before - 150 * 20_000 / 2
    assert scene.query("PRAGMA freelist_count") == [(0,)]


async def test_a_start_whose_clock_is_ahead_deletes_no_history(stage: Any, tmp_path: Path) -> None:
    """A container that boots with a wrong clock, or an application that was not used for long: a day tells which."""
    scene = await stage()
    await scene.put(ended("recent", "COMPLETED", NOW_US), ended("old", "COMPLETED", NOW_US - 720 * HOUR_US))
    later = Scene(tmp_path)
    later.clock.pass_s(40 * 86_400)
    async with later.manager:
        retention = later.duties._retention
        await retention.run_once()
        assert later.statuses() == {"recent": "COMPLETED"}, "old is what was so a day after the file was used last"
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


# Worker states.


@pytest.mark.req(
    "DS-073", "DS-074", "DS-075", "DS-076", "DS-077", "DS-078", "DS-079", "DS-080", "DS-081", "DS-082", "DS-083",
    "DS-084", "DS-085", "DS-086", "DS-087", "DS-088", "DS-089", "DS-090", "DS-091", "DS-092", "DS-093",
)  # fmt: skip
async def test_a_worker_state_says_how_the_instance_is(stage: Any) -> None:
    """One row per snapshot, appended: tasks, memory, processor, and the configuration as JSON."""
    queue = QueueConfig("mail", priority=7, max_concurrency=3)
    scene = await stage(queues=[queue], max_in_memory=500)
    gate = asyncio.Event()

    @scene.manager.task(persist=True)  # type: ignore[untyped-decorator]
    async def work() -> None:
        await gate.wait()

    handle = work.enqueue()
    await handle.saved()
    await until(lambda: len(scene.engine.runner.running) == 1)
    await scene.duties._worker_states.run_once()
    scene.clock.pass_s(30)
    await scene.duties._worker_states.run_once()
    gate.set()
    await handle
    with closing(sqlite3.connect(scene.db)) as connection:
        connection.row_factory = sqlite3.Row
        first, second = (dict(row) for row in connection.execute("SELECT * FROM taskmanager_worker_states ORDER BY id"))
    assert (first["id"], second["id"]) == (1, 2)
    assert (first["snapshot_at"], second["snapshot_at"]) == (NOW_US, NOW_US + 30_000_000)
    who = scene.engine.identity
    assert (first["worker_id"], first["hostname"], first["pid"]) == (who.instance_id, who.hostname, who.pid)
    assert first["worker_started_at"] == who.started_at
    assert (first["processes"], first["tasks_running"], first["tasks_claimed"]) == (0, 1, 0)
    assert set(json.loads(first["queues"])) == {"default", "mail"}
    assert json.loads(first["queue_priorities"])["mail"] == 7
    assert json.loads(first["queue_max_concurrency"])["mail"] == 3
    assert json.loads(first["recovery_config"])["crash_budget"] == 3
    resident_mb = psutil.Process().memory_info().rss / 2**20
    assert 0.2 * resident_mb < first["memory_usage_mb"] < 5 * resident_mb
    assert first["children_memory_mb"] >= 0
    assert 0 < first["memory_percent"] < 100
    assert second["cpu_percent"] >= 0
    assert (first["max_claim_batch"], first["max_claim_per_worker"]) == (1_000, 500)
    assert first["cluster_wide_cap"] is None
