"""A task that kills its process each time is quarantined, and the tasks that merely ran beside it finish."""

import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from taskmanager.console.observer import look
from taskmanager.console.overview import Problem
from taskmanager.console.problems import ALONE_US
from taskmanager.model.clock import SECOND_US, SystemClock
from taskmanager.store.file_place import FilePlace
from taskmanager.store.sqlite.reading import open_read_only
from tests.crash.harness import wait_for

PROGRAM = """
import asyncio, os, sys
from taskmanager import TaskManager, RecoveryConfig

manager = TaskManager(sys.argv[1], concurrency=4, recovery=RecoveryConfig(crash_budget=3))

@manager.task(name="poison", persist=True, requeue_on_interrupt=True)
async def poison() -> None:
    await asyncio.sleep(0.05)
    os._exit(137)

@manager.task(name="innocent", persist=True, requeue_on_interrupt=True)
async def innocent(number: int) -> int:
    await asyncio.sleep(0.02)
    return number

async def main() -> None:
    if sys.argv[2] == "first":
        handles = [innocent.enqueue(number) for number in range(10)]
        handles.insert(2, poison.enqueue())
        await asyncio.gather(*(handle.saved() for handle in handles))
    await manager.join()

manager.run(main)
"""


@pytest.mark.req("RC-24", "HB-05")
def test_a_poison_task_is_quarantined_and_the_others_finish(tmp_path: Path) -> None:
    """Each death counts for every task that ran; alone at the scene three times, only the culprit is left."""
    program, database = tmp_path / "program.py", tmp_path / "tasks.db"
    program.write_text(PROGRAM)
    codes = []
    for start in range(12):
        arguments = [sys.executable, str(program), str(database), "first" if start == 0 else "again"]
        codes.append(subprocess.run(arguments, check=False, timeout=60).returncode)
        if codes[-1] == 0:
            break
    assert codes[-1] == 0, codes
    assert set(codes[:-1]) == {137}
    rows = sqlite3.connect(database).execute("SELECT task_name, status, error_code FROM taskmanager_tasks").fetchall()
    assert rows.count(("innocent", "COMPLETED", None)) == 10
    assert rows.count(("poison", "FAILED", "WORKER_CRASHED")) == 1
    assert len(rows) == 11


HANGING = """
import asyncio, os, signal, sys
from taskmanager import TaskManager

is_first = sys.argv[2] == "first"
manager = TaskManager(sys.argv[1], concurrency=1 if is_first else 4)

@manager.task(name="app:import", persist=True, requeue_on_interrupt=True, priority=1)
async def import_all() -> None:
    if is_first:
        await manager.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.Event().wait()

@manager.task(name="app:mail", persist=True)
async def mail() -> None: ...

async def main() -> None:
    if is_first:
        for task in (import_all, mail, mail, mail):
            task.enqueue()
    await manager.join()

manager.run(main)
"""


class Later(SystemClock):
    """A clock of an observer who looks when a task has run alone for long enough to be told."""

    def now_us(self) -> int:
        return super().now_us() + ALONE_US + SECOND_US


def told_of_suspects(database: Path) -> list[Problem]:
    with open_read_only(database) as connection:
        return [each for each in look(FilePlace(database), connection, Later()).problems if "runs alone" in each.text]


def command(database: Path, *words: str) -> Any:
    line = [sys.executable, "-m", "taskmanager", *words, "--db", str(database), "--json"]
    return json.loads(subprocess.run(line, check=False, timeout=60, capture_output=True, text=True).stdout)


def test_suspect_that_never_ends_is_told_until_it_is_cancelled(tmp_path: Path) -> None:
    """All that waits for it seems dead else. The advice, followed by the letter, lets the others run."""
    program, database = tmp_path / "program.py", tmp_path / "tasks.db"
    program.write_text(HANGING)
    run = [sys.executable, str(program), str(database)]
    assert subprocess.run([*run, "first"], check=False, timeout=60).returncode == -signal.SIGKILL
    second = subprocess.Popen([*run, "again"])
    try:
        wait_for(lambda: bool(told_of_suspects(database)), lambda: "nothing is told of the suspect")
        (problem,) = told_of_suspects(database)
        part = problem.advice.split()[-1]
        assert problem.text == f"3 tasks wait for app:import ({part}), which runs alone after a crash"
        (waiting, *_) = command(database, "list", "--task", "app:mail")
        then = command(database, "show", waiting["task_id"])["next"]["text"]
        assert then.startswith(f"it waits until task app:import ({part}) has ended, which runs alone because")
        command(database, "cancel", part)
        assert second.wait(60) == 0
    finally:
        second.kill()
        second.wait()
    rows = sqlite3.connect(database).execute("SELECT task_name, status FROM taskmanager_tasks").fetchall()
    assert sorted(rows) == [("app:import", "CANCELLED"), *[("app:mail", "COMPLETED")] * 3]
