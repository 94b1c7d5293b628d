"""One start of a manager, from its parts to its stop: both happen in the one order that loses nothing.

Start: open and migrate → lock and register the instance → recover what dead instances left → claim → only then run.
Stop: the door closes for memory-only tasks → nothing new starts → running tasks get the drain time → what is left is
cancelled and gets a bounded second → outcomes are settled → the door closes for all in the same step that takes the
final batch → commit → every open handle is told → close. What still executes then keeps the lock of the instance.
"""

import asyncio
import contextlib
from asyncio import _get_running_loop as _running_loop  # None outside of one, where get_running_loop() would raise
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

from taskmanager.codec.safe import dumps_safe
from taskmanager.duties.supervisor import Supervisor
from taskmanager.engine.after_write import AfterWrite
from taskmanager.engine.engine import Engine, wire
from taskmanager.engine.intake.intake import Intake, put_right
from taskmanager.engine.look.claiming import Claimer
from taskmanager.engine.look.database_watch import DatabaseWatch
from taskmanager.engine.look.polling import NAME as CLAIMER
from taskmanager.engine.look.polling import Poller
from taskmanager.engine.look.sharing import Sharing
from taskmanager.engine.words.attempt import StopReason
from taskmanager.engine.words.definition import Definition
from taskmanager.engine.words.instance import new_identity
from taskmanager.engine.words.loops import cancelled_once, outlast, shielded
from taskmanager.engine.words.phases import STARTING
from taskmanager.engine.words.settings import Settings
from taskmanager.engine.write.writer import NAME as WRITER
from taskmanager.model.clock import Clock
from taskmanager.model.errors import ConfigurationError, StoreError, StoreUnavailable
from taskmanager.model.hooks import Hooks
from taskmanager.model.logger import logger
from taskmanager.model.wording import counted
from taskmanager.stop import Abandoned, Release, Unstopped
from taskmanager.store.protocol import Store

if TYPE_CHECKING:
    from taskmanager.duties.schedule import Schedule
    from taskmanager.engine.people.actions import Actions
    from taskmanager.engine.people.queues import Queues
    from taskmanager.engine.people.records import Records
    from taskmanager.engine.people.workflows import Workflows

CANCEL_GRACE_S: Final = 1.0
"""How long cancelled work may take to end at a stop."""
FINAL_COMMIT_S: Final = 0.8
"""How long the final batches may take when they do not get through; with the grace this is the "+ 2 s" of a stop."""
DRAIN_STEP_S: Final = 0.25
START_PATIENCE_S: Final = 10.0
"""How long a start waits for a file that is locked by somebody else, at each of its steps."""
START_PAUSE_S: Final = 0.05
_left_to_parents: list["Lifecycle"] = []


@contextlib.asynccontextmanager
async def _until(when_s: float) -> AsyncIterator[None]:
    """Leave the block at that time of the loop, and go on behind it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(when_s):
            yield


class Lifecycle:
    """One start of a manager: its start, its stop, and the parts that answer calls in between.

    Each of these parts is made, and its module is loaded, by the first call that needs it. A start needs none of them.
    """

    def __init__(self, engine: Engine, duties: Supervisor) -> None:
        self._store, self._clock, self._wall_clock = engine.store, engine.clock, engine.wall_clock
        self._identity, self._intake, self._inbox = engine.identity, engine.intake, engine.inbox
        self._free_rows = engine.free_rows
        self._live, self._stall, self._runner = engine.live, engine.stall, engine.runner
        self._threads, self._processes = engine.runner.threads, engine.runner.processes
        self._writer, self._patience, self._host = engine.writer, engine.writer.patience, engine.host
        self._settings, self._life = engine.settings, engine.life
        self.engine = engine
        self.duties = duties
        self._presence = engine.presence
        self._after_write = AfterWrite(engine)
        self._database_watch = DatabaseWatch(engine, self._made_anew, self._after_write.lost)
        self._claimer = Claimer(engine, self._after_write.give_up)
        sharing = Sharing(engine, self._claimer.take_over, self._after_write.lost)
        self._poller = Poller(
            engine, self._claimer, sharing, self._database_watch, duties.recover, duties.reaper.recover_strays,
            duties.others_left,
        )  # fmt: skip
        self._cut_short = asyncio.Event()
        self._starting: asyncio.Task[Any] | None = None
        self._came_up = asyncio.Event()
        self.stopped = asyncio.Event()
        self._commit_deadline = 0.0
        self._has_failed = self._has_closed = False
        self.is_stopping = False
        """True from the moment a stop was asked for."""
        self._release = Release(engine)
        self._abandoned = Abandoned(engine, duties.heartbeat)
        self._unstopped = Unstopped(engine, self._after_write, self._release, self._abandoned, self.stop_now)

    async def start(self) -> None:
        """Bring the engine up; on an error everything that was opened is closed again."""
        # Also held by this frame: a start that is collected must not drop the last reference to itself while it ends.
        self._starting = starting = asyncio.current_task()  # noqa: F841  # see above
        has_heartbeat = False
        try:
            await self._open()
            await self._patiently(self._recover)
            self.duties.start(self._unstopped.write_here)
            has_heartbeat = True
            self._stall.start()
            self._host.start_task(WRITER, partial(self._writer.start, self._after_write, watches_loop=True))
            with contextlib.suppress(StoreUnavailable):  # it is up without this look; the poller looks again
                await self._patiently(self._poller.look_first)
        except GeneratorExit:  # collected with its loop: there is nothing to be awaited any more
            self._has_failed = True
            if not has_heartbeat:  # with one, its thread sees the closed loop, and does this
                self._store.end()
                self._abandoned.let_go_when_over()
            raise
        except BaseException:
            self._has_failed = True
            await shielded(self._abort())
            raise
        finally:
            self._starting = None
            self._came_up.set()
        # No await from here on: a cancellation in between would lose calls that were held for the start.
        self._life.is_up = True  # before the lock is taken: see CurrentInstance.enter_before_start
        self._intake.open(self._inbox)
        self._unstopped.begin()
        self._life.kick()
        self.duties.start_sweeps()
        self._host.start("takeover", self._poller.recover_the_dead)
        self._host.start(CLAIMER, self._poller.run)

    async def _patiently(self, step: Callable[[], Awaitable[object]]) -> None:
        """Do a step of the start. Try it again for `START_PATIENCE_S` while somebody else keeps the file locked."""
        deadline = self._life.loop.time() + START_PATIENCE_S
        while True:
            try:
                await step()
                return
            except StoreUnavailable:
                if self._life.loop.time() >= deadline:
                    raise
                await asyncio.sleep(START_PAUSE_S)

    async def _open(self) -> None:
        await cancelled_once(self._store.open())  # or what it closes then stays open behind the start
        held = list(self._intake.held)
        self._wall_clock.go_by(self._store.clock_offset_us, is_first=True)
        put_right(held, self._wall_clock.put_right_us)
        if self._presence is not None:
            await self._presence.take()
        await self._patiently(self._register)

    async def _recover(self) -> None:
        if not await self.duties.recover_at_start():
            self._poller.death.set()

    async def _register(self) -> None:
        self._wall_clock.note_last_use(await self._store.latest_stamp(self._clock.now_us()))
        row = self._identity._replace(started_at=self.engine.started_at, updated_at=self._clock.now_us())
        await self._store.save_instance(row)

    async def _abort(self) -> None:
        """Let go of everything: this instance is dead, and what is in the file is recovered by the next start."""
        self._life.is_stopping = True
        self._host.leave(WRITER)
        await self._host.stop()
        await self._writer.close(0.0)
        await self._close(is_unwritten=True)

    # Stop.

    def cut_short(self) -> None:
        """A second signal: do not wait any longer for running tasks, nor for the file at a start."""
        self._cut_short.set()
        if self._starting is not None:
            self._starting.cancel()

    async def wait_stopped(self) -> None:
        """Return when a stop that is under way has ended."""
        await shielded(self.stopped.wait())

    async def stop(self, drain_timeout_s: float) -> None:
        """Stop in order, within `drain_timeout_s` + 2 seconds; longer only to write what is left, while batches get
        through. Raises `StoreUnavailable` when not all could be written. A stop that is asked for during the start
        waits for its end first. It goes on to its end whatever happens to who waits for it, who must not leave the file
        open and every handle hanging.
        """
        self.is_stopping = True
        if self._intake.is_forked:
            # All of it belongs to the parent process. Keep it: to collect it would close files and cancel tasks.
            _left_to_parents.append(self)
            self._intake.close()
            self._unstopped.end()
        elif self._inbox.is_loop_closed():
            await shielded(self._unstopped.write())
        else:
            try:
                await self._stop_whoever_cancels(drain_timeout_s)
            finally:
                if not self._inbox.is_loop_closed():  # else the stop was cut off, and `Unstopped` writes the rest
                    self._unstopped.end()
                self.stopped.set()
                self._free_rows.looked(has_claimed=False)  # `join` finds that all is over

    async def _stop_whoever_cancels(self, drain_timeout_s: float) -> None:
        """Stop in a task of its own. To cancel that task, as the end of an event loop does, only cuts the drain short.

        If a fault of ours breaks the stop off, still close the file and wake all waiters.
        """
        cancelled: BaseException | None = None
        while True:
            stopping = self._life.loop.create_task(self._stop(drain_timeout_s))
            cancelled = await outlast(stopping, cancelled)
            if self._has_closed or not (stopping.cancelled() and stopping.cancelling()):
                break
            drain_timeout_s = 0.0
        if not self._has_closed and (stopping.cancelled() or stopping.exception() is not None):
            await shielded(self._break_off())
        stopping.result()
        if cancelled is not None:
            raise cancelled

    async def _break_off(self) -> None:
        self._intake.close()
        self._inbox.take_all()
        for attempt in list(self._runner.running.values()):
            self._runner.stop(attempt, StopReason.SHUTDOWN)
        self._release.tell_everybody()
        await self._abort()

    async def stop_now(self) -> None:
        """Stop without a drain. If a stop is under way already, end its drain and wait for it."""
        self._cut_short.set()
        await (self.wait_stopped() if self.is_stopping else self.stop(0.0))

    async def _stop(self, drain_timeout_s: float) -> None:
        await self._came_up.wait()
        if self._has_failed:
            return
        self._intake.drain()
        drained_s = self._life.loop.time() + drain_timeout_s
        # Time that the drain does not need is left for the last batches.
        self._commit_deadline = drained_s + CANCEL_GRACE_S + FINAL_COMMIT_S
        self._life.is_stopping = self._runner.is_stopping = True
        self._patience.rush()
        # Threads may fill memory faster than it is emptied. What there is no time for waits until the door is closed.
        async with _until(drained_s):
            await self._release.release_waiting(memory_only=True)
        await self._drain(drained_s)
        await self._database_watch.look_for_good(self._commit_deadline - CANCEL_GRACE_S)
        await self._stop_what_runs()
        await self._host.stop(but=WRITER)
        await self._take_in_lost_claim()
        self._abandoned.note(is_loop_gone=False)
        unsaved = await self._final_batches()
        self._release.tell_everybody()
        await self._close(is_unwritten=unsaved > 0)
        if unsaved:
            raise StoreUnavailable(
                f"{counted(unsaved, 'record')} could not be written at the stop ({self._settings.place}); "
                "their last committed state is recovered at the next start"
            )

    async def _drain(self, deadline: float) -> None:
        """Wait for running tasks and for starts in flight; a second signal ends the wait."""
        cut = self._life.loop.create_task(self._cut_short.wait())
        try:
            while not self._cut_short.is_set():
                tasks = [each.task for each in self._runner.running.values() if each.task is not None]
                starting = any(live.phase is STARTING for live in self._live.values())
                left_s = deadline - self._life.loop.time()
                if not (tasks or starting) or left_s <= 0:
                    return
                step_s = min(left_s, DRAIN_STEP_S)
                await asyncio.wait([*tasks, cut], timeout=step_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            cut.cancel()

    async def _stop_what_runs(self) -> None:
        for attempt in list(self._runner.running.values()):
            self._runner.stop(attempt, StopReason.SHUTDOWN)
        tasks = [each.task for each in self._runner.running.values() if each.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_GRACE_S)

    async def _take_in_lost_claim(self) -> None:
        """Take in what a claim has taken that this stop has cut off, so that it is freed with all that waits."""
        with contextlib.suppress(StoreError):
            async with _until(self._commit_deadline - FINAL_COMMIT_S / 2):
                await self._claimer.ask_again()

    async def _final_batches(self) -> int:
        """Free the waiting rows and write everything. The door is closed before the last batch is filled."""
        deadline = max(self._commit_deadline, self._life.loop.time() + FINAL_COMMIT_S / 2)
        await self._database_watch.look_for_good(deadline)
        # The door does not stay open until a large backlog is written, which would only grow meanwhile.
        async with _until(min(deadline, self._life.loop.time() + FINAL_COMMIT_S / 2)):
            await self._release.release_waiting()
            await self._writer.flush()
        self._intake.close()
        self._unstopped.note_unfinished()
        await self._inbox.caught_up()
        await self._release.release_waiting()
        if count := self._life.refused_count:
            self._life.refused_count = 0
            logger.error("%s waiting at the stop, recorded as cancelled", counted(count, "memory-only task"))
        self._host.leave(WRITER)  # until here the host begins it again when it is cancelled
        return await self._writer.close(max(0.1, deadline - self._life.loop.time()))

    async def _close(self, *, is_unwritten: bool) -> None:
        self.engine.close_timers()
        await self.engine.end_listening()
        await self._database_watch.close()
        self._threads.close()
        await self._processes.close(max(0.0, self._commit_deadline - self._life.loop.time()))
        await self._host.close()
        # Calls that wait for a locked file may stand in the way. A row that is left tells the next start of a death.
        try:
            async with asyncio.timeout_at(max(self._commit_deadline, self._life.loop.time() + FINAL_COMMIT_S / 2)):
                await self._abandoned.unregister(is_unwritten=is_unwritten)
        except TimeoutError:
            logger.warning("the instance row could not be removed in time; the next start takes it for a death")
        self._has_closed = True
        try:
            await self._store.close()
        finally:
            self._abandoned.let_go_when_over()

    # What the manager asks in between.

    def look_again(self) -> None:
        """Claim soon, because a new function is known and rows may wait for it. From any thread."""
        self._inbox.tell(self._life.wants_claim.set)

    def expect_submission(self, task_id: str, tags_text: str | None) -> None:
        """Look often, until a task has come that the application writes in its own transaction. From any thread."""
        if _running_loop() is self._life.loop:
            self._poller.watch_closely(task_id, tags_text)
        else:
            self._inbox.tell(self._poller.watch_closely, task_id, tags_text)

    async def _made_anew(self) -> None:
        """Read everything again, because the file is another one now."""
        self._life.whole_looks_wanted += 1
        self._life.wants_claim.set()
        await self.duties.made_anew()

    @cached_property
    def records(self) -> "Records":
        """What is known of each task."""
        from taskmanager.engine.people.records import Records

        return Records(self.engine, self._poller.has_strays, self.stopped)

    @cached_property
    def actions(self) -> "Actions":
        """What people do to tasks."""
        from taskmanager.engine.people.actions import Actions

        return Actions(self.engine, self.records)

    @cached_property
    def workflows(self) -> "Workflows":
        """What people ask of workflows."""
        from taskmanager.engine.people.workflows import Workflows

        return Workflows(self.engine)

    @cached_property
    def queues(self) -> "Queues":
        """What people do with queues."""
        from taskmanager.engine.people.queues import Queues

        return Queues(self.engine)


def new_lifecycle(
    settings: Settings,
    definitions: Mapping[str, Definition],
    schedules: "Mapping[str, Schedule]",
    store: Store,
    clock: Clock,
    intake: Intake,
    hooks: Hooks,
) -> Lifecycle:
    """Make the parts of a new start; none of them works yet.

    Raises `ConfigurationError` outside of an event loop of asyncio.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # under trio, of which Python would only say that there is no running event loop
        raise ConfigurationError(
            "the manager needs an event loop of asyncio, and there is none here; with anyio choose the backend asyncio"
        ) from None
    role = None if settings.run_queues is None else dumps_safe({"run_queues": sorted(settings.run_queues)})
    identity = new_identity(settings.instance_name, clock.now_us(), role)
    engine = wire(settings, definitions, store, clock, identity, intake, hooks)
    return Lifecycle(engine, Supervisor(engine, schedules))
