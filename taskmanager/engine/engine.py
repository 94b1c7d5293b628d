"""One start of one manager: accepts, starts, settles and publishes tasks. All on the event loop, none of it awaits.

The way of a task: `accept` → heap → `dispatcher.take` → the writer commits the start (persisted) → `runner` → `report`
→ `settlement` → the writer → `publish`. Starting and stopping the whole is in `lifecycle`, taking rows from the store
in `claiming`.
"""

import asyncio
import random
from collections.abc import Mapping
from typing import Any, cast
from weakref import WeakValueDictionary

from taskmanager.codec.safe import dumps_safe
from taskmanager.engine import phases
from taskmanager.engine.alarm import Alarm
from taskmanager.engine.attempt import Attempt, StopReason, Surroundings
from taskmanager.engine.definition import Definition, RowCodec
from taskmanager.engine.dispatch import Dispatcher
from taskmanager.engine.events import extra_of, log_again, log_end
from taskmanager.engine.execution import Runner
from taskmanager.engine.inbox import Inbox
from taskmanager.engine.instance import Identity
from taskmanager.engine.intake import Intake
from taskmanager.engine.keys import Answer, answer, merge_waiters
from taskmanager.engine.lanes import LaneFaults
from taskmanager.engine.live_task import Ending, LiveTask
from taskmanager.engine.loops import Host
from taskmanager.engine.memory_window import MemoryWindow
from taskmanager.engine.outcome import Outcome, as_cause
from taskmanager.engine.plain import PlainSuccess
from taskmanager.engine.settle import Settlement
from taskmanager.engine.timers import StallWatch, WatchedClock
from taskmanager.engine.waiters import Follower, resolve, wait_in
from taskmanager.engine.writer import Writer
from taskmanager.engine.writes import ProgressSaver
from taskmanager.model.clock import Clock
from taskmanager.model.logger import logger
from taskmanager.model.result import TaskError
from taskmanager.model.settings import Settings
from taskmanager.model.states import BuiltInTaskCode, TaskStatus
from taskmanager.store.protocol import Store


class Engine:
    """Memory, its rules and its loops, between one `start` and one `stop`."""

    is_up = False
    """True once everything is claimed and user code may run."""
    is_stopping = False
    goes_on_count = 0  # of those that the stop has freed for the next start
    unanswered_claim_at: int | None = None  # the token of a claim whose answer is on its way, or was lost
    refused_count = 0  # memory-only tasks that waited at the stop, of which nobody has said so yet

    def __init__(
        self,
        settings: Settings,
        definitions: Mapping[str, Definition],
        store: Store,
        clock: Clock,
        identity: Identity,
        intake: Intake,
    ) -> None:
        self.settings = settings
        self.definitions = definitions
        self.row_codec = RowCodec(definitions)
        self.store = store
        self.clock = clock
        self.identity, self.intake, self.keys = identity, intake, intake.keys
        self.loop = asyncio.get_running_loop()
        self.live: dict[str, LiveTask] = {}
        self.freed: WeakValueDictionary[str, LiveTask] = WeakValueDictionary()  # whose rows are free, or will be
        self.has_freed = False  # whether rows free in the store may be tasks that were accepted here
        self.stall = StallWatch(self.loop)
        self.dispatcher = Dispatcher(settings.lanes(), settings.queues)
        self.window = MemoryWindow(settings.max_in_memory, self.dispatcher)
        self.wall_clock = WatchedClock(clock)
        self.alarm = Alarm(self.loop, clock, self.wall_clock, self.dispatcher.delays, self._wake_due)
        self.settlement = Settlement(identity, clock, random.random, settings.recovery.crash_budget)
        self.writer = Writer(store, clock, settings.commit_interval_s, settings.snapshot_interval_s)
        self.inbox = Inbox(self.live, self.dispatcher, self.writer, self.accept, self._dispatch)
        self.kick = self.dispatcher.wants_take = self.inbox.kick
        self.failing_duties: dict[str, str] = {}
        self.host = Host(self.loop, self.failing_duties)
        self.follower = Follower(self.loop, store, self.row_codec.decode_result)
        success = PlainSuccess(self.settlement, self.writer, self.follower, self.dispatcher, self.drop)
        hooks = self.report, success.complete, self.stall.lost_s, self.writer.was_cancelled_since
        self.runner = Runner(settings.processes, self.host, *hooks)
        save_progress = ProgressSaver(self.loop, self.writer.mark, clock).save
        self.surroundings = Surroundings(self.dispatcher, save_progress, clock.now_us)
        self.wants_claim = asyncio.Event()
        self.claiming = asyncio.Lock()  # held while rows of a claim are neither free in the store nor in memory yet
        self.lane_faults = LaneFaults(self.loop, self.dispatcher, self.runner.processes, self.failing_duties)
        self._idle_waiters: list[asyncio.Future[Any]] = []

    def __repr__(self) -> str:
        return f"<Engine {self.identity.instance_id} {self.dispatcher!r} {self.writer!r}>"

    # Accepting.

    def accept(self, live: LiveTask) -> None:
        """Take in what the intake has checked and counted as entered. Do nothing where that was done before."""
        if live.phase is not phases.ARRIVED:
            return
        if live.idempotency_key is None:
            self._take_in(live)
        else:
            self._take_in_keyed(live)

    def _take_in_keyed(self, live: LiveTask) -> None:
        here = self.live.get(live.task_id)
        means = answer(live, here)
        if here is None:
            live.is_unconfirmed = means is Answer.ASK
            self._take_in(live)
        elif means is Answer.SUCCESSOR:
            here.successor, live.is_unconfirmed = live, True
            self.dispatcher.move(live, phases.BEHIND)
        else:
            self._join_first(here.successor or here, live)

    def _take_in(self, live: LiveTask) -> None:
        self.live[live.task_id] = live
        if not live.is_persisted:
            if live.cancel_requested_at is None:
                self.enter(live)
            else:
                self.cancel_waiting(live, BuiltInTaskCode.TASK_CANCELLED, "cancelled before it started")
            return
        queue = self.dispatcher.queue(live.queue_name)
        if live.idempotency_key is None and (
            queue.shared_limit is not None
            or (queue.stored_waiting >= self.window.most and self.window.overflows(live, queue, self.clock.now_us()))
        ):
            self.free_row(live)
        else:
            live.owner = self.identity.instance_id
            (self.writer.mark if live.save_waiters or live.is_unconfirmed else self.writer.accept)(live)
            self.enter(live)

    def _join_first(self, first: LiveTask, live: LiveTask) -> None:
        self.dispatcher.move(live, phases.LEFT)
        merge_waiters(first, live)
        self.keys.means(first)
        if first.save_waiters:
            self.writer.mark(first)

    def free_row(self, live: LiveTask) -> None:
        """Too much to hold: the row goes to the store as a free one, and is claimed when there is room."""
        if live.is_unconfirmed:
            self._wait_accepted(live)
            return
        live.renew_due(self.clock.now_us(), self.clock.elapsed_s())
        self.dispatcher.move(live, phases.FREEING)
        live.owner = None
        self.dispatcher.queue(live.queue_name).leave(live.priority)
        self.freed[live.task_id] = live
        self.writer.mark(live)

    def _wait_accepted(self, live: LiveTask) -> None:
        """It waits in no heap until the store has answered for its key, or the code of an earlier attempt has ended."""
        if live.phase is not phases.ACCEPTED:
            self.dispatcher.move(live, phases.ACCEPTED)

    def enter(self, live: LiveTask) -> None:
        """`live` waits: for code of an earlier attempt that was given up, for its time, or for a slot."""
        dispatcher, runner = self.dispatcher, self.runner
        may_run = runner.abandoned or live.task_id in runner.running
        if may_run and runner.after(live.task_id, lambda: self._enter_at_last(live)):
            self._wait_accepted(live)
            return
        if self.is_stopping:
            self.release_late(live)
            return
        if dispatcher.has_shared_limits and dispatcher.needs_place(live):
            self.free_row(live)
            return
        if live.good_until is not None:
            self.alarm.watch_expiry(live)
        if live.due:
            if self._is_full_for(live) and live.saving.rejection is None:  # else it would be refused again, for ever
                self.free_row(live)  # retries too must leave memory to what can start
                return
            dispatcher.add_delayed(live, live.due)
            self.alarm.set()
        elif live.enqueued_at > live.updated_at and live.enqueued_at > self.clock.now_us():
            dispatcher.add_scheduled(live, live.enqueued_at)
            self.alarm.set()
        else:
            dispatcher.add_ready(live)
            self.kick()

    def _is_full_for(self, live: LiveTask) -> bool:
        """Whether memory holds as many tasks of its queue as it should, without this one."""
        held = self.dispatcher.queue(live.queue_name).stored_waiting - (live.phase is phases.ACCEPTED)
        return live.is_persisted and held >= self.window.most

    def release_late(self, live: LiveTask) -> None:
        """Accepted while the manager drains: persisted work is kept for the next start, the rest is refused by name."""
        if live.is_unconfirmed:
            self._wait_accepted(live)
        elif live.is_persisted:
            self.settlement.release(live)
            self.dispatcher.move(live, phases.ENDED)
            self.writer.mark(live)
        else:
            self.refused_count += 1
            self.cancel_waiting(
                live, BuiltInTaskCode.MANAGER_STOPPED, "the manager stopped before the task could start"
            )

    # Starting.

    def _dispatch(self) -> None:
        if self.is_stopping:
            self.dispatcher.resume()
            return
        if not self.is_up or self.intake.is_forked:  # a child that goes on in the loop of its parent starts nothing
            return
        begin, run, wall_clock = self.settlement.begin, self.run, self.wall_clock
        for live in self.dispatcher.take():
            try:
                if live.good_until is not None and live.good_until <= wall_clock.now_us():
                    self._come_too_late(live)
                    continue
                begin(live)
                if live.is_persisted:
                    self.writer.mark(live)
                    if self.writer.degraded_since is None:
                        continue  # it runs when that is committed
                run(live)
            except phases.ForbiddenMove:  # the task was given up, and those behind it have their slots
                continue
        self.wants_more()

    def _come_too_late(self, live: LiveTask) -> None:
        """Its `good_until` has passed; or the clock was stepped, and it is seen again when the clock can be trusted."""
        if live.is_unconfirmed:
            self._wait_accepted(live)
        elif self.wall_clock.holds_expiry:
            self.dispatcher.add_delayed(live, self.wall_clock.trusted_at_s)
            self.alarm.set()
        else:
            self._expire(live)

    def wants_more(self) -> None:
        """Ask for more rows when a queue runs low, or a batch that was taken over has ended."""
        # Every turn ends here, and seldom is there anything of that.
        may_want = self.dispatcher.backlogs or self.window.taken_over
        if may_want and not self.wants_claim.is_set() and self.window.wants_more(self.live):
            self.wants_claim.set()

    @property
    def has_backlog(self) -> bool:
        """Whether rows that could run now were left in the store."""
        return bool(self.dispatcher.backlogs)

    def run(self, live: LiveTask) -> None:
        """User code runs from here on."""
        self.dispatcher.move(live, phases.RUNNING)
        self.runner.start(Attempt(live, self.surroundings))

    def _wake_due(self) -> None:
        """Something may be due: let it be ready, and end what has waited too long."""
        now_us = self.wall_clock.now_us()
        for live in self.dispatcher.wake_due(self.clock.elapsed_s(), now_us, holds_expiry=self.wall_clock.holds_expiry):
            self._expire(live)
        self.kick()

    def leave_loop(self) -> None:
        """The loop will not run again: nothing rings there any more, and what is left is done in the running one."""
        self.close_timers()
        self.loop = asyncio.get_running_loop()
        self.is_stopping = self.runner.is_stopping = True
        self.wants_claim = asyncio.Event()
        self.host.leave_loop()
        self.inbox.leave_loop()
        self.dispatcher.leave_loop()
        self.follower.leave_loop()
        self.writer.leave_loop()

    def close_timers(self) -> None:
        """No more wake-ups."""
        self.alarm.close()
        self.stall.close()

    # Ending.

    def report(self, attempt: Attempt, outcome: Outcome) -> None:
        """What an attempt came to, from the runner; once per attempt."""
        if attempt.is_abandoned:
            attempt.on_end = lambda: self._free_slot(attempt)  # it may have lent its slot, and take one back
            self._return_stuck_slot(attempt)
        try:
            self.settle(attempt, outcome)
        finally:
            # After the waiters were woken: a parent that waited for this task asks for its slot before others start.
            if not attempt.is_abandoned:
                self._free_slot(attempt)
            self.lane_faults.note(attempt.live.definition.lane, outcome)

    def interrupt(self, attempt: Attempt) -> None:
        """Its coroutine will never go on: settle it as a stop does what it has cancelled."""
        outcome = self.runner.cut_off(attempt)
        self.settle(attempt, outcome)

    def settle(self, attempt: Attempt, outcome: Outcome) -> None:
        """Let the task go on to what this outcome leads to."""
        live = attempt.live
        if attempt.stop_reason is StopReason.CLAIM_LOST:
            attempt.close(None)
            return
        log_text = None if attempt.log_entries is None else dumps_safe(attempt.log_entries)
        attempt.close(log_text)
        step = self.settlement.settle(live, attempt, outcome)
        live.attempt = None
        if step.delay_s is None:
            log_end(live, attempt.raised)
            if attempt.raised is not None and live.holder is not None:
                live.tell_cause(as_cause(attempt.raised))
            self.finish(live)
            return
        if step.is_retry:
            log_again(live, outcome.error, step.delay_s or 0.0)
        self.dispatcher.move(live, phases.ACCEPTED)
        live.due = self.clock.elapsed_s() + step.delay_s if step.delay_s > 0 else 0.0
        if live.is_persisted:
            self.writer.mark(live)
        self.enter(live)

    def _enter_at_last(self, live: LiveTask) -> None:
        if live.phase is phases.ACCEPTED:
            self.enter(live)

    def _return_stuck_slot(self, attempt: Attempt) -> None:
        """A stuck attempt keeps its slot until it ends, except that a lane's worth of stuck threads may be replaced."""
        stuck = sum(each.live.definition.lane == "thread" for each in self.runner.abandoned)
        if attempt.live.definition.lane == "thread" and stuck <= self.settings.threads:
            self._free_slot(attempt)

    def _free_slot(self, attempt: Attempt) -> None:
        if attempt.has_slot:
            attempt.has_slot = False
            self.dispatcher.give_back(attempt.live)

    def finish(self, live: LiveTask) -> None:
        """The task has ended here (for good, or for this instance): to the store, and to its waiters."""
        self.dispatcher.move(live, phases.ENDED)
        if not live.is_persisted:
            self.writer.record(live)
            self.publish(live)
            return
        self.writer.mark(live)
        if self.writer.degraded_since is not None:
            self.publish(live)

    def _expire(self, live: LiveTask) -> None:
        error = TaskError(BuiltInTaskCode.TASK_EXPIRED, "good_until passed before the task could start")
        self.settlement.end_with_error(live, TaskStatus.EXPIRED, error, None)
        logger.info("task %s (%s) expired", live.definition.name, live.task_id, extra=extra_of(live))
        self.finish(live)

    def cancel_waiting(self, live: LiveTask, code: BuiltInTaskCode, message: str) -> None:
        """A waiting task never runs."""
        self.settlement.end_with_error(live, TaskStatus.CANCELLED, TaskError(code, message), None)
        self.finish(live)

    def cancel(self, live: LiveTask) -> bool:
        """Ask for a task of this instance to be cancelled; False when it has ended, and no other call of its key
        follows it.
        """
        live = live.successor or live
        if live.status.is_terminal or live.phase in (phases.FREEING, phases.ENDED, phases.DONE, phases.LEFT):
            return False
        live.cancel_requested_at = live.cancel_requested_at or self.clock.now_us()
        if live.is_waiting and not live.is_unconfirmed:
            self.cancel_waiting(live, BuiltInTaskCode.TASK_CANCELLED, "cancelled before it started")
            return True
        # Where its row is on the way to the store, without the request, the request is one write more. Whether this
        # call or an earlier one of its key is meant, the store will say.
        if live.is_persisted and self.live.get(live.task_id) is live:
            self.writer.mark(live)
        if live.attempt is not None:
            self.runner.stop(live.attempt, StopReason.CANCEL)
        return True

    def publish(self, live: LiveTask) -> None:
        """Tell everybody who waits, and forget the task."""
        if live.is_published:
            return
        live.is_published = True
        self.goes_on_count += live.goes_on and self.is_stopping
        self.follower.tell_end(live)
        live.context = None
        if not live.encodes_later:
            live.call_args = live.call_kwargs = None
        if live.idempotency_key is not None and live.status.is_terminal:
            self.keys.ended(live)
        if live.is_persisted and not live.is_saved and live.saving.rejection is None:
            self.writer.unsaved_ended[live.task_id] = live  # its record is here until the store has it
        self.drop(live)

    def drop(self, live: LiveTask) -> None:
        """Memory keeps nothing of the task but what its handles hold."""
        if self.live.get(live.task_id) is live:
            del self.live[live.task_id]
        if live.successor is not None:
            successor, live.successor = live.successor, None
            self._take_in_keyed(successor)
        if not self.live and self._idle_waiters:
            waiters, self._idle_waiters = self._idle_waiters, []
            resolve(waiters, None)

    async def flush(self) -> None:
        """Return when everything accepted or ended so far is committed."""
        await self.inbox.caught_up()
        await self.writer.flush()

    async def idle(self) -> None:
        """Return when memory holds no unfinished task."""
        await self.inbox.caught_up()
        while self.live:
            await wait_in(self._idle_waiters)
            await self.inbox.caught_up()

    async def ended(self, live: LiveTask) -> Ending:
        """The ending of this task, whoever waits for it besides."""
        if live.is_published and live.ending is not None:
            return live.ending
        return cast("Ending", await wait_in(live.waiters_list()))
