"""Where the tasks live, from what somebody wrote: a file, a server, or something that is of no use."""

import sys
from pathlib import Path
from typing import Any, Final

import pytest

from taskmanager import ConfigurationError, TaskManager
from taskmanager.store.file_place import FilePlace
from taskmanager.store.place import place_at, place_of
from tests.unit.command_line import taskmanager

SECRET: Final = "f0rg3t-me"


def test_place_of_none_is_memory() -> None:
    """A manager without a database has no place."""
    assert place_of(None) is None


def test_place_of_a_manager_is_good_in_every_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The application may change its directory between the constructor and the start."""
    monkeypatch.chdir(tmp_path)
    assert place_of("tasks.db") == place_of(Path("tasks.db")) == FilePlace(tmp_path / "tasks.db")


def test_place_of_a_command_is_shown_as_it_was_written() -> None:
    """Whoever reads a message must find what they typed."""
    assert str(place_at("jobs/tasks.db")) == "jobs/tasks.db"
    assert place_at("jobs/tasks.db").name == "tasks.db"


def test_place_is_the_same_by_whichever_name(tmp_path: Path) -> None:
    """A link leads to the same database, and a file that is not there yet is compared by its name."""
    file, link = tmp_path / "tasks.db", tmp_path / "link.db"
    link.symlink_to(file)
    assert FilePlace(file).is_same(FilePlace(link))
    file.touch()
    assert FilePlace(file).is_same(FilePlace(link))
    assert not FilePlace(file).is_same(FilePlace(tmp_path / "other.db"))
    assert not FilePlace(file).is_same(None)


def test_place_of_a_server_needs_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has only files does not install a driver; whoever gives a URL is told how."""
    monkeypatch.setitem(sys.modules, "taskmanager.store.postgresql.place", None)
    for url in (f"postgresql://app:{SECRET}@host/db", f"postgres://app:{SECRET}@host/db", f"PostgreSQL://{SECRET}@h"):
        with pytest.raises(ConfigurationError, match=r"pip install 'taskmanager\[postgres\]'") as refused:
            TaskManager(url)
        assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        f"mysql://app:{SECRET}@host/db",
        f"postgresql+psycopg://app:{SECRET}@host/db",
        Path(f"postgresql://app:{SECRET}@host/db"),
        f"postgresql://app:{SECRET}@host/\0db",
        f"postgresql://app:{SECRET}@host/db".encode(),
        [f"postgresql://app:{SECRET}@host/db"],
    ],
)
def test_place_that_is_refused_does_not_show_a_password(given: Any) -> None:
    """What is refused at the start of a program stands in its log."""
    with pytest.raises(ConfigurationError, match="snapshot_db") as refused:
        TaskManager(given)
    assert SECRET not in str(refused.value)


def test_command_refuses_a_url_without_its_password() -> None:
    """The same for whoever types it, in one line."""
    ran = taskmanager("status", "--db", f"mysql://app:{SECRET}@host/db")
    assert (ran.code, ran.out) == (2, "")
    assert "not a mysql:// URL" in ran.err
    assert SECRET not in ran.err
