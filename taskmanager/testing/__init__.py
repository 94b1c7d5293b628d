"""Runs a manager in tests of an application: without its file, on a clock that moves by itself.

    async with isolated(manager) as world:
        await sign_up("ada@example.org")
        assert [task.task_name for task in world.enqueued] == ["app.mail:welcome"]
        await world.drain()                 # runs everything, delays and back-offs included, in no time

`FaultyStore` is for tests of what happens when the store does not answer.
"""

from taskmanager.testing.clock import START, WallClock
from taskmanager.testing.faulty import Fault, FaultyStore
from taskmanager.testing.world import EnqueuedTask, World, isolated

__all__ = ["START", "EnqueuedTask", "Fault", "FaultyStore", "WallClock", "World", "isolated"]
