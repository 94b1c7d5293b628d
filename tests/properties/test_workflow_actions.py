"""Whatever people and tasks do to workflows in each other, in any order, the file says one thing about them.

What is checked after each action: every counter is what the edges say; a node is open exactly if its task or its child
is; a workflow runs exactly while one of its nodes is open; nothing waits that could go on; what waits is held exactly
while its workflow is paused; and recovery finds nothing to do.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from taskmanager.model.record import TaskRow, TaskWrite, expected_of
from taskmanager.model.workflows import AFTER, ENDED_NODE, ENDED_WORKFLOW, HELD, VALUE, NodeRow, WorkflowRow
from taskmanager.rules.workflows import Counts, is_awaited, judged
from taskmanager.store.memory import MemoryStore
from taskmanager.store.workflow_protocol import Advance
from tests.contract import graphs
from tests.contract.graphs import NOW, N

ACTIONS = 12
ENDINGS = ("COMPLETED", "COMPLETED", "FAILED", "CANCELLED")


@st.composite
def levels(draw: st.DrawFn, on_error: tuple[str, ...] = ("fail", "pause"), depth: int = 0) -> list[N]:
    """Nodes, of which some are workflows."""
    nodes: list[N] = []
    for number in range(draw(st.integers(1, 5 if depth == 0 else 3))):
        some = st.lists(st.sampled_from([node.id for node in nodes]), unique=True, max_size=3) if nodes else st.just([])
        after = draw(some)
        nodes.append(
            N(
                f"n{number}",
                after=after,
                values=draw(some),
                results=draw(some),
                join=draw(st.sampled_from(("all", "any"))) if after else "all",
                allow_failed=draw(st.booleans()),
                optional=draw(st.booleans()),
                child=draw(levels(on_error, depth + 1)) if depth < 2 and draw(st.integers(0, 3)) == 0 else None,
                child_on_error=draw(st.sampled_from(on_error)),
            )
        )
    return nodes


class Life:
    """A workflow in a store, and what may be done to it."""

    def __init__(self, nodes: list[N], on_error: str) -> None:
        self.store, self.graph = MemoryStore(), graphs.graph(*nodes, on_error=on_error)
        self.workflows: dict[str, WorkflowRow] = {}
        self.nodes: list[NodeRow] = []
        self.tasks: dict[tuple[str, int], TaskRow] = {}
        self.told: set[tuple[str, int]] = set()

    async def begin(self) -> None:
        await self.store.start_workflow(self.graph, NOW)
        await self.check()

    async def read(self) -> None:
        query = "SELECT workflow_id, task_index, task_id FROM taskmanager_workflow_tasks WHERE is_passed_on = ?"
        rows = {flag: self.store._connection.execute(query, (flag,)).fetchall() for flag in (0, 1)}
        found = [await self.store.fetch_workflow(each.id) for each in self.graph.workflows]
        self.workflows = {row.id: row for row in found if row is not None}
        self.nodes = [row for each in self.workflows for row in await self.store.fetch_nodes(each)]
        self.told = {(workflow_id, index) for workflow_id, index, _ in rows[1]}
        ids = {
            task_id: (workflow_id, index) for flag in (0, 1) for workflow_id, index, task_id in rows[flag] if task_id
        }
        self.tasks = {ids[task_id]: row for task_id, row in (await self.store.fetch_ids(list(ids))).items()}

    async def check(self) -> None:
        await self.read()
        for node in self.nodes:
            self.check_counters(node)
            self.check_node(node)
        for row in self.workflows.values():
            is_open = any(node.status not in ENDED_NODE for node in self.nodes if node.workflow_id == row.id)
            assert row.status in ("PAUSED", "PENDING") or (row.status not in ENDED_WORKFLOW) == is_open, row
            assert (row.completed_at is not None) == (row.status in ENDED_WORKFLOW)
        assert await self.store.recover_workflows(NOW, 0, 100) == (0, Advance())

    def check_counters(self, node: NodeRow) -> None:
        """Every edge counts once: as open, or as what the end of its node has told."""
        counted = dict.fromkeys(("open", "completed", "failed", "inputs_open", "inputs_failed"), 0)
        status = {(each.workflow_id, each.task_index): each.status for each in self.nodes}
        for edge in self.graph.edges:
            source = edge.workflow_id, edge.from_index
            if (edge.workflow_id, edge.to_index) != node[:2]:
                continue
            is_told, is_good = source in self.told, status[source] == "COMPLETED"
            if edge.means & AFTER:
                counted["open" if not is_told else "completed" if is_good else "failed"] += 1
            if is_awaited(edge.means, node.join_type):
                counted["inputs_open"] += not is_told
            if edge.means & VALUE and is_told and not is_good:
                counted["inputs_failed"] += 1
        assert {name: getattr(node, name) for name in counted} == counted

    def check_node(self, node: NodeRow) -> None:
        workflow, task = self.workflows[node.workflow_id], self.tasks.get(node[:2])
        if node.is_subworkflow:
            child = self.workflows[node.sub_workflow_id or ""]
            is_begun = child.status in ("RUNNING", "PAUSED")
            assert is_begun == (node.status == "RUNNING"), (node.status, child.status)
            assert node.status in ENDED_NODE or child.status not in ENDED_WORKFLOW
        else:
            is_live = task is not None and task.status in ("PENDING", "RUNNING")
            waits_again = node.status == "PENDING" and task is not None and task.claimed_by_worker_id == HELD
            assert is_live == (waits_again or node.status in ("ENQUEUED", "RUNNING")), (node.status, task)
        if node.status == "PENDING" and workflow.status == "RUNNING":
            counts = Counts(
                node.join_type, node.min_success, node.allow_failed_deps,
                *(node.open, node.completed, node.failed, node.inputs_open, node.inputs_failed),
            )  # fmt: skip
            assert judged(counts) is None, node
        if task is not None and task.status == "PENDING":
            is_held = workflow.status == "PAUSED" or node.status == "PENDING"
            assert (task.claimed_by_worker_id == HELD) == is_held, (task, workflow)

    # What may be done.

    def choices(self) -> list[tuple[str, Callable[[], Awaitable[Any]]]]:
        found: list[tuple[str, Callable[[], Awaitable[Any]]]] = []
        for key, task in sorted(self.tasks.items()):
            if task.status == "PENDING" and task.claimed_by_worker_id is None:
                found.append((f"run {key}", lambda task=task: self.write(task, graphs.running(task))))
                found.append((f"cancel {key}", lambda task=task: self.write(task, graphs.ended(task, "CANCELLED"))))
            elif task.status == "RUNNING":
                for word in sorted(set(ENDINGS)):
                    found.append(
                        (f"{word} {key}", lambda task=task, word=word: self.write(task, graphs.ended(task, word)))
                    )
                waits = task._replace(status="PENDING")
                found.append((f"requeue {key}", lambda task=task, new=waits: self.write(task, new, is_free=True)))
            elif task.status != "PENDING":
                found.append((f"retry {key}", lambda task=task: self.write(task, graphs.again(task))))
        for row in self.workflows.values():
            for verb in ("pause", "resume", "cancel", "reopen"):
                act = getattr(self.store, f"{verb}_workflow")
                found.append((f"{verb} {row.id} {row.status}", lambda act=act, row=row: act(row.id, NOW)))
        return found

    async def write(self, old: TaskRow, new: TaskRow, *, is_free: bool = False) -> None:
        new = new._replace(claimed_by_worker_id=None) if is_free else new
        report = await self.store.commit([TaskWrite(new, expected_of(old))])
        assert (report.lost, report.rejected) == ({}, {})


@given(levels(), st.sampled_from(("fail", "pause")), st.data())
def test_workflow_is_whole_after_whatever_is_done_to_it(nodes: list[N], on_error: str, data: st.DataObject) -> None:
    """One action after the other, each of which is one transaction."""

    async def play() -> None:
        life = Life(nodes, on_error)
        await life.begin()
        for _ in range(ACTIONS):
            choices = life.choices()
            words = [word for word, _ in choices]
            chosen = data.draw(st.sampled_from(words))
            await choices[words.index(chosen)][1]()
            await life.check()

    asyncio.run(play())


@given(levels(on_error=("fail",)), st.data())
def test_recovery_comes_to_what_the_commits_would_have_come_to(nodes: list[N], data: st.DataObject) -> None:
    """Tasks are ended by plain SQL in one file, and by commits in the other."""

    async def play() -> None:
        broken, whole = Life(nodes, "fail"), Life(nodes, "fail")
        await broken.begin()
        await whole.begin()
        while ready := sorted(key for key, task in whole.tasks.items() if task.status == "PENDING"):
            word = data.draw(st.sampled_from(("COMPLETED", "FAILED")))
            for key in data.draw(st.lists(st.sampled_from(ready), min_size=1, unique=True)):
                old = whole.tasks[key]
                await whole.write(old, graphs.running(old))
                await whole.read()
                end = graphs.ended(whole.tasks[key], word)
                await whole.write(whole.tasks[key], end)
                set_to = "status = ?, completed_at = ?, failed_at = ?, updated_at = ?, result = ?, started_at = ?"
                given = (end.status, end.completed_at, end.failed_at, NOW, end.result, NOW, end.task_id)
                broken.store._connection.execute(f"UPDATE taskmanager_tasks SET {set_to} WHERE id = ?", given)
                await whole.read()
            while (await broken.store.recover_workflows(NOW, 0, 3))[0]:
                pass
            await broken.check()
            assert [node.status for node in broken.nodes] == [node.status for node in whole.nodes]
            assert [row.status for row in broken.workflows.values()] == [row.status for row in whole.workflows.values()]

    asyncio.run(play())
