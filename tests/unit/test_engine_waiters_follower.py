"""The follower: it tells the ends of tasks that other instances run, by their rows."""

import asyncio
from typing import Any

import pytest

from taskmanager.engine.words import waiters
from taskmanager.engine.words.live_task import Ending
from taskmanager.engine.words.waiters import Follower
from taskmanager.model.errors import StoreUnavailable, UnknownTask
from taskmanager.model.record import TaskRow, TaskWrite, expected_of
from taskmanager.model.result import TaskError, TaskResult
from taskmanager.model.states import BuiltInTaskCode, TaskStatus
from taskmanager.store.memory import MemoryStore
from taskmanager.store.protocol import TaskFilter
from taskmanager.testing import Fault, FaultyStore
from tests.unit.engine_lives import new_live

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(20)]


class World:
    """A store with tasks of somebody else, and a follower."""

    def __init__(self, *plan: Fault) -> None:
        self.memory = MemoryStore()
        self.store = FaultyStore(self.memory, plan)
        self.follower = Follower(
            asyncio.get_running_loop(), self.store.as_store(), lambda row: TaskResult(ok=row.result)
        )

    async def put(self, task_id: str) -> TaskRow:
        row = new_live(task_id=task_id).row()
        await self.memory.commit([TaskWrite(row, None)])
        return row

    async def move(self, task_id: str, status: TaskStatus, **changes: Any) -> None:
        row = await self.memory.fetch(task_id)
        assert row is not None
        await self.memory.commit([TaskWrite(row._replace(status=status.value, **changes), expected_of(row))])

    async def complete(self, task_id: str) -> None:
        await self.move(task_id, TaskStatus.COMPLETED, completed_at=9, result="five")

    async def watch(self, task_id: str) -> "asyncio.Task[Ending]":
        """Somebody who waits, and whose first look is over."""
        watching = asyncio.create_task(self.follower.watch(task_id))
        for _ in range(5):
            await asyncio.sleep(0)
        return watching


DONE = Ending(TaskStatus.COMPLETED, TaskResult(ok="five"))


async def test_a_task_that_has_ended_already_is_answered_by_one_look() -> None:
    """Nothing is kept of it."""
    world = World()
    await world.put("a")
    await world.complete("a")
    assert await world.follower.watch("a") == DONE
    assert len(world.follower) == 0
    assert world.store.calls == ["fetch_ids"]


async def test_a_task_that_does_not_exist_is_unknown() -> None:
    """Now, or at a later look, when it was purged meanwhile."""
    world = World()
    with pytest.raises(UnknownTask, match="purged, or never accepted"):
        await world.follower.watch("nobody")
    await world.put("a")
    watching = await world.watch("a")
    await world.complete("a")
    await world.memory.purge(TaskFilter(), None, 10)
    await world.follower.look_at_all()
    with pytest.raises(UnknownTask):
        await watching
    assert len(world.follower) == 0


@pytest.mark.req("DS-107")
@pytest.mark.parametrize("status", [status for status in TaskStatus if status.is_terminal])
async def test_everybody_who_waits_wakes_on_every_end(status: TaskStatus) -> None:
    """And on nothing before it; meanwhile the last status is known."""
    world = World()
    await world.put("a")
    watching = [await world.watch("a") for _ in range(3)]
    assert world.follower.last_status == {"a": TaskStatus.PENDING}
    await world.move("a", TaskStatus.RUNNING, started_at=3, start_count=1)
    await world.follower.look_at_all()
    assert world.follower.last_status == {"a": TaskStatus.RUNNING}
    assert not any(each.done() for each in watching)
    await world.move("a", status, completed_at=9 if status is TaskStatus.COMPLETED else None)
    await world.follower.look_at_all()
    assert [(await each).status for each in watching] == [status] * 3
    assert world.follower.last_status == {"a": TaskStatus(status)}


async def test_follower_keeps_other_waiters_when_one_is_cancelled() -> None:
    """The last one who leaves takes the task out of the looks."""
    world = World()
    await world.put("a")
    first, second = [await world.watch("a") for _ in range(2)]
    first.cancel()
    await asyncio.wait([first])
    assert len(world.follower) == 1
    second.cancel()
    await asyncio.wait([second])
    assert len(world.follower) == 0
    assert world.follower.last_status == {"a": TaskStatus.PENDING}
    await world.follower.look_at_all()
    assert world.store.calls == ["fetch_ids", "fetch_ids"]


async def test_many_are_looked_at_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """No look is bounded by how many wait."""
    monkeypatch.setattr(waiters, "PAGE", 2)
    world = World()
    names = [f"t{number}" for number in range(5)]
    for name in names:
        await world.put(name)
    watching = [await world.watch(name) for name in names]
    for name in names:
        await world.complete(name)
    world.store.calls.clear()
    await world.follower.look_at_all()
    assert await asyncio.gather(*watching) == [DONE] * 5
    assert world.store.calls == ["fetch_ids"] * 3


async def test_follower_needs_a_look_after_one_that_failed() -> None:
    """Like every other wait, this one lasts until the store is back; how long to wait is the caller's to say."""
    world = World(Fault.fail(2, times=2))
    await world.put("a")
    watching = [await world.watch("a"), await world.watch("a")]
    assert world.follower.needs_look
    await world.complete("a")
    with pytest.raises(StoreUnavailable):
        await world.follower.look_at_all()
    assert world.follower.needs_look
    await world.follower.look_at_all()
    assert await asyncio.gather(*watching) == [DONE] * 2
    assert not world.follower.needs_look


async def test_an_end_that_happens_here_needs_no_look() -> None:
    """The task came to this instance while somebody followed it."""
    world = World()
    await world.put("a")
    watching = await world.watch("a")
    world.follower.notice("a", DONE)
    world.follower.notice("nobody", DONE)
    assert await watching == DONE
    assert world.store.calls == ["fetch_ids"]


async def test_a_stop_answers_everybody() -> None:
    """Nobody will read the store for them any more."""
    world = World()
    watching = []
    for name in "ab":
        await world.put(name)
        watching.append(await world.watch(name))
    goes_on = Ending(TaskStatus.PENDING, TaskResult(err=TaskError(BuiltInTaskCode.MANAGER_STOPPED)), requeued=True)
    world.follower.end_all(goes_on)
    assert await asyncio.gather(*watching) == [goes_on] * 2
    assert repr(world.follower) == "<Follower of 0 tasks>"


async def test_follower_tells_late_waiters_the_ending_of_the_stop() -> None:
    """In the last turns of a stop nobody reads the store any more, and a late waiter would wait for ever."""
    world = World()
    await world.put("a")
    world.follower.end_all(DONE)
    assert await world.follower.watch("a") == DONE
    assert world.store.calls == []


async def test_tell_end_tells_waiters_and_followers_alike() -> None:
    """A task may be awaited by a handle of this process, and be followed since a time when it was another's."""
    world = World()
    await world.put("a")
    live = new_live(task_id="a")
    watching, waiting = await world.watch("a"), asyncio.create_task(waiters.wait_in(live.waiters_list()))
    await asyncio.sleep(0)
    live.succeed("five", 9)
    world.follower.tell_end(live)
    assert await asyncio.gather(watching, waiting) == [DONE] * 2
    assert live.waiters is None
    assert world.follower.last_status == {"a": TaskStatus.COMPLETED}


async def test_tell_end_makes_no_ending_that_nobody_waits_for() -> None:
    """Most tasks are awaited by nobody, and their result is never looked at again."""
    world, live = World(), new_live()
    live.succeed("five", 9)
    world.follower.tell_end(live)
    assert live._ending is None
    assert world.follower.last_status == {}


async def test_resolve_reaches_other_loops_and_skips_closed_ones() -> None:
    """A handle may be awaited in the loop of another thread, and that loop may be gone when the task ends."""
    other, gone = asyncio.new_event_loop(), asyncio.new_event_loop()
    futures: list[asyncio.Future[Any]] = [loop.create_future() for loop in (other, gone)]
    gone.close()
    waiters.resolve(futures, StoreUnavailable("stopped"))
    assert [future.done() for future in futures] == [False, False]
    with pytest.raises(StoreUnavailable, match="stopped"):
        await asyncio.to_thread(other.run_until_complete, futures[0])
    other.close()


async def test_look_that_was_asked_for_during_a_look_is_made() -> None:
    """Somebody who could not look begins to wait while all others are looked at, and is not among them."""
    world = World()
    await world.put("a")
    watching = await world.watch("a")
    looking = asyncio.create_task(world.follower.look_at_all())
    await asyncio.sleep(0)
    world.follower.needs_look = True
    await looking
    assert world.follower.needs_look
    await world.follower.look_at_all()
    assert not world.follower.needs_look
    watching.cancel()
