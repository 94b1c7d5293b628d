"""A file as an application leaves it, to look at, and a copy of it for each test that changes something."""

import shutil
from pathlib import Path

import pytest

from tests.unit.command_line import write_tasks


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """One file for all tests; those that change it take a copy."""
    database = tmp_path_factory.mktemp("written") / "tasks.db"
    return database, write_tasks(database)


@pytest.fixture
def copied(written: tuple[Path, dict[str, str]], tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A copy of that file, to be changed."""
    shutil.copy(written[0], tmp_path / "tasks.db")
    return tmp_path / "tasks.db", written[1]
