"""The inbox: what is handed over is accepted once, one helping in a turn, however fast others fill it."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from taskmanager import ManagerStopped, QueueFull, TaskCancelled, TaskInterrupted, TaskManager, TaskStatus
from taskmanager.engine.engine import Engine
from taskmanager.engine.intake.inbox import HELPING
from taskmanager.engine.life import Life
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.store.protocol import TaskFilter
from tests.unit.engine_worlds import assert_counters, engine_of, happens, manager_of, persisted, turns_until, world_of

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

MANY = 3 * HELPING + 7


class Refill:
    """Makes one call more for every task that is accepted: the inbox never gets empty while this is on."""

    def __init__(self) -> None:
        self.call: Callable[[], object] | None = None
        self.count = 0

    def accepted(self) -> None:
        if self.call is not None:
            self.count += 1
            with suppress(ManagerStopped):
                self.call()


@pytest.fixture
def refill(monkeypatch: pytest.MonkeyPatch) -> Iterator[Refill]:
    made, accept = Refill(), Life.accept

    def accept_and_refill(life: Life, live: LiveTask) -> None:
        accept(life, live)
        made.accepted()

    monkeypatch.setattr(Life, "accept", accept_and_refill)
    yield made
    made.call = None


def running_engine(manager: TaskManager) -> Engine:
    """As it is, with what is in its inbox."""
    lifecycle = manager._lifecycle
    assert lifecycle is not None
    return lifecycle.engine


# Once.


@pytest.mark.parametrize("is_keyed", [False, True])
async def test_inbox_hands_over_once_what_comes_in_each_turn_of_a_stop(is_keyed: bool) -> None:
    """What the stop has accepted, a turn that was due does not accept again: what was called saved is in the file."""
    manager = manager_of()
    work = persisted(manager)
    saved: set[str] = set()
    handles: list[Any] = []
    watchers: list[asyncio.Task[None]] = []

    async def watch(handle: Any) -> None:
        await handle.saved()
        saved.add(handle.task_id)

    async def enqueue_in_every_turn() -> None:
        with suppress(ManagerStopped):
            while True:
                call = work.with_options(idempotency_key=str(len(handles))) if is_keyed else work
                handles.append(call.enqueue("a"))
                watchers.append(asyncio.create_task(watch(handles[-1])))
                await asyncio.sleep(0)

    async with world_of(manager) as (_, store):
        await manager.pause("default")  # virtual time stands still while the loop is busy, and a stop waits for starts
        enqueueing = asyncio.create_task(enqueue_in_every_turn())
        await asyncio.sleep(0)
        engine = running_engine(manager)
        await manager.stop()
        await enqueueing
        await asyncio.gather(*watchers)
        assert len(handles) > 5
        for handle in handles:
            assert await store.fetch(handle.task_id) is not None
            with pytest.raises(TaskInterrupted):
                await handle
        assert saved == {handle.task_id for handle in handles}
        assert engine.live == {}
        assert_counters(engine)


async def test_inbox_accepts_nothing_twice() -> None:
    """A cancel takes its task out of turn, and the turn that comes to it does nothing."""
    manager = manager_of(concurrency=1)
    work = persisted(manager)
    async with world_of(manager):
        handles = [work.enqueue("a") for _ in range(MANY)]
        last = manager.handle(handles[-1].task_id)
        assert last.status is TaskStatus.PENDING
        assert last.cancel()
        assert handles[-2].cancel()
        engine = engine_of(manager)
        assert_counters(engine)
        for handle in handles[-2:]:
            with pytest.raises(TaskCancelled):
                await handle
        for live in list(engine.live.values()):
            engine.life.accept(live)
        assert_counters(engine)
        await manager.join()
        assert_counters(engine)


async def test_inbox_key_of_a_stopped_manager_is_refused() -> None:
    """Also one that came in last, after the door had closed: its handle would never end."""
    manager = manager_of()
    work = persisted(manager).with_options(idempotency_key="k")
    async with world_of(manager) as (world, _):
        work.enqueue("a")
        await manager.stop()
        with pytest.raises(ManagerStopped):
            work.enqueue("a")
        await world.start()
        assert await work.enqueue("a") == "a"


# One helping.


async def test_inbox_turn_takes_one_helping() -> None:
    """The rest of the application has its turn in between, however much has come."""
    manager = manager_of(concurrency=1)
    work = persisted(manager)
    async with world_of(manager):
        inbox = running_engine(manager).inbox
        for _ in range(MANY):
            work.enqueue("a")
        left = [MANY]
        while inbox:
            await asyncio.sleep(0)
            left.append(len(inbox))
        taken = [before - after for before, after in pairwise(left)]
        assert max(taken) == HELPING
        assert sum(taken) == MANY


async def test_inbox_turn_ends_after_some_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where accepting is slow."""
    manager = manager_of(concurrency=1)
    work = persisted(manager)
    async with world_of(manager):
        inbox, ticks = running_engine(manager).inbox, iter(range(1_000_000))
        for _ in range(HELPING):
            work.enqueue("a")
        monkeypatch.setattr(inbox._loop, "time", lambda: next(ticks) * 0.002)
        inbox.look()
        monkeypatch.undo()
        assert HELPING / 2 < len(inbox) < HELPING
        await manager.join()


@pytest.mark.parametrize("verb", ["flush", "get", "list", "counts", "cancel", "retry", "stop"])
async def test_inbox_that_is_filled_for_ever_keeps_nobody_waiting(verb: str, refill: Refill) -> None:
    """Whoever looks at memory waits for what came before its call, and no longer."""
    manager = manager_of()
    work = persisted(manager)
    async with world_of(manager):
        if verb == "stop":
            await manager.pause("default")  # as above
        first = [work.enqueue("first") for _ in range(MANY)][-1]
        refill.call = lambda: work.enqueue("later")
        verbs: dict[str, Callable[[], Any]] = {
            "flush": manager.flush,
            "get": lambda: manager.get(first.task_id),
            "list": lambda: manager.list(limit=1),
            "counts": manager.counts,
            "cancel": lambda: manager.cancel(first.task_id),
            "retry": lambda: manager.retry(first.task_id),
            "stop": manager.stop,
        }
        await verbs[verb]()
        assert refill.count < 20 * MANY
        refill.call = None


async def test_inbox_readers_see_all_that_was_enqueued_before() -> None:
    """More than one helping, and no turn in between."""
    manager = manager_of(concurrency=1)
    work = persisted(manager)
    async with world_of(manager):
        ids = [work.enqueue("a").task_id for _ in range(MANY)]
        info = await manager.get(ids[-1])
        assert info is not None
        ids += [work.enqueue("a").task_id for _ in range(MANY)]
        assert sum((await manager.counts()).values()) == len(ids)
        ids += [work.enqueue("a").task_id for _ in range(MANY)]
        assert {each.task_id for each in await manager.list(limit=10 * MANY)} == set(ids)
        ids += [work.enqueue("a").task_id for _ in range(MANY)]
        assert manager.status().waiting_count >= MANY
        await manager.join()
        assert (await manager.counts())[TaskStatus.COMPLETED] == len(ids)


async def test_inbox_at_a_stop_counts_every_memory_only_task(caplog: pytest.LogCaptureFixture) -> None:
    """One line says how many were lost: those that had not been accepted yet are among them."""
    manager = manager_of(concurrency=1)

    @manager.task
    async def light() -> None:
        raise AssertionError("nothing starts any more")

    async with world_of(manager):
        await manager.pause("default")
        handles = [light.enqueue() for _ in range(MANY)]
        await manager.stop()
        for handle in handles:
            with pytest.raises(TaskCancelled):
                await handle
    lines = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert lines == [f"{MANY:,} memory-only tasks waiting at the stop, recorded as cancelled"]


async def test_inbox_door_that_is_closed_stays_closed() -> None:
    """A stop that somebody cancels begins again, at a time when the door may be closed for all."""
    manager = manager_of()
    work = persisted(manager)
    async with world_of(manager):
        await manager.stop()
        manager._intake.drain()
        with pytest.raises(ManagerStopped):
            work.enqueue("a")


async def test_inbox_has_its_limit_during_a_stop_too() -> None:
    """It counts what is not written yet: what only waits makes no room before the next start, and is no hindrance."""
    manager = manager_of(concurrency=1, max_pending=5)
    work, gate = persisted(manager), asyncio.Event()

    @manager.task
    async def holds_the_drain() -> None:
        await gate.wait()
        for _ in range(2):
            for _ in range(5):
                work.enqueue("late")
            with pytest.raises(QueueFull):
                work.enqueue("one too many")
            await manager.wait_for_room()

    async with world_of(manager) as (_, store):
        handle = holds_the_drain.enqueue()
        await turns_until(lambda: handle.status is TaskStatus.RUNNING)
        for _ in range(5):
            await work.enqueue("early").saved()
        stopping = asyncio.create_task(manager.stop())
        await asyncio.sleep(0)
        gate.set()
        await handle
        await stopping
        assert len(await store.fetch_many(TaskFilter(TaskStatus.PENDING))) == 15


async def test_inbox_takes_what_was_held_for_the_start_first() -> None:
    """It comes before what is enqueued after the start, in its order."""
    manager, log = manager_of(concurrency=1), list[Any]()
    work = persisted(manager, log)
    async with world_of(manager) as (world, _):
        await manager.stop()
        manager._intake.reopen_for_start(manager._settings)
        for number in range(MANY):
            work.enqueue(str(number))
        await world.start()
        work.enqueue("last")
        await manager.join()
        assert log == [*map(str, range(MANY)), "last"]


@pytest.mark.parametrize("is_due", [False, True])
@pytest.mark.parametrize("key", [None, "k"])
def test_inbox_of_a_closed_loop_refuses_calls(tmp_path: Path, is_due: bool, key: str | None) -> None:
    """Also when a turn was due at that moment, and when the key is held by a task that nobody will run."""
    manager = TaskManager(tmp_path / "tasks.db")
    work = persisted(manager).with_options(idempotency_key=key)

    async def main() -> None:
        await manager.start()
        await asyncio.sleep(0.01)
        if is_due:
            work.enqueue("a")

    asyncio.run(main())
    for _ in range(3):
        with pytest.raises(ManagerStopped, match="loop that the manager was started in is closed"):
            work.enqueue("a")
    asyncio.run(manager.stop())


async def test_inbox_that_threads_fill_leaves_the_loop_its_turns() -> None:
    """Real threads and a real clock: the loop goes on, and a stop writes all that was accepted."""
    manager = TaskManager(None)
    work = manager.task(name="work")(_nothing)
    accepted, is_over, turns = [0] * 4, threading.Event(), 0

    def fill(number: int) -> None:
        with suppress(ManagerStopped):
            while not is_over.is_set():
                work.enqueue()
                accepted[number] += 1

    async with manager:
        threads = [threading.Thread(target=fill, args=(number,)) for number in range(len(accepted))]
        for each in threads:
            each.start()
        while sum(accepted) < 20_000 or turns <= 5:
            await asyncio.sleep(0)
            turns += 1
        are_filling = all(each.is_alive() for each in threads)  # else it was full before the loop had its turns
        is_over.set()
        await happens(lambda: not any(each.is_alive() for each in threads))
        await manager.join()
        assert (await manager.counts())[TaskStatus.COMPLETED] > 0
    assert are_filling


async def _nothing() -> None:
    """A task that ends at once."""
