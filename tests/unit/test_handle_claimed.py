"""`TaskHandle.status` of tasks that come here from the file: their end is known here, and so to each handle."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from taskmanager import TaskHandle, TaskManager, TaskStatus
from tests.unit.duties.scene import until

pytestmark = pytest.mark.anyio


def application(path: Path) -> TaskManager:
    """A task that fails the first time."""
    manager, runs = TaskManager(path), list[int]()

    @manager.schedule(every=100_000, name="nightly")
    @manager.task(name="job", persist=True)
    async def job() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise ValueError("the first time")

    return manager


async def of_schedule(manager: TaskManager, path: Path) -> TaskHandle[object]:
    return await manager.run_schedule("nightly")


async def of_transaction(manager: TaskManager, path: Path) -> TaskHandle[object]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        task_id = manager.submit_in(connection, manager.get_task("job"))
        connection.execute("COMMIT")
    return manager.handle(task_id)


async def of_other_instance(manager: TaskManager, path: Path) -> TaskHandle[object]:
    """Somebody who does not know the function puts the task back."""
    handle: TaskHandle[object] = manager.get_task("job").enqueue()
    await handle.result()
    async with TaskManager(path) as other:
        assert await other.retry(handle.task_id)
    return handle


@pytest.mark.parametrize("make", [of_schedule, of_transaction, of_other_instance])
async def test_handle_that_nobody_awaits_tells_the_end_of_a_task_that_was_claimed(tmp_path: Path, make: object) -> None:
    """Whoever looks at the status now and then must see it end."""
    path = tmp_path / "tasks.db"
    async with application(path) as manager:
        handle = await make(manager, path)  # type: ignore[operator]
        end = TaskStatus.COMPLETED if make is of_other_instance else TaskStatus.FAILED
        await until(lambda: handle.status is end)
        assert manager.handle(handle.task_id).status is end
        assert (await handle.info()).status is end
        await asyncio.wait_for(handle.result(), 10)
