"""Histories that seeds have found, each with the rule that was broken there: by the library, or by the judge."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from taskmanager.engine.run.child import ChildCall, ChildReply, Heard
from taskmanager.model.record import Write
from taskmanager.model.states import TERMINAL, TaskStatus
from taskmanager.store.protocol import CommitReport
from tests.simulation.disk import FileDisk
from tests.simulation.faults import Fate, Weather
from tests.simulation.process import Process
from tests.simulation.promises import LOOKED_US, flush
from tests.simulation.timetable import Entry
from tests.simulation.world import World, inhabited

TWO_HOURS_S = 7_200


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A store without faults; one death makes nobody guilty, and an end is recorded soon."""
    made = World(3, tmp_path)
    made.timetable.entries.clear()
    made.weather, made.kinds, made.crash_budget = Weather(), ("safe", "memory", "thread_safe"), 3
    made.options |= {"snapshot_interval": 0.5, "concurrency": 3}
    with inhabited(made):
        yield made
        made.close()


def started(world: World) -> Process:
    """One more process, which has come up."""
    process = world.new_process()
    assert world.run_until(lambda: process.is_up, 10.0)
    return process


def test_a_memory_only_task_that_is_run_again_is_lost_with_its_process(world: World) -> None:
    """It is in the file by then, and no safer to repeat than before: its process dies, and it has failed. That nothing
    speaks against it does not put it back.
    """
    first, second = started(world), started(world)
    handle = first.jobs["memory"].enqueue(world.next_label(), "sleep:3")
    assert world.run_until(lambda: handle.task_id in world.checks.rows, 10.0)
    world.checks.may_revive.add(handle.task_id)
    first.spawn(first.manager.retry(handle.task_id, force=True), "retry")
    assert world.run_until(lambda: bool(world.runs.now), 1.0)
    first.kill()
    assert second.is_alive
    checks = world.checks
    assert world.run_until(lambda: checks.rows[handle.task_id].status == TaskStatus.FAILED, 10.0)
    row = checks.rows[handle.task_id]
    assert (row.error_code, row.crash_count) == ("WORKER_CRASHED", 1)
    assert world.faults == []


def test_a_task_that_a_stop_could_not_write_is_adopted_by_the_next_start(world: World) -> None:
    """As by anybody else: the first death makes a suspect and nobody guilty, though one is all that is allowed."""
    world.crash_budget = 1
    world.options["recovery"] = replace(world.options["recovery"], crash_budget=1)
    process = started(world)
    handle = process.jobs["safe"].enqueue(world.next_label(), "sleep:3")
    assert world.run_until(lambda: bool(world.runs.now), 5.0)
    process.outage_until_us = world.now_us + 10_000_000
    process.spawn(process.stop(0.0), "stop")
    assert world.run_until(lambda: process.lifecycle is None, 5.0)
    process.outage_until_us = 0
    process.spawn(process.come_up(), "start")
    assert world.run_until(lambda: world.checks.rows[handle.task_id].status in TERMINAL, 20.0)
    row = world.checks.rows[handle.task_id]
    assert (row.status, row.crash_count, row.start_count) == ("COMPLETED", 1, 2)
    assert world.faults == []


@pytest.mark.parametrize("late_s", [0.3, 3.0])
def test_a_pause_is_heard_though_the_log_looks_the_same_after_it(world: World, late_s: float) -> None:
    """The disk comes between the write, which moves the time of the log, and the commit, which does not."""
    beats = {f"{what}_heartbeat_interval_ms": 20_000 for what in ("claimer", "runner")}  # or one would move it
    thresholds = {f"{what}_stale_threshold_ms": 80_000 for what in ("claimed", "running", "finalizing")}
    world.options["recovery"] = replace(world.options["recovery"], **beats, **thresholds)
    first, second = started(world), started(world)
    world.run_until(lambda: False, 4.0)
    first.fate = lambda: Fate("ok", round(late_s * 1e6), 0)  # type: ignore[method-assign]
    first.spawn(world.pauses.pause(first, "default"), "pause")
    assert world.run_until(lambda: bool(world.pauses._pauses["default"]), 10.0)
    first.blocked_until_us = world.now_us + 60_000_000  # nothing else of it moves the time of the log
    world.run_until(lambda: False, (LOOKED_US + 100_000) / 1e6)
    second.jobs["safe"].enqueue(world.next_label(), "sleep:0")
    world.run_until(lambda: False, 5.0)
    assert world.runs.total == 0
    assert world.faults == []


def ended_unsaved(world: World) -> tuple[Process, Process, str]:
    """Two processes, of which the first cannot write any more and has a success that nobody else knows of."""
    world.kinds = ("once",)
    first, second = started(world), started(world)
    world.run_until(lambda: False, 1.0)  # each has been heard of: silence is judged from there
    handle = first.jobs["once"].enqueue(world.next_label(), "sleep:0.7")
    first.watch(handle)
    assert world.run_until(lambda: bool(world.runs.now), 5.0)
    first.outage_until_us = world.now_us + 20_000_000
    assert world.run_until(lambda: not world.runs.now, 5.0)
    assert world.run_until(lambda: any(f"handle {handle.task_id} COMPLETED" in line for line in world.lines), 2.0)
    assert world.checks.rows[handle.task_id].status == TaskStatus.RUNNING
    return first, second, handle.task_id


def test_an_unwritten_success_waits_for_the_file_while_its_process_lives(world: World) -> None:
    """No heartbeat of it gets through for many thresholds, and still nobody calls it crashed."""
    first, _, task_id = ended_unsaved(world)
    assert world.run_until(lambda: world.checks.rows[task_id].status in TERMINAL, 30.0)
    assert world.now_us >= first.outage_until_us
    assert world.checks.rows[task_id].status == TaskStatus.COMPLETED
    assert not any("took over" in line for line in world.lines)
    assert world.faults == []


def test_a_success_that_others_called_a_crash_stays_a_crash_and_is_logged(world: World) -> None:
    """It could not write it, and then was stopped for longer than the threshold: the others could not know, and what
    they have recorded may have been acted upon.
    """
    first, _, task_id = ended_unsaved(world)
    first.frozen_until_us, first.was_out = world.now_us + 15_000_000, True
    world.at(first.frozen_until_us, first.thaw)
    world.run_until(lambda: world.now_us > first.outage_until_us, 30.0)
    world.run_until(lambda: False, 5.0)
    row = world.checks.rows[task_id]
    assert (row.status, row.error_code) == ("FAILED", "WORKER_CRASHED")
    assert any("claim lost" in line and "that it was COMPLETED here is not recorded" in line for line in world.lines)
    assert sum(count for (each, _), count in world.runs.starts.items() if each == task_id) == 1
    assert world.faults == []


def test_a_schedule_planned_anew_after_a_clock_set_back_fires_earlier_times(world: World) -> None:
    """However long an earlier run holds it up: who paused and resumed it has asked for fires from that hour on."""
    name = "plan-0"
    world.timetable.entries[name] = Entry(name, "safe", "sleep:9", 1.1, "latest", 2, "queue", 0.0, False, False)
    process = started(world)
    assert world.run_until(lambda: bool(world.runs.now), 5.0)
    (before_us,) = world.timetable.fired[name]
    world.step(-TWO_HOURS_S)
    for verb in (process.manager.pause_schedule, process.manager.resume_schedule):
        process.spawn(verb(name), verb.__name__)
        world.run_until(lambda: False, 0.2)
    assert world.run_until(lambda: len(world.timetable.fired[name]) == 2, 15.0)
    assert min(world.timetable.fired[name]) < before_us
    assert world.faults == []


@pytest.mark.parametrize("short_s", [1, 9])
def test_a_lane_that_is_short_for_a_while_ends_its_shortage_once(world: World, short_s: int) -> None:
    """Though a look at what came of one try, and the next try, fall on one tick of the clock."""
    process = started(world)
    process.short_until_us = world.now_us + short_s * 1_000_000
    process.watch(process.jobs["thread_safe"].enqueue(world.next_label(), "sleep:0.3"))
    assert world.run_until(lambda: not process.waiting and not process.is_busy, 60.0)
    assert [row.status for row in world.checks.rows.values()] == ["COMPLETED"]
    world.run_until(lambda: False, 60.0)
    assert world.faults == []
    assert sum("starts tasks again" in line for line in world.lines) == 1


def test_a_task_cancelled_before_its_first_step_is_interrupted_with_no_slot(world: World) -> None:
    """Its coroutine never runs, not even to report that; somebody else must, or it would be running for ever."""
    process = started(world)
    process.loop.call_soon(lambda: process.watch(process.jobs["memory"].enqueue(world.next_label(), "sleep:0")))
    engine = process.engine
    assert engine is not None
    while not engine.runner.running and process.loop.has_work():
        process.loop.turn()
    (attempt,) = engine.runner.running.values()
    assert not attempt.has_begun
    process.cancel_every_task(ends_loop=False)
    assert world.run_until(lambda: not engine.live and not engine.runner.running, 5.0)
    assert world.faults == []


def test_a_run_goes_on_though_a_copied_file_names_the_dead_owner_before_it(tmp_path: Path) -> None:
    """What is not safe to repeat starts once: the row of the copy waits for an owner whose task this one has since."""
    world = World(3, tmp_path)
    world.timetable.entries.clear()
    world.weather, world.kinds = Weather(), ("once",)
    world.options |= {"concurrency": 1}
    assert isinstance(world.disk, FileDisk)
    with inhabited(world):
        first = started(world)
        first.jobs["once"].enqueue(world.next_label(), "sleep:9")
        assert world.run_until(lambda: bool(world.runs.now), 5.0)
        handle = first.jobs["once"].enqueue(world.next_label(), "sleep:3")
        assert world.run_until(lambda: handle.task_id in world.checks.rows, 5.0)
        assert world.checks.rows[handle.task_id].claimed_by_worker_id == first.instance_id
        world.disk.keep_copy()
        first.kill()
        second = started(world)
        assert world.run_until(lambda: bool(world.runs.now), 10.0)
        world.restore_file()
        assert world.checks.rows[handle.task_id].claimed_by_worker_id != second.instance_id
        assert world.run_until(lambda: world.checks.rows[handle.task_id].status in TERMINAL, 20.0)
        row = world.checks.rows[handle.task_id]
        assert (row.status, row.start_count, row.claimed_by_worker_id) == ("COMPLETED", 1, second.instance_id)
        assert world.faults == []
        world.close()


@pytest.mark.parametrize("kind", ["crash_retry", "safe"])
def test_a_run_goes_on_though_a_copied_row_runs_at_the_dead_owner_before_it(tmp_path: Path, kind: str) -> None:
    """The copy says that the attempt before this one runs. Who had it is dead, so nobody is asked to end this run, and
    it does not start again.
    """
    world = World(3, tmp_path)
    world.timetable.entries.clear()
    world.weather, world.kinds, world.crash_budget = Weather(), (kind,), 3
    assert isinstance(world.disk, FileDisk)
    with inhabited(world):
        first = started(world)
        handle = first.jobs[kind].enqueue(world.next_label(), "sleep:9")
        assert world.run_until(lambda: bool(world.runs.now), 5.0)
        world.disk.keep_copy()
        first.kill()
        second = started(world)
        assert world.run_until(lambda: bool(world.runs.now), 10.0)
        world.restore_file()
        assert world.run_until(lambda: _has_ended(world, handle.task_id), 20.0)
        row = world.checks.rows[handle.task_id]
        assert (row.status, row.start_count, row.claimed_by_worker_id) == ("COMPLETED", 2, second.instance_id)
        assert world.runs.total == 2
        assert world.faults == []
        world.close()


@pytest.mark.parametrize("fails", [False, True])
def test_a_task_that_others_ran_by_a_lost_file_does_not_start_again(tmp_path: Path, *, fails: bool) -> None:
    """It waited at a process that was out when another one took it over, ended it, and the file was deleted. The lost
    file, which is still open, tells of that; where it cannot be read at once, it is read a moment later.
    """
    world = World(3, tmp_path)
    world.timetable.entries.clear()
    world.weather, world.kinds = Weather(), ("once",)
    world.options |= {"concurrency": 1}
    with inhabited(world):
        first = started(world)
        first.jobs["once"].enqueue(world.next_label(), "sleep:9")
        assert world.run_until(lambda: bool(world.runs.now), 5.0)
        handle = first.jobs["once"].enqueue(world.next_label(), "sleep:0.05")
        assert world.run_until(lambda: handle.task_id in world.checks.rows, 5.0)
        first.was_out, first.frozen_until_us = True, world.now_us + 3_000_000
        world.at(first.frozen_until_us, first.thaw)
        started(world)
        assert world.run_until(lambda: world.checks.rows[handle.task_id].status in TERMINAL, 2.0)
        assert world.runs.starts[handle.task_id, 1] == 1
        world.lose_file()
        if fails:
            first.outage_until_us = first.frozen_until_us + 2_000_000
        assert first.engine is not None
        live = first.engine.live
        assert world.run_until(lambda: not live, 30.0)
        assert handle.task_id not in world.checks.rows
        assert world.runs.total == 2
        assert world.faults == []
        world.close()


async def asked_for_long(process: Process) -> None:
    """A question to the store whose answer takes 20 s: it is closed no sooner."""
    assert process.engine is not None
    fates = [Fate("ok", 20_000_000, 0)]
    process.fate = lambda: fates.pop() if fates else Fate()  # type: ignore[method-assign]
    await process.engine.store.instances()


def test_a_copy_names_an_instance_that_has_let_go_and_its_task_goes_on(world: World) -> None:
    """Its stop has written to the file that is lost, and its lock is free: no code of the task goes on there, though a
    slow answer keeps it from closing the store.
    """
    assert isinstance(world.disk, FileDisk)
    first, _ = started(world), started(world)
    handle = first.jobs["safe"].enqueue(world.next_label(), "sleep:3")
    assert world.run_until(lambda: bool(world.runs.now), 5.0)
    world.disk.keep_copy()
    first.spawn(asked_for_long(first), "ask")
    first.spawn(first.stop(0.0), "stop")
    assert world.run_until(lambda: world.checks.rows[handle.task_id].claimed_by_worker_id is None, 5.0)
    world.restore_file()
    assert world.run_until(lambda: world.checks.rows[handle.task_id].status == TaskStatus.COMPLETED, 15.0)
    assert first.is_stopping
    assert world.faults == []


def test_a_slot_from_before_the_clock_was_set_back_is_earlier_than_a_suspect(world: World) -> None:
    """What is not safe to repeat has its slot, and its child is long in coming up; then a suspect starts beside it."""
    world.kinds = ("safe", "process_once")
    first, second = started(world), started(world)
    run = second.children.run

    async def late(call: ChildCall, on_child: Callable[[], None], heard: Heard) -> ChildReply:
        await asyncio.sleep(2.5)
        return await run(call, on_child, heard)

    second.children.run = late  # type: ignore[method-assign]  # as a loaded machine does it
    first.jobs["safe"].enqueue(world.next_label(), "sleep:3")
    handle = second.jobs["process_once"].enqueue(world.next_label(), "sleep:0.5")
    assert world.run_until(lambda: bool(world.runs.now), 5.0)
    assert world.checks.rows[handle.task_id].status == TaskStatus.RUNNING
    world.step(-90)
    first.kill()
    assert world.run_until(lambda: len(world.runs.now) == 2, 5.0)
    assert sorted(row.crash_count for row in world.checks.rows.values()) == [0, 1]
    assert world.faults == []


def test_a_start_in_a_lost_file_records_none_of_the_same_count_after_it(world: World) -> None:
    """Where the older copy counts again, a run without a start in the file may be beside one of an idle instance."""
    process = started(world)
    process.is_degraded()
    handle = process.jobs["safe"].enqueue(world.next_label(), "sleep:3")
    assert world.run_until(lambda: bool(world.runs.now), 5.0)
    (run,) = world.runs.now
    assert not world.runs._is_unrecorded(run)
    world.checks.revived[handle.task_id] += 1
    assert world.runs._is_unrecorded(replace(run, life=run.life + 1))
    assert world.faults == []


@pytest.mark.parametrize(("ago_s", "is_judged"), [(1.0, False), (20.0, True)])
def test_a_start_is_in_the_store_unless_it_could_not_be_written_lately(
    world: World, ago_s: float, *, is_judged: bool
) -> None:
    """What is safe to repeat begins without that while the file does not answer, and its child may be late. Long after
    that it is a fault, though the process had such a time.
    """
    process = started(world)
    process.is_degraded()
    assert not world.run_until(lambda: False, ago_s)
    world.runs.begin(process, "safe", "no such row", 1)
    assert bool(world.faults) is is_judged
    world.faults.clear()


def test_a_purge_goes_on_in_the_store_when_its_call_is_cancelled(world: World) -> None:
    """The statement is in the thread of the store by then, and what it deletes was meant."""
    process = started(world)
    handle = process.jobs["safe"].enqueue(world.next_label(), "sleep:0")
    assert world.run_until(lambda: _has_ended(world, handle.task_id), 5.0)
    process.fate = lambda: Fate("ok", 300_000, 0)  # type: ignore[method-assign]  # its line is slow
    call = process.loop.create_task(process.purge({}))
    assert not world.run_until(lambda: False, 0.1)
    call.cancel()
    assert world.run_until(lambda: handle.task_id in world.checks.purged, 5.0)
    assert call.cancelled()
    assert world.faults == []


def test_a_close_of_the_start_before_does_not_close_the_store_of_the_next(world: World) -> None:
    """It was held up by a slow answer, and each start has a store of its own."""
    process = started(world)
    assert process.engine is not None
    store = process.engine.store
    process.fate = lambda: Fate("ok", 0, 300_000)  # type: ignore[method-assign]  # its line is slow
    asked = process.loop.create_task(store.instances())
    late = process.loop.create_task(store.close())
    assert not world.run_until(lambda: False, 0.1)
    process.view.cut()
    process.loop.create_task(store.open())
    del process.fate
    assert world.run_until(late.done, 5.0)
    assert asked.done()
    handle = process.jobs["safe"].enqueue(world.next_label(), "sleep:0")
    assert world.run_until(lambda: _has_ended(world, handle.task_id), 5.0)


def test_a_flush_after_a_stop_that_could_not_write_covers_the_new_start_only(world: World) -> None:
    """That stop has raised `StoreUnavailable`: what it could not write is lost, and nobody knows of it since."""
    process = started(world)
    handle = process.jobs["memory"].enqueue(world.next_label(), "sleep:0")
    process.handles[handle.task_id] = handle
    assert world.run_until(lambda: handle.status in TERMINAL, 5.0)
    process.outage_until_us = world.now_us + 20_000_000
    process.spawn(process.stop(0.0), "stop")
    assert world.run_until(lambda: process.manager._lifecycle is None or not process.is_stopping, 15.0)
    assert handle.task_id not in world.checks.rows
    process.outage_until_us = 0
    process.spawn(process.come_up(), "start")
    assert world.run_until(lambda: process.is_up, 5.0)
    flushed = process.loop.create_task(flush(process))
    assert world.run_until(flushed.done, 5.0)
    assert world.faults == []


def test_a_suspect_is_over_at_its_timeout_though_its_thread_goes_on(tmp_path: Path) -> None:
    """The end of its attempt is not in the file yet, and what is not safe to repeat is claimed and starts."""
    world = World(3, tmp_path)
    world.timetable.entries.clear()
    world.weather, world.kinds, world.crash_budget = Weather(), ("once", "thread_safe"), 3
    with inhabited(world):
        first = started(world)
        handle = first.jobs["thread_safe"].enqueue(world.next_label(), "sleep:3")
        assert world.run_until(lambda: bool(world.runs.now), 5.0)
        first.kill()
        second = started(world)
        assert world.run_until(lambda: bool(world.runs.now), 5.0)
        assert second.engine is not None
        store, commit = second.engine.store, second.engine.store.commit

        async def late(writes: Sequence[Write]) -> CommitReport:
            if handle.task_id in [write.task_id for write in writes]:
                await asyncio.sleep(0.5)
            return await commit(writes)

        store.commit = late  # type: ignore[method-assign]
        runner = second.engine.runner
        assert world.run_until(lambda: bool(runner.abandoned), 5.0)
        second.submit("once", keeps=True, held_s=0.0)
        assert world.run_until(lambda: len(world.runs.now) == 2, 0.4)
        assert world.checks.rows[handle.task_id].status == TaskStatus.RUNNING
        assert world.faults == []
        world.close()


@pytest.mark.parametrize("is_alone", [False, True])
def test_a_delay_is_kept_by_a_stop_right_after_the_clock_was_set_ahead(world: World, *, is_alone: bool) -> None:
    """No heartbeat has told of that clock yet. Who lives, or starts, hears of it by the row of the stopped instance."""
    first = started(world)
    if not is_alone:
        started(world)
    handle = first.jobs["safe"].with_options(delay=5).enqueue(world.next_label(), "sleep:0")
    assert world.run_until(lambda: handle.task_id in world.checks.rows, 5.0)
    first.step(TWO_HOURS_S)
    first.leave(0.0)
    assert world.run_until(lambda: not first.is_alive, 5.0)
    assert world.checks.rows[handle.task_id].enqueued_at > world.clock.now_us() + TWO_HOURS_S * 1_000_000
    if is_alone:
        started(world)
    assert world.run_until(lambda: _has_ended(world, handle.task_id), 10.0)
    assert world.faults == []


def _has_ended(world: World, task_id: str) -> bool:
    row = world.checks.rows.get(task_id)
    return row is not None and row.status in TERMINAL
