"""What a page about one workflow asks. A graph may have ten thousand nodes, and an open page asks every other second.

So the outline of the graph, which never changes, is read once; the status of each node at each look; and the rest of
those nodes alone that the page shows.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from taskmanager.model.workflows import HELD, NodeRow, WorkflowRow
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.task_views import MAX_BEGINNING_CHARS, MAX_VALUE_CHARS, Part
from taskmanager.store.sql.workflow_rows import HAS_BEGUN, IS_ENQUEUED

MAX_ERROR_CHARS: Final = 20_000
"""Of an error in JSON that is longer, only its code is shown."""
MAX_DEPENDENCIES_CHARS: Final = 200

_NODES: Final = "taskmanager_workflow_tasks AS n"
_OUTLINED: Final = (
    "task_index",
    "node_id",
    "task_name",
    "queue_name",
    "is_subworkflow",
    "sub_workflow_id",
    "dependencies",
)
_OUTLINE: Final = f"""
SELECT json_group_array(json_array({", ".join(_OUTLINED)}))
FROM (SELECT {", ".join(_OUTLINED)} FROM {_NODES} WHERE n.workflow_id = ? ORDER BY n.task_index)
"""
_STATUS: Final = f"""
iif(n.status = 'ENQUEUED' AND EXISTS (
    SELECT 1 FROM taskmanager_tasks AS t WHERE t.id = n.task_id AND ({HAS_BEGUN})
), 'RUNNING', n.status)
"""
_STATUSES: Final = f"SELECT json_group_array(json_array(n.task_index, {_STATUS})) FROM {_NODES} WHERE n.workflow_id = ?"
_ABOUT: Final = f"""
SELECT n.task_index, n.node_id, n.task_name, n.queue_name, {_STATUS}, iif({IS_ENQUEUED}, n.task_id, NULL),
    n.sub_workflow_id, substr(n.dependencies, 1, {MAX_DEPENDENCIES_CHARS}), n.join_type, n.min_success, n.is_optional,
    iif({IS_ENQUEUED}, coalesce(n.started_at, t.started_at), n.started_at), n.completed_at,
    iif(length(n.error) <= {MAX_ERROR_CHARS}, n.error, NULL), t.error_code, t.status, t.start_count, t.enqueued_at,
    t.next_retry_at IS t.enqueued_at, t.claimed_by_worker_id IS '{HELD}'
FROM json_each(?) AS wanted
CROSS JOIN {_NODES} ON n.workflow_id = ? AND n.task_index = CAST(wanted.value AS INTEGER)
LEFT JOIN taskmanager_tasks AS t ON t.id = n.task_id
"""
_WORKFLOW_CUT: Final = {
    "result": f"substr(w.result, 1, {MAX_VALUE_CHARS + 1})",
    "error": f"iif(length(w.error) <= {MAX_ERROR_CHARS}, w.error, NULL)",
}
_WORKFLOW: Final = f"""
SELECT {", ".join(_WORKFLOW_CUT.get(name, f"w.{name}") for name in WorkflowRow._fields)}, length(CAST(w.result AS BLOB))
FROM taskmanager_workflows AS w WHERE w.id = ?
"""
_OUTPUT: Final = f"""
SELECT substr(n.result, 1, {MAX_VALUE_CHARS + 1}), length(CAST(n.result AS BLOB)) FROM {_NODES}
WHERE n.workflow_id = ? AND n.task_index = ?
"""


class WorkflowHead(NamedTuple):
    """A workflow without its nodes. Its `result` may be the beginning of one; the row has none."""

    row: WorkflowRow
    result: Part | None


class NodeAbout(NamedTuple):
    """What a page says of one node, and of its task."""

    task_index: int
    node_id: str
    task_name: str
    queue_name: str
    status: str
    task_id: str | None
    sub_workflow_id: str | None
    dependencies: str
    join_type: str
    min_success: int | None
    is_optional: int
    started_at: int | None
    completed_at: int | None
    error: str | None
    error_code: str | None
    task_status: str | None
    start_count: int | None
    enqueued_at: int | None
    is_retry: int
    is_held: int


def workflow_head(connection: Session, workflow_id: str) -> WorkflowHead | None:
    """Return a workflow without its nodes, or None."""
    found = connection.execute(_WORKFLOW, (workflow_id,)).fetchone()
    if found is None:
        return None
    row, size, text = WorkflowRow._make(found[:-1]), found[-1], found[WorkflowRow._fields.index("result")]
    if row.status == "COMPLETED" and text is None and row.output_task_index is not None:
        text, size = connection.execute(_OUTPUT, (workflow_id, row.output_task_index)).fetchone() or (None, None)
    return WorkflowHead(row._replace(result=None), _part(text, size))


def _part(text: str | None, size: int | None) -> Part | None:
    if text is None or size is None:
        return None
    is_whole = len(text) <= MAX_VALUE_CHARS
    return Part(text if is_whole else text[:MAX_BEGINNING_CHARS], size, is_whole)


def workflow_outline(connection: Session, workflow_id: str) -> list[NodeRow]:
    """Return the nodes with what makes the graph of them; all else of the rows is None."""
    places = {name: place for place, name in enumerate(NodeRow._fields)}
    blank: list[Any] = [None] * len(places)
    nodes = []
    for values in json.loads(connection.execute(_OUTLINE, (workflow_id,)).fetchone()[0]):
        for name, value in zip(_OUTLINED, values, strict=True):
            blank[places[name]] = value
        nodes.append(NodeRow._make(blank))
    return nodes


def node_statuses(connection: Session, workflow_id: str) -> dict[int, str]:
    """Return the status of each node by its index."""
    return dict(json.loads(connection.execute(_STATUSES, (workflow_id,)).fetchone()[0]))


def nodes_about(connection: Session, workflow_id: str, indexes: Collection[int]) -> Mapping[int, NodeAbout]:
    """Return what a page says of these nodes."""
    rows = connection.execute(_ABOUT, (json.dumps(sorted(indexes)), workflow_id)).fetchall()
    return {row[0]: NodeAbout._make(row) for row in rows}


def node_ids_of(connection: Session, workflow_id: str, indexes: Collection[int]) -> dict[int, str]:
    """Return the ids of these nodes."""
    query = f"""
        SELECT n.task_index, n.node_id FROM json_each(?) AS wanted
        CROSS JOIN {_NODES} ON n.workflow_id = ? AND n.task_index = CAST(wanted.value AS INTEGER)
    """
    return dict(connection.execute(query, (json.dumps(sorted(indexes)), workflow_id)).fetchall())


def workflow_statuses(connection: Session, workflow_ids: Collection[str]) -> dict[str, str]:
    """Return the status of each of these workflows."""
    query = "SELECT w.id, w.status FROM json_each(?) AS wanted JOIN taskmanager_workflows AS w ON w.id = wanted.value"
    return dict(connection.execute(query, (json.dumps(sorted(workflow_ids)),)).fetchall())
