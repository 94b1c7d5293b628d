"""What is around a task that sleeps or waits: its middleware, its codec, its time limit."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from taskmanager import TaskContext, TaskManager, TaskStatus, current_task, sleep, wait_for
from taskmanager.testing import World, isolated

pytestmark = pytest.mark.anyio


class Shifted:
    """A codec that moves each byte by its key, and reads what was written with a key that it knows."""

    def __init__(self, key: int) -> None:
        self.key, self.known = key, {key}

    def encode(self, data: bytes, /) -> bytes:
        return bytes([self.key, *((byte + self.key) % 256 for byte in data)])

    def decode(self, data: bytes, /) -> bytes:
        if data[0] not in self.known:
            raise ValueError("another key")
        return bytes((byte - data[0]) % 256 for byte in data[1:])


async def test_middleware_that_swallows_a_sleep_keeps_nobody_awake(world: World) -> None:
    """It sees the end of a run, and that this is no cancellation; what it returns is no result."""
    seen: list[tuple[bool, bool]] = []

    @world.manager.middleware
    async def swallows(context: TaskContext, call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await call()
        except asyncio.CancelledError:
            seen.append((context.is_suspended, context.is_cancelled))
            return -1

    @world.manager.task(persist=True, requeue_on_interrupt=True)
    async def task() -> int:
        await sleep(3_600)
        return current_task().attempt

    assert await task.enqueue() == 2
    assert seen == [(True, False)]


async def test_middleware_may_not_sleep_or_wait(world: World) -> None:
    """It would take the number of a step of every task."""

    @world.manager.middleware
    async def sleeps(context: TaskContext, call: Callable[[], Awaitable[Any]]) -> Any:
        await sleep(1)
        return await call()

    @world.manager.task(persist=True, requeue_on_interrupt=True)
    async def task() -> None:
        pass

    assert "a middleware calls sleep as a step" in (await task.enqueue().result()).err_value.message


async def test_timeout_of_a_task_does_not_count_its_sleep(world: World) -> None:
    """It is for each run."""

    @world.manager.task(persist=True, requeue_on_interrupt=True, timeout=60)
    async def task() -> str:
        await sleep(timedelta(days=1))
        return await wait_for("go", str)

    handle = task.enqueue()
    await world.advance(timedelta(days=2))
    assert (await handle.info()).status is TaskStatus.PENDING
    await world.manager.send(handle.task_id, "go", "done")
    assert await handle == "done"


def waiting_for_n(manager: TaskManager) -> Any:
    @manager.task(name="waits", persist=True, requeue_on_interrupt=True)
    async def waits() -> int:
        return await wait_for("n", int) + await wait_for("n", int)

    return waits


async def test_event_is_sealed_by_the_codec_of_the_manager(tmp_path: Path) -> None:
    """Who has no codec writes plain JSON, which is read as well."""
    database = tmp_path / "tasks.db"
    manager, plain = TaskManager(database, codec=Shifted(3), store_poll=0.02), TaskManager(database, run_queues=())
    waits = waiting_for_n(manager)
    async with manager:
        handle = waits.enqueue()
        assert await manager.send(handle.task_id, "n", 7)
        with closing(sqlite3.connect(database)) as connection:
            ((value,),) = connection.execute("SELECT value FROM taskmanager_events").fetchall()
        assert "7" not in value
        assert "ok" not in value
        async with plain:
            assert await plain.send(handle.task_id, "n", 5)
        assert await handle == 12


async def test_event_that_only_a_codec_cannot_read_is_not_received() -> None:
    """The task fails, and gets the event by a retry when the key is there."""
    codec = Shifted(3)
    manager = TaskManager("tasks.db", codec=codec)
    waits = waiting_for_n(manager)
    async with isolated(manager):
        handle = waits.enqueue()
        codec.key = 9
        await manager.send(handle.task_id, "n", 7)
        codec.key = 3
        await manager.send(handle.task_id, "n", 5)
        error = (await handle.result()).err_value
        assert error.error_code == "RESULT_NOT_AVAILABLE"
        assert "the event cannot be read" in error.message
        codec.known.add(9)
        assert await manager.retry(handle.task_id)
        assert await handle == 12
