"""How workflows are paused: which failures do it, and whose tasks wait then.

A task that waits belongs to `HELD` while its workflow is paused, and while its node waits again for others that were
reopened. Claims take no such row, and every start repeats the owner of the row, so an instance that has the task in
memory cannot start it.
"""

import json
from collections.abc import Collection, Iterable
from typing import Final

from taskmanager.model.workflows import HELD
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.statements import DUE
from taskmanager.store.sql.workflow_ends import IS_NOT_ABSORBED, IS_OPEN

TREE: Final = """
WITH RECURSIVE tree (id) AS (
    SELECT value FROM json_each(:ids)
    UNION SELECT c.id FROM tree JOIN taskmanager_workflows AS c ON c.parent_workflow_id = tree.id
)
SELECT id FROM tree
"""
"""These workflows with all that stand in them."""
TASKS_OF: Final = f"""
SELECT n.task_id FROM json_each(:ids) AS v CROSS JOIN taskmanager_workflow_tasks AS n
    INDEXED BY taskmanager_workflow_tasks_to_end ON n.workflow_id = v.value
WHERE {IS_OPEN} AND n.task_id IS NOT NULL
"""
"""The tasks of open nodes of these workflows."""
_PAUSE: Final = f"""
UPDATE taskmanager_workflows SET status = 'PAUSED', updated_at = :now
WHERE id IN ({TREE}) AND status = 'RUNNING' RETURNING id
"""
_HOLD: Final = f"""
UPDATE OR IGNORE taskmanager_tasks
SET status = 'PENDING', claimed = 0, claimed_at = NULL, claimed_by_worker_id = '{HELD}', claim_expires_at = NULL,
    updated_at = :now, {DUE}
WHERE id IN ({{these}}) AND status IN ('PENDING', 'CLAIMED')
"""
_HOLD_ALL: Final = _HOLD.format(these=TASKS_OF)
_HOLD_THESE: Final = _HOLD.format(
    these="""
    SELECT n.task_id FROM json_each(:ids) AS v CROSS JOIN taskmanager_workflow_tasks AS n ON n.task_id = v.value
        JOIN taskmanager_workflows AS w ON w.id = n.workflow_id
    WHERE w.status = 'PAUSED' OR n.status = 'PENDING'
    """
)
_HOLD_NODES: Final = (
    _HOLD.format(
        these="""
        SELECT task_id FROM taskmanager_workflow_tasks
        WHERE id IN (SELECT CAST(value AS INTEGER) FROM json_each(:ids))
        """
    )
    + " RETURNING id"
)
_WAIT: Final = """
UPDATE taskmanager_workflow_tasks SET status = 'PENDING' WHERE task_id IN (SELECT value FROM json_each(:ids))
"""
END_WAITING: Final = """
UPDATE OR IGNORE taskmanager_tasks
SET status = 'CANCELLED', claimed_by_worker_id = NULL, failed_at = :now, updated_at = :now, cancel_requested_at = :now,
    error_code = :code, failed_reason = :reason, next_retry_at = NULL, result = :result
WHERE id IN ({these}) AND status = 'PENDING' AND {whose}
RETURNING id, task_name, queue_name
"""
_FREE: Final = """
SELECT t.id FROM json_each(?) AS v CROSS JOIN taskmanager_tasks AS t ON t.id = v.value
WHERE t.status = 'PENDING' AND t.claimed_by_worker_id IS NULL
"""
_COUNTS: Final = "status = 'FAILED' AND {0}.is_optional = 0 AND {0}.is_accepted = 0"
# The joins have a fixed order: one that begins at the nodes of the workflow reads all of them for each skipped node.
# And they name `w`, so that nothing is looked at where a failure does not pause.
_HURT: Final = f"""
SELECT DISTINCT w.id
FROM json_each(?) AS v CROSS JOIN taskmanager_workflow_tasks AS n ON n.id = CAST(v.value AS INTEGER)
    CROSS JOIN taskmanager_workflows AS w ON w.id = n.workflow_id
WHERE w.on_error = 'pause' AND w.status = 'RUNNING' AND w.cancelled_at IS NULL AND (
    n.{_COUNTS.format("n")} AND {IS_NOT_ABSORBED}
    OR n.status = 'SKIPPED' AND EXISTS (
        SELECT 1 FROM json_each(iif(json_valid(n.dependencies), n.dependencies, '[]')) AS before
        CROSS JOIN taskmanager_workflow_tasks AS u
            ON u.workflow_id = w.id AND u.task_index = CAST(before.value AS INTEGER)
        WHERE u.{_COUNTS.format("u")}
    )
)
"""


def hurt(connection: Session, nodes: Iterable[int]) -> list[str]:
    """Return the workflows that are paused by failures, of which these nodes say that they are not absorbed.

    Either one of them has failed, or one that was skipped comes after a failure.
    """
    return [each for (each,) in connection.execute(_HURT, (json.dumps(list(nodes)),)).fetchall()]


def pause(connection: Session, workflow_ids: Iterable[str], now: int) -> list[str]:
    """Pause workflows that run, with their children. Return which were paused."""
    given = {"ids": json.dumps(list(workflow_ids)), "now": now}
    paused = [each for (each,) in connection.execute(_PAUSE, given).fetchall()]
    connection.execute(_HOLD_ALL, given | {"ids": json.dumps(paused)})
    return paused


def hold(connection: Session, task_ids: Iterable[str], now: int) -> None:
    """Hold those of these tasks that wait and must not begin: their workflow is paused, or their node waits."""
    connection.execute(_HOLD_THESE, {"ids": json.dumps(list(task_ids)), "now": now})


def wait(connection: Session, nodes: Collection[int], now: int) -> None:
    """Let those of these nodes wait whose tasks have not begun, or wait to go on. Hold these tasks."""
    if nodes:
        held = connection.execute(_HOLD_NODES, {"ids": json.dumps(list(nodes)), "now": now}).fetchall()
        connection.execute(_WAIT, {"ids": json.dumps([each for (each,) in held])})


def free_of(connection: Session, task_ids: Collection[str]) -> list[str]:
    """Return those of these tasks that are free."""
    if not task_ids:
        return []
    return [each for (each,) in connection.execute(_FREE, (json.dumps(list(task_ids)),)).fetchall()]
