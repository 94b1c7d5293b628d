"""A paused workflow starts nothing more, wherever its tasks wait, and goes on as if nothing had been."""

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from taskmanager import BuiltInTaskCode, TaskFailed, TaskManager, Workflow, sleep, wait_for
from taskmanager.model.workflows import HELD
from taskmanager.testing import World, isolated
from tests.unit.duties.scene import until
from tests.unit.workflows.graphs import Jobs, statuses, task_of

pytestmark = pytest.mark.anyio

Start = Callable[..., Any]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts managers on one file."""
    async with AsyncExitStack() as stack:

        async def begin(**options: Any) -> TaskManager:
            manager = TaskManager(tmp_path / "tasks.db", store_poll=0.02, **options)
            return await stack.enter_async_context(manager)

        yield begin


def owners(database: Path) -> list[tuple[str | None, str, int]]:
    """Who has each task that has not ended, with its status and its starts."""
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(
            "SELECT claimed_by_worker_id, status, start_count FROM taskmanager_tasks"
            " WHERE status IN ('PENDING', 'CLAIMED', 'RUNNING')"
        ).fetchall()


async def test_task_that_waits_for_a_slot_does_not_start() -> None:
    """It is in memory, ready. What runs goes on and is recorded, and nothing follows from it."""
    manager = TaskManager(None, concurrency=1)
    async with isolated(manager) as world:
        jobs, wf = Jobs(manager), Workflow("import")
        first, second = wf.add(jobs.wait.with_options(priority=1), "a"), wf.add(jobs.wait, "b")
        wf.add(jobs.fetch, "c").after(first)
        handle = await manager.start_workflow(wf)
        await world.idle()
        assert await handle.pause()
        assert not await handle.pause()
        assert await handle.status() == "PAUSED"
        jobs.gate.set()
        await world.idle()
        assert jobs.began == ["a"]
        assert (await statuses(manager, handle.workflow_id))[first.node_id] == "COMPLETED"
        assert await handle.resume()
        assert not await handle.resume()
        await handle
        assert jobs.began[0] == "a"
        assert set(jobs.began) == {"a", "b", "c"}
        assert (await statuses(manager, handle.workflow_id))[second.node_id] == "COMPLETED"


async def test_clock_that_is_set_back_keeps_no_held_task_waiting() -> None:
    """What was due stays due, whichever way it has waited meanwhile."""
    manager = TaskManager(None, concurrency=1)
    async with isolated(manager) as world:
        jobs, wf = Jobs(manager), Workflow("import")
        wf.add(jobs.wait, "a")
        wf.add(jobs.wait, "b")
        handle = await manager.start_workflow(wf)
        await world.idle()
        await handle.pause()
        world.clock.step(-7_200)
        await handle.resume()
        jobs.gate.set()
        began_s = world.clock.elapsed_s()
        await handle
        assert world.clock.elapsed_s() - began_s < 3_600


async def test_delayed_task_does_not_start(world: World, jobs: Jobs) -> None:
    """What came due meanwhile starts when the workflow goes on."""
    wf = Workflow("import")
    wf.add(jobs.fetch.with_options(delay=100), "a")
    handle = await world.manager.start_workflow(wf)
    await handle.pause()
    await world.advance(500)
    assert jobs.began == []
    await handle.resume()
    await handle
    assert jobs.began == ["a"]


async def test_task_that_waits_for_a_retry_does_not_start(world: World, jobs: Jobs) -> None:
    """Whether it waited already at the pause, or failed after it."""
    wf = Workflow("import")
    early = wf.add(jobs.flaky, "early")
    handle = await world.manager.start_workflow(wf.output(early))
    await world.idle()
    await handle.pause()
    await world.advance(500)
    assert jobs.began == ["early"]
    await handle.resume()
    await world.idle()
    assert jobs.began == ["early", "early"]
    await handle.pause()
    jobs.fails = False
    await world.advance(500)
    assert jobs.began == ["early", "early"]
    await handle.resume()
    assert await handle == 5


async def test_task_that_sleeps_does_not_wake(world: World, jobs: Jobs) -> None:
    """Neither at its time, nor by an event. What came meanwhile is there when the workflow goes on."""

    @world.manager.task(name="patient", persist=True, requeue_on_interrupt=True)
    async def patient() -> int:
        jobs.began.append("patient")
        await sleep(60)
        jobs.began.append("slept")
        return await wait_for("go", int)

    wf = Workflow("import")
    node = wf.add(patient)
    handle = await world.manager.start_workflow(wf.output(node))
    await world.advance(30)
    await handle.pause()
    await world.advance(500)
    assert jobs.began == ["patient"]
    await handle.resume()
    await world.advance(10)
    assert jobs.began[-1] == "slept"
    began = len(jobs.began)
    assert (await statuses(world.manager, handle.workflow_id))[node.node_id] == "RUNNING"
    await handle.pause()
    await world.manager.send(await task_of(world.manager, handle.workflow_id, node.node_id), "go", 7)
    await world.advance(500)
    assert len(jobs.began) == began
    await handle.resume()
    assert await handle == 7


async def test_failure_while_paused_waits_held_for_its_retry(world: World, jobs: Jobs) -> None:
    """It runs at the pause, and fails after it."""
    begun = asyncio.Event()

    @world.manager.task(name="late", persist=True, retries=1, retry_delay=0.0)
    async def late() -> None:
        jobs.began.append("late")
        begun.set()
        await jobs.gate.wait()
        if len(jobs.began) == 1:
            raise OSError

    wf = Workflow("import")
    wf.add(late)
    handle = await world.manager.start_workflow(wf)
    await begun.wait()
    await handle.pause()
    jobs.gate.set()
    await world.advance(100)
    assert jobs.began == ["late"]
    await handle.resume()
    await handle
    assert jobs.began == ["late", "late"]


async def test_task_in_the_memory_of_another_instance_does_not_start(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It waits there for a retry. That instance hears of the pause when it would start the task, and says nothing."""
    web, worker = await start(run_queues=()), await start()
    began: list[int] = []

    async def again() -> int:
        began.append(1)
        if len(began) == 1:
            raise OSError
        return len(began)

    first, *_ = [each.task(name="again", persist=True, retries=1, retry_delay=1.5)(again) for each in (web, worker)]
    wf = Workflow("import")
    handle = await web.start_workflow(wf.output(wf.add(first)))
    await until(lambda: [each[1:] for each in owners(tmp_path / "tasks.db")] == [("PENDING", 1)])
    caplog.clear()
    caplog.set_level(logging.WARNING, "taskmanager")
    assert await handle.pause()
    assert owners(tmp_path / "tasks.db") == [(HELD, "PENDING", 1)]
    lifecycle = worker._lifecycle
    assert lifecycle is not None
    await until(lambda: not lifecycle.engine.live)
    assert len(began) == 1
    assert await handle.resume()
    assert (await handle.result(timeout=30)).ok_value == 2
    assert [record.getMessage() for record in caplog.records] == []


async def test_pause_by_a_tool_is_found_at_the_start(start: Start, tmp_path: Path) -> None:
    """Its start is in the file, and its code does not run. It waits, held, and does not start again and again."""
    manager = await start()
    jobs, wf = Jobs(manager), Workflow("import")
    wf.add(jobs.fetch.with_options(delay=1.0), "a")
    handle = await manager.start_workflow(wf)
    with closing(sqlite3.connect(tmp_path / "tasks.db")) as connection, connection:
        connection.execute("UPDATE taskmanager_workflows SET status = 'PAUSED'")
    await until(lambda: owners(tmp_path / "tasks.db") == [("held", "PENDING", 1)])
    await manager.flush()
    assert jobs.began == []
    assert await handle.resume()
    await handle.result(timeout=30)
    assert jobs.began == ["a"]


async def test_failure_pauses_a_workflow_that_asks_for_it(world: World, jobs: Jobs) -> None:
    """The failed node may be retried while it is paused; whoever awaits the workflow goes on waiting."""
    wf = Workflow("import", on_error="pause")
    bad = wf.add(jobs.broken, "bad")
    last = wf.add(jobs.total, [bad.value, 2])
    handle = await world.manager.start_workflow(wf.output(last))
    waiting = asyncio.ensure_future(handle.result())
    await world.idle()
    assert await handle.status() == "PAUSED"
    jobs.fails = False
    assert await world.manager.retry(await task_of(world.manager, handle.workflow_id, bad.node_id))
    await world.advance(100)
    assert jobs.began == ["bad"]
    assert not waiting.done()
    assert await handle.resume()
    assert (await waiting).ok_value == 3


async def test_resume_lets_a_failure_have_its_consequences(world: World, jobs: Jobs) -> None:
    """Without a retry, what needs the node is skipped then."""
    wf = Workflow("import", on_error="pause")
    bad = wf.add(jobs.broken, "bad")
    last = wf.add(jobs.total, [bad.value])
    handle = await world.manager.start_workflow(wf)
    await world.idle()
    await handle.resume()
    with pytest.raises(TaskFailed):
        await handle
    assert (await statuses(world.manager, handle.workflow_id))[last.node_id] == "SKIPPED"


async def test_cancel_ends_what_is_held(world: World, jobs: Jobs) -> None:
    """One task by its id, and then the whole workflow."""
    wf = Workflow("import")
    wf.add(jobs.fetch.with_options(delay=100), "a").named("a")
    wf.add(jobs.fetch.with_options(delay=100), "b").named("b")
    handle = await world.manager.start_workflow(wf)
    await world.idle()
    await handle.pause()
    task_id = await task_of(world.manager, handle.workflow_id, "a")
    assert await world.manager.cancel(task_id)
    await world.idle()
    assert world.manager.handle(task_id).status == "CANCELLED"
    assert await handle.status() == "PAUSED"
    assert await handle.cancel()
    await handle.result()
    assert await handle.status() == "CANCELLED"
    await world.advance(500)
    assert jobs.began == []


async def test_cancel_tells_who_waits_for_a_task_that_is_held(world: World, jobs: Jobs) -> None:
    """Nobody else writes to the file, so nothing but the cancel itself says that there is news."""
    wf = Workflow("import")
    wf.add(jobs.fetch.with_options(delay=100), "a").named("a")
    handle = await world.manager.start_workflow(wf)
    await world.idle()
    await handle.pause()
    task_id = await task_of(world.manager, handle.workflow_id, "a")
    waiting = asyncio.create_task(world.manager.handle(task_id).result())
    await world.idle()
    assert await handle.cancel()
    assert (await waiting).err_value.error_code == BuiltInTaskCode.TASK_CANCELLED


async def test_cancel_in_memory_ends_a_task_that_is_held_in_the_file() -> None:
    """Its instance does not know yet that the file holds it, and nobody else would end it."""
    manager = TaskManager(None, concurrency=1)
    async with isolated(manager) as world:
        jobs, wf = Jobs(manager), Workflow("import")
        wf.add(jobs.wait, "a").named("a")
        wf.add(jobs.wait, "b").named("b")
        handle = await manager.start_workflow(wf)
        await world.idle()
        await handle.pause()
        (waiting,) = {"a", "b"} - set(jobs.began)
        task = manager.handle(await task_of(manager, handle.workflow_id, waiting))
        assert task.cancel()
        assert (await task.result()).err_value.error_code == "TASK_CANCELLED"
        info = await manager.get(task.task_id)
        assert info is not None
        assert (info.status, info.saved) == ("CANCELLED", True)


async def test_pause_and_resume_go_down_to_children(world: World, jobs: Jobs) -> None:
    wf, child = Workflow("outer"), Workflow("inner")
    child.add(jobs.fetch.with_options(delay=100), "a")
    wf.add_workflow(child, node_id="inner")
    handle = await world.manager.start_workflow(wf)
    await world.idle()
    await handle.pause()
    await world.advance(500)
    assert jobs.began == []
    await handle.resume()
    await handle
    assert jobs.began == ["a"]
