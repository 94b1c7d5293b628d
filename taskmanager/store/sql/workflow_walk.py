"""From what has ended in workflows to all that follows: who counts it, what is ready, what is paused, what has ended.

It goes in waves. A wave takes nodes that have ended, lets those that depend on them count that, and judges these from
their counters. The next wave is what was skipped, and the nodes in the parents of workflows that have ended. So a wave
is a handful of statements, however many nodes it has, and costs by the number of dependents.
"""

import json
from collections.abc import Collection, Iterable
from typing import Any, Final, NamedTuple

from taskmanager.codec.results import encode_error_text
from taskmanager.model.ids import node_task_id
from taskmanager.model.result import TaskError
from taskmanager.model.states import BuiltInTaskCode
from taskmanager.model.workflows import HELD
from taskmanager.rules.workflows import Counts, NodeEnd, end_of_node, judged, stored
from taskmanager.store.noted import Noted
from taskmanager.store.sql import workflow_pauses as pauses
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.statements import DUE, OF_NODE, TERMINAL_SQL, Row
from taskmanager.store.sql.workflow_ends import HAS_ENDED, IS_OPEN, end_workflows, parent_of
from taskmanager.store.workflow_protocol import Advance, FreeTask

_THESE: Final = "IN (SELECT value FROM json_each(:ids))"
_THESE_NODES: Final = "n.id IN (SELECT CAST(value AS INTEGER) FROM json_each(:ids))"
_EACH: Final = "json_each(:ids) AS v CROSS JOIN taskmanager_workflow_tasks AS n ON n.id = CAST(v.value AS INTEGER)"
_NODES: Final = "taskmanager_workflow_tasks AS n"

_TASK_ENDS: Final = f"""
SELECT n.id, t.status, t.result, t.started_at, coalesce(t.completed_at, t.failed_at, t.updated_at)
FROM json_each(:ids) AS v CROSS JOIN {_NODES} ON n.task_id = v.value JOIN taskmanager_tasks AS t ON t.id = n.task_id
WHERE {IS_OPEN} AND t.status IN ({TERMINAL_SQL})
"""
_END: Final = f"""
UPDATE {_NODES} SET status = ?, result = ?, error = ?, started_at = coalesce(started_at, ?), completed_at = ?,
    sub_workflow_summary = ?
WHERE n.id = ? AND {IS_OPEN}
"""
# Those that depend on these count them now. In a paused workflow they do so when it goes on.
_TELL: Final = f"""
UPDATE {_NODES} SET is_passed_on = 1
WHERE {_THESE_NODES} AND n.is_passed_on = 0 AND {HAS_ENDED}
    AND EXISTS (SELECT 1 FROM taskmanager_workflows AS w WHERE w.id = n.workflow_id AND w.status = 'RUNNING')
RETURNING id, workflow_id
"""
_TAKE_BACK: Final = f"UPDATE {_NODES} SET is_passed_on = 0 WHERE {_THESE_NODES} AND n.is_passed_on = 1 RETURNING id"
# Which edges are inputs is said by `is_awaited` in the rules. Counters that somebody has edited must let a task end.
_COUNT: Final = f"""
UPDATE {_NODES} SET open = max(0, open - :once * told.ends), completed = max(0, completed + :once * told.good),
    failed = max(0, failed + :once * (told.ends - told.good)), inputs_open = max(0, inputs_open - :once * told.inputs),
    inputs_failed = max(0, inputs_failed + :once * told.lacking)
FROM (
    SELECT d.id AS node, sum(e.means & 1) AS ends, sum(iif(n.status = 'COMPLETED', e.means & 1, 0)) AS good,
        count(*) FILTER (
            WHERE e.means & 2 <> 0 OR e.means & 4 <> 0 AND (d.join_type = 'all' OR e.means & 1 = 0)
        ) AS inputs,
        count(*) FILTER (WHERE e.means & 2 <> 0 AND n.status <> 'COMPLETED') AS lacking
    FROM {_EACH}
    CROSS JOIN taskmanager_workflow_edges AS e ON e.workflow_id = n.workflow_id AND e.from_index = n.task_index
    CROSS JOIN taskmanager_workflow_tasks AS d ON d.workflow_id = e.workflow_id AND d.task_index = e.to_index
    GROUP BY d.id
) AS told
WHERE n.id = told.node RETURNING id
"""
_COUNTERS: Final = f"""
SELECT n.id, n.sub_workflow_id, n.task_id, n.join_type, n.min_success, n.allow_failed_deps, n.open, n.completed,
    n.failed, n.inputs_open, n.inputs_failed
FROM {_EACH} JOIN taskmanager_workflows AS w ON w.id = n.workflow_id
WHERE n.status = :status AND (w.status = 'RUNNING' OR :anywhere = 1)
"""
_END_HELD: Final = pauses.END_WAITING.format(
    these="SELECT value FROM json_each(:ids)", whose=f"claimed_by_worker_id = '{HELD}'"
)
_SKIP: Final = f"UPDATE {_NODES} SET status = 'SKIPPED', completed_at = :now WHERE {_THESE_NODES}"
_CALLS: Final = f"""
SELECT n.id, n.workflow_id, n.task_index, n.args, n.kwargs, n.tags, n.delay_us,
    n.task_id IS NULL, n.task_name, n.queue_name, n.priority, n.max_retries, n.task_options
FROM {_EACH}
"""
_ENQUEUED: Final = f"UPDATE {_NODES} SET status = 'ENQUEUED', task_id = ? WHERE n.id = ?"
# That of an earlier workflow of the same id, which somebody has deleted without its tasks.
_FORGET: Final = f"DELETE FROM taskmanager_tasks WHERE id {_THESE} AND status IN ({TERMINAL_SQL}) RETURNING id"
# The task of a node that was reopened stands there, ended.
_AGAIN: Final = f"""
UPDATE taskmanager_tasks SET status = 'PENDING', enqueued_at = ?, updated_at = ?, claimed_at = NULL,
    claimed_by_worker_id = NULL, started_at = NULL, completed_at = NULL, failed_at = NULL, result = NULL,
    failed_reason = NULL, error_code = NULL, retry_count = 0, crash_count = 0, snooze_count = 0, next_retry_at = NULL,
    cancel_requested_at = NULL, progress = NULL, worker_pid = NULL, worker_hostname = NULL, worker_process_name = NULL
WHERE id = ? AND status IN ({TERMINAL_SQL})
"""
_FREE: Final = f"""
UPDATE taskmanager_tasks SET claimed_by_worker_id = NULL, updated_at = :now, {DUE}
WHERE id {_THESE} AND status = 'PENDING' AND claimed_by_worker_id = '{HELD}'
RETURNING id, task_name, queue_name, priority, enqueued_at, tags
"""
_BEGIN: Final = f"""
UPDATE taskmanager_workflows SET status = 'RUNNING', started_at = coalesce(started_at, :now), updated_at = :now
WHERE id {_THESE} AND status = 'PENDING' RETURNING id
"""
_BEGIN_NODES: Final = f"""
UPDATE {_NODES} SET status = 'RUNNING', started_at = :now WHERE {_THESE_NODES} AND {IS_OPEN} RETURNING sub_workflow_id
"""
_UNTOLD: Final = f"""
SELECT n.id FROM json_each(:ids) AS v CROSS JOIN {_NODES} INDEXED BY taskmanager_workflow_tasks_to_tell
    ON n.workflow_id = v.value
WHERE n.is_passed_on = 0 AND {HAS_ENDED}
"""
_WAITING: Final = f"""
SELECT n.id FROM json_each(:ids) AS v CROSS JOIN {_NODES} INDEXED BY taskmanager_workflow_tasks_to_end
    ON n.workflow_id = v.value
WHERE n.status = 'PENDING' AND {IS_OPEN}
"""
# What stands in a node that is skipped never begins.
_CLOSE: Final = f"""
UPDATE taskmanager_workflows SET status = 'CANCELLED', error = :error, completed_at = :now, updated_at = :now
WHERE id IN ({pauses.TREE}) AND status = 'PENDING' RETURNING id
"""
_END_HELD_IN: Final = pauses.END_WAITING.format(these=pauses.TASKS_OF, whose=f"claimed_by_worker_id = '{HELD}'")
_CLOSE_NODES: Final = f"""
UPDATE {_NODES} SET status = 'SKIPPED', completed_at = :now WHERE n.workflow_id {_THESE} AND {IS_OPEN}
"""


_NODE_SKIPPED: Final = TaskError(BuiltInTaskCode.TASK_CANCELLED, "its node was skipped")


def said_of(error: TaskError) -> dict[str, str]:
    """Return what `END_WAITING` says of a task that ends by this error."""
    return {"code": str(error.error_code), "reason": str(error.message), "result": encode_error_text(error)}


class Ended(NamedTuple):
    """A node that ends now."""

    id: int
    end: NodeEnd
    started_at: int | None
    completed_at: int
    summary: str | None = None


class Walk:
    """What one transaction changes in workflows, beginning with whatever it is given."""

    def __init__(self, connection: Session, now: int, noted: Noted) -> None:
        self.connection, self.now = connection, now
        self._noted = noted
        self._readied: dict[str, FreeTask] = {}
        self._ended: list[str] = []
        self._cancelled: list[str] = []
        self._due: list[int] = []
        """Nodes that have ended, and of which no dependent knows."""
        self._touched: set[str] = set()
        """Workflows that have perhaps ended."""

    def __repr__(self) -> str:
        return f"<Walk, {len(self._readied)} ready, {len(self._due)} due, {len(self._ended)} workflows ended>"

    def advance(self) -> Advance:
        """Do all that follows, and return what there is to tell of it."""
        self.go()
        free = pauses.free_of(self.connection, self._readied)
        return Advance(tuple(self._readied[each] for each in free), tuple(self._ended), tuple(self._cancelled))

    def go(self) -> None:
        """Do all that follows from what is known so far."""
        while self._due or self._touched:
            if self._due:
                self._wave()
            else:
                touched, self._touched = self._touched, set()
                ended = end_workflows(self.connection, touched, self.now)
                self._ended += ended
                self.end_children(ended)

    def _wave(self) -> None:
        ended, self._due = self._due, []
        told = self.rows(_TELL, ended)
        self._touched.update(workflow_id for _, workflow_id in told)
        nodes = [node for node, _ in told]
        self.judge(self.ids(_COUNT, nodes, once=1))
        hurt = pauses.hurt(self.connection, [*nodes, *self._due])
        if hurt:
            pauses.pause(self.connection, hurt, self.now)

    def end_tasks(self, task_ids: Iterable[str]) -> None:
        """End the nodes of these tasks that have ended."""
        found = self.rows(_TASK_ENDS, task_ids)
        self.end(Ended(node, end_of_node(status, result), *times) for node, status, result, *times in found)

    def end(self, ends: Iterable[Ended]) -> None:
        """End nodes, each once."""
        for node, end, started_at, completed_at, summary in ends:
            changed = self.connection.execute(_END, (*end, started_at, completed_at, summary, node))
            if changed.rowcount:
                self._due.append(node)

    def end_children(self, workflow_ids: Iterable[str]) -> None:
        """End the nodes in which these workflows stand, that have ended."""
        found = [parent_of(self.connection, each) for each in workflow_ids]
        self.end(Ended(each.node, each.end, None, self.now, each.summary) for each in found if each is not None)

    def follow(self, nodes: Iterable[int]) -> None:
        """Take up nodes that have ended, perhaps long ago."""
        self._due += nodes

    def check(self, workflow_ids: Iterable[str]) -> None:
        """Look whether these workflows have ended."""
        self._touched.update(workflow_ids)

    def take_back(self, nodes: Iterable[int]) -> list[int]:
        """Let nothing count the ends of these nodes any more. Return what depends on them."""
        return self.ids(_COUNT, self.ids(_TAKE_BACK, nodes), once=-1)

    def skipped(self, nodes: Iterable[int]) -> list[tuple[int, str | None]]:
        """Return those of these nodes that are SKIPPED and would not be by what they count now, with their children."""
        found = self.rows(_COUNTERS, nodes, status="SKIPPED", anywhere=1)
        return [(node, child) for node, child, _, *counts in found if judged(Counts(*counts)) != "SKIPPED"]

    def wait(self, nodes: Iterable[int]) -> None:
        """Let those of these nodes wait again that would not begin by what they count now, if their tasks wait."""
        found = self.rows(_COUNTERS, nodes, status="ENQUEUED", anywhere=1)
        pauses.wait(
            self.connection, [node for node, _, _, *counts in found if judged(Counts(*counts)) != "READY"], self.now
        )

    def judge(self, nodes: Iterable[int]) -> None:
        """Let those of these nodes begin, or be skipped, that wait for nothing more, where the workflow runs."""
        found: dict[str | None, list[tuple[int, str | None]]] = {"READY": [], "SKIPPED": [], None: []}
        skipped_tasks = []
        for node, child, task_id, *counts in self.rows(_COUNTERS, nodes, status="PENDING", anywhere=0):
            word = judged(Counts(*counts))
            found[word].append((node, child))
            if word == "SKIPPED" and task_id is not None:
                skipped_tasks.append(task_id)
        self.cancel(_END_HELD, skipped_tasks, _NODE_SKIPPED)
        self.skip(found["SKIPPED"])
        self.enqueue([node for node, child in found["READY"] if child is None], again=True)
        self.begin_children([node for node, child in found["READY"] if child is not None])

    def skip(self, found: Collection[tuple[int, str | None]]) -> None:
        """Skip these nodes, each with the child that stands in it."""
        nodes, children = [node for node, _ in found], [child for _, child in found if child is not None]
        self.run(_SKIP, nodes)
        self._due += nodes
        if children:
            error = stored(BuiltInTaskCode.UPSTREAM_SKIPPED, "the node of the workflow was skipped")
            closed = self.ids(_CLOSE, children, error=error)
            self.cancel(_END_HELD_IN, closed, _NODE_SKIPPED)
            self.run(_CLOSE_NODES, closed)
            self._ended += closed

    def enqueue(self, nodes: Iterable[int], *, again: bool = False) -> None:
        """Make the tasks of these nodes, free, from their rows alone.

        With `again`, a task that has ended is put back, and one that is held is freed: its node was reopened.
        """
        rows: list[tuple[int, Row]] = []
        first: list[Row] = []
        for node, workflow_id, index, args, kwargs, tags, delay_us, is_first, *call in self.rows(_CALLS, nodes):
            row = (node_task_id(workflow_id, index), args, kwargs, tags, self.now, self.now + delay_us, *call, None)
            rows.append((node, row))
            first += [row] if is_first else []
            self.ready(FreeTask._make((row[0], *call[:3], row[5], tags)))
        if not rows:
            return
        made = [row for _, row in rows]
        if self.connection.write(OF_NODE, made) != len(made) and again:
            if self.ids(_FORGET, [row[0] for row in first]):
                self.connection.write(OF_NODE, first)
            self.connection.executemany(_AGAIN, [(row[5], self.now, row[0]) for row in made])
            self.free([row[0] for row in made])
        self.connection.executemany(_ENQUEUED, [(row[0], node) for node, row in rows])

    def free(self, task_ids: Iterable[str]) -> None:
        """Free those of these tasks that are held."""
        for row in self.rows(_FREE, task_ids):
            self.ready(FreeTask._make(row))

    def ready(self, task: FreeTask) -> None:
        """Note that a task is free."""
        self._readied[task.task_id] = task

    def begin_children(self, nodes: Collection[int]) -> None:
        """Let the workflows begin that stand in these nodes."""
        self.begin(self.ids(_BEGIN_NODES, nodes))

    def begin(self, workflow_ids: Iterable[str]) -> None:
        """Let workflows that wait begin, with the nodes that depend on nothing."""
        begun = self.ids(_BEGIN, workflow_ids)
        if begun:
            self.take_up(begun)

    def take_up(self, workflow_ids: Collection[str]) -> None:
        """Judge every node of these workflows that waits, once those count that have ended meanwhile."""
        self.follow(self.ids(_UNTOLD, workflow_ids))
        self.check(workflow_ids)
        self.judge(self.ids(_WAITING, workflow_ids))

    def cancel(self, query: str, these: Iterable[Any], error: TaskError) -> list[str]:
        """Cancel waiting tasks by a form of `END_WAITING`. Return which."""
        found = self.rows(query, these, **said_of(error))
        self._noted.note_cancelled([names for _, *names in found], self.now)
        cancelled = [task_id for task_id, *_ in found]
        self._cancelled += cancelled
        return cancelled

    def rows(self, query: str, these: Iterable[Any], **given: Any) -> list[tuple[Any, ...]]:
        """Return what a query finds for these ids."""
        known = {"ids": json.dumps(list(these)), "now": self.now, **given}
        return [] if known["ids"] == "[]" else self.connection.execute(query, known).fetchall()

    def ids(self, query: str, these: Iterable[Any], **given: Any) -> list[Any]:
        """Return the first column of what a query finds for these ids."""
        return [row[0] for row in self.rows(query, these, **given)]

    def run(self, query: str, these: Iterable[Any], **given: Any) -> None:
        """Change what a statement says of these ids."""
        known = {"ids": json.dumps(list(these)), "now": self.now, **given}
        if known["ids"] != "[]":
            self.connection.execute(query, known)
