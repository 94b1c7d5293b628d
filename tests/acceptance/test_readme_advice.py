"""The ways out that the README names where it says what the library does not do: each is a program that takes it."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from tests.crash.harness import ROOT, wait_for

pytestmark = pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")

PATIENCE_S: Final = 60.0
ENVIRONMENT: Final = {**os.environ, "PYTHONPATH": str(ROOT)}

STOPPED: Final = """
import asyncio, sys
from pathlib import Path
from taskmanager import TaskManager

manager = TaskManager("tasks.db", drain_timeout=0.1)

@manager.task(persist=True, name="delicate")
async def delicate() -> None:
    await work("delicate")

@manager.task(persist=True, requeue_on_interrupt=True, name="repeatable")
async def repeatable() -> None:
    await work("repeatable")

async def work(name: str) -> None:
    if not Path("quick").exists():
        Path(f"{name} runs").touch()
        await asyncio.sleep(3600)

async def main() -> None:
    if "first" in sys.argv:
        delicate.enqueue(), repeatable.enqueue()
    await manager.join()

manager.run(main)
"""

KILLED: Final = """
import asyncio, os, signal
from taskmanager import TaskManager

kept = TaskManager("kept.db", requeue_pending=True)
lost = TaskManager("lost.db")

async def work() -> None: ...

async def main() -> None:
    async with kept, lost:
        for manager in (kept, lost):
            manager.task(name="later")(work).with_options(delay=3600).enqueue()
        await kept.flush(), await lost.flush()
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""

NATIVE: Final = """
import os
from taskmanager import TaskFailed, TaskManager

manager = TaskManager("tasks.db", processes=1)

@manager.task(executor="process")
def crashes() -> None:
    os.abort()

@manager.task(executor="process")
def works() -> int:
    return os.getpid()

async def main() -> None:
    try:
        await crashes.enqueue()
    except TaskFailed as exc:
        print(exc.error.error_code)
    print(await works.enqueue() != os.getpid())

if __name__ == "__main__":
    manager.run(main)
"""

JOBS: Final = """
from pathlib import Path
from taskmanager import TaskManager

manager = TaskManager("tasks.db", requeue_pending=True)

@manager.task
async def send(address: str) -> None:
    Path(f"sent to {address}").touch()
"""

WEB: Final = """
import sqlite3
from jobs import manager, send

connection = sqlite3.connect("tasks.db", isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
manager.submit_in(connection, send, "ada")
connection.execute("COMMIT")
connection.execute("BEGIN IMMEDIATE")
sql, parameters = manager.insert_statement(send, "bob")
connection.execute(sql, parameters)
connection.execute("COMMIT")
print(manager.status().state)
"""


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def rows(database: Path, sql: str) -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(sql).fetchall()


def statuses(folder: Path) -> dict[str, str]:
    return dict(rows(folder / "tasks.db", "SELECT task_name, status FROM taskmanager_tasks"))  # type: ignore[arg-type]


def test_a_task_that_was_stopped_runs_again_by_itself_or_by_retry(tmp_path: Path) -> None:
    """`requeue_on_interrupt=True` carries on at the next start. The other has a record, and `retry` runs it again."""
    (tmp_path / "app.py").write_text(STOPPED)
    first = subprocess.Popen([sys.executable, "app.py", "first"], cwd=tmp_path, env=ENVIRONMENT)
    wait_for(
        lambda: all((tmp_path / f"{name} runs").exists() for name in ("delicate", "repeatable")), lambda: "both run"
    )
    first.send_signal(signal.SIGTERM)
    first.wait(PATIENCE_S)
    assert statuses(tmp_path) == {"delicate": "INTERRUPTED", "repeatable": "PENDING"}
    (tmp_path / "quick").touch()
    assert run(tmp_path, "app.py").returncode == 0
    assert statuses(tmp_path) == {"delicate": "INTERRUPTED", "repeatable": "COMPLETED"}
    ((task_id,),) = rows(tmp_path / "tasks.db", "SELECT id FROM taskmanager_tasks WHERE task_name = 'delicate'")
    assert run(tmp_path, "-m", "taskmanager", "retry", task_id).returncode == 0
    assert run(tmp_path, "app.py").returncode == 0
    assert statuses(tmp_path) == {"delicate": "COMPLETED", "repeatable": "COMPLETED"}


def test_requeue_pending_keeps_what_a_kill_would_take(tmp_path: Path) -> None:
    """A memory-only task is gone when its process dies; the manager's option changes it for all tasks."""
    (tmp_path / "app.py").write_text(KILLED)
    assert run(tmp_path, "app.py").returncode == -signal.SIGKILL
    for name, count in (("kept", 1), ("lost", 0)):
        found = Counter(rows(tmp_path / f"{name}.db", "SELECT task_name FROM taskmanager_tasks"))
        assert found.total() == count


def test_a_native_crash_in_a_child_process_leaves_the_application_alone(tmp_path: Path) -> None:
    """`executor="process"`: the task fails, the next one has a new child, the application goes on."""
    (tmp_path / "app.py").write_text(NATIVE)
    done = run(tmp_path, "app.py")
    assert (done.returncode, done.stdout) == (0, "WORKER_CRASHED\nTrue\n"), done.stderr


def test_a_worker_runs_what_an_application_writes_that_starts_no_manager(tmp_path: Path) -> None:
    """The work shares no process with the web application: that one writes, `taskmanager run` runs."""
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "web.py").write_text(WEB)
    command = [sys.executable, "-m", "taskmanager", "run", "jobs:manager"]
    with subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stderr is not None
        try:
            next(line for line in worker.stderr if "running jobs:manager" in line)
            written = run(tmp_path, "web.py")
            assert (written.returncode, written.stdout) == (0, "held until start\n"), written.stderr
            wait_for(
                lambda: all((tmp_path / f"sent to {name}").exists() for name in ("ada", "bob")), lambda: "both are sent"
            )
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.communicate(timeout=PATIENCE_S)
