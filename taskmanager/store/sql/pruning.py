"""Deletes old rows in batches: a call holds the write lock for about `HOLD_S`, and between two calls others write.

How many rows fit into that time depends on the machine, on their size, and on whether they are in memory, so it is
learned from the last calls. The rows are searched for before the lock is taken. Each call also checkpoints what it has
written: otherwise the application's own next commit, which checkpoints from 1,000 pages on, would have to do it all.
"""

from collections.abc import Mapping
from time import perf_counter
from types import MappingProxyType
from typing import Any, Final

from taskmanager.model.workflows import ENDED_WORKFLOW
from taskmanager.rules.figures import Span
from taskmanager.store.protocol import TaskFilter
from taskmanager.store.sql.queries import fitting
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.statements import LIVE_SQL, quoted
from taskmanager.store.sql.workflow_ends import HAS_WORKFLOW

HOLD_S: Final = 0.005
FIRST_SIZE: Final = 100
FEW: Final = 50
"""Below this number of rows a commit takes as long as the disk takes for any commit: fewer would not shorten it."""
_AT_ONCE: Final = 10
"""So many workflows lose their tasks at a time."""
_IS_ALONE: Final = f"(t.is_workflow_task = 0 OR NOT {HAS_WORKFLOW})"
"""A task `t` belongs to no workflow. Those of a workflow go with it, and none while it lives."""
_TASKS: Final = """
SELECT t.id FROM taskmanager_workflows AS c JOIN taskmanager_workflow_tasks AS n ON n.workflow_id = c.id
    JOIN taskmanager_tasks AS t ON t.id = n.task_id
WHERE {which}
"""
_NUMBER: Final = "CAST(value AS INTEGER)"
"""One row in JSON, where a number is the id of a row also in databases that have no row ids."""
_ENDED_WORKFLOW: Final = quoted(sorted(ENDED_WORKFLOW))


class BatchSize:
    """How many rows, or pages, the next call deletes. Used in the thread of one connection only."""

    __slots__ = ("size",)

    def __init__(self, size: int = FIRST_SIZE) -> None:
        self.size = size

    def __repr__(self) -> str:
        return f"<BatchSize of {self.size}>"

    def note(self, done: int, deleting_s: float, committing_s: float) -> None:
        """`done` rows took that long: the next call takes as many as fit into `HOLD_S`, at most twice as many."""
        fits = max(_fitting(done, deleting_s + committing_s), min(FEW, _fitting(done, deleting_s)))
        if done >= self.size or fits < self.size:
            self.size = max(1, min(fits, 2 * self.size))


def _fitting(done: int, took_s: float) -> int:
    return round(done * HOLD_S / max(took_s, 1e-6))


def purge(
    connection: Session,
    batch: BatchSize,
    workflows: BatchSize,
    wanted: TaskFilter,
    older_than: int | None,
    limit: int,
) -> int:
    """See `Store.purge`. No task ends before it was sent, so the index on `sent_at` bounds the search.

    Workflows go first: a search for tasks steps over all those of a workflow that is still there.
    """
    conditions, given = fitting(wanted)
    if not conditions and (count := _purge_workflows(connection, batch, workflows, older_than, limit)):
        return count
    is_old = " AND ".join(["t.sent_at IS NOT NULL", f"t.status NOT IN ({LIVE_SQL})", _IS_ALONE, *conditions])
    if older_than is not None:
        is_old += (
            " AND t.sent_at < :cutoff AND coalesce(t.completed_at, t.failed_at, t.updated_at, t.created_at) < :cutoff"
        )
    by_sent_at = "INDEXED BY taskmanager_tasks_sent_at"
    return _delete(connection, batch, "taskmanager_tasks AS t", is_old, older_than, limit, by_sent_at, given)


def _purge_workflows(
    connection: Session, batch: BatchSize, workflows: BatchSize, older_than: int | None, limit: int
) -> int:
    """Delete the tasks of old workflows, or, where none is left, the workflows with their nodes and children."""
    is_old = f"w.sent_at IS NOT NULL AND w.parent_workflow_id IS NULL AND w.status IN ({_ENDED_WORKFLOW})"
    if older_than is not None:
        is_old += " AND w.sent_at < :cutoff AND coalesce(w.completed_at, w.updated_at) < :cutoff"
    by_sent_at = "INDEXED BY taskmanager_workflows_sent_at"
    some = (
        f"SELECT w.id FROM taskmanager_workflows AS w {by_sent_at} WHERE {is_old} ORDER BY w.sent_at LIMIT {_AT_ONCE}"
    )
    is_theirs = f"t.id IN ({_TASKS.format(which=f'c.root_workflow_id IN ({some})')})"
    count = _delete(
        connection, batch, "taskmanager_tasks AS t", f"{is_theirs} AND t.status NOT IN ({LIVE_SQL})", older_than, limit
    )
    if count:
        return count
    has_tasks = f"{_TASKS.format(which='c.root_workflow_id = w.id')} AND t.status NOT IN ({LIVE_SQL})"
    is_bare = f"{is_old} AND NOT EXISTS ({has_tasks})"
    return _delete(connection, workflows, "taskmanager_workflows AS w", is_bare, older_than, limit, by_sent_at)


def prune_heartbeats(connection: Session, batch: BatchSize, cutoff: int, limit: int) -> int:
    """See `Store.prune_heartbeats`."""
    return _delete(connection, batch, "taskmanager_heartbeats", "sent_at < :cutoff", cutoff, limit, row=_NUMBER)


def prune_worker_states(connection: Session, batch: BatchSize, cutoff: int, limit: int) -> int:
    """See `Store.prune_worker_states`."""
    return _delete(connection, batch, "taskmanager_worker_states", "snapshot_at < :cutoff", cutoff, limit, row=_NUMBER)


_FIGURES: Final = "taskmanager_figures WHERE span = :span AND at < :since"


def prune_figures(connection: Session, batch: BatchSize, span: Span, since: int, limit: int) -> int:
    """See `Store.prune_figures`. They have no row ids, and are found by their key."""
    key = "at, task_name, queue_name"
    known = {"span": span.value, "since": since, "limit": min(limit, batch.size)}
    if connection.execute(f"SELECT 1 FROM {_FIGURES} LIMIT 1", known).fetchone() is None:
        return 0
    with connection.transaction():
        began_s = perf_counter()
        found = f"SELECT {key} FROM {_FIGURES} LIMIT :limit"
        delete = f"DELETE FROM taskmanager_figures WHERE span = :span AND ({key}) IN ({found})"
        count = connection.execute(delete, known).rowcount
        deleted_s = perf_counter()
    batch.note(count, deleted_s - began_s, perf_counter() - deleted_s)
    connection.tidy()
    return count


def _delete(
    connection: Session,
    batch: BatchSize,
    table: str,
    is_old: str,
    cutoff: int | None,
    limit: int,
    found_by: str = "",
    given: Mapping[str, Any] = MappingProxyType({}),
    row: str = "value",
) -> int:
    """Delete some of them; 0 only when there are none."""
    find = f"SELECT rowid AS row FROM {table} {found_by} WHERE {is_old} LIMIT :limit"
    # Between the search and the lock somebody may have retried a task, or deleted it, and its place be another's.
    delete = f"DELETE FROM {table} WHERE rowid IN (SELECT {row} FROM json_each(:rows)) AND {is_old}"
    known = {**given, "cutoff": cutoff, "limit": min(limit, batch.size)}
    while True:
        (rows,) = connection.execute(f"SELECT json_group_array(row) FROM ({find})", known).fetchone()
        if rows == "[]":
            return 0
        with connection.transaction():
            began_s = perf_counter()
            count = connection.execute(delete, known | {"rows": rows}).rowcount
            deleted_s = perf_counter()
        batch.note(count, deleted_s - began_s, perf_counter() - deleted_s)
        connection.tidy()
        if count:
            return count
