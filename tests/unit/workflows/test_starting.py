"""The start of a node: its inputs are read when it is committed, and its code runs only if its workflow lives."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from taskmanager import BuiltInTaskCode, StoreError, StoreUnavailable, TaskManager, TaskResult, Workflow
from taskmanager.store.memory import MemoryStore
from taskmanager.testing import World, isolated
from taskmanager.testing.faulty import Fault, FaultyStore
from tests.unit.duties.scene import until
from tests.unit.workflows.graphs import Jobs, statuses, task_of

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def faulty(*plan: Fault) -> AsyncIterator[tuple[World, FaultyStore, Jobs]]:
    """A world whose store fails as planned."""
    manager, store = TaskManager(None), FaultyStore(MemoryStore(), plan)
    async with isolated(manager, store=store.as_store()) as world:
        yield world, store, Jobs(manager)


class Broken(MemoryStore):
    """A store that refuses to say what a node needs, for good."""

    async def node_start(self, task_id: str) -> Any:
        """Fail."""
        raise StoreError(f"the row of {task_id} is damaged")


async def attempts_of(world: World, workflow_id: str, node_id: str) -> tuple[str, object, int]:
    """The status and the error code of a task, and how many attempts it had."""
    info = await world.manager.get(await task_of(world.manager, workflow_id, node_id), include_attempts=True)
    assert info is not None
    return info.status, info.error_code, len(info.attempts or ())


async def test_store_that_cannot_be_read_is_waited_for() -> None:
    """The start is committed by then, and it is no failure of the task. Its time limit begins when its code does."""
    async with faulty(Fault.fail(1, verb="node_start", times=20)) as (world, store, jobs):
        wf = Workflow("import")
        node = wf.add(jobs.fetch.with_options(timeout=1), "a")
        handle = await world.manager.start_workflow(wf.output(node))
        assert (await handle).url == "a"
        assert store.calls.count("node_start") == 21
        assert await attempts_of(world, handle.workflow_id, node.node_id) == ("COMPLETED", None, 1)


@pytest.mark.parametrize("is_after", [False, True])
async def test_commit_that_seems_to_fail_holds_up_no_workflow(is_after: bool) -> None:
    """What has followed from it is in no report, so it is looked for when the store is back."""
    for nth in range(1, 9):
        async with faulty(Fault.fail(nth, verb="commit", after=is_after)) as (world, _, jobs):
            wf = Workflow("import")
            parts = [wf.add(jobs.count, wf.add(jobs.fetch, "a").value, factor) for factor in (1, 2)]
            handle = await world.manager.start_workflow(wf.output(wf.add(jobs.total, [each.value for each in parts])))
            assert (await handle.result(timeout=60)).ok_value == 18


async def test_end_that_is_written_twice_ends_its_node_once() -> None:
    """The second write brings the row of the attempt, which the first one has written too. Nobody has asked for a
    retry, so nothing is open again.
    """
    for nth in range(1, 7):
        async with faulty(Fault.fail(nth, verb="commit", after=True)) as (world, _, jobs):
            wf, child = Workflow("outer", on_error="pause"), Workflow("inner")
            child.add(jobs.broken, "bad")
            wf.add_workflow(child, node_id="inner")
            handle = await world.manager.start_workflow(wf)
            await world.advance(5)
            assert await handle.status() == "PAUSED"
            assert await statuses(world.manager, handle.workflow_id) == {"inner": "FAILED"}


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_start_without_an_answer_may_have_started(is_cancelled: bool) -> None:
    """The file has the workflow then, and it runs; the same id follows it."""
    fault = Fault.cancel if is_cancelled else Fault.fail
    async with faulty(fault(1, verb="start_workflow", after=True)) as (world, _, jobs):
        wf = Workflow("import")
        wf.output(wf.add(jobs.count, wf.add(jobs.fetch, "a").value))
        await world.advance(1)  # the looks of the start are over
        with pytest.raises(asyncio.CancelledError if is_cancelled else StoreUnavailable):
            await asyncio.ensure_future(world.manager.start_workflow(wf, workflow_id="w"))
        assert (await world.manager.workflow("w").result(timeout=60)).ok_value == 6
        assert (await world.manager.start_workflow(wf, workflow_id="w")).is_duplicate


@pytest.mark.parametrize("fault", [Fault.fail, Fault.cancel])
@pytest.mark.parametrize("verb", ["cancel_workflow", "fetch_cancel_requests"])
async def test_cancel_without_an_answer_ends_what_runs(verb: str, fault: Callable[..., Fault]) -> None:
    """The request is in the file, and no other instance writes, which would make this one look there."""
    async with faulty() as (world, store, jobs):
        wf = Workflow("import")
        wf.add(jobs.wait, "a")
        handle = await world.manager.start_workflow(wf)
        await world.idle()
        assert jobs.began == ["a"]
        store.plan.append(fault(store.calls.count(verb) + 1, verb=verb, after=True))
        with pytest.raises((StoreUnavailable, asyncio.CancelledError)):
            await asyncio.ensure_future(handle.cancel())
        await world.advance(1)
        assert await handle.status() == "CANCELLED"


async def test_stop_while_the_store_cannot_be_read_frees_the_task() -> None:
    """Its code has not begun, so nothing was interrupted."""
    async with faulty(Fault.fail(1, verb="node_start", times=1_000)) as (world, store, jobs):
        wf = Workflow("import")
        handle = await world.manager.start_workflow(wf.output(wf.add(jobs.fetch, "a")), workflow_id="w")
        await world.advance(1)
        assert jobs.began == []
        store.plan.clear()
        await world.restart()
        assert (await handle).url == "a"
        assert await attempts_of(world, "w", "fetch:0") == ("COMPLETED", None, 1)


async def test_cancel_while_the_store_cannot_be_read_ends_the_task() -> None:
    async with faulty(Fault.fail(1, verb="node_start", times=1_000)) as (world, _, jobs):
        wf = Workflow("import")
        wf.add(jobs.fetch, "a")
        handle = await world.manager.start_workflow(wf)
        await world.advance(1)
        assert await handle.cancel()
        assert (await handle.result()).is_err()
        assert await handle.status() == "CANCELLED"
        assert jobs.began == []


@pytest.mark.req("DS-062")
async def test_store_that_never_says_what_a_node_needs_fails_it() -> None:
    manager = TaskManager(None)
    async with isolated(manager, store=Broken()) as world:
        jobs, wf = Jobs(manager), Workflow("import")
        node = wf.add(jobs.flaky, "a")
        handle = await manager.start_workflow(wf)
        error = (await handle.result()).err_value
        assert error.error_code == BuiltInTaskCode.WORKFLOW_CHECK_FAILED
        assert "is damaged" in error.message
        code = BuiltInTaskCode.WORKFLOW_CHECK_FAILED
        assert await attempts_of(world, handle.workflow_id, node.node_id) == ("FAILED", code, 0)


@pytest.mark.req("DS-063")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("DELETE FROM taskmanager_workflows", "its workflow is not in the store any more"),
        ("UPDATE taskmanager_workflows SET status = 'CANCELLED'", "is cancelled"),
    ],
)
async def test_node_of_a_workflow_that_is_gone_or_cancelled_does_not_run(
    world: World, jobs: Jobs, change: str, words: str
) -> None:
    """Somebody has changed the file by hand."""
    wf = Workflow("import")
    node = wf.add(jobs.fetch.with_options(delay=100), "a")
    handle = await world.manager.start_workflow(wf)
    task_id = await task_of(world.manager, handle.workflow_id, node.node_id)
    store = world.store.sound
    assert isinstance(store, MemoryStore)
    await store._write(lambda connection: connection.execute(change))
    result = await world.manager.handle(task_id).result()
    assert words in result.err_value.message
    info = await world.manager.get(task_id, include_attempts=True)
    assert info is not None
    assert (info.status, info.error_code, info.attempts) == ("CANCELLED", BuiltInTaskCode.WORKFLOW_STOPPED, ())
    assert jobs.began == []


def shown(result: TaskResult[int], numbers: list[int]) -> str:
    """Runs in a child process."""
    return f"{result.err_value.error_code if result.is_err() else result.ok_value} {numbers}"


async def test_child_processes_get_inputs_like_any_arguments(tmp_path: Path) -> None:
    manager = TaskManager(tmp_path / "tasks.db", processes=1)
    jobs, show = Jobs(manager), manager.task(persist=True, executor="process")(shown)
    async with manager:
        wf = Workflow("import")
        bad, good = wf.add(jobs.broken, "bad"), wf.add(jobs.total, [1, 2])
        wf.optional(bad)
        node = wf.add(show, bad.result, [good.value, 7])
        handle = await manager.start_workflow(wf.output(node))
        assert (await handle.result(timeout=30)).ok_value == "UNHANDLED_EXCEPTION [3, 7]"


async def test_codec_of_the_application_opens_inputs(tmp_path: Path) -> None:
    """What a node came to is sealed in the file, and so is the result of the workflow."""
    manager = TaskManager(tmp_path / "tasks.db", codec=Reversing())
    jobs = Jobs(manager)
    async with manager:
        wf = Workflow("import")
        page = wf.add(jobs.fetch, "a").named("page")
        handle = await manager.start_workflow(wf.output(wf.add(jobs.count, page.value).named("count")))
        assert (await handle.result(timeout=30)).ok_value == 6
        whole = Workflow("whole")
        whole.add(jobs.total, [1]).named("one")
        bad = whole.add(jobs.broken, "bad").named("bad")
        whole.optional(bad)
        handle = await manager.start_workflow(whole)
        assert (await handle.result(timeout=30)).ok_value == {"one": 1}
        assert (await handle.result_of("bad")).err_value.message == "OSError: bad"


class Reversing:
    """A codec."""

    def encode(self, data: bytes, /) -> bytes:
        """Read it from behind."""
        return data[::-1]

    def decode(self, data: bytes, /) -> bytes:
        """Read it from behind."""
        return data[::-1]


async def test_ended_workflow_wakes_who_waits_in_another_instance(tmp_path: Path) -> None:
    """By its usual looks at the file; the one that has ended it wakes its own without a poll."""
    web, worker = (TaskManager(tmp_path / "tasks.db", store_poll=0.02, run_queues=each) for each in ((), None))
    async with web, worker:
        jobs = Jobs(worker)
        wf = Workflow("import")
        node = wf.add(Jobs(web).wait, "a")
        handle = await web.start_workflow(wf.output(node), workflow_id="w")
        await until(lambda: jobs.began == ["a"])
        both = worker.workflow("w").result(timeout=30), handle.result(timeout=30)
        jobs.gate.set()
        assert [(await each).ok_value for each in both] == ["a", "a"]


async def test_stop_tells_who_waits_that_the_workflow_goes_on(world: World, jobs: Jobs) -> None:
    wf = Workflow("import")
    handle = await world.manager.start_workflow(wf.output(wf.add(jobs.wait, "a")))
    waiting = asyncio.ensure_future(handle.result())
    await world.idle()
    await world.manager.stop(timeout=0)
    assert (await waiting).err_value.error_code == BuiltInTaskCode.MANAGER_STOPPED
    await world.start()
    jobs.gate.set()


@pytest.mark.parametrize("is_cancelled", [False, True])
@pytest.mark.parametrize("act", ["cancel", "cancel_all"])
async def test_cancel_of_a_task_without_an_answer_may_have_ended_it(act: str, is_cancelled: bool) -> None:
    """Its workflow has ended with it, and what depends on it is ready; no report says so."""
    async with faulty() as (world, store, jobs):
        wf = Workflow("import")
        first = wf.add(jobs.fetch.with_options(delay=3600), "a").named("first")
        wf.optional(first).output(wf.add(jobs.tell, first.result))
        handle = await world.manager.start_workflow(wf)
        await world.idle()
        await handle.pause()
        await handle.resume()
        waiting = asyncio.create_task(handle.result(timeout=60))
        await world.idle()
        made = Fault.cancel if is_cancelled else Fault.fail
        store.plan.append(made(store.calls.count("commit") + 1, verb="commit", after=True))
        call = world.manager.cancel_all(task_name="fetch")
        if act == "cancel":
            call.close()
            call = world.manager.cancel(await task_of(world.manager, handle.workflow_id, "first"))
        with pytest.raises(asyncio.CancelledError if is_cancelled else StoreUnavailable):
            await asyncio.ensure_future(call)
        assert (await waiting).ok_value == ["TASK_CANCELLED"]


async def test_input_that_is_run_again_at_the_start_is_waited_for() -> None:
    """The start of the node is committed, and its input is opened before it is read: that is no fault of the node."""
    async with faulty(Fault.hold(2, verb="node_start")) as (world, store, jobs):
        wf = Workflow("import")
        page = wf.add(jobs.fetch, "a").named("page")
        count = wf.add(jobs.count, page.value).named("count")
        handle = await world.manager.start_workflow(wf.output(count))
        await world.idle()
        assert store.held == ["node_start"]
        assert await world.manager.retry(await task_of(world.manager, handle.workflow_id, "page"), force=True)
        store.let_go()
        assert (await handle.result(timeout=60)).ok_value == 6
        assert jobs.began == ["a", "a", "count a 1"]
        assert await attempts_of(world, handle.workflow_id, "count") == ("COMPLETED", None, 1)
