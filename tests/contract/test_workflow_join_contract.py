"""When every store lets a node begin: its join, and beside it its inputs."""

import pytest

from taskmanager.codec.results import encode_error_text
from taskmanager.model.ids import node_task_id
from taskmanager.model.result import TaskError
from taskmanager.model.workflows import Input
from taskmanager.store.protocol import Store
from tests.contract.graphs import (
    ROOT,
    N,
    end,
    fail,
    start,
    statuses,
)

pytestmark = pytest.mark.anyio
MANY = 200


async def test_all_waits_for_every_end_and_is_skipped_by_one_failure(store: Store) -> None:
    await start(store, N("a"), N("b"), N("c", after=["a", "b"]), N("d", after=["a", "b"], allow_failed=True))
    await fail(store, "a")
    assert await statuses(store) == {"a": "FAILED", "b": "ENQUEUED", "c": "PENDING", "d": "PENDING"}
    await end(store, "b")
    assert await statuses(store) == {"a": "FAILED", "b": "COMPLETED", "c": "SKIPPED", "d": "ENQUEUED"}


async def test_any_and_quorum_are_ready_as_soon_as_enough_have_completed(store: Store) -> None:
    three = ["a", "b", "c"]
    some = [N("any", after=three, join="any"), N("two", after=three, join="quorum", min_success=2)]
    await start(store, *map(N, three), *some)
    await end(store, "b")
    assert await statuses(store) == dict.fromkeys("ac", "ENQUEUED") | {
        "b": "COMPLETED",
        "any": "ENQUEUED",
        "two": "PENDING",
    }
    await end(store, "c")
    assert (await statuses(store))["two"] == "ENQUEUED"


async def test_any_and_quorum_are_skipped_as_soon_as_they_cannot_be(store: Store) -> None:
    three = ["a", "b", "c"]
    some = [N("any", after=three, join="any"), N("two", after=three, join="quorum", min_success=2)]
    await start(store, *map(N, three), *some)
    await fail(store, "a", "b")
    assert (await statuses(store))["two"] == "SKIPPED"
    assert (await statuses(store))["any"] == "PENDING"
    await fail(store, "c")
    assert (await statuses(store))["any"] == "SKIPPED"


async def test_value_that_cannot_come_skips_its_node_whatever_it_allows(store: Store) -> None:
    await start(store, N("a"), N("b"), N("c", after=["b"], values=["a"], allow_failed=True))
    await fail(store, "a")
    assert (await statuses(store))["c"] == "SKIPPED"


async def test_join_that_holds_waits_for_the_value_of_another_node(store: Store) -> None:
    """b completes first, the join holds, and a has no value yet."""
    await start(store, N("a"), N("b"), N("use", values=["a"], after=["b"], join="any"))
    await end(store, "b")
    assert (await statuses(store))["use"] == "PENDING"
    await end(store, "a")
    assert (await statuses(store))["use"] == "ENQUEUED"


async def test_result_needs_only_the_end_of_its_node(store: Store) -> None:
    """Failures and what was skipped for them included, without `allow_failed`."""
    await start(store, N("a"), N("b", after=["a"]), N("log", results=["a", "b"]))
    await fail(store, "a")
    assert await statuses(store) == {"a": "FAILED", "b": "SKIPPED", "log": "ENQUEUED"}


async def test_result_of_a_node_that_the_join_names_is_not_waited_for(store: Store) -> None:
    """The winner starts it; of the others it is told that they have not ended."""
    mirrors = ["a", "b", "c"]
    await start(store, *map(N, mirrors), N("log", after=mirrors, results=mirrors, join="any"))
    await end(store, "b")
    begun = await store.node_start(node_task_id(ROOT, 3))
    assert begun is not None
    assert [(each.node_id, each.status) for each in begun.inputs] == [
        ("a", "ENQUEUED"), ("b", "COMPLETED"), ("c", "ENQUEUED"),
    ]  # fmt: skip


async def test_skipping_goes_on_to_what_depends_on_what_was_skipped(store: Store) -> None:
    """In the same commit, however long the chain is."""
    chain = [N(f"n{number}", after=[f"n{number - 1}"]) for number in range(1, MANY)]
    await start(store, N("n0"), *chain)
    assert (await fail(store, "n0")).ended == (ROOT,)
    found = await statuses(store)
    assert list(found.values()) == ["FAILED"] + ["SKIPPED"] * (MANY - 1)


async def test_start_of_a_task_is_told_its_inputs(store: Store) -> None:
    """The results are those of the tasks as they were stored; a failed node has its error."""
    await start(store, N("a"), N("b"), N("c", values=["a"], results=["b"]))
    await end(store, "a", result='{"ok":[1,2]}')
    await fail(store, "b")
    found = await store.node_start(node_task_id(ROOT, 2))
    assert found is not None
    assert found[:3] == (ROOT, "RUNNING", False)
    error = encode_error_text(TaskError("CODE_FAILED", "no luck"))
    assert found.inputs == (
        Input(("value", 0), "value", "a", "COMPLETED", '{"ok":[1,2]}', None),
        Input(("result", 0), "result", "b", "FAILED", None, error),
    )
    assert await store.node_start("nobody") is None
