"""A manager on virtual time whose store can hold or fail its next call, and a count by hand of all its counters."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from taskmanager import TaskManager
from taskmanager.engine.engine import Engine
from taskmanager.engine.words.phases import Phase
from taskmanager.model.record import TaskRow
from taskmanager.model.states import TERMINAL
from taskmanager.store.memory import MemoryStore
from taskmanager.store.sql.queries import fetch_attempts, task_rows
from taskmanager.store.sql.statements import TASK_COLUMNS
from taskmanager.store.watch_protocol import Whereabouts
from taskmanager.testing import Fault, FaultyStore, World, isolated

TURNS = 2_000
"""Turns of the loop after which something that should happen never will."""


class OpenStore(MemoryStore):
    """A store in memory that the test itself reads and writes."""

    @property
    def live(self) -> dict[str, TaskRow]:
        """The rows of tasks that have not ended, by id."""
        return {row.task_id: row for row in self._rows() if row.status not in TERMINAL}

    @property
    def ended(self) -> dict[str, TaskRow]:
        """The rows of tasks that have ended, by id."""
        return {row.task_id: row for row in self._rows() if row.status in TERMINAL}

    def _rows(self) -> list[TaskRow]:
        return task_rows(self._connection, "taskmanager_tasks AS t ORDER BY t.rowid", ())

    def attempt_numbers(self, task_id: str) -> list[int]:
        """The numbers of the attempts of a task that have ended."""
        return [each.attempt for each in fetch_attempts(self._connection, task_id)]

    def put(self, row: TaskRow) -> None:
        """Another instance writes this over the row that is there."""
        columns = ", ".join(f"{name} = ?" for name in TASK_COLUMNS)
        change = f"UPDATE taskmanager_tasks SET {columns}, claimed = ? WHERE id = ?"
        assert self._connection.execute(change, (*row, row.status == "CLAIMED", row.task_id)).rowcount == 1

    def drop(self, task_ids: Iterable[str]) -> None:
        """Rows are gone, as if it were another file."""
        for task_id in list(task_ids):
            self._connection.execute("DELETE FROM taskmanager_tasks WHERE id = ?", (task_id,))


class SharedStore(OpenStore):
    """A store in memory where `others_wrote` says that another instance has been here."""

    def __init__(self) -> None:
        super().__init__()
        self._version = 0
        self.is_lost = False

    def others_wrote(self) -> None:
        self._version += 1

    async def changes(self) -> int:
        return self._version

    async def look_after(self) -> Whereabouts:
        return Whereabouts.LOST if self.is_lost else Whereabouts.WHOLE

    async def open(self) -> None:
        self.is_lost = False


class Store(FaultyStore):
    """A faulty store whose next call of a verb can be chosen as the test goes."""

    def __init__(self) -> None:
        self.memory = SharedStore()
        super().__init__(self.memory)

    def hold(self, verb: str, *, after: bool = False) -> None:
        """The next call of `verb` waits for `let_go()`."""
        self.plan.append(Fault("hold", self.calls.count(verb) + 1, verb, after))

    def fail(self, verb: str, *, after: bool = False, times: int = 1) -> None:
        """The next call of `verb` fails."""
        self.plan.append(Fault("fail", self.calls.count(verb) + 1, verb, after, times))

    async def until_held(self, verb: str) -> None:
        await turns_until(lambda: verb in self.held)


async def turns_until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until something is true; no virtual time passes."""
    for _ in range(TURNS):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never happened")


async def happens(condition: Callable[[], bool]) -> None:
    """Wait for something that real threads do."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # it happens in other threads
            await asyncio.sleep(0.001)


def manager_of(**options: Any) -> TaskManager:
    return TaskManager("never-opened.db", **options)


def engine_of(manager: TaskManager) -> Engine:
    lifecycle = manager._lifecycle
    assert lifecycle is not None
    lifecycle.engine.inbox.take_all()
    return lifecycle.engine


def assert_counters(engine: Engine) -> None:
    """Every counter says what a count by hand says."""
    dispatcher = engine.dispatcher
    waiting = [live for live in engine.live.values() if live.is_waiting]
    for name, queue in dispatcher.queues.items():
        here = [live for live in waiting if live.queue_name == name]
        assert queue.waiting == len(here), (name, queue, here)
        assert queue.stored_waiting == sum(live.is_persisted for live in here), (name, queue.stored_waiting, here)
    holders = [a for a in (*engine.runner.running.values(), *engine.runner.abandoned) if a.has_slot]
    outbox = engine.writer.outbox
    unsaved = {id(live): live for live in (*outbox.unsaved(), *(sent.live for sent in outbox.in_flight))}.values()
    assert dispatcher.unsaved_end_count == sum(live.is_persisted and live.phase is Phase.ENDED for live in unsaved)
    starting = [live for live in engine.live.values() if live.phase is Phase.STARTING]
    assert sum(slots.running for slots in dispatcher.lanes.values()) == len(holders) + len(starting)
    assert sum(queue.slots.running for queue in dispatcher.queues.values()) == len(holders) + len(starting)


@asynccontextmanager
async def world_of(manager: TaskManager) -> AsyncIterator[tuple[World, Store]]:
    store = Store()
    async with isolated(manager, store=store.as_store()) as world:
        yield world, store


def persisted(manager: TaskManager, log: list[Any] | None = None, **options: Any) -> Any:
    """A persisted task `work(label)` that notes each start."""
    seen = [] if log is None else log

    async def work(label: str) -> str:
        seen.append(label)
        return label

    return manager.task(name="work", persist=True, **options)(work)
