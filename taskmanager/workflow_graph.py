"""Makes the rows of a workflow and of its children, once all of it is known to be right. Nothing is stored here.

A node may take values of its own workflow and of those that this one stands in. A value from further out is a
dependency of the node in which the child stands: the child does not begin before it is there.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, NoReturn

from taskmanager.codec.gaps import Gap, Path
from taskmanager.codec.values import dumps
from taskmanager.engine.words.definition import Definition, with_delay
from taskmanager.model.clock import SECOND_US
from taskmanager.model.config import MAX_NAME_LENGTH
from taskmanager.model.dataclass import dataclass, field
from taskmanager.model.errors import ArgumentError, ConfigurationError
from taskmanager.model.ids import child_workflow_id
from taskmanager.model.placeholder import MISPLACED, source_of
from taskmanager.model.workflows import AFTER, MAX_DEPTH, RESULT, VALUE, EdgeRow, Graph, NodeRow, WorkflowRow
from taskmanager.task import DEFAULT_QUEUE, Task
from taskmanager.workflow import Node, Workflow, node_id_fault

_MEANS: Final = {"value": VALUE, "result": RESULT}
_PRIORITY: Final = 50
_SHOWN: Final = 10
"""So many nodes of a circle are named."""


class _Input(NamedTuple):
    """A placeholder of a call: its place, and which node of which workflow it means, so many workflows further out."""

    path: Path
    levels: int
    workflow_id: str
    task_index: int
    kind: str


class _Call(NamedTuple):
    """What is stored of the call of a node. `key` tells its arguments from others; it is None if a codec hides them."""

    definition: Definition
    args: str
    kwargs: str
    inputs: tuple[_Input, ...]
    key: str | None


@dataclass(slots=True, eq=False)
class _Place:
    """A workflow where it stands: at the root, or in the node `index` of `outer`."""

    workflow: Workflow[Any]
    id: str
    outer: "_Place | None" = None
    index: int | None = None
    depth: int = 0
    calls: list[_Call | None] = field(default_factory=list)
    edges: defaultdict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    """What the first node of a pair means to the second."""

    def refuse(self, why: str) -> NoReturn:
        """Raise the error for this workflow."""
        raise ConfigurationError(f"workflow {self.workflow.name!r}: {why}")


def graph_of(
    workflow: Workflow[Any], workflow_id: str, definition_of: Callable[[Task[..., Any]], Definition], now: int
) -> Graph:
    """Return the rows of a workflow and of its children, the root first. All are PENDING, and the store counts.

    Raises `ConfigurationError` for whatever is wrong with the graph, and `ArgumentError` for a placeholder where none
    may stand. `definition_of` raises for a task that is not of this manager.
    """
    if not isinstance(workflow, Workflow):
        raise ConfigurationError(f"start_workflow takes a Workflow, not {workflow!r}")
    if not isinstance(workflow_id, str) or not _is_id(workflow_id):
        raise ConfigurationError(
            f"workflow_id must be 1 to {MAX_NAME_LENGTH} printable characters without blanks around them, not "
            f"{workflow_id!r}"
        )
    places = _places(workflow, workflow_id)
    for place in places:
        _check(place)
        place.calls.extend(_call_of(place, node, definition_of) for node in place.workflow.nodes)
    for place in places:
        _check_order(place)
    keys: dict[str, str] = {}
    nodes = {place.id: list(_node_rows(place, now)) for place in places}
    for place in reversed(places):  # a child's key is part of its parent's
        keys[place.id] = _key_of(place, nodes[place.id], keys)
    return Graph(
        tuple([_workflow_row(place, workflow_id, keys[place.id], now) for place in places]),
        tuple([row for place in places for row in nodes[place.id]]),
        tuple([EdgeRow(place.id, *pair, means) for place in places for pair, means in sorted(place.edges.items())]),
    )


def _is_id(text: str) -> bool:
    return 1 <= len(text) <= MAX_NAME_LENGTH and text.isprintable() and text == text.strip()


def _places(workflow: Workflow[Any], workflow_id: str) -> list[_Place]:
    """Return the workflow and all its children, outer ones first. Each may stand in one place."""
    found = [_Place(workflow, workflow_id)]
    known = {id(workflow)}
    for place in found:
        for node in place.workflow.nodes:
            if (child := node.child) is None:
                continue
            if id(child) in known:
                place.refuse(f"{child.name!r} stands in it twice, or in itself; make another Workflow for each place")
            if place.depth == MAX_DEPTH:
                place.refuse(f"workflows may stand in each other {MAX_DEPTH} deep; let a task start {child.name!r}")
            known.add(id(child))
            at = child_workflow_id(place.id, node.index)
            found.append(_Place(child, at, place, node.index, place.depth + 1))
    return found


def _check(place: _Place) -> None:
    """Check what concerns no arguments, and note what each node comes after."""
    workflow, ids = place.workflow, set[str]()
    if not workflow.nodes:
        place.refuse("it has no node; add(...) at least one")
    for node in workflow.nodes:
        if fault := node_id_fault(node.node_id):
            place.refuse(fault)
        if node.node_id in ids:
            place.refuse(f"two nodes have the id {node.node_id!r}; give one of them another with named(...)")
        ids.add(node.node_id)
        wanted, given = node.how.min_success, len(node.after_nodes)
        if wanted is not None and wanted > given:
            place.refuse(f"node {node.node_id!r} waits for {wanted} of {given} nodes; lower min_success, or name more")
        for index in node.after_nodes:
            place.edges[index, node.index] |= AFTER
    output = workflow.output_node
    if output is not None and output.index in workflow.optional_nodes:
        place.refuse(f"its output {output.node_id!r} is optional, so it might have no value; make it one or the other")
    if output is not None and not all(output in case for case in workflow.cases):
        place.refuse(f"its output {output.node_id!r} is not in each case of succeeds_if; add it to every case")


def _call_of(place: _Place, node: Node[Any], definition_of: Callable[[Task[..., Any]], Definition]) -> _Call | None:
    """Return what is stored of the call of a node; None for a child."""
    if node.task is None:
        return None
    definition = definition_of(node.task)
    if not definition.is_persisted:
        place.refuse(
            f"node {node.node_id!r}: task {definition.name!r} is memory-only; give it persist=True, or the manager a "
            "file and requeue_pending=True"
        )
    try:
        args, kwargs, gaps = definition.arguments.encode_open(node.args, node.kwargs)
    except ArgumentError as exc:
        error = ArgumentError if MISPLACED in str(exc) else ConfigurationError
        raise error(f"{node}: {exc}") from exc
    is_sealed = definition.results.is_sealed
    inputs = tuple([_input_of(place, node, gap, is_sealed=is_sealed) for gap in gaps])
    key = definition.arguments.digest(node.args, node.kwargs)
    return _Call(definition, args, kwargs, inputs, key)


def _input_of(place: _Place, node: Node[Any], gap: Gap, *, is_sealed: bool) -> _Input:
    """Find the workflow in which the node of a placeholder stands, and note there who depends on it."""
    source, kind = source_of(gap.placeholder)
    levels, at, index = 0, place, node.index
    while at.workflow is not source.workflow:
        if at.outer is None:
            place.refuse(
                f"node {node.node_id!r}: argument {gap.path[0]!r} is of a node in another workflow ({source}); take "
                "values of this workflow, or of one that it is added to. The value of a child is that of its node"
            )
        levels, at, index = levels + 1, at.outer, at.index or 0
    if is_sealed and source.child is not None and source.child.output_node is None:
        place.refuse(
            f"node {node.node_id!r}: argument {gap.path[0]!r} is the {kind} of {source.child.name!r}, which has no "
            "output, and the store cannot put sealed results together; say which of its nodes is, with output(...)"
        )
    at.edges[source.index, index] |= _MEANS[kind]
    return _Input(gap.path, levels, at.id, source.index, kind)


def _check_order(place: _Place) -> None:
    """Refuse nodes that wait for each other."""
    dependents: defaultdict[int, list[int]] = defaultdict(list)
    waits_for: defaultdict[int, set[int]] = defaultdict(set)
    for before, after in place.edges:
        dependents[before].append(after)
        waits_for[after].add(before)
    free = [node.index for node in place.workflow.nodes if node.index not in waits_for]
    for index in free:
        for dependent in dependents[index]:
            waits_for[dependent].discard(index)
            if not waits_for[dependent]:
                free.append(dependent)
    if len(free) < len(place.workflow.nodes):
        _refuse_circle(place, {index: min(others) for index, others in waits_for.items() if others})


def _refuse_circle(place: _Place, waits_for: Mapping[int, int]) -> NoReturn:
    index, way = min(waits_for), dict[int, None]()
    while index not in way:
        way[index] = None
        index = waits_for[index]
    circle = [*list(way)[list(way).index(index) :], index]
    names = [repr(place.workflow.nodes[each].node_id) for each in circle]
    shown = names if len(names) <= _SHOWN else [*names[:_SHOWN], "…"]
    place.refuse(f"nodes wait for each other: {' waits for '.join(shown)}; take one of these dependencies out")


def _node_rows(place: _Place, now: int) -> Iterator[NodeRow]:
    needs: list[list[int]] = [[] for _ in place.workflow.nodes]
    for before, after in sorted(place.edges):
        needs[after].append(before)
    for node, call in zip(place.workflow.nodes, place.calls, strict=True):
        said = _said_of_child(place, node) if call is None else _said_of_call(node, call)
        yield NodeRow(
            workflow_id=place.id,
            task_index=node.index,
            node_id=node.node_id,
            dependencies=dumps(needs[node.index]),
            allow_failed_deps=int(node.how.allow_failed),
            join_type=node.how.join,
            min_success=node.how.min_success,
            is_optional=int(node.index in place.workflow.optional_nodes),
            is_subworkflow=int(call is None),
            sub_workflow_summary=None,
            status="PENDING",
            task_id=None,
            open=0,
            completed=0,
            failed=0,
            inputs_open=0,
            inputs_failed=0,
            result=None,
            error=None,
            created_at=now,
            started_at=None,
            completed_at=None,
            **said,
        )


def _said_of_child(place: _Place, node: Node[Any]) -> dict[str, Any]:
    assert node.child is not None
    return {
        "task_name": node.child.name, "args": None, "kwargs": None, "args_from": None, "queue_name": DEFAULT_QUEUE,
        "priority": _PRIORITY, "max_retries": 0, "task_options": "{}", "tags": None, "delay_us": 0,
        "sub_workflow_id": child_workflow_id(place.id, node.index),
    }  # fmt: skip


def _said_of_call(node: Node[Any], call: _Call) -> dict[str, Any]:
    options, definition = node.options, call.definition
    text = definition.options_text if options.timeout_s is None else definition.options_for(options.timeout_s)
    inputs = [(each.path, each.workflow_id, each.task_index, each.kind) for each in call.inputs]
    return {
        "task_name": definition.name,
        "args": call.args,
        "kwargs": call.kwargs,
        "args_from": dumps(inputs) if inputs else None,
        "queue_name": options.queue_name or definition.queue_name,
        "priority": definition.priority if options.priority is None else options.priority,
        "max_retries": definition.retry.max_retries,
        "task_options": with_delay(text) if options.delay_s else text,
        "tags": options.tags_text,
        "delay_us": int((options.delay_s or 0) * SECOND_US),
        "sub_workflow_id": None,
    }


def _key_of(place: _Place, rows: list[NodeRow], keys: Mapping[str, str]) -> str:
    """Return the SHA-256 of all that makes the workflow what it is, the same in every process and under every id."""
    nodes = [
        (
            row.node_id, row.task_name, row.queue_name, row.priority, row.max_retries, row.task_options, row.tags,
            row.delay_us, row.allow_failed_deps, row.join_type, row.min_success, row.is_optional,
            keys[row.sub_workflow_id] if row.sub_workflow_id else None,
            call and (call.key, [(each.path, each.levels, each.task_index, each.kind) for each in call.inputs]),
        )
        for row, call in zip(rows, place.calls, strict=True)
    ]  # fmt: skip
    root = _workflow_row(place, "", "", 0)
    edges = sorted((*pair, means) for pair, means in place.edges.items())
    said = (root.name, root.on_error, root.output_task_index, root.success_policy, nodes, edges)
    return hashlib.sha256(dumps(said).encode()).hexdigest()


def _workflow_row(place: _Place, root_id: str, key: str, now: int) -> WorkflowRow:
    workflow = place.workflow
    cases = [sorted({node.index for node in case}) for case in workflow.cases]
    return WorkflowRow(
        id=place.id,
        name=workflow.name,
        status="PENDING",
        on_error=workflow.on_error,
        output_task_index=None if workflow.output_node is None else workflow.output_node.index,
        success_policy=dumps(cases) if cases else None,
        result=None,
        error=None,
        definition_key=key,
        parent_workflow_id=None if place.outer is None else place.outer.id,
        parent_task_index=place.index,
        depth=place.depth,
        root_workflow_id=root_id,
        sent_at=now,
        created_at=now,
        started_at=None,
        completed_at=None,
        cancelled_at=None,
        updated_at=now,
    )
