"""What every store makes of a workflow that stands in another one."""

import json

import pytest

from taskmanager.model.ids import child_workflow_id
from taskmanager.store.protocol import Store
from tests.contract.graphs import (
    NOW,
    ROOT,
    N,
    code_of,
    end,
    error_code,
    fail,
    ready_of,
    start,
    status,
    statuses,
)

pytestmark = pytest.mark.anyio
INNER = child_workflow_id(ROOT, 0)


async def test_child_begins_with_its_node_and_its_end_is_the_end_of_the_node(store: Store) -> None:
    """Its rows are there from the start, so to begin it is one update. Its output flows on like a result."""
    made = await start(
        store, N("sub", child=[N("x"), N("y", values=["x"])], child_output="y"), N("use", values=["sub"]), output="use"
    )
    assert await status(store, INNER) == "RUNNING"
    assert await statuses(store) == {"sub": "RUNNING", "use": "PENDING"}
    await end(store, "x", workflow_id=INNER)
    advance = await end(store, "y", workflow_id=INNER, result='{"ok":"whole"}')
    assert (advance.ended, ready_of(advance, made)) == ((INNER,), {"use"})
    node = await store.fetch_node(ROOT, "sub")
    assert node is not None
    assert (node.status, node.result, node.task_id) == ("COMPLETED", '{"ok":"whole"}', None)
    assert json.loads(node.sub_workflow_summary or "") == {
        "status": "COMPLETED", "totals": {"COMPLETED": 2}, "error": None,
    }  # fmt: skip


async def test_child_waits_until_its_node_is_ready(store: Store) -> None:
    await start(store, N("first"), N("sub", after=["first"], child=[N("x")]))
    inner = child_workflow_id(ROOT, 1)
    assert (await status(store, inner), await statuses(store, inner)) == ("PENDING", {"x": "PENDING"})
    await end(store, "first")
    assert (await status(store, inner), await statuses(store, inner)) == ("RUNNING", {"x": "ENQUEUED"})


async def test_failure_of_a_child_is_that_of_its_node(store: Store) -> None:
    await start(store, N("sub", child=[N("x"), N("y")]), N("next", after=["sub"]))
    await end(store, "y", workflow_id=INNER)
    assert (await fail(store, "x", workflow_id=INNER)).ended == (INNER, ROOT)
    node = await store.fetch_node(ROOT, "sub")
    assert node is not None
    assert (node.status, code_of(node.error)) == ("FAILED", "CODE_FAILED")
    summary = json.loads(node.sub_workflow_summary or "")
    assert (summary["status"], summary["totals"]) == ("FAILED", {"COMPLETED": 1, "FAILED": 1})
    assert summary["error"]["error_code"] == "CODE_FAILED"
    assert await statuses(store) == {"sub": "FAILED", "next": "SKIPPED"}


async def test_child_without_an_output_comes_to_a_dict_of_its_nodes(store: Store) -> None:
    await start(store, N("sub", child=[N("x"), N("y"), N("z", optional=True)]))
    await fail(store, "z", workflow_id=INNER)
    await end(store, "x", workflow_id=INNER, result='{"ok":[1]}')
    await end(store, "y", workflow_id=INNER, result='{"ok":null}')
    node = await store.fetch_node(ROOT, "sub")
    assert node is not None
    assert node.result == '{"ok":{"x":[1],"y":null}}'


async def test_child_in_a_skipped_node_has_ended_without_a_start(store: Store) -> None:
    """With whatever stands in it, so that nobody waits for it."""
    await start(store, N("a"), N("sub", after=["a"], child=[N("x"), N("deep", child=[N("y")])]))
    inner = child_workflow_id(ROOT, 1)
    deepest = child_workflow_id(inner, 1)
    assert set((await fail(store, "a")).ended) == {ROOT, inner, deepest}
    for each in (inner, deepest):
        assert (await status(store, each), await error_code(store, each)) == ("CANCELLED", "UPSTREAM_SKIPPED")
        assert set((await statuses(store, each)).values()) == {"SKIPPED"}


async def test_children_in_children_begin_and_end_together(store: Store) -> None:
    """One end at the bottom may end all of them."""
    nodes = [N("leaf")]
    for level in range(8):
        nodes = [N(f"level{level}", child=nodes)]
    made = await start(store, *nodes)
    bottom = made.workflows[-1].id
    advance = await end(store, "leaf", workflow_id=bottom)
    assert advance.ended == tuple(row.id for row in reversed(made.workflows))
    assert await status(store) == "COMPLETED"


async def test_child_that_was_cancelled_before_its_node_was_ready_has_failed(store: Store) -> None:
    """So has the node, without waiting for what it comes after."""
    await start(store, N("a"), N("sub", after=["a"], child=[N("x")]), N("log", results=["sub"]))
    inner = child_workflow_id(ROOT, 1)
    await store.cancel_workflow(inner, NOW)
    assert await statuses(store) == {"a": "ENQUEUED", "sub": "FAILED", "log": "ENQUEUED"}
    assert await statuses(store, inner) == {"x": "SKIPPED"}


async def test_node_that_ended_before_its_workflow_began_is_counted_then(store: Store) -> None:
    """Somebody has cancelled the workflow in it."""
    inner = child_workflow_id(ROOT, 1)
    child = [N("deep", child=[N("x")]), N("y", after=["deep"], allow_failed=True)]
    await start(store, N("a"), N("sub", after=["a"], child=child))
    await store.cancel_workflow(child_workflow_id(inner, 0), NOW)
    assert await statuses(store, inner) == {"deep": "FAILED", "y": "PENDING"}
    await end(store, "a")
    assert await statuses(store, inner) == {"deep": "FAILED", "y": "ENQUEUED"}
