"""Every store that the contract is held against."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from taskmanager.store.memory import MemoryStore
from taskmanager.store.protocol import Store
from taskmanager.store.sqlite import SqliteStore


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    made: Store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "tasks.db")
    await made.open()
    yield made
    await made.close()
