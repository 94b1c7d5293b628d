"""The commands beside an application in other processes: they reach it, and find what it leaves when it dies."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from taskmanager import TaskManager
from tests.unit.command_line import digest, taskmanager

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and flock")

PATIENCE_S: Final = 60.0
PROGRAM: Final = """
import asyncio, sys, time
from pathlib import Path
from taskmanager import RecoveryConfig, TaskManager, current_task

# The reaper stays away: what is given back here, a command has given back.
manager = TaskManager("tasks.db", store_poll=0.1, recovery=RecoveryConfig(check_interval_ms=600_000))

@manager.task(persist=True, name="jobs:wait")
async def wait(number: int) -> None:
    await asyncio.sleep(600)

@manager.task(persist=True, name="jobs:wait_safely", requeue_on_interrupt=True)
async def wait_safely(number: int) -> None:
    await asyncio.sleep(600)

@manager.task(persist=True, name="jobs:watch_thread")
def watch_thread() -> None:
    while not current_task().is_cancelled:
        time.sleep(0.01)
    raise RuntimeError("stopped as asked")

@manager.task(persist=True, name="jobs:spin", executor="process")
def spin() -> None:
    time.sleep(600)

@manager.task(persist=True, name="jobs:deliver", queue_name="mail")
async def deliver(name: str) -> str:
    if not Path("mail-server").exists():
        raise ConnectionError("no mail server")
    return name

@manager.task(persist=True, name="jobs:count")
async def count(name: str) -> str:
    return await deliver(name)

@manager.task(name="jobs:in_memory")
async def in_memory() -> None:
    await asyncio.sleep(600)

async def main() -> None:
    async with manager:
        if "first" in sys.argv:
            handles = [wait.enqueue(1), wait.enqueue(2), wait_safely.enqueue(3), watch_thread.enqueue(), spin.enqueue()]
            handles.append(in_memory.enqueue())
            failing = [deliver.enqueue("ann"), count.enqueue("bob")]
            for handle in failing:
                await handle.result()
        else:
            handles = [wait.enqueue(9)]
        while not all(handle.status == "RUNNING" for handle in handles):
            await asyncio.sleep(0.01)
        await manager.flush()
        print("ready", handles[-1].task_id, flush=True)
        await asyncio.sleep(600)

if __name__ == "__main__":
    asyncio.run(main())
"""


@contextmanager
def application(folder: Path, *arguments: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """The program and the id of its last task, from when its tasks run until the block ends, which kills it."""
    (folder / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, "program.py", *arguments], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            word, _, last_id = process.stdout.readline().partition(" ")
            assert word == "ready"
            yield process, last_id.strip()
        finally:
            process.kill()


class Terminal:
    """Commands on one file, answered in JSON."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "tasks.db"

    def ask(self, *arguments: str, code: int = 0) -> Any:
        """The document of a command, which must end with `code`."""
        ran = taskmanager(*arguments, "--db", self.database, "--json")
        assert ran.code == code, ran.err
        return json.loads(ran.out)

    def by_name(self, name: str) -> list[dict[str, Any]]:
        """Its records, oldest first."""
        return list(reversed(self.ask("list", "--task", name)))

    def by_argument(self, name: str, argument: object) -> dict[str, Any]:
        """The record of its call with that argument, which a list does not carry."""
        records = (self.ask("show", each["task_id"]) for each in self.by_name(name))
        return next(each for each in records if each["args"] == [argument])

    def until(self, task_id: str, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The record, when it is so; the test fails when it never is."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            record: dict[str, Any] = self.ask("show", task_id)
            if is_so(record):
                return record
            assert time.monotonic() < deadline, record
            time.sleep(0.02)


def ended_as(status: str) -> Callable[[dict[str, Any]], bool]:
    return lambda record: record["status"] == status


def test_commands_reach_a_running_application(tmp_path: Path) -> None:
    """Cancel in every lane, retry, pause and resume, each within moments; and looking leaves no trace."""
    terminal = Terminal(tmp_path)
    with application(tmp_path, "first") as (_, in_memory_id):
        _memory_only_tasks_are_told_apart(terminal, in_memory_id)
        _looking_leaves_no_trace(terminal)
        _cancel_reaches_every_lane(terminal)
        _retry_runs_at_once(terminal)
        _a_paused_queue_starts_nothing(terminal)
        _doctor_finds_a_function_that_nobody_knows(terminal)
        _doctor_names_who_pins_the_log(terminal)


def _memory_only_tasks_are_told_apart(terminal: Terminal, task_id: str) -> None:
    """They are in no row; the instance shows them within a second, and acting on one is refused with a reason."""
    deadline = time.monotonic() + PATIENCE_S
    while "not in the file: 1 memory-only task;" not in taskmanager("list", "--db", terminal.database).out:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    refused = taskmanager("cancel", task_id[-8:], "--db", terminal.database)
    assert refused.code == 1
    assert "is memory-only and runs in process" in refused.err


def _looking_leaves_no_trace(terminal: Terminal) -> None:
    """The application writes its own beats, so rows of tasks are compared, not bytes."""
    with sqlite3.connect(f"{terminal.database.as_uri()}?mode=ro", uri=True) as connection:
        rows = connection.execute("SELECT * FROM taskmanager_tasks ORDER BY id").fetchall()
        running = terminal.ask("list", "--status", "RUNNING")
        assert len(running) == 5
        shown = terminal.ask("show", running[0]["task_id"])
        assert "it runs in process" in shown["next"]["text"]
        assert connection.execute("SELECT * FROM taskmanager_tasks ORDER BY id").fetchall() == rows
    connection.close()


def _cancel_reaches_every_lane(terminal: Terminal) -> None:
    """Async code is cancelled, a child process killed, a thread sees that it was asked."""
    for name in ("jobs:wait", "jobs:spin", "jobs:watch_thread"):
        task_id = terminal.by_name(name)[0]["task_id"]
        (answer,) = terminal.ask("cancel", task_id)
        assert answer["done"]
        record = terminal.until(task_id, lambda record: record["status"] != "RUNNING")
        assert record["status"] == "CANCELLED", name
        assert record["cancel_requested_at"] is not None
    assert terminal.by_name("jobs:wait")[1]["status"] == "RUNNING", "its sibling goes on"


def _retry_runs_at_once(terminal: Terminal) -> None:
    (terminal.folder / "mail-server").touch()
    (record,) = terminal.by_name("jobs:deliver")
    assert record["error_code"] == "UNHANDLED_EXCEPTION"
    (answer,) = terminal.ask("retry", "--status", "FAILED", "--task", "jobs:deliver", "--since", "1h", "--yes")
    assert answer["outcome"] == "waiting"
    ended = terminal.until(record["task_id"], ended_as("COMPLETED"))
    assert (ended["start_count"], ended["result"]) == (2, {"ok": "ann"})


def _a_paused_queue_starts_nothing(terminal: Terminal) -> None:
    """Another queue goes on meanwhile: when its task has run, the paused one would have run too."""
    (mail,) = terminal.by_name("jobs:deliver")
    (other,) = terminal.by_name("jobs:count")
    terminal.ask("pause", "mail")
    terminal.ask("retry", "--force", mail["task_id"], other["task_id"])
    terminal.until(other["task_id"], ended_as("COMPLETED"))
    waiting = terminal.ask("show", mail["task_id"])
    assert waiting["status"] in ("PENDING", "CLAIMED")
    assert "queue mail is paused" in waiting["next"]["text"]
    terminal.ask("resume", "mail")
    assert terminal.until(mail["task_id"], ended_as("COMPLETED"))["start_count"] == 3


def checks(terminal: Terminal, code: int = 1) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in terminal.ask("doctor", code=code)["checks"]}


def _doctor_finds_a_function_that_nobody_knows(terminal: Terminal) -> None:
    manager = TaskManager(terminal.database)

    @manager.task(persist=True, name="jobs:renamed_long_ago")
    async def renamed_long_ago() -> None: ...

    sql, parameters = manager.insert_statement(renamed_long_ago)
    with sqlite3.connect(terminal.database) as connection:
        connection.execute(sql, parameters)
    connection.close()
    check = checks(terminal)["functions"]
    assert not check["ok"]
    assert "jobs:renamed_long_ago (1 waiting)" in check["found"]
    terminal.ask("cancel", "--task", "jobs:renamed_long_ago", "--yes")
    assert checks(terminal, code=0)["functions"]["ok"]


def _doctor_names_who_pins_the_log(terminal: Terminal) -> None:
    """A read transaction that somebody left open; the log behind it grows and cannot be cut."""
    program = (
        "import sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "connection.execute('BEGIN')\n"
        "connection.execute('SELECT count(*) FROM taskmanager_tasks').fetchone()\n"
        "print('reading', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(terminal.database)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as reader:  # fmt: skip
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reading\n"
        with sqlite3.connect(terminal.database) as connection:
            connection.execute("CREATE TABLE much (data BLOB)")
            connection.execute("INSERT INTO much VALUES (zeroblob(6000000))")
        connection.close()
        check = checks(terminal)["log"]
        assert not check["ok"]
        assert f"pinned by process {reader.pid} (" in check["found"]
        reader.communicate()
    assert checks(terminal, code=0)["log"]["ok"]


def test_commands_find_what_an_application_leaves_when_it_dies(tmp_path: Path) -> None:
    """`doctor` sees it, `show` says what is to come, `recover` does it, and who lives is left alone."""
    terminal = Terminal(tmp_path)
    with application(tmp_path) as (living, _), application(tmp_path, "first") as (dying, _):
        living.send_signal(signal.SIGSTOP)  # it would notice the death at once, and leave nothing to do
        dying.send_signal(signal.SIGKILL)
        dying.wait()
        assert not checks(terminal)["claims"]["ok"]
        unsafe = terminal.by_argument("jobs:wait", 1)
        (safe,) = terminal.by_name("jobs:wait_safely")
        assert "makes it FAILED" in terminal.ask("show", unsafe["task_id"])["next"]["text"]
        recovered = terminal.ask("recover")
        assert recovered["dead_instances"] == 1
        assert recovered["recovered"] == 5
        assert terminal.ask("show", unsafe["task_id"])["error_code"] == "WORKER_CRASHED"
        living.send_signal(signal.SIGCONT)
        again = terminal.until(safe["task_id"], ended_as("RUNNING"))
        assert (again["start_count"], again["worker_pid"]) == (2, living.pid)
        untouched = terminal.by_argument("jobs:wait", 9)
        assert (untouched["status"], untouched["start_count"]) == ("RUNNING", 1)
        assert terminal.ask("recover")["recovered"] == 0
        assert checks(terminal, code=0)["claims"]["ok"]


def test_commands_work_on_the_file_of_a_crash(tmp_path: Path) -> None:
    """Nobody runs, and the log is not in the file yet: looking leaves both as they are, acting goes through it."""
    terminal = Terminal(tmp_path)
    with application(tmp_path) as (dying, _):
        dying.send_signal(signal.SIGKILL)
        dying.wait()
        before = digest(tmp_path)
        (record,) = terminal.by_name("jobs:wait")
        assert record["status"] == "RUNNING"
        assert "its instance is dead" in terminal.ask("show", record["task_id"])["next"]["text"]
        assert "held by dead instances: 1 task;" in taskmanager("list", "--db", terminal.database).out
        assert digest(tmp_path) == before
        (answer,) = terminal.ask("cancel", record["task_id"])
        assert answer["outcome"] == "asked"
        assert terminal.ask("recover")["tasks"] == [
            {
                "task_id": record["task_id"],
                "task_name": "jobs:wait",
                "status": "CANCELLED",
                "error_code": "TASK_CANCELLED",
            }
        ]
        assert not list(tmp_path.glob("*.lock"))
