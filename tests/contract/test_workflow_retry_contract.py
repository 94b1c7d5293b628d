"""What every store opens again: by a retry of a task, and by another start of what has failed."""

import pytest

from taskmanager.model.ids import child_workflow_id, node_task_id
from taskmanager.store.protocol import Store
from taskmanager.store.workflow_protocol import Advance, FreeTask
from tests.contract.graphs import (
    NOW,
    ROOT,
    N,
    end,
    fail,
    retry,
    run,
    start,
    status,
    statuses,
    task_of,
)

pytestmark = pytest.mark.anyio
INNER = child_workflow_id(ROOT, 0)


async def test_retry_of_a_failed_node_opens_what_was_skipped_and_the_workflow(store: Store) -> None:
    """In the transaction of the retry. What has completed keeps its result."""
    await start(store, N("a"), N("b", after=["a"]), N("c", after=["b"]), N("d"))
    await end(store, "d")
    await fail(store, "a")
    assert await status(store) == "FAILED"
    await retry(store, "a")
    assert await status(store) == "RUNNING"
    assert await statuses(store) == {"a": "ENQUEUED", "b": "PENDING", "c": "PENDING", "d": "COMPLETED"}
    row = await store.fetch_workflow(ROOT)
    assert row is not None
    assert (row.error, row.completed_at) == (None, None)
    for each in "abc":
        await end(store, each)
    assert await status(store) == "COMPLETED"


async def test_retry_leaves_skipped_what_another_failure_skips(store: Store) -> None:
    await start(store, N("a"), N("b"), N("c", values=["a", "b"]))
    await fail(store, "a", "b")
    await retry(store, "a")
    assert (await statuses(store))["c"] == "SKIPPED"
    await retry(store, "b")
    assert (await statuses(store))["c"] == "PENDING"
    await end(store, "a", "b")
    assert (await statuses(store))["c"] == "ENQUEUED"


async def test_retry_of_a_completed_node_leaves_what_came_after_it(store: Store) -> None:
    """Somebody forces it to run again; only its own result is another one then."""
    await start(store, N("a"), N("b", values=["a"]))
    await end(store, "a")
    await end(store, "b")
    await retry(store, "a")
    assert await statuses(store) == {"a": "ENQUEUED", "b": "COMPLETED"}
    assert await status(store) == "RUNNING"
    await end(store, "a", result='{"ok":2}')
    assert await status(store) == "COMPLETED"


async def test_retry_in_a_child_opens_all_up_to_the_root(store: Store) -> None:
    await start(store, N("sub", child=[N("deep", child=[N("x")])]), N("next", after=["sub"]))
    deep = child_workflow_id(INNER, 0)
    await fail(store, "x", workflow_id=deep)
    assert await status(store) == "FAILED"
    await retry(store, "x", workflow_id=deep)
    assert [await status(store, each) for each in (ROOT, INNER, deep)] == ["RUNNING"] * 3
    assert await statuses(store) == {"sub": "RUNNING", "next": "PENDING"}
    await end(store, "x", workflow_id=deep)
    await end(store, "next")
    assert await status(store) == "COMPLETED"


async def test_retry_lets_a_child_begin_that_was_closed_when_its_node_was_skipped(store: Store) -> None:
    await start(store, N("a"), N("sub", after=["a"], child=[N("x"), N("deep", child=[N("y")])]))
    inner = child_workflow_id(ROOT, 1)
    await fail(store, "a")
    await retry(store, "a")
    assert (await status(store, inner), await statuses(store, inner)) == (
        "PENDING",
        {"x": "PENDING", "deep": "PENDING"},
    )
    await end(store, "a")
    assert await statuses(store, inner) == {"x": "ENQUEUED", "deep": "RUNNING"}
    await end(store, "x", workflow_id=inner)
    await end(store, "y", workflow_id=child_workflow_id(inner, 1))
    assert await status(store) == "COMPLETED"


async def test_failed_workflow_is_reopened_with_what_did_not_complete(store: Store) -> None:
    """Its tasks keep their ids, their attempts and their start counts."""
    await start(store, N("a"), N("b"), N("c", after=["a", "b"]), output="c")
    await end(store, "a")
    await fail(store, "b")
    advance = await store.reopen_workflow(ROOT, NOW + 50)
    assert advance == Advance((FreeTask(node_task_id(ROOT, 1), "app:job", "default", 50, NOW + 50),))
    assert await statuses(store) == {"a": "COMPLETED", "b": "ENQUEUED", "c": "PENDING"}
    row = await task_of(store, "b")
    assert (row.status, row.start_count, row.result, row.error_code, row.claimed_by_worker_id) == (
        "PENDING", 1, None, None, None,
    )  # fmt: skip
    await end(store, "b")
    await end(store, "c")
    assert await status(store) == "COMPLETED"


async def test_reopened_node_waits_again_for_what_failed_before_it(store: Store) -> None:
    """Its task runs again when the node is ready, though it had run with the failure."""
    await start(store, N("a"), N("b", after=["a"], allow_failed=True))
    await fail(store, "a")
    await fail(store, "b")
    assert await store.reopen_workflow(ROOT, NOW) is not None
    assert await statuses(store) == {"a": "ENQUEUED", "b": "PENDING"}
    await end(store, "a")
    assert await statuses(store) == {"a": "COMPLETED", "b": "ENQUEUED"}
    assert (await task_of(store, "b")).status == "PENDING"
    await end(store, "b")
    assert await status(store) == "COMPLETED"


async def test_reopened_join_that_holds_already_is_ready_at_once(store: Store) -> None:
    await start(store, N("a"), N("b"), N("c", after=["a", "b"], join="any"))
    await end(store, "a")
    await fail(store, "b", "c")
    assert await store.reopen_workflow(ROOT, NOW) is not None
    assert await statuses(store) == {"a": "COMPLETED", "b": "ENQUEUED", "c": "ENQUEUED"}


async def test_reopening_goes_down_to_children_that_did_not_complete(store: Store) -> None:
    await start(store, N("sub", child=[N("x"), N("y")]), N("good", child=[N("z")]))
    good = child_workflow_id(ROOT, 1)
    await end(store, "z", workflow_id=good)
    await end(store, "x", workflow_id=INNER)
    await fail(store, "y", workflow_id=INNER)
    assert await store.reopen_workflow(ROOT, NOW) is not None
    assert await statuses(store) == {"sub": "RUNNING", "good": "COMPLETED"}
    assert await statuses(store, INNER) == {"x": "COMPLETED", "y": "ENQUEUED"}
    assert await status(store, good) == "COMPLETED"
    assert (await end(store, "y", workflow_id=INNER)).ended == (INNER, ROOT)


@pytest.mark.parametrize("way", ["nobody", "live", "completed"])
async def test_only_what_has_failed_or_was_cancelled_is_reopened(store: Store, way: str) -> None:
    if way != "nobody":
        await start(store, N("a"))
    if way == "completed":
        await end(store, "a")
    before = await store.fetch_workflow(ROOT)
    assert await store.reopen_workflow(ROOT, NOW + 1) is None
    assert await store.fetch_workflow(ROOT) == before


async def test_child_is_not_reopened_without_its_root(store: Store) -> None:
    """It would run beside a parent that has ended, or for a node that was skipped."""
    await start(store, N("sub", child=[N("x")]))
    await fail(store, "x", workflow_id=INNER)
    assert await store.reopen_workflow(INNER, NOW) is None
    assert await status(store, INNER) == "FAILED"


async def test_retry_in_a_child_of_a_cancelled_workflow_stays_cancelled(store: Store) -> None:
    """The workflow has not ended, because a task of it still runs; what is put back in it must not run."""
    await start(store, N("sub", child=[N("x"), N("deep", after=["x"], allow_failed=True, child=[N("y")])]), N("b"))
    await run(store, "b")
    assert await store.cancel_workflow(ROOT, NOW) is not None
    assert (await status(store), await status(store, INNER)) == ("RUNNING", "CANCELLED")
    await retry(store, "x", workflow_id=INNER)
    begun = await store.node_start(node_task_id(INNER, 0))
    assert begun is not None
    assert begun.is_cancelled
    await end(store, "x", word="CANCELLED", workflow_id=INNER)
    begun = await store.node_start(node_task_id(child_workflow_id(INNER, 1), 0))
    assert begun is None or begun.is_cancelled
