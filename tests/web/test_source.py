"""Where the dashboard looks."""

import sqlite3
from pathlib import Path

import pytest

from taskmanager.web.source import Source
from tests.web.visitor import manager_on

pytestmark = pytest.mark.anyio


def sum_of(connection: sqlite3.Connection, one: int, *, other: int) -> int:
    found: int = connection.execute("SELECT ? + ?", (one, other)).fetchone()[0]
    return found


async def test_look_passes_what_is_asked_behind_the_connection(tmp_path: Path) -> None:
    """The functions that read a file take the connection first, and what is asked after it."""
    async with manager_on(tmp_path):
        source = Source(tmp_path / "tasks.db")
        assert await source.read(sum_of, 1, other=2) == 3
        assert await source.look(sum_of, 2, other=3) == 5
