"""Tasks that are handed over when the code around them has succeeded."""

import io
from contextlib import asynccontextmanager

import pytest
from rich.console import Console

from taskmanager import ConfigurationError, TaskManager
from taskmanager.testing import isolated

pytestmark = pytest.mark.anyio


def manager_with_task() -> TaskManager:
    """A manager and one task, named `double`."""
    manager = TaskManager(None)

    @manager.task(name="double")
    async def double(number: int) -> int:
        return 2 * number

    return manager


async def test_an_added_task_runs_when_the_block_has_succeeded() -> None:
    """The id is known at once; the task runs only afterwards."""
    manager = manager_with_task()
    async with isolated(manager) as world:
        async with asynccontextmanager(manager.background)() as background:
            task_id = background.add_task(manager.get_task("double"), 4)
            await world.drain()
            assert await manager.get(task_id) is None
        assert await manager.handle(task_id) == 8


async def test_an_added_task_is_dropped_when_the_block_raises() -> None:
    """A route that failed must not send its mails."""
    manager = manager_with_task()
    async with isolated(manager) as world:

        async def route() -> None:
            async with asynccontextmanager(manager.background)() as background:
                background.add_task(manager.get_task("double"), 4)
                raise RuntimeError("the route")

        with pytest.raises(RuntimeError, match="the route"):
            await route()
        assert world.enqueued == ()


async def test_a_wrong_call_is_refused_where_it_is_added() -> None:
    """Not later, when nobody is there to hear of it."""
    manager = manager_with_task()
    async with isolated(manager), asynccontextmanager(manager.background)() as background:
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            background.add_task(manager.get_task("double"))
        with pytest.raises(ConfigurationError, match="is not a task"):
            background.add_task(print, "hello")


async def test_the_console_shows_queues_and_counts() -> None:
    """Plain text in a file, a table on a terminal; nothing is printed unless asked."""
    manager = manager_with_task()
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(manager.console())
    async with isolated(manager) as world:
        manager.enqueue("double", 1)
        await world.drain()
        console.print(manager.console())
    shown = console.export_text()
    assert "not running" in shown
    assert "1 completed" in shown
    assert "default" in shown
