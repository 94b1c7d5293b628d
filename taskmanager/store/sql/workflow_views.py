"""What a person at a terminal asks of workflows: which there are, what stands in one, and which one a task is of."""

import json
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from taskmanager.model.workflows import HELD, NodeRow, WorkflowRow
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.workflow_ends import IS_OPEN
from taskmanager.store.sql.workflow_rows import fetch_nodes, fetch_workflow, fetch_workflows
from taskmanager.store.statistics import OWNED_CAP, LiveWorkflow, OwnWorkflow

# An index that is read at its end, and one of the nodes that have not ended.
_PROGRESS: Final = f"""
SELECT w.id,
    (SELECT coalesce(max(n.task_index) + 1, 0) FROM taskmanager_workflow_tasks AS n WHERE n.workflow_id = w.id),
    (
        SELECT count(*) FROM taskmanager_workflow_tasks AS n INDEXED BY taskmanager_workflow_tasks_to_end
        WHERE n.workflow_id = w.id AND {IS_OPEN}
    )
FROM json_each(?) AS wanted CROSS JOIN taskmanager_workflows AS w ON w.id = wanted.value
"""
_TASKS: Final = f"""
SELECT t.id, t.status, t.start_count, t.enqueued_at, t.error_code, t.next_retry_at IS t.enqueued_at,
    t.claimed_by_worker_id IS '{HELD}'
FROM taskmanager_workflow_tasks AS n CROSS JOIN taskmanager_tasks AS t ON t.id = n.task_id WHERE n.workflow_id = ?
"""
_OUTPUT: Final = "SELECT max(result) FROM taskmanager_workflow_tasks WHERE workflow_id = ? AND task_index = ?"
_LIKE: Final = """
SELECT id FROM taskmanager_workflows
WHERE substr(id, 1, :size) = :part OR substr(id, -:size) = :part ORDER BY id LIMIT :limit
"""
_LIVE: Final = """
taskmanager_workflows INDEXED BY taskmanager_workflows_status
WHERE status = ? AND status <> 'COMPLETED' AND parent_workflow_id IS NULL
"""
_OF_TASKS: Final = """
SELECT n.task_id, n.workflow_id, w.name, n.node_id
FROM json_each(?) AS wanted CROSS JOIN taskmanager_workflow_tasks AS n ON n.task_id = wanted.value
JOIN taskmanager_workflows AS w ON w.id = n.workflow_id
"""


class Progress(NamedTuple):
    """How many nodes a workflow has, and how many of them have ended, however they have."""

    total: int
    ended: int


class NodeTask(NamedTuple):
    """The task of a node, as far as its node does not say the same."""

    status: str
    start_count: int
    enqueued_at: int
    error_code: str | None
    is_retry: bool
    is_held: bool


class WorkflowView(NamedTuple):
    """A workflow with its nodes by their index, their tasks by id, and the workflows that stand in it by id.

    A workflow that has an output has the result of that; the nodes have none here, which may be large.
    """

    row: WorkflowRow
    nodes: list[NodeRow]
    tasks: Mapping[str, NodeTask]
    children: "Mapping[str, WorkflowView]"

    @property
    def progress(self) -> Progress:
        """Return how far it has come."""
        return Progress(len(self.nodes), sum(node.status in ("COMPLETED", "FAILED", "SKIPPED") for node in self.nodes))


def find_workflows(
    connection: Session, status: str | None, name: str | None, limit: int
) -> list[tuple[WorkflowRow, Progress]]:
    """Return workflows that are in no other one, newest first, each with how far it has come."""
    rows = fetch_workflows(connection, status, name, limit, None)
    found = progress_of(connection, [row.id for row in rows])
    return [(row, found[row.id]) for row in rows]


def progress_of(connection: Session, workflow_ids: Collection[str]) -> dict[str, Progress]:
    """Return how far each of these workflows has come."""
    rows = connection.execute(_PROGRESS, (json.dumps(list(workflow_ids)),)).fetchall()
    return {workflow_id: Progress(total, max(0, total - open_count)) for workflow_id, total, open_count in rows}


def live_workflows(connection: Session, limit: int) -> tuple[tuple[LiveWorkflow, ...], int]:
    """Return workflows that are in no other one and have not ended, and how many there are, at most `OWNED_CAP`.

    The paused ones come first, and the newest ones of the rest.
    """
    newest = f"SELECT id, name, status, sent_at FROM {_LIVE} ORDER BY sent_at DESC LIMIT {OWNED_CAP}"
    rows = [row for status in ("PAUSED", "RUNNING") for row in connection.execute(newest, (status,)).fetchall()]
    progress = progress_of(connection, [row[0] for row in rows[:limit]]) if rows else {}
    return tuple(LiveWorkflow._make((*row, *progress[row[0]])) for row in rows[:limit]), min(len(rows), OWNED_CAP)


def view_of(connection: Session, workflow_id: str) -> WorkflowView | None:
    """Return a workflow with all that stands in it, or None. Call it in a snapshot."""
    row = fetch_workflow(connection, workflow_id)
    if row is None:
        return None
    if row.status == "COMPLETED" and row.result is None and row.output_task_index is not None:
        row = row._replace(result=connection.execute(_OUTPUT, (workflow_id, row.output_task_index)).fetchone()[0])
    nodes = fetch_nodes(connection, workflow_id, has_results=False)
    tasks = {
        task_id: NodeTask._make((*about, bool(is_retry), bool(is_held)))
        for task_id, *about, is_retry, is_held in connection.execute(_TASKS, (workflow_id,)).fetchall()
    }
    children = {
        node.sub_workflow_id: child
        for node in nodes
        if node.sub_workflow_id is not None and (child := view_of(connection, node.sub_workflow_id)) is not None
    }
    return WorkflowView(row, nodes, tasks, children)


def workflow_ids_like(connection: Session, part: str, limit: int) -> list[str]:
    """Return the ids that are `part`, or begin or end with it; at most `limit`. A whole id is never ambiguous."""
    if fetch_workflow(connection, part) is not None:
        return [part]
    if not part:
        return []
    rows = connection.execute(_LIKE, {"part": part, "size": len(part), "limit": limit}).fetchall()
    return [workflow_id for (workflow_id,) in rows]


def workflows_of(connection: Session, task_ids: Collection[str]) -> dict[str, OwnWorkflow]:
    """Return the workflow of each of these tasks that is of one."""
    if not task_ids:
        return {}
    rows = connection.execute(_OF_TASKS, (json.dumps(list(task_ids)),)).fetchall()
    return {task_id: OwnWorkflow(*rest) for task_id, *rest in rows}
