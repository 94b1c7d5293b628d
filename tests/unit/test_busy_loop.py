"""Threads get the interpreter lock beside a loop that is never idle.

Without that each of these waits for thousands of turns, and some for tens of thousands.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from taskmanager import TaskManager
from taskmanager.model.gil import at_work

pytestmark = pytest.mark.anyio

TURN_S = 0.0005
"""Shorter than what a thread waits before it asks for the lock."""
TIMES = 10
MOST_TURNS = 4_000


def need_the_lock(times: int) -> None:
    """Give the interpreter lock away, and need it again, so many times."""
    for _ in range(times):
        time.sleep(0.0001)


class TooManyTurns(Exception):
    """The thread did not get through."""


@asynccontextmanager
async def busy_loop() -> AsyncIterator[None]:
    """A loop that always has something to do. The body is given up after so many turns."""

    async def work() -> None:
        for _ in range(MOST_TURNS):
            end = time.perf_counter() + TURN_S
            while time.perf_counter() < end:
                pass
            await asyncio.sleep(0)
        raise TooManyTurns

    try:
        async with asyncio.TaskGroup() as group:
            working = group.create_task(work())
            yield
            working.cancel()
    except* TooManyTurns:
        pytest.fail(f"not done after {MOST_TURNS} turns of the loop")


@pytest.fixture(params=["file", "server"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the tasks live."""
    if request.param == "file":
        return str(tmp_path / "tasks.db")
    return str(request.getfixturevalue("schema_url"))


async def test_commit_gets_through_beside_a_busy_loop(database: str) -> None:
    manager = TaskManager(database)

    @manager.task(persist=True)
    async def kept() -> None: ...

    async with manager, busy_loop():
        for _ in range(TIMES):
            await kept.enqueue().saved()


async def test_manager_starts_and_stops_beside_a_busy_loop(database: str) -> None:
    async with busy_loop(), TaskManager(database):
        pass


async def test_records_are_read_beside_a_busy_loop(database: str) -> None:
    manager = TaskManager(database)
    async with manager, busy_loop():
        for _ in range(TIMES):
            assert await manager.get("no such task") is None


async def test_thread_of_a_task_gets_through_beside_a_busy_loop(tmp_path: Path) -> None:
    manager = TaskManager(tmp_path / "tasks.db")

    @manager.task
    def add() -> int:
        return sum(range(10_000))

    async with manager, busy_loop():
        for _ in range(TIMES):
            assert await add.enqueue() == 49_995_000


async def test_listener_in_its_thread_hears_beside_a_busy_loop(tmp_path: Path) -> None:
    manager = TaskManager(tmp_path / "tasks.db")
    heard = asyncio.Event()
    loop = asyncio.get_running_loop()

    @manager.on("completed")
    def hear(event: object) -> None:
        need_the_lock(5)
        loop.call_soon_threadsafe(heard.set)

    @manager.task
    async def nothing() -> None: ...

    async with manager, busy_loop():
        for _ in range(TIMES):
            nothing.enqueue()
            await heard.wait()
            heard.clear()


async def test_thread_gets_through_when_the_loop_becomes_busy_after_a_rest(tmp_path: Path) -> None:
    """A loop that has rested for long is looked at less often."""
    manager = TaskManager(tmp_path / "tasks.db", threads=2)
    may_end = threading.Event()

    @manager.task
    def hang() -> None:
        may_end.wait()

    @manager.task
    def call() -> None:
        need_the_lock(20)

    async with manager:
        hanging = hang.enqueue()
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await hanging
        async with busy_loop():
            for _ in range(3):
                await call.enqueue()
        may_end.set()


async def test_thread_that_says_it_is_at_work_gets_through_beside_a_busy_loop(tmp_path: Path) -> None:
    """So do the heartbeat, and the session that shows to other hosts that this instance lives."""
    over = asyncio.Event()
    loop = asyncio.get_running_loop()

    def work() -> None:
        with at_work():
            need_the_lock(200)
        loop.call_soon_threadsafe(over.set)

    async with TaskManager(tmp_path / "tasks.db"), busy_loop():
        threading.Thread(target=work).start()
        await over.wait()


def test_threads_of_the_application_get_through_beside_the_loop_of_in_thread() -> None:
    """A synchronous program has no loop of its own, and its requests are answered in threads."""
    manager = TaskManager(snapshot_db=None)
    is_over = threading.Event()

    @manager.task
    async def keep_busy() -> int:
        for turn in range(MOST_TURNS):
            end = time.perf_counter() + TURN_S
            while time.perf_counter() < end:
                pass
            if is_over.is_set():
                return turn
            await asyncio.sleep(0)
        return MOST_TURNS

    with manager.in_thread():
        busy = keep_busy.enqueue()
        need_the_lock(50)
        is_over.set()
        assert busy.wait() < MOST_TURNS
