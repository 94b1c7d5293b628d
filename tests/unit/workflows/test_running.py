"""What a workflow does from its start to its end: which nodes run, with which values, and what it comes to."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from taskmanager import (
    BuiltInTaskCode,
    ConfigurationError,
    Node,
    TaskCancelled,
    TaskError,
    TaskEvent,
    TaskFailed,
    TaskManager,
    TaskResult,
    UnknownTask,
    Workflow,
    current_task,
)
from taskmanager.store.memory import MemoryStore
from taskmanager.testing import Fault, FaultyStore, World, isolated
from tests.unit.duties.scene import until
from tests.unit.workflows.graphs import Jobs, Page, statuses

pytestmark = pytest.mark.anyio


async def test_values_go_from_node_to_node(world: World, jobs: Jobs) -> None:
    """Decoded by the parameter that takes them, in lists and beside arguments of the call, in every lane but one."""
    wf = Workflow("import")
    page = wf.add(jobs.fetch, "a")
    parts = [wf.add(jobs.count, page.value, factor=each).named(f"part-{each}") for each in (1, 2, 3)]
    total = wf.add(jobs.total, [each.value for each in parts])
    handle = await world.manager.start_workflow(wf.output(total), workflow_id="import-7")
    assert (handle.workflow_id, handle.is_duplicate) == ("import-7", False)
    assert await handle == 36
    assert jobs.began[0] == "a"
    assert set(jobs.began[1:4]) == {"count a 1", "count a 2", "count a 3"}
    assert jobs.began[4:] == ["total"]
    assert await handle.status() == "COMPLETED"
    assert await statuses(world.manager, "import-7") == {
        "fetch:0": "COMPLETED", "part-1": "COMPLETED", "part-2": "COMPLETED", "part-3": "COMPLETED",
        "total:4": "COMPLETED",
    }  # fmt: skip
    assert await handle.result_of("part-2") == TaskResult(ok=12)
    assert await handle.result_of("fetch:0") == TaskResult(ok=Page("a", [1, 2, 3]))


async def test_result_without_output_has_every_node(world: World, jobs: Jobs) -> None:
    wf = Workflow("pages")
    wf.add(jobs.fetch, "a").named("one")
    wf.add(jobs.total, [4, 5]).named("two")
    handle = await world.manager.start_workflow(wf)
    assert await handle == {"one": Page("a", [1, 2, 3]), "two": 9}
    assert (await handle.result()).ok_value["two"] == 9


async def test_failure_skips_what_needs_the_node_and_fails_the_workflow(world: World, jobs: Jobs) -> None:
    """An independent branch runs to its end first. The first error is the one of the workflow."""
    wf = Workflow("import")
    bad = wf.add(jobs.broken, "bad")
    behind = wf.add(jobs.total, [bad.value])
    wf.add(jobs.total, [1]).after(behind).named("last")
    beside = wf.add(jobs.wait, "beside")
    handle = await world.manager.start_workflow(wf)
    await world.idle()
    assert await handle.status() == "RUNNING"
    jobs.gate.set()
    with pytest.raises(TaskFailed, match=r"^workflow .* is FAILED: .*OSError: bad") as raised:
        await handle
    assert (raised.value.task_id, raised.value.status) == (handle.workflow_id, "FAILED")
    assert await statuses(world.manager, handle.workflow_id) == {
        bad.node_id: "FAILED", behind.node_id: "SKIPPED", "last": "SKIPPED", beside.node_id: "COMPLETED",
    }  # fmt: skip
    assert "total" not in jobs.began
    assert (await handle.result_of("last")).err_value.error_code == BuiltInTaskCode.UPSTREAM_SKIPPED
    assert (await handle.result_of(bad.node_id)).err_value == TaskError(
        BuiltInTaskCode.UNHANDLED_EXCEPTION, "OSError: bad"
    )
    (told,) = [each for each in await handle.nodes() if each.status == "FAILED"]
    assert told.error is not None
    assert told.error.message == "OSError: bad"


async def test_results_of_failed_and_skipped_nodes_are_inputs(world: World, jobs: Jobs) -> None:
    """A node that takes `.result` runs whatever the others came to."""
    wf = Workflow("import")
    bad = wf.add(jobs.broken, "bad")
    skipped = wf.add(jobs.total, [bad.value])
    told = wf.add(jobs.tell, bad.result, skipped.result, wf.add(jobs.fetch, "a").result)
    wf.optional(bad, skipped)
    assert await (await world.manager.start_workflow(wf.output(told))) == [
        "UNHANDLED_EXCEPTION",
        "UPSTREAM_SKIPPED",
        "ok",
    ]


async def test_any_runs_at_the_first_that_completes(world: World, jobs: Jobs) -> None:
    """What has not ended by then is `UPSTREAM_PENDING`."""
    wf = Workflow("mirrors")
    mirrors: list[Node[Any]] = [wf.add(jobs.wait, "slow"), wf.add(jobs.fetch, "quick")]
    told = wf.add(jobs.tell, *[each.result for each in mirrors]).after(*mirrors, join="any")
    handle = await world.manager.start_workflow(wf.output(told))
    await world.idle()
    assert await handle.result_of(told.node_id) == TaskResult(ok=["UPSTREAM_PENDING", "ok"])
    assert await handle.status() == "RUNNING"
    jobs.gate.set()
    assert await handle == ["UPSTREAM_PENDING", "ok"]


async def test_quorum_that_cannot_be_reached_skips(world: World, jobs: Jobs) -> None:
    wf = Workflow("votes")
    votes: list[Node[Any]] = [wf.add(jobs.broken, "a"), wf.add(jobs.broken, "b"), wf.add(jobs.fetch, "c")]
    counted = wf.add(jobs.total, [1]).after(*votes, join="quorum", min_success=2)
    handle = await world.manager.start_workflow(wf)
    assert (await handle.result()).is_err()
    assert (await statuses(world.manager, handle.workflow_id))[counted.node_id] == "SKIPPED"


async def test_value_that_does_not_fit_fails_its_node_without_an_attempt(world: World, jobs: Jobs) -> None:
    """No policy retries that: only other code would end it."""

    @world.manager.task(name="late", persist=True, retries=3)
    async def late(page: str) -> None:
        jobs.began.append("late")

    wf = Workflow("import")
    node = wf.add(late, wf.add(jobs.fetch, "a").value)  # type: ignore[arg-type]  # that is what is tested
    handle = await world.manager.start_workflow(wf)
    error = (await handle.result()).err_value
    assert error.error_code == BuiltInTaskCode.ARGUMENT_MISMATCH
    assert "'page' does not fit" in error.message
    assert jobs.began == ["a"]
    (found,) = [each for each in await handle.nodes() if each.node_id == node.node_id]
    info = await world.manager.get(found.task_id or "", include_attempts=True)
    assert info is not None
    assert (info.status, info.attempts) == ("FAILED", ())


async def test_retries_of_a_node_come_before_its_dependents(world: World, jobs: Jobs) -> None:
    """A node is RUNNING while its task waits for a retry."""
    wf = Workflow("import")
    first = wf.add(jobs.flaky, "flaky")
    last = wf.add(jobs.total, [first.value])
    handle = await world.manager.start_workflow(wf.output(last))
    await world.idle()
    assert await statuses(world.manager, handle.workflow_id) == {first.node_id: "RUNNING", last.node_id: "PENDING"}
    jobs.fails = False
    assert await handle == 5
    assert jobs.began == ["flaky", "flaky", "total"]


async def test_delay_counts_from_the_moment_the_node_is_ready(world: World, jobs: Jobs) -> None:
    wf = Workflow("import")
    page = wf.add(jobs.fetch.with_options(delay=100), "a")
    late = wf.add(jobs.count.with_options(delay=100), page.value)
    handle = await world.manager.start_workflow(wf.output(late))
    await world.advance(150)
    assert jobs.began == ["a"]
    await world.advance(60)
    assert await handle == 6


async def test_middleware_surrounds_nodes_too(world: World, jobs: Jobs) -> None:
    async def doubled(context: Any, call: Callable[[], Any]) -> Any:
        value = await call()
        return value * 2 if context.task_name == "total" else value

    world.manager.middleware(doubled)
    wf = Workflow("import")
    total = wf.add(jobs.total, [wf.add(jobs.count, wf.add(jobs.fetch, "a").value).value])
    assert await (await world.manager.start_workflow(wf.output(total))) == 12


async def test_child_is_one_node_of_its_parent(world: World, jobs: Jobs) -> None:
    """It takes values of the parent, and its output is the value of its node."""
    wf, child = Workflow("outer"), Workflow("inner")
    page = wf.add(jobs.fetch, "a")
    counts = [child.add(jobs.count, page.value, each) for each in (1, 10)]
    inner = wf.add_workflow(child.output(child.add(jobs.total, [each.value for each in counts])), node_id="inner")
    last = wf.add(jobs.total, [inner.value, 1])
    handle = await world.manager.start_workflow(wf.output(last))
    assert await handle == 67
    assert await handle.result_of("inner") == TaskResult(ok=66)
    assert (await statuses(world.manager, handle.workflow_id))["inner"] == "COMPLETED"


async def test_failed_child_fails_its_node(world: World, jobs: Jobs) -> None:
    wf, child = Workflow("outer"), Workflow("inner")
    child.add(jobs.broken, "bad")
    wf.add_workflow(child, node_id="inner")
    handle = await world.manager.start_workflow(wf)
    assert (await handle.result()).err_value.message == "OSError: bad"
    assert await statuses(world.manager, handle.workflow_id) == {"inner": "FAILED"}


async def test_cancel_ends_what_runs_and_skips_the_rest(world: World, jobs: Jobs) -> None:
    wf, child = Workflow("outer"), Workflow("inner")
    first = wf.add(jobs.wait, "a")
    child.add(jobs.wait, "b")
    wf.add_workflow(child, node_id="inner")
    wf.add(jobs.fetch.with_options(delay=100), "c").named("delayed")
    wf.add(jobs.fetch, "d").after(first).named("behind")
    handle = await world.manager.start_workflow(wf)
    await world.idle()
    assert await handle.cancel()
    with pytest.raises(TaskCancelled) as raised:
        await handle
    assert raised.value.task_id == handle.workflow_id
    assert await handle.status() == "CANCELLED"
    assert set(jobs.began) == {"a", "b"}
    assert {each.node_id: each.status for each in await handle.nodes()}["behind"] == "SKIPPED"
    assert not await handle.cancel()
    await world.advance(200)
    assert set(jobs.began) == {"a", "b"}


async def test_task_lends_its_slot_while_it_awaits_a_workflow() -> None:
    """Else its nodes would wait for that slot for ever."""
    manager = TaskManager(None, concurrency=1)
    jobs = None

    @manager.task(name="parent", persist=False)
    async def parent() -> int:
        assert jobs is not None
        wf = Workflow("inner")
        return await (await manager.start_workflow(wf.output(wf.add(jobs.total, [1, 2]))))

    async with isolated(manager):
        jobs = Jobs(manager)
        assert await parent.enqueue() == 3


@pytest.mark.parametrize("depth", [0, 1, 2])
async def test_node_that_awaits_its_own_workflow_is_refused(world: World, jobs: Jobs, depth: int) -> None:
    """Also from a child: that cannot end before its node does."""

    @world.manager.task(name="selfish", persist=True)
    async def selfish() -> None:
        await world.manager.workflow("own")

    wf = Workflow("own")
    wf.add(selfish)
    for _ in range(depth):
        inner, wf = wf, Workflow("own")
        wf.add_workflow(inner)
    handle = await world.manager.start_workflow(wf, workflow_id="own")
    assert "would wait for ever" in (await handle.result()).err_value.message


async def test_threads_reach_workflows_through_the_manager(tmp_path: Any) -> None:
    """`call` runs each of the coroutines, and `wait` blocks the calling thread."""
    manager = TaskManager(tmp_path / "tasks.db")

    @manager.task(persist=True)
    async def ident(value: int) -> int:
        assert threading.current_thread() is not threading.main_thread()
        assert current_task().task_name.endswith("ident")
        return value

    def work() -> None:
        with manager.in_thread():
            wf = Workflow("threads")
            handle = manager.call(manager.start_workflow(wf.output(wf.add(ident, 7))))
            assert handle.wait(timeout=30) == 7
            assert manager.call(handle.status()) == "COMPLETED"
            assert [each.workflow_id for each in manager.call(manager.workflows())] == [handle.workflow_id]

    await asyncio.to_thread(work)


async def test_listeners_hear_of_nodes_as_of_other_tasks(world: World, jobs: Jobs) -> None:
    """Enqueued, with the state that it had then, before started."""
    events: list[TaskEvent] = []

    @world.manager.on()
    async def hear(event: TaskEvent) -> None:
        events.append(event)

    wf = Workflow("import")
    parts = [wf.add(jobs.count, wf.add(jobs.fetch, "a").value, factor) for factor in (1, 2)]
    await (await world.manager.start_workflow(wf.output(wf.add(jobs.total, [each.value for each in parts]))))
    await until(lambda: len(events) == 15)
    told = {each.task.task_id: [] for each in events}  # type: ignore[var-annotated]
    for each in events:
        told[each.task.task_id].append((each.kind, each.task.status, each.task.start_count))
    life = [("enqueued", "PENDING", 0), ("started", "RUNNING", 1), ("completed", "COMPLETED", 1)]
    assert list(told.values()) == [life] * 5


async def test_lists_are_newest_first(world: World, jobs: Jobs) -> None:
    for number in range(3):
        wf = Workflow("odd" if number % 2 else "even")
        wf.add(jobs.broken if number == 2 else jobs.fetch, "a")
        await (await world.manager.start_workflow(wf, workflow_id=f"w{number}")).result()
        await world.advance(1)
    everything = await world.manager.workflows()
    assert [(each.workflow_id, each.name, each.status) for each in everything] == [
        ("w2", "even", "FAILED"),
        ("w1", "odd", "COMPLETED"),
        ("w0", "even", "COMPLETED"),
    ]
    assert everything[0].error is not None
    assert everything[0].error.message == "OSError: a"
    assert [each.workflow_id for each in await world.manager.workflows(name="even", limit=1)] == ["w2"]
    assert [each.workflow_id for each in await world.manager.workflows(status="COMPLETED", before="w1")] == ["w0"]


async def test_ids_that_nobody_has_are_unknown(world: World, jobs: Jobs) -> None:
    handle = world.manager.workflow("nobody")
    for what in (handle.result(), handle.status(), handle.nodes(), handle.pause(), handle.resume(), handle.cancel()):
        with pytest.raises(UnknownTask, match="there is no workflow nobody"):
            await what
    wf = Workflow("import")
    wf.add(jobs.fetch, "a")
    started = await world.manager.start_workflow(wf)
    with pytest.raises(UnknownTask, match=r"no node 'b'; it has fetch:0"):
        await started.result_of("b")


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda manager: manager.workflows(status="DONE"), "status must be one of PENDING"),
        (lambda manager: manager.workflows(limit=-1), "limit must be a whole number"),
        (lambda manager: manager.workflows(name=3), "name must be text or None"),
        (lambda manager: manager.workflow(7), "workflow_id must be text"),
        (lambda manager: manager.start_workflow(Workflow("empty")), "it has no node"),
        (lambda manager: manager.start_workflow(Workflow("w"), workflow_id=""), "workflow_id must be"),
    ],
)
async def test_wrong_values_are_refused(world: World, ask: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        await ask(world.manager)


async def test_result_of_a_workflow_is_read_when_the_store_can_be_read_again() -> None:
    """It has ended well; whoever waits for it is not told of a file that is locked in that moment."""
    manager, store = TaskManager(), FaultyStore(MemoryStore())

    @manager.task(name="node", persist=True)
    async def node() -> int:
        return 7

    async with isolated(manager, store=store.as_store()):
        graph = Workflow("graph")
        graph.output(graph.add(node))
        workflow = await manager.start_workflow(graph)
        store.plan.append(Fault.fail(store.calls.count("fetch_nodes") + 1, verb="fetch_nodes", times=2))
        assert (await workflow.result(timeout=10)).ok_value == 7
        assert store.is_spent
