"""What listeners hear, and `join` waits for, if any one call of the store fails, before or after it took effect.

The application makes its calls again until the store answers. Rows that a call puts into the store, free, may run
before anybody knows that they are there.

Or one of its callers is cancelled, as a web request that takes too long, at any turn of the loop.
"""

import asyncio
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import pytest

from taskmanager import FailedTask, StoreUnavailable, TaskEvent, TaskManager, Workflow
from taskmanager.store.memory import MemoryStore
from taskmanager.testing import Fault, FaultyStore, World, isolated

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(60)]
WRITES: Final = ("commit", "claim", "start_workflow", "pause_workflow", "resume_workflow", "cancel_workflow")
READS: Final = ("fetch", "fetch_ids", "fetch_workflow", "fetch_cancel_requests", "free_queues")
RUNS: Final = "(started (retrying|requeued) )*(started )?(completed|failed|cancelled)"
FIRST: Final = re.compile(f"enqueued {RUNS}( enqueued {RUNS})*")
TOLD: Final = re.compile(f"(enqueued )?{RUNS}( enqueued {RUNS})*")
"""The first event may be lost with an answer."""


Answered = Callable[[World, Callable[[], Awaitable[object]]], Awaitable[None]]


class SlowStore(FaultyStore):
    """A store whose calls take some turns of the loop. They arrive, whatever becomes of their caller."""

    async def _call(self, *given: Any) -> Any:
        return await asyncio.shield(self._turn_by_turn(*given))

    async def _turn_by_turn(self, *given: Any) -> Any:
        for _ in range(3):
            await asyncio.sleep(0)
        answer = await super()._call(*given)
        for _ in range(3):
            await asyncio.sleep(0)
        return answer


async def again(world: World, call: Callable[[], Awaitable[object]]) -> None:
    """Make a call of the store again until it answers."""
    while True:
        try:
            await call()
        except StoreUnavailable:
            await world.advance(0.1)
        else:
            return


class CancelledOnce:
    """Cancels the nth call, after so many turns of the loop, and then makes it again."""

    def __init__(self, nth: int, turns: int) -> None:
        self.left, self.turns, self.was_in_time = nth, turns, False

    async def __call__(self, world: World, call: Callable[[], Awaitable[object]]) -> None:
        self.left -= 1
        if self.left == 0:
            calling = asyncio.ensure_future(call())
            for _ in range(self.turns):
                await asyncio.sleep(0)
            self.was_in_time = calling.cancel()
            await asyncio.wait([calling])
        await call()


async def the_story(world: World, answered: Answered) -> None:
    """A failure that enqueues another task, and is put back; a workflow that is paused; one that is cancelled."""
    manager, runs = world.manager, defaultdict[str, int](int)

    @manager.task(name="alert", persist=True)
    async def alert(failed: FailedTask) -> None:
        await asyncio.sleep(1)

    @manager.task(name="fails", persist=True, retries=1, retry_delay=2, on_failure=alert)
    async def fails() -> None:
        await asyncio.sleep(1)
        runs["fails"] += 1
        if runs["fails"] <= 2:
            raise ValueError("no")

    @manager.task(name="node", persist=True)
    async def node(name: str) -> str:
        await asyncio.sleep(3)
        return name

    failing = fails.enqueue()
    for name in ("paused", "cancelled"):
        graph = Workflow(name)
        graph.add(node, graph.add(node, name).value)
        graph.add(node.with_options(delay=20), name)
        await answered(world, partial(manager.start_workflow, graph, workflow_id=name))
    await world.advance(2)
    await answered(world, manager.workflow("paused").pause)
    await answered(world, manager.workflow("cancelled").cancel)
    await world.advance(10)
    await answered(world, manager.workflow("paused").resume)
    await failing.result()
    await answered(world, partial(manager.retry, failing.task_id))
    await world.drain()


async def told(store: FaultyStore, answered: Answered = again) -> dict[str, str]:
    """Return what is told of each task in the story. When `join` has returned, everything has ended."""
    manager, heard = TaskManager(), defaultdict[str, list[str]](list)

    @manager.on()
    async def hear(event: TaskEvent) -> None:
        heard[f"{event.task.task_name} {event.task.task_id}"].append(event.kind)

    async with isolated(manager, store=store.as_store()) as world:
        await the_story(world, answered)
        assert [each for each in await manager.list() if not each.status.is_terminal] == []
        await manager.flush()
        await world.idle()
    return {task: " ".join(kinds) for task, kinds in heard.items()}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("verb", [*WRITES, *READS])
async def test_events_of_each_task_come_once_and_in_order(verb: str, after: bool) -> None:
    """Whichever call of this verb fails."""
    faultless = FaultyStore(MemoryStore())
    assert all(FIRST.fullmatch(kinds) for kinds in (await told(faultless)).values())
    for nth in range(1, faultless.calls.count(verb) + 1):
        store = FaultyStore(MemoryStore(), [Fault.fail(nth, verb=verb, after=after)])
        for task, kinds in (await told(store)).items():
            assert TOLD.fullmatch(kinds), f"{verb} {nth}: {task}: {kinds}"


@pytest.mark.parametrize("nth", range(1, 7), ids=["start", "start", "pause", "cancel", "resume", "retry"])
async def test_cancelled_caller_loses_no_event(nth: int) -> None:
    """At whichever turn of the loop it is cancelled."""
    for turns in range(1, 100):
        answered = CancelledOnce(nth, turns)
        for task, kinds in (await told(SlowStore(MemoryStore()), answered)).items():
            assert FIRST.fullmatch(kinds), f"after {turns} turns: {task}: {kinds}"
        if not answered.was_in_time:
            return
    raise AssertionError("the call never ended")
