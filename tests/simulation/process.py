"""One simulated process: its loop, its manager with the tasks of `jobs`, its heart, and what it was promised."""

import asyncio
import random
import sqlite3
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any

from taskmanager import TaskHandle, TaskManager, TaskManagerError, TaskNotCompleted
from taskmanager.engine.engine import Engine
from taskmanager.engine.run.lanes import CannotStart
from taskmanager.lifecycle import Lifecycle
from taskmanager.model.errors import StoreError
from taskmanager.model.states import TERMINAL
from taskmanager.store.protocol import Beater
from tests.simulation.faults import Fate, FaultyLine
from tests.simulation.jobs import around, define_jobs
from tests.simulation.lanes import SimulatedChildren, SimulatedThreads
from tests.simulation.latecomer import may_begin_in_thread, may_come
from tests.simulation.turns import TurnLoop

if TYPE_CHECKING:
    from tests.simulation.world import World

HEART_US = 500_000
WOKEN_US = 5_000_000
"""Who saw it silent may act on that for as long as a slow reader takes."""
DEGRADED_US = 5_000_000
"""For so long, and for as long as a slow store takes, what is safe to repeat may begin without its start in the store:
its child may be late in coming up.
"""
TEARDOWN_US = 1_000
"""How long a loop goes on that has cancelled every task, before the program ends."""
STOP_SLACK_S = 3.0
LAST_CALLS = 2
"""What late answers of the store may add to the two seconds of a stop: the two calls behind its last batch end before
it closes the file.
"""


class Process:
    """Lives until it is killed, or has stopped and ended."""

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.number = number
        self.chance: random.Random = world.chance
        self.hurry = random.Random(f"hurry of {world.seed} {number}")
        self.loop = TurnLoop(lambda: world.now_us)
        self.clock = world.new_clock()
        self.view = world.disk.connect(self.clock)
        self.manager: TaskManager = world.make_manager()
        self.jobs = define_jobs(self.manager, self)
        if world.has_middleware:
            self.manager.middleware(partial(around, self))
        if world.listens:
            self.manager.on()(lambda _: None)  # `hearing` stands in for what would tell it
        world.timetable.declare(self.manager, self.jobs, number)
        self.children = SimulatedChildren(self)
        self.handles: dict[str, TaskHandle[Any]] = {}
        self.accepted: dict[str, tuple[int, str]] = {}
        """Tasks without a key: when its manager had started last, and its group."""
        self.unwritten: set[str] = set()
        """Tasks that have ended, and a stop has said that not everything could be written."""
        self.waiting: dict[str, str] = {}
        self.purging = 0
        """Calls of `purge` under way; other records go by the retention only."""
        self.is_purge_asked = False
        """Whether the application was in such a call when it asked the store for what is deleted now."""
        self.is_alive = True
        self.is_up = self.has_been_up = False
        self.is_starting = False
        """Whether its manager has begun to start, and is not up yet."""
        self.is_leaving = False
        self.is_stopping = False
        self.has_closed = False
        """Whether its manager has closed the store, and so lets go of everything, though its stop has not returned."""
        self.has_outlived_the_file = False
        """It had the file open that was deleted, and nothing else has happened to it since."""
        self.was_out = False
        """Whether it was ever frozen or blocked, so that others may have taken it for dead."""
        self.degraded_us = -DEGRADED_US
        """When a commit of its failed last."""
        self.was_degraded = False
        """Whether that ever was."""
        self.frozen_until_us = 0
        self.blocked_until_us = 0
        self.short_until_us = 0
        """Until when the system gives it no thread and no child process."""
        self.between_turns: Callable[[], None] | None = None
        """What another thread does in each moment in which its loop runs no callback."""
        self.turns_left: int | None = None
        self.outage_until_us = 0
        self.closing_us = 0
        """How long the store took to end what was under way, once it was to be closed."""
        self.strangers_us = -WOKEN_US
        """When somebody cancelled every task in its loop last."""
        self.last_beat_us = world.now_us
        self.last_blocked_us = -WOKEN_US
        """Until when its loop was blocked last."""
        self.stepped_us: list[int] = []
        """When its wall clock was set."""
        self.woke_us = -WOKEN_US
        """When its heart beat again after a silence."""
        self.began_us = self._disturbed_us = world.now_us
        """When its manager started last."""
        self.instance_ids: list[str] = []
        self._seen_lifecycle: Lifecycle | None = None
        self._deferred: list[Callable[[], None]] = []
        self._hearts: list[Any] = []
        self._begun: list[Coroutine[Any, Any, Any]] = []
        self._beater: Beater | None = None
        self.transactions: list[Transaction] = []
        """Those of the application that are open."""
        self.calls: dict[asyncio.Task[Any], str] = {}
        """What the application waits for."""
        line = FaultyLine(self)
        self.manager._clock = self.clock
        self.manager._make_store = line.as_store
        self.manager._intake = self.manager._new_intake()

    def __repr__(self) -> str:
        return f"p{self.number}"

    # Turns.

    @property
    def is_frozen(self) -> bool:
        return self.frozen_until_us > self.world.now_us

    @property
    def may_turn(self) -> bool:
        """Whether its loop may run a callback now."""
        now_us = self.world.now_us
        return self.is_alive and self.frozen_until_us <= now_us and self.blocked_until_us <= now_us

    @property
    def is_busy(self) -> bool:
        """Whether the application still waits for something, or is about to ask it."""
        return bool(self.calls) or self.loop.has_work()

    def turn(self) -> None:
        """Run one callback, and perhaps die after it."""
        self.loop.turn()
        if self.between_turns is not None:
            self.between_turns()
        if self.lifecycle is not self._seen_lifecycle:
            self._seen_lifecycle = self.lifecycle
            if self.instance_id is not None:
                self.instance_ids.append(self.instance_id)
        for failure in self.loop.failures:
            self.world.fault(f"{self} has an unhandled error: {failure.get('message')} {failure.get('exception')!r}")
        if self.turns_left is not None:
            self.turns_left -= 1
            if self.turns_left <= 0:
                self.kill()

    def at(self, at_us: int, work: Callable[[], Any]) -> None:
        """Let something happen in the threads of this process: not after its death, and not while it is frozen."""
        self.world.at(at_us, lambda: self._happen(work))

    def _happen(self, work: Callable[[], Any]) -> None:
        if not self.is_alive:
            return
        if self.is_frozen:
            self._deferred.append(work)
        else:
            work()

    def thaw(self) -> None:
        """It runs again; what its threads had begun goes on."""
        deferred, self._deferred = self._deferred, []
        for work in deferred:
            self._happen(work)

    def spawn(self, work: Coroutine[Any, Any, Any], what: str) -> None:
        """Run something of the application in its loop; errors of the library are noted, others are faults."""

        async def guarded() -> None:
            try:
                await work
            except TaskManagerError as exc:
                self.world.log(self, what, "raised", type(exc).__name__)
            except TimeoutError:
                self.world.log(self, what, "timed out")
            except Exception as exc:  # whatever else comes out of the library is a mistake of ours
                self.world.fault(f"{self}: {what} raised {exc!r}")

        task = self.loop.create_task(guarded(), context=Context())
        self.calls[task] = what
        task.add_done_callback(self.calls.pop)
        self._begun.append(work)

    def call(self, work: Callable[[], Any]) -> None:
        """A call of the application, in a turn of its loop."""

        def guarded() -> None:
            try:
                work()
            except TaskManagerError as exc:
                self.world.log(self, "call raised", type(exc).__name__)

        self.loop.call_soon(guarded)

    # The library.

    @property
    def lifecycle(self) -> Lifecycle | None:
        return self.manager._lifecycle

    @property
    def engine(self) -> Engine | None:
        return None if self.lifecycle is None else self.lifecycle.engine

    @property
    def instance_id(self) -> str | None:
        return None if self.engine is None else self.engine.identity.instance_id

    def is_living_as(self, instance_id: str | None) -> bool:
        """Whether this is its instance now, from the start to the closing of the store."""
        return self.is_alive and self.instance_id == instance_id and not self.has_closed

    @property
    def held_ids(self) -> list[str]:
        """The persisted tasks of its own that it holds in memory."""
        live = {} if self.engine is None else self.engine.live
        return [each.task_id for each in live.values() if each.is_persisted and each.owner == self.instance_id]

    @property
    def may_begin_unrecorded(self) -> bool:
        """Whether work that is safe to repeat may begin, and its start be in no store."""
        if self.was_out or self.world.suspension_count:
            return self.was_degraded
        slow_us = round(LAST_CALLS * self.world.weather.longest_call_s * 1_000_000)
        return self.world.now_us - self.degraded_us < DEGRADED_US + slow_us

    def is_degraded(self) -> None:
        """A commit of its has failed, or has gone into a file that nobody finds."""
        self.degraded_us, self.was_degraded = self.world.now_us, True

    def fate(self) -> Fate:
        """What becomes of the next call of the store."""
        world = self.world
        if not world.has_faults:
            return Fate()
        fate = world.weather.draw(world.chance)
        if max(self.outage_until_us, world.outage_until_us) > world.now_us:
            fate = Fate("before", world.chance.choice((0, 0, 100_000)))
        if fate.kind != "ok":
            self.is_disturbed()
        return fate

    def step(self, by_s: float) -> None:
        """Its machine has another time from now on."""
        self.world.log(self, "has its wall clock stepped by", by_s)
        self.clock.step(by_s)
        self.stepped_us.append(self.world.now_us)
        self.is_disturbed()

    def gives_lane(self, what: str) -> None:
        """Raises where there is none now."""
        if self.short_until_us > self.world.now_us:
            raise CannotStart(f"no {what} can be started, as the seed wants it")

    def is_disturbed(self, for_us: int = 0) -> None:
        """Something is in its way: nothing is asked of it that takes its whole attention."""
        self._disturbed_us = max(self._disturbed_us, self.world.now_us + for_us)

    def is_undisturbed_since(self, at_us: int) -> bool:
        """Whether nothing was in its way since then, and it was up."""
        out_until_us = max(self.frozen_until_us, self.blocked_until_us)
        return max(self._disturbed_us, out_until_us) < at_us

    def hash_of(self, schedule: str) -> str:
        """How it defines a schedule."""
        return self.manager._registry.schedules[schedule].config_hash

    def begin(self) -> None:
        """The program starts."""
        may_begin_in_thread(self)
        self.spawn(self.come_up(), "start")
        self.at(self.world.now_us, self._pulse)

    async def come_up(self) -> None:
        """Start the manager; a program whose start fails ends."""
        self.is_starting = True
        try:
            while not await self._has_started_within(self.hurry.choice((None, None, None, 0.0, 0.02, 0.5))):
                self.world.log(self, "has waited long enough for its start")
                if self.is_leaving:
                    return
        except StoreError as exc:
            self.world.log(self, "could not start", str(exc)[:60])
            self.kill()
            return
        finally:
            self.is_starting = False
        engine = self.engine
        assert engine is not None
        engine.writer.stop_watching_loop()  # its thread lives by another clock than this world
        engine.runner.threads = SimulatedThreads(self)  # type: ignore[assignment]  # in place of real ones
        self.children = SimulatedChildren(self)
        engine.runner.processes = self.children  # type: ignore[assignment]  # it plays the lane
        self.is_up = self.has_been_up = True
        self.is_disturbed()
        self.world.log(self, "is up as", engine.identity.instance_id)

    async def _has_started_within(self, seconds: float | None) -> bool:
        self.began_us = self.world.now_us
        try:
            async with asyncio.timeout(seconds):
                await self.manager.start()
        except TimeoutError:
            return False
        return True

    def _pulse(self) -> None:
        """The heart's thread, one turn."""
        self.at(self.world.now_us + HEART_US, self._pulse)
        if self.lifecycle is not None:
            heart: Any = self.lifecycle.duties.heartbeat  # type: ignore[attr-defined]  # of the real rounds
            if heart._thread is not None and heart not in self._hearts:
                self._hearts.append(heart)
        if self._beater is None:
            self._beater = self.view.beater()
        for heart in self._hearts:  # an instance that has stopped may still have one, while its code executes
            if not heart._stop.is_set():
                self._beat(heart)

    def _beat(self, heart: Any) -> None:
        if self.blocked_until_us > self.world.now_us:
            self.last_blocked_us = self.world.now_us
        beater: Any = _Down() if self.fate().kind == "before" else self._beater
        before = dict(heart._due_s)
        heart.pulse(beater)
        if heart._due_s != before and heart.failed_count == 0:
            self.world.disk.log_is_written(self.world.clock.now_us())
            now_us = self.world.now_us
            if now_us - self.last_beat_us >= self.world.stale_us:
                self.woke_us = now_us
            self.last_beat_us = now_us

    def leave_early(self) -> None:
        """A stop that is asked for during the start waits for its end."""
        if self.is_alive and self.is_starting and not self.is_leaving and self.lifecycle is not None:
            self.is_leaving = True
            self.world.log(self, "is to stop, and still starts")
            self.loop.call_soon(lambda: self.spawn(self._leave(0.0), "early stop"))

    def leave(self, drain_s: float) -> None:
        """A graceful stop, and the end of the program."""
        if not self.is_up or self.is_leaving:
            return
        self.is_leaving = True
        self.spawn(self._leave(drain_s), "stop")

    async def _leave(self, drain_s: float) -> None:
        may_come(self)()
        again_s = self.hurry.choice((None, None, 0.0, 0.1))
        if again_s is not None:
            self.loop.call_later(again_s, lambda: self.spawn(self.manager.stop(timeout=again_s), "stop again"))
        await self.stop(drain_s)
        # Some turns more: whoever waited for a handle hears of it before the program ends.
        for _ in range(20):
            await asyncio.sleep(0)
        if self.has_been_up:  # else what it has enqueued waits for a start that does not come
            self._judge_waiters()
        if "stop again" in self.calls.values():
            self.world.fault(f"{self} has stopped, and who has asked for that once more still waits")
        self.kill()

    async def stop(self, drain_s: float) -> None:
        """Stop the manager, and judge how long that took."""
        self.is_up, self.is_stopping, self.has_outlived_the_file = False, True, False
        began, pauses = self.loop.time(), (self.was_out, self.world.suspension_count)
        was_up = self.manager._instance.running() is not None
        hurry = self.hurry.choice((None, None, None, 0.0, 0.1, 1.0))
        try:
            async with asyncio.timeout(hurry):
                await self.manager.stop(timeout=drain_s)
        except TimeoutError:
            self.world.log(self, "has waited long enough for its stop, after", hurry)
        except StoreError as exc:
            self.world.log(self, "stop raised", exc)
            self.unwritten |= {task_id for task_id, handle in self.handles.items() if handle.status in TERMINAL}
        finally:
            self.is_stopping = False
            self.world.checks.leaves(self)
        took_s = self.loop.time() - began
        self.world.log(self, "has stopped", f"after {took_s:.3f} s")
        took_s -= self.closing_us / 1_000_000
        if self.is_alive and (self.is_starting or self.lifecycle is not None):
            self.world.fault(f"{self} has stopped, and its manager starts or runs")
        slack_s = max(STOP_SLACK_S, LAST_CALLS * self.world.weather.longest_call_s)
        is_late = was_up and took_s > drain_s + 2 + slack_s
        if is_late and pauses == (self.was_out, self.world.suspension_count):
            self.world.fault(f"{self} took {took_s:.1f} s to stop, with a drain of {drain_s:g} s")

    def _judge_waiters(self) -> None:
        for what, task_id in self.waiting.items():
            self.world.fault(f"{self} has stopped, and {what} of {task_id} still waits")

    async def restart(self, drain_s: float) -> None:
        """Stop and start in the same program."""
        if not self.is_up or self.is_leaving:
            return
        may_come(self)()
        await self.stop(drain_s)
        await self.come_up()

    def cancel_every_task(self, *, ends_loop: bool) -> None:
        """A stranger cancels all that he finds in the loop: it goes on, or is at its end, and the program with it.

        Where it goes on, the stop of the application is left alone: it would have nobody who stops it.
        """
        if not self.is_up or self.is_leaving:
            return
        self.world.log(self, "has every task cancelled", "at its end" if ends_loop else "")
        self.is_disturbed()
        self.strangers_us = self.world.now_us
        spared = set() if ends_loop else {task for task, what in self.calls.items() if what in ("stop", "restart")}
        for task in sorted(asyncio.all_tasks(self.loop) - spared, key=_age):
            task.cancel()
        if ends_loop:
            self.is_up, self.is_leaving = False, True
            self.at(self.world.now_us + TEARDOWN_US, self.kill)

    def submit(self, name: str, key: str | None = None, *, keeps: bool, held_s: float) -> None:
        """One task in a transaction of the application's own, which holds up every other write for `held_s`."""
        transaction, task_id = Transaction(self), None
        if transaction.is_open:
            self.transactions.append(transaction)
            try:
                task_id = self.manager.submit_in(
                    transaction.connection,
                    self.jobs[name].with_options(idempotency_key=key),
                    self.world.next_label(),
                    "sleep:0.1",
                )
            except TaskManagerError:
                transaction.cut()  # or its lock would be held until some collection of garbage
                raise
            self.world.log(self, "submits", task_id, f"for {held_s} s", "" if keeps else "and rolls back")
            end = partial(transaction.end, task_id, keeps=keeps)
            self.at(self.world.now_us + round(held_s * 1_000_000), end)

    def kill(self) -> None:
        """SIGKILL: no turn any more, and the system lets go of what it held."""
        if not self.is_alive:
            return
        self.world.log(self, "dies")
        self.is_alive = self.is_up = self.has_outlived_the_file = False
        self.world.checks.leaves(self)
        if self.lifecycle is not None and self.lifecycle._presence is not None:
            self.lifecycle._presence.let_go()
        for lock in self.world.locks_of(self):
            lock.close_descriptor()
        self.view.cut()
        for transaction in list(self.transactions):
            transaction.cut()
        self.world.buries(self)

    def bury(self) -> None:
        """The simulation is over: nothing of it is left to be collected at some other time."""
        self.is_alive = False
        if self.lifecycle is not None:
            self.lifecycle._unstopped.end()  # else it would be written when this program ends
        self.manager._intake.held.clear()  # else this program would say at its end that it is lost
        self.loop.bury()
        for work in self._begun:  # some were cancelled before their first step
            work.close()

    # What the application does.

    async def purge(self, given: Mapping[str, Any]) -> None:
        """Delete ended records."""
        self.purging += 1
        try:
            gone = await self.manager.purge(**given)
        finally:
            self.purging -= 1
        self.world.log(self, "has purged", gone)

    def watch(self, handle: TaskHandle[Any]) -> None:
        """Wait for the end of a task and for its commit, as an application would."""
        key = f"{handle.task_id}#{len(self.waiting)}"
        self.handles[handle.task_id] = handle
        self.spawn(self._await_end(handle, key), "handle")
        self.spawn(self._await_saved(handle), "saved")

    async def run_schedule(self, name: str) -> None:
        """One run by hand."""
        handle = await self.manager.run_schedule(name)
        self.watch(handle)

    async def _await_end(self, handle: TaskHandle[Any], key: str) -> None:
        self.waiting[key] = handle.task_id
        try:
            await handle
        except TaskNotCompleted as exc:
            self.world.log(self, "handle", handle.task_id, str(exc.status))
        else:
            self.world.log(self, "handle", handle.task_id, "COMPLETED")
        finally:
            if self.is_alive:
                self.waiting.pop(key, None)

    async def _await_saved(self, handle: TaskHandle[Any]) -> None:
        await handle.saved()
        self.world.checks.promised(handle.task_id)


class Transaction:
    """One of the application's own, on a connection of its own."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._loss_count = process.world.loss_count
        self.connection = sqlite3.connect(process.world.database, isolation_level=None, timeout=0)
        try:
            self.connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:  # somebody else has one
            self.connection.close()

    def __repr__(self) -> str:
        return f"<Transaction of {self._process}>"

    @property
    def is_open(self) -> bool:
        """Whether it was begun."""
        try:
            return self.connection.in_transaction
        except sqlite3.ProgrammingError:
            return False

    def end(self, task_id: str, *, keeps: bool) -> None:
        """Commit it, or roll it back."""
        if not self.is_open:
            return
        self.connection.execute("COMMIT" if keeps else "ROLLBACK")
        self.cut()
        world = self._process.world
        # Who has not noticed yet that the file was deleted has another one open than this has written to.
        if self._loss_count == world.loss_count and self._process.view.is_current:
            world.disk.log_is_written(world.clock.now_us())
            world.checks.observe(self._process, "submit", ())
            (world.checks.promised if keeps else world.checks.taken_back)(task_id)

    def cut(self) -> None:
        """The connection is closed, and what was not committed is gone."""
        self.connection.close()
        self._process.transactions.remove(self)


def _age(task: "asyncio.Task[Any]") -> tuple[int, str]:
    """By the numbers in the names of tasks: a set of them has no order that is the same twice."""
    name = task.get_name()
    number = name.rpartition("-")[2]
    return int(number) if number.isdigit() else 0, name


class _Down:
    """A beater while the file cannot be written."""

    def beat(self, beats: object) -> None:
        from taskmanager import StoreUnavailable

        raise StoreUnavailable("a beat fails, as the seed wants it")

    def let_go(self) -> None:
        pass
