"""What only the memory store does."""

import pytest

from taskmanager.model.record import TaskRow, TaskWrite
from taskmanager.store.memory import MemoryStore
from taskmanager.store.protocol import TaskFilter

pytestmark = pytest.mark.anyio


def ended(task_id: str, status: str = "FAILED") -> TaskRow:
    return TaskRow(**dict.fromkeys(TaskRow._fields))._replace(
        task_id=task_id,
        task_name="app:job",
        queue_name="default",
        priority=50,
        status=status,
        sent_at=1,
        enqueued_at=1,
        retry_count=0,
        max_retries=0,
        start_count=0,
        crash_count=0,
        snooze_count=0,
        task_options="{}",
        is_workflow_task=0,
        created_at=1,
        updated_at=1,
    )


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
