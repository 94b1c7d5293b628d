"""What every store does with paused and cancelled workflows: nothing of them starts, wherever it waits."""

import json

import pytest

from taskmanager.model.ids import child_workflow_id, node_task_id
from taskmanager.model.record import StartWrite, TaskRow, TaskWrite, expected_of
from taskmanager.model.workflows import HELD
from taskmanager.rules.claims import Room, Starting
from taskmanager.store.protocol import CommitReport, Store
from taskmanager.store.workflow_protocol import Advance, FreeTask
from tests.contract.graphs import (
    NOW,
    ROOT,
    N,
    again,
    end,
    ended,
    error_code,
    fail,
    ready_of,
    retry,
    run,
    running,
    start,
    status,
    statuses,
    task_of,
)
from tests.contract.rows import ME, OTHER, wants

pytestmark = pytest.mark.anyio
INNER = child_workflow_id(ROOT, 0)
LATER = NOW + 100


async def owner_of(store: Store, node_id: str, workflow_id: str = ROOT) -> tuple[str, str | None]:
    row = await task_of(store, node_id, workflow_id)
    return row.status, row.claimed_by_worker_id


async def waiting(store: Store, kind: str) -> TaskRow:
    """The row of the task of node a, which waits in this way."""
    row = await task_of(store, "a")
    if kind == "claimed":
        (found,) = await store.claim(wants(now=NOW))
        return found
    changes = {
        "free": {},
        "delayed": {"enqueued_at": LATER},
        "owned": {"claimed_by_worker_id": ME},
        "retrying": {"claimed_by_worker_id": ME, "start_count": 1, "next_retry_at": LATER, "enqueued_at": LATER},
        "sleeping": {"start_count": 1, "started_at": NOW, "enqueued_at": LATER},
    }[kind]
    new = row._replace(**changes)  # type: ignore[arg-type]
    assert await store.commit([TaskWrite(new, expected_of(row))]) == CommitReport({}, {})
    return new


# --- pausing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["free", "delayed", "owned", "claimed", "retrying", "sleeping"])
async def test_pausing_holds_what_waits_wherever_it_waits(store: Store, kind: str) -> None:
    """No claim sees it, and an instance that has it in memory cannot start it."""
    await start(store, N("a"))
    row = await waiting(store, kind)
    assert await store.pause_workflow(ROOT, NOW + 1) == Advance()
    held = row._replace(status="PENDING", claimed_by_worker_id=HELD, claimed_at=None, updated_at=NOW + 1)
    assert await store.fetch(row.task_id) == held
    assert await store.claim(wants(owner=OTHER, now=LATER)) == []
    begun = StartWrite(row.task_id, row.task_name, expected_of(row), LATER, 1, "host", "main", row.queue_name, NOW)
    assert (await store.commit([begun])).lost == {row.task_id: held}
    assert await status(store) == "PAUSED"


async def test_no_busy_instance_has_its_held_tasks_taken_over(store: Store) -> None:
    """They look like tasks that wait in the memory of another one."""
    await start(store, N("a"))
    await store.pause_workflow(ROOT, NOW)
    starting = Starting(9, (Room(frozenset({"app:job"}), 9),), 7, "host", "main")
    assert await store.claim(wants(starting=starting, others_due_at=LATER)) == []
    assert await store.waiting_levels(10) == []
    assert await store.free_queues() == []


async def test_held_tasks_have_a_living_owner(store: Store) -> None:
    """Recovery must not free them for an owner that it does not know."""
    await start(store, N("a"))
    await store.pause_workflow(ROOT, NOW)
    assert await store.fetch_orphans([], limit=10) == []


async def test_running_node_ends_while_paused_and_nothing_follows(store: Store) -> None:
    """What follows from it does so when the workflow goes on."""
    made = await start(store, N("a"), N("b", after=["a"]), N("c", after=["b"]))
    await run(store, "a")
    await store.pause_workflow(ROOT, NOW)
    assert await end(store, "a") == Advance()
    assert await statuses(store) == {"a": "COMPLETED", "b": "PENDING", "c": "PENDING"}
    advance = await store.resume_workflow(ROOT, NOW)
    assert advance is not None
    assert ready_of(advance, made) == {"b"}
    await end(store, "b")
    await end(store, "c")
    assert await status(store) == "COMPLETED"


async def test_workflow_whose_nodes_end_while_it_is_paused_ends_when_resumed(store: Store) -> None:
    await start(store, N("a"), N("b", after=["a"]))
    await run(store, "a")
    await store.pause_workflow(ROOT, NOW)
    await fail(store, "a")
    assert (await status(store), await statuses(store)) == ("PAUSED", {"a": "FAILED", "b": "PENDING"})
    assert await store.resume_workflow(ROOT, NOW) == Advance((), (ROOT,))
    assert (await status(store), await statuses(store)) == ("FAILED", {"a": "FAILED", "b": "SKIPPED"})


async def test_resuming_frees_what_was_held_when_it_is_due(store: Store) -> None:
    await start(store, N("a"), N("b", delay_us=50))
    await store.pause_workflow(ROOT, NOW + 1)
    advance = await store.resume_workflow(ROOT, NOW + 2)
    assert advance is not None
    assert set(advance.readied) == {
        FreeTask(node_task_id(ROOT, 0), "app:job", "default", 50, NOW),
        FreeTask(node_task_id(ROOT, 1), "app:job", "default", 50, NOW + 50),
    }
    assert await owner_of(store, "a") == ("PENDING", None)
    assert [row.task_id for row in await store.claim(wants(now=NOW + 2))] == [node_task_id(ROOT, 0)]


@pytest.mark.parametrize("way", ["retry", "snooze", "requeue"])
async def test_task_that_would_run_again_while_paused_is_held(store: Store, way: str) -> None:
    """In the transaction in which its attempt ends, so that nobody can start it in between."""
    await start(store, N("a"))
    await run(store, "a")
    await store.pause_workflow(ROOT, NOW)
    row = await task_of(store, "a")
    owner = None if way == "requeue" else ME
    await store.commit([TaskWrite(row._replace(status="PENDING", claimed_by_worker_id=owner), expected_of(row))])
    assert await owner_of(store, "a") == ("PENDING", HELD)
    await store.resume_workflow(ROOT, NOW)
    assert await owner_of(store, "a") == ("PENDING", None)


async def test_retry_while_paused_opens_the_node_held(store: Store) -> None:
    """The failure can be put right before the workflow goes on."""
    made = await start(store, N("a"), N("b", after=["a"]), on_error="pause")
    await fail(store, "a")
    assert (await status(store), (await statuses(store))["a"]) == ("PAUSED", "FAILED")
    await retry(store, "a")
    assert await owner_of(store, "a") == ("PENDING", HELD)
    assert (await status(store), (await statuses(store))) == ("PAUSED", {"a": "ENQUEUED", "b": "PENDING"})
    advance = await store.resume_workflow(ROOT, NOW)
    assert advance is not None
    assert ready_of(advance, made) == {"a"}
    await end(store, "a")
    await end(store, "b")
    assert await status(store) == "COMPLETED"


async def test_cancel_of_a_held_task_ends_it(store: Store) -> None:
    await start(store, N("a"), N("b", after=["a"]))
    await store.pause_workflow(ROOT, NOW)
    row = await task_of(store, "a")
    await store.commit([TaskWrite(ended(row, "CANCELLED"), expected_of(row))])
    assert await statuses(store) == {"a": "FAILED", "b": "PENDING"}
    await store.resume_workflow(ROOT, NOW)
    assert await status(store) == "FAILED"


@pytest.mark.parametrize("word", ["PAUSED", "COMPLETED", "CANCELLED", "nobody"])
async def test_only_what_runs_is_paused(store: Store, word: str) -> None:
    if word != "nobody":
        await start(store, N("a"))
        await run(store, "a")
    if word == "PAUSED":
        await store.pause_workflow(ROOT, NOW)
    elif word == "COMPLETED":
        await end(store, "a")
    elif word == "CANCELLED":
        await store.cancel_workflow(ROOT, NOW)
    before = await store.fetch_workflow(ROOT)
    assert await store.pause_workflow(ROOT, LATER) is None
    assert await store.fetch_workflow(ROOT) == before


@pytest.mark.parametrize("word", ["RUNNING", "COMPLETED", "nobody"])
async def test_only_what_is_paused_is_resumed(store: Store, word: str) -> None:
    if word != "nobody":
        await start(store, N("a"))
    if word == "COMPLETED":
        await end(store, "a")
    before = await store.fetch_workflow(ROOT)
    assert await store.resume_workflow(ROOT, LATER) is None
    assert await store.fetch_workflow(ROOT) == before


async def test_pausing_and_resuming_go_down_to_children(store: Store) -> None:
    await start(store, N("sub", child=[N("x"), N("y", after=["x"])]), N("last", after=["sub"], child=[N("z")]))
    last = child_workflow_id(ROOT, 1)
    await store.pause_workflow(ROOT, NOW)
    assert [await status(store, each) for each in (ROOT, INNER, last)] == ["PAUSED", "PAUSED", "PENDING"]
    assert await owner_of(store, "x", INNER) == ("PENDING", HELD)
    assert await store.resume_workflow(INNER, NOW) is None  # what it stands in is paused
    await store.resume_workflow(ROOT, NOW)
    assert [await status(store, each) for each in (ROOT, INNER, last)] == ["RUNNING", "RUNNING", "PENDING"]
    assert await owner_of(store, "x", INNER) == ("PENDING", None)


async def test_child_is_paused_alone_and_resumed_with_its_parent(store: Store) -> None:
    await start(store, N("sub", child=[N("x")]), N("b"))
    assert await store.pause_workflow(INNER, NOW) == Advance()
    assert [await status(store, each) for each in (ROOT, INNER)] == ["RUNNING", "PAUSED"]
    assert await owner_of(store, "b") == ("PENDING", None)
    assert await store.resume_workflow(ROOT, NOW) is not None
    assert await status(store, INNER) == "RUNNING"


# --- on_error="pause" -------------------------------------------------------------------------------------------------


async def test_failure_pauses_a_workflow_that_wants_it(store: Store) -> None:
    """Nothing new starts, also of other branches; what runs ends."""
    await start(store, N("a"), N("b"), N("c"), on_error="pause")
    await run(store, "c")
    advance = await fail(store, "a")
    assert advance == Advance()
    assert await status(store) == "PAUSED"
    assert await owner_of(store, "b") == ("PENDING", HELD)
    await end(store, "c")
    assert await status(store) == "PAUSED"


async def test_task_that_one_commit_readies_and_pauses_is_not_ready(store: Store) -> None:
    """A failure and a success come in one batch."""
    await start(store, N("a"), N("b"), N("c", after=["b"]), on_error="pause")
    await run(store, "a", "b")
    rows = [await task_of(store, each) for each in "ab"]
    words = ("FAILED", "COMPLETED")
    writes = [TaskWrite(ended(row, word), expected_of(row)) for row, word in zip(rows, words, strict=True)]
    assert (await store.commit(writes)).advance == Advance()
    assert await owner_of(store, "c") == ("PENDING", HELD)


async def test_absorbed_and_optional_failures_pause_nothing(store: Store) -> None:
    nodes = [N("a"), N("b", after=["a"], allow_failed=True), N("c", optional=True)]
    await start(store, *nodes, on_error="pause")
    await fail(store, "a", "c")
    assert await status(store) == "RUNNING"
    await end(store, "b")
    assert await status(store) == "COMPLETED"


async def test_failure_pauses_when_its_last_dependent_is_skipped_later(store: Store) -> None:
    """Until then the node may be absorbed."""
    nodes = [N("a"), N("b"), N("c", after=["a", "b"], join="quorum", min_success=1), N("d", after=["a", "b"])]
    await start(store, *nodes, on_error="pause")
    await fail(store, "a")
    assert await status(store) == "RUNNING"
    await end(store, "b")
    assert (await statuses(store))["d"] == "SKIPPED"
    assert await status(store) == "PAUSED"


async def test_resumed_workflow_is_not_paused_by_the_same_failure_again(store: Store) -> None:
    """Neither by those that came while it was paused: who resumes it knows of them. The next failure pauses it."""
    await start(store, N("a"), N("b"), N("c"), N("d", after=["a", "c"]), on_error="pause")
    await run(store, "b")
    await fail(store, "a")
    await fail(store, "b")
    await store.resume_workflow(ROOT, NOW)
    assert await status(store) == "RUNNING"
    await end(store, "c")
    assert await statuses(store) == {"a": "FAILED", "b": "FAILED", "c": "COMPLETED", "d": "SKIPPED"}
    assert await status(store) == "FAILED"


async def test_child_that_pauses_leaves_its_parent_running(store: Store) -> None:
    await start(store, N("sub", child=[N("x"), N("y")], child_on_error="pause"), N("b"))
    await fail(store, "x", workflow_id=INNER)
    assert [await status(store, each) for each in (ROOT, INNER)] == ["RUNNING", "PAUSED"]
    await store.resume_workflow(INNER, NOW)
    await end(store, "y", workflow_id=INNER)
    assert (await statuses(store))["sub"] == "FAILED"


# --- cancelling -------------------------------------------------------------------------------------------------------


async def test_cancelled_workflow_ends_at_once_where_nothing_runs(store: Store) -> None:
    await start(store, N("a"), N("b", after=["a"]), N("c", delay_us=500))
    readied, ended, cancelled = await store.cancel_workflow(ROOT, NOW + 1) or Advance()
    assert (readied, ended) == ((), (ROOT,))
    assert sorted(cancelled) == sorted(node_task_id(ROOT, number) for number in (0, 2))
    assert (await status(store), await error_code(store)) == ("CANCELLED", "TASK_CANCELLED")
    assert await statuses(store) == {"a": "FAILED", "b": "SKIPPED", "c": "FAILED"}
    row = await task_of(store, "a")
    assert (row.status, row.error_code, row.failed_at, row.cancel_requested_at) == (
        "CANCELLED", "TASK_CANCELLED", NOW + 1, NOW + 1,
    )  # fmt: skip
    assert json.loads(row.result or "")["err"]["error_code"] == "TASK_CANCELLED"


@pytest.mark.parametrize("kind", ["running", "owned", "claimed"])
async def test_task_that_somebody_has_is_asked_to_cancel(store: Store, kind: str) -> None:
    """The workflow has ended when that has."""
    await start(store, N("a"), N("b", after=["a"]))
    if kind == "running":
        await run(store, "a")
    else:
        await waiting(store, kind)
    assert await store.cancel_workflow(ROOT, LATER) == Advance()
    row = await task_of(store, "a")
    assert (row.cancel_requested_at, row.claimed_by_worker_id) == (LATER, ME)
    found = await store.fetch_workflow(ROOT)
    assert found is not None
    assert (found.status, found.cancelled_at) == ("RUNNING", LATER)
    begun = await store.node_start(row.task_id)
    assert begun is not None
    assert begun.is_cancelled
    report = await store.commit([TaskWrite(ended(row, "CANCELLED"), expected_of(row))])
    assert report.advance == Advance((), (ROOT,))
    assert await status(store) == "CANCELLED"


async def test_node_that_completes_in_a_cancelled_workflow_keeps_its_result(store: Store) -> None:
    await start(store, N("a"), N("b", after=["a"]))
    await run(store, "a")
    await store.cancel_workflow(ROOT, NOW)
    assert await end(store, "a") == Advance((), (ROOT,))
    assert (await status(store), await statuses(store)) == ("CANCELLED", {"a": "COMPLETED", "b": "SKIPPED"})


async def test_paused_workflow_is_cancelled_with_what_is_held(store: Store) -> None:
    await start(store, N("a"), N("b"))
    await run(store, "b")
    await store.pause_workflow(ROOT, NOW)
    await end(store, "b")
    assert await store.cancel_workflow(ROOT, NOW) == Advance((), (ROOT,), (node_task_id(ROOT, 0),))
    assert await owner_of(store, "a") == ("CANCELLED", None)


async def test_failure_in_a_cancelled_workflow_pauses_nothing(store: Store) -> None:
    await start(store, N("a"), on_error="pause")
    await run(store, "a")
    await store.cancel_workflow(ROOT, NOW)
    await fail(store, "a")
    assert await status(store) == "CANCELLED"


async def test_cancelling_goes_down_to_children(store: Store) -> None:
    await start(store, N("sub", child=[N("x"), N("y")]), N("last", after=["sub"], child=[N("z")]))
    last = child_workflow_id(ROOT, 1)
    await run(store, "x", workflow_id=INNER)
    assert await store.cancel_workflow(ROOT, NOW) == Advance((), (last,), (node_task_id(INNER, 1),))
    assert [await status(store, each) for each in (ROOT, INNER, last)] == ["RUNNING", "RUNNING", "CANCELLED"]
    assert (await fail(store, "x", workflow_id=INNER)).ended == (INNER, ROOT)
    assert [await status(store, each) for each in (ROOT, INNER)] == ["CANCELLED", "CANCELLED"]


async def test_cancelled_child_is_a_failure_of_its_node(store: Store) -> None:
    await start(store, N("sub", child=[N("x")]), N("next", after=["sub"]), N("log", results=["sub"]))
    await store.cancel_workflow(INNER, NOW)
    assert await statuses(store) == {"sub": "FAILED", "next": "SKIPPED", "log": "ENQUEUED"}
    await end(store, "log")
    assert (await status(store), await error_code(store)) == ("FAILED", "TASK_CANCELLED")


@pytest.mark.parametrize("way", ["twice", "ended", "nobody"])
async def test_only_what_has_not_ended_is_cancelled_and_once(store: Store, way: str) -> None:
    if way != "nobody":
        await start(store, N("a"))
        await run(store, "a")
    if way == "twice":
        await store.cancel_workflow(ROOT, NOW)
    elif way == "ended":
        await end(store, "a")
    before = await store.fetch_workflow(ROOT)
    assert await store.cancel_workflow(ROOT, LATER) is None
    assert await store.fetch_workflow(ROOT) == before


async def test_cancelled_workflow_is_reopened_whole(store: Store) -> None:
    """As one that has failed: what was cancelled, and what was skipped for it, is open again."""
    await start(store, N("a"), N("b", after=["a"]), N("sub", child=[N("x")]))
    inner = child_workflow_id(ROOT, 2)
    await store.cancel_workflow(ROOT, NOW)
    assert await store.reopen_workflow(ROOT, LATER) is not None
    assert await statuses(store) == {"a": "ENQUEUED", "b": "PENDING", "sub": "RUNNING"}
    row = await task_of(store, "a")
    assert (row.status, row.cancel_requested_at, row.enqueued_at) == ("PENDING", None, LATER)
    await end(store, "a")
    await end(store, "b")
    await end(store, "x", workflow_id=inner)
    assert await status(store) == "COMPLETED"


async def test_retry_in_a_cancelled_workflow_opens_that_node_and_what_it_skips(store: Store) -> None:
    await start(store, N("a"), N("b", after=["a"]), N("c"), N("d", after=["c"]))
    await store.cancel_workflow(ROOT, NOW)
    row = await task_of(store, "a")
    await store.commit([TaskWrite(again(row), expected_of(row))])
    assert await statuses(store) == {"a": "ENQUEUED", "b": "PENDING", "c": "FAILED", "d": "SKIPPED"}
    found = await store.fetch_workflow(ROOT)
    assert found is not None
    assert (found.status, found.cancelled_at) == ("RUNNING", None)
    assert running(row).is_workflow_task
