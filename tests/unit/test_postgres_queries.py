"""What duties ask for again and again, while nothing that has ended can be cleared away, on a real server."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from taskmanager.model.workflows import HELD
from taskmanager.store.postgresql.address import Address
from taskmanager.store.postgresql.connection import connect, lead_to_schema
from taskmanager.store.postgresql.session import PostgresSession
from taskmanager.store.sql import queries
from tests.contract.rows import ME, OTHER, task
from tests.unit.postgres_sessions import Connected, other, pages_read, session

__all__ = ["other", "session"]  # fixtures


@pytest.fixture
def reading(session: Connected) -> Iterator[PostgresSession]:
    """The session of a reader."""
    made = connect(Address.of(session.url))
    lead_to_schema(made)
    yield made
    made.raw.close()


class Counted:
    """A session that counts the pages that are read for each question of the verbs."""

    too_large = ()

    def __init__(self, reading: PostgresSession) -> None:
        self._reading = reading
        self.by_indexes = reading.by_indexes
        self.pages = 0

    def execute(self, sql: str, values: Any = ()) -> Any:
        """Do one statement, and count."""
        self.pages += pages_read(self._reading, sql, values)
        return self._reading.execute(sql, values)


def test_postgres_orphans_are_found_without_what_the_living_have_had(
    session: Connected, other: Connected, reading: PostgresSession
) -> None:
    """The open transaction of another program keeps the entries of all that they have run."""
    other.raw.execute("COMMIT; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM pg_class")
    names = [f"{number:04}" for number in range(3_000)]
    random.Random(0).shuffle(names)  # neighbours in the index are on different pages
    owners = [ME, OTHER, HELD]
    session.put(*(task(f"t{name}", claimed_by_worker_id=owners[int(name) % 3]) for name in names))
    session.execute("UPDATE taskmanager_tasks SET status = 'COMPLETED', completed_at = 1")
    session.put(task("orphan", claimed_by_worker_id="dead"), task("living", claimed_by_worker_id=ME))
    session.execute("ANALYZE taskmanager_tasks")
    counted: Any = Counted(reading)
    assert [row.task_id for row in queries.fetch_orphans(counted, [ME, OTHER], limit=9)] == ["orphan"]
    assert counted.pages < 100
    assert len(queries.fetch_orphans(counted, [OTHER], limit=9)) == 2
    assert counted.pages > 1_000
