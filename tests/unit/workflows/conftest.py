"""What the tests of workflows begin with."""

import pytest

from taskmanager import TaskManager
from taskmanager.testing import World
from tests.unit.workflows.graphs import Jobs


@pytest.fixture
def jobs(manager: TaskManager, world: World) -> Jobs:
    """The tasks, in a started manager."""
    return Jobs(manager)
