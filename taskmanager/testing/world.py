"""Isolates a manager for a test: no file, no real time, and a list of everything that was enqueued."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import WeakKeyDictionary

from taskmanager.codec.values import loads
from taskmanager.engine.engine import Engine
from taskmanager.engine.intake.intake import Intake
from taskmanager.engine.words.definition import Definition
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.model.call_options import CallOptions
from taskmanager.model.clock import SECOND_US, from_us
from taskmanager.model.config import QueueConfig
from taskmanager.model.dataclass import dataclass
from taskmanager.model.errors import ConfigurationError
from taskmanager.model.result import Seconds, seconds_of
from taskmanager.model.states import TaskStatus
from taskmanager.store.memory import MemoryStore
from taskmanager.store.protocol import FreeQueue, Store
from taskmanager.testing.clock import WallClock
from taskmanager.testing.counted import A_MOMENT_S, CountedStore
from taskmanager.testing.virtual import VirtualTime, virtual_time

if TYPE_CHECKING:
    from taskmanager.manager import TaskManager

MAX_IDLE_LOOKS: Final = 20
"""After this many looks into the store, a task that is due and still not taken never will be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueuedTask:
    """One accepted call, with its present status. `args` and `kwargs` are the very objects that the caller passed.

    `not_before` is the time before which `delay` or `run_at` does not let it start; None means at once.
    """

    task_id: str
    task_name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    status: TaskStatus
    queue_name: str
    priority: int
    tags: Mapping[str, str]
    idempotency_key: str | None
    is_persisted: bool
    sent_at: datetime
    not_before: datetime | None
    good_until: datetime | None


class World:
    """The world of an isolated manager: its clock, its records and its calls. `isolated` makes it."""

    def __init__(self, manager: "TaskManager", store: Store, clock: WallClock, virtual: VirtualTime | None) -> None:
        self.manager = manager
        self.clock = clock
        self.store = CountedStore(store)
        """The records. Only look at them: the manager writes them."""
        self.virtual = virtual
        """The virtual time of the loop. None on a real clock."""
        self.is_over = False
        self._loop = asyncio.get_running_loop()
        self._accepted: list[tuple[EnqueuedTask, LiveTask]] = []

    def __repr__(self) -> str:
        return f"<World of {self.manager!r}, {len(self._accepted)} enqueued, {self.now.isoformat()}>"

    # Looking.

    @property
    def now(self) -> datetime:
        """Wall time, aware UTC."""
        return self.clock.now

    @property
    def enqueued(self) -> tuple[EnqueuedTask, ...]:
        """Every call that this world accepted, oldest first, without those whose key led to an existing task."""
        return tuple(replace(seen, status=self._status(live)) for seen, live in list(self._accepted))

    def _status(self, live: LiveTask) -> TaskStatus:
        engine = self._engine
        if engine is not None:
            newest = engine.live.get(live.task_id) or engine.writer.unsaved_ended.get(live.task_id)
            if newest is not None:
                return newest.status
        return self.store.statuses.get(live.task_id, live.status)

    def make_intake(self, max_pending: int | None, queues: tuple[QueueConfig, ...]) -> Intake:
        """Make the intake of the manager for its time in this world."""
        return _WatchedIntake(self, max_pending=max_pending, queues=queues)

    def note(self, live: LiveTask, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Add a task to the list; the intake calls this for every task that it takes."""
        seen = EnqueuedTask(
            task_id=live.task_id,
            task_name=live.definition.name,
            args=args,
            kwargs=dict(kwargs),
            status=live.status,
            queue_name=live.queue_name,
            priority=live.priority,
            tags=loads(live.tags_text) if live.tags_text else {},
            idempotency_key=live.idempotency_key,
            is_persisted=live.is_persisted,
            sent_at=from_us(live.sent_at),
            not_before=from_us(live.enqueued_at) if live.enqueued_at > live.sent_at else None,
            good_until=None if live.good_until is None else from_us(live.good_until),
        )
        self._accepted.append((seen, live))

    # Moving.

    def _check(self) -> None:
        """Refuse a world that has ended: its clock and its records are gone, and the manager would use its own.

        Refuse another loop: time passes on the loop of the world only, and a test might wait for ever.
        """
        if self.is_over:
            raise ConfigurationError("this world has ended; use it inside of `async with isolated(...)`")
        if asyncio.get_running_loop() is not self._loop:
            raise ConfigurationError(
                "this world lives on another event loop, which stands still meanwhile. Let one plugin of pytest run "
                "both the fixture and the test, on one loop: pytest-asyncio in auto mode takes the tests of anyio"
            )

    async def advance(self, seconds: Seconds) -> None:
        """Let that much time pass. Run everything that comes due on the way, in order, and wait for it.

        Time stands still while threads and child processes run. Raises `ConfigurationError` for what is no duration,
        and outside of `async with isolated(...)`, where that much time would really pass.
        """
        self._check()
        given_s = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
        if isinstance(given_s, int | float) and given_s < 0:
            raise ConfigurationError("time passes forwards; world.clock.step(seconds) moves wall time back")
        duration_s = seconds_of(seconds, "seconds")
        await asyncio.sleep(duration_s)
        await self.idle()

    async def idle(self) -> None:
        """Run everything that can go on without time passing. On a real clock these are a few turns of the loop."""
        self._check()
        if self.virtual is None:
            for _ in range(MAX_IDLE_LOOKS):
                await asyncio.sleep(0)
            return
        await self.virtual.idle()
        while self._has_hurried():
            await self.virtual.idle()

    def _has_hurried(self) -> bool:
        """Let the writer commit now what it would commit in a while. Listeners hear of it then.

        Return False if there is nothing, or if the writer cannot take it, because a commit hangs or the store is down.
        """
        writer = None if self._engine is None else self._engine.writer
        if writer is None or writer.patience.is_over or not writer.outbox.waiting_count:
            return False
        writer.patience.hurry()
        return True

    async def drain(self) -> None:
        """Run until every task has ended: delayed ones, retries, and what the tasks themselves enqueue included.

        Raises `RuntimeError` if one never will, because its function is not registered or its queue is paused.
        """
        self._check()
        looks = 0
        while True:
            await self.manager.join()
            free = await self.store.sound.free_queues()
            if not free:
                return await self.idle()
            due = min(from_us(each.next_due_at) for each in free)
            looks = 0 if due > self.now else looks + 1
            if looks > MAX_IDLE_LOOKS:
                raise RuntimeError(f"drain() cannot end: {_names(free)} is free in the store and nothing takes it")
            await asyncio.sleep(max((due - self.now).total_seconds(), self._poll_s))

    async def restart(self) -> None:
        """Stop the manager and start it again on the same store, as a deploy does."""
        self._check()
        await self.manager.stop()
        await self.start()

    async def start(self) -> None:
        """Start the manager on the same store, after a `manager.stop()` in this world."""
        self._check()
        await self.manager.start()
        engine = self._engine
        if engine is not None and self.virtual is not None:
            # No stall on a virtual clock: a jump is not time in which the process could not run.
            engine.stall.close()
            engine.writer.stop_watching_loop()

    # What the loop asks (see virtual.Inhabitant).

    @property
    def _engine(self) -> Engine | None:
        lifecycle = self.manager._lifecycle
        return None if lifecycle is None else lifecycle.engine

    @property
    def _poll_s(self) -> float:
        return self.manager._settings.store_poll_s

    def has_call_in_flight(self) -> bool:
        """Return whether a store call is under way."""
        return self.store.in_flight > 0

    def has_lane_in_flight(self) -> bool:
        """Return whether a thread or a child process runs a task, or is about to end."""
        engine = self._engine
        listeners = None if engine is None else engine.life.listeners
        return engine is not None and (
            engine.runner.processes.is_ending
            or (listeners is not None and listeners.is_ending)
            or any(attempt.is_away for attempt in engine.runner.running.values())
        )

    def has_abandoned_work(self) -> bool:
        """Return whether something timed out and still runs."""
        engine = self._engine
        return engine is not None and (
            bool(engine.runner.abandoned) or any(each.has_step_threads for each in engine.runner.running.values())
        )

    def due_in_s(self) -> list[float]:
        """Return the seconds until each thing that waits is due: infinite while it may not expire.

        What waits in memory goes on as soon as it is due. A row may be due for long, and nothing takes it.
        """
        engine = self._engine
        if engine is None:
            return []
        now_us, is_held = self.clock.now_us(), engine.wall_clock.holds_expiry
        running = self.manager._instance.running()
        in_memory = [
            engine.dispatcher.delays.next_delay_s(self.clock.elapsed_s(), now_us, holds_expiry=is_held),
            None if running is None else running.duties.schedules.next_due_in_s(),
            *((due_at - now_us) / SECOND_US for attempt in engine.runner.running.values() for due_at in attempt.due_at),
        ]
        found = [max(A_MOMENT_S, each) for each in in_memory if each is not None]
        return [*found, *self.store.free_delays_s(now_us, engine.definitions)]


class _WatchedIntake(Intake):
    """The intake of a world. It notes every task that it takes."""

    def __init__(self, world: World, *, max_pending: int | None, queues: tuple[QueueConfig, ...]) -> None:
        super().__init__(world.clock, max_pending=max_pending, queues=queues)
        self._world = world
        self._calls: WeakKeyDictionary[LiveTask, tuple[tuple[Any, ...], dict[str, Any]]] = WeakKeyDictionary()

    def make(
        self, definition: Definition, options: CallOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> LiveTask:
        live = super().make(definition, options, args, kwargs)
        self._calls[live] = args, kwargs
        return live

    def hand_over(self, live: LiveTask) -> tuple[LiveTask, bool]:
        taken, was_there = super().hand_over(live)
        if not was_there:
            self._world.note(taken, *self._calls.pop(live))
        return taken, was_there


@asynccontextmanager
async def isolated(
    manager: "TaskManager", *, clock: Literal["virtual", "real"] = "virtual", store: Store | None = None
) -> AsyncIterator[World]:
    """Run `manager` for a test, started, with a store in memory and a virtual clock. Put everything back at the end.

    The manager runs every queue, whatever its `run_queues` says: nobody else could run them here.

    The arguments of persisted tasks are encoded and decoded as with a file. The file of the manager is never touched,
    and tasks that wait for its start still wait afterwards. Raises `ConfigurationError` if the manager runs already,
    or if `clock` is "virtual" and the loop is not asyncio's own.

    `clock="real"` leaves the loop alone, so that delays take their time. `store` replaces the store in memory, for
    example by a `FaultyStore`; it is closed at the end.
    """
    if not hasattr(manager, "_isolated"):
        raise ConfigurationError(f"isolated takes a TaskManager, not {manager!r}")
    if clock not in ("virtual", "real"):
        raise ConfigurationError(f"clock must be 'virtual' or 'real', not {clock!r}")
    with virtual_time() if clock == "virtual" else nullcontext() as virtual:
        wall = WallClock(virtual)
        world = World(manager, MemoryStore(clock=wall) if store is None else store, wall, virtual)
        with _moved_in(world), manager._isolated(world.clock, world.store.as_store, world.make_intake):
            await world.start()
            try:
                yield world
            finally:
                world.is_over = True
                await manager.__aexit__(None, None, None)


@contextmanager
def _moved_in(world: World) -> Iterator[None]:
    """Let the loop ask the world what is in flight and what is due, while the block runs."""
    if world.virtual is None:
        yield
        return
    world.virtual.inhabitants.append(world)
    try:
        yield
    finally:
        world.virtual.inhabitants.remove(world)


def _names(free: list[FreeQueue]) -> str:
    return ", ".join(sorted({f"{each.task_name!r} in queue {each.queue_name!r}" for each in free}))
