"""Opens what has ended: nodes, what was skipped behind them, and the workflows they are in, up to the root.

What a reopened node had come to is not counted any more. A dependent that has completed keeps its result, and one whose
task has not begun, or waits for a retry, waits again until its join holds.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from taskmanager.model.workflows import ENDED_WORKFLOW
from taskmanager.store.sql.counting import Counting, counted
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.workflow_ends import HAS_ENDED
from taskmanager.store.sql.workflow_rows import fetch_workflow
from taskmanager.store.sql.workflow_walk import Walk
from taskmanager.store.workflow_protocol import Advance

_THESE: Final = "IN (SELECT value FROM json_each(:ids))"
_THESE_NODES: Final = "IN (SELECT CAST(value AS INTEGER) FROM json_each(:ids))"
_NODES_OF: Final = f"""
SELECT n.id, n.workflow_id FROM json_each(:ids) AS v CROSS JOIN taskmanager_workflow_tasks AS n ON n.task_id = v.value
WHERE {HAS_ENDED}
"""
_UNDONE: Final = f"""
SELECT id, sub_workflow_id FROM taskmanager_workflow_tasks WHERE workflow_id {_THESE} AND status <> 'COMPLETED'
"""
_OPEN_NODES: Final = f"""
UPDATE taskmanager_workflow_tasks
SET status = :status, is_accepted = 0, result = NULL, error = NULL, sub_workflow_summary = NULL, started_at = NULL,
    completed_at = NULL
WHERE id {_THESE_NODES}
"""
# What stands in one that was cancelled and has not ended stays cancelled with it.
_OPEN_WORKFLOWS: Final = f"""
UPDATE taskmanager_workflows AS w
SET status = :status, result = NULL, error = NULL, completed_at = NULL, updated_at = :now,
    cancelled_at = (SELECT o.cancelled_at FROM taskmanager_workflows AS o WHERE o.id = w.parent_workflow_id)
WHERE id {_THESE}
"""
_NODE_OF: Final = f"""
SELECT n.id FROM taskmanager_workflow_tasks AS n
WHERE n.workflow_id = ? AND n.task_index = ? AND {HAS_ENDED}
"""


def reopen(connection: Session, counting: Counting, workflow_id: str, now: int) -> Advance | None:
    """See `Store.reopen_workflow`."""
    with counted(connection, counting) as noted:
        row = fetch_workflow(connection, workflow_id)
        if row is None or row.status not in ("FAILED", "CANCELLED") or row.parent_workflow_id is not None:
            return None
        walk = Walk(connection, now, noted)
        walk.run(_OPEN_WORKFLOWS, [workflow_id], status="RUNNING")
        _open_undone(walk, [workflow_id])
        walk.take_up([workflow_id])
        return walk.advance()


def reopen_tasks(walk: Walk, task_ids: Iterable[str]) -> None:
    """Open the nodes of tasks that are put back."""
    found = walk.rows(_NODES_OF, task_ids)
    for workflow_id in dict.fromkeys(workflow_id for _, workflow_id in found):
        _open_upwards(walk, workflow_id)
    _open_nodes(walk, [node for node, _ in found], "ENQUEUED")


def _open_upwards(walk: Walk, workflow_id: str) -> str:
    """Open a workflow that has ended, and those that it is in. Return its status: PAUSED where one above it is."""
    row = fetch_workflow(walk.connection, workflow_id)
    if row is None or row.status not in ENDED_WORKFLOW:
        return "RUNNING" if row is None else row.status
    above = "RUNNING"
    if row.parent_workflow_id is not None:
        above = _open_upwards(walk, row.parent_workflow_id)
        nodes = walk.connection.execute(_NODE_OF, (row.parent_workflow_id, row.parent_task_index)).fetchall()
        _open_nodes(walk, [node for (node,) in nodes], "RUNNING")
    status = "PAUSED" if above == "PAUSED" else "RUNNING"
    walk.run(_OPEN_WORKFLOWS, [workflow_id], status=status)
    if status == "RUNNING":
        walk.take_up([workflow_id])
    return status


def _open_nodes(walk: Walk, nodes: Sequence[int], status: str) -> None:
    """Open nodes, and those behind them that would not be skipped any more."""
    behind: list[int] = []
    while nodes:
        dependents = walk.take_back(nodes)  # by what they have come to, so before that is forgotten
        walk.wait(dependents)
        walk.run(_OPEN_NODES, nodes, status=status)
        found = walk.skipped(dependents)
        _open_children(walk, [child for _, child in found if child is not None])
        nodes, status = [node for node, _ in found], "PENDING"
        behind += nodes
    walk.judge(behind)


def _open_undone(walk: Walk, workflow_ids: Sequence[str]) -> None:
    """Open all that has not completed in these workflows."""
    undone = walk.rows(_UNDONE, workflow_ids)
    nodes = [node for node, _ in undone]
    walk.take_back(nodes)
    walk.run(_OPEN_NODES, nodes, status="PENDING")
    _open_children(walk, [child for _, child in undone if child is not None])


def _open_children(walk: Walk, workflow_ids: Sequence[str]) -> None:
    """Let these workflows wait until their nodes are ready."""
    if workflow_ids:
        walk.run(_OPEN_WORKFLOWS, workflow_ids, status="PENDING")
        _open_undone(walk, workflow_ids)
