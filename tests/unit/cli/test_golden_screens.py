"""Every screen and every JSON document over one rich file, compared byte for byte with what is stored beside the tests.

After a change that is meant: `UPDATE_SCREENS=1 pytest tests/unit/cli/test_golden_screens.py`, then read the difference.
"""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest

from taskmanager.console.observer import look
from taskmanager.console.terminal.screen import Focus, screen_lines, watch_lines
from taskmanager.model.clock import SystemClock
from taskmanager.store.file_place import FilePlace
from taskmanager.store.sqlite.reading import open_read_only
from taskmanager.store.sqlite.session import SqliteSession
from taskmanager.store.statistics import FileSize
from tests.unit.cli import rich_file
from tests.unit.cli.rich_file import NOW, task_id
from tests.unit.command_line import taskmanager

GOLDEN: Final = Path(__file__).parents[1] / "golden"
GIGABYTE: Final = 1_000_000_000
MADE_HERE: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
"""Ids that a command has made itself, beside those of the file."""
FOLDER_KIND: Final = re.compile(r"[\w.]+ at /\S*?(?=[\s\"])")


@pytest.fixture
def rich(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the file, at its instant, on a disk of a known size."""
    rich_file.write(tmp_path / "tasks.db")
    monkeypatch.chdir(tmp_path)
    frozen(monkeypatch)
    with rich_file.living(tmp_path / "tasks.db"):
        yield tmp_path


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a file without a task."""
    rich_file.write_empty(tmp_path / "tasks.db")
    monkeypatch.chdir(tmp_path)
    frozen(monkeypatch)
    return tmp_path


def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the clock stand still, and the disk say the same on every machine."""
    monkeypatch.setattr(SystemClock, "now_us", lambda self: NOW)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=120 * GIGABYTE))
    volume = SimpleNamespace(f_flag=0, f_files=0, f_favail=0, f_bavail=1 << 20, f_frsize=4_096)
    monkeypatch.setattr(os, "statvfs", lambda path: volume, raising=False)
    monkeypatch.setattr(SqliteSession, "size", lambda self: FileSize(1_269_760, 409_600, 2))


def compare(name: str, text: str) -> None:
    """Check that `text` is what is stored under that name."""
    stored = GOLDEN / name
    if os.environ.get("UPDATE_SCREENS"):
        GOLDEN.mkdir(exist_ok=True)
        stored.write_bytes(text.encode("utf-8"))
    assert text == stored.read_bytes().decode("utf-8")


def answer(*arguments: str, columns: int = 80, code: int = 0) -> str:
    """What the command prints, with an id that it has made itself and the file system of this machine left out."""
    ran = taskmanager(*arguments, columns=columns)
    assert ran.code == code, ran.err
    known = {task_id(number) for number in range(100)}
    text = MADE_HERE.sub(lambda match: match[0] if match[0] in known else "an-id", ran.out)
    return FOLDER_KIND.sub("ext4 at /", text) if arguments[0] == "doctor" else text


SHOWN: Final = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20)
SCREENS: Final = {
    "status": ["status"],
    "watch": ["watch"],
    "list": ["list"],
    "list-failed": ["list", "--status", "FAILED"],
    "list-page": ["list", "--limit", "3"],
    "schedules": ["schedules"],
    "doctor": ["doctor"],
    "retry-dry": ["retry", "--status", "FAILED", "--dry-run"],
    "cancel-dry": ["cancel", "--queue", "mail", "--dry-run"],
}


@pytest.mark.usefixtures("rich")
@pytest.mark.parametrize("columns", [50, 80, 120])
@pytest.mark.parametrize("name", SCREENS)
def test_screen_of_a_rich_file_is_as_it_was(name: str, columns: int) -> None:
    """What a person reads, at the widths of a narrow, a usual and a wide terminal."""
    code = 1 if name == "doctor" else 0
    compare(f"{name}-{columns}.txt", answer(*SCREENS[name], columns=columns, code=code))


@pytest.mark.usefixtures("rich")
@pytest.mark.parametrize("columns", [80, 120])
def test_record_of_every_kind_of_task_is_as_it_was(columns: int) -> None:
    """One after the other: running, waiting for each reason, held by the dead, ended in each way."""
    pages = [answer("show", task_id(number), columns=columns) for number in SHOWN]
    compare(f"show-{columns}.txt", f"\n{'-' * columns}\n".join(pages))


@pytest.mark.usefixtures("rich")
@pytest.mark.parametrize("name", SCREENS)
def test_document_of_a_rich_file_is_as_it_was(name: str) -> None:
    """What a program reads: every key, in its order, and every value."""
    code = 1 if name == "doctor" else 0
    compare(f"{name}.json", answer(*SCREENS[name], "--json", code=code))


@pytest.mark.usefixtures("rich")
def test_document_of_every_kind_of_task_is_as_it_was() -> None:
    """The same for `show`."""
    compare("show.json", "".join(answer("show", task_id(number), "--json") for number in SHOWN))


ACTIONS: Final = {
    "retry": (["retry", task_id(13), task_id(14), task_id(15), task_id(8)], 1),
    "retry-batch": (["retry", "--status", "FAILED", "--yes"], 1),
    "cancel": (["cancel", task_id(4), task_id(8), task_id(15), task_id(5)], 1),
    "pause": (["pause", "mail"], 0),
    "resume": (["resume", "paused-queue"], 0),
    "schedule-pause": (["schedules", "pause", "nightly"], 0),
    "schedule-resume": (["schedules", "resume", "halted"], 0),
    "purge": (["purge", "--status", "COMPLETED"], 0),
    "recover": (["recover"], 0),
    "recover-frozen": (["recover", "--frozen", "2"], 0),
}


@pytest.mark.usefixtures("rich")
@pytest.mark.parametrize("form", ["txt", "json"])
@pytest.mark.parametrize("name", ACTIONS)
def test_answer_of_an_action_is_as_it_was(name: str, form: str) -> None:
    """What became of each task, for a person and for a program."""
    arguments, code = ACTIONS[name]
    more = ["--json"] if form == "json" else []
    compare(f"{name}.{form}", answer(*arguments, *more, code=code))


@pytest.mark.parametrize(("width", "height"), [(40, 24), (80, 24), (80, 50), (120, 40)])
@pytest.mark.parametrize("name", ["status", "watch", "live"])
def test_screen_on_a_terminal_is_as_it_was(name: str, width: int, height: int, rich: Path) -> None:
    """As many lines as the terminal has: the most important first."""
    with open_read_only(rich / "tasks.db") as connection:
        overview = look(FilePlace("tasks.db"), connection, SystemClock())
    lines = {
        "status": screen_lines(overview, width, height),
        "live": screen_lines(overview, width, height, Focus.RUNNING),
        "watch": watch_lines(overview, width, height),
    }[name]
    compare(f"terminal-{name}-{width}x{height}.txt", "\n".join(line.plain for line in lines) + "\n")


@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize("columns", [80, 120])
def test_screens_of_an_empty_file_are_as_they_were(columns: int) -> None:
    """First steps, and nothing to be worried about."""
    pages = [answer(name, columns=columns) for name in ("status", "list", "schedules", "doctor")]
    compare(f"empty-{columns}.txt", f"\n{'-' * columns}\n".join(pages))


@pytest.mark.usefixtures("empty")
def test_documents_of_an_empty_file_are_as_they_were() -> None:
    """Every key is there all the same."""
    documents = [answer(name, "--json") for name in ("status", "list", "schedules", "doctor", "recover")]
    compare("empty.json", "".join(documents))
