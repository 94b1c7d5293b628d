"""`tests.simulation.promises`: what a flush and a pause promise, and what they do not."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taskmanager import TaskHandle, TaskManager, TaskStatus
from taskmanager.engine.run.child import ChildCall, ChildReply, Heard
from taskmanager.store.protocol import News
from tests.simulation.faults import Weather
from tests.simulation.process import Process
from tests.simulation.promises import flush
from tests.simulation.world import World, inhabited


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A store without faults, and one slot in each process."""
    made = World(3, tmp_path)
    made.timetable.entries.clear()
    made.weather, made.kinds = Weather(), ("safe", "process_once")
    made.options |= {"concurrency": 1, "max_in_memory": 10}
    with inhabited(made):
        yield made
        made.close()


def started(world: World) -> Process:
    """One more process, which has come up."""
    process = world.new_process()
    assert world.run_until(lambda: process.is_up, 1.0)
    return process


def ended_without_the_file(world: World, process: Process) -> TaskHandle[int]:
    """A task that waited for the slot, by the file too. It has run while its process could not write, and who waited
    for it there was told that it is COMPLETED.
    """
    process.jobs["safe"].enqueue(world.next_label(), "sleep:0.05")
    handle = process.jobs["safe"].enqueue(world.next_label(), "sleep:3")
    process.handles[handle.task_id] = handle
    assert world.run_until(lambda: handle.task_id in world.checks.rows, 1.0)
    process.outage_until_us = world.now_us + 60_000_000
    assert world.run_until(lambda: handle.status is TaskStatus.COMPLETED, 5.0)
    assert world.checks.rows[handle.task_id].status == TaskStatus.PENDING
    return handle


def flushed(world: World, process: Process) -> None:
    """The file can be written again, and a flush has come back."""
    process.outage_until_us = 0
    call = process.loop.create_task(flush(process))
    assert world.run_until(call.done, 2.0)


def test_flush_allows_that_others_repeat_a_run_that_was_not_recorded(world: World) -> None:
    """By the file the task still waited, and an idle instance has started it. The end of the run here is refused then.
    A task that is safe to repeat runs at least once.
    """
    first = started(world)
    handle = ended_without_the_file(world, first)
    second = started(world)
    assert world.run_until(lambda: bool(world.runs.now), 2.0)
    flushed(world, first)
    row = world.checks.rows[handle.task_id]
    assert (row.status, row.claimed_by_worker_id) == (TaskStatus.RUNNING, second.instance_id)
    assert world.faults == []
    assert world.run_until(lambda: world.checks.rows[handle.task_id].status == TaskStatus.COMPLETED, 5.0)


def test_flush_allows_that_others_have_judged_a_run_to_be_a_crash(world: World) -> None:
    """Its process could not write the end, and then was silent for so long that it seemed dead. That is retried."""
    world.kinds = ("crash_retry",)
    first, second = started(world), started(world)
    assert not world.run_until(lambda: False, 1.0)  # its heart has beaten
    handle = first.jobs["crash_retry"].enqueue(world.next_label(), "sleep:0.7")
    first.handles[handle.task_id] = handle
    assert world.run_until(lambda: bool(world.runs.now), 1.0)
    first.outage_until_us = world.now_us + 60_000_000
    assert world.run_until(lambda: handle.status is TaskStatus.COMPLETED, 5.0)
    first.was_out, first.frozen_until_us = True, world.now_us + 20_000_000
    assert world.run_until(lambda: bool(world.runs.now), 15.0)
    first.frozen_until_us = world.now_us
    first.thaw()
    flushed(world, first)
    assert second.instance_id == world.checks.rows[handle.task_id].claimed_by_worker_id
    assert world.faults == []


def test_flush_that_does_not_write_an_end_is_a_fault(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else has the task, so the end that was told must be in the file."""
    process = started(world)
    handle = ended_without_the_file(world, process)

    async def forget(manager: TaskManager) -> None:
        """Come back, and nothing is written."""

    monkeypatch.setattr(TaskManager, "flush", forget)
    flushed(world, process)
    assert len(world.faults) == 1
    assert f"{handle.task_id} was there before a flush" in world.faults[0]


def paused_by(world: World, process: Process) -> None:
    """It has paused the default queue, some time after all have come up."""
    assert not world.run_until(lambda: False, 0.1)
    call = process.loop.create_task(world.pauses.pause(process, "default"))
    assert world.run_until(call.done, 1.0)


def test_pause_allows_a_child_that_comes_up_late_for_what_has_started(world: World) -> None:
    """The start is in the file before the pause. That its code begins long after it is the weather of the machine."""
    first, second = started(world), started(world)
    run = second.children.run

    async def late(call: ChildCall, on_child: Callable[[], None], heard: Heard) -> ChildReply:
        await asyncio.sleep(2.5)
        return await run(call, on_child, heard)

    second.children.run = late  # type: ignore[method-assign]  # as a loaded machine does it
    second.jobs["process_once"].enqueue(world.next_label(), "sleep:0.5")
    assert world.run_until(lambda: "RUNNING" in [row.status for row in world.checks.rows.values()], 1.0)
    paused_by(world, first)
    assert world.run_until(lambda: bool(world.runs.now), 5.0)
    assert world.faults == []


def test_process_is_disturbed_until_the_last_of_slow_reads_is_answered(world: World) -> None:
    """A read that comes behind others takes their time too, and nothing that others have written is heard of before."""
    process = started(world)
    assert process.engine is not None
    world.weather = Weather(late=1.0, longest_us=3_000_000)
    reads = [process.loop.create_task(process.engine.store.counts()) for _ in range(3)]
    assert not world.run_until(lambda: False, 0.01)
    world.weather, began_us = Weather(), world.now_us
    assert world.run_until(lambda: all(each.done() for each in reads), 20.0)
    assert world.now_us - began_us > 3_000_000
    assert not process.is_undisturbed_since(world.now_us - 1)


def test_pause_that_another_instance_does_not_hear_of_is_a_fault(world: World) -> None:
    """It has had the time to, and nothing was in its way."""
    first, second = started(world), started(world)
    assert second.engine is not None

    hear = second.engine.store.news

    async def deaf(instance_id: str) -> News:
        return (await hear(instance_id))._replace(paused=frozenset())

    second.engine.store.news = deaf  # type: ignore[method-assign]
    paused_by(world, first)
    assert not world.run_until(lambda: False, 2.0)
    second.jobs["safe"].enqueue(world.next_label(), "sleep:0")
    assert world.run_until(lambda: bool(world.faults), 2.0)
    assert "has paused its queue default" in world.faults[0]
