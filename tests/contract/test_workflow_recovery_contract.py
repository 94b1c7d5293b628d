"""How every store puts right what another program has left half done in a workflow, with plain SQL here.

Each step does nothing where nothing is wrong, and nothing more when it is done twice.
"""

import json
from typing import Any

import pytest

from taskmanager.model.ids import child_workflow_id, node_task_id
from taskmanager.model.workflows import HELD
from taskmanager.store.protocol import Store
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.verbs import Verbs
from taskmanager.store.workflow_protocol import Advance
from tests.contract.graphs import (
    NOW,
    ROOT,
    N,
    code_of,
    end,
    fail,
    ready_of,
    run,
    start,
    status,
    statuses,
    task_of,
)
from tests.contract.rows import keeps_nul

pytestmark = pytest.mark.anyio
INNER = child_workflow_id(ROOT, 0)
GRACE = 100
LATER = NOW + GRACE


async def sql(store: Store, statement: str, **given: Any) -> None:
    """What another program does to the file."""

    def work(connection: Session) -> None:
        with connection.transaction():
            connection.execute(statement, given)

    assert isinstance(store, Verbs)
    await store._write(work)


async def set_node(store: Store, node_id: str, **columns: Any) -> None:
    changes = ", ".join(f"{name} = :{name}" for name in columns)
    await sql(store, f"UPDATE taskmanager_workflow_tasks SET {changes} WHERE node_id = :node", node=node_id, **columns)


async def set_task(store: Store, node_id: str, workflow_id: str = ROOT, **columns: Any) -> None:
    row = await task_of(store, node_id, workflow_id)
    changes = ", ".join(f"{name} = :{name}" for name in columns)
    await sql(store, f"UPDATE taskmanager_tasks SET {changes} WHERE id = :id", id=row.task_id, **columns)


async def recover(store: Store, now: int = LATER, grace_us: int = GRACE) -> Advance:
    """One pass that finds something, and another one that finds nothing."""
    count, advance = await store.recover_workflows(now, grace_us, 100)
    assert count > 0
    assert await store.recover_workflows(now, grace_us, 100) == (0, Advance())
    return advance


async def test_nothing_is_recovered_where_nothing_is_wrong(store: Store) -> None:
    """Whatever state the workflow is in."""
    nodes = [N("a"), N("b", after=["a"]), N("sub", after=["b"], child=[N("x")])]
    await start(store, *nodes)
    for node_id in ("a", "b"):
        assert await store.recover_workflows(LATER, 0, 100) == (0, Advance())
        await run(store, node_id)
        assert await store.recover_workflows(LATER, 0, 100) == (0, Advance())
        await end(store, node_id)
    assert await store.recover_workflows(LATER, 0, 100) == (0, Advance())
    await store.pause_workflow(ROOT, NOW)
    assert await store.recover_workflows(LATER, 0, 100) == (0, Advance())
    await store.resume_workflow(ROOT, NOW)
    await fail(store, "x", workflow_id=child_workflow_id(ROOT, 2))
    assert await status(store) == "FAILED"
    assert await store.recover_workflows(LATER, 0, 100) == (0, Advance())


@pytest.mark.req("RC-34", "RC-37", "HB-26", "HB-27", "HB-32")
async def test_node_whose_task_has_ended_without_it_is_completed_the_usual_way(store: Store) -> None:
    """Its result is that of the task, and its dependents go on."""
    made = await start(store, N("a"), N("b", values=["a"]))
    await run(store, "a")
    await set_task(store, "a", status="COMPLETED", completed_at=NOW, updated_at=NOW, result='{"ok":7}')
    assert await statuses(store) == {"a": "RUNNING", "b": "PENDING"}
    assert ready_of(await recover(store), made) == {"b"}
    node = await store.fetch_node(ROOT, "a")
    assert node is not None
    assert (node.status, node.result, node.completed_at) == ("COMPLETED", '{"ok":7}', NOW)


@pytest.mark.req("HB-27", "HB-29", "HB-30", "HB-31")
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
async def test_recovered_end_without_a_result_has_the_error_of_its_status(store: Store, word: str, code: str) -> None:
    await start(store, N("a"))
    await run(store, "a")
    times = {"completed_at": NOW} if word == "COMPLETED" else {"failed_at": NOW}
    await set_task(store, "a", status=word, updated_at=NOW, **times)
    assert (await recover(store)).ended == (ROOT,)
    node = await store.fetch_node(ROOT, "a")
    assert node is not None
    assert (node.status, code_of(node.error)) == ("FAILED", code)


@pytest.mark.req("HB-28")
async def test_recovered_result_that_is_no_text_counts_as_a_crash(store: Store) -> None:
    if not keeps_nul(store):
        pytest.skip("a server refuses what is no text")
    await start(store, N("a"))
    await run(store, "a")
    row = await task_of(store, "a")
    await sql(
        store,
        "UPDATE taskmanager_tasks SET status = 'COMPLETED', completed_at = 1, updated_at = 1,"
        " result = CAST(x'ff' AS TEXT) WHERE id = :id",
        id=row.task_id,
    )
    await recover(store)
    node = await store.fetch_node(ROOT, "a")
    assert node is not None
    assert (node.status, code_of(node.error)) == ("FAILED", "WORKER_CRASHED")


@pytest.mark.req("RC-36", "RC-37", "RC-14")
async def test_node_whose_task_has_just_ended_is_left_for_the_grace(store: Store) -> None:
    """Whoever has ended it may be about to go on. Without a grace it is put right at once."""
    await start(store, N("a"), N("b"))
    await run(store, "a", "b")
    for each in "ab":
        await set_task(store, each, status="FAILED", failed_at=NOW, updated_at=NOW)
    assert await store.recover_workflows(LATER - 1, GRACE, 100) == (0, Advance())
    count, _ = await store.recover_workflows(LATER, GRACE, 1)
    assert count == 1
    await recover(store, NOW, 0)
    assert await statuses(store) == {"a": "FAILED", "b": "FAILED"}


@pytest.mark.req("RC-35")
async def test_end_of_a_task_and_of_its_node_are_one_transaction(store: Store) -> None:
    """So there is no gap between two that a crash could fall into."""
    await start(store, N("a"), N("b", after=["a"]))
    await end(store, "a")
    assert await store.recover_workflows(LATER, 0, 100) == (0, Advance())
    assert await statuses(store) == {"a": "COMPLETED", "b": "ENQUEUED"}


@pytest.mark.req("HB-33")
async def test_one_pass_ends_the_workflows_that_end_by_what_it_finds(store: Store) -> None:
    """Nodes come first, then what depends on them, then children, then the workflows that they stand in."""
    nodes = [N("sub", child=[N("x"), N("y", after=["x"])]), N("last", after=["sub"])]
    await start(store, *nodes)
    await run(store, "x", workflow_id=INNER)
    await set_task(store, "x", INNER, status="FAILED", failed_at=NOW, updated_at=NOW)
    assert (await recover(store)).ended == (INNER, ROOT)
    assert await statuses(store) == {"sub": "FAILED", "last": "SKIPPED"}


async def test_dependents_of_a_node_that_somebody_has_ended_count_it(store: Store) -> None:
    """Only the node was written, and nothing that depends on it."""
    made = await start(store, N("a"), N("b", after=["a"]), N("c", after=["b"]))
    await set_node(store, "a", status="COMPLETED", completed_at=NOW)
    assert ready_of(await recover(store), made) == {"b"}
    await set_node(store, "b", status="SKIPPED", completed_at=NOW)
    await recover(store)
    assert (await statuses(store))["c"] == "SKIPPED"


async def test_node_that_waits_for_nothing_more_is_judged(store: Store) -> None:
    """Its counters were written, and no task was made."""
    made = await start(store, N("a"), N("b", after=["a"]), N("c", after=["a"]))
    await set_node(store, "a", status="FAILED", is_passed_on=1, completed_at=NOW)
    await set_node(store, "b", open=0, failed=1)
    await set_node(store, "c", open=0, completed=1)
    assert ready_of(await recover(store), made) == {"c"}
    assert (await statuses(store))["b"] == "SKIPPED"


@pytest.mark.parametrize("word", ["READY", "ENQUEUED", "RUNNING"])
async def test_node_without_its_task_gets_one(store: Store, word: str) -> None:
    """It never had one, or somebody has deleted it."""
    made = await start(store, N("a"))
    if word == "READY":
        await set_node(store, "a", status=word, task_id=None)
    else:
        await set_node(store, "a", status=word)
    await sql(store, "DELETE FROM taskmanager_tasks")
    assert ready_of(await recover(store), made) == {"a"}
    assert (await task_of(store, "a")).task_id == node_task_id(ROOT, 0)


async def test_ready_node_whose_task_is_there_is_given_that_one(store: Store) -> None:
    """A task that has run does not run again for a node that lost sight of it."""
    await start(store, N("a"))
    await run(store, "a")
    await set_task(store, "a", status="COMPLETED", completed_at=NOW, updated_at=NOW, result='{"ok":7}')
    await set_node(store, "a", status="READY", task_id=None)
    await recover(store)
    assert (await task_of(store, "a")).start_count == 1
    assert await status(store) == "COMPLETED"


@pytest.mark.parametrize("word", ["READY", "RUNNING"])
async def test_ready_node_whose_child_has_not_begun_begins_it(store: Store, word: str) -> None:
    await start(store, N("a"), N("sub", after=["a"], child=[N("x")]))
    inner = child_workflow_id(ROOT, 1)
    await set_node(store, "a", status="COMPLETED", is_passed_on=1)
    await set_node(store, "sub", status=word, open=0, completed=1)
    await recover(store)
    assert (await status(store, inner), await statuses(store, inner)) == ("RUNNING", {"x": "ENQUEUED"})


async def test_node_ends_whose_child_has_ended_without_it(store: Store) -> None:
    await start(store, N("sub", child=[N("x")], child_output="x"))
    await end(store, "x", workflow_id=INNER, result='{"ok":7}')
    await set_node(store, "sub", status="RUNNING", result=None, completed_at=None)
    await sql(store, "UPDATE taskmanager_workflows SET status = 'RUNNING', completed_at = NULL WHERE id = 'w'")
    assert (await recover(store)).ended == (ROOT,)
    node = await store.fetch_node(ROOT, "sub")
    assert node is not None
    assert (node.result, json.loads(node.sub_workflow_summary or "")["status"]) == ('{"ok":7}', "COMPLETED")


async def test_workflow_whose_nodes_have_all_ended_is_finished(store: Store) -> None:
    await start(store, N("a"))
    await set_node(store, "a", status="COMPLETED", is_passed_on=1)
    assert (await recover(store)).ended == (ROOT,)
    assert await status(store) == "COMPLETED"


async def test_held_task_of_a_workflow_that_runs_is_free_again(store: Store) -> None:
    """What is held has no other owner who would let it go."""
    made = await start(store, N("a"))
    await set_task(store, "a", claimed_by_worker_id=HELD)
    assert ready_of(await recover(store), made) == {"a"}


async def test_paused_workflow_is_left_as_it_is(store: Store) -> None:
    await start(store, N("a"), N("b", after=["a"]), N("c"))
    await store.pause_workflow(ROOT, NOW)
    await set_task(store, "c", status="FAILED", failed_at=NOW, claimed_by_worker_id=None, updated_at=NOW)
    await set_node(store, "a", status="COMPLETED")
    assert await store.recover_workflows(LATER, 0, 100) == (0, Advance())
    await store.resume_workflow(ROOT, NOW)
    await recover(store)
    assert await statuses(store) == {"a": "COMPLETED", "b": "ENQUEUED", "c": "FAILED"}


async def test_pass_is_limited(store: Store) -> None:
    """So that it never holds the file for long; the next one goes on."""
    names = [f"n{number}" for number in range(10)]
    await start(store, *map(N, names))
    for each in names:
        await set_node(store, each, status="READY", task_id=None)
    await sql(store, "DELETE FROM taskmanager_tasks")
    assert [(await store.recover_workflows(LATER, 0, 4))[0] for _ in range(4)] == [4, 4, 2, 0]
