"""What the tests of schedules begin with: a manager with a file that nobody opens, and a note of the fires."""

import pytest

from taskmanager import TaskManager
from tests.unit.schedules.fires import Fires


@pytest.fixture
def manager() -> TaskManager:
    """With a file, which nothing here ever opens."""
    return TaskManager("never-opened.db")


@pytest.fixture
def fires() -> Fires:
    return Fires()
