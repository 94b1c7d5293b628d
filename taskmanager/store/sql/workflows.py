"""The verbs that change workflows, and what the commit of a task means for the workflow it belongs to.

Whatever ends the task of a node calls `follow` or `advance` in its own transaction. So no end is without its
consequences, whoever writes it and whatever happens to the process then.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Final

from taskmanager.model.errors import StoreError
from taskmanager.model.result import TaskError
from taskmanager.model.states import TERMINAL, WAITING, BuiltInTaskCode
from taskmanager.model.workflows import AFTER, ENDED_WORKFLOW, HELD, Graph, NodeRow, WorkflowRow
from taskmanager.rules.workflows import is_awaited
from taskmanager.store.constraints import encodable
from taskmanager.store.noted import Noted
from taskmanager.store.sql import workflow_pauses as pauses
from taskmanager.store.sql.counting import Counting, counted
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.statements import GRAPH, Row, is_live
from taskmanager.store.sql.workflow_ends import IS_OPEN
from taskmanager.store.sql.workflow_reopening import reopen_tasks
from taskmanager.store.sql.workflow_rows import fetch_workflow
from taskmanager.store.sql.workflow_walk import Walk
from taskmanager.store.workflow_protocol import Advance

_CANCELLED: Final = TaskError(BuiltInTaskCode.TASK_CANCELLED, "its workflow was cancelled")


def start(connection: Session, graph: Graph, now: int) -> tuple[WorkflowRow | None, Advance]:
    """See `Store.start_workflow`."""
    try:
        return _start(connection, graph, now)
    except UnicodeEncodeError:
        return _start(connection, encodable(graph), now)


def _start(connection: Session, graph: Graph, now: int) -> tuple[WorkflowRow | None, Advance]:
    root = graph.workflows[0].id
    with counted(connection, None) as noted:  # no task ends here
        if (there := fetch_workflow(connection, root)) is not None:
            return there, Advance()
        workflows = [each._replace(status="PENDING") for each in graph.workflows]
        tables: tuple[Sequence[Row], ...] = workflows, _counted(graph), graph.edges
        for kind, rows in zip(GRAPH, tables, strict=True):
            if connection.write(kind, rows) != len(rows):
                left = f"rows of workflow {root} are there already, and its own is not"
                raise StoreError(f"{left}: somebody has deleted it by halves; run `taskmanager doctor`")
        walk = Walk(connection, now, noted)
        walk.begin([root])
        return None, walk.advance()


def _counted(graph: Graph) -> list[NodeRow]:
    """Return the nodes as they stand at the start: each counts what it depends on, and none of that has ended."""
    joins = {(node.workflow_id, node.task_index): node.join_type for node in graph.nodes}
    ends: defaultdict[tuple[str, int], int] = defaultdict(int)
    inputs: defaultdict[tuple[str, int], int] = defaultdict(int)
    for workflow_id, _, to_index, means in graph.edges:
        key = workflow_id, to_index
        ends[key] += means & AFTER
        inputs[key] += is_awaited(means, joins[key])
    return [_fresh(node, ends[node[:2]], inputs[node[:2]]) for node in graph.nodes]


def _fresh(node: NodeRow, ends: int, inputs: int) -> NodeRow:
    return node._replace(
        status="PENDING", task_id=None, open=ends, completed=0, failed=0, inputs_open=inputs,
        inputs_failed=0,
    )  # fmt: skip


def advance(connection: Session, ended: Collection[str], now: int, noted: Noted) -> Advance:
    """Do all that follows in workflows from the ends of these tasks, in the transaction that ends them."""
    walk = Walk(connection, now, noted)
    walk.end_tasks(ended)
    return walk.advance()


# Of these alone the join may not hold: something that they depend on was opened again, or has failed since.
_WAIT_AGAIN: Final = """
SELECT n.id FROM json_each(:ids) AS v CROSS JOIN taskmanager_workflow_tasks AS n ON n.task_id = v.value
WHERE n.open + n.failed + n.inputs_open + n.inputs_failed > 0
"""


def follow(connection: Session, changes: Sequence[Row], noted: Noted) -> Advance:
    """Do all that follows in workflows from a commit, in its transaction.

    Each change is a task of a workflow, its status before and after, and when that was.
    """
    now = max(at for *_, at in changes)
    walk = Walk(connection, now, noted)
    again = [task_id for task_id, before, after, _ in changes if before in TERMINAL and after not in TERMINAL]
    if again:
        reopen_tasks(walk, again)
    walk.end_tasks([task_id for task_id, _, after, _ in changes if after in TERMINAL])
    walk.go()
    waiting = [task_id for task_id, _, after, _ in changes if after in WAITING]
    if waiting:
        nodes = walk.ids(_WAIT_AGAIN, waiting)
        walk.wait(nodes)
        pauses.hold(connection, waiting, now)
        walk.judge(nodes)
    return walk.advance()


def pause(connection: Session, workflow_id: str, now: int) -> Advance | None:
    """See `Store.pause_workflow`."""
    with connection.transaction():
        row = fetch_workflow(connection, workflow_id)
        if row is None or row.status != "RUNNING" or row.cancelled_at is not None:
            return None
        pauses.pause(connection, [workflow_id], now)
        return Advance()


_RESUME: Final = f"""
UPDATE taskmanager_workflows SET status = 'RUNNING', updated_at = :now
WHERE id IN ({pauses.TREE}) AND status = 'PAUSED' RETURNING id
"""
_ACCEPT: Final = """
UPDATE taskmanager_workflow_tasks SET is_accepted = 1
WHERE workflow_id IN (SELECT value FROM json_each(:ids)) AND status = 'FAILED'
"""
_READIED: Final = f"{pauses.TASKS_OF} AND n.status <> 'PENDING'"


def resume(connection: Session, counting: Counting, workflow_id: str, now: int) -> Advance | None:
    """See `Store.resume_workflow`."""
    with counted(connection, counting) as noted:
        row = fetch_workflow(connection, workflow_id)
        if row is None or row.status in ENDED_WORKFLOW or _is_paused(connection, row.parent_workflow_id):
            return None
        walk = Walk(connection, now, noted)
        resumed = walk.ids(_RESUME, [workflow_id])
        if not resumed:
            return None
        walk.run(_ACCEPT, resumed)
        walk.free(walk.ids(_READIED, resumed))
        walk.take_up(resumed)
        return walk.advance()


def _is_paused(connection: Session, workflow_id: str | None) -> bool:
    row = None if workflow_id is None else fetch_workflow(connection, workflow_id)
    return row is not None and row.status == "PAUSED"


_CANCEL: Final = f"""
UPDATE taskmanager_workflows SET status = 'RUNNING', cancelled_at = :now, updated_at = :now
WHERE id IN ({pauses.TREE}) AND status IN ('PENDING', 'RUNNING', 'PAUSED') RETURNING id
"""
_NOT_BEGUN: Final = f"""
SELECT n.id FROM json_each(:ids) AS v CROSS JOIN taskmanager_workflow_tasks AS n
    INDEXED BY taskmanager_workflow_tasks_to_end ON n.workflow_id = v.value
WHERE {IS_OPEN} AND n.status IN ('PENDING', 'READY')
"""
_END_WAITING: Final = pauses.END_WAITING.format(
    these=pauses.TASKS_OF, whose=f"coalesce(claimed_by_worker_id, '{HELD}') = '{HELD}'"
)
_ASK: Final = f"""
UPDATE OR IGNORE taskmanager_tasks SET cancel_requested_at = :now, updated_at = :now
WHERE id IN ({pauses.TASKS_OF}) AND {is_live()} AND cancel_requested_at IS NULL
"""


def cancel(connection: Session, counting: Counting, workflow_id: str, now: int) -> Advance | None:
    """See `Store.cancel_workflow`."""
    with counted(connection, counting) as noted:
        row = fetch_workflow(connection, workflow_id)
        if row is None or row.status in ENDED_WORKFLOW or row.cancelled_at is not None:
            return None
        walk = Walk(connection, now, noted)
        cancelled = walk.ids(_CANCEL, [workflow_id])
        ended = walk.cancel(_END_WAITING, cancelled, _CANCELLED)
        walk.skip([(node, None) for node in walk.ids(_NOT_BEGUN, cancelled)])
        walk.run(_ASK, cancelled)
        walk.end_tasks(ended)
        walk.take_up(cancelled)
        return walk.advance()
