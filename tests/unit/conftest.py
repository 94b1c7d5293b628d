"""What many unit tests begin with: a manager without a file, and a world in which it runs in virtual time."""

from collections.abc import AsyncIterator

import pytest

from taskmanager import TaskManager
from taskmanager.testing import World, isolated


@pytest.fixture
def manager() -> TaskManager:
    """Memory only, with the defaults."""
    return TaskManager(None)


@pytest.fixture
async def world(manager: TaskManager) -> AsyncIterator[World]:
    """The manager, started and isolated."""
    async with isolated(manager) as made:
        yield made
