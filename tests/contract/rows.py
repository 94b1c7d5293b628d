"""Rows that the tests of stores, and of what works on rows, start from."""

from typing import Any

from taskmanager.model.record import AttemptRow, Expected, TaskRow, TaskWrite
from taskmanager.store.memory import MemoryStore
from taskmanager.store.protocol import ClaimRequest, CommitReport, Store
from taskmanager.store.sqlite import SqliteStore

ME, OTHER = "instance-me", "instance-other"

FREE_ROW = TaskRow(**dict.fromkeys(TaskRow._fields))._replace(
    task_id="t1",
    task_name="app:job",
    queue_name="default",
    priority=50,
    args="[]",
    kwargs="{}",
    status="PENDING",
    sent_at=100,
    enqueued_at=100,
    retry_count=0,
    max_retries=0,
    start_count=0,
    crash_count=0,
    snooze_count=0,
    task_options='{"persist": true}',
    is_workflow_task=0,
    created_at=100,
    updated_at=100,
)
"""A persisted task that waits and that nobody has."""


def task(task_id: str = "t1", **changes: Any) -> TaskRow:
    """A free PENDING row, and whatever else its status demands."""
    row = FREE_ROW._replace(task_id=task_id)
    status = changes.get("status")
    if status == "CLAIMED":
        row = row._replace(claimed_by_worker_id=ME, claimed_at=110)
    elif status == "RUNNING":
        row = row._replace(claimed_by_worker_id=ME, started_at=120, start_count=1)
    elif status == "COMPLETED":
        row = row._replace(completed_at=130, claimed_by_worker_id=ME, start_count=1)
    return row._replace(**changes)


def attempt(task_id: str = "t1", number: int = 1, **changes: Any) -> AttemptRow:
    """A successful attempt."""
    row = AttemptRow(task_id, number, "COMPLETED", False, 120, 130, None, None, None, ME, "host", 1, "main", 130)
    return row._replace(**changes)


def expected(row: TaskRow) -> Expected:
    """What a write says of the row as it was read."""
    return Expected(row.status, row.claimed_by_worker_id, row.start_count)


async def put(store: Store, *rows: TaskRow) -> None:
    """Insert them all."""
    report = await store.commit([TaskWrite(row, None) for row in rows])
    assert report == CommitReport({}, {})


def wants(**changes: Any) -> ClaimRequest:
    """A claim of this instance, of anything that is due."""
    return ClaimRequest(ME, ["app:job", "app:other"], "default", 10, 1_000)._replace(**changes)


def keeps_nul(store: Store) -> bool:
    """Whether a NUL in a text comes back. PostgreSQL has no such text, and gets U+FFFD in its place."""
    return isinstance(store, MemoryStore | SqliteStore)
