"""A workflow: its rows in the store, and what users see of it.

A node is one task, or a whole child workflow, in a graph. Its row holds all that its task needs, so whoever ends a task
can ready what depends on it, without the functions and without the key of a codec.
"""

from datetime import datetime
from typing import Final, Literal, NamedTuple, final

from taskmanager.model.dataclass import dataclass
from taskmanager.model.result import TaskError

WorkflowStatus = Literal["PENDING", "RUNNING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED"]
NodeStatus = Literal["PENDING", "READY", "ENQUEUED", "RUNNING", "COMPLETED", "FAILED", "SKIPPED"]
Join = Literal["all", "any", "quorum"]
OnError = Literal["fail", "pause"]

ENDED_WORKFLOW: Final = frozenset({"COMPLETED", "FAILED", "CANCELLED"})
ENDED_NODE: Final = frozenset({"COMPLETED", "FAILED", "SKIPPED"})
MAX_DEPTH: Final = 32
"""How deep workflows may stand in each other."""
HELD: Final = "held"
"""The owner of a waiting task whose workflow is paused: no instance has this id, so nobody claims or starts it."""

# What an edge means for the node at its end; one edge may mean several.
AFTER: Final = 1
"""It counts for the join of the node."""
VALUE: Final = 2
"""The node takes its value, so it must be COMPLETED."""
RESULT: Final = 4
"""The node takes its `TaskResult`, so it must have ended; unless the join of the same edge is any or quorum."""


class WorkflowRow(NamedTuple):
    """One row of `taskmanager_workflows`, in the order of its columns. Instants are microseconds UTC, JSON is text.

    `id` and `open` columns of the tables have these names here too. `success_policy` is JSON: a list of cases, each a
    list of node indexes; None is the default policy. `error` is JSON of the stored form of a `TaskError`.
    `cancelled_at` is set while it ends because somebody has cancelled it. Of a root, `root_workflow_id` is its own id.
    """

    id: str
    name: str
    status: str
    on_error: str
    output_task_index: int | None
    success_policy: str | None
    result: str | None
    error: str | None
    definition_key: str
    parent_workflow_id: str | None
    parent_task_index: int | None
    depth: int
    root_workflow_id: str
    sent_at: int
    created_at: int
    started_at: int | None
    completed_at: int | None
    cancelled_at: int | None
    updated_at: int


class NodeRow(NamedTuple):
    """One row of `taskmanager_workflow_tasks`. The table has the columns in another order: what may be large is last.

    `args` and `kwargs` have null where a placeholder stands, and `args_from` says what comes there: JSON, a list of
    `[path, workflow_id, task_index, "value" | "result"]`, where a path begins with the place or the name of an
    argument. `dependencies` is JSON, the indexes of what it depends on, for readers. `allow_failed_deps`, `join_type`
    and `min_success` concern the edges that are `AFTER`; `open`, `completed` and `failed` count these, and the
    `inputs_` those that are `VALUE` or `RESULT`; SKIPPED counts as failed. `task_id` is None until its task is
    enqueued. `result` of a COMPLETED node and `error` of a FAILED one are what its task has stored, perhaps sealed; a
    child has the result of its output. `delay_us` counts from the moment in which it is ready.
    """

    workflow_id: str
    task_index: int
    node_id: str
    task_name: str
    args: str | None
    kwargs: str | None
    queue_name: str
    priority: int
    max_retries: int
    task_options: str
    tags: str | None
    delay_us: int
    dependencies: str
    args_from: str | None
    allow_failed_deps: int
    join_type: str
    min_success: int | None
    is_optional: int
    is_subworkflow: int
    sub_workflow_id: str | None
    sub_workflow_summary: str | None
    status: str
    task_id: str | None
    open: int
    completed: int
    failed: int
    inputs_open: int
    inputs_failed: int
    result: str | None
    error: str | None
    created_at: int
    started_at: int | None
    completed_at: int | None


class EdgeRow(NamedTuple):
    """One row of `taskmanager_workflow_edges`: `means` is a sum of `AFTER`, `VALUE` and `RESULT`."""

    workflow_id: str
    from_index: int
    to_index: int
    means: int


class Graph(NamedTuple):
    """A workflow with its children, as it is stored at its start: the root is the first of `workflows`."""

    workflows: tuple[WorkflowRow, ...]
    nodes: tuple[NodeRow, ...]
    edges: tuple[EdgeRow, ...]


class Input(NamedTuple):
    """What a placeholder in the arguments of a node stands for, read when its task starts.

    `status` is that of the node that it names; `result` its stored result or error, None where it has none.
    """

    path: tuple[int | str, ...]
    kind: str
    node_id: str
    status: str
    result: str | None
    error: str | None


class NodeStart(NamedTuple):
    """What the task of a node needs at its start: the state of its workflow, and its inputs.

    It `waits` if something that it takes was opened again since its start was committed.
    """

    workflow_id: str
    workflow_status: str
    is_cancelled: bool
    waits: bool
    inputs: tuple[Input, ...]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowInfo:
    """One workflow, as users see it. `sent_at` is aware UTC. `error` is that of a FAILED or CANCELLED one."""

    workflow_id: str
    name: str
    status: WorkflowStatus
    sent_at: datetime
    error: TaskError | None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """One node of a workflow, as users see it. It has a `task_id` from when its task is enqueued; a child has none."""

    node_id: str
    status: NodeStatus
    task_id: str | None
    error: TaskError | None
