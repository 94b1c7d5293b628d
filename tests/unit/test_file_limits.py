"""Queues with `scope="file"`: one limit for every instance, whatever happens to the tasks that have a place."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from taskmanager import ConfigurationError, QueueConfig, Snooze, TaskFailed, TaskHandle, TaskManager, TaskStatus
from taskmanager.model.record import TaskRow, Write
from taskmanager.store.memory import MemoryStore
from taskmanager.store.protocol import CommitReport
from taskmanager.testing import isolated
from taskmanager.testing.faulty import Fault, FaultyStore
from tests.unit.engine_worlds import OpenStore

pytestmark = pytest.mark.anyio


class Meter:
    """How many run at once, and in which order they started."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.order: list[Any] = []

    async def work(self, label: Any, seconds: float = 0.0) -> Any:
        self.running += 1
        self.most = max(self.most, self.running)
        self.order.append(label)
        await asyncio.sleep(seconds)
        self.running -= 1
        return label


def gpu(db: Path | None, meter: Meter, limit: int = 2, **options: Any) -> tuple[TaskManager, Any]:
    """A manager with the queue `gpu`, and its task `work`."""
    manager = TaskManager(db, queues=[QueueConfig("gpu", max_concurrency=limit, scope="file")], **options)
    task = manager.task(name="work", persist=True, queue_name="gpu", requeue_on_interrupt=True)(meter.work)
    return manager, task


def test_a_memory_only_task_is_refused_at_the_call() -> None:
    """What counts rows cannot count what has none; the words say what to change."""
    manager = TaskManager("never-opened.db", queues=[QueueConfig("gpu", max_concurrency=1, scope="file")])
    task = manager.task(name="work", persist=False)(Meter().work)
    with pytest.raises(ConfigurationError, match=r"work is memory-only: give it persist=True"):
        task.with_options(queue_name="gpu").enqueue(1)


async def test_the_limit_holds_within_one_instance_and_the_best_goes_first() -> None:
    """Alone too it is a limit; what waits stands in the file, by priority and age."""
    meter = Meter()
    manager, task = gpu(Path("never-opened.db"), meter)
    async with isolated(manager):
        handles = [task.with_options(priority=50 - number % 3).enqueue(number, 1) for number in range(9)]
        assert [await each for each in handles] == list(range(9))
    assert meter.most == 2
    assert meter.order == [2, 5, 8, 1, 4, 7, 0, 3, 6]


async def test_a_file_limit_holds_for_delays_keys_snoozes_and_retries() -> None:
    """Whatever lets a task wait again gives its place back; keyed and delayed ones get one when they are due."""
    manager, meter = (
        TaskManager("never-opened.db", queues=[QueueConfig("gpu", max_concurrency=1, scope="file")]),
        Meter(),
    )
    attempts: dict[str, int] = {}

    @manager.task(persist=True, queue_name="gpu", retries=2, retry_delay=5)
    async def moody(label: str) -> str | Snooze:
        attempts[label] = attempts.get(label, 0) + 1
        await meter.work(label, 1)
        if label == "fails":
            raise ValueError(label)
        return Snooze(10) if label == "snoozes" and attempts[label] == 1 else label

    async with isolated(manager):
        late = moody.with_options(delay=30).enqueue("late")
        snoozes, fails = moody.enqueue("snoozes"), moody.enqueue("fails")
        keyed = moody.with_options(idempotency_key="k").enqueue("keyed")
        assert await keyed == "keyed"
        assert moody.with_options(idempotency_key="k").enqueue("keyed").task_id == keyed.task_id
        assert await asyncio.gather(snoozes, late) == ["snoozes", "late"]
        with pytest.raises(TaskFailed):
            await fails
    assert attempts == {"late": 1, "snoozes": 2, "fails": 3, "keyed": 1}
    assert meter.most == 1


async def test_a_running_task_lends_nothing_and_a_lent_place_returns_when_free() -> None:
    """Else an instance would claim rows that it cannot start, and others could; or run more than the file has granted.

    It is so after others have come and gone as well.
    """
    meter, store = Meter(), MemoryStore()
    manager, task = gpu(Path("never-opened.db"), meter, limit=1)

    @manager.task(persist=True, queue_name="gpu")
    async def impatient() -> None:
        child = task.enqueue("child", 5)
        with contextlib.suppress(TimeoutError):
            await child.result(timeout=1)
        await meter.work("parent", 1)

    async with isolated(manager, store=store):
        assert [await task.enqueue(number) for number in range(3)] == [0, 1, 2]
        await impatient.enqueue()
        await manager.join()
        assert meter.order == [0, 1, 2, "child", "parent"]
        first, second = task.enqueue("a", 10), task.enqueue("b", 10)
        with pytest.raises(TimeoutError):
            await first.result(timeout=5)
        waiting = await store.fetch(second.task_id)
        assert waiting is not None
        assert (waiting.status, waiting.claimed_by_worker_id) == ("PENDING", None)
    assert meter.most == 1


async def test_parents_that_wait_for_children_in_the_same_queue_do_not_block_it() -> None:
    """A parent lends its place to its own instance, and has it back before it goes on."""
    manager, meter = (
        TaskManager("never-opened.db", queues=[QueueConfig("gpu", max_concurrency=1, scope="file")]),
        Meter(),
    )

    @manager.task(persist=True, queue_name="gpu")
    async def parent(depth: int) -> int:
        await meter.work(depth)
        below = await parent.enqueue(depth - 1) if depth else 0
        await meter.work(depth)
        return below + 1

    async with isolated(manager):
        assert await asyncio.wait_for(parent.enqueue(3), 60) == 4
        assert await asyncio.gather(*(parent.enqueue(1) for _ in range(3))) == [2, 2, 2]
    assert meter.most == 1


@pytest.mark.parametrize("nth", range(1, 13))
async def test_a_claim_whose_answer_is_lost_grants_nothing_twice(nth: int) -> None:
    """It is not known which of its rows use a lent place, so none is taken for a place of its own."""
    manager = TaskManager("never-opened.db", queues=[QueueConfig("gpu", max_concurrency=1, scope="file")])
    meter, store = Meter(), FaultyStore(MemoryStore(), [Fault.fail(nth, verb="claim", after=True)])

    @manager.task(persist=True, queue_name="gpu", requeue_on_interrupt=True)
    async def parent(depth: int) -> int:
        await meter.work(depth, 1.0)
        below = await parent.enqueue(depth - 1) if depth else 0
        await meter.work(depth, 1.0)
        return below + 1

    async with isolated(manager, store=store.as_store()):
        parents = [parent.enqueue(depth) for depth in (3, 1, 1, 1)]
        assert await asyncio.wait_for(asyncio.gather(*parents), 300) == [4, 2, 2, 2]
    assert store.is_spent
    assert meter.most == 1


class Ledger(OpenStore):
    """Notes rows that wait in the memory of an instance without a place in the file."""

    def __init__(self) -> None:
        super().__init__()
        self.unplaced: list[TaskRow] = []

    async def commit(self, writes: Sequence[Write]) -> CommitReport:
        report = await super().commit(writes)
        self.unplaced += [row for row in self.live.values() if row.status == "PENDING" and row.claimed_by_worker_id]
        return report


@pytest.mark.parametrize("after", [False, True])
async def test_a_start_that_is_taken_back_waits_for_a_place_again(*, after: bool) -> None:
    """What may not run while the store is away is free: were its row owned and waiting, another would get its place."""
    manager = TaskManager("never-opened.db", queues=[QueueConfig("gpu", max_concurrency=1, scope="file")])
    meter, ledger = Meter(), Ledger()
    store = FaultyStore(ledger, [Fault.fail(2, verb="commit", after=after)])
    task = manager.task(name="once", persist=True, queue_name="gpu")(meter.work)
    async with isolated(manager, store=store.as_store()):
        handles = [task.enqueue(number, 2) for number in range(3)]
        assert await asyncio.wait_for(asyncio.gather(*handles), 60) == [0, 1, 2]
    assert store.is_spent
    assert ledger.unplaced == []
    assert meter.most == 1


async def test_code_that_goes_on_past_its_timeout_keeps_its_place() -> None:
    """The file knows that the task has ended, not that its code still executes; its instance holds the place for it."""
    meter = Meter()
    manager = TaskManager("never-opened.db", queues=[QueueConfig("gpu", max_concurrency=1, scope="file")])

    @manager.task(persist=True, queue_name="gpu", timeout=1)
    async def stubborn(seconds: float) -> None:
        work = asyncio.ensure_future(meter.work(seconds, seconds))
        while not work.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(work)

    async with isolated(manager) as world:
        first, second = stubborn.enqueue(60), stubborn.enqueue(0)
        assert (await first.result()).err_value.error_code == "TASK_TIMEOUT"
        await world.advance(20)
        assert meter.order == [60]
        assert (await second.result()).is_ok()
    assert meter.most == 1


async def test_code_of_another_queue_that_goes_on_past_its_timeout_takes_no_place() -> None:
    """It would keep the queue empty for as long as it hangs, and nobody would look again when it ends."""
    meter = Meter()
    manager, task = gpu(Path("never-opened.db"), meter, limit=1)

    @manager.task(persist=True, timeout=1)
    async def stubborn() -> None:
        work = asyncio.ensure_future(asyncio.sleep(3600))
        while not work.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(work)

    async with isolated(manager) as world:
        assert (await stubborn.enqueue().result()).err_value.error_code == "TASK_TIMEOUT"
        handles = [task.enqueue(number) for number in range(3)]
        await world.advance(20)
        assert meter.order == [0, 1, 2]
        assert [await handle for handle in handles] == [0, 1, 2]
    assert meter.most == 1


async def test_a_pause_takes_no_places_and_a_resume_fills_them() -> None:
    """What is claimed and cannot start would take a place from somebody who can."""
    meter = Meter()
    manager, task = gpu(Path("never-opened.db"), meter)
    async with isolated(manager) as world:
        await manager.pause("gpu")
        handles = [task.enqueue(number) for number in range(4)]
        await world.advance(5)
        assert (await manager.counts())[TaskStatus.PENDING] == 4
        await manager.resume("gpu")
        assert [await each for each in handles] == [0, 1, 2, 3]


async def test_a_lane_that_is_full_takes_no_places() -> None:
    """A place goes to whoever can use it now; when the lane has room again, it is asked for at once."""
    meter = Meter()
    manager, task = gpu(Path("never-opened.db"), meter, limit=5, concurrency=2)
    other = manager.task(name="other", persist=True)(meter.work)
    async with isolated(manager) as world:
        busy = [other.enqueue(f"busy{number}", 10) for number in range(2)]
        await world.advance(1)
        waiting = [task.enqueue(number) for number in range(3)]
        await world.advance(1)
        assert (await manager.counts())[TaskStatus.CLAIMED] == 0
        await asyncio.gather(*busy, *waiting)
    assert meter.most == 2


async def test_two_instances_share_one_limit_and_each_fills_what_the_other_frees(tmp_path: Path) -> None:
    """A place that is freed by one instance is taken by another within its store poll."""
    meter = Meter()
    (a, task_a), (b, task_b) = (gpu(tmp_path / "tasks.db", meter, limit=1, store_poll=0.02) for _ in "ab")
    gate = asyncio.Event()

    async def held() -> None:
        await gate.wait()

    hold = a.task(name="hold", persist=True, queue_name="gpu")(held)
    async with a, b:
        first = hold.enqueue()
        await _until(lambda: first.status is TaskStatus.RUNNING)
        second = task_b.enqueue("b")
        await second.saved()
        with pytest.raises(TimeoutError):
            await second.result(timeout=0.2)
        gate.set()
        assert await asyncio.wait_for(second, 10) == "b"
        assert await task_a.enqueue("a") == "a"


async def test_a_file_that_is_made_anew_knows_who_holds_its_places(tmp_path: Path) -> None:
    """What ran goes on in its place, what was waiting for one is gone with the old file, and what comes gets one."""
    db, meter = tmp_path / "tasks.db", Meter()
    manager, task = gpu(db, meter, limit=1, store_poll=0.02)
    gate = asyncio.Event()

    async def held() -> None:
        await meter.work("held")
        await gate.wait()

    hold = manager.task(name="hold", persist=True, queue_name="gpu")(held)
    async with manager:
        first = hold.enqueue()
        await _until(lambda: meter.order == ["held"])
        for name in (db.name, f"{db.name}-wal", f"{db.name}-shm"):
            db.with_name(name).unlink(missing_ok=True)
        await _until(db.exists)
        second = task.enqueue("second")
        await second.saved()
        with pytest.raises(TimeoutError):
            await second.result(timeout=0.3)
        gate.set()
        await first
        assert await asyncio.wait_for(second, 10) == "second"


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110  # a status has no event
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("seed", range(3))
async def test_a_storm_on_three_instances_never_runs_more_than_the_limit(tmp_path: Path, seed: int) -> None:
    """Enqueueing, failing, snoozing, waiting for children, cancelling: whatever races, the number holds."""
    dice, meter = random.Random(seed), Meter()
    pairs = [_storming(tmp_path / "tasks.db", meter, random.Random(100 * seed + number)) for number in range(3)]
    handles: list[TaskHandle[Any]] = []
    async with AsyncExitStack() as stack:
        for manager, _ in pairs:
            await stack.enter_async_context(manager)
        for number in range(60):
            options: dict[str, Any] = {"priority": dice.choice([10, 50])}
            if dice.random() < 0.2:
                options["delay"] = dice.random() / 20
            if dice.random() < 0.2:
                options["idempotency_key"] = f"k{dice.randrange(5)}"
            handles.append(dice.choice(pairs)[1].with_options(**options).enqueue(number))
            if dice.random() < 0.1:
                dice.choice(handles).cancel()
            await asyncio.sleep(dice.random() / 500)
        results = await asyncio.wait_for(asyncio.gather(*(each.result() for each in handles)), 60)
    assert len(results) == 60
    assert meter.most <= 2


def _storming(db: Path, meter: Meter, dice: random.Random) -> tuple[TaskManager, Any]:
    manager = TaskManager(db, queues=[QueueConfig("gpu", max_concurrency=2, scope="file")], store_poll=0.01)

    @manager.task(name="storm", persist=True, queue_name="gpu", retries=1, retry_delay=0.01)
    async def storm(number: int, depth: int = 0) -> int | Snooze:
        try:
            meter.running += 1
            meter.most = max(meter.most, meter.running)
            await asyncio.sleep(dice.random() / 200)
        finally:
            meter.running -= 1
        kind = dice.random()
        if kind < 0.2:
            raise ValueError(number)
        if kind < 0.3:
            return Snooze(0.01)
        return await storm.enqueue(number, 1) if kind < 0.5 and not depth else number

    return manager, storm
