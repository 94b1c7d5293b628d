"""A file that somebody else has locked: nobody stops, nothing is lost, and a start waits or says why it cannot."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from taskmanager import StoreUnavailable, TaskHandle, Workflow, lifecycle
from taskmanager.store.sqlite import SqliteStore
from taskmanager.testing.faulty import Fault, FaultyStore
from tests.acceptance.file_faults import LOCKED_S, ROOT, World, eventually, locked, loop_is_free

pytestmark = pytest.mark.anyio


@pytest.mark.slow
async def test_a_file_locked_by_somebody_else_stops_nobody_and_loses_nothing(tmp_path: Path) -> None:
    """Memory-only and repeatable work goes on, the rest waits; it is visible, and all is written when the lock goes."""
    world = World(tmp_path / "tasks.db")
    async with world.manager as manager, loop_is_free():
        running = world.held.enqueue("running")
        await running.saved()
        with locked(world.db):
            began = time.monotonic()
            safe = [world.safe.enqueue(f"safe{n}") for n in range(20)]
            once = [world.once.enqueue(f"once{n}") for n in range(20)]
            assert [await world.memory.enqueue(f"m{n}") for n in range(20)] == [f"m{n}" for n in range(20)]
            with pytest.raises((StoreUnavailable, TimeoutError)):
                await once[0].saved(timeout=0.2)
            await eventually(lambda: manager.status().storage_degraded_since is not None)
            assert [await each for each in safe] == [f"safe{n}" for n in range(20)]
            assert not (await safe[0].info()).saved
            world.gate.set()
            assert await running == "running"
            with pytest.raises(StoreUnavailable, match="not saved"):
                await once[0].saved(timeout=0.1)
            assert not any(label.startswith("once") for label in world.started)
            await asyncio.sleep(max(0.0, LOCKED_S - (time.monotonic() - began)))
            status = manager.status()
            assert (status.oldest_unsaved_s or 0) > LOCKED_S - 1
            assert status.unsaved_count >= 40
        assert [await each for each in once] == [f"once{n}" for n in range(20)]
        await manager.flush()
        assert manager.status().storage_degraded_since is None
        await once[0].saved()
        assert (await safe[0].info()).saved
        assert manager._lifecycle is not None
        assert not set(manager._lifecycle.engine.writer.unsaved_ended) & {each.task_id for each in safe}
    persisted = ["running", *(f"safe{n}" for n in range(20)), *(f"once{n}" for n in range(20))]
    statuses = world.statuses()
    assert {statuses[label] for label in persisted} == {"COMPLETED"}
    assert len(world.started) == len(set(world.started)), "nothing ran twice"
    world.assert_whole()


async def test_calls_of_what_memory_holds_wait_for_the_file_and_others_refuse(tmp_path: Path) -> None:
    """What is asked of tasks in memory is kept there, and is done when the lock goes. What needs the file says so."""
    world = World(tmp_path / "tasks.db")
    async with world.manager as manager:
        ended = world.once.enqueue("ended")
        delayed = [world.once.with_options(delay=100_000).enqueue(f"later{n}") for n in range(2)]
        await ended
        await manager.flush()
        workflow = Workflow[Any]("one")
        workflow.add(world.once, "node")
        with locked(world.db):
            cancelling = asyncio.create_task(manager.cancel(delayed[0].task_id))
            waiting = [
                asyncio.create_task(call)
                for call in (manager.cancel_all(queue_name="default"), manager.purge(), manager.flush())
            ]
            refused = await asyncio.gather(
                manager.retry(ended.task_id, force=True),
                manager.send(delayed[1].task_id, "news"),
                manager.pause("default"),
                manager.start_workflow(workflow),
                return_exceptions=True,
            )
            assert {type(each) for each in refused} == {StoreUnavailable}, refused
            assert not any(each.done() for each in (cancelling, *waiting))
        assert await cancelling
        await asyncio.gather(*waiting)


async def test_a_start_waits_for_a_lock_that_somebody_holds(tmp_path: Path) -> None:
    """A backup of a few seconds at the wrong moment is no reason not to start."""
    world = World(tmp_path / "tasks.db")
    async with world.manager:
        await world.once.enqueue("before")
    for new in (False, True):
        if new:
            world = World(tmp_path / "new.db")
        with locked(world.db):
            starting = asyncio.ensure_future(world.manager.start())
            await asyncio.sleep(LOCKED_S / 2)
            assert not starting.done()
        await starting
        await world.once.enqueue("after")
        await world.manager.stop()
        assert world.statuses()["after"] == "COMPLETED"


async def test_a_start_that_cannot_claim_yet_is_up_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dozens that start at once keep each other from the file. Whoever is registered, and has recovered what the dead
    have left, is no failed start for that: it claims as soon as it can.
    """
    monkeypatch.setattr(lifecycle, "START_PATIENCE_S", 0.1)
    before, after = World(tmp_path / "tasks.db", drain_timeout=0.0), World(tmp_path / "tasks.db")
    async with before.manager:
        await before.held.enqueue("left").saved()
    store = FaultyStore(SqliteStore(after.db), [Fault.fail(1, verb="claim", times=8)])
    after.manager._make_store = store.as_store
    after.gate.set()
    async with after.manager:
        await eventually(lambda: after.statuses() == {"left": "COMPLETED"})


_ARMED = """
import signal, sys, threading, time
from taskmanager import TaskManager

def tell():
    while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        time.sleep(0.01)
    print("armed", flush=True)

threading.Thread(target=tell, daemon=True).start()
TaskManager(sys.argv[1]).run()
"""


async def test_a_second_signal_ends_a_start_that_waits_for_the_file(tmp_path: Path) -> None:
    """The first one lets it begin, so that what was enqueued before the start is kept; nobody must wait for more."""
    world = World(tmp_path / "tasks.db")
    async with world.manager:
        pass
    with locked(world.db):
        command = [sys.executable, "-c", _ARMED, str(world.db)]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"armed\n"
        process.terminate()
        await asyncio.sleep(0.3)
        assert process.returncode is None
        process.terminate()
        _, errors = await process.communicate()
        assert (await process.wait(), errors) == (0, b""), "one that waits for the lock to its end says so, and fails"


async def test_handles_of_both_kinds_end_while_the_store_is_away(tmp_path: Path) -> None:
    """A waiter is never left hanging at the stop, whatever the store does."""
    world = World(tmp_path / "tasks.db", drain_timeout=0.1)
    await world.manager.start()
    handles: list[TaskHandle[object]] = [world.held.enqueue("running")]
    await handles[0].saved()
    with locked(world.db):
        handles += [world.once.enqueue("new"), world.once.with_options(idempotency_key="k").enqueue("keyed")]
        waiters = [asyncio.ensure_future(each.result()) for each in handles]
        await asyncio.sleep(0)
        with pytest.raises(StoreUnavailable):
            await world.manager.stop()
        results = await asyncio.wait_for(asyncio.gather(*waiters), 5)
    assert all(each.is_err() for each in results)
