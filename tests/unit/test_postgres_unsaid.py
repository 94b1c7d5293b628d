"""A command that is killed after its commit, and before it has told the instances: they find it out by themselves."""

import asyncio
import signal
import sys

import pytest

from taskmanager import TaskCancelled, TaskManager
from taskmanager.store.postgresql import watch
from tests.unit.engine_worlds import engine_of, happens

pytestmark = pytest.mark.anyio

DIES = """
import os, signal
from taskmanager.cli.commands import main
from taskmanager.store.postgresql.session import PostgresSession

PostgresSession.say = lambda session, task_ids: os.kill(os.getpid(), signal.SIGKILL)
main()
"""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notice that was lost is made up for after five seconds. Less is waited for here."""
    monkeypatch.setattr(watch, "DOUBT_S", 0.2)


async def die(url: str, *words: str) -> None:
    """Run a command that dies when it would tell of what it has committed."""
    command = [sys.executable, "-c", DIES, *words, "--db", url]
    process = await asyncio.create_subprocess_exec(*command)
    assert await process.wait() == -signal.SIGKILL


async def test_cancel_by_a_command_that_was_killed_is_heard_of(schema_url: str) -> None:
    """The task runs, and nobody else looks for the request."""
    manager = TaskManager(schema_url)
    runs = asyncio.Event()

    @manager.task(persist=True)
    async def work() -> None:
        runs.set()
        await asyncio.Event().wait()

    async with manager:
        handle = work.enqueue()
        await runs.wait()
        await die(schema_url, "cancel", handle.task_id)
        with pytest.raises(TaskCancelled):
            await handle


async def test_pause_by_a_command_that_was_killed_is_heard_of(schema_url: str) -> None:
    """No row of a task tells of it."""
    manager = TaskManager(schema_url)
    async with manager:
        await die(schema_url, "pause", "default")
        await happens(lambda: engine_of(manager).dispatcher.queue("default").is_paused)
