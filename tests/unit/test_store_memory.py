"""What only the memory store does."""

import pytest

from taskmanager.model.record import TaskRow, TaskWrite
from taskmanager.store.memory import MemoryStore
from taskmanager.store.protocol import TaskFilter
from tests.contract.rows import FREE_ROW

pytestmark = pytest.mark.anyio


def ended(task_id: str, status: str = "FAILED") -> TaskRow:
    return FREE_ROW._replace(task_id=task_id, status=status, task_options="{}")


async def test_the_oldest_ended_tasks_leave_when_the_history_is_full() -> None:
    """Live tasks are never evicted, however many there are."""
    store = MemoryStore(max_history=2)
    await store.commit([TaskWrite(ended(f"live{i}", "PENDING"), None) for i in range(4)])
    for name in ("c", "a", "b"):
        await store.commit([TaskWrite(ended(name), None)])
    left = {row.task_id for row in await store.fetch_many(TaskFilter())}
    assert left == {"live0", "live1", "live2", "live3", "a", "b"}


async def test_repr_tells_the_state() -> None:
    """One line for a debugger."""
    store = MemoryStore()
    await store.commit([TaskWrite(ended("a"), None)])
    assert repr(store) == "<MemoryStore 0 live, 1 ended>"
