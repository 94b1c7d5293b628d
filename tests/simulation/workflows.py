"""What a workflow has promised: each node ends once, none begins before it may, and it has ended when its nodes have.

A seed with workflows has some graphs, drawn once, which processes start, start again, pause, resume and cancel.
"""

import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from taskmanager import ConfigurationError, Node, UnknownTask, Workflow, current_task
from taskmanager.model.workflows import AFTER, ENDED_NODE, ENDED_WORKFLOW, HELD, RESULT, VALUE

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

NAMES: Final = ("node", "node_once", "narrow_node", "shared_node")
"""The tasks of nodes: one that is safe to repeat, one that is not, and two whose queues have few places."""
RECOVER: Final = "recover_workflows"
VERBS: Final = frozenset(
    {"start_workflow", "reopen_workflow", "pause_workflow", "resume_workflow", "cancel_workflow", RECOVER}
)
"""What writes rows of workflows, beside the commits of tasks."""
READS: Final = frozenset(
    {
        "fetch_workflow", "fetch_workflows", "fetch_nodes", "fetch_node", "node_start", "fetch_without_workflow",
    }
)  # fmt: skip
PLANS: Final = ("sleep:0", "sleep:0.05", "sleep:0.7", "sleep:3", "fail:1", "fail:9", "snooze:0.5")
LATEST_US: Final = 8_000_000
"""When somebody does something to a workflow, at the latest."""
_ENDS: Final = {"COMPLETED": "COMPLETED"} | dict.fromkeys(("FAILED", "CANCELLED", "EXPIRED", "INTERRUPTED"), "FAILED")
_NODES: Final = """
SELECT n.workflow_id, n.task_index, n.status, n.task_id, n.is_subworkflow, n.join_type, n.min_success,
    n.allow_failed_deps, iif(t.status = 'COMPLETED' AND t.result LIKE '{"err"%', 'FAILED', t.status),
    t.claimed_by_worker_id, t.start_count
FROM taskmanager_workflow_tasks AS n LEFT JOIN taskmanager_tasks AS t ON t.id = n.task_id
"""
_WORKFLOWS: Final = "SELECT id, status, root_workflow_id, cancelled_at IS NOT NULL FROM taskmanager_workflows"
_EDGES: Final = "SELECT workflow_id, from_index, to_index, means FROM taskmanager_workflow_edges"


class NodeState(NamedTuple):
    """One node with its task, as they stand. A success whose value could not be stored is a failure of the node."""

    workflow_id: str
    task_index: int
    status: str
    task_id: str | None
    is_subworkflow: int
    join_type: str
    min_success: int | None
    allow_failed: int
    task_status: str | None
    owner: str | None
    start_count: int | None


class WorkflowState(NamedTuple):
    """One workflow as it stands."""

    id: str
    status: str
    root_id: str
    is_cancelled: int


class Graphs(NamedTuple):
    """All that stands of workflows in the file at one moment."""

    workflows: Mapping[str, WorkflowState]
    nodes: Mapping[tuple[str, int], NodeState]
    edges: Sequence[tuple[str, int, int, int]]


def read_graphs(connection: sqlite3.Connection) -> Graphs:
    """Return all that stands there."""
    nodes = [NodeState(*row) for row in connection.execute(_NODES).fetchall()]
    workflows = [WorkflowState(*row) for row in connection.execute(_WORKFLOWS).fetchall()]
    return Graphs(
        {each.id: each for each in workflows},
        {(each.workflow_id, each.task_index): each for each in nodes},
        connection.execute(_EDGES).fetchall(),
    )


class Drawn(NamedTuple):
    """One node of a graph: what it does, and what it takes of earlier ones."""

    label: int
    job: str
    plan: str
    values: tuple[int, ...]
    results: tuple[int, ...]
    after: tuple[int, ...]
    how: dict[str, Any]
    delay: float


class Drawing(NamedTuple):
    """One graph, which any process can make anew. Some of its nodes may stand in a child."""

    workflow_id: str
    nodes: tuple[Drawn, ...]
    on_error: Any
    optional: tuple[int, ...]
    child: tuple[Drawn, ...]

    def made_by(self, process: "Process") -> "Workflow[Any]":
        """Return it as this process defines it."""
        wf = Workflow(self.workflow_id, on_error=self.on_error)
        nodes: list[Node[Any]] = []
        for each in self.nodes:
            nodes.append(_add(wf, process, each, nodes))
        wf.optional(*[nodes[index] for index in self.optional])
        if self.child:
            inner, inside = Workflow(f"{self.workflow_id}-inner"), list[Node[Any]]()
            for each in self.child:
                inside.append(_add(inner, process, each, inside, nodes[0]))
            nodes.append(wf.add_workflow(inner.output(inside[-1]), node_id="inner"))
        return wf.output(nodes[-1])


def _add(
    wf: "Workflow[Any]", process: "Process", drawn: Drawn, before: list[Node[Any]], outer: Node[Any] | None = None
) -> Node[Any]:
    task: Any = process.jobs[drawn.job].with_options(delay=drawn.delay)
    given = [*([outer] if outer is not None else []), *(before[index] for index in drawn.values)]
    node: Node[Any] = wf.add(
        task, drawn.label, drawn.plan, [each.value for each in given], [before[index].result for index in drawn.results]
    )
    if drawn.after:
        node.after(*[before[index] for index in drawn.after], **drawn.how)
    return node


class Workflows:
    """The judge of all workflows of one seed, and who acts on them."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._chance = random.Random(f"graphs of {world.seed}")
        self._jobs = random.Random(f"nodes of {world.seed}")
        self.drawings: list[Drawing] = []
        self._seen = Graphs({}, {}, ())
        self._asking: Counter[str] = Counter()
        """Calls that start a workflow and have not come back: where it is there, what has ended may run again."""
        self._reopened: set[tuple[str, int]] = set()
        """Nodes that wait again since then. The task that has ended stands there until the node is ready."""
        self._inputs: dict[int, list[int]] = {}
        """What each node is to be given, by its label: the labels of those whose values it takes."""

    def plan(self) -> None:
        """Draw the graphs, and say when somebody does what to them."""
        for number in range(self._chance.choice((1, 2, 3))):
            drawing = self._draw(f"w{number}")
            self.drawings.append(drawing)
            self._note_inputs(drawing.nodes, [])
            self._note_inputs(drawing.child, [drawing.nodes[0].label])
            self._later(partial(self._start, drawing), 2_000_000)
            for act in (self._start, self._pause, self._pause, self._resume, self._resume, self._cancel):
                if self._chance.random() < (0.15 if act == self._cancel else 0.4):
                    self._later(partial(act, drawing), LATEST_US)

    def _later(self, act: Callable[[], None], within_us: int) -> None:
        self._world.at(self._chance.randrange(within_us), act)

    def _draw(self, workflow_id: str) -> Drawing:
        chance = self._chance
        nodes = tuple(self._draw_node(index) for index in range(chance.randint(2, 7)))
        child = tuple(self._draw_node(index) for index in range(chance.choice((0, 0, 2, 3))))
        optional = tuple(index for index in range(len(nodes) - 1) if chance.random() < 0.2)
        return Drawing(workflow_id, nodes, chance.choice(("fail", "fail", "pause")), optional, child)

    def _note_inputs(self, nodes: Sequence[Drawn], first: list[int]) -> None:
        for each in nodes:
            self._inputs[each.label] = [*first, *(nodes[index].label for index in each.values)]

    def _draw_node(self, index: int) -> Drawn:
        chance, earlier = self._chance, range(index)
        kinds = {each: chance.choice(("value", "result", "after", "after", "none")) for each in earlier}
        after = tuple(each for each in earlier if kinds[each] == "after")
        how: dict[str, Any] = {"allow_failed": chance.random() < 0.3}
        if len(after) > 1:
            how = chance.choice((how, {"join": "any"}, {"join": "quorum", "min_success": 2}))
        plan = chance.choice(PLANS)
        values, results = (tuple(each for each in earlier if kinds[each] == kind) for kind in ("value", "result"))
        job = self._jobs.choice(NAMES)
        return Drawn(self._world.next_label(), job, plan, values, results, after, how, chance.choice((0, 0, 0, 0.5)))

    # What people do.

    def _act(self, what: str, act: "Callable[[Process], Any]") -> None:
        process = self._world.one()
        if process is not None:
            self._world.log(process, "is to", what)
            process.call(lambda: process.spawn(act(process), what))

    def _start(self, drawing: Drawing) -> None:
        self._act(f"start {drawing.workflow_id}", partial(self._started, drawing))

    async def _started(self, drawing: Drawing, process: "Process") -> None:
        self._asking[drawing.workflow_id] += 1
        made = drawing.made_by(process)
        try:
            handle = await process.manager.start_workflow(made, workflow_id=drawing.workflow_id)
        except ConfigurationError as exc:
            self._world.fault(f"{process} cannot start {drawing.workflow_id}: {exc}")
            return
        self._asking[drawing.workflow_id] -= 1
        self._world.log(process, "has started", drawing.workflow_id, "again" if handle.is_duplicate else "")
        is_there = drawing.workflow_id in self._seen.workflows or handle.is_duplicate
        if not (is_there or self._world.loss_count):
            self._world.fault(f"{drawing.workflow_id} was called started by {process}, and is not in the store")
        found = await handle.result()
        self._world.log(process, "hears of the end of", drawing.workflow_id, found.is_ok())

    def _pause(self, drawing: Drawing) -> None:
        self._do("pause", drawing)

    def _resume(self, drawing: Drawing) -> None:
        self._do("resume", drawing)

    def _cancel(self, drawing: Drawing) -> None:
        self._do("cancel", drawing)

    def _do(self, verb: str, drawing: Drawing) -> None:
        async def act(process: "Process") -> None:
            try:
                done = await getattr(process.manager.workflow(drawing.workflow_id), verb)()
            except UnknownTask:
                return
            self._world.log(process, verb, drawing.workflow_id, done)

        self._act(f"{verb} {drawing.workflow_id}", act)

    def resume_all(self) -> None:
        """Nothing stays paused: a failure may have paused it, or somebody."""
        for drawing in self.drawings:
            self._resume(drawing)

    # What the judge sees.

    @property
    def is_judged(self) -> bool:
        """Whether the rules hold: a file that was lost took workflows with it."""
        return bool(self.drawings) and not self._world.loss_count

    def may_change(self, task_id: str) -> bool:
        """Whether somebody has asked that something of its workflow runs again; or a copy of the file knows only its
        beginning, and goes on from there.
        """
        if self._world.loss_count:
            return True
        node = next((each for each in self._seen.nodes.values() if each.task_id == task_id), None)
        if node is None or (node.workflow_id, node.task_index) in self._reopened:
            return True
        return self._is_loose(node.workflow_id)

    def _is_loose(self, workflow_id: str) -> bool:
        workflow, checks = self._seen.workflows.get(workflow_id), self._world.checks
        if workflow is None:
            return True
        root = workflow.root_id
        tasks = [each.task_id for each in self._seen.nodes.values() if self._root_of(each) == root and each.task_id]
        if self._asking[root] or not checks.may_revive.isdisjoint(tasks):
            return True
        return self._world.batches.has_retried

    def _root_of(self, node: NodeState) -> str | None:
        workflow = self._seen.workflows.get(node.workflow_id)
        return None if workflow is None else workflow.root_id

    def observe(self, process: "Process", verb: str) -> None:
        """Something was written: compare what stands there with what stood there."""
        if not self.is_judged:
            return
        before, now = self._seen, self._world.disk.graphs()
        self._seen = now
        what = f"by {verb} of {process}"
        for key, node in now.nodes.items():
            self._judge_node(key, before.nodes.get(key), node, now, what)
        open_nodes = {each.workflow_id for each in now.nodes.values() if each.status not in ENDED_NODE}
        for workflow_id, workflow in now.workflows.items():
            old = before.workflows.get(workflow_id)
            if old is None or old.status != workflow.status:
                self._world.log(process, verb, workflow_id, workflow.status)
            has_ended, is_open = workflow.status in ENDED_WORKFLOW, workflow_id in open_nodes
            if has_ended and is_open:
                self._world.fault(f"{workflow_id} is {workflow.status}, and has nodes that have not ended, {what}")
            if workflow.status == "RUNNING" and not is_open:
                self._world.fault(f"{workflow_id} is RUNNING, and all its nodes have ended, {what}")

    def _judge_node(self, key: tuple[str, int], old: NodeState | None, new: NodeState, now: Graphs, what: str) -> None:
        fault, status = self._world.fault, new.status
        if old is not None and old.status in ENDED_NODE and old.status != status and not self._is_loose(key[0]):
            fault(f"node {key} was {old.status}, and is {status} {what}")
        if status != "PENDING":
            self._reopened.discard(key)
        elif old is not None and old.status in ENDED_NODE:
            self._reopened.add(key)
        may_be = {_ENDS.get(new.task_status or ""), "SKIPPED", "PENDING" if key in self._reopened else None}
        if new.task_status in _ENDS and status not in may_be:
            fault(f"node {key} is {status}, and its task is {new.task_status} {what}")
        if new.task_status is not None and new.task_status not in _ENDS and status in ENDED_NODE:
            fault(f"node {key} is {status}, and its task is {new.task_status} {what}")
        # A task that was retried waits again if something that its node depends on is open again.
        is_held = now.workflows[key[0]].status == "PAUSED" or status == "PENDING"
        if new.task_status in ("PENDING", "CLAIMED") and is_held != (new.owner == HELD):
            fault(f"node {key} waits at {new.owner}, and its workflow is {now.workflows[key[0]].status} {what}")

    def begins(self, process: "Process", label: int, inputs: list[int]) -> None:
        """The function of a node begins: what it depends on must have come to what it needs."""
        task_id, attempt = current_task().task_id, current_task().attempt
        if not self.is_judged:
            return
        if inputs != self._inputs.get(label, []):
            self._world.fault(f"node {label} is given {inputs} in {process}, and not {self._inputs.get(label)}")
        now = self._world.disk.graphs()
        node = next((each for each in now.nodes.values() if each.task_id == task_id), None)
        if node is None or self._is_loose(node.workflow_id) or process.was_out:
            return
        if (node.task_status, node.start_count) != ("RUNNING", attempt):
            return
        place = node.workflow_id, node.task_index
        edges = [(source, means) for each, source, to, means in now.edges if (each, to) == place]
        found = {source: now.nodes[node.workflow_id, source].status for source, _ in edges}
        joined = [found[source] for source, means in edges if means & AFTER]
        good = joined.count("COMPLETED")
        holds = {
            "all": all(each in ENDED_NODE for each in joined) and (bool(node.allow_failed) or good == len(joined)),
            "any": good >= 1 or not joined,
            "quorum": good >= (node.min_success or 0),
        }[node.join_type]
        lacking = [source for source, means in edges if means & VALUE and found[source] != "COMPLETED"]
        early = [source for source, means in edges if means & RESULT and found[source] not in ENDED_NODE]
        if not holds or lacking or early:
            self._world.fault(f"node {node} begins in {process}, and what it depends on is {found}")

    def at_the_end(self) -> None:
        """Everything has ended."""
        if not self.is_judged:
            return
        for each in self._world.disk.graphs().workflows.values():
            if each.status not in ENDED_WORKFLOW:
                self._world.fault(f"{each} never ends")

    @property
    def is_over(self) -> bool:
        """Whether none is left that has not ended."""
        workflows = self._world.disk.graphs().workflows.values() if self.drawings else ()
        return all(each.status in ENDED_WORKFLOW for each in workflows)
