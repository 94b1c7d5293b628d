"""What every store makes of a workflow: its start, its rows, and what follows from the end of a task."""

from typing import Any

import pytest

from taskmanager.model.ids import node_task_id
from taskmanager.model.record import TaskWrite, expected_of
from taskmanager.store.protocol import CommitReport, Store
from taskmanager.store.workflow_protocol import Advance, FreeTask
from tests.contract.graphs import (
    NOW,
    ROOT,
    N,
    end,
    ended,
    graph,
    ready_of,
    run,
    running,
    start,
    statuses,
    task_of,
)
from tests.contract.rows import put, task, wants

pytestmark = pytest.mark.anyio


async def test_start_makes_the_tasks_of_the_first_nodes_and_no_others(store: Store) -> None:
    """They are free, and hold what the node's row says. Their instance hears of them in the answer."""
    made = graph(N("a", delay_us=50), N("b", after=["a"]))
    there, advance = await store.start_workflow(made, NOW)
    task_id = node_task_id(ROOT, 0)
    assert (there, advance) == (None, Advance((FreeTask(task_id, "app:job", "default", 50, NOW + 50),)))
    row = await store.fetch(task_id)
    assert row == task(
        task_id, sent_at=NOW, enqueued_at=NOW + 50, created_at=NOW, updated_at=NOW, is_workflow_task=1,
        task_options='{"persist":true}',
    )  # fmt: skip
    assert await statuses(store) == {"a": "ENQUEUED", "b": "PENDING"}
    found = await store.fetch_workflow(ROOT)
    assert found == made.workflows[0]._replace(status="RUNNING", started_at=NOW, updated_at=NOW)
    assert sum((await store.counts()).values()) == 1


async def test_second_start_of_an_id_changes_nothing(store: Store) -> None:
    """Whoever starts it again hears of the workflow that is there, also if that is another graph."""
    await start(store, N("a"))
    there, advance = await store.start_workflow(graph(N("x"), N("y"), definition_key="other"), NOW + 1)
    assert there == await store.fetch_workflow(ROOT)
    assert advance == Advance()
    assert await statuses(store) == {"a": "ENQUEUED"}


async def test_rows_of_a_workflow_say_what_it_was_given(store: Store) -> None:
    """What is counted is counted by the store, from the edges."""
    made = graph(N("a"), N("b", after=["a"], values=["a"]), N("c", after=["a"], results=["a", "b"], join="any"))
    wrong = made._replace(nodes=tuple(node._replace(open=9, inputs_open=7) for node in made.nodes))
    await store.start_workflow(wrong, NOW)
    found = [await store.fetch_node(ROOT, each) for each in "abc"]
    assert [row and (row.open, row.inputs_open) for row in found] == [(0, 0), (1, 1), (1, 1)]
    assert found[1] == made.nodes[1]._replace(open=1, inputs_open=1)
    assert await store.fetch_node(ROOT, "nobody") is None
    listed = await store.fetch_nodes(ROOT)
    assert listed == [row and row._replace(args=None, kwargs=None, args_from=None) for row in found]


async def test_workflows_are_listed_newest_first_without_children(store: Store) -> None:
    made = [graph(N("a"), workflow_id=f"w{number}", sent_at=NOW + number, name=f"n{number % 2}") for number in range(5)]
    for each in made:
        await store.start_workflow(each, NOW)
    await start(store, N("a", child=[N("x")]), sent_at=NOW - 1, name="outer")

    async def listed(
        status: str | None = None, name: str | None = None, limit: int = 9, before: Any = None
    ) -> list[str]:
        return [row.id for row in await store.fetch_workflows(status, name, limit, before)]

    assert await listed() == ["w4", "w3", "w2", "w1", "w0", ROOT]
    assert await listed(limit=2, before=(NOW + 3, "w3")) == ["w2", "w1"]
    assert await listed(name="n1") == ["w3", "w1"]
    await end(store, "a", workflow_id="w2")
    assert await listed(status="COMPLETED") == ["w2"]
    assert await listed(status="PAUSED") == []


async def test_end_readies_what_depends_on_it_in_its_own_commit(store: Store) -> None:
    """The answer names the tasks, and a claim finds them at once."""
    made = await start(store, N("a"), N("b", after=["a"]), N("c", after=["a"]), N("d", after=["b", "c"]))
    assert ready_of(await end(store, "a"), made) == {"b", "c"}
    assert await statuses(store) == {"a": "COMPLETED", "b": "ENQUEUED", "c": "ENQUEUED", "d": "PENDING"}
    assert {row.task_id for row in await store.claim(wants(now=NOW))} == {node_task_id(ROOT, each) for each in (1, 2)}


async def test_node_runs_also_while_its_task_waits_for_a_retry(store: Store) -> None:
    await start(store, N("a"))
    await run(store, "a", now=NOW + 5)
    assert await statuses(store) == {"a": "RUNNING"}
    row = await task_of(store, "a")
    later = row._replace(status="PENDING", retry_count=1, next_retry_at=NOW + 99, enqueued_at=NOW + 99)
    assert await store.commit([TaskWrite(later, expected_of(row))]) == CommitReport({}, {})
    (node,) = await store.fetch_nodes(ROOT)
    assert (node.status, node.started_at, node.completed_at) == ("RUNNING", NOW + 5, None)


async def test_end_of_a_workflow_is_that_of_its_last_node(store: Store) -> None:
    await start(store, N("a"), N("b"))
    assert (await end(store, "a")).ended == ()
    assert (await end(store, "b", now=NOW + 9)).ended == (ROOT,)
    row = await store.fetch_workflow(ROOT)
    assert row is not None
    assert (row.status, row.completed_at, row.error, row.result) == ("COMPLETED", NOW + 9, None, None)


async def test_loser_of_an_end_advances_nothing(store: Store) -> None:
    """The row is another's by now, and its workflow goes by what that one writes."""
    await start(store, N("a"), N("b", after=["a"]))
    await run(store, "a")
    row = await task_of(store, "a")
    report = await store.commit([TaskWrite(ended(row), expected_of(row)._replace(start_count=7))])
    assert report == CommitReport({row.task_id: row}, {})
    assert await statuses(store) == {"a": "RUNNING", "b": "PENDING"}


async def test_end_beside_a_loser_and_a_refused_row_advances(store: Store) -> None:
    """The batch is written with care then, in halves, and the answer holds what followed from all of them."""
    names = [f"n{number}" for number in range(9)]
    made = await start(store, *map(N, names), *(N(f"{each}-next", after=[each]) for each in names))
    await run(store, *names)
    rows = [await task_of(store, each) for each in names]
    bad = task("bad", status="COMPLETED", completed_at=None)
    gone = TaskWrite(ended(running(task("gone"))), expected_of(running(task("gone"))))
    ends = [TaskWrite(ended(row), expected_of(row)) for row in rows]
    report = await store.commit([TaskWrite(bad, None), *ends, gone])
    assert ([*report.lost], [*report.rejected]) == (["gone"], ["bad"])
    assert ready_of(report.advance, made) == {f"{each}-next" for each in names}


async def test_plain_tasks_advance_nothing(store: Store) -> None:
    """Also where one has the id of a node: its row does not say that it belongs to a workflow."""
    await start(store, N("a"))
    row = running(task("plain"))
    await put(store, row)
    assert await store.commit([TaskWrite(ended(row), expected_of(row))]) == CommitReport({}, {})


@pytest.mark.req("DS-012")
async def test_row_of_a_task_says_that_it_belongs_to_a_workflow(store: Store) -> None:
    """In every status, so that whoever ends it knows."""
    await start(store, N("a"))
    assert (await task_of(store, "a")).is_workflow_task == 1
    (claimed,) = await store.claim(wants(now=NOW))
    assert claimed.is_workflow_task == 1
    await store.commit([TaskWrite(running(claimed), expected_of(claimed))])
    assert (await task_of(store, "a")).is_workflow_task == 1


async def test_row_that_a_claim_ends_as_unreadable_advances_its_workflow(store: Store) -> None:
    """Nobody else would ever end it."""
    await start(store, N("a"), N("b", after=["a"], allow_failed=True))
    row = await task_of(store, "a")
    await store.commit([TaskWrite(row._replace(tags="[]", updated_at=NOW), expected_of(row))])
    (claimed,) = await store.claim(wants(now=NOW))
    assert claimed.status == "FAILED"
    assert await statuses(store) == {"a": "FAILED", "b": "ENQUEUED"}


async def test_two_ends_that_ready_one_node_make_one_task(store: Store) -> None:
    """They may be in one commit, or in two."""
    made = await start(store, N("a"), N("b"), N("c"), N("d", after=["a", "b"], join="any"), N("e", after=["a", "b"]))
    assert ready_of(await end(store, "a", "b"), made) == {"d", "e"}
    assert ready_of(await end(store, "c"), made) == set()
    assert sum((await store.counts()).values()) == len(made.nodes)
