"""A task that kills its process each time is quarantined, and the tasks that merely ran beside it finish."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from taskmanager.console.observer import look
from taskmanager.console.overview import Problem
from taskmanager.console.problems import ALONE_US
from taskmanager.model.clock import SECOND_US, SystemClock
from taskmanager.store.place import place_at
from tests.crash.harness import both
from tests.crash.stage import staged

# What a dead process has left is not its successor's at once on a server.
UNTIL_EMPTY = """
async def until_empty() -> None:
    while True:
        counts = await manager.counts()
        if not any(counts[each] for each in ("PENDING", "CLAIMED", "RUNNING")):
            return
        await asyncio.sleep(0.02)
"""
PROGRAM = f"""
import asyncio
from taskmanager import TaskManager, RecoveryConfig

manager = TaskManager(sys.argv[1], concurrency=4, recovery=RecoveryConfig(crash_budget=3))
{UNTIL_EMPTY}

@manager.task(name="poison", persist=True, requeue_on_interrupt=True)
async def poison() -> None:
    await asyncio.sleep(0.05)
    os._exit(137)

@manager.task(name="innocent", persist=True, requeue_on_interrupt=True)
async def innocent(number: int) -> int:
    await asyncio.sleep(0.02)
    return number

async def main() -> None:
    if sys.argv[2] == "0":
        handles = [innocent.enqueue(number) for number in range(10)]
        handles.insert(2, poison.enqueue())
        await asyncio.gather(*(handle.saved() for handle in handles))
    await until_empty()

manager.run(main)
"""


@pytest.mark.req("RC-24", "HB-05")
@both
def test_a_poison_task_is_quarantined_and_the_others_finish(tmp_path: Path, database: str) -> None:
    """Each death counts for every task that ran; alone at the scene three times, only the culprit is left."""
    with staged(tmp_path, PROGRAM, database) as stage:
        codes = []
        for start in range(12):
            codes.append(stage.start(f"{start}").wait(60))
            if codes[-1] == 0:
                break
        rows = stage.rows("SELECT task_name, status, error_code FROM taskmanager_tasks")
    assert codes[-1] == 0, codes
    assert set(codes[:-1]) == {137}
    assert rows.count(("innocent", "COMPLETED", None)) == 10
    assert rows.count(("poison", "FAILED", "WORKER_CRASHED")) == 1
    assert len(rows) == 11


HANGING = f"""
import asyncio, signal
from taskmanager import TaskManager

is_first = sys.argv[2] == "first"
manager = TaskManager(sys.argv[1], concurrency=4)
is_running = asyncio.Event()
{UNTIL_EMPTY}
@manager.task(name="app:import", persist=True, requeue_on_interrupt=True)
async def import_all() -> None:
    if is_first:
        await manager.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    is_running.set()
    await asyncio.Event().wait()

@manager.task(name="app:mail", persist=True)
async def mail() -> None: ...

async def main() -> None:
    if is_first:
        import_all.enqueue()
    await is_running.wait()
    for _ in range(3):
        await mail.enqueue().saved()
    await until_empty()

manager.run(main)
"""


class Later(SystemClock):
    """A clock of an observer who looks when a task has run alone for long enough to be told."""

    def now_us(self) -> int:
        return super().now_us() + ALONE_US + SECOND_US


def told_of_suspects(database: str) -> list[Problem]:
    place = place_at(database)
    with place.read() as connection:
        return [each for each in look(place, connection, Later()).problems if "runs alone" in each.text]


def command(database: str, *words: str) -> Any:
    line = [sys.executable, "-m", "taskmanager", *words, "--db", database, "--json"]
    return json.loads(subprocess.run(line, check=False, timeout=60, capture_output=True, text=True).stdout)


@both
def test_suspect_that_never_ends_is_told_until_it_is_cancelled(tmp_path: Path, database: str) -> None:
    """All that waits for it seems dead else. The advice, followed by the letter, lets the others run."""
    with staged(tmp_path, HANGING, database) as stage:
        assert stage.start("first").wait(60) == -signal.SIGKILL
        second = stage.start("second")
        stage.until(lambda: bool(told_of_suspects(database)))
        (problem,) = told_of_suspects(database)
        part = problem.advice.split()[-1]
        assert problem.text == f"3 tasks wait for app:import ({part}), which runs alone after a crash"
        (waiting, *_) = command(database, "list", "--task", "app:mail")
        then = command(database, "show", waiting["task_id"])["next"]["text"]
        assert then.startswith(f"it waits until task app:import ({part}) has ended, which runs alone because")
        command(database, "cancel", part)
        assert second.wait(60) == 0, stage.log_of("second")
        rows = stage.rows("SELECT task_name, status FROM taskmanager_tasks")
    assert sorted(rows, key=str) == [("app:import", "CANCELLED"), *[("app:mail", "COMPLETED")] * 3]
