"""`manager.run(main)`: whatever `main` does with a signal, or without one, the manager stops in order and in time."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from taskmanager import ConfigurationError, TaskManager

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(sys.platform == "win32", reason="the signals are POSIX ones"),
]


@pytest.mark.parametrize("drain_timeout", [0.0, 600.0])
def test_a_main_that_swallows_its_cancellation_holds_up_nobody(drain_timeout: float) -> None:
    """It has the drain time, or until the second signal; else a server could be ended by SIGKILL only."""
    manager = TaskManager(None, drain_timeout=drain_timeout)
    cancels = 0

    async def main() -> None:
        nonlocal cancels
        os.kill(os.getpid(), signal.SIGTERM)
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancels += 1
                if drain_timeout:
                    os.kill(os.getpid(), signal.SIGTERM)

    assert manager.run(main) is None
    assert cancels == 1
    assert manager.status().state == "stopped"


def test_a_main_may_clean_up_with_tasks_of_its_manager() -> None:
    """The manager runs until `main` has ended, and what it returns then is returned."""
    manager = TaskManager(None)

    @manager.task
    async def tidy(label: str) -> str:
        return label

    async def main() -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return await tidy.enqueue("tidied")
        return ""

    assert manager.run(main) == "tidied"


def test_a_main_that_was_cancelled_by_itself_does_not_pass_for_one_that_ended() -> None:
    """Nobody has asked it to end, so nobody expects that; `asyncio.run` raises it as well."""
    manager = TaskManager(None)

    async def main() -> str:
        raise asyncio.CancelledError("by a library")

    with pytest.raises(asyncio.CancelledError):
        manager.run(main)
    assert manager.status().state == "stopped"


@pytest.mark.parametrize("exc", [SystemExit(3), KeyboardInterrupt(), ValueError("main")])
def test_a_main_that_ends_the_process_interrupts_what_runs(tmp_path: Path, exc: BaseException) -> None:
    """`sys.exit()` in `main` is a stop like any other: interruption is not failure."""
    manager = TaskManager(tmp_path / "t.db", drain_timeout=0.0)

    @manager.task(persist=True, requeue_on_interrupt=True)
    async def work() -> None:
        running.set()
        await asyncio.Event().wait()

    async def main() -> None:
        work.enqueue()
        await running.wait()
        raise exc

    running = asyncio.Event()
    with pytest.raises(type(exc)):
        manager.run(main)
    connection = sqlite3.connect(tmp_path / "t.db")
    assert connection.execute("SELECT status, claimed_by_worker_id FROM taskmanager_tasks").fetchall() == [
        ("PENDING", None)
    ]
    connection.close()


@pytest.mark.parametrize(("is_asked_before", "status"), [(True, 0), (False, -signal.SIGTERM)])
def test_who_has_stopped_in_order_is_not_killed_by_being_asked_again(*, is_asked_before: bool, status: int) -> None:
    """A supervisor may send its signal to all processes of a service, and repeat it: exit status 0 says all is saved.

    A program that nobody has asked to end, and that goes on after `run`, has its signals as it had them before.
    """
    program = f"""
import asyncio, os, signal
from taskmanager import TaskManager

async def main() -> None:
    if {is_asked_before}:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

TaskManager(None).run(main)
os.kill(os.getpid(), signal.SIGTERM)
raise SystemExit(7)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == status


def test_only_the_last_run_of_a_process_says_how_it_is_ended_afterwards() -> None:
    """One that was asked to end and stopped in order says nothing of the one after it."""
    program = """
import asyncio, os, signal
from taskmanager import TaskManager

async def main(is_asked: bool) -> None:
    if is_asked:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

TaskManager(None).run(lambda: main(True))
TaskManager(None).run(lambda: main(False))
os.kill(os.getpid(), signal.SIGTERM)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGTERM


def test_a_start_outside_of_an_event_loop_of_asyncio_says_what_it_needs() -> None:
    """Trio runs coroutines too, and so does the test client of Starlette with that backend."""
    manager = TaskManager(None)
    with pytest.raises(ConfigurationError, match="needs an event loop of asyncio"):
        manager.start().send(None)
    assert manager.status().state == "held until start"


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (".", "taskmanager.StoreError: {folder} is a directory; give the path of a file in it"),
        ("text.db", "taskmanager.StoreError: {folder}/text.db cannot be used (file is not a database): "),
        ("no/such.db", "taskmanager.StoreUnavailable: {folder}/no/such.db cannot be opened: the directory "),
        ("a\nb/c.db", "taskmanager.StoreUnavailable: {folder}/a b/c.db cannot be opened: the directory "),
    ],
)
@pytest.mark.parametrize("logs", ["", "import logging; logging.basicConfig()"])
def test_a_run_that_cannot_start_says_one_line(tmp_path: Path, place: str, line: str, logs: str) -> None:
    """TYPE: what, where, what to do. Frames of a start say nothing to whoever reads the log of a service."""
    (tmp_path / "text.db").write_text("this is a text, and longer than a hundred bytes " * 5)
    program = f"""
from taskmanager import TaskManager
{logs}
async def main() -> None: print("started")
TaskManager({place!r}).run(main)
"""
    ran = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith(line.format(folder=tmp_path))
    assert ran.stderr.count("\n") == 1


def test_an_error_of_main_keeps_its_traceback() -> None:
    """The one line is for a start that failed; of the program itself the frames are what its author needs."""
    manager = TaskManager(None)

    async def main() -> None:
        raise ConfigurationError("of main")

    with pytest.raises(ConfigurationError, match="of main"):
        manager.run(main)
