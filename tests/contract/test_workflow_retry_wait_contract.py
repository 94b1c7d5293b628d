"""What every store lets wait again when something is opened before it: nothing begins before its join holds."""

import pytest

from taskmanager.model.ids import child_workflow_id
from taskmanager.model.workflows import HELD
from taskmanager.store.protocol import Store
from tests.contract.graphs import (
    NOW,
    ROOT,
    N,
    end,
    fail,
    ready_of,
    retry,
    run,
    start,
    status,
    statuses,
    task_of,
)

pytestmark = pytest.mark.anyio


async def is_held(store: Store, node_id: str, workflow_id: str = ROOT) -> bool:
    """Whether the task of a node waits, and no claim takes it."""
    row = await task_of(store, node_id, workflow_id)
    return row.status == "PENDING" and row.claimed_by_worker_id == HELD


async def test_nodes_retried_together_run_one_after_the_other(store: Store) -> None:
    """A retry of all that failed must not let a node begin beside the one whose end it comes after."""
    made = await start(store, N("a"), N("b", after=["a"], results=["a"], allow_failed=True))
    await fail(store, "a")
    await fail(store, "b")
    await retry(store, "a", "b")
    assert await statuses(store) == {"a": "ENQUEUED", "b": "PENDING"}
    assert await is_held(store, "b")
    assert ready_of(await end(store, "a"), made) == {"b"}
    await end(store, "b")
    assert await status(store) == "COMPLETED"


async def test_retry_of_a_node_that_waits_again_lets_it_wait(store: Store) -> None:
    """It is behind a node that was opened before it, in another transaction."""
    await start(store, N("a"), N("b", after=["a"], allow_failed=True))
    await fail(store, "a")
    await fail(store, "b")
    await store.reopen_workflow(ROOT, NOW)
    await retry(store, "b")
    assert await is_held(store, "b")
    await end(store, "a")
    await end(store, "b")
    assert (await statuses(store), await status(store)) == ({"a": "COMPLETED", "b": "COMPLETED"}, "COMPLETED")


async def test_node_that_has_not_begun_waits_for_what_is_run_again(store: Store) -> None:
    """Else it would begin without the value that it takes, and fail for good."""
    made = await start(store, N("a"), N("b", values=["a"]))
    await end(store, "a")
    await retry(store, "a")
    assert await statuses(store) == {"a": "ENQUEUED", "b": "PENDING"}
    assert ready_of(await end(store, "a"), made) == {"b"}
    await end(store, "b")
    assert await status(store) == "COMPLETED"


async def test_node_that_runs_is_left_and_its_retry_waits(store: Store) -> None:
    await start(store, N("a"), N("b", values=["a"]))
    await end(store, "a")
    await run(store, "b")
    await retry(store, "a")
    assert (await task_of(store, "b")).status == "RUNNING"
    await fail(store, "b")
    await retry(store, "b")
    assert await is_held(store, "b")
    await end(store, "a")
    await end(store, "b")
    assert await status(store) == "COMPLETED"


async def test_join_that_still_holds_keeps_its_node(store: Store) -> None:
    await start(store, N("a"), N("b"), N("c", after=["a", "b"], join="any"))
    await end(store, "a", "b")
    await retry(store, "a")
    assert (await statuses(store))["c"] == "ENQUEUED"
    assert not await is_held(store, "c")


async def test_task_of_a_node_that_is_skipped_while_it_waits_again_ends(store: Store) -> None:
    """A row that nobody will ever free would stand there for ever."""
    await start(store, N("a"), N("b", values=["a"]))
    await end(store, "a")
    await retry(store, "a")
    await fail(store, "a")
    assert await statuses(store) == {"a": "FAILED", "b": "SKIPPED"}
    assert (await task_of(store, "b")).status == "CANCELLED"
    await retry(store, "a")
    await end(store, "a")
    await end(store, "b")
    assert await status(store) == "COMPLETED"


async def test_resume_frees_no_task_whose_node_waits_again(store: Store) -> None:
    await start(store, N("a"), N("b", values=["a"]))
    await end(store, "a")
    await retry(store, "a")
    assert await store.pause_workflow(ROOT, NOW) is not None
    assert await store.resume_workflow(ROOT, NOW) is not None
    assert await is_held(store, "b")
    assert not await is_held(store, "a")
    assert (await store.recover_workflows(NOW, 0, 100))[0] == 0
    assert await is_held(store, "b")


async def test_cancel_ends_tasks_whose_nodes_wait_again(store: Store) -> None:
    await start(store, N("a"), N("b", values=["a"]))
    await end(store, "a")
    await retry(store, "a")
    assert await store.cancel_workflow(ROOT, NOW) is not None
    assert [(await task_of(store, each)).status for each in "ab"] == ["CANCELLED"] * 2
    assert await status(store) == "CANCELLED"


async def test_task_of_a_closed_child_that_waits_again_ends(store: Store) -> None:
    """A task of a child was retried whose own node waits again, and is skipped."""
    await start(store, N("a"), N("sub", after=["a"], child=[N("x")]))
    inner = child_workflow_id(ROOT, 1)
    await end(store, "a")
    await fail(store, "x", workflow_id=inner)
    await retry(store, "a")
    await fail(store, "a")
    assert await store.reopen_workflow(ROOT, NOW) is not None
    await retry(store, "x", workflow_id=inner)
    assert await is_held(store, "x", inner)
    await fail(store, "a")
    assert (await task_of(store, "x", inner)).status == "CANCELLED"
    assert (await statuses(store), await status(store)) == ({"a": "FAILED", "sub": "SKIPPED"}, "FAILED")


async def test_retry_of_a_node_whose_join_cannot_hold_skips_it_again(store: Store) -> None:
    """It would begin after a failure that nobody has allowed. The workflow ends again at once."""
    await start(store, N("a"), N("b", after=["a"]))
    await end(store, "a")
    await retry(store, "a")
    await fail(store, "a")
    assert await statuses(store) == {"a": "FAILED", "b": "SKIPPED"}
    await retry(store, "b")
    assert await statuses(store) == {"a": "FAILED", "b": "SKIPPED"}
    assert ((await task_of(store, "b")).status, await status(store)) == ("CANCELLED", "FAILED")
    await retry(store, "a", "b")
    await end(store, "a")
    await end(store, "b")
    assert await status(store) == "COMPLETED"
