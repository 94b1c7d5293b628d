"""What every store deletes of workflows: whole ones that have ended, and nothing of one that lives."""

from typing import Any

import pytest

from taskmanager.model.ids import child_workflow_id
from taskmanager.model.states import TaskStatus
from taskmanager.store.protocol import Store, TaskFilter
from tests.contract.graphs import NOW, ROOT, N, end, fail, start, status, statuses, task_of
from tests.contract.rows import put, task

pytestmark = pytest.mark.anyio
INNER = child_workflow_id(ROOT, 0)
OLD = NOW + 1_000
"""A moment at which all that has ended here is old."""


async def purge(store: Store, older_than: int | None = OLD, **wanted: Any) -> int:
    """Everything that goes."""
    total = 0
    while count := await store.purge(TaskFilter(**wanted), older_than, 100):
        total += count
    return total


async def task_count(store: Store) -> int:
    return sum((await store.counts()).values())


@pytest.mark.req("DS-s2", "DS-122")
async def test_ended_task_of_a_live_workflow_stays(store: Store) -> None:
    """Its dependents may still ask for its result, and a retry for the task. So does one of a paused workflow."""
    await start(store, N("a"), N("b", after=["a"]))
    await end(store, "a")
    assert await purge(store) == 0
    await store.pause_workflow(ROOT, NOW)
    assert await purge(store, None) == 0
    assert await statuses(store) == {"a": "COMPLETED", "b": "ENQUEUED"}
    assert await task_count(store) == 2


@pytest.mark.req("DS-121", "DS-122", "RC-58")
@pytest.mark.parametrize("word", ["COMPLETED", "FAILED", "CANCELLED"])
async def test_ended_workflow_goes_with_its_nodes_and_tasks_when_it_is_old(store: Store, word: str) -> None:
    """They are counted: its tasks, and it."""
    await start(store, N("a"), N("b"))
    if word == "CANCELLED":
        await store.cancel_workflow(ROOT, NOW)
    else:
        await end(store, "a", "b", word=word)
    assert await status(store) == word
    assert await purge(store, NOW) == 0
    assert await purge(store) == 3
    assert await store.fetch_workflow(ROOT) is None
    assert await store.fetch_nodes(ROOT) == []
    assert await task_count(store) == 0


@pytest.mark.req("DS-121")
async def test_workflow_that_has_ended_lately_stays_whole(store: Store) -> None:
    """Also those of its tasks that ended long ago."""
    await start(store, N("a"), N("b"))
    await end(store, "a")
    await end(store, "b", now=OLD + 1)
    assert await purge(store) == 0
    assert await purge(store, OLD + 2) == 3


async def test_child_goes_with_its_root_and_not_before(store: Store) -> None:
    """Its output is asked for by the nodes of its parent."""
    await start(store, N("sub", child=[N("x")], child_output="x"), N("next", values=["sub"]))
    await end(store, "x", workflow_id=INNER)
    assert await status(store, INNER) == "COMPLETED"
    assert await purge(store, None) == 0
    await end(store, "next")
    assert await purge(store, None) == 3
    assert await store.fetch_workflow(INNER) is None
    assert await task_count(store) == 0


async def test_reopened_node_keeps_the_task_of_its_earlier_run(store: Store) -> None:
    """That has ended, and its attempts and its start count are those of the next run too."""
    await start(store, N("a"), N("b", after=["a"], allow_failed=True))
    await fail(store, "a")
    await fail(store, "b")
    await store.reopen_workflow(ROOT, NOW)
    assert await statuses(store) == {"a": "ENQUEUED", "b": "PENDING"}
    assert await purge(store, None) == 0
    assert (await task_of(store, "b")).start_count == 1
    listed = {row.node_id: row for row in await store.fetch_nodes(ROOT)}
    assert (listed["b"].task_id, listed["b"].started_at) == (None, None)


async def test_filter_deletes_no_part_of_a_workflow(store: Store) -> None:
    """It names tasks; those of a workflow go with it alone."""
    await start(store, N("a"), N("b"))
    await end(store, "a", "b")
    await put(store, task("plain", status="COMPLETED"))
    assert await purge(store, None, status=TaskStatus.COMPLETED) == 1
    assert await purge(store, None, task_id=(await task_of(store, "a")).task_id) == 0
    assert await task_count(store) == 2


async def test_many_workflows_go_in_limited_calls(store: Store) -> None:
    """Live ones among them stay."""
    for number in range(25):
        await start(store, N("a"), N("b"), workflow_id=f"w{number}", sent_at=NOW + number)
        if number % 5:
            await end(store, "a", "b", workflow_id=f"w{number}")
    counts = []
    while count := await store.purge(TaskFilter(), None, 7):
        counts.append(count)
    assert max(counts) <= 7
    assert sum(counts) == 20 * 3
    assert {row.id for row in await store.fetch_workflows(None, None, 100, None)} == {
        f"w{number}" for number in range(0, 25, 5)
    }
    assert await task_count(store) == 10
