"""A workflow that has ended runs again from where it failed: by its id, and by a retry of one of its tasks."""

import logging

import pytest

from taskmanager import BuiltInTaskCode, ConfigurationError, TaskStatus, Workflow
from taskmanager.testing import World
from tests.unit.workflows.graphs import Jobs, statuses, task_of

pytestmark = pytest.mark.anyio


def graph(jobs: Jobs, name: str = "bad") -> "Workflow[int]":
    """A node that completes, one that fails at first, and one behind it."""
    wf = Workflow("import")
    page = wf.add(jobs.fetch, "a").named("good")
    bad = wf.add(jobs.broken, name).named("bad").after(page)
    return wf.output(wf.add(jobs.total, [bad.value, 1]).named("last"))


async def test_id_of_a_workflow_that_runs_is_followed(world: World, jobs: Jobs) -> None:
    """The second handle waits for the first workflow."""
    wf = Workflow("import")
    output = wf.add(jobs.wait, "a")
    first = await world.manager.start_workflow(wf.output(output), workflow_id="import-7")
    again = await world.manager.start_workflow(wf.output(output), workflow_id="import-7")
    assert (first.is_duplicate, again.is_duplicate) == (False, True)
    await world.idle()
    jobs.gate.set()
    assert [await first, await again] == ["a", "a"]
    assert jobs.began == ["a"]
    assert await (await world.manager.start_workflow(wf.output(output), workflow_id="import-7")) == "a"
    assert jobs.began == ["a"]


async def test_another_definition_follows_and_is_logged(
    world: World, jobs: Jobs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "taskmanager")
    jobs.fails = False
    await (await world.manager.start_workflow(graph(jobs), workflow_id="w"))
    other = await world.manager.start_workflow(graph(jobs, "other"), workflow_id="w")
    assert other.is_duplicate
    assert await other == 2
    assert "workflow w is COMPLETED, and was started with another definition" in caplog.text


async def test_failed_workflow_goes_on_with_what_did_not_complete(world: World, jobs: Jobs) -> None:
    assert (await (await world.manager.start_workflow(graph(jobs), workflow_id="w")).result()).is_err()
    jobs.fails = False
    again = await world.manager.start_workflow(graph(jobs), workflow_id="w")
    assert again.is_duplicate
    assert await again == 2
    assert jobs.began == ["a", "bad", "bad", "total"]
    assert set((await statuses(world.manager, "w")).values()) == {"COMPLETED"}


async def test_failed_workflow_of_another_definition_is_refused(world: World, jobs: Jobs) -> None:
    """Else a workflow that has failed would be followed for ever, and nothing would say so."""
    assert (await (await world.manager.start_workflow(graph(jobs), workflow_id="w")).result()).is_err()
    with pytest.raises(ConfigurationError, match="workflow w is FAILED and was started with another definition"):
        await world.manager.start_workflow(graph(jobs, "other"), workflow_id="w")


async def test_cancelled_workflow_runs_again(world: World, jobs: Jobs) -> None:
    wf = Workflow("import")
    first = wf.add(jobs.wait, "a")
    wf.output(wf.add(jobs.count, wf.add(jobs.fetch, "b").after(first).value))
    handle = await world.manager.start_workflow(wf, workflow_id="w")
    await world.idle()
    await handle.cancel()
    await handle.result()
    jobs.gate.set()
    assert await (await world.manager.start_workflow(wf, workflow_id="w")) == 6
    assert jobs.began == ["a", "a", "b", "count b 1"]


async def test_retry_of_a_task_runs_its_workflow_on(world: World, jobs: Jobs) -> None:
    """The node, what was skipped behind it, and the workflow are open again; one that has completed is not repeated."""
    handle = await world.manager.start_workflow(graph(jobs))
    await handle.result()
    jobs.fails = False
    assert await world.manager.retry(await task_of(world.manager, handle.workflow_id, "bad"))
    assert await handle.status() == "RUNNING"
    assert await handle == 2
    assert jobs.began == ["a", "bad", "bad", "total"]


async def test_retry_all_runs_workflows_on(world: World, jobs: Jobs) -> None:
    handles = [await world.manager.start_workflow(graph(jobs)) for _ in range(3)]
    for each in handles:
        await each.result()
    jobs.fails = False
    assert await world.manager.retry_all(task_name="broken") == 3
    assert [await each for each in handles] == [2, 2, 2]


async def test_retry_in_a_child_opens_its_parent(world: World, jobs: Jobs) -> None:
    wf = Workflow("outer")
    inner = wf.add_workflow(graph(jobs), node_id="inner")
    wf.output(wf.add(jobs.total, [inner.value, 10]))
    handle = await world.manager.start_workflow(wf)
    await handle.result()
    jobs.fails = False
    assert await world.manager.retry_all(status=TaskStatus.FAILED) == 1
    assert await handle == 12


async def test_cancel_of_a_task_ends_its_node(world: World, jobs: Jobs) -> None:
    """What needs the node is skipped, and the workflow ends, whether the task ran or waited."""
    wf = Workflow("import")
    runs = wf.add(jobs.wait, "a").named("runs")
    waits = wf.add(jobs.fetch.with_options(delay=100), "b").named("waits")
    wf.add(jobs.fetch, "c").after(runs, waits).named("behind")
    handle = await world.manager.start_workflow(wf)
    await world.idle()
    for node_id in ("runs", "waits"):
        assert await world.manager.cancel(await task_of(world.manager, handle.workflow_id, node_id))
    error = (await handle.result()).err_value
    assert error.error_code == BuiltInTaskCode.TASK_CANCELLED
    found = await statuses(world.manager, handle.workflow_id)
    assert found == {"runs": "FAILED", "waits": "FAILED", "behind": "SKIPPED"}


async def test_cancel_all_ends_nodes_too(world: World, jobs: Jobs) -> None:
    wf = Workflow("import")
    wf.add(jobs.fetch.with_options(delay=100), "a")
    handle = await world.manager.start_workflow(wf)
    assert await world.manager.cancel_all(task_name="fetch") == 1
    assert (await handle.result()).is_err()
