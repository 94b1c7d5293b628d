"""Reads workflows, their nodes, and what the task of a node needs at its start."""

import json
from typing import Final

from taskmanager.model.errors import StoreError
from taskmanager.model.workflows import Input, NodeRow, NodeStart, WorkflowRow
from taskmanager.store.sql.session import Session

_WORKFLOW: Final = ", ".join(f"w.{name}" for name in WorkflowRow._fields)
_LISTED: Final = ", ".join("NULL" if name == "result" else f"w.{name}" for name in WorkflowRow._fields)
_NODES: Final = "taskmanager_workflow_tasks AS n LEFT JOIN taskmanager_tasks AS t ON t.id = n.task_id"
HAS_BEGUN: Final = "t.started_at IS NOT NULL OR t.next_retry_at IS NOT NULL OR t.snooze_count > 0"
"""Also while it waits for a retry, or sleeps."""
IS_ENQUEUED: Final = "n.status IN ('ENQUEUED', 'RUNNING', 'COMPLETED', 'FAILED')"
_SEEN: Final = {
    "task_id": f"iif({IS_ENQUEUED}, n.task_id, NULL)",
    "status": f"iif(n.status = 'ENQUEUED' AND ({HAS_BEGUN}), 'RUNNING', n.status)",
    "started_at": f"iif({IS_ENQUEUED}, coalesce(n.started_at, t.started_at), n.started_at)",
}
"""Whether a node runs is what the row of its task says: a start writes nothing here. A node that was reopened still has
the task of its earlier run.
"""
_NODE: Final = ", ".join(_SEEN.get(name, f"n.{name}") for name in NodeRow._fields)
_LARGE: Final = dict.fromkeys(("args", "kwargs", "args_from"), "NULL")
_SUMMARY: Final = ", ".join((_SEEN | _LARGE).get(name, f"n.{name}") for name in NodeRow._fields)

_SHOWN: Final = ", ".join((_SEEN | _LARGE | {"result": "NULL"}).get(name, f"n.{name}") for name in NodeRow._fields)


def fetch_workflow(connection: Session, workflow_id: str) -> WorkflowRow | None:
    """See `Store.fetch_workflow`."""
    query = f"SELECT {_WORKFLOW} FROM taskmanager_workflows AS w WHERE w.id = ?"
    row = connection.execute(query, (workflow_id,)).fetchone()
    return None if row is None else WorkflowRow._make(row)


def fetch_workflows(
    connection: Session, status: str | None, name: str | None, limit: int, before: tuple[int, str] | None
) -> list[WorkflowRow]:
    """See `Store.fetch_workflows`."""
    conditions, given = ["w.parent_workflow_id IS NULL"], {"status": status, "name": name, "limit": limit}
    conditions += [f"w.{each} = :{each}" for each in ("status", "name") if given[each] is not None]
    if status not in (None, "COMPLETED"):
        conditions.append("w.status <> 'COMPLETED'")  # for the partial index
    if before is not None:
        conditions.append("(w.sent_at, w.id) < (:before_at, :before_id)")
        given["before_at"], given["before_id"] = before
    query = f"""
        SELECT {_LISTED} FROM taskmanager_workflows AS w WHERE {" AND ".join(conditions)}
        ORDER BY w.sent_at DESC, w.id DESC LIMIT :limit
    """
    return list(map(WorkflowRow._make, connection.execute(query, given).fetchall()))


def fetch_nodes(connection: Session, workflow_id: str, *, has_results: bool = True) -> list[NodeRow]:
    """See `Store.fetch_nodes`. A screen needs no results."""
    columns = _SUMMARY if has_results else _SHOWN
    query = f"SELECT {columns} FROM {_NODES} WHERE n.workflow_id = ? ORDER BY n.task_index"
    return list(map(NodeRow._make, connection.execute(query, (workflow_id,)).fetchall()))


def fetch_node(connection: Session, workflow_id: str, node_id: str) -> NodeRow | None:
    """See `Store.fetch_node`."""
    query = f"SELECT {_NODE} FROM {_NODES} WHERE n.workflow_id = ? AND n.node_id = ?"
    row = connection.execute(query, (workflow_id, node_id)).fetchone()
    return None if row is None else NodeRow._make(row)


_START: Final = """
SELECT w.id, w.status, w.cancelled_at IS NOT NULL, n.inputs_open > 0, n.args_from
FROM taskmanager_workflow_tasks AS n JOIN taskmanager_workflows AS w ON w.id = n.workflow_id WHERE n.task_id = ?
"""
# A result that is asked for in many places is read once.
_INPUTS: Final = """
SELECT n.workflow_id, n.task_index, n.node_id, n.status, n.result, n.error FROM json_each(?) AS v
CROSS JOIN taskmanager_workflow_tasks AS n
    ON n.workflow_id = json_extract(v.value, '$[0]') AND n.task_index = CAST(json_extract(v.value, '$[1]') AS INTEGER)
"""


def node_start(connection: Session, task_id: str) -> NodeStart | None:
    """See `Store.node_start`."""
    with connection.snapshot():
        found = connection.execute(_START, (task_id,)).fetchone()
        if found is None:
            return None
        workflow_id, status, is_cancelled, waits, args_from = found
        try:
            inputs = _inputs(connection, json.loads(args_from or "[]"))
        except (ValueError, TypeError, KeyError) as error:
            raise StoreError(f"what task {task_id} takes of other nodes cannot be read: {error!r}") from error
    return NodeStart(workflow_id, status, bool(is_cancelled), bool(waits), inputs)


def _inputs(connection: Session, wanted: list[tuple[list[int | str], str, int, str]]) -> tuple[Input, ...]:
    sources = {(source, index) for _, source, index, _ in wanted}
    rows = connection.execute(_INPUTS, (json.dumps(sorted(sources)),)).fetchall()
    nodes = {(source, index): rest for source, index, *rest in rows}
    return tuple([Input(tuple(path), kind, *nodes[source, index]) for path, source, index, kind in wanted])
