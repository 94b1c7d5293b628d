"""Schedules of several processes on one database: whoever dies or freezes in whatever moment, each fire runs once."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.crash.harness import PATIENCE_S, both
from tests.crash.stage import Stage, staged

PROGRAM = """
import asyncio, logging, os, signal, sys, time
from taskmanager import RecoveryConfig, TaskManager, current_task

logging.basicConfig(level=logging.INFO, stream=sys.stderr)
database, name, kind = sys.argv[1:]
manager = TaskManager(database, recovery=RecoveryConfig(check_interval_ms=1_000), store_poll=0.05)

@manager.schedule(every=0.2, name="tick", overlap="allow", catch_up="all")
@manager.schedule(cron="* * * * * *", name="second")
@manager.task(name="job", persist=True, requeue_on_interrupt=True)
async def job() -> None:
    context = current_task()
    note(f"run {context.tags['schedule']} {context.scheduled_for.timestamp():.6f} {context.task_id} {context.attempt}")

class Marked:
    count = 0

    async def fire_schedules(self, fires):
        self.count += 1
        if kind == "freezes before" and self.count == 3:
            time.sleep(0.3)  # no thread of this process is inside a transaction, whose lock would be frozen with it
            note(f"frozen {name}")
            os.kill(os.getpid(), signal.SIGSTOP)
        lost = await super().fire_schedules(fires)
        if kind == "dies after" and any(fire.task for fire in fires) and not lost:
            note(f"died {name}")
            os.kill(os.getpid(), signal.SIGKILL)
        return lost

store = manager._settings.place.new_store(recovery=manager._settings.recovery)
store.__class__ = type("MarkedStore", (Marked, type(store)), {})
manager._make_store = lambda: store

async def main() -> None:
    note(f"ready {name}")
    await asyncio.Event().wait()

manager.run(main)
"""


def runs(stage: Stage) -> int:
    """How often the task has been run so far."""
    return sum(line.startswith("run") for line in stage.lines())


@pytest.fixture
def stage(tmp_path: Path, database: str) -> Iterator[Stage]:
    with staged(tmp_path, PROGRAM, database) as made:
        yield made


@both
def test_every_fire_of_several_processes_runs_once(stage: Stage) -> None:
    """One process dies between recording a fire and running it, one freezes between deciding and recording, two begin
    in the same moment and one of these is killed: no fire is missed, and none runs twice.
    """
    stage.start("victim", "dies after").wait(PATIENCE_S)
    assert any(line.startswith("died") for line in stage.lines())
    frozen = stage.start("frozen", "freezes before")
    stage.until_noted("frozen frozen")
    first, second = stage.start("first", "lives"), stage.start("second", "lives")
    stage.until_noted("ready first", "ready second")
    before = runs(stage)
    stage.until(lambda: runs(stage) > before + 6)
    os.kill(frozen.pid, signal.SIGCONT)
    first.kill()
    before = runs(stage)
    stage.until(lambda: runs(stage) > before + 6)
    for process in (frozen, second):
        process.terminate()
        process.wait(20)
    last = stage.start("last", "lives")
    stage.until_noted("ready last")
    (newest,) = stage.rows("SELECT max(scheduled_for) FROM taskmanager_tasks")[0]
    unfinished = f"SELECT id FROM taskmanager_tasks WHERE status <> 'COMPLETED' AND scheduled_for <= {newest}"
    stage.until(lambda: not stage.rows(unfinished))
    last.terminate()
    assert [process.wait(20) for process in (frozen, second, last)] == [-signal.SIGTERM] * 3

    ran = Counter(line for line in stage.lines() if line.startswith("run"))
    assert [line for line, count in ran.items() if count > 1] == []
    # A run that was killed is repeated as the same task; a fire has one task.
    tasks = {line.split()[3]: line.split()[1:3] for line in ran}
    assert len({tuple(each) for each in tasks.values()}) == len(tasks)
    fires = stage.rows("SELECT json_extract(tags, '$.schedule'), scheduled_for, status FROM taskmanager_tasks")
    # What the last stop came before waits in the file for the next start.
    assert len(tasks) == len([status for _, _, status in fires if status == "COMPLETED"])
    assert {status for _, _, status in fires} <= {"COMPLETED", "PENDING"}
    assert len({fire[:2] for fire in fires}) == len(fires)
    ticks = sorted(int(str(at)) for name, at, _ in fires if name == "tick")
    assert {later - earlier for earlier, later in pairwise(ticks)} == {200_000}
    counted = stage.rows("SELECT schedule_name, run_count FROM taskmanager_schedule_state ORDER BY 1")
    assert counted == sorted(Counter(name for name, _, _ in fires).items(), key=str)
