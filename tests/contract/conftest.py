"""Every store that the contract is held against."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from taskmanager.store.memory import MemoryStore
from taskmanager.store.protocol import Store
from taskmanager.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from tests.servers import Cluster

StoreMaker = Callable[[], Store]
SCHEMA = "contract"
# Quicker than TRUNCATE, which makes each file anew.
EMPTY = f"""
DO $$ DECLARE each record; BEGIN
    FOR each IN SELECT tablename AS name FROM pg_tables
        WHERE schemaname = '{SCHEMA}' AND tablename <> 'taskmanager_schema'
    LOOP
        EXECUTE format('DELETE FROM {SCHEMA}.%I', each.name);
    END LOOP;
    PERFORM setval(name::regclass, 1, false) FROM (
        SELECT format('%I.%I', schemaname, sequencename) AS name FROM pg_sequences WHERE schemaname = '{SCHEMA}'
    ) AS sequences;
END $$
"""


@pytest.fixture
def empty_url(cluster: "Cluster") -> Iterator[str]:
    """The address of a schema without rows. It is one for all these tests: to make its tables takes half a second."""
    yield cluster.url(SCHEMA)
    cluster.psql(EMPTY)


def _maker(request: pytest.FixtureRequest, kind: str) -> StoreMaker:
    if kind == "memory":
        return MemoryStore
    if kind == "sqlite":
        path: Path = request.getfixturevalue("tmp_path") / "tasks.db"
        return lambda: SqliteStore(path)
    from taskmanager.store.postgresql.address import Address
    from taskmanager.store.postgresql.store import PostgresStore

    address = Address.of(request.getfixturevalue("empty_url"))
    return lambda: PostgresStore(address)


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """A store without rows."""
    made = _maker(request, request.param)()
    await made.open()
    yield made
    await made.close()
