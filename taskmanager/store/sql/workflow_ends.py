"""Ends workflows whose nodes have all ended, by the rule, and says what that means for the workflow that one is in."""

import json
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from taskmanager.codec.values import MAX_ENCODED_BYTES, dumps, split_object
from taskmanager.rules.workflows import NodeEnd, WorkflowEnd, end_of_workflow
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.statements import one_of

HAS_ENDED: Final = one_of("n.status", ("COMPLETED", "FAILED", "SKIPPED"))
"""A node `n` has ended."""
IS_OPEN: Final = f"NOT {HAS_ENDED}"
"""It has not."""
HAS_WORKFLOW: Final = """
EXISTS (
    SELECT 1 FROM taskmanager_workflow_tasks AS n JOIN taskmanager_workflows AS w ON w.id = n.workflow_id
    WHERE n.task_id = t.id
)
"""
"""The workflow of a task `t` is there. A tool that knows no foreign keys deletes it without its nodes."""
IS_NOT_ABSORBED: Final = """
(
    NOT EXISTS (
        SELECT 1 FROM taskmanager_workflow_edges AS e
        WHERE e.workflow_id = n.workflow_id AND e.from_index = n.task_index
    ) OR EXISTS (
        SELECT 1 FROM taskmanager_workflow_edges AS e JOIN taskmanager_workflow_tasks AS d
            ON d.workflow_id = e.workflow_id AND d.task_index = e.to_index
        WHERE e.workflow_id = n.workflow_id AND e.from_index = n.task_index AND d.status = 'SKIPPED'
    )
)
"""
"""Nothing depends on the node `n`, or something was skipped that does. `is_absorbed` in the rules says the same."""
_DONE: Final = f"""
SELECT w.id, w.cancelled_at IS NOT NULL, w.output_task_index, w.success_policy
FROM json_each(?) AS v CROSS JOIN taskmanager_workflows AS w ON w.id = v.value
WHERE w.status = 'RUNNING'
    AND NOT EXISTS (SELECT 1 FROM taskmanager_workflow_tasks AS n WHERE n.workflow_id = w.id AND {IS_OPEN})
"""
_NAMED: Final = """
SELECT task_index, status, error FROM taskmanager_workflow_tasks
WHERE workflow_id = ? AND task_index IN (SELECT CAST(value AS INTEGER) FROM json_each(?))
ORDER BY completed_at, task_index
"""
_FIRST_ERROR: Final = f"""
SELECT n.error FROM taskmanager_workflow_tasks AS n
WHERE n.workflow_id = ? AND n.status = 'FAILED' AND n.is_optional = 0 AND {IS_NOT_ABSORBED}
ORDER BY n.completed_at, n.task_index LIMIT 1
"""
_END: Final = "UPDATE taskmanager_workflows SET status = ?, error = ?, completed_at = ?, updated_at = ? WHERE id = ?"
_PARENT: Final = """
SELECT n.id, w.status, w.error, w.output_task_index FROM taskmanager_workflows AS w JOIN taskmanager_workflow_tasks AS n
    ON n.workflow_id = w.parent_workflow_id AND n.task_index = w.parent_task_index
WHERE w.id = ?
"""
_OUTPUT: Final = "SELECT result FROM taskmanager_workflow_tasks WHERE workflow_id = ? AND task_index = ?"
_RESULTS: Final = """
SELECT node_id, result FROM taskmanager_workflow_tasks
WHERE workflow_id = ? AND status = 'COMPLETED' ORDER BY task_index
"""
_SIZE: Final = (
    "SELECT sum(length(result)) FROM taskmanager_workflow_tasks WHERE workflow_id = ? AND status = 'COMPLETED'"
)
_TOTALS: Final = "SELECT status, count(*) FROM taskmanager_workflow_tasks WHERE workflow_id = ? GROUP BY status"


class ParentNode(NamedTuple):
    """The node in which a workflow stands that has ended, and how it ends by that."""

    node: int
    end: NodeEnd
    summary: str


def end_workflows(connection: Session, workflow_ids: Iterable[str], now: int) -> list[str]:
    """End those of these workflows that run and have no open node. Return which."""
    done = connection.execute(_DONE, (json.dumps(sorted(workflow_ids)),)).fetchall()
    for workflow_id, *about in done:
        connection.execute(_END, (*_end(connection, workflow_id, *about), now, now, workflow_id))
    return [workflow_id for workflow_id, *_ in done]


def _end(
    connection: Session, workflow_id: str, is_cancelled: int, output: int | None, policy: str | None
) -> WorkflowEnd:
    cases = None if policy is None else _cases(policy)
    named = {output} - {None} | {index for case in cases or () for index in case}
    found = connection.execute(_NAMED, (workflow_id, json.dumps(list(named)))).fetchall()
    first = connection.execute(_FIRST_ERROR, (workflow_id,)).fetchone()
    return end_of_workflow(
        is_cancelled=bool(is_cancelled),
        output=output,
        cases=cases,
        ends={index: (status, error) for index, status, error in found},
        first_error=None if first is None else first[0],
    )


def _cases(policy: str) -> list[list[int]]:
    """Return the cases. None of them is met where somebody has edited them: a task must be able to end all the same."""
    try:
        cases = json.loads(policy)
        return [[int(index) for index in case] for case in cases]
    except (ValueError, TypeError):
        return []


def parent_of(connection: Session, workflow_id: str) -> ParentNode | None:
    """Return the node in which a workflow stands that has ended, or None if it stands in none."""
    found = connection.execute(_PARENT, (workflow_id,)).fetchone()
    if found is None:
        return None
    node, status, error, output = found
    totals = dict(connection.execute(_TOTALS, (workflow_id,)).fetchall())
    end = NodeEnd("FAILED", None, error)
    if status == "COMPLETED":
        end = NodeEnd("COMPLETED", _result(connection, workflow_id, output), None)
    return ParentNode(node, end, json.dumps({"status": status, "totals": totals, "error": _shown(error)}))


def _shown(error: str | None) -> Any:
    """Return an error as it is shown, or None if it is sealed."""
    try:
        return json.loads(error)["err"] if error else None
    except (ValueError, TypeError, KeyError):
        return None


def _result(connection: Session, workflow_id: str, output: int | None) -> str | None:
    """Return the stored form of what a workflow comes to, or None if it cannot be put together here.

    Without an output that is a dict of what its nodes came to. The results that a codec has sealed cannot be opened
    here, and all together may be too large.
    """
    if output is not None:
        found: tuple[str | None] = connection.execute(_OUTPUT, (workflow_id, output)).fetchone()
        return found[0]
    (size,) = connection.execute(_SIZE, (workflow_id,)).fetchone()
    if (size or 0) > MAX_ENCODED_BYTES:
        return None
    results = connection.execute(_RESULTS, (workflow_id,)).fetchall()
    try:
        return dumps({"ok": {node_id: split_object(text)["ok"] for node_id, text in results}})
    except (ValueError, TypeError, KeyError):
        return None
