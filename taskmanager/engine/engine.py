"""The parts of one start of one manager, and the one function that puts them together."""

import asyncio
from asyncio import _get_running_loop as _running_loop  # None outside of one, where get_running_loop() would raise
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from taskmanager.engine.choose.dispatch import Dispatcher
from taskmanager.engine.choose.memory_window import MemoryWindow
from taskmanager.engine.free_rows import FreeRows
from taskmanager.engine.intake.inbox import Inbox
from taskmanager.engine.intake.intake import Intake
from taskmanager.engine.intake.keys import Keys
from taskmanager.engine.life import Life
from taskmanager.engine.run.execution import Runner
from taskmanager.engine.run.lanes import LaneFaults
from taskmanager.engine.run.settle import Settlement
from taskmanager.engine.words.attempt import Attempt, ProgressSaver, Surroundings
from taskmanager.engine.words.definition import Definition, RowCodec
from taskmanager.engine.words.instance import Neighbours
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.engine.words.loops import Host
from taskmanager.engine.words.settings import Settings
from taskmanager.engine.words.timers import Alarm, StallWatch, WatchedClock
from taskmanager.engine.words.waiters import Follower
from taskmanager.engine.write.writer import Writer
from taskmanager.model.clock import Clock
from taskmanager.model.dataclass import dataclass
from taskmanager.model.hooks import Hooks
from taskmanager.model.ids import random_01
from taskmanager.store.presence import Presence
from taskmanager.store.protocol import InstanceRow, Store

if TYPE_CHECKING:
    from taskmanager.engine.steps.calls import Codecs, StepCalls


@dataclass(frozen=True, eq=False)
class Engine:
    """Memory, its rules and its loops, between one `start` and one `stop`. Each part knows only those it was given."""

    settings: Settings
    definitions: Mapping[str, Definition]
    row_codec: RowCodec
    store: Store
    clock: Clock
    wall_clock: WatchedClock
    identity: InstanceRow
    """The row of this instance, as it was when it began."""
    presence: Presence | None
    neighbours: Neighbours
    intake: Intake
    keys: Keys
    inbox: Inbox
    live: dict[str, LiveTask]
    """The tasks in memory that have not ended, by their ids."""
    dispatcher: Dispatcher
    window: MemoryWindow
    alarm: Alarm
    stall: StallWatch
    settlement: Settlement
    runner: Runner
    writer: Writer
    follower: Follower
    life: Life
    free_rows: FreeRows
    host: Host
    failing_duties: dict[str, str]
    hooks: Hooks
    claiming: asyncio.Lock
    """Held while rows of a claim are neither free in the store nor in memory yet."""

    def __repr__(self) -> str:
        return f"<Engine {self.identity.instance_id} {self.dispatcher!r} {self.writer!r}>"

    def listen(self) -> None:
        """Tell the listeners, of whom there is one by now, of what happens to tasks. From any thread."""
        if _running_loop() is not self.life.loop:
            self.inbox.tell(self.listen)
            return
        from taskmanager.engine.tell.events import EventReader  # few programs listen
        from taskmanager.engine.tell.listeners import Listeners

        if (listeners := self.life.listeners) is not None:
            listeners.look()
        elif not self.life.is_stopping:
            made = Listeners(self.hooks, EventReader(self.row_codec, self.identity))
            self.life.listeners = self.writer.listeners = made

    async def end_listening(self) -> None:
        """Tell what is left, and nothing more."""
        self.hooks.has_listener = None
        if (listeners := self.life.listeners) is not None:
            await listeners.close()
            self.life.listeners = self.writer.listeners = None

    def leave_loop(self) -> None:
        """The loop will not run again: nothing rings there any more, and what is left is done in the running one."""
        self.close_timers()
        if (listeners := self.life.listeners) is not None:
            listeners.leave()
            self.life.listeners = self.writer.listeners = None
        self.life.leave_loop()
        self.runner.is_stopping = True
        self.host.leave_loop()
        self.inbox.leave_loop()
        self.dispatcher.leave_loop()
        self.follower.leave_loop()
        self.writer.leave_loop()

    @property
    def started_at(self) -> int:
        """When this start began, by the clock that counts. The identity was made before that clock was known."""
        return self.identity.started_at + self.wall_clock.put_right_us

    def close_timers(self) -> None:
        """No more wake-ups."""
        self.alarm.close()
        self.stall.close()


def _step_calls(store: Store, writer: Writer, runner: Runner) -> Callable[[Attempt], "StepCalls"]:
    """Return what makes the `steps` of an attempt at its first call of one."""
    codecs: dict[tuple[str, object], Codecs] = {}

    def begin(attempt: Attempt) -> "StepCalls":
        from taskmanager.engine.steps.calls import StepCalls
        from taskmanager.engine.steps.records import StepRecords  # not for programs that call no step
        from taskmanager.engine.steps.waits import StepWaits

        records = StepRecords(attempt, store.fetch_steps, writer.mark)
        waits = StepWaits(attempt, records, store.fetch_event)
        return StepCalls(attempt, records, waits, random_01, runner.threads, runner.processes, codecs)

    return begin


def wire(
    settings: Settings,
    definitions: Mapping[str, Definition],
    store: Store,
    clock: Clock,
    identity: InstanceRow,
    intake: Intake,
    hooks: Hooks,
) -> Engine:
    """Make the parts of one start in the running loop, and give each those that it works with."""
    loop, row_codec, failing_duties = asyncio.get_running_loop(), RowCodec(definitions), dict[str, str]()
    stall, wall_clock, host = StallWatch(loop), WatchedClock(clock), Host(loop, failing_duties)
    runs = settings.runs if settings.run_queues is not None else None
    dispatcher = Dispatcher(settings.lanes(), settings.queues, runs)
    window, presence = MemoryWindow(settings.max_in_memory, dispatcher), store.presence(identity.instance_id)
    settlement = Settlement(identity, clock, random_01, settings.recovery.crash_budget)
    writer = Writer(store, clock, settings.commit_interval_s, settings.snapshot_interval_s)
    follower = Follower(loop, store, row_codec.decode_result)
    life = Life(
        intake, clock, wall_clock, dispatcher, window, settlement, writer, follower,
        instance_id=identity.instance_id, threads=settings.threads,
    )  # fmt: skip
    inbox = Inbox(life.live, dispatcher, writer, life.accept, life.dispatch, settings.max_pending, follower)
    alarm = Alarm(loop, clock, wall_clock, dispatcher.delays, life.wake_due)
    runner = Runner(
        settings.processes, host, life.report, life.complete, stall.running_s, writer.was_cancelled_since,
        hooks.middlewares,
    )  # fmt: skip
    save, steps = ProgressSaver(loop, writer.mark, clock).save, _step_calls(store, writer, runner)
    around = Surroundings(dispatcher, save, clock.now_us, steps, store.node_start)
    life.attach(inbox, alarm, runner, around, LaneFaults(loop, dispatcher, runner.processes, failing_duties))
    engine = Engine(
        settings, definitions, row_codec, store, clock, wall_clock, identity,
        presence, Neighbours(presence, identity.instance_id), intake, intake.keys, inbox, life.live, dispatcher, window,
        alarm, stall, settlement, runner, writer, follower, life, FreeRows(life, dispatcher, follower, definitions),
        host, failing_duties, hooks, asyncio.Lock(),
    )  # fmt: skip
    hooks.has_listener = engine.listen
    if hooks.listeners:
        engine.listen()
    return engine
