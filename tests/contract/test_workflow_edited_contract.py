"""What somebody has edited in the rows of a workflow must let its tasks end, in every store."""

import json
from typing import Any

import pytest

from taskmanager.model.errors import StoreError
from taskmanager.model.ids import child_workflow_id, node_task_id
from taskmanager.store.protocol import Store
from tests.contract.graphs import ROOT, N, end, error_code, fail, start, status, statuses
from tests.contract.test_workflow_recovery_contract import set_node, sql

pytestmark = pytest.mark.anyio
INNER = child_workflow_id(ROOT, 0)


async def test_success_policy_that_cannot_be_read_is_met_by_nothing(store: Store) -> None:
    for number, policy in enumerate(("]", "7", "[7]", '[["a"]]', "[[99]]")):
        await start(store, N("a"), success_policy=policy, workflow_id=f"w{number}")
        await end(store, "a", workflow_id=f"w{number}")
        assert await error_code(store, f"w{number}") == "WORKFLOW_SUCCESS_CASE_NOT_MET"


@pytest.mark.parametrize("columns", [{"open": 0}, {"open": 7}, {"inputs_open": 0, "open": 0, "completed": 3}])
async def test_counters_that_are_wrong_let_tasks_end(store: Store, columns: dict[str, int]) -> None:
    await start(store, N("a"), N("b"), N("c", values=["a"], after=["a", "b"]))
    await set_node(store, "c", **columns)
    await end(store, "a")
    await end(store, "b")
    found = await statuses(store)
    assert (found["a"], found["b"]) == ("COMPLETED", "COMPLETED")


async def test_dependencies_that_cannot_be_read_let_a_workflow_go_on(store: Store) -> None:
    await start(store, N("a"), N("b", after=["a"]), N("c", after=["b"]), on_error="pause")
    await set_node(store, "b", dependencies="]")
    await fail(store, "a")
    assert (await status(store), (await statuses(store))["b"]) == ("PAUSED", "SKIPPED")


@pytest.mark.parametrize("text", ["]", "{", '{"other":1}', "7"])
async def test_result_of_a_node_that_cannot_be_read_lets_its_workflow_end(store: Store, text: str) -> None:
    """The workflow that it is in has no value then."""
    await start(store, N("sub", child=[N("x"), N("y")]))
    await end(store, "x", workflow_id=INNER)
    await set_node(store, "x", result=text)
    await end(store, "y", workflow_id=INNER)
    node = await store.fetch_node(ROOT, "sub")
    assert node is not None
    assert (node.status, node.result) == ("COMPLETED", None)


@pytest.mark.parametrize("text", ["]", "{", '{"other":1}', "7"])
async def test_error_of_a_node_that_cannot_be_read_lets_its_workflow_end(store: Store, text: str) -> None:
    await start(store, N("sub", child=[N("x"), N("y")]))
    await fail(store, "x", workflow_id=INNER)
    await set_node(store, "x", error=text)
    await end(store, "y", workflow_id=INNER)
    node = await store.fetch_node(ROOT, "sub")
    assert node is not None
    assert (node.status, node.error, json.loads(node.sub_workflow_summary or "")["error"]) == ("FAILED", text, None)


@pytest.mark.parametrize("inputs", ["]", "7", "[7]", '[[[0],"w",99,"value"]]', '[[[0],"nobody",0,"value"]]'])
async def test_inputs_that_cannot_be_read_are_an_error_of_the_start(store: Store, inputs: Any) -> None:
    """Whoever starts the task refuses it then."""
    await start(store, N("a"), N("b", values=["a"]))
    await end(store, "a")
    await sql(store, "UPDATE taskmanager_workflow_tasks SET args_from = :inputs WHERE node_id = 'b'", inputs=inputs)
    with pytest.raises(StoreError, match="cannot be read"):
        await store.node_start(node_task_id(ROOT, 1))
