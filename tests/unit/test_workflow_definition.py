"""Workflows as they are defined: what a placeholder refuses, what a graph refuses, and which rows a right one has."""

import asyncio
import copy
import hashlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple

import pytest

from taskmanager import (
    ArgumentError,
    ConfigurationError,
    FailedTask,
    Node,
    RetryPolicy,
    Snooze,
    Task,
    TaskManager,
    TaskResult,
    Workflow,
    task,
)
from taskmanager.codec.values import loads
from taskmanager.engine.words.definition import Definition
from taskmanager.model.ids import child_workflow_id
from taskmanager.model.workflows import AFTER, RESULT, VALUE, Graph, NodeRow, WorkflowRow
from taskmanager.workflow_graph import graph_of

manager = TaskManager("never-opened.db", requeue_pending=True)
other = TaskManager("another.db", requeue_pending=True)
anything: Any = manager


@dataclass(frozen=True)
class Order:
    """An argument that holds others."""

    text: str


class Pair(NamedTuple):
    """A tuple with a name."""

    text: str


@manager.task
async def fetch(url: str) -> str:
    """Make a text."""
    return url


@manager.task(queue_name="cpu", priority=20, timeout=60, retry_policy=RetryPolicy.fixed([1], auto_retry_for=["A"]))
def parse(text: str, *, column: int = 0) -> int:
    """Make a number of it."""
    return len(text) + column


@manager.task
async def render(parts: list[int], title: str = "") -> str:
    """Take many."""
    return f"{title}{parts}"


@manager.task
async def note(outcome: TaskResult[str]) -> None:
    """Take an end, however it was."""


@manager.task
async def mix(
    one: dict[str, list[Path]] | None = None,
    two: tuple[str, datetime] = ("", datetime.max),
    three: Any = None,
    four: dict[int, str] | None = None,
    five: set[str] | None = None,
    six: Order | Pair | None = None,
) -> None:
    """Take what has parts."""


@manager.task(persist=False)
async def fleeting() -> None:
    """Lost at a restart."""


@other.task
async def foreign() -> str:
    """Of another manager."""
    return ""


@task
async def free() -> str:
    """Of no manager."""
    return ""


def definition_of(each: Task[..., Any]) -> Definition:
    """Return what the manager knows of a task."""
    return each.bound(manager)[0]


def made(workflow: Workflow[Any], workflow_id: str = "w-1") -> Graph:
    """Return the rows of a workflow."""
    return graph_of(workflow, workflow_id, definition_of, 7)


def rows(workflow: Workflow[Any]) -> list[NodeRow]:
    """Return the nodes of a workflow and of its children."""
    return list(made(workflow).nodes)


def edges(workflow: Workflow[Any]) -> dict[tuple[int, int], int]:
    """Return the edges of a workflow without children."""
    return {(each.from_index, each.to_index): each.means for each in made(workflow).edges}


def key_of(workflow: Workflow[Any]) -> str:
    """Return the key of a workflow."""
    return made(workflow).workflows[0].definition_key


def some() -> tuple[Workflow[Any], Node[str]]:
    """A workflow with a node."""
    workflow = Workflow("import")
    return workflow, workflow.add(fetch, "u").named("page")


def _as_it_reads(words: str) -> str:
    return words.replace("(", r"\(").replace(")", r"\)")


# --- placeholders -----------------------------------------------------------------------------------------------------

USES: list[Callable[[Any], object]] = [
    str, bool, len, iter, hash, list, int, float, abs, copy.copy, pickle.dumps, sorted, "{}".format, "%s".__mod__,
    lambda value: f"https://x/{value}",
    lambda value: value.name,
    lambda value: setattr(value, "name", 1),
    lambda value: value[0],
    lambda value: value(),
    lambda value: value == "text",
    lambda value: value != "text",
    lambda value: value < 1,
    lambda value: value + 1,
    lambda value: "text" + value,
    lambda value: 2 @ value,
    lambda value: -value,
    lambda value: "a" in value,
    lambda value: value in ["text", ""],
    lambda value: {value},
    lambda value: {value: 1},
    lambda value: [*value],
    lambda value: {**value},
    lambda value: 1 if value else 2,
    lambda value: asyncio.run(_awaited(value)),
]  # fmt: skip


async def _awaited(value: Any) -> None:
    await value


@pytest.mark.parametrize("number", range(len(USES)))
@pytest.mark.parametrize("kind", ["value", "result"])
def test_placeholder_refuses_whatever_is_done_with_it(number: int, kind: str) -> None:
    """A type checker takes it for a text. Used as one it would become an argument that nobody meant."""
    _, page = some()
    with pytest.raises(ConfigurationError, match=f"{kind} of node 'page'.*is done by a task"):
        USES[number](getattr(page, kind))


def test_placeholder_is_shown_by_the_name_its_node_has_now() -> None:
    """Its `repr` is for people, and a node may be named after it was used."""
    _, page = some()
    value: object = page.value
    page.named("later")
    assert repr(value) == "<value of node 'later'>"
    assert repr(page.result) == "<result of node 'later'>"


@pytest.mark.parametrize("wrap", [Order, Pair, lambda value: [Order(value)], lambda value: {"k": (Pair(value),)}])
def test_placeholder_inside_of_an_object_is_refused_by_parameter(wrap: Callable[[Any], Any]) -> None:
    """Nobody could put the value there later."""
    workflow, page = some()
    workflow.add(mix, three=wrap(page.value))
    with pytest.raises(
        ArgumentError, match=r"node '.*mix:1': task .*argument 'three'.*value of node 'page'.*lists, tup"
    ):
        made(workflow)


@pytest.mark.parametrize("persist", [True, False])
def test_placeholder_given_to_enqueue_is_refused(persist: bool) -> None:
    """It says where it belongs. A memory-only task would be called with it otherwise."""
    _, page = some()
    mine = TaskManager("never-opened.db").task(name="mine", persist=persist)(fetch.fn)
    with pytest.raises(ArgumentError, match=r"argument 'url'.*argument of Workflow.add"):
        mine.enqueue(page.value)


def test_placeholders_are_stored_as_references() -> None:
    """Null stands in the arguments, and the path leads there: place or name, then places and keys."""
    workflow, page = some()
    number = workflow.add(parse, page.value, column=3)
    workflow.add(render, [1, number.value, 2], title=page.value)
    workflow.add(note, page.result)
    workflow.add(mix, three={"a": [(page.value,)], "b": page.result})
    _, one, two, three, four = rows(workflow)
    assert (one.args, one.kwargs, one.args_from) == ("[null]", '{"column":3}', '[[[0],"w-1",0,"value"]]')
    assert (two.args, two.kwargs) == ("[[1,null,2]]", '{"title":null}')
    assert loads(two.args_from or "") == [[[0, 1], "w-1", 1, "value"], [["title"], "w-1", 0, "value"]]
    assert three.args_from == '[[[0],"w-1",0,"result"]]'
    assert four.kwargs == '{"three":{"a":[[null]],"b":null}}'
    assert loads(four.args_from or "") == [
        [["three", "a", 0, 0], "w-1", 0, "value"],
        [["three", "b"], "w-1", 0, "result"],
    ]
    assert edges(workflow) == {(0, 1): VALUE, (1, 2): VALUE, (0, 2): VALUE, (0, 3): RESULT, (0, 4): VALUE | RESULT}
    assert [each.dependencies for each in rows(workflow)] == ["[]", "[0]", "[0,1]", "[0]", "[0]"]


def test_parts_beside_placeholders_are_stored_by_their_annotation() -> None:
    """They come back as any argument does: proven where the annotation says what they are."""
    workflow, page = some()
    value: Any = page.value
    at = datetime(2030, 1, 1, tzinfo=UTC)
    workflow.add(mix, {"k": [Path("p"), value], "l": [Path("q")]}, (value, at), {"a": [1, value]}, {5: "x", 6: value})
    workflow.add(mix, five=[value], six=[Order("a"), value])  # type: ignore[arg-type]  # the start will say it
    _, one, two = rows(workflow)
    assert loads(one.args or "") == [
        {"k": ["p", None], "l": ["q"]},
        [None, "2030-01-01T00:00:00Z"],
        {"a": [1, None]},
        {"5": "x", "6": None},
    ]
    assert [each[0] for each in loads(one.args_from or "")] == [[0, "k", 1], [1, 0], [2, "a", 1], [3, "6"]]
    assert two.kwargs == '{"five":[null],"six":[{"text":"a"},null]}'


@pytest.mark.parametrize(
    ("add", "why"),
    [
        (lambda wf, value: wf.add(mix, {"k": ["no path", value]}), "argument 'one'.*of item 'k': of item 0: "),
        (lambda wf, value: wf.add(mix, two=(value, 1)), "argument 'two'.*of item 1: "),
        (lambda wf, value: wf.add(mix, two=(value,)), "argument 'two'.*it has 1 items, its annotation 2"),
        (lambda wf, value: wf.add(mix, three=[Path("p"), value]), "argument 'three'.*of item 0: it would come back"),
        (lambda wf, value: wf.add(mix, three={1: value}), "argument 'three'.*come back"),
        (lambda wf, value: wf.add(mix, three={object(): value}), "argument 'three'"),
        (lambda wf, value: wf.add(fetch, [value]), "argument 'url'.*it is a list, which does not fit its annotation"),
        (lambda wf, _: wf.add(fetch, 3), "argument 'url' (int) cannot be stored"),
        (lambda wf, _: wf.add(mix, three=object()), "argument 'three' (object) cannot be stored"),
    ],
)
def test_argument_of_a_wrong_type_is_refused(add: Callable[[Any, Any], object], why: str) -> None:
    """As at an enqueue, and before anything is stored."""
    workflow, page = some()
    add(workflow, page.value)
    with pytest.raises(ConfigurationError, match=f"workflow 'import': node '.*:1': task .*{_as_it_reads(why)}"):
        made(workflow)


def test_argument_that_contains_itself_is_refused() -> None:
    """Looking for placeholders ends, whatever it looks through."""
    workflow, page = some()
    endless: list[Any] = [page.value]
    endless.append(endless)
    workflow.add(mix, three=endless)
    with pytest.raises(ConfigurationError, match="argument 'three'.*nested too deeply, or contains itself"):
        made(workflow)


# --- what one call refuses --------------------------------------------------------------------------------------------


def _after(**options: Any) -> Callable[[Any, Any], object]:
    return lambda workflow, page: workflow.add(fetch, "v").after(page, **options)


def _with(**options: Any) -> Callable[[Any, Any], object]:
    return lambda workflow, _: workflow.add(fetch.with_options(**options), "u")


CALLS: list[tuple[Callable[[Any, Any], object], str]] = [
    (lambda *_: Workflow(""), "Workflow: name must be 1 to 255"),
    (lambda *_: Workflow(anything), "Workflow: name must be"),
    (lambda *_: Workflow("w", on_error=anything), "on_error must be 'fail' or 'pause'"),
    (lambda wf, _: wf.add(len, "a"), "is not a task; decorate the function with @manager.task"),
    (lambda wf, _: wf.add(fetch), "fetch cannot be called with these arguments: missing a required argument: 'url'"),
    (lambda wf, _: wf.add(fetch, "a", "b"), "too many positional arguments"),
    (lambda wf, _: wf.add(fetch, uri="a"), "argument: 'url'|argument 'uri'"),
    (lambda wf, page: wf.add(fetch, page), "is no argument; pass its .value or its .result"),
    (_with(idempotency_key="k"), "enqueues it many times, and idempotency_key would be meant for one"),
    (_with(run_at=datetime.now(UTC)), "and run_at would be meant for one of them; leave it out, or give a delay"),
    (_with(good_until=datetime.now(UTC)), "and good_until would be meant"),
    (lambda wf, _: wf.add_workflow(fetch), "is not a workflow; use add"),
    (lambda wf, _: wf.add_workflow(Workflow("c"), node_id="a b"), "1 to 128 letters, digits and _-:. and not 'a b'"),
    (lambda _, page: page.named(""), "node 'page': the id of a node must be 1 to 128 letters"),
    (lambda _, page: page.named("a/b"), "letters, digits and _-:. and not 'a/b'"),
    (lambda _, page: page.named("a\n"), "letters, digits"),
    (lambda _, page: page.named("ä"), "letters, digits"),
    (lambda _, page: page.named("x" * 129), "1 to 128 letters"),
    (lambda _, page: page.named(7), "and not 7"),
    (lambda _, page: page.after(), "node 'page': after: it names no node"),
    (lambda _, page: page.after(fetch), "is no node; give what add(...) returned"),
    (lambda _, page: page.after(some()[1]), "stands in another workflow; name nodes of this one"),
    (_after(join="most"), "join must be 'all', 'any' or 'quorum', not 'most'"),
    (_after(min_success=1), "min_success means nothing without join='quorum'"),
    (_after(join="any", min_success=1), "min_success means nothing without join='quorum'"),
    (_after(join="quorum"), "join='quorum' needs min_success"),
    (_after(join="quorum", min_success=0), "a whole number from 1 to that of the nodes, not 0"),
    (_after(join="quorum", min_success=True), "needs min_success"),
    (_after(join="quorum", min_success=1.5), "needs min_success"),
    (_after(allow_failed=1), "allow_failed must be True or False"),
    (
        lambda wf, page: _after(join="any")(wf, page).after(page),
        "one way to wait.*name all nodes with the same options",
    ),
    (lambda wf, page: _after()(wf, page).after(page, allow_failed=True), "one way to wait"),
    (lambda wf, _: wf.output(fetch), "output: .* is no node"),
    (lambda wf, _: wf.output(some()[1]), "output: .* stands in another workflow"),
    (lambda wf, _: wf.optional(some()[1]), "optional: .* stands in another workflow"),
    (lambda wf, _: wf.succeeds_if(), "succeeds_if: it names no case"),
    (lambda wf, page: wf.succeeds_if(page), "each case is a collection of nodes, such as"),
    (lambda wf, _: wf.succeeds_if([]), "a case without nodes would always be met"),
    (lambda wf, _: wf.succeeds_if([fetch]), "is no node"),
    (lambda wf, page: wf.succeeds_if([page], [some()[1]]), "stands in another workflow"),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_wrong_call_is_refused_where_it_is_made(number: int) -> None:
    """The traceback ends at the line that is to be changed."""
    call, why = CALLS[number]
    workflow, page = some()
    with pytest.raises(ConfigurationError, match=_as_it_reads(why)):
        call(workflow, page)


# --- what the start refuses -------------------------------------------------------------------------------------------


def _circle(workflow: Any, page: Any) -> None:
    number = workflow.add(parse, page.value).named("number")
    page.after(workflow.add(render, [number.value]).named("report"))


def _child(workflow: Any, **given: Any) -> Any:
    child = Workflow("child")
    inner = child.add(fetch, "u").named("inner")
    return child, inner, workflow.add_workflow(child, **given)


def _child_of_its_own_value(workflow: Any, _: Any) -> None:
    child, inner, node = _child(workflow, node_id="outer")
    child.output(inner)
    child.add(fetch, node.value)


def _deep(workflow: Any, _: Any) -> None:
    for _level in range(33):
        child = Workflow("deeper")
        child.add(fetch, "u")
        workflow.add_workflow(child)
        workflow = child


def _named_twice(workflow: Any, _: Any) -> None:
    workflow.add(fetch, "v").named("page")


def _renamed(_: Any, page: Any) -> None:
    page.node_id = "a b"


def _twice(workflow: Any, _: Any) -> None:
    child, _inner, _node = _child(workflow)
    workflow.add_workflow(child)


def _in_two_places(workflow: Any, _: Any) -> None:
    child, _inner, _node = _child(workflow)
    second, _inner, _node = _child(workflow)
    second.add_workflow(child)


GRAPHS: list[tuple[Callable[[Any, Any], object], str]] = [
    (lambda _, page: page.after(page), "nodes wait for each other: 'page' waits for 'page'; take one of these depend"),
    (_circle, "'page' waits for 'report' waits for 'number' waits for 'page'"),
    (lambda wf, _: wf.add(parse, some()[1].value), "argument 0 is of a node in another workflow.*take values of this"),
    (
        lambda wf, _: wf.add(parse, _child(wf)[1].value),
        "argument 0 is of a node in another workflow.*The value of a ch",
    ),
    (_named_twice, "two nodes have the id 'page'; give one of them another with named"),
    (_renamed, "1 to 128 letters"),
    (_after(join="quorum", min_success=2), "waits for 2 of 1 nodes; lower min_success, or name more"),
    (lambda wf, page: wf.output(page).optional(page), "its output 'page' is optional, so it might have no value"),
    (
        lambda wf, page: wf.output(page).succeeds_if([page], [wf.add(fetch, "v")]),
        "not in each case of succeeds_if; add",
    ),
    (lambda wf, _: wf.add(fleeting), "is memory-only; give it persist=True"),
    (lambda wf, _: wf.add(foreign), "is bound to another manager; use that one"),
    (lambda wf, _: wf.add(free), "is bound to no manager; call manager.register"),
    (lambda wf, _: wf.add_workflow(wf), "'import' stands in it twice, or in itself; make another Workflow"),
    (_twice, "'child' stands in it twice"),
    (_in_two_places, "workflow 'child': 'child' stands in it twice"),
    (_deep, "workflows may stand in each other 32 deep; let a task start 'deeper'"),
    (_child_of_its_own_value, "workflow 'import': nodes wait for each other: 'outer' waits for 'outer'"),
    (lambda wf, _: wf.add_workflow(Workflow("empty")), "workflow 'empty': it has no node; add"),
]


@pytest.mark.parametrize("number", range(len(GRAPHS)))
def test_wrong_graph_is_refused_before_anything_is_stored(number: int) -> None:
    """Each message says what is wrong, where, and what to do."""
    change, why = GRAPHS[number]
    workflow, page = some()
    change(workflow, page)
    with pytest.raises(ConfigurationError, match=_as_it_reads(why)):
        made(workflow)


def test_long_circle_is_shown_in_part() -> None:
    """A message that nobody reads to its end helps nobody."""
    workflow, page = some()
    last = page
    for _ in range(20):
        last = workflow.add(fetch, last.value)
    page.after(last)
    with pytest.raises(ConfigurationError, match=r"'page' waits for .* waits for …; take") as caught:
        made(workflow)
    assert str(caught.value).count("waits for") == 10


@pytest.mark.parametrize("seed", range(60))
def test_graph_is_refused_exactly_if_it_has_a_circle(seed: int) -> None:
    """Against a slow search, for graphs of few nodes with edges at random."""
    chance = Random(seed)
    workflow = Workflow("random")
    count = chance.randint(2, 7)
    nodes = [workflow.add(fetch, str(number)) for number in range(count)]
    pairs = {(chance.randrange(count), chance.randrange(count)) for _ in range(chance.randint(1, count))}
    for before, after in pairs:
        nodes[after].after(nodes[before])
    reached = set(pairs)
    while more := {(a, d) for a, b in reached for c, d in pairs if b == c} - reached:
        reached |= more
    if any(a == b for a, b in reached):
        with pytest.raises(ConfigurationError, match="nodes wait for each other"):
            made(workflow)
    else:
        assert edges(workflow) == dict.fromkeys(pairs, AFTER)


@pytest.mark.parametrize("workflow_id", ["", " a", "a\n", "x" * 256, 7, None])
def test_wrong_workflow_id_is_refused(workflow_id: Any) -> None:
    """People type it at the command line."""
    with pytest.raises(ConfigurationError, match="workflow_id must be 1 to 255 printable characters"):
        made(some()[0], workflow_id)


def test_only_a_workflow_is_started() -> None:
    """A node is the likely mistake."""
    _, page = some()
    with pytest.raises(
        ConfigurationError, match="start_workflow takes a Workflow, not <Node 'page' of workflow 'import'"
    ):
        made(anything if page is None else page)  # type: ignore[arg-type]  # that is the mistake


# --- the rows of a right one ------------------------------------------------------------------------------------------


def test_rows_of_a_workflow() -> None:
    """All are PENDING, and hold what their tasks need."""
    workflow = Workflow("import", on_error="pause")
    page = workflow.add(fetch, "u")
    number = workflow.add(parse, page.value)
    audit = workflow.add(fetch, "v").named("audit").after(page, number, join="quorum", min_success=1, allow_failed=True)
    graph = made(workflow.output(number).succeeds_if([page, number], {number}).optional(audit))
    assert graph.workflows == (
        WorkflowRow(
            id="w-1", name="import", status="PENDING", on_error="pause", output_task_index=1,
            success_policy="[[0,1],[1]]", result=None, error=None, definition_key=graph.workflows[0].definition_key,
            parent_workflow_id=None, parent_task_index=None, depth=0, root_workflow_id="w-1", sent_at=7, created_at=7,
            started_at=None, completed_at=None, cancelled_at=None, updated_at=7,
        ),
    )  # fmt: skip
    first, second, third = graph.nodes
    assert (first.workflow_id, first.task_index, first.status, first.task_id) == ("w-1", 0, "PENDING", None)
    assert first.node_id == f"{fetch.name}:0".replace("/", "_")
    assert (first.task_name, first.args, first.kwargs, first.args_from) == (fetch.name, '["u"]', "{}", None)
    assert (second.queue_name, second.priority, second.max_retries) == ("cpu", 20, 1)
    assert second.task_options == definition_of(parse).options_text
    assert (third.node_id, third.join_type, third.min_success, third.allow_failed_deps) == ("audit", "quorum", 1, 1)
    assert [each.is_optional for each in graph.nodes] == [0, 0, 1]
    assert [(each.from_index, each.to_index, each.means) for each in graph.edges] == [
        (0, 1, VALUE),
        (0, 2, AFTER),
        (1, 2, AFTER),
    ]


def test_options_of_a_call_stand_in_its_row() -> None:
    """Who readies the node needs nothing but the row."""

    @manager.task(on_failure=mourn, name="deliver")
    async def deliver() -> None: ...

    workflow = Workflow("import")
    workflow.add(deliver.with_options(queue_name="mail", priority=3, timeout=9, delay=1.5, tags={"a": "b"}))
    (row,) = rows(workflow)
    assert (row.queue_name, row.priority, row.tags, row.delay_us) == ("mail", 3, '{"a":"b"}', 1_500_000)
    options = loads(row.task_options)
    assert options["timeout_s"] == 9
    assert options["is_delay"] is True
    assert options["on_failure"]["task_name"] == mourn.name


@manager.task
async def mourn(failed: FailedTask) -> None:
    """Follow a failure."""


def test_edge_may_mean_several_things() -> None:
    """It is one row, whatever a node takes of another one."""
    workflow, page = some()
    workflow.add(mix, three=[page.value, page.result]).after(page)
    workflow.add(note, page.result).after(page, join="any").after(page, join="any")
    assert edges(workflow) == {(0, 1): AFTER | VALUE | RESULT, (0, 2): AFTER | RESULT}


def test_default_ids_of_nodes_are_allowed_and_differ() -> None:
    """A local function has `<` in its name, and a name may be longer than an id."""

    @manager.task(name="x" * 200)
    async def long() -> None: ...

    @manager.task
    async def local() -> None: ...

    workflow = Workflow("a b/c")
    nodes = [workflow.add(long), workflow.add(local), workflow.add(local), workflow.add_workflow(workflow)]
    assert nodes[0].node_id == "x" * 126 + ":0"
    assert nodes[1].node_id.endswith("test_default_ids_of_nodes_are_allowed_and_differ._locals_.local:1")
    assert nodes[2].node_id.endswith(":2")
    assert nodes[3].node_id == "a_b_c:3"


def test_children_are_flattened_and_linked() -> None:
    """A child has an id of its own, which its parent's node names; what it takes from outside its node waits for."""
    root, page = some()
    spare = root.add(fetch, "v").named("spare")
    middle: Workflow[Any] = Workflow("middle")
    inner: Workflow[Any] = Workflow("inner")
    deep = inner.add(parse, page.value).named("deep")
    at = middle.add_workflow(inner.output(deep), node_id="in")
    end = middle.add(mix, three=[at.value, spare.result])
    outer = root.add_workflow(middle.output(end)).after(spare)
    root.add(mix, three=outer.value)
    graph = made(root)
    middle_id = child_workflow_id("w-1", 2)
    inner_id = child_workflow_id(middle_id, 0)
    assert [(each.id, each.parent_workflow_id, each.parent_task_index, each.depth) for each in graph.workflows] == [
        ("w-1", None, None, 0),
        (middle_id, "w-1", 2, 1),
        (inner_id, middle_id, 0, 2),
    ]
    assert {each.root_workflow_id for each in graph.workflows} == {"w-1"}
    by_id = {(each.workflow_id, each.node_id): each for each in graph.nodes}
    node = by_id["w-1", "middle:2"]
    assert (node.is_subworkflow, node.sub_workflow_id, node.args, node.task_name) == (1, middle_id, None, "middle")
    assert by_id[inner_id, "deep"].args_from == '[[[0],"w-1",0,"value"]]'
    assert {(each.workflow_id, each.from_index, each.to_index, each.means) for each in graph.edges} == {
        ("w-1", 0, 2, VALUE),
        ("w-1", 1, 2, AFTER | RESULT),
        ("w-1", 2, 3, VALUE),
        (middle_id, 0, 1, VALUE),
    }


def test_workflow_may_be_started_more_than_once() -> None:
    """Making the rows changes nothing, and the key does not depend on the id or the time."""
    workflow, page = some()
    workflow.add(parse, page.value)
    first, second = made(workflow), made(workflow)
    assert first == second
    other_id = graph_of(workflow, "w-2", definition_of, 8)
    assert other_id.workflows[0].definition_key == first.workflows[0].definition_key
    assert {each.workflow_id for each in other_id.nodes} == {"w-2"}


def test_node_may_wait_for_a_later_one() -> None:
    """The order of the definition means nothing."""
    workflow, page = some()
    page.after(workflow.add(fetch, "v"))
    assert edges(workflow) == {(1, 0): AFTER}


def test_large_graph_is_made_of_as_many_rows() -> None:
    """A wide one, whose last node takes the values of all others."""
    workflow, page = some()
    parts = [workflow.add(parse, page.value, column=number) for number in range(2_000)]
    workflow.output(workflow.add(render, [each.value for each in parts]))
    graph = made(workflow)
    assert (len(graph.nodes), len(graph.edges)) == (2_002, 4_000)
    assert len(loads(graph.nodes[-1].args_from or "")) == 2_000


# --- the key ----------------------------------------------------------------------------------------------------------


def _plain() -> Workflow[Any]:
    workflow, page = some()
    workflow.add(parse, page.value, column=1).named("number")
    return workflow


def _changed(change: Callable[[Workflow[Any], Node[Any], Node[Any]], object]) -> Callable[[], Workflow[Any]]:
    def make() -> Workflow[Any]:
        workflow = _plain()
        change(workflow, *workflow.nodes)
        return workflow

    return make


def _made(add: Callable[[Workflow[Any], Node[str]], object], name: str = "import", **options: Any) -> Workflow[Any]:
    workflow: Workflow[Any] = Workflow(name, **options)
    add(workflow, workflow.add(fetch, "u").named("page"))
    return workflow


def _number(call: Any = parse, **kwargs: Any) -> Callable[[Workflow[Any], Node[str]], object]:
    return lambda wf, page: wf.add(call, page.value, **({"column": 1} | kwargs)).named("number")


def _with_child(url: str) -> Workflow[Any]:
    workflow, child = _plain(), Workflow[Any]("child")
    child.add(fetch, url)
    workflow.add_workflow(child)
    return workflow


ANOTHER: dict[str, Callable[[], Workflow[Any]]] = {
    "name": lambda: _made(_number(), "export"),
    "on_error": lambda: _made(_number(), on_error="pause"),
    "argument": lambda: _made(_number(column=2)),
    "function": lambda: _made(lambda wf, page: wf.add(mix, page.value).named("number")),
    "reference": lambda: _made(lambda wf, page: wf.add(mix, page.result).named("number")),
    "priority": lambda: _made(_number(parse.with_options(priority=1))),
    "queue": lambda: _made(_number(parse.with_options(queue_name="q"))),
    "delay": lambda: _made(_number(parse.with_options(delay=1))),
    "timeout": lambda: _made(_number(parse.with_options(timeout=1))),
    "tags": lambda: _made(_number(parse.with_options(tags={"a": "b"}))),
    "node id": _changed(lambda _, page, __: page.named("first")),
    "edge": _changed(lambda _, page, number: number.after(page)),
    "join": _changed(lambda _, page, number: number.after(page, join="any")),
    "quorum": _changed(lambda _, page, number: number.after(page, join="quorum", min_success=1)),
    "failures": _changed(lambda _, page, number: number.after(page, allow_failed=True)),
    "output": _changed(lambda wf, _, number: wf.output(number)),
    "case": _changed(lambda wf, page, _: wf.succeeds_if([page])),
    "optional": _changed(lambda wf, page, _: wf.optional(page)),
    "node": _changed(lambda wf, _, __: wf.add(fetch, "v")),
    "child": lambda: _with_child("u"),
    "argument of the child": lambda: _with_child("v"),
}


def test_key_changes_with_whatever_makes_the_graph() -> None:
    """A workflow whose id is used again must be the same, or its old results would be taken for new ones."""
    keys = {name: key_of(make()) for name, make in ANOTHER.items()} | {"none": key_of(_plain())}
    assert len(set(keys.values())) == len(keys), keys
    assert keys["none"] == key_of(_plain()) == key_of(_made(_number()))
    assert all(len(key) == hashlib.sha256().digest_size * 2 for key in keys.values())


class Upside:
    """A codec, whose texts differ each time."""

    def encode(self, data: bytes, /) -> bytes:
        return os.urandom(8) + data

    def decode(self, data: bytes, /) -> bytes:
        return data[8:]


def test_sealed_arguments_are_stored_sealed_and_stay_out_of_the_key() -> None:
    """A hash of them would let a reader of the file guess what the codec hides."""
    sealed = TaskManager("never-opened.db", requeue_pending=True, codec=Upside())

    @sealed.task(name="secret")
    async def secret(text: str, more: str = "") -> str:
        return text + more

    def graph(text: str) -> Graph:
        workflow = Workflow("import")
        first = workflow.add(secret, text)
        workflow.add(secret, first.value, more=text)
        return graph_of(workflow, "w-1", lambda each: each.bound(sealed)[0], 7)

    one, two = graph("hidden"), graph("other")
    assert one.workflows[0].definition_key == two.workflows[0].definition_key
    arguments = sealed.get_task("secret").bound(sealed)[0].arguments
    assert arguments.decode(one.nodes[0].args or "", one.nodes[0].kwargs or "") == (("hidden",), {})
    assert not (one.nodes[1].args or "").startswith("[")
    assert one.nodes[1].args_from == '[[[0],"w-1",0,"value"]]'


def test_child_without_output_gives_a_value_unless_it_is_sealed() -> None:
    """It is a dict of what its nodes came to. The store puts that together, and has no key."""
    sealed = TaskManager("never-opened.db", requeue_pending=True, codec=Upside())
    for of in (manager, sealed):

        @of.task(name="collect")
        async def collect(found: Any = None) -> None: ...

        workflow, child = Workflow[Any]("import"), Workflow[Any]("child")
        child.add(collect)
        workflow.add(collect, workflow.add_workflow(child).result)
        if of is manager:
            assert edges(workflow) == {(0, 1): RESULT}
            continue
        with pytest.raises(ConfigurationError, match=r"the result of 'child', which has no output.*with output"):
            graph_of(workflow, "w-1", lambda each: each.bound(sealed)[0], 7)


PROGRAM = """
from tests.unit.test_workflow_definition import golden, key_of
print(key_of(golden()))
"""
GOLDEN = "f21108ca5f7a94b1e33273c8fe5fa269a1a00d23ab9de3573b3fa371118d6f43"


def golden() -> Workflow[Any]:
    """A workflow with all that may depend on the order of hashes."""
    workflow, page = some()
    tags = {"b": "1", "a": "2"}
    workflow.add(mix.with_options(tags=tags), five={"one", "two", "three", "four"}).named("set")
    workflow.add(mix, {"z": [Path("p")], "a": []}, six=Order("x")).after(page)
    cases: Any = {page, workflow.nodes[1]}
    return workflow.succeeds_if(cases)


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_key_is_the_same_in_every_process(seed: str) -> None:
    """The order of a set changes with each process. The key of this graph must not change with a release either."""
    root = Path(__file__).resolve().parents[2]
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=root, env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True, check=False, text=True,
    )  # fmt: skip
    assert run.stdout.split() == [GOLDEN], run.stderr


# --- small things -----------------------------------------------------------------------------------------------------


def test_parts_are_shown_by_name() -> None:
    """One line each."""
    workflow, page = some()
    assert repr(workflow) == "<Workflow 'import' of 1 nodes>"
    assert repr(page) == "<Node 'page' of workflow 'import'>"
    assert str(page) == "workflow 'import': node 'page'"


def test_snoozing_and_plain_functions_may_be_nodes() -> None:
    """What a task may return, it may return in a workflow."""

    @manager.task(name="later")
    def later(how: Literal["a", "b"]) -> int | Snooze:
        return Snooze(1) if how == "a" else 1

    workflow = Workflow("import")
    workflow.add(render, [workflow.add(later, "a").value])
    assert len(rows(workflow)) == 2
