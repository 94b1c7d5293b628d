"""Every store that the contract is held against."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from taskmanager.store.memory import MemoryStore
from taskmanager.store.protocol import Store
from taskmanager.store.sqlite import SqliteStore

StoreMaker = Callable[[], Store]


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


# The other Pythons and `make quick` leave the server out: it asks nothing of them that a file does not.
@pytest.fixture(params=["memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """A store without rows."""
    made = _maker(request, request.param)()
    await made.open()
    yield made
    await made.close()
