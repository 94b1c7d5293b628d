"""The verbs of a task's life: accepted, entered, started, run, settled, ended, told, dropped.

All on the event loop, and none of it awaits. The way of a task: `accept` → heap → `dispatch` → the writer commits the
start (persisted) → `run` → `report` or `complete` → the writer → `publish`. Starting and stopping the whole is in
`lifecycle`, taking rows from the store in `claiming`, what follows from a write in `after_write`.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from taskmanager.codec.safe import dumps_safe
from taskmanager.engine.choose.dispatch import Dispatcher
from taskmanager.engine.choose.memory_window import MemoryWindow
from taskmanager.engine.intake.inbox import Inbox
from taskmanager.engine.intake.intake import Intake
from taskmanager.engine.intake.keys import Answer, answer, merge_waiters
from taskmanager.engine.run.execution import Runner
from taskmanager.engine.run.lanes import LaneFaults
from taskmanager.engine.run.settle import Settlement
from taskmanager.engine.words import phases
from taskmanager.engine.words.attempt import Attempt, StopReason, Surroundings
from taskmanager.engine.words.definition import with_sender
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.engine.words.outcome import Outcome, as_cause, extra_of, log_again, log_end
from taskmanager.engine.words.timers import Alarm, WatchedClock
from taskmanager.engine.words.waiters import Follower, Waiters, resolve, wait_in
from taskmanager.engine.write.writer import Writer
from taskmanager.model.clock import Clock
from taskmanager.model.errors import StoreError
from taskmanager.model.logger import logger
from taskmanager.model.result import TaskError
from taskmanager.model.states import BuiltInTaskCode, TaskStatus
from taskmanager.store.protocol import ClaimRequest

if TYPE_CHECKING:
    from taskmanager.engine.tell.listeners import Listeners


class Life:
    """What happens to the tasks of one start, and what has become of the start itself."""

    is_up = False
    """True once everything is claimed and user code may run."""
    is_stopping = False
    goes_on_count = 0
    """Tasks that the stop has freed for the next start."""
    refused_count = 0
    """Memory-only tasks that waited at the stop, of which nobody has said so yet."""
    listeners: "Listeners | None" = None
    """Who is told of what happens to tasks, if anybody is."""
    freed_count = 0
    """How many rows were freed here: tasks that were accepted here may wait in the store, or at other instances."""
    whole_looks_wanted = 0
    """How often a look at all news was wanted: a write without an answer may have asked for what nobody has heard."""
    unanswered_claim: Sequence[ClaimRequest] = ()
    """What the last claim has asked for, with one token, while its answer is on its way, or lost. Else nothing."""

    # These call the verbs, so they are made after them; see `attach`.
    _inbox: Inbox
    _alarm: Alarm
    _runner: Runner
    _surroundings: Surroundings
    _lane_faults: LaneFaults

    def __init__(
        self,
        intake: Intake,
        clock: Clock,
        wall_clock: WatchedClock,
        dispatcher: Dispatcher,
        window: MemoryWindow,
        settlement: Settlement,
        writer: Writer,
        follower: Follower,
        *,
        instance_id: str,
        threads: int,
    ) -> None:
        self._intake, self._keys = intake, intake.keys
        self._clock, self._wall_clock = clock, wall_clock
        self._dispatcher, self._window = dispatcher, window
        self._settlement, self._writer, self._follower = settlement, writer, follower
        self._instance_id, self._threads = instance_id, threads
        self.live: dict[str, LiveTask] = {}
        self.freed: WeakValueDictionary[str, LiveTask] = WeakValueDictionary()
        """Tasks whose rows are free in the store, or will be."""
        self.loop = asyncio.get_running_loop()
        """The loop of the start. After that was closed under it, the one in which the start is ended."""
        self.wants_claim = asyncio.Event()
        self.cancels: set[asyncio.Task[StoreError | None]] = set()
        """Requests, on their way to the store, to cancel what another instance has."""
        self._idle_waiters: Waiters = []

    def attach(self, inbox: Inbox, alarm: Alarm, runner: Runner, around: Surroundings, faults: LaneFaults) -> None:
        """Use these parts, which call the verbs."""
        self._inbox, self._alarm, self._runner = inbox, alarm, runner
        self._surroundings, self._lane_faults = around, faults
        self.kick = self._dispatcher.wants_take = inbox.kick

    def __repr__(self) -> str:
        return f"<Life of {len(self.live)}, {'stopping' if self.is_stopping else 'up' if self.is_up else 'starting'}>"

    def leave_loop(self) -> None:
        """Go on in the running loop, because the one before will not run again."""
        self.loop, self.wants_claim = asyncio.get_running_loop(), asyncio.Event()
        self.is_stopping = True

    # Accepting.

    def accept(self, live: LiveTask) -> None:
        """Take in what the intake has checked and counted as entered. Do nothing where that was done before."""
        if live.phase is not phases.ARRIVED:
            return
        if live.is_ordinary and live.cancel_requested_at is None and not self.is_stopping:
            self.live[live.task_id] = live  # what `_take_in` and `enter` come to; the turn that starts it is due
            if self.listeners is not None:
                self.listeners.accepted(live)
            self._dispatcher.add_ready(live)
        elif live.idempotency_key is None:
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
            self._dispatcher.move(live, phases.BEHIND)
        else:
            self._join_first(here.successor or here, live)

    def _take_in(self, live: LiveTask) -> None:
        self.live[live.task_id] = live
        if not live.is_persisted:
            if self.listeners is not None:
                self.listeners.accepted(live)
            if live.cancel_requested_at is None:
                self.enter(live)
            else:
                self.cancel_waiting(live, BuiltInTaskCode.TASK_CANCELLED, "cancelled before it started")
            return
        queue = self._dispatcher.queue(live.queue_name)
        if live.idempotency_key is None and (
            queue.waits_in_file
            or (queue.stored_waiting >= self._window.most and self._window.overflows(live, queue, self._clock.now_us()))
        ):
            self.free_row(live)
        else:
            live.owner = self._instance_id
            (self._writer.mark if live.save_waiters or live.is_unconfirmed else self._writer.accept)(live)
            self.enter(live)

    def _join_first(self, first: LiveTask, live: LiveTask) -> None:
        self._dispatcher.move(live, phases.LEFT)
        merge_waiters(first, live)
        self._keys.means(first)
        if first.save_waiters:
            self._writer.mark(first)

    def free_row(self, live: LiveTask) -> None:
        """Too much to hold: the row goes to the store as a free one, and is claimed when there is room."""
        if live.is_unconfirmed:
            self._wait_accepted(live)
            return
        live.renew_due(self._clock.now_us(), self._clock.elapsed_s())
        self._dispatcher.move(live, phases.FREEING)
        live.owner = None
        queue = self._dispatcher.queue(live.queue_name)
        queue.leave(live.priority)
        live.options_text = with_sender(live.options_text, self._instance_id)
        self.freed[live.task_id] = live
        self._writer.mark(live)

    def _wait_accepted(self, live: LiveTask) -> None:
        """It waits in no heap until the store has answered for its key, or the code of an earlier attempt has ended."""
        if live.phase is not phases.ACCEPTED:
            self._dispatcher.move(live, phases.ACCEPTED)

    def enter(self, live: LiveTask) -> None:
        """`live` waits: for code of an earlier attempt that was given up, for its time, or for a slot."""
        dispatcher, runner = self._dispatcher, self._runner
        may_run = runner.abandoned or live.task_id in runner.running
        if may_run and runner.after(live.task_id, lambda: self._enter_at_last(live)):
            self._wait_accepted(live)
            return
        if self.is_stopping:
            self.release_late(live)
            return
        if dispatcher.has_queues_in_file and dispatcher.needs_claim(live):
            self.free_row(live)
            return
        if live.good_until is not None:
            self._alarm.watch_expiry(live)
        if live.due:
            if live.saving.rejection is None and self._window.is_full_without(live):  # else refused again, for ever
                self.free_row(live)  # retries too must leave memory to what can start
                return
            dispatcher.add_delayed(live, live.due)
            self._alarm.set()
        elif live.enqueued_at > live.updated_at and live.enqueued_at > self._clock.now_us():
            dispatcher.add_scheduled(live, live.enqueued_at)
            self._alarm.set()
        else:
            dispatcher.add_ready(live)
            self.kick()

    def release_late(self, live: LiveTask) -> None:
        """Accepted while the manager drains: persisted work is kept for the next start, the rest is refused by name."""
        if live.is_unconfirmed:
            self._wait_accepted(live)
        elif live.is_persisted:
            self._settlement.release(live)
            self._dispatcher.move(live, phases.ENDED)
            self._writer.mark(live)
        else:
            self.refused_count += 1
            words = "the manager stopped before the task could start"
            self.cancel_waiting(live, BuiltInTaskCode.MANAGER_STOPPED, words)

    # Starting.

    def dispatch(self) -> None:
        """Start what may start now."""
        if self.is_stopping:
            self._dispatcher.resume()
            return
        if not self.is_up or self._intake.is_forked:  # a child that goes on in the loop of its parent starts nothing
            return
        begin, run, taken = self._settlement.begin, self.run, self._dispatcher.take()
        now_us = self._clock.now_us() if taken else 0  # they start together, and alike rows are written faster
        for live in taken:
            try:
                if live.good_until is not None and live.good_until <= self._wall_clock.now_us():
                    self._come_too_late(live)
                    continue
                begin(live, now_us)
                if live.is_persisted:
                    self._writer.mark(live)
                    if self._writer.degraded_since is None:
                        continue  # it runs when that is committed
                run(live)
            except phases.ForbiddenMove:  # the task was given up, and those behind it have their slots
                continue
        self.wants_more()

    def _come_too_late(self, live: LiveTask) -> None:
        """Its `good_until` has passed; or the clock was stepped, and it is seen again when the clock can be trusted."""
        if live.is_unconfirmed:
            self._wait_accepted(live)
        elif self._wall_clock.holds_expiry:
            self._dispatcher.add_delayed(live, self._wall_clock.trusted_at_s)
            self._alarm.set()
        else:
            self._expire(live)

    def wants_more(self) -> None:
        """Ask for more rows when a queue runs low, or a batch that was taken over has ended."""
        # Every turn ends here, and seldom is there anything of that.
        may_want = (self._dispatcher.backlogs or self._window.taken_over) and not self._dispatcher.is_unseen
        if may_want and not self.wants_claim.is_set() and self._window.wants_more(self.live):
            self.wants_claim.set()

    def run(self, live: LiveTask) -> None:
        """User code runs from here on."""
        self._dispatcher.move(live, phases.RUNNING)
        if self.listeners is not None:
            self.listeners.runs(live)
        self._runner.start(Attempt(live, self._surroundings))

    def wake_due(self) -> None:
        """Something may be due: let it be ready, and end what has waited too long."""
        now_us, is_held = self._wall_clock.now_us(), self._wall_clock.holds_expiry
        for live in self._dispatcher.wake_due(self._clock.elapsed_s(), now_us, holds_expiry=is_held):
            self._expire(live)
        self.kick()

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
            self._lane_faults.note(attempt.live.definition.lane, outcome)

    def complete(self, attempt: Attempt, value: Any) -> None:
        """End a plain run with this value: the first run of a task, which succeeds, and to which nothing unusual was
        done. This is what `report` does for any outcome, without its layers, which would decide nothing for such a run.
        `Attempt.is_plain` says whether a run may end here. Nearly every run is plain.
        """
        live = attempt.live
        attempt.is_over, attempt.task, live.attempt = True, None, None
        if attempt.forget_limit is not None:
            attempt.forget_limit(attempt)
        is_first_success = self._settlement.complete(live, attempt, value)
        if is_first_success and live.is_ordinary:
            self._dispatcher.move(live, phases.ENDED)
            self._writer.record(live, is_ordinary=True)
            self.publish(live)
        else:
            self.finish(live)
        self._free_slot(attempt)

    def interrupt(self, attempt: Attempt) -> None:
        """Its coroutine will never go on: settle it as a stop does what it has cancelled."""
        self.settle(attempt, self._runner.cut_off(attempt))

    def settle(self, attempt: Attempt, outcome: Outcome) -> None:
        """Let the task go on to what this outcome leads to."""
        live = attempt.live
        if attempt.stop_reason is StopReason.CLAIM_LOST:
            attempt.close(None)
            return
        log_text = None if attempt.log_entries is None else dumps_safe(attempt.log_entries)
        attempt.close(log_text)
        step = self._settlement.settle(live, attempt, outcome)
        live.attempt = None
        if step.delay_s is None:
            log_end(live, attempt.raised)
            if attempt.raised is not None and live.holder is not None:
                live.tell_cause(as_cause(attempt.raised))
            self.finish(live)
            return
        if step.is_retry:
            log_again(live, outcome.error, step.delay_s or 0.0)
        self._dispatcher.move(live, phases.ACCEPTED)
        live.due = self._clock.elapsed_s() + step.delay_s if step.delay_s > 0 else 0.0
        if live.is_persisted:
            self._writer.mark(live)
        if self.listeners is not None:
            self.listeners.waits_again(live, attempt.started_at)
        (self.free_row if step.sleeps else self.enter)(live)

    def _enter_at_last(self, live: LiveTask) -> None:
        if live.phase is phases.ACCEPTED:
            self.enter(live)

    def _return_stuck_slot(self, attempt: Attempt) -> None:
        """A stuck attempt keeps its slot until it ends, except that a lane's worth of stuck threads may be replaced."""
        stuck = sum(each.live.definition.lane == "thread" for each in self._runner.abandoned)
        if attempt.live.definition.lane == "thread" and stuck <= self._threads:
            self._free_slot(attempt)

    def _free_slot(self, attempt: Attempt) -> None:
        if attempt.has_slot:
            attempt.has_slot = False
            self._dispatcher.give_back(attempt.live)

    def finish(self, live: LiveTask) -> None:
        """The task has ended here (for good, or for this instance): to the store, and to its waiters."""
        self._dispatcher.move(live, phases.ENDED)
        self._inbox.end(live)
        if not live.is_persisted or self._writer.degraded_since is not None:
            self.publish_unsaved(live)

    def _expire(self, live: LiveTask) -> None:
        error = TaskError(BuiltInTaskCode.TASK_EXPIRED, "good_until passed before the task could start")
        self._settlement.end_with_error(live, TaskStatus.EXPIRED, error, None)
        logger.info("task %s (%s) expired", live.definition.name, live.task_id, extra=extra_of(live))
        self.finish(live)

    def cancel_waiting(self, live: LiveTask, code: BuiltInTaskCode, message: str) -> None:
        """A waiting task never runs."""
        self._settlement.end_with_error(live, TaskStatus.CANCELLED, TaskError(code, message), None)
        self.finish(live)

    def cancel(self, live: LiveTask, *, of_call: bool = False) -> bool:
        """Ask for a task to be cancelled. Return False if it has ended, and no other call of its key follows it.

        `of_call` says that a task of another call is not meant, if the key has one by the word of the store.
        """
        live = live.successor or live
        if live.status.is_terminal or live.phase in (phases.FREEING, phases.ENDED, phases.DONE, phases.LEFT):
            return False
        live.is_cancel_of_call = of_call and (live.cancel_requested_at is None or live.is_cancel_of_call)
        live.cancel_requested_at = live.cancel_requested_at or self._clock.now_us()
        if live.is_waiting and not live.is_unconfirmed:
            self.cancel_waiting(live, BuiltInTaskCode.TASK_CANCELLED, "cancelled before it started")
            return True
        # Where its row is on the way to the store, without the request, the request is one write more. Whether this
        # call or an earlier one of its key is meant, the store will say.
        if live.is_persisted and self.live.get(live.task_id) is live:
            self._writer.mark(live)
        if live.attempt is not None:
            self._runner.stop(live.attempt, StopReason.CANCEL)
        return True

    def publish_unsaved(self, live: LiveTask) -> None:
        """Tell of an end before it is in the store. Whether a task goes on after a stop depends on the last batches."""
        if not (self.is_stopping and live.goes_on):
            self.publish(live)

    def publish(self, live: LiveTask) -> None:
        """Tell everybody who waits, and forget the task."""
        if live.is_published:
            return
        live.is_published = True
        if self.listeners is not None:
            self.listeners.ends(live)
        if self.is_stopping:
            self._settlement.lose_unwritten(live)
            self.goes_on_count += live.goes_on
        self._follower.tell_end(live)
        live.context = None
        if not live.encodes_later:
            live.call_args = live.call_kwargs = None
        if live.idempotency_key is not None and live.status.is_terminal:
            self._keys.ended(live)
        if live.is_persisted and not live.is_saved and live.saving.rejection is None:
            self._writer.keep_ended(live)  # its record is here until the store has it
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
        await self._inbox.caught_up()
        await self._writer.flush()
        if self.cancels:
            for asked in (await asyncio.wait(self.cancels))[0]:
                if not asked.cancelled() and (failure := asked.result()) is not None:
                    raise failure

    async def idle(self) -> None:
        """Return when memory holds no unfinished task."""
        await self._inbox.caught_up()
        while self.live:
            await wait_in(self._idle_waiters)
            await self._inbox.caught_up()
