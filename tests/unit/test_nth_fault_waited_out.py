"""An application that waits a fault of its store out: everything completes, and nothing runs twice.

The fault is at the first store call, the second, the third, until a run has none. Time is virtual, so that retries and
delays are waited for. What holds when the application gives up instead stands in `test_nth_fault_given_up.py`.
"""

import asyncio
from typing import Any

import pytest

from taskmanager import StoreUnavailable, TaskManager, current_task
from taskmanager.store.memory import MemoryStore
from taskmanager.testing import Fault, FaultyStore, World, isolated

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

MAX_CALLS = 300


async def the_story(world: World, starts: list[tuple[str, int]]) -> list[Any]:
    """Success, retry, an interrupted task that may run again, a key, a delay over a restart."""
    manager = world.manager

    @manager.task(name="once", persist=True, retries=1)
    async def once(n: int) -> int:
        starts.append(("once", n))
        await asyncio.sleep(1)
        if n == 1 and starts.count(("once", 1)) == 1:
            raise ValueError("the first time")
        return n

    @manager.task(name="again", persist=True, requeue_on_interrupt=True)
    async def again(n: int) -> int:
        starts.append(("again", n))
        await asyncio.sleep(30 if current_task().attempt == 1 else 1)
        return n

    handles = [
        once.enqueue(0),
        once.enqueue(1),
        again.enqueue(0),
        once.with_options(idempotency_key="k").enqueue(2),
        once.with_options(delay=12).enqueue(3),
    ]
    await world.advance(3)
    try:
        await world.restart()
    except StoreUnavailable:
        await world.start()
    await world.drain()
    return handles


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_failure_at_any_call_loses_nothing_and_runs_nothing_twice(after: bool) -> None:
    """Before the call took effect, or after it, when its fate is unknown to the engine."""
    for nth in range(2, MAX_CALLS):  # the first call opens the store, and its failure is the start's
        inner = MemoryStore()
        store = FaultyStore(inner, [Fault.fail(nth, after=after)])
        starts: list[tuple[str, int]] = []
        async with isolated(TaskManager(None), store=store.as_store()) as world:
            handles = await the_story(world, starts)
            await world.manager.flush()
            is_spent = store.is_spent
            store.plan.clear()  # a fault that waits for the end of the world would be the end's
        where = f"call {nth}: {store.calls[nth - 1] if is_spent else 'none'}"
        rows = [await inner.fetch(handle.task_id) for handle in handles]
        assert [None if row is None else row.status for row in rows] == ["COMPLETED"] * 5, where
        counts = [starts.count(("once", n)) for n in range(4)]
        assert counts == [1, 2, 1, 1], where
        assert starts.count(("again", 0)) == 2, where
        if not is_spent:
            return
    pytest.fail(f"the story takes more than {MAX_CALLS} calls")
