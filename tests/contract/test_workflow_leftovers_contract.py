"""What every store does with what is left of a workflow that another program has deleted by halves."""

import sqlite3

import pytest

from taskmanager.model.errors import StoreError
from taskmanager.model.ids import node_task_id
from taskmanager.store.protocol import Store, TaskFilter
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.verbs import Verbs
from tests.contract.graphs import NOW, ROOT, N, end, graph, start, status, task_of

pytestmark = pytest.mark.anyio


async def delete_workflow(store: Store, *, is_whole: bool) -> None:
    """Delete the workflow with all that refers to it, or as a tool does that knows no foreign keys."""

    def work(connection: Session) -> None:
        without = "PRAGMA foreign_keys = 0", "PRAGMA foreign_keys = 1"
        if not isinstance(connection, sqlite3.Connection):
            without = "SET session_replication_role = replica", "SET session_replication_role = DEFAULT"
        if not is_whole:
            connection.execute(without[0])
        connection.execute("DELETE FROM taskmanager_workflows")
        connection.execute(without[1])

    assert isinstance(store, Verbs)
    await store._write(work)


@pytest.mark.req("RC-s8")
@pytest.mark.parametrize("is_whole", [True, False])
async def test_live_task_is_found_whose_workflow_is_gone(store: Store, is_whole: bool) -> None:
    """Also where the row of its node still stands there."""
    await start(store, N("a"))
    assert await store.fetch_without_workflow(limit=10) == []
    await delete_workflow(store, is_whole=is_whole)
    assert [row.task_id for row in await store.fetch_without_workflow(limit=10)] == [node_task_id(ROOT, 0)]


@pytest.mark.parametrize("is_whole", [True, False])
async def test_ended_task_goes_by_itself_when_its_workflow_is_gone(store: Store, is_whole: bool) -> None:
    await start(store, N("a"))
    await end(store, "a")
    await delete_workflow(store, is_whole=is_whole)
    assert await store.purge(TaskFilter(), None, 10) == 1


async def test_start_is_refused_where_rows_of_its_nodes_are_left(store: Store) -> None:
    """It would go on from what another one has left. Nothing of it is written, and the error says what to do."""
    await start(store, N("a"))
    await delete_workflow(store, is_whole=False)
    with pytest.raises(StoreError, match="run `taskmanager doctor`"):
        await store.start_workflow(graph(N("a")), NOW)
    assert await store.fetch_workflow(ROOT) is None


async def test_start_takes_no_result_from_an_earlier_workflow_of_its_id(store: Store) -> None:
    """The ids of the tasks are the same, and what they are to do is not."""
    await start(store, N("a"))
    await end(store, "a")
    await delete_workflow(store, is_whole=True)
    made = graph(N("a"))
    other = made._replace(nodes=(made.nodes[0]._replace(task_name="app:other", args="[7]"),))
    row, advance = await store.start_workflow(other, NOW)
    assert (row, [task.task_name for task in advance.readied]) == (None, ["app:other"])
    task = await task_of(store, "a")
    assert (task.task_name, task.args, task.status, task.start_count) == ("app:other", "[7]", "PENDING", 0)
    await end(store, "a")
    assert await status(store) == "COMPLETED"
