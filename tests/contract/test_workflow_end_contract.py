"""How nodes and workflows end in every store: by what tasks came to, by failures that harm, and by success cases."""

import pytest

from taskmanager.codec.results import encode_error_text
from taskmanager.model.record import TaskWrite, expected_of
from taskmanager.model.result import TaskError
from taskmanager.model.states import BuiltInTaskCode
from taskmanager.store.protocol import Store
from tests.contract.graphs import (
    NOW,
    ROOT,
    N,
    code_of,
    end,
    ended,
    error_code,
    fail,
    graph,
    run,
    start,
    status,
    statuses,
    task_of,
)

pytestmark = pytest.mark.anyio


async def test_failure_lets_independent_branches_run_to_their_end(store: Store) -> None:
    """Then the workflow fails with the first error."""
    await start(store, N("a"), N("b"), N("c", after=["b"]))
    await fail(store, "a", now=NOW + 1)
    assert await status(store) == "RUNNING"
    await end(store, "b", now=NOW + 2)
    await fail(store, "c", now=NOW + 3, result='{"err":{"error_code":"SECOND","message":"","data":null}}')
    assert await status(store) == "FAILED"
    assert await error_code(store) == "CODE_FAILED"


async def test_failure_that_all_dependents_start_with_nevertheless_is_absorbed(store: Store) -> None:
    """Of three mirrors one succeeds first, and two fail later: the join held, and a late end undoes nothing."""
    mirrors = ["a", "b", "c"]
    await start(store, *map(N, mirrors), N("use", after=mirrors, join="any"))
    await end(store, "b")
    await fail(store, "a", "c")
    await end(store, "use")
    assert await status(store) == "COMPLETED"


async def test_failure_with_a_dependent_that_was_skipped_is_not_absorbed(store: Store) -> None:
    """Though another one has started with it."""
    await start(store, N("a"), N("b", after=["a"], allow_failed=True), N("c", after=["a"]))
    await fail(store, "a")
    await end(store, "b")
    assert await status(store) == "FAILED"


async def test_failure_that_nothing_depends_on_is_not_absorbed(store: Store) -> None:
    await start(store, N("a"))
    await fail(store, "a")
    assert await status(store) == "FAILED"


async def test_optional_node_may_fail(store: Store) -> None:
    await start(store, N("a", optional=True), N("b", after=["a"]), N("c"))
    await fail(store, "a")
    await end(store, "c")
    assert await statuses(store) == {"a": "FAILED", "b": "SKIPPED", "c": "COMPLETED"}
    assert await status(store) == "COMPLETED"


async def test_success_cases_alone_decide(store: Store) -> None:
    """A failure outside of them harms nobody; without any that is met, a failed node of theirs says why."""
    await start(store, N("a"), N("b"), N("c"), cases=[["a", "b"], ["c"]])
    await fail(store, "a", "b")
    await end(store, "c")
    assert await status(store) == "COMPLETED"
    await store.start_workflow(graph(N("a"), N("b"), cases=[["a", "b"]], workflow_id="v"), NOW)
    await end(store, "a", workflow_id="v")
    await fail(store, "b", workflow_id="v")
    assert (await status(store, "v"), await error_code(store, "v")) == ("FAILED", "CODE_FAILED")


async def test_no_success_case_met_and_none_of_their_nodes_failed(store: Store) -> None:
    await start(store, N("a"), N("b", after=["a"]), cases=[["b"]])
    await fail(store, "a")
    assert await error_code(store) == "WORKFLOW_SUCCESS_CASE_NOT_MET"


async def test_output_belongs_to_every_case(store: Store) -> None:
    """A workflow that has completed has its value."""
    await start(store, N("a"), N("out"), cases=[["a"]], output="out")
    await end(store, "a")
    await fail(store, "out")
    assert (await status(store), await error_code(store)) == ("FAILED", "CODE_FAILED")


async def test_workflow_whose_output_was_skipped_has_failed(store: Store) -> None:
    """What made it skipped was optional, so no failure says why."""
    await start(store, N("a", optional=True), N("out", values=["a"]), output="out")
    await fail(store, "a")
    assert (await status(store), await error_code(store)) == ("FAILED", "UPSTREAM_SKIPPED")


@pytest.mark.req("HB-28", "HB-29", "HB-30", "HB-31")
@pytest.mark.parametrize(
    ("word", "code"),
    [
        ("COMPLETED", "RESULT_NOT_AVAILABLE"),
        ("FAILED", "WORKER_CRASHED"),
        ("CANCELLED", "TASK_CANCELLED"),
        ("EXPIRED", "TASK_EXPIRED"),
        ("INTERRUPTED", "TASK_INTERRUPTED"),
    ],
)
async def test_end_without_a_result_has_the_error_of_its_status(store: Store, word: str, code: str) -> None:
    """A node whose task has left no value has failed: what depends on it has nothing to go on with."""
    await start(store, N("a"))
    await run(store, "a")
    row = await task_of(store, "a")
    await store.commit([TaskWrite(ended(row, word)._replace(result=None), expected_of(row))])
    node = await store.fetch_node(ROOT, "a")
    assert node is not None
    assert (node.status, node.result, code_of(node.error)) == ("FAILED", None, code)
    assert await error_code(store) == code


@pytest.mark.req("HB-28")
@pytest.mark.parametrize("text", ["not JSON", "{", '{"other":1}', "[]", ""])
async def test_result_that_cannot_be_read_counts_as_a_crash(store: Store, text: str) -> None:
    await start(store, N("a"))
    await run(store, "a")
    row = await task_of(store, "a")
    await store.commit([TaskWrite(ended(row)._replace(result=text), expected_of(row))])
    node = await store.fetch_node(ROOT, "a")
    assert node is not None
    assert (node.status, code_of(node.error)) == ("FAILED", "WORKER_CRASHED")


async def test_sealed_result_is_kept_as_it_is(store: Store) -> None:
    """The codec of the application has encrypted it. The status of the task says whether it is a value."""
    await start(store, N("a"), N("b", values=["a"]))
    await end(store, "a", result="c2VhbGVk")
    node = await store.fetch_node(ROOT, "a")
    assert node is not None
    assert (node.status, node.result) == ("COMPLETED", "c2VhbGVk")
    await end(store, "b", word="FAILED", result="b3Bz")
    failed = await store.fetch_node(ROOT, "b")
    assert failed is not None
    assert (failed.status, failed.error) == ("FAILED", "b3Bz")
    row = await store.fetch_workflow(ROOT)
    assert row is not None
    assert row.error == "b3Bz"


async def test_success_whose_result_could_not_be_stored_gives_no_value(store: Store) -> None:
    """The task is COMPLETED, with an error in the place of its result."""
    await start(store, N("a"), N("b", values=["a"]))
    lost = encode_error_text(TaskError(BuiltInTaskCode.RESULT_NOT_AVAILABLE, "too large"))
    await end(store, "a", result=lost)
    assert await statuses(store) == {"a": "FAILED", "b": "SKIPPED"}
