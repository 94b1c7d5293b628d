"""Which ends may wait for the next commit: that of a plain run that nobody asks for. All others are urgent."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from taskmanager import QueueConfig, TaskHandle, TaskManager, TaskStatus, current_task
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.model.record import Write
from taskmanager.store.protocol import CommitReport
from taskmanager.testing import FaultyStore, World, isolated
from tests.unit.engine_lives import new_live
from tests.unit.engine_worlds import SharedStore, engine_of, manager_of, turns_until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(20)]

INTERVAL_S = 5.0
"""Long beside everything that happens here without time passing, and shorter than what wakes up by itself."""


class Memory(SharedStore):
    """Keeps what was sent, commit by commit."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[list[tuple[str, str]]] = []

    async def commit(self, writes: Sequence[Write]) -> CommitReport:
        self.sent.append([(write.task_id, write.status) for write in writes])
        return await super().commit(writes)


@asynccontextmanager
async def lazy_world(manager: TaskManager) -> AsyncIterator[tuple[World, Memory]]:
    memory = Memory()
    async with isolated(manager, store=FaultyStore(memory).as_store()) as world:
        yield world, memory


def manager_with_gate(**options: Any) -> tuple[TaskManager, asyncio.Event, Callable[..., TaskHandle[None]]]:
    """A manager, and a persisted task that runs until the gate is open."""
    manager, gate = manager_of(commit_interval=INTERVAL_S, **options), asyncio.Event()

    @manager.task(name="gated", persist=True)
    async def gated() -> None:
        await gate.wait()

    return manager, gate, gated.enqueue


async def settled(world: World) -> None:
    """Run what can go on without time passing, as `world.idle` does. That would also commit what may wait."""
    assert world.virtual is not None
    await world.virtual.idle()


async def stored(memory: Memory, handle: TaskHandle[Any]) -> str:
    row = await memory.fetch(handle.task_id)
    assert row is not None
    return row.status


async def test_plain_end_waits_for_its_interval() -> None:
    """No commit is made for it before that, and it is known here meanwhile."""
    manager, gate, enqueue = manager_with_gate()
    async with lazy_world(manager) as (world, memory):
        handle = enqueue()
        await settled(world)
        gate.set()
        await settled(world)
        assert (handle.status, await stored(memory, handle)) == (TaskStatus.COMPLETED, "RUNNING")
        await world.advance(INTERVAL_S)
        assert await stored(memory, handle) == "COMPLETED"


async def test_plain_end_goes_first_in_the_next_commit() -> None:
    """No start is committed before the end that freed its slot, or the file would count one too many."""
    manager, gate, enqueue = manager_with_gate(concurrency=1)
    async with lazy_world(manager) as (world, memory):
        first = enqueue()
        await settled(world)
        second = enqueue()
        await settled(world)
        memory.sent.clear()
        gate.set()
        await settled(world)
        assert memory.sent[0] == [(first.task_id, "COMPLETED"), (second.task_id, "RUNNING")]


async def test_end_is_urgent_when_the_outcome_is_another() -> None:
    """A failure, a pause before a retry, a snooze and a cancellation are written at once."""
    manager = manager_of(commit_interval=INTERVAL_S)

    @manager.task(name="fails", persist=True, retries=0)
    async def fails() -> None:
        raise ValueError

    @manager.task(name="retried", persist=True, retries=1, retry_delay=60)
    async def retried() -> None:
        raise ValueError

    @manager.task(name="hangs", persist=True)
    async def hangs() -> None:
        await asyncio.Event().wait()

    async with lazy_world(manager) as (world, memory):
        failed, again, cancelled = fails.enqueue(), retried.enqueue(), hangs.enqueue()
        await settled(world)
        cancelled.cancel()
        await settled(world)
        assert await stored(memory, failed) == "FAILED"
        assert await stored(memory, again) == "PENDING"
        assert await stored(memory, cancelled) == "CANCELLED"


async def test_end_is_urgent_when_the_run_has_reported() -> None:
    """Its progress and its log are columns that a plain end does not write."""
    manager = manager_of(commit_interval=INTERVAL_S)

    @manager.task(name="reports", persist=True)
    async def reports() -> None:
        current_task().log("halfway")

    async with lazy_world(manager) as (world, memory):
        handle = reports.enqueue()
        await settled(world)
        assert await stored(memory, handle) == "COMPLETED"


async def test_end_is_urgent_when_somebody_waits_for_it() -> None:
    """Whoever awaits the handle gets the value after one commit, not after an interval."""
    manager, gate, enqueue = manager_with_gate()
    async with lazy_world(manager) as (world, memory):
        handle = enqueue()
        waiting = asyncio.ensure_future(handle.result())
        await settled(world)
        gate.set()
        await settled(world)
        assert waiting.done()
        assert await stored(memory, handle) == "COMPLETED"


async def of_the_handle(_world: World, handle: TaskHandle[None]) -> None:
    await handle


async def of_another_handle(world: World, handle: TaskHandle[None]) -> None:
    await world.manager.handle(handle.task_id)


async def of_a_join(world: World, _handle: TaskHandle[None]) -> None:
    await world.manager.join()


async def of_everything(world: World, _handle: TaskHandle[None]) -> None:
    await world.manager.flush()


async def of_the_stop(world: World, _handle: TaskHandle[None]) -> None:
    await world.manager.stop()


@pytest.mark.parametrize("wait", [of_the_handle, of_another_handle, of_a_join, of_everything, of_the_stop])
async def test_lazy_end_becomes_urgent_when_somebody_waits(
    wait: Callable[[World, TaskHandle[None]], Awaitable[None]],
) -> None:
    """Through a handle, join(), flush() or a stop."""
    manager, gate, enqueue = manager_with_gate()
    async with lazy_world(manager) as (world, memory):
        handle = enqueue()
        await settled(world)
        gate.set()
        await settled(world)
        assert await stored(memory, handle) == "RUNNING"
        before = world.now
        await wait(world, handle)
        assert world.now - before < timedelta(seconds=INTERVAL_S)
        assert await stored(memory, handle) == "COMPLETED"


async def test_lazy_end_becomes_urgent_when_its_key_is_awaited() -> None:
    """The second call means the same task."""
    manager = manager_of(commit_interval=INTERVAL_S)

    @manager.task(name="keyed", persist=True)
    async def keyed() -> int:
        return 7

    async with lazy_world(manager) as (world, memory):
        call = keyed.with_options(idempotency_key="one")
        handle = call.enqueue()
        await settled(world)
        assert await stored(memory, handle) == "RUNNING"
        before = world.now
        assert await call.enqueue() == 7
        assert world.now - before < timedelta(seconds=INTERVAL_S)


async def test_ends_are_urgent_while_somebody_joins() -> None:
    """Also that of a task that the join does not ask for: it may be the last one."""
    manager, gate, enqueue = manager_with_gate()
    other = asyncio.Event()

    @manager.task(name="other", persist=True)
    async def waits_for_other() -> None:
        await other.wait()

    async with lazy_world(manager) as (world, memory):
        handle = enqueue()
        waits_for_other.enqueue()
        joining = asyncio.ensure_future(manager.join())
        await settled(world)
        gate.set()
        await settled(world)
        assert not joining.done()
        assert await stored(memory, handle) == "COMPLETED"
        other.set()
        await joining


async def test_ends_are_urgent_while_somebody_waits_for_room() -> None:
    """An end that is not in the store counts against the limit."""
    manager, gate, enqueue = manager_with_gate(max_pending=100, queues=[QueueConfig("full", max_pending=1)])

    @manager.task(name="blocks", persist=True, queue_name="full")
    async def blocks() -> None:
        return None

    async with lazy_world(manager) as (world, memory):
        await manager.pause("full")
        blocks.enqueue()
        handle = enqueue()
        waiting = asyncio.ensure_future(manager.wait_for_room("full"))
        await settled(world)
        gate.set()
        await settled(world)
        assert not waiting.done()
        assert await stored(memory, handle) == "COMPLETED"
        waiting.cancel()


async def test_ends_are_urgent_while_memory_is_half_full() -> None:
    """Callers would meet `QueueFull` because of ends that only wait for company."""
    manager, gate, enqueue = manager_with_gate(max_pending=4)
    async with lazy_world(manager) as (world, memory):
        handles = [enqueue(), enqueue()]
        await settled(world)
        gate.set()
        await settled(world)
        assert await stored(memory, handles[0]) == "COMPLETED"
        assert engine_of(manager).inbox.unsaved_count() < 2


async def test_end_is_urgent_in_a_queue_with_a_limit_for_the_file() -> None:
    """Another instance waits for the place."""
    shared = QueueConfig("shared", max_concurrency=1, scope="file")
    manager = manager_of(commit_interval=INTERVAL_S, queues=[shared])

    @manager.task(name="limited", persist=True, queue_name="shared")
    async def limited() -> None:
        return None

    async with lazy_world(manager) as (world, memory):
        handle = limited.enqueue()
        await world.advance(0.5)  # a claim takes its place
        assert await stored(memory, handle) == "COMPLETED"


async def test_end_is_urgent_when_the_run_is_scheduled() -> None:
    """The next fire asks the file whether the last run has ended."""
    manager = manager_of(commit_interval=INTERVAL_S)

    @manager.schedule(every=60.0)
    async def tick() -> None:
        return None

    async with lazy_world(manager) as (world, memory):
        await world.advance(60.5)
        statuses = [status for batch in memory.sent for _, status in batch]
        assert statuses == ["COMPLETED"], "the claim has started it"


def of_a_suspect(live: LiveTask) -> None:
    live.crash_count = 1


def with_a_caller_of_saved(live: LiveTask) -> None:
    live.save_waiters_list().append(asyncio.get_running_loop().create_future())


def with_a_successor(live: LiveTask) -> None:
    live.successor = new_live()


@pytest.mark.parametrize("mark", [of_a_suspect, with_a_caller_of_saved, with_a_successor])
async def test_end_is_urgent_when_its_task_is(mark: Callable[[LiveTask], None]) -> None:
    """While a suspect has not ended in the file, whoever recovers its owner counts one crash more. The others wait."""
    manager, gate, enqueue = manager_with_gate()
    async with lazy_world(manager) as (world, memory):
        handle = enqueue()
        await settled(world)
        live = engine_of(manager).live[handle.task_id]
        mark(live)
        gate.set()
        await turns_until(lambda: memory.sent[-1] == [(handle.task_id, "COMPLETED")])
        live.successor = None


async def test_ends_are_urgent_while_a_stop_drains() -> None:
    """Whatever cuts the drain short finds in the file what has ended in it."""
    manager, gate, enqueue = manager_with_gate()
    never = asyncio.Event()

    @manager.task(name="hangs", persist=True)
    async def hangs() -> None:
        await never.wait()

    async with lazy_world(manager) as (world, memory):
        handle = enqueue()
        hangs.enqueue()
        await settled(world)
        stopping = asyncio.ensure_future(manager.stop())
        await turns_until(lambda: engine_of(manager).life.is_stopping)
        gate.set()
        await turns_until(lambda: memory.sent[-1] == [(handle.task_id, "COMPLETED")])
        assert not stopping.done()
        never.set()
        await stopping
