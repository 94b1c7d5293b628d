"""The tasks of which the tests of workflows make their graphs."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from taskmanager import TaskManager, TaskResult


@dataclass
class Page:
    """What nodes hand on."""

    url: str
    rows: list[int] = field(default_factory=list)


class Jobs:
    """The tasks of these tests, and which of their calls have begun."""

    def __init__(self, manager: TaskManager) -> None:
        self.began: list[str] = []
        self.gate = asyncio.Event()
        self.fails = True

        @manager.task(name="fetch", persist=True)
        async def fetch(url: str) -> Page:
            self.began.append(url)
            return Page(url, [1, 2, 3])

        @manager.task(name="count", persist=True)
        def count(page: Page, factor: int = 1) -> int:
            self.began.append(f"count {page.url} {factor}")
            return sum(page.rows) * factor

        @manager.task(name="total", persist=True)
        async def total(parts: list[int]) -> int:
            self.began.append("total")
            return sum(parts)

        @manager.task(name="broken", persist=True)
        async def broken(name: str) -> int:
            self.began.append(name)
            if self.fails:
                raise OSError(name)
            return 1

        @manager.task(name="wait", persist=True)
        async def wait(name: str) -> str:
            self.began.append(name)
            await self.gate.wait()
            return name

        @manager.task(name="tell", persist=True)
        async def tell(*ended: TaskResult[Any]) -> list[str]:
            self.began.append("tell")
            return [str(each.err_value.error_code) if each.is_err() else "ok" for each in ended]

        self.fetch, self.count, self.total = fetch, count, total
        self.broken, self.wait, self.tell = broken, wait, tell

        @manager.task(name="flaky", persist=True, retries=2, retry_delay=60.0)
        async def flaky(name: str) -> int:
            self.began.append(name)
            if self.fails:
                raise OSError(name)
            return 5

        self.flaky = flaky


async def statuses(manager: TaskManager, workflow_id: str) -> dict[str, str]:
    """The status of each node."""
    return {each.node_id: each.status for each in await manager.workflow(workflow_id).nodes()}


async def task_of(manager: TaskManager, workflow_id: str, node_id: str) -> str:
    """The id of the task of a node."""
    (task_id,) = [each.task_id for each in await manager.workflow(workflow_id).nodes() if each.node_id == node_id]
    assert task_id is not None
    return task_id
