"""Small workflows for the tests of stores, and a worker that ends their tasks without running anything."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taskmanager.codec.results import encode_error_text
from taskmanager.model.ids import child_workflow_id, node_task_id
from taskmanager.model.record import TaskRow, TaskWrite, expected_of
from taskmanager.model.result import TaskError
from taskmanager.model.workflows import AFTER, RESULT, VALUE, EdgeRow, Graph, NodeRow, WorkflowRow
from taskmanager.store.protocol import CommitReport, Store
from taskmanager.store.workflow_protocol import Advance
from tests.contract.rows import ME

NOW = 1_000
ROOT = "w"


@dataclass(frozen=True)
class N:
    """One node, which names others by their ids. `child` are the nodes of the workflow that stands in it."""

    id: str
    after: Sequence[str] = ()
    values: Sequence[str] = ()
    results: Sequence[str] = ()
    join: str = "all"
    min_success: int | None = None
    allow_failed: bool = False
    optional: bool = False
    delay_us: int = 0
    child: "Sequence[N] | None" = None
    child_output: str | None = None
    child_on_error: str = "fail"


def graph(
    *nodes: N,
    output: str | None = None,
    cases: Sequence[Sequence[str]] | None = None,
    workflow_id: str = ROOT,
    **about: Any,
) -> Graph:
    """The rows of a workflow of these nodes, as the face makes them."""
    index = {node.id: number for number, node in enumerate(nodes)}
    root = WorkflowRow(
        id=workflow_id, name="flow", status="PENDING", on_error="fail", result=None, error=None, definition_key="key",
        output_task_index=None if output is None else index[output],
        success_policy=None if cases is None else json.dumps([[index[each] for each in case] for case in cases]),
        parent_workflow_id=None, parent_task_index=None, depth=0, root_workflow_id=workflow_id, sent_at=NOW,
        created_at=NOW, started_at=None, completed_at=None, cancelled_at=None, updated_at=NOW,
    )._replace(**about)  # fmt: skip
    made = Graph((root,), (), ())
    for number, node in enumerate(nodes):
        means = dict.fromkeys((*node.after, *node.values, *node.results), 0)
        for named, bit in ((node.after, AFTER), (node.values, VALUE), (node.results, RESULT)):
            for each in named:
                means[each] |= bit
        edges = tuple(EdgeRow(workflow_id, index[each], number, bits) for each, bits in means.items())
        row = _row(node, workflow_id, number, [index[each] for each in means], index)
        made = Graph(made.workflows, (*made.nodes, row), made.edges + edges)
        if node.child is not None:
            inner = {
                "parent_workflow_id": workflow_id, "parent_task_index": number, "depth": root.depth + 1,
                "root_workflow_id": root.root_workflow_id, "on_error": node.child_on_error,
            }  # fmt: skip
            child_id = child_workflow_id(workflow_id, number)
            child = graph(*node.child, output=node.child_output, workflow_id=child_id, **inner)
            made = Graph(*(mine + its for mine, its in zip(made, child, strict=True)))
    return made


def _row(node: N, workflow_id: str, number: int, needs: list[int], index: Mapping[str, int]) -> NodeRow:
    kinds = ((node.values, "value"), (node.results, "result"))
    inputs = [
        ([kind, place], workflow_id, index[each], kind) for named, kind in kinds for place, each in enumerate(named)
    ]
    return NodeRow(
        workflow_id=workflow_id, task_index=number, node_id=node.id, task_name="app:job", args="[]", kwargs="{}",
        queue_name="default", priority=50, max_retries=0, task_options='{"persist":true}', tags=None,
        delay_us=node.delay_us, dependencies=json.dumps(needs), args_from=json.dumps(inputs) if inputs else None,
        allow_failed_deps=int(node.allow_failed), join_type=node.join, min_success=node.min_success,
        is_optional=int(node.optional), is_subworkflow=int(node.child is not None),
        sub_workflow_id=None if node.child is None else child_workflow_id(workflow_id, number),
        sub_workflow_summary=None, status="PENDING", task_id=None, open=0, completed=0, failed=0, inputs_open=0,
        inputs_failed=0, result=None, error=None, created_at=NOW, started_at=None, completed_at=None,
    )  # fmt: skip


async def start(store: Store, *nodes: N, **about: Any) -> Graph:
    """Start a workflow of these nodes."""
    made = graph(*nodes, **about)
    row, _ = await store.start_workflow(made, NOW)
    assert row is None
    return made


async def statuses(store: Store, workflow_id: str = ROOT) -> dict[str, str]:
    """The status of each node."""
    return {row.node_id: row.status for row in await store.fetch_nodes(workflow_id)}


async def status(store: Store, workflow_id: str = ROOT) -> str:
    """The status of a workflow."""
    row = await store.fetch_workflow(workflow_id)
    assert row is not None
    return row.status


async def task_of(store: Store, node_id: str, workflow_id: str = ROOT) -> TaskRow:
    """The row of the task of a node."""
    nodes = {row.node_id: row for row in await store.fetch_nodes(workflow_id)}
    row = await store.fetch(node_task_id(workflow_id, nodes[node_id].task_index))
    assert row is not None, f"node {node_id} has no task"
    return row


def running(row: TaskRow, now: int = NOW) -> TaskRow:
    """The row of a task that runs here."""
    return row._replace(
        status="RUNNING", claimed_by_worker_id=ME, started_at=now, start_count=row.start_count + 1, updated_at=now
    )


def ended(row: TaskRow, word: str = "COMPLETED", now: int = NOW, result: str | None = None) -> TaskRow:
    """The row as it ends, as the engine writes it."""
    if word == "COMPLETED":
        return row._replace(status=word, completed_at=now, updated_at=now, result=result or '{"ok":1}')
    error = TaskError(f"CODE_{word}", "no luck")
    text = result or encode_error_text(error)
    return row._replace(status=word, failed_at=now, updated_at=now, error_code=error.error_code, result=text)


async def run(store: Store, *node_ids: str, workflow_id: str = ROOT, now: int = NOW) -> None:
    """Start the tasks of these nodes, as an instance does that has claimed them."""
    rows = [await task_of(store, each, workflow_id) for each in node_ids]
    report = await store.commit([TaskWrite(running(row, now), expected_of(row)) for row in rows])
    assert (report.lost, report.rejected) == ({}, {})


async def end(
    store: Store, *node_ids: str, word: str = "COMPLETED", workflow_id: str = ROOT, now: int = NOW, **about: Any
) -> Advance:
    """End the tasks of these nodes, in one commit; those that wait are started before."""
    rows = [await task_of(store, each, workflow_id) for each in node_ids]
    await run(store, *(each for each, row in zip(node_ids, rows, strict=True) if row.status == "PENDING"),
              workflow_id=workflow_id, now=now)  # fmt: skip
    rows = [await task_of(store, each, workflow_id) for each in node_ids]
    return await _commit(store, [TaskWrite(ended(row, word, now, **about), expected_of(row)) for row in rows])


async def fail(store: Store, *node_ids: str, **about: Any) -> Advance:
    """Let the tasks of these nodes fail."""
    return await end(store, *node_ids, word="FAILED", **about)


async def retry(store: Store, *node_ids: str, workflow_id: str = ROOT, now: int = NOW) -> Advance:
    """Put the tasks of these nodes back, as somebody does who retries them."""
    rows = [await task_of(store, each, workflow_id) for each in node_ids]
    return await _commit(store, [TaskWrite(again(row, now), expected_of(row)) for row in rows])


def again(row: TaskRow, now: int = NOW) -> TaskRow:
    """The row of an ended task that is put back."""
    return row._replace(
        status="PENDING", claimed_by_worker_id=None, enqueued_at=now, updated_at=now, started_at=None,
        completed_at=None, failed_at=None, result=None, error_code=None,
    )  # fmt: skip


async def _commit(store: Store, writes: Iterable[TaskWrite]) -> Advance:
    report = await store.commit(list(writes))
    assert report == CommitReport({}, {}, report.advance)
    return report.advance


def ready_of(advance: Advance, made: Graph) -> set[str]:
    """The nodes whose tasks an answer names as ready."""
    names = {node_task_id(node.workflow_id, node.task_index): node.node_id for node in made.nodes}
    return {names[task.task_id] for task in advance.readied}


def code_of(text: str | None) -> str:
    """The error code in a stored error."""
    assert text is not None
    return str(json.loads(text)["err"]["error_code"])


async def error_code(store: Store, workflow_id: str = ROOT) -> str:
    """The error code of a workflow."""
    row = await store.fetch_workflow(workflow_id)
    assert row is not None
    return code_of(row.error)
