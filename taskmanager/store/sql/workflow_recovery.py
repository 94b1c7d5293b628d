"""Puts right what another program has left half done in workflows that run: a tool, a person, an older version.

In a file that only this library writes there is nothing to do, because each end has its consequences in its own
transaction. So it looks first, without the lock for writing.
"""

from collections.abc import Callable
from typing import Any, Final

from taskmanager.model.record import TaskRow
from taskmanager.model.workflows import HELD
from taskmanager.store.sql.counting import Counting, counted
from taskmanager.store.sql.queries import task_rows
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.statements import TERMINAL_SQL, is_live
from taskmanager.store.sql.workflow_ends import HAS_ENDED, HAS_WORKFLOW, IS_OPEN
from taskmanager.store.sql.workflow_walk import Walk
from taskmanager.store.workflow_protocol import Advance

_RUNNING: Final = """
taskmanager_workflows AS w INDEXED BY taskmanager_workflows_status CROSS JOIN taskmanager_workflow_tasks AS n
    INDEXED BY taskmanager_workflow_tasks_{index} ON n.workflow_id = w.id
{joined} WHERE w.status = 'RUNNING' AND w.status <> 'COMPLETED' AND {which} LIMIT :limit
"""


def _of_running(what: str, index: str, which: str, joined: str = "") -> str:
    """Return a query for what an index finds in the workflows that run."""
    return f"SELECT {what} FROM {_RUNNING.format(index=index, which=which, joined=joined)}"


_CHILD: Final = "JOIN taskmanager_workflows AS c ON c.id = n.sub_workflow_id"
_TASK: Final = "LEFT JOIN taskmanager_tasks AS t ON t.id = n.task_id"
_BEGUN: Final = f"{IS_OPEN} AND n.status IN ('READY', 'ENQUEUED', 'RUNNING')"
_UNTOLD: Final = _of_running("n.id", "to_tell", f"n.is_passed_on = 0 AND {HAS_ENDED}")
_IDLE: Final = _of_running("n.id", "idle", "n.status = 'PENDING' AND n.open = 0 AND n.inputs_open = 0")
_WITHOUT_TASK: Final = _of_running("n.id", "to_end", f"{_BEGUN} AND n.is_subworkflow = 0 AND t.id IS NULL", _TASK)
_NOT_BEGUN: Final = _of_running("n.id", "to_end", f"{_BEGUN} AND c.status = 'PENDING'", _CHILD)
_CHILD_ENDED: Final = _of_running(
    "c.id", "to_end", f"{_BEGUN} AND c.status IN ('COMPLETED', 'FAILED', 'CANCELLED')", _CHILD
)
_TASK_ENDED: Final = _of_running(
    "t.id",
    "to_end",
    f"{IS_OPEN} AND n.status IN ('ENQUEUED', 'RUNNING') AND t.status IN ({TERMINAL_SQL}) AND t.updated_at <= :ended_by",
    _TASK,
)
_HELD: Final = f"""
SELECT t.id FROM taskmanager_tasks AS t INDEXED BY taskmanager_tasks_owned
JOIN taskmanager_workflow_tasks AS n ON n.task_id = t.id
JOIN taskmanager_workflows AS w ON w.id = n.workflow_id AND w.status <> 'PAUSED'
WHERE t.claimed_by_worker_id = '{HELD}' AND {is_live("t.")} AND t.status = 'PENDING' AND n.status <> 'PENDING'
LIMIT :limit
"""
_ALL_ENDED: Final = f"""
SELECT w.id FROM taskmanager_workflows AS w INDEXED BY taskmanager_workflows_status
WHERE w.status = 'RUNNING' AND w.status <> 'COMPLETED'
    AND NOT EXISTS (SELECT 1 FROM taskmanager_workflow_tasks AS n WHERE n.workflow_id = w.id AND {IS_OPEN}) LIMIT :limit
"""
_WITHOUT_WORKFLOW: Final = f"""
taskmanager_tasks AS t INDEXED BY taskmanager_tasks_in_workflows
WHERE t.is_workflow_task = 1 AND {is_live("t.")} AND t.id > CAST(:after AS TEXT)
    AND NOT {HAS_WORKFLOW}
ORDER BY t.id LIMIT :limit
"""
_STEPS: Final = (_UNTOLD, _IDLE, _WITHOUT_TASK, _NOT_BEGUN, _CHILD_ENDED, _TASK_ENDED, _HELD, _ALL_ENDED)
_FOUND: Final = (
    "ended nodes that nothing followed from", "nodes that wait for nothing", "ready nodes without a task",
    "child workflows that have not begun", "nodes whose child workflow has ended", "nodes whose task has ended",
    "held tasks of workflows that are not paused", "workflows whose nodes have all ended",
)  # fmt: skip
"""What each step finds."""


def recover(connection: Session, counting: Counting, now: int, grace_us: int, limit: int) -> tuple[int, Advance]:
    """See `Store.recover_workflows`."""
    given = {"ended_by": now - grace_us, "limit": limit}
    if not any(connection.execute(each, given | {"limit": 1}).fetchone() for each in _STEPS):
        return 0, Advance()
    with counted(connection, counting) as noted:
        return _put_right(Walk(connection, now, noted), given)


def half_done(connection: Session, ended_by: int, limit: int) -> dict[str, int]:
    """Return what `recover` would put right now: how many there are of each kind, at most `limit`."""
    given = {"ended_by": ended_by, "limit": limit}
    found = {what: len(connection.execute(each, given).fetchall()) for what, each in zip(_FOUND, _STEPS, strict=True)}
    return {what: number for what, number in found.items() if number}


def fetch_without_workflow(connection: Session, *, limit: int, after: str = "") -> list[TaskRow]:
    """See `Store.fetch_without_workflow`."""
    return task_rows(connection, _WITHOUT_WORKFLOW, {"after": after, "limit": limit})


def _put_right(walk: Walk, given: dict[str, int]) -> tuple[int, Advance]:
    """Each step finds what the ones before it have left, so a pass ends with the workflows that have ended by it."""
    count = 0
    acts: tuple[Callable[[list[Any]], None], ...] = (
        walk.follow, walk.judge, walk.enqueue, walk.begin_children, walk.end_children, walk.end_tasks,
        walk.free, walk.check,
    )  # fmt: skip
    for query, act in zip(_STEPS, acts, strict=True):
        found = [each for (each,) in walk.connection.execute(query, given).fetchall()]
        count += len(found)
        act(found)
        walk.go()
    return count, walk.advance()
