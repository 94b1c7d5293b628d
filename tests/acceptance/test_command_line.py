"""The `taskmanager` command from outside: exit codes, and what is said where."""

import os
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tests.unit.command_line import digest, taskmanager, write_tasks

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

MORE: Final = """
import subprocess

@manager.task(persist=True, retries=1, retry_delay=0)
async def fail() -> None:
    raise ValueError("no")

@manager.task(persist=True, requeue_on_interrupt=True)
async def repeatable() -> None:
    await asyncio.sleep(3600)

@manager.task(persist=True)
async def delicate() -> None:
    subprocess.run(["echo", "a child prints too"], check=True)
    await asyncio.sleep(3600)

@manager.task
async def tell() -> None:
    while [each.status for each in begun] != ["RUNNING", "RUNNING", "FAILED"]:
        await asyncio.sleep(0.01)
    print("all have begun", flush=True)

begun = [repeatable.enqueue(), delicate.enqueue(), fail.enqueue()]
fail.with_options(delay=3600).enqueue()
tell.enqueue()
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


class RunDocument(msgspec.Struct, forbid_unknown_fields=True):
    """What `run --json` says at its end."""

    instance_id: str
    signal: str | None
    started_at: datetime
    ended_at: datetime
    duration_s: float
    completed_count: int
    failed_count: int
    cancelled_count: int
    expired_count: int
    interrupted_count: int
    retry_count: int
    requeued_count: int
    still_running_count: int
    waiting_count: int | None
    is_saved: bool


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_run_hosts_a_manager_until_ctrl_c(jobs: Path) -> None:
    """It stops in order; the exit code tells a Ctrl-C from a stop by the system."""
    with subprocess.Popen(
        **command(jobs, "run", "jobs:manager"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "hello world\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert not list(jobs.glob("*.lock"))


PRODUCER = """
from taskmanager import TaskManager

manager = TaskManager("tasks.db", run_queues=())

@manager.task(persist=True)
async def greet(name: str) -> None:
    print("hello", name, flush=True)

if __name__ == "__main__":
    async def main() -> None:
        for queue_name in ("mail", "reports"):
            await greet.with_options(queue_name=queue_name).enqueue(queue_name).saved()

    manager.run(main)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_run_says_that_the_program_ran_while_it_was_imported(tmp_path: Path) -> None:
    """Its `main` would run at each start of the worker, and enqueue once more what it enqueues."""
    (tmp_path / "app.py").write_text(
        "from taskmanager import TaskManager\n"
        "manager = TaskManager('tasks.db')\n"
        "async def main() -> None:\n"
        "    print('main', flush=True)\n"
        "manager.run(main)\n"
    )
    with subprocess.Popen(
        **command(tmp_path, "run", "app:manager"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        lines = []
        while not lines or "running app:manager" not in lines[-1]:
            lines.append(process.stderr.readline())
            assert lines[-1], lines
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
    assert any("importing app has run its manager already" in line for line in lines), lines


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_run_is_a_worker_whatever_the_manager_says(tmp_path: Path) -> None:
    """One manager for both: the application only enqueues, the worker runs every queue, or those that are named."""
    (tmp_path / "web.py").write_text(PRODUCER)
    produced = subprocess.run(
        [sys.executable, "web.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (produced.returncode, produced.stdout) == (0, ""), produced.stderr
    for options, greeting in ((["--queue", "reports", "--queue", "odd"], "hello reports\n"), ([], "hello mail\n")):
        with subprocess.Popen(
            **command(tmp_path, "run", "web:manager", *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == greeting
            process.send_signal(signal.SIGTERM)
            out, errors = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, out) == (0, ""), errors
        assert f"running {'queue odd, reports of ' if options else ''}web:manager on " in errors
    refused = run(tmp_path, "run", "web:manager", "--queue", "")
    assert (refused.returncode, refused.stderr.count("queue_name must be")) == (2, 1)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_run_tells_in_json_how_it_went(jobs: Path) -> None:
    """One document on stdout when it ends, and nothing else there: what the user's code and its children print goes
    to stderr.
    """
    with (jobs / "jobs.py").open("a") as program:
        program.write(MORE)
    with subprocess.Popen(
        **command(jobs, "run", "jobs:manager", "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        errors = ""
        while "all have begun" not in errors:
            line = process.stderr.readline()
            assert line, errors
            errors += line
        process.send_signal(signal.SIGTERM)
        out, rest = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors + rest
    ended = msgspec.json.decode(out, type=RunDocument)
    assert "hello world\n" in errors
    assert "a child prints too\n" in errors
    counts = {name: value for name, value in msgspec.structs.asdict(ended).items() if name.endswith("_count") and value}
    assert counts == {
        "completed_count": 2, "failed_count": 1, "retry_count": 1,
        "interrupted_count": 1, "requeued_count": 1, "waiting_count": 2,
    }  # fmt: skip
    assert (ended.signal, ended.is_saved) == ("SIGTERM", True)
    assert not list(jobs.glob("*.lock"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_stdout_that_takes_nothing_is_one_line(tmp_path: Path) -> None:
    """A full disk under `>file`, a closed stream: no traceback, and exit code 1 where the answer is lost."""
    write_tasks(tmp_path / "tasks.db")
    for arguments in (["list"], ["status", "--json"], ["--help"]):
        with Path("/dev/full").open("w") as full:
            refused = subprocess.run(
                **command(tmp_path, *arguments), stdout=full, stderr=subprocess.PIPE, check=False, timeout=PATIENCE_S
            )
        assert (refused.returncode, refused.stderr) == (
            1,
            "taskmanager: stdout cannot be written: No space left on device\n",
        )
    closed = subprocess.run(
        ["sh", "-c", 'exec "$0" -m taskmanager list >&- <&-', sys.executable],
        **{key: value for key, value in command(tmp_path).items() if key != "args"},
        stderr=subprocess.PIPE, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert (closed.returncode, closed.stderr) == (0, "")


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
        ("app/jobs.py:manager", 2, "write that of its module, app.jobs:manager"),
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


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("m = TaskManager('jobs.db', max_workers=3)", "TypeError: TaskManager() has no option 'max_workers'; did you "),
        ("m = TaskManager('jobs.db', threads=0)", "taskmanager.ConfigurationError: TaskManager: threads must be "),
        ("m = TaskManager('no/jobs.db')", "taskmanager.StoreUnavailable: {folder}/no/jobs.db cannot be opened: "),
    ],
)
def test_run_says_in_one_line_why_it_cannot_start(tmp_path: Path, text: str, line: str) -> None:
    """TYPE: what, where, what to do: a refused declaration names its line of the module, a refused file its path."""
    (tmp_path / "jobs.py").write_text(f"from taskmanager import TaskManager\n{text}\n")
    refused = run(tmp_path, "run", "jobs:m")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith(line.format(folder=tmp_path))
    assert refused.stderr.count("\n") == 1
    assert "jobs.db" in refused.stderr or refused.stderr.endswith("jobs.py, line 2)\n")


@pytest.mark.parametrize("arguments", [[], ["no-such-command"], ["demo", "--no-such-option"], ["run"]])
def test_wrong_usage_ends_with_2(arguments: list[str]) -> None:
    """Nothing is written to stdout, which may be a pipe into another program."""
    refused = taskmanager(*arguments)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["run", "-h"], ["--version"]])
def test_help_is_an_answer(arguments: list[str]) -> None:
    """It goes to stdout and ends with 0."""
    shown = taskmanager(*arguments)
    assert (shown.code, shown.err) == (0, "")
    assert shown.out
