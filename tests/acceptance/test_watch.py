"""`taskmanager watch` and `status` as a person has them: in a terminal, beside an application, and after its crash."""

import asyncio
import contextlib
import json
import os
import re
import select
import signal
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from taskmanager import TaskManager

fcntl, pty, termios = (pytest.importorskip(name) for name in ("fcntl", "pty", "termios"))

ROOT: Final = Path(__file__).resolve().parents[2]
PATIENCE_S: Final = 30.0
ENTER_SCREEN, LEAVE_SCREEN, SHOW_CURSOR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"
COLOURS: Final = re.compile(rb"\x1b\[[0-9;]*(3[0-7]|9[0-7]|38;5)[0-9;]*m")
# The leader of a session takes the terminal that it has as stdin for its own: then keys become signals.
IN_A_TERMINAL: Final = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "taskmanager", *sys.argv[1:]])
"""
PROGRAM: Final = """
import asyncio
from taskmanager import TaskManager, current_task

manager = TaskManager("jobs.db", instance_name="web")

@manager.task(name="reports:build")
async def build() -> None:
    current_task().progress(3, 4, "page 3 of 4")
    await asyncio.sleep(3600)

@manager.task(name="orders:ship", persist=True)
async def ship() -> None:
    await asyncio.sleep(3600)

@manager.task(name="mail:send", persist=True)
async def send() -> None:
    raise ConnectionError("refused")

async def main() -> None:
    build.enqueue()
    await ship.enqueue().saved()
    await send.enqueue().result()
    print("ready", flush=True)
    await asyncio.sleep(3600)

manager.run(main)
"""


def environment(**changes: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    return {**inherited, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", **changes}


def run(folder: Path, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "taskmanager", *arguments],
        cwd=folder, env=environment(**changes), text=True, capture_output=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip


class Terminal:
    """A pseudo-terminal with a command in it, and everything that the command has written."""

    def __init__(self, folder: Path, *arguments: str, size: tuple[int, int] = (24, 80), **changes: str) -> None:
        self._master, slave = pty.openpty()
        self.resize(*size)
        self.settings = termios.tcgetattr(slave)
        self.process = subprocess.Popen(
            [sys.executable, "-c", IN_A_TERMINAL, *arguments],
            cwd=folder, env=environment(**changes), stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
        )  # fmt: skip
        self._slave = slave
        self.written = b""

    def resize(self, rows: int, columns: int) -> None:
        """The kernel tells the command with a SIGWINCH."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def read_until(self, words: bytes) -> bytes:
        """What was written up to these words, and a little more."""
        start, deadline = len(self.written), time.monotonic() + PATIENCE_S
        while words not in self.written[start:]:
            assert self._read(deadline), f"{words!r} never came:\n{self.written[start:].decode()}"
        return self.written[start:]

    def end(self) -> int:
        """Read to the end: the exit code."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            self._read(min(deadline, time.monotonic() + 0.1))
            assert time.monotonic() < deadline, self.written.decode()
        while self._read(time.monotonic() + 0.05):
            pass
        return self.process.returncode

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return False
        self.written += os.read(self._master, 65_536)
        return True

    @property
    def is_restored(self) -> bool:
        """Keys are echoed and lines edited as before, the first screen is back, and the cursor."""
        given_back = self.written.rfind(LEAVE_SCREEN) > self.written.rfind(ENTER_SCREEN)
        return termios.tcgetattr(self._slave) == self.settings and given_back and SHOW_CURSOR in self.written

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)


@contextlib.contextmanager
def terminal(folder: Path, *arguments: str, **options: Any) -> Iterator[Terminal]:
    made = Terminal(folder, *arguments, **options)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, "subprocess.Popen[str]"]]:
    """A running application with a task in memory that reports progress, a persisted one, and a failure."""
    folder = tmp_path_factory.mktemp("application")
    (folder / "jobs.py").write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, "jobs.py"],
        cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        wait_for_progress(folder)
        yield folder, process
        process.kill()


def wait_for_progress(folder: Path) -> None:
    """What only memory knows is in the file once a second."""
    deadline = time.monotonic() + PATIENCE_S
    while "reports:build" not in run(folder, "status", "--db", "jobs.db", "--json").stdout:
        assert time.monotonic() < deadline


Application = tuple[Path, "subprocess.Popen[str]"]


def test_watch_shows_progress_follows_the_size_and_leaves_on_q(application: Application) -> None:
    """The terminal is given back as it was."""
    with terminal(application[0], "watch", "--db", "jobs.db") as window:
        first = window.read_until(b"q quits")
        assert ENTER_SCREEN in first
        text = first.decode()
        assert "reports:build" in text
        assert "75%" in text
        assert "page 3 of 4" in text
        assert "ConnectionError: r" in text
        assert "schema" not in text
        window.resize(40, 130)
        assert "ConnectionError: refused" in window.read_until(b"schema").decode()
        window.press(b"\x1a")
        window.read_until(LEAVE_SCREEN)
        _, status = os.waitpid(window.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert window.is_restored
        window.process.send_signal(signal.SIGCONT)
        assert "reports:build" in window.read_until(b"q quits").decode(), "at once, though nothing has changed"
        window.press(b"x")
        window.press(b"q")
        assert window.end() == 0
        assert window.is_restored


@pytest.mark.parametrize(("stop", "code"), [(b"\x03", 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"])
def test_watch_leaves_in_order_when_it_is_interrupted(
    application: Application, stop: bytes | signal.Signals, code: int
) -> None:
    """A terminal that stays without echo is what people remember."""
    with terminal(application[0], "watch", "--db", "jobs.db") as window:
        window.read_until(b"q quits")
        if isinstance(stop, bytes):
            window.press(stop)
        else:
            window.process.send_signal(stop)
        assert window.end() == code
        assert window.is_restored
        assert b"Traceback" not in window.written


@pytest.mark.parametrize(
    ("changes", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_status_on_a_terminal_has_colours_where_they_are_wanted(
    application: Application, changes: dict[str, str], is_coloured: bool
) -> None:
    """https://no-color.org; it fits the window, with a line left for the prompt."""
    with terminal(application[0], "status", "--db", "jobs.db", **changes) as window:
        assert window.end() == 0
        assert bool(COLOURS.search(window.written)) == is_coloured
        assert len(window.written.decode().splitlines()) <= 23


def test_in_a_pipe_status_and_watch_answer_once_in_plain_text(application: Application) -> None:
    """For grep and for logs; `--json` for programs."""
    for command in ("status", "watch"):
        answer = run(application[0], command, "--db", "jobs.db")
        assert (answer.returncode, answer.stderr) == (0, "")
        assert "\x1b" not in answer.stdout
        assert "mail:send" in answer.stdout
    document = json.loads(run(application[0], "watch", "--db", "jobs.db", "--json").stdout)
    assert document["counts"]["RUNNING"] == 2
    assert {task["task_name"] for task in document["running"]} == {"reports:build", "orders:ship"}
    assert [each["health"] for each in document["instances"]] == ["alive"]
    assert document["problems"] == []


def test_a_file_that_is_no_database_is_one_line_and_the_screen_is_not_taken(tmp_path: Path) -> None:
    """Else the reason would be gone with the screen."""
    (tmp_path / "text.db").write_text("no database\n" * 100)
    with terminal(tmp_path, "watch", "--db", "text.db") as window:
        assert window.end() == 1
        assert ENTER_SCREEN not in window.written
        assert window.written.startswith(b"taskmanager.StoreError: text.db is not a database")
        assert len(window.written.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["text.db"]


def test_a_key_is_heard_while_another_program_has_locked_the_file(tmp_path: Path) -> None:
    """The screen says what it waits for, and that it tries again."""
    database = tmp_path / "tasks.db"

    async def make() -> None:
        async with TaskManager(database):
            pass

    asyncio.run(make())
    with terminal(tmp_path, "watch") as window:
        window.read_until(b"q quits")
        other = sqlite3.connect(database, isolation_level=None)
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("PRAGMA user_version = 1")
        assert "database is locked" in window.read_until(b"trying again").decode()
        window.press(b"q")
        assert window.end() == 0
        other.close()


def test_after_a_crash_status_says_what_the_dead_instance_holds(application: Application) -> None:
    """The last test with this application: it is killed. Nobody took over, so the row is still RUNNING."""
    folder, process = application
    process.kill()
    process.wait()
    answer = run(folder, "status", "--db", "jobs.db", COLUMNS="80")
    assert answer.returncode == 0
    assert re.search(r"! web \(pid \d+\) died \d+s ago and holds 1 unfinished task\n", answer.stdout)
    assert "taskmanager recover" in answer.stdout
    assert re.search(r"web \d+ .* dead, holds 1", answer.stdout)
