"""What the engine asks of a store about workflows. `Store` has these verbs too.

A workflow is advanced by the transaction that ends a task of it, so there is no verb for that: the report of the commit
names what has followed.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from taskmanager.model.record import TaskRow
from taskmanager.model.workflows import Graph, NodeRow, NodeStart, WorkflowRow


class FreeTask(NamedTuple):
    """A free row that a transaction has made: of which function, in which queue, and from when it may be claimed."""

    task_id: str
    task_name: str
    queue_name: str
    priority: int
    due_at: int
    tags: str | None = None


class Advance(NamedTuple):
    """What has followed in the workflows of a transaction.

    `readied` are the tasks that were made, or that are free again. `ended` are the ids of the workflows that have
    ended, children among them. `cancelled` are the ids of the tasks that waited, and have ended with it.
    """

    readied: tuple[FreeTask, ...] = ()
    ended: tuple[str, ...] = ()
    cancelled: tuple[str, ...] = ()


def together(advances: Sequence[Advance]) -> Advance:
    """Return what has followed from parts of one transaction."""
    return Advance(
        tuple(task for each in advances for task in each.readied),
        tuple(workflow_id for each in advances for workflow_id in each.ended),
        tuple(task_id for each in advances for task_id in each.cancelled),
    )


class WorkflowStore(Protocol):
    """The verbs of a store that are about workflows. Each that writes is one transaction."""

    async def start_workflow(self, graph: Graph, now: int) -> tuple[WorkflowRow | None, Advance]:
        """Insert all rows of a workflow and the tasks of its first nodes. Return None, and what is ready.

        If there is a workflow of that id, nothing is changed, and its row is returned. What the nodes count is counted
        here, from the edges.
        """
        ...

    async def reopen_workflow(self, workflow_id: str, now: int) -> Advance | None:
        """Run a FAILED or CANCELLED workflow again, from the nodes that have not completed. None in any other state.

        The nodes that have completed keep their results. So does a child that has; any other child is reopened too,
        but none without its root: None of a child.
        """
        ...

    async def fetch_workflow(self, workflow_id: str) -> WorkflowRow | None:
        """Return one workflow."""
        ...

    async def fetch_workflows(
        self, status: str | None, name: str | None, limit: int, before: tuple[int, str] | None
    ) -> list[WorkflowRow]:
        """Return workflows without their results, newest first by (sent_at, id). Children are not among them.

        `before`: only older ones than one of that `sent_at` and id.
        """
        ...

    async def fetch_nodes(self, workflow_id: str) -> list[NodeRow]:
        """Return the nodes of a workflow by their index, without arguments and inputs, which may be large.

        The status of a node is RUNNING from the start of its task on, and has a `started_at` then.
        """
        ...

    async def fetch_node(self, workflow_id: str, node_id: str) -> NodeRow | None:
        """Return one node, whole. `result` and `error` are as the task has stored them, and may be sealed."""
        ...

    async def node_start(self, task_id: str) -> NodeStart | None:
        """Return what the task of a node needs at its start, or None if no node has this task.

        Raises `StoreError` if somebody has edited what it takes of other nodes.
        """
        ...

    async def pause_workflow(self, workflow_id: str, now: int) -> Advance | None:
        """RUNNING → PAUSED, with its children: nothing of it starts. None in any other state.

        Tasks that wait belong to `HELD` from then on, wherever they waited. What runs goes on; its end is recorded, and
        nothing follows from it before the workflow is resumed.
        """
        ...

    async def resume_workflow(self, workflow_id: str, now: int) -> Advance | None:
        """PAUSED → RUNNING, with its children. None if nothing is paused, or if what it is a child of is paused.

        Its tasks that wait are free, and what has ended meanwhile has its consequences. Failures until then do not
        pause it again.
        """
        ...

    async def cancel_workflow(self, workflow_id: str, now: int) -> Advance | None:
        """Cancel a workflow that has not ended, with its children. None if it has ended, or was cancelled before.

        Free and held tasks are CANCELLED, those that somebody has are asked to, and the other nodes are SKIPPED. It is
        CANCELLED when all of its nodes have ended.
        """
        ...

    async def recover_workflows(self, now: int, grace_us: int, limit: int) -> tuple[int, Advance]:
        """Put right what other programs have left half done in workflows that run, in one pass.

        Return how many nodes and workflows were put right, at most about `limit`. Nodes whose task ended less than
        `grace_us` ago are left to whoever has ended it.
        """
        ...

    async def fetch_without_workflow(self, *, limit: int, after: str = "") -> list[TaskRow]:
        """Return live tasks of nodes after `after`, by id, whose workflow is not in the store any more."""
        ...
