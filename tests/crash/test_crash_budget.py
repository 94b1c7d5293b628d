"""A task that kills its process each time is quarantined, and the tasks that merely ran beside it finish."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

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
