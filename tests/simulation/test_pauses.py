"""Histories of time in which nobody gets on: a process that was stopped, a machine that slept, a locked file."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulation.faults import Weather
from tests.simulation.process import Process
from tests.simulation.world import World, inhabited

HOUR_US = 3_600_000_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Two processes on one store, without faults."""
    made = World(3, tmp_path)
    made.timetable.entries.clear()
    made.weather, made.kinds = Weather(), ("once", "timed")
    with inhabited(made):
        for _ in range(2):
            made.new_process()
        made.run_until(lambda: all(each.is_up for each in made.processes), 10.0)
        yield made
        made.close()


def enqueue(process: Process, name: str, plan: str) -> None:
    """One task, and somebody who waits for it."""
    label = process.world.next_label()
    process.loop.call_soon(lambda: process.watch(process.jobs[name].enqueue(label, plan)))


def stop_for_an_hour(world: World, *processes: Process) -> None:
    """As SIGSTOP and SIGCONT do, or a lid that is closed; they do not wake in the same instant."""
    for number, each in enumerate(processes):
        each.frozen_until_us = world.now_us + HOUR_US + number * 100_000
        world.at(each.frozen_until_us, each.thaw)


def test_an_attempt_does_not_time_out_while_its_process_was_stopped(world: World) -> None:
    """Its timeout counts time in which it could run: half a second before the hour, and half a second after it."""
    first, second = world.processes
    second.kill()
    enqueue(first, "timed", "sleep:1.0")
    world.run_until(lambda: bool(world.runs.now), 5.0)
    world.run_until(lambda: False, 0.5)
    stop_for_an_hour(world, first)
    world.run_until(lambda: not world.checks.rows or bool(first.waiting), 1.0)
    world.run_until(lambda: not first.waiting, HOUR_US / 1e6 + 10)
    (row,) = world.checks.rows.values()
    assert (row.status, row.start_count) == ("COMPLETED", 1), world.lines
    assert world.faults == []


@pytest.mark.parametrize("awake_s", [1.1, 1.3, 1.6, 1.9])
def test_a_machine_that_slept_for_an_hour_takes_nobody_for_dead(world: World, awake_s: float) -> None:
    """Every instance was silent for an hour, and none is to blame; what ran goes on, and starts once.

    It falls asleep at several moments between a heartbeat and the look of the other one.
    """
    first, second = world.processes
    for process in (first, second):
        enqueue(process, "once", "sleep:8")
    world.run_until(lambda: len(world.runs.now) == 2, 5.0)
    world.run_until(lambda: False, awake_s)
    stop_for_an_hour(world, first, second)
    world.run_until(lambda: not (first.waiting or second.waiting), HOUR_US / 1e6 + 30)
    assert [(row.status, row.start_count) for row in world.checks.rows.values()] == [("COMPLETED", 1)] * 2, world.lines
    assert not any("took over" in line or "blocked" in line for line in world.lines)
    assert world.faults == []


@pytest.mark.parametrize("locked_at_s", [5.2, 5.4])
def test_a_file_that_was_locked_between_two_sweeps_takes_nobody_for_dead(tmp_path: Path, locked_at_s: float) -> None:
    """Both were kept out for longer than the threshold. Who gets through first, and sweeps then, knows from its own
    beats that the silence of the other one says nothing.
    """
    world = World(3, tmp_path)
    world.timetable.entries.clear()
    world.weather, world.kinds, world.stale_us = Weather(), ("safe",), 4_000_000
    recovery = {f"{what}_stale_threshold_ms": 4_000 for what in ("claimed", "running", "finalizing")}
    recovery |= {f"{what}_heartbeat_interval_ms": 1_000 for what in ("claimer", "runner")}
    world.options["recovery"] = replace(world.options["recovery"], check_interval_ms=5_000, **recovery)
    world.options["concurrency"] = 1
    with inhabited(world):
        for _ in range(2):
            process = world.new_process()
            assert world.run_until(lambda each=process: each.is_up, 1.0)
            world.run_until(lambda: False, 0.3)
        first, second = world.processes
        for _ in range(3):
            enqueue(first, "safe", "sleep:20")
        world.run_until(lambda: False, locked_at_s - (world.now_us - second.began_us) / 1e6)
        world.outage_until_us = world.locked_until_us = world.now_us + 4_600_000
        world.run_until(lambda: False, 8.0)
        assert not any("took over" in line for line in world.lines), world.lines
        assert world.faults == []
        world.close()
