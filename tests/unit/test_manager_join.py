"""`join`: rows that a call of this instance has put into the store, free, are waited for, and not a moment longer."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from taskmanager import (
    QueueConfig,
    TaskHandle,
    TaskInfo,
    TaskManager,
    TaskStatus,
    Workflow,
    current_task,
    sleep,
    wait_for,
)
from taskmanager.engine.look import polling
from tests.unit.duties.scene import until
from tests.unit.engine_worlds import engine_of

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(50)]
TAGGED: Final = {"batch": "7"}
POLL_S: Final = 60.0
"""A look that nobody asks for comes too late for these tests."""


def application(path: Path, **options: Any) -> TaskManager:
    """A task that fails the first time, a node, and a schedule."""
    manager = TaskManager(path, **options)

    @manager.schedule(every=100_000, name="nightly")
    @manager.task(name="job", persist=True)
    async def job() -> None:
        await asyncio.sleep(0.02)
        if current_task().attempt == 1:
            raise ValueError("the first time")

    @manager.task(name="node", persist=True)
    async def node(word: str) -> str:
        await asyncio.sleep(0.02)
        return word

    return manager


async def unended(manager: TaskManager) -> list[TaskInfo]:
    return [each for each in await manager.list() if not each.status.is_terminal]


async def by_schedule(manager: TaskManager) -> Awaitable[object]:
    return (await manager.run_schedule("nightly")).result()


async def by_retry(manager: TaskManager) -> Awaitable[object]:
    handle: TaskHandle[None] = manager.get_task("job").with_options(tags=TAGGED).enqueue()
    await handle.result()
    assert await manager.retry(handle.task_id)
    return handle.result()


async def by_retry_all(manager: TaskManager) -> Awaitable[object]:
    handles = [manager.get_task("job").with_options(tags=TAGGED).enqueue() for _ in range(3)]
    await asyncio.gather(*(each.result() for each in handles))
    assert await manager.retry_all(tags=TAGGED) == 3
    return asyncio.gather(*(each.result() for each in handles))


async def by_workflow(manager: TaskManager) -> Awaitable[object]:
    graph, node = Workflow("graph"), manager.get_task("node").with_options(tags=TAGGED)
    graph.output(graph.add(node, graph.add(node, "word").value))
    return (await manager.start_workflow(graph)).result()


@pytest.mark.parametrize("tags", [None, TAGGED], ids=["all", "tagged"])
@pytest.mark.parametrize("how", [by_schedule, by_retry, by_retry_all, by_workflow])
async def test_join_waits_for_what_a_call_has_put_into_the_store(
    tmp_path: Path, how: Callable[[TaskManager], Awaitable[Awaitable[object]]], tags: dict[str, str] | None
) -> None:
    """Nothing of it is in memory yet. It ends, and join returns then, not at the next poll."""
    async with application(tmp_path / "tasks.db", store_poll=POLL_S) as manager:
        for _ in range(5):
            ends = asyncio.ensure_future(await how(manager))
            await manager.join(tags={"schedule": "nightly"} if tags and how is by_schedule else tags)
            assert await unended(manager) == []
            await ends


async def test_join_in_a_producer_waits_for_what_it_has_put_back(tmp_path: Path) -> None:
    """Though all that it had sent had ended before. It hears of the ends by the writes of the worker."""
    web = application(tmp_path / "tasks.db", run_queues=(), store_poll=POLL_S)
    worker = application(tmp_path / "tasks.db")
    async with web, worker:
        handle = web.get_task("job").enqueue()
        await web.join()
        assert (await handle.info()).status == "FAILED"
        assert await web.retry(handle.task_id)
        await web.join()
        assert (await handle.info()).status == "COMPLETED"


async def test_producer_that_waits_for_room_hears_of_it_by_the_writes_of_others(tmp_path: Path) -> None:
    queues = [QueueConfig("default", max_pending=5)]
    web = application(tmp_path / "tasks.db", run_queues=(), store_poll=POLL_S, queues=queues)
    worker = application(tmp_path / "tasks.db", queues=queues)
    async with web, worker:
        node = web.get_task("node")
        for number in range(20):
            await web.wait_for_room()
            last = node.enqueue(str(number))
        assert await last == "19"


@pytest.mark.parametrize("options", [{"run_queues": ()}, {"concurrency": 1}], ids=["enqueues only", "is busy"])
async def test_join_by_tags_waits_for_tasks_that_another_process_takes(tmp_path: Path, options: dict[str, Any]) -> None:
    """They leave one after the other, while join waits for the first of them."""
    here, there = application(tmp_path / "tasks.db", **options), application(tmp_path / "tasks.db")
    async with here, there:
        node = here.get_task("node").with_options(tags=TAGGED)
        handles = [node.enqueue(str(number)) for number in range(60)]
        await here.join(tags=TAGGED, timeout=20)
        assert {each.status for each in handles} == {TaskStatus.COMPLETED}


async def joins_not_before(may_end: asyncio.Event, manager: TaskManager) -> None:
    """Join what is tagged. It waits over three looks at the file, and until the tasks may end."""
    looks = engine_of(manager).free_rows
    seen, joining = looks.look_count, asyncio.ensure_future(manager.join(tags=TAGGED))
    await until(lambda: looks.look_count >= seen + 3)
    assert not joining.done()
    may_end.set()
    await joining


@pytest.mark.parametrize("kind", ["limited", "overflow"])
async def test_join_waits_for_free_rows_that_another_process_claims(tmp_path: Path, kind: str) -> None:
    """They were accepted here, and had no place in this memory. The only slot here is taken."""
    options = {"queues": [QueueConfig("gpu", max_concurrency=3, scope="file")], "store_poll": 0.02}
    here = application(tmp_path / "tasks.db", concurrency=1, max_in_memory=1, **options)
    there = application(tmp_path / "tasks.db", **options)
    may_end, begun = asyncio.Event(), list[int]()

    async def waits(number: int) -> None:
        begun.append(number)
        await may_end.wait()

    for manager in (here, there):
        manager.task(name="waits", persist=True, queue_name="gpu" if kind == "limited" else "default")(waits)
    async with here, there:
        here.get_task("waits").with_options(priority=1).enqueue(0)
        handles = [here.get_task("waits").with_options(tags=TAGGED).enqueue(number) for number in (1, 2)]
        await until(lambda: len(begun) == 3)
        await joins_not_before(may_end, here)
        assert {each.status for each in handles} == {TaskStatus.COMPLETED}


async def test_join_waits_for_what_has_slept_and_runs_on_in_another_process(tmp_path: Path) -> None:
    """It was accepted here, and has begun here. The only slot here is taken when it wakes."""
    here, there = (application(tmp_path / "tasks.db", concurrency=1, store_poll=0.02) for _ in range(2))
    may_end, begun = asyncio.Event(), list[int]()

    async def waits() -> None:
        begun.append(current_task().attempt)
        await wait_for("go", int)
        await may_end.wait()

    for manager in (here, there):
        manager.task(name="waits", persist=True, requeue_on_interrupt=True)(waits)
    async with here:
        handle = here.get_task("waits").with_options(tags=TAGGED).enqueue()
        here.task(name="fills")(may_end.wait).enqueue()
        await until(lambda: handle.status is TaskStatus.PENDING)
        async with there:
            await there.send(handle.task_id, "go", 1)
            await until(lambda: begun == [1, 2])
            await joins_not_before(may_end, here)
            assert handle.status is TaskStatus.COMPLETED


async def naps(manager: TaskManager) -> None:
    @manager.task(name="naps", persist=True, requeue_on_interrupt=True)
    async def nap() -> None:
        await sleep(0.05)

    nap.with_options(tags=TAGGED).enqueue()


async def waits(manager: TaskManager) -> None:
    @manager.task(name="waits", persist=True, requeue_on_interrupt=True)
    async def wait() -> None:
        began.set()
        await wait_for("go", int)

    handle, began = wait.with_options(tags=TAGGED).enqueue(), asyncio.Event()
    await began.wait()
    await until(lambda: handle.status is TaskStatus.PENDING)  # it waits in the file
    await manager.send(handle.task_id, "go", 1)


async def takes_turns(manager: TaskManager) -> None:
    @manager.task(name="turn", persist=True, queue_name="gpu")
    async def turn() -> None:
        await asyncio.sleep(0.01)

    for _ in range(3):
        turn.with_options(tags=TAGGED).enqueue()


@pytest.mark.parametrize("tags", [None, TAGGED], ids=["all", "tagged"])
@pytest.mark.parametrize("begin", [naps, waits, takes_turns])
async def test_join_returns_when_what_was_in_the_store_has_ended(
    tmp_path: Path, begin: Callable[[TaskManager], Awaitable[None]], tags: dict[str, str] | None
) -> None:
    """And not at the next poll: it hears of the claim."""
    gpu = QueueConfig("gpu", max_concurrency=1, scope="file")
    async with TaskManager(tmp_path / "tasks.db", store_poll=POLL_S, queues=[gpu]) as manager:
        await begin(manager)
        await manager.join(tags=tags)
        assert await unended(manager) == []


@pytest.mark.parametrize("tags", [None, TAGGED], ids=["all", "tagged"])
async def test_join_waits_for_what_an_earlier_run_left_beyond_memory(
    tmp_path: Path, tags: dict[str, str] | None
) -> None:
    """Also for tasks with tags that none of those in memory has."""
    path, options = tmp_path / "tasks.db", {"max_in_memory": 8, "store_poll": POLL_S}
    async with application(path, **options) as manager:
        await manager.pause("default")
        node = manager.get_task("node")
        for _ in range(300):
            node.enqueue("first")
        node.with_options(tags=TAGGED).enqueue("last")
    async with application(path, requeue_pending=True, **options) as manager:
        await manager.resume("default")
        await manager.join(tags=tags)
        left = await unended(manager)
        assert [each for each in left if each.tags == TAGGED or not tags] == []


async def test_join_forgets_what_was_cancelled_in_the_store(tmp_path: Path) -> None:
    """Nothing of it is kept for a join that may never come."""
    async with application(tmp_path / "tasks.db", store_poll=POLL_S) as manager:
        graph = Workflow("graph")
        graph.add(manager.get_task("node").with_options(delay=1_000), "word")
        await manager.start_workflow(graph)
        assert await manager.cancel_all(task_name="node") == 1
        assert engine_of(manager).follower._taken == {}
        await manager.join()


@pytest.mark.parametrize("tags", [{}, TAGGED])
async def test_join_waits_for_what_a_transaction_of_the_application_wrote(tmp_path: Path, tags: dict[str, str]) -> None:
    """The row is free, and nobody may have looked since the commit. What was rolled back is not waited for."""
    manager = application(tmp_path / "tasks.db", store_poll=POLL_S)
    node = manager.get_task("node").with_options(tags=TAGGED)
    async with manager:
        with closing(sqlite3.connect(tmp_path / "tasks.db")) as connection:
            with connection:
                task_id = manager.submit_in(connection, node, "kept")
                await asyncio.wait_for(manager.join(tags=tags), 10)  # of what is not committed yet it knows nothing
            await manager.join(tags=tags)
            assert (await manager.handle(task_id).info()).status is TaskStatus.COMPLETED
            manager.submit_in(connection, node, "rolled back")
            connection.rollback()
            await asyncio.wait_for(manager.join(tags=tags), 10)


async def test_join_waits_for_a_transaction_of_another_thread(tmp_path: Path) -> None:
    """Its commit comes before the join, and the loop has heard of the task by then."""
    manager = application(tmp_path / "tasks.db", store_poll=POLL_S)

    def submit() -> str:
        with closing(sqlite3.connect(tmp_path / "tasks.db")) as connection, connection:
            return manager.submit_in(connection, manager.get_task("node"), "kept")

    async with manager:
        task_id = await asyncio.to_thread(submit)
        await manager.join()
        assert (await manager.handle(task_id).info()).status is TaskStatus.COMPLETED


@pytest.mark.parametrize("options", [{}, {"run_queues": []}], ids=["runs", "only enqueues"])
async def test_join_keeps_an_open_transaction_in_mind_beside_others(tmp_path: Path, options: dict[str, Any]) -> None:
    """Beside others it forgets, look by look, what is not in the store; this row will be."""
    path = tmp_path / "tasks.db"
    async with application(path) as other, application(path, store_poll=0.05, **options) as manager:
        free_rows = engine_of(manager).free_rows
        with closing(sqlite3.connect(path)) as connection:
            await other.get_task("node").enqueue("news")
            with connection:
                task_id = manager.submit_in(connection, manager.get_task("node"), "kept")
                seen = free_rows.look_count
                await until(lambda: free_rows.look_count > seen + 2)
            await manager.join()
            assert (await manager.handle(task_id).info()).status is TaskStatus.COMPLETED


async def test_join_forgets_each_transaction_that_was_rolled_back(tmp_path: Path, monkeypatch: Any) -> None:
    """Also where another one always comes before the last one is given up."""
    monkeypatch.setattr(polling, "CLOSE_WATCH_S", 0.1)
    async with application(tmp_path / "tasks.db", store_poll=0.05) as manager:
        taken = engine_of(manager).follower._taken
        with closing(sqlite3.connect(tmp_path / "tasks.db")) as connection:

            def roll_back() -> str:
                task_id = manager.submit_in(connection, manager.get_task("node"), "rolled back")
                connection.rollback()
                return task_id

            first = roll_back()
            await until(lambda: roll_back() != first and first not in taken)
        await until(lambda: not taken)
