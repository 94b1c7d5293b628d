"""`taskmanager demo`, from outside: real processes, and plain `sqlite3` as the judge of what they left behind.

What is refused before a process is started is asked for in this one.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from tests.unit.command_line import taskmanager

DB: Final = "taskmanager-demo.db"
PATIENCE_S: Final = 60.0
CONTENT: Final = "def f(x):\n    return [x, x + 1, {x: x}]\n" * 200

Finished = tuple[Path, subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals, and names that are bytes")


def make_files(root: Path) -> Path:
    """What directories hold: good files, one that does not parse, a strange name, links, a pipe."""
    (root / "deep" / "er").mkdir(parents=True)
    for number in range(60):
        (root / f"good_{number:02}.py").write_text(CONTENT)
        (root / "deep" / f"text_{number:02}.txt").write_text(f"{number}\n" * number)
    (root / "bad.py").write_text("def f(:\n")
    (root / "deep" / "er" / "new\nline [red].txt").write_text("x")
    (root / "link.py").symlink_to("good_00.py")
    (root / "dangling").symlink_to("nowhere")
    (root / "deep" / "loop").symlink_to("..")
    os.mkfifo(root / "pipe")
    (root / ".hidden").mkdir()
    (root / ".hidden" / "secret").write_text("x")
    return root


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return make_files(tmp_path / "files")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The database of a whole demo, and what it said."""
    folder = tmp_path_factory.mktemp("demo")
    ended = run(folder, "demo", make_files(folder / "files"))
    return folder / DB, ended


EXPECTED_FILES: Final = 60 + 60 + 3
"""Good ones, texts, and: bad.py, the one with the strange name, the link to a file."""


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "taskmanager", *map(str, arguments)]


def environment(folder: Path) -> dict[str, Any]:
    return {
        "cwd": folder,
        "env": {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        "text": True,
        "encoding": "utf-8",
    }


def run(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), **environment(folder), capture_output=True, check=False, timeout=PATIENCE_S
    )


def query(database: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(sql).fetchall()


def statuses(database: Path) -> dict[str, int]:
    return dict(query(database, "SELECT status, count(*) FROM taskmanager_tasks GROUP BY status"))


def attempts(database: Path) -> dict[str, list[tuple[int, str]]]:
    """The numbers and outcomes of the attempts of each file, in order."""
    found: dict[str, list[tuple[int, str]]] = {}
    for key, number, outcome in query(
        database,
        "SELECT t.idempotency_key, a.attempt, a.outcome FROM taskmanager_tasks AS t "
        "JOIN taskmanager_task_attempts AS a ON a.task_id = t.id ORDER BY a.attempt",
    ):
        found.setdefault(key, []).append((number, outcome))
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def ended_count(database: Path) -> int:
    try:
        return sum(count for status, count in statuses(database).items() if status in ("COMPLETED", "FAILED"))
    except sqlite3.OperationalError:  # not there yet
        return 0


def demo_until(folder: Path, ended: int, *arguments: str | Path) -> subprocess.Popen[str]:
    """A demo that is running and has so many files done."""
    process = subprocess.Popen(
        command("demo", *arguments), **environment(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    wait_until(lambda: ended_count(folder / DB) >= ended)
    return process


@pytest.mark.req("PR-17", "PR-20", "PR-22", "PR-34", "PR-44", "PR-50")
def test_every_file_has_exactly_one_task_after_a_sigterm_in_the_middle(finished: Finished) -> None:
    """The first promise: nothing accepted is lost at a restart, and nothing is done twice that was done."""
    database, ended = finished
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout + ended.stderr
    assert "SIGTERM in the middle" in ended.stdout
    assert ended.stdout.rstrip().endswith(f"taskmanager status --db {DB}")
    assert f"{EXPECTED_FILES} files" in ended.stdout
    assert statuses(database) == {"COMPLETED": EXPECTED_FILES - 1, "FAILED": 1}
    (keys,) = query(database, "SELECT count(DISTINCT idempotency_key) FROM taskmanager_tasks")
    assert keys == (EXPECTED_FILES,)
    for key, outcomes in attempts(database).items():
        repeatable = [outcome for _, outcome in outcomes[:-1]]
        allowed = ("FAILED", "INTERRUPTED") if key == "bad.py" else ("INTERRUPTED",)
        assert all(outcome in allowed for outcome in repeatable), (key, outcomes)


@pytest.mark.req("PR-48")
def test_a_file_that_does_not_parse_is_retried_by_policy_and_then_failed(finished: Finished) -> None:
    """A failure is shown by name, and the record says why."""
    database, ended = finished
    assert "SYNTAX_ERROR  bad.py" in ended.stdout
    ((status, code, retry_count, reason),) = query(
        database,
        "SELECT status, error_code, retry_count, failed_reason FROM taskmanager_tasks WHERE idempotency_key = 'bad.py'",
    )
    assert (status, code, retry_count) == ("FAILED", "SYNTAX_ERROR", 2)
    assert "SyntaxError" in reason
    assert [outcome for _, outcome in attempts(database)["bad.py"] if outcome == "FAILED"] == ["FAILED"] * 3


@pytest.mark.req("PR-33", "PR-34", "PR-50")
def test_ctrl_c_stops_in_order_and_resume_goes_on(files: Path, tmp_path: Path) -> None:
    """What was done before the Ctrl-C is not done again; what was not is."""
    process = demo_until(tmp_path, 5, files)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, output
    assert "taskmanager demo --resume" in output
    before = statuses(tmp_path / DB)
    assert set(before) <= {"PENDING", "COMPLETED", "FAILED"}
    done = {
        key: tries for key, tries in attempts(tmp_path / DB).items() if tries[-1][1] == "COMPLETED"
    }  # fmt: skip

    resumed = run(tmp_path, "demo", "--resume")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert statuses(tmp_path / DB) == {"COMPLETED": EXPECTED_FILES - 1, "FAILED": 1}
    after = attempts(tmp_path / DB)
    assert {key: after[key] for key in done} == done


def test_a_demo_that_is_killed_takes_its_program_along(files: Path, tmp_path: Path) -> None:
    """No process is left behind, and its tasks go back in order."""
    process = demo_until(tmp_path, 5, files)
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    wait_until(lambda: not list(tmp_path.glob(f"{DB}.*.lock")))
    assert set(statuses(tmp_path / DB)) <= {"PENDING", "COMPLETED", "FAILED"}


def test_an_earlier_demo_is_started_anew_after_saying_so(tmp_path: Path) -> None:
    """Two demos in a row are two demos. `taskmanager demo .` must not hash what it writes, or what the first has."""
    (tmp_path / "one.txt").write_text("1\n")
    assert run(tmp_path, "demo", ".").returncode == 0
    tasks = "SELECT idempotency_key, created_at FROM taskmanager_tasks"
    ((first_key, first),) = query(tmp_path / DB, tasks)
    again = run(tmp_path, "demo", ".", "--json")
    assert "started anew" in again.stderr
    assert json.loads(again.stdout)["completed"] == 1
    ((second_key, second),) = query(tmp_path / DB, tasks)
    assert (first_key, second_key) == ("one.txt", "one.txt")
    assert second > first


def test_a_database_that_is_not_a_demos_is_left_alone(tmp_path: Path) -> None:
    """`--db` may name any file by mistake; a file of somebody else's is never removed."""
    foreign = tmp_path / "mine.db"
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE precious (x)")
    before = foreign.read_bytes()
    for database in (foreign, Path(__file__)):
        refused = taskmanager("demo", tmp_path, "--db", database)
        assert (refused.code, refused.out, len(refused.err.splitlines())) == (1, "", 1)
    assert foreign.read_bytes() == before


@pytest.mark.parametrize("name", ["nothing", "file.txt"])
def test_a_path_that_is_no_directory_is_a_usage_error_in_one_line(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is made, and the line says what is wrong."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.txt").write_text("x")
    refused = taskmanager("demo", name)
    assert (refused.code, refused.out) == (2, "")
    assert "is not a directory" in refused.err
    assert len(refused.err.splitlines()) == 1
    assert not (tmp_path / DB).exists()


def test_an_empty_directory_is_done_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every one of no files is accounted for."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    ended = taskmanager("demo", "empty")
    assert ended.code == 0
    assert "no files" in ended.out


def test_resume_without_a_database_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to go on with."""
    monkeypatch.chdir(tmp_path)
    refused = taskmanager("demo", "--resume")
    assert (refused.code, len(refused.err.splitlines())) == (1, 1)


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems take text only")
def test_a_name_that_is_no_text_is_a_file_like_others(tmp_path: Path) -> None:
    """Linux file names are bytes; half of an umlaut in one must not stop the other files."""
    root = tmp_path / os.fsdecode(b"dir-\xe4")
    root.mkdir()
    (root / os.fsdecode(b"\xff.py")).write_text("x = 1\n")
    (root / os.fsdecode(b"\xfe.txt")).write_text("x")
    ended = run(tmp_path, "demo", root)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert statuses(tmp_path / DB) == {"COMPLETED": 2}


def test_a_file_that_vanished_after_it_was_listed_is_failed(tmp_path: Path) -> None:
    """The task says so; nobody waits for the file, and nobody pretends that it was read."""
    program = [sys.executable, "-m", "taskmanager.cli.demo_tasks", str(tmp_path / DB), str(tmp_path)]
    with (tmp_path / "program.log").open("wb") as log:
        process = subprocess.Popen(
            program, cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=log, stderr=log
        )
        assert process.stdin is not None
        process.stdin.write(b'["gone.txt", "gone.py"]\n')
        process.stdin.flush()
        assert process.wait(PATIENCE_S) == 0
        process.stdin.close()
    rows = query(tmp_path / DB, "SELECT status, error_code, retry_count FROM taskmanager_tasks")
    assert rows == [("FAILED", "FILE_VANISHED", 2)] * 2
