"""The `taskmanager` command from outside: exit codes, and what is said where."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.unit.command_line import digest, write_tasks

PATIENCE_S: Final = 60.0
PROGRAM: Final = """
import asyncio
from taskmanager import TaskManager

manager = TaskManager("jobs.db")
not_one = 3

@manager.task(persist=True)
async def greet(name: str) -> None:
    print("hello", name, flush=True)

greet.enqueue("world")
"""


def command(folder: Path, *arguments: str) -> dict[str, Any]:
    return {
        "args": [sys.executable, "-m", "taskmanager", *arguments],
        "cwd": folder,
        "env": {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        "text": True,
    }


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(**command(folder, *arguments), capture_output=True, check=False, timeout=PATIENCE_S)


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """A directory with a module `jobs` that holds a manager."""
    (tmp_path / "jobs.py").write_text(PROGRAM)
    return tmp_path


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_run_hosts_a_manager_until_a_signal(jobs: Path, number: signal.Signals, code: int) -> None:
    """It stops in order on both signals; the exit code tells a Ctrl-C from a stop by the system."""
    with subprocess.Popen(
        **command(jobs, "run", "jobs:manager"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "hello world\n"
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    assert not list(jobs.glob("*.lock"))


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_at_a_question_is_no_answer(tmp_path: Path) -> None:
    """Exit code 130, no traceback, and nothing is changed."""
    database = tmp_path / "tasks.db"
    write_tasks(database)
    before = digest(tmp_path)
    with subprocess.Popen(
        **command(tmp_path, "purge"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        question = process.stderr.read(len("delete all 3 records"))
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=PATIENCE_S)
    assert (question, process.returncode) == ("delete all 3 records", 130)
    assert "Traceback" not in rest
    assert digest(tmp_path) == before


@pytest.mark.parametrize(
    ("target", "code", "said"),
    [
        ("jobs", 2, "MODULE:MANAGER"),
        ("jobs:nothing", 1, "did you mean jobs:manager?"),
        ("jobs:not_one", 1, "did you mean jobs:manager?"),
        ("no_such_module:manager", 1, "no module 'no_such_module'"),
    ],
)
def test_run_says_which_part_of_the_name_is_wrong(jobs: Path, target: str, code: int, said: str) -> None:
    """The last line is ours, and says what to do."""
    refused = run(jobs, "run", target)
    assert refused.returncode == code
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr


def test_run_shows_where_the_module_failed(tmp_path: Path) -> None:
    """The user's own frames only, and one line of ours."""
    (tmp_path / "broken.py").write_text("1 / 0\n")
    refused = run(tmp_path, "run", "broken:manager")
    assert refused.returncode == 1
    assert "broken.py" in refused.stderr
    assert "importlib" not in refused.stderr
    assert (
        refused.stderr.splitlines()[-1] == "taskmanager: importing broken failed: ZeroDivisionError: division by zero"
    )


@pytest.mark.parametrize("arguments", [[], ["no-such-command"], ["demo", "--no-such-option"], ["run"]])
def test_wrong_usage_ends_with_2(tmp_path: Path, arguments: list[str]) -> None:
    """Nothing is written to stdout, which may be a pipe into another program."""
    refused = run(tmp_path, *arguments)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["run", "-h"], ["--version"]])
def test_help_is_done_and_fits_eighty_columns(tmp_path: Path, arguments: list[str]) -> None:
    """Help is an answer, so it goes to stdout and ends with 0."""
    shown = run(tmp_path, *arguments)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert max(len(line) for line in shown.stdout.splitlines()) <= 88
