"""Connections to a PostgreSQL server for the tests of what is sent there."""

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from taskmanager.model.clock import SystemClock
from taskmanager.model.record import TaskRow
from taskmanager.store.postgresql import claims, schema
from taskmanager.store.postgresql.floors import Floors
from taskmanager.store.postgresql.session import PostgresSession
from taskmanager.store.postgresql.words import translated
from taskmanager.store.sql.session import Values
from taskmanager.store.sql.statements import TASK_COLUMNS
from tests.contract.rows import wants

INSERT = f"""
INSERT INTO taskmanager_tasks ({", ".join(TASK_COLUMNS)}, claimed) VALUES ({"?, " * len(TASK_COLUMNS)}?)
"""


class StillClock(SystemClock):
    """Elapsed time that passes only when a test says so."""

    now_s = 1000.0

    def elapsed_s(self) -> float:
        return self.now_s


class Connected:
    """A connection that puts SQL into PostgreSQL's words. It waits for a lock for a second at most."""

    def __init__(self, url: str) -> None:
        self.url = url
        address, _, self.schema = url.partition("?schema=")
        self.raw = psycopg.connect(address, autocommit=True)
        self.floors = Floors()
        self.raw.execute(f"SET lock_timeout = '1s'; SET search_path = {self.schema}")

    def execute(self, text: str, values: Any = ()) -> "psycopg.Cursor[Any]":
        """Do one statement."""
        return self.raw.execute(translated(text).encode(), values)

    def put(self, *rows: TaskRow) -> None:
        """Insert tasks."""
        with self.raw.cursor() as cursor:
            cursor.executemany(translated(INSERT).encode(), [(*row, int(row.status == "CLAIMED")) for row in rows])

    def take(self, limit: int = 10, **wanted: Any) -> list[TaskRow]:
        """Claim, and return what is taken, best first."""
        rows = claims.take(self, wants(**wanted), limit, self.floors)  # type: ignore[arg-type]  # all that it needs
        return sorted(rows, key=lambda row: (row.priority, row.enqueued_at, row.task_id))


@pytest.fixture
def session(schema_url: str) -> Iterator[Connected]:
    """Connect to a new schema."""
    made = Connected(schema_url)
    schema.migrate(made.raw, made.schema)
    yield made
    made.raw.close()


@pytest.fixture
def other(session: Connected) -> Iterator[Connected]:
    """Connect to the same schema once more, in a transaction that stays open."""
    made = Connected(session.url)
    made.raw.execute("BEGIN")
    yield made
    made.raw.close()


def pages_read(reading: PostgresSession, statement: str, values: Values) -> int:
    """How often the server looks at a page for it."""
    plan = reading.execute(f"EXPLAIN (ANALYZE, BUFFERS) {statement}", values).fetchall()
    found = next(re.search(r"shared hit=(\d+)", line) for (line,) in plan if "Buffers" in line)
    assert found is not None
    return int(found[1])
