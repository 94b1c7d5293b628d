"""An application that gives up at the first fault of its store, and stops: its records add up all the same.

The day has one fault in it, at its first store call, its second, its third, until a day has none. There are three
kinds: the store does not answer once (before the call took effect, or after it, which the engine cannot know), it does
not answer any more that day, or whoever waits for the manager at that moment is cancelled. The day after has no fault;
then the records are judged.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from taskmanager import (
    ManagerStopped,
    Snooze,
    StoreUnavailable,
    TaskHandle,
    TaskManager,
    TaskNotCompleted,
    TaskStatus,
    current_task,
    lifecycle,
)
from taskmanager.engine.write import writer
from taskmanager.model.record import AttemptRow, TaskRow, Write
from taskmanager.store.memory import MemoryStore
from taskmanager.store.protocol import CommitReport, Store
from taskmanager.store.sqlite import SqliteStore
from taskmanager.testing import Fault, FaultyStore

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

MAX_CALLS = 200
PATIENCE_S = 20.0
"""Nothing here takes a tenth of a second; what takes this long hangs."""
FOR_GOOD = 10**6
GONE_PATIENCE_S = 0.05
SOON_S = 0.001
AGAIN_S = 0.005
"""Between two tries of the writer: a store that is gone is asked some ten times."""
KEPT_WAITING = ("later", "again")
"""Tasks that are unfinished at the first stop, and have to be finished by the second day."""


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's own pauses before it tries again, in no time."""
    monkeypatch.setattr(writer, "FIRST_RETRY_S", AGAIN_S)
    monkeypatch.setattr(writer, "LAST_RETRY_S", AGAIN_S)
    monkeypatch.setattr(lifecycle, "START_PAUSE_S", SOON_S)
    monkeypatch.setattr(lifecycle, "START_PATIENCE_S", 5 * SOON_S)
    monkeypatch.setattr(lifecycle, "CANCEL_GRACE_S", 0.02)
    monkeypatch.setattr(lifecycle, "FINAL_COMMIT_S", 0.03)


@dataclass
class Log:
    """What happened outside the records: which attempts began, which returned, and which calls were promised."""

    begun: list[tuple[str, int]] = field(default_factory=list)
    day: int = 1
    snoozed: list[tuple[str, int]] = field(default_factory=list)
    returned: list[str] = field(default_factory=list)
    handles: dict[str, TaskHandle[Any]] = field(default_factory=dict)
    saved: set[str] = field(default_factory=set)
    has_promised_less: bool = False
    """A stop said that it could not write everything."""

    def begin(self) -> int:
        """Note the attempt that runs, and say its number."""
        context = current_task()
        self.begun.append((context.task_id, context.attempt))
        return context.attempt

    def end(self) -> str:
        """Note that the attempt returns."""
        self.returned.append(current_task().task_id)
        return "done"


class CancellingStore(FaultyStore):
    """At the fault, whoever waits for the manager is cancelled; the store itself does as it is told."""

    driver: "asyncio.Task[Any] | None" = None

    async def _happen(self, fault: Fault, verb: str) -> None:
        if self.driver is not None:
            self.driver.cancel()


class WatchedStore(MemoryStore):
    """A store that notes what no write may do, whatever it knows and thinks."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []

    async def commit(self, writes: Sequence[Write]) -> CommitReport:
        """As in memory; then each row is compared with what it was."""
        before = await self.fetch_ids([write.task_id for write in writes])
        report = await super().commit(writes)
        for task_id, old in before.items():
            new = await self.fetch(task_id)
            assert new is not None
            if new.start_count < old.start_count:
                self.faults.append(f"{old.task_name} counts back from start {old.start_count} to {new.start_count}")
            if old.status == "COMPLETED" != new.status:
                self.faults.append(f"{old.task_name} had succeeded and is {new.status}")
        return report


def new_manager(folder: Path, store: FaultyStore, log: Log) -> TaskManager:
    """The application as it is on both days."""
    manager = TaskManager(
        folder / "tasks.db", store_poll=0.005, commit_interval=SOON_S, snapshot_interval=0.01, drain_timeout=0.0
    )
    manager._make_store = store.as_store

    @manager.task(name="fine", persist=True)
    async def fine() -> str:
        log.begin()
        return log.end()

    @manager.task(name="flaky", persist=True, retries=1, retry_delay=SOON_S)
    async def flaky() -> str:
        if log.begin() == 1:
            raise ValueError("the first time")
        return log.end()

    @manager.task(name="sleepy", persist=True)
    async def sleepy() -> str | Snooze:
        if log.begin() == 1:
            log.snoozed.append((current_task().task_id, 1))
            return Snooze(SOON_S)
        return log.end()

    @manager.task(name="endless", persist=True)
    async def endless() -> None:
        log.begin()
        await asyncio.Event().wait()

    @manager.task(name="again", persist=True, requeue_on_interrupt=True)
    async def again() -> str:
        log.begin()
        if log.day == 1:
            await asyncio.Event().wait()
        return log.end()

    @manager.task(name="later", persist=True, queue_name="later")
    async def later() -> str:
        log.begin()
        return log.end()

    @manager.task(name="light", retries=1, retry_delay=SOON_S)
    async def light() -> str:
        if log.begin() == 1:
            raise ValueError("the first time")
        return log.end()

    return manager


class Day:
    """One start, some work, one stop."""

    def __init__(self, folder: Path, store: FaultyStore, log: Log) -> None:
        self.store, self.log = store, log
        self.manager = new_manager(folder, store, log)

    async def step(self, work: Coroutine[Any, Any, Any], patience_s: float = PATIENCE_S) -> Any:
        """Wait for one call of the manager, as a task of its own that may be cancelled. None when it was."""
        task = asyncio.create_task(work)
        if isinstance(self.store, CancellingStore):
            self.store.driver = task
        await asyncio.wait([task], timeout=patience_s)
        if task.done():
            return None if task.cancelled() else task.result()
        task.cancel()
        if patience_s == PATIENCE_S:
            raise AssertionError(f"{work} hangs")
        raise StoreUnavailable("the application does not wait for a store that is gone")

    async def start(self) -> bool:
        """Start, and again when that fails or is cancelled; False when the store is not there today."""
        for _ in range(3):
            with contextlib.suppress(StoreUnavailable):
                await self.step(self.manager.start())
            if self.manager.status().state == "open":
                return True
        self.log.has_promised_less = True
        return False

    async def stop(self) -> None:
        """Stop, and wait for the end of it even when the first waiter was cancelled."""
        try:
            await self.step(self.manager.stop())
            await self.step(self.manager.stop())
        except StoreUnavailable:
            self.log.has_promised_less = True

    def enqueue(self, label: str, name: str, **options: Any) -> None:
        """One accepted call."""
        self.log.handles[label] = self.manager.get_task(name).with_options(**options).enqueue()

    async def try_step(self, work: Coroutine[Any, Any, Any]) -> Any:
        """A step that waits as long as an application would."""
        goes_away = any(fault.times == FOR_GOOD for fault in self.store.plan)
        return await self.step(work, GONE_PATIENCE_S if goes_away else PATIENCE_S)

    async def save(self, label: str) -> None:
        """Wait for the promise, and remember it."""
        handle = self.log.handles[label]

        async def saved() -> bool:
            await handle.saved()
            return True

        if await self.try_step(saved()):
            self.log.saved.add(label)

    async def first_work(self) -> None:
        """Everything a task can go through, and every question that goes to the store."""
        manager, handles = self.manager, self.log.handles
        await self.try_step(manager.pause("later"))
        for label, name in (("later", "later"), ("flaky", "flaky"), ("sleepy", "sleepy"), ("light", "light")):
            self.enqueue(label, name)
        self.enqueue("endless", "endless", tags={"endless": "yes"})
        self.enqueue("again", "again")
        self.enqueue("keyed", "fine", idempotency_key="k")
        for label in [each for each in handles if each != "light"]:
            await self.save(label)
        self.enqueue("keyed twice", "fine", idempotency_key="k")
        await self.save("keyed twice")
        await self.try_step(manager.cancel(handles["endless"].task_id))
        handles["endless"].cancel()  # again, for the case that nobody was left to ask
        for label in ("flaky", "sleepy", "keyed", "keyed twice", "light", "endless"):
            await self.try_step(handles[label].result())
        await self.try_step(manager.join(tags={"endless": "yes"}))
        await self.try_step(manager.get(handles["flaky"].task_id, include_attempts=True))
        await self.try_step(manager.list())
        await self.try_step(manager.counts())
        await self.try_step(manager.flush())

    async def last_work(self) -> None:
        """What is left is finished."""
        await self.step(self.manager.resume("later"))
        endless = self.log.handles.get("endless")
        if endless is not None and await self.step(self.manager.get(endless.task_id)) is not None:
            await self.step(self.manager.cancel(endless.task_id))
        for handle in self.log.handles.values():
            if await self.step(self.manager.get(handle.task_id)) is not None:
                await self.step(self.manager.handle(handle.task_id).result())


async def answers(log: Log) -> None:
    """After a stop every handle is answered."""
    for handle in log.handles.values():
        async with asyncio.timeout(PATIENCE_S):
            await handle.result()


async def two_days(folder: Path, inner: Store, store: FaultyStore) -> Log:
    """The day with the fault, and the day after on a store that works."""
    log = Log()
    first = Day(folder, store, log)
    first.enqueue("held", "fine")
    if await first.start():
        # The application gives up at the first trouble, as one does.
        with contextlib.suppress(StoreUnavailable, TaskNotCompleted, ManagerStopped):
            await first.first_work()
        await first.stop()
        await answers(log)
    log.day = 2
    second = Day(folder, FaultyStore(inner), log)
    await second.start()
    await second.last_work()
    await second.stop()
    return log


async def judge(inner: Store, log: Log) -> list[str]:
    """What is wrong with the records."""
    await inner.open()
    faults = inner.faults if isinstance(inner, WatchedStore) else []
    for label, handle in log.handles.items():
        row, attempts = await inner.fetch(handle.task_id), await inner.fetch_attempts(handle.task_id)
        if row is None:
            found = ["it is gone"] if label in log.saved or not log.has_promised_less else []
        elif log.has_promised_less:
            found = [*faults_of_any(label, row, log)]
        else:
            found = [*faults_of_any(label, row, log), *faults_of_unbroken(row, attempts, log)]
        faults += [f"{label}: {each}" for each in found]
    await inner.close()
    return faults


def faults_of_any(label: str, row: TaskRow, log: Log) -> Iterator[str]:
    """What holds on every day. What may be repeated may also start while the store is away, and its number with it."""
    if not TaskStatus(row.status).is_terminal or (label in KEPT_WAITING and row.status != "COMPLETED"):
        yield f"is {row.status}"
    if label != "again":
        begun = [number for task_id, number in log.begun if task_id == row.task_id]
        if len(begun) != len(set(begun)) or max(begun, default=0) > row.start_count:
            yield f"began attempts {begun} of {row.start_count}"
    successes = log.returned.count(row.task_id)
    if successes > 1 or (row.status == "COMPLETED" and not successes):
        yield f"returned {successes} times and is {row.status}"


def faults_of_unbroken(row: TaskRow, attempts: list[AttemptRow], log: Log) -> Iterator[str]:
    """What holds when the stop said that everything is written."""
    recorded = [each.attempt for each in attempts]
    begun = {number for task_id, number in log.begun if task_id == row.task_id}
    snoozed = {number for task_id, number in log.snoozed if task_id == row.task_id}
    if begun - snoozed - set(recorded) or snoozed & set(recorded):
        yield f"began attempts {begun}, snoozed {snoozed}, and {recorded} are recorded"
    if recorded and recorded[-1] > row.start_count:
        yield f"started {row.start_count} times and has attempts {recorded}"
    successes = log.returned.count(row.task_id)
    if not successes == (row.status == "COMPLETED") == [each.outcome for each in attempts].count("COMPLETED"):
        yield f"returned {successes} times, is {row.status}, attempts are {[each.outcome for each in attempts]}"


async def try_every_call(
    folder: Path, new_inner: Callable[[Path], Store], new_store: Callable[[Store, int], FaultyStore], step: int = 1
) -> int:
    """Days with the fault at a later and a later call, until one has none; how many there were."""
    for nth in itertools.count(1, step):
        assert nth < MAX_CALLS, "the day does not get to its end, or grew"
        place = folder / str(nth)
        place.mkdir()
        inner = new_inner(place)
        store = new_store(inner, nth)
        log = await two_days(place, inner, store)
        where = f"fault at call {nth}, {store.calls[nth - 1]}" if store.is_spent else "no fault"
        assert not await judge(inner, log), where
        assert not list(place.glob("*.lock")), where
        if not store.is_spent:
            return nth
    raise AssertionError


def in_memory(folder: Path) -> Store:
    return WatchedStore()


def in_a_file(folder: Path) -> Store:
    return SqliteStore(folder / "tasks.db", synchronous="normal")


@pytest.mark.req("PR-17", "PR-20", "PR-34", "PR-42", "DS-040")
@pytest.mark.parametrize(("times", "step"), [(1, 1), (4, 3)], ids=["once", "four times"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_store_that_fails_for_a_moment_loses_and_repeats_nothing(
    tmp_path: Path, after: bool, times: int, step: int
) -> None:
    """At every call and the next ones, before or after they took effect."""
    days = await try_every_call(
        tmp_path, in_memory, lambda inner, nth: FaultyStore(inner, [Fault.fail(nth, after=after, times=times)]), step
    )
    assert days > 20


@pytest.mark.req("PR-34", "PR-53")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_store_that_goes_away_keeps_what_it_has_promised(
    tmp_path: Path, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From every call on, for the rest of the day: what was saved is there, and what has succeeded is not repeated."""
    monkeypatch.setattr(writer, "FAILING_S", GONE_PATIENCE_S)
    days = await try_every_call(
        tmp_path, in_memory, lambda inner, nth: FaultyStore(inner, [Fault.fail(nth, after=after, times=FOR_GOOD)])
    )
    assert days > 20


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_waiter_that_is_cancelled_once_costs_nobody_a_task(tmp_path: Path, after: bool) -> None:
    """Whoever waits for start, stop, a save, a result or a record may be cancelled at any call."""
    days = await try_every_call(
        tmp_path, in_memory, lambda inner, nth: CancellingStore(inner, [Fault.cancel(nth, after=after)])
    )
    assert days > 20


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_file_that_fails_once_loses_and_repeats_nothing(tmp_path: Path, after: bool) -> None:
    """The same on a real file, at every fifth call."""
    await try_every_call(
        tmp_path, in_a_file, lambda inner, nth: FaultyStore(inner, [Fault.fail(nth, after=after)]), step=5
    )
