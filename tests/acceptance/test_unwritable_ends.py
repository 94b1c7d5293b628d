"""The end of a process that cannot write, or whose main thread has ended: what it could not save is told."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from taskmanager import StoreUnavailable, TaskInterrupted, TaskStatus
from tests.acceptance.file_faults import ROOT, World, eventually, locked
from tests.crash.harness import Site, killed_at_the_end

pytestmark = pytest.mark.anyio

ENDS_S = 20.0
"""A stop that waits until it can write would wait for ever. This one gives up after some two seconds at rest."""


async def test_a_stop_that_cannot_write_says_how_much_and_the_next_start_recovers(tmp_path: Path) -> None:
    """`StoreUnavailable` with the count; the last committed state is what the next start goes on from."""
    world = World(tmp_path / "tasks.db", drain_timeout=0.1)
    await world.manager.start()
    running = world.held.enqueue("running")
    delayed = world.once.with_options(delay=60).enqueue("delayed")
    await asyncio.gather(running.saved(), delayed.saved())
    with locked(world.db):
        unsaved = world.once.enqueue("never saved")
        with pytest.raises(StoreUnavailable, match=r"\b3 records"):
            async with asyncio.timeout(ENDS_S):
                await world.manager.stop()
        with pytest.raises(TaskInterrupted):
            await unsaved
        with pytest.raises(StoreUnavailable):
            await unsaved.saved()
    assert world.statuses() == {"running": "RUNNING", "delayed": "PENDING"}
    again = World(world.db)
    again.gate.set()
    async with again.manager as manager:
        await eventually(lambda: again.statuses()["running"] == "COMPLETED")
        info = await manager.get(delayed.task_id)
        assert info is not None
        assert info.status is TaskStatus.PENDING
    assert again.started == ["running"]


async def test_under_run_a_stop_that_cannot_write_exits_with_status_1(tmp_path: Path) -> None:
    """A supervisor must see that something is not on the disk."""
    site = Site(tmp_path)
    child = site.spawn(enqueue=[["safe", "a", 30, {}]], manager={"drain_timeout": 0.1})
    with killed_at_the_end(child):
        await asyncio.to_thread(child.until, "ready")
        await asyncio.to_thread(child.until_starts, 1)
        with locked(site.db):
            await asyncio.to_thread(child.stop)
    assert child.code == 1, child.errors()
    assert "could not be written" in child.errors()
    await asyncio.to_thread(site.finish)
    assert site.statuses() == {"a": "COMPLETED"}
    site.assert_sound()


_LOOP_IN_A_THREAD = """
import asyncio, sqlite3, sys, threading
from taskmanager import RecoveryConfig, TaskManager

quick = RecoveryConfig(runner_heartbeat_interval_ms=1_000, claimer_heartbeat_interval_ms=1_000)

async def main():
    async with TaskManager(sys.argv[1], recovery=quick), asyncio.timeout(20):
        while threading.main_thread().is_alive():
            await asyncio.sleep(0.05)
        with sqlite3.connect(sys.argv[1]) as db:
            before = db.execute("SELECT count(*) FROM taskmanager_heartbeats").fetchone()
            while db.execute("SELECT count(*) FROM taskmanager_heartbeats").fetchone() == before:
                await asyncio.sleep(0.05)
    print("beats")

threading.Thread(target=lambda: asyncio.run(main())).start()
"""


@pytest.mark.slow
async def test_heartbeats_go_on_while_the_loop_lives_after_the_main_thread_ended(tmp_path: Path) -> None:
    """A loop may run in a thread that outlives the main one; silent, its tasks would be taken over beside it."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", _LOOP_IN_A_THREAD, str(tmp_path / "tasks.db")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout == "beats\n", done.stderr
