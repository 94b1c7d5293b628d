"""What follows for a task from its write: committed, lost, rejected, or impossible while the store is degraded.

A write that lost is answered with the row that the store holds instead. For a task with an idempotency key, that is
how it is learned that the task exists already.
"""

import asyncio

from taskmanager.engine.engine import Engine
from taskmanager.engine.intake.keys import Answer, answer_of, tell_other_arguments
from taskmanager.engine.words.attempt import StopReason
from taskmanager.engine.words.live_task import Ending, LiveTask
from taskmanager.engine.words.outcome import extra_of
from taskmanager.engine.words.phases import ACCEPTED, DELAYED, DONE, ENDED, FREEING, LEFT, STARTING
from taskmanager.engine.words.waiters import resolve
from taskmanager.engine.write.writes import StepsDue, log_rejected, pare
from taskmanager.model.errors import StoreError
from taskmanager.model.logger import logger
from taskmanager.model.record import TaskRow, UnreadableRow, expected_of
from taskmanager.model.result import TaskError, TaskResult
from taskmanager.model.states import LIVE, WAITING, BuiltInTaskCode, TaskStatus
from taskmanager.model.workflows import HELD
from taskmanager.store.on_failure import KEY as ON_FAILURE
from taskmanager.store.workflow_protocol import Advance


class AfterWrite:
    """Listens to the writer of one engine (`WriterListener`)."""

    def __init__(self, engine: Engine) -> None:
        self._life, self._live, self._store = engine.life, engine.live, engine.store
        self._instance_id, self._presence = engine.identity.instance_id, engine.presence
        self._free_rows = engine.free_rows
        self._dispatcher, self._alarm, self._runner = engine.dispatcher, engine.alarm, engine.runner
        self._settlement, self._writer, self._follower = engine.settlement, engine.writer, engine.follower
        self._keys, self._clock, self._row_codec = engine.keys, engine.clock, engine.row_codec
        self._dispatcher.give_up, self._dispatcher.is_detached = self.give_up_disordered, self.is_detached

    def committed(self, live: LiveTask) -> None:
        """The newest state that was sent is in the store."""
        if live.save_waiters:
            self._tell_savers(live, None)
        if (due := live.steps_due) is not None:
            due.committed()
        was_unconfirmed = live.is_unconfirmed
        if was_unconfirmed:
            self._confirm(live)
        phase = live.phase
        if phase is STARTING:
            # What is in the store may still be the attempt before; user code waits for its own start.
            if live.saving.committed == live.expectation():
                self._start(live)
        elif phase is ENDED:
            if not live.saving.is_dirty:
                self._end_is_saved(live)
        elif phase is FREEING:
            # What is in the store may be the attempt before here too; it is free when the row says so.
            if live.saving.committed == live.expectation():
                self._gone_to_store(live)
        elif was_unconfirmed and live.is_waiting:
            self._go_on_waiting(live)

    @staticmethod
    def _confirm(live: LiveTask) -> None:
        live.is_unconfirmed = False
        if live.is_duplicate is None:
            live.is_duplicate = False

    def _go_on_waiting(self, live: LiveTask) -> None:
        """The key stands for this task, which may have been waiting for its time or for a slot meanwhile."""
        if live.cancel_requested_at is not None:
            self._life.cancel_waiting(live, BuiltInTaskCode.TASK_CANCELLED, "cancelled before it started")
        elif live.phase is ACCEPTED:
            self._life.enter(live)
        elif self._life.is_stopping:
            self._life.release_late(live)
        elif live.good_until is not None:
            self._alarm.watch_expiry(live)  # it could not expire until now

    def _end_is_saved(self, live: LiveTask) -> None:
        self._dispatcher.move(live, DONE)
        if live.goes_on and not self._life.is_stopping:
            # Interrupted without a stop: its row is free, and nobody else may be there to take it.
            self._life.freed_count += 1
            self._life.wants_claim.set()
        if live.failed_at is not None and ON_FAILURE in live.options_text:
            self._free_rows.note_failure(live.row())
        if not live.is_published:
            self._life.publish(live)
        elif self._dispatcher.has_queues_in_file:  # it had left memory before, while its row still took a place
            self._dispatcher.queue(live.queue_name).expect_place()

    def _gone_to_store(self, live: LiveTask) -> None:
        self._dispatcher.move(live, LEFT)
        self._life.freed_count += 1
        self._life.drop(live)
        if live.waiters or (live.holder is not None and live.holder() is not None):
            self._follower.take_over(live)
        self._keys.left(live)
        queue = self._dispatcher.queue(live.queue_name)
        queue.leave(live.priority)  # a claim under way may not have seen it
        queue.expect_place()
        self._life.wants_more()

    def _start(self, live: LiveTask) -> None:
        """User code runs, unless somebody has asked meanwhile that it should not."""
        if live.cancel_requested_at is None and not self._life.is_stopping:
            if self._dispatcher.is_unseen:
                self._wait_unseen(live)
            else:
                self._life.run(live)
            return
        if live.cancel_requested_at is None:
            self._settlement.release(live)
        else:
            error = TaskError(BuiltInTaskCode.TASK_CANCELLED, "cancelled before user code ran")
            self._settlement.end_with_error(live, TaskStatus.CANCELLED, error, None)
        self._life.finish(live)

    def _wait_unseen(self, live: LiveTask) -> None:
        """Its write took so long that others may take this instance for dead by now. It waits, and its start counts."""
        self._settlement.wait_unstarted(live)
        self._writer.mark(live)
        self._life.enter(live)

    def lost(self, live: LiveTask, row: TaskRow | None) -> None:
        """The store holds another truth than the one we wrote on."""
        if row is not None:
            self._follower.saw(live.task_id, TaskStatus(row.status))
        if live.has_left:  # given up while this write was on its way
            return
        if live.is_unconfirmed:
            self._resolve_key(live, row)
            return
        if row is not None and row.claimed_by_worker_id == HELD and _is_cancelled_while_waiting(live):
            live.saving.committed = expected_of(row)  # nobody else will end it
            self._writer.mark(live)
            return
        if row is None or not _is_taken_over(live, row):
            _log_lost(live, row)
        gone = StoreError(f"task {live.task_id} is not in the store any more, its record was deleted; enqueue it again")
        self._tell_savers(live, gone if row is None else None)
        if row is not None and row.status in LIVE:
            self._follower.taken_away(live.task_id, live.tags_text)
            if live.cancel_requested_at is not None and not isinstance(row, UnreadableRow):  # that ends by its fault
                self._pass_on_cancel(live.task_id)
        self.give_up(live)
        if row is not None and not live.is_published:
            self._follower.saw(live.task_id, TaskStatus(row.status))

    def _tell_savers(self, live: LiveTask, exc: StoreError | None) -> None:
        waiters, live.save_waiters = live.save_waiters, None
        resolve(waiters, exc)

    def give_up(self, live: LiveTask) -> None:
        """The task is another's, or free in the store: nothing of it goes on here, and its waiters follow the store."""
        self._tell_savers(live, None)  # no write of ours will: the store is where others have it from
        if live.attempt is not None:
            self._runner.stop(live.attempt, StopReason.CLAIM_LOST)
        self._dispatcher.move(live, LEFT)
        live.attempts_due, live.steps_due, live.is_unconfirmed = (), None, False
        self._keys.left(live)
        self._life.drop(live)
        self._follower.take_over(live)

    def give_up_disordered(self, live: LiveTask) -> None:
        """Give up a task that was to go where no move leads. The file says how one goes on that stands there."""
        if not live.is_persisted and live.ending is None:
            error = TaskError(BuiltInTaskCode.TASK_INTERRUPTED, "given up, because of a mistake of the task manager")
            live.ending = Ending(TaskStatus.INTERRUPTED, TaskResult(err=error))
            self._life.publish(live)
        self.give_up(live)

    def _resolve_key(self, live: LiveTask, row: TaskRow | None) -> None:
        """The derived id exists already: follow the task that has it, or, where that ended badly, run it again."""
        means = answer_of(row)
        if row is None or means is Answer.ASK:
            live.saving.committed = None
            self._writer.mark(live)
            return
        live.is_duplicate = True
        if means is Answer.SUCCESSOR:
            self._retry_with(live, row)
            return
        live.is_unconfirmed, status = False, TaskStatus(row.status)
        tell_other_arguments(live, row.enqueue_sha, f"a {status} task")
        if live.cancel_requested_at is not None and not live.is_cancel_of_call and not status.is_terminal:
            self._pass_on_cancel(live.task_id)
        self._dispatcher.move(live, LEFT)
        live.adopt(row)
        live.is_published = True
        if status.is_terminal:
            live.ending = Ending(status, self._row_codec.decode_result(row))
        self._keys.left(live)
        self._life.drop(live)
        self._tell_savers(live, None)
        self._follower.take_over(live)

    def _pass_on_cancel(self, task_id: str) -> None:
        """The task was cancelled here before it was known that another instance has it, or that its key has a task:
        that one is meant.
        """
        store, now = self._store, self._clock.now_us()

        async def ask() -> StoreError | None:
            try:
                await store.request_cancel([task_id], now)
            except StoreError as exc:
                logger.warning(
                    "the cancel request for task %s could not be recorded: %s", task_id, exc, extra={"task_id": task_id}
                )
                return exc
            return None

        task = asyncio.get_running_loop().create_task(ask())
        self._life.cancels.add(task)
        task.add_done_callback(self._life.cancels.discard)

    def _retry_with(self, live: LiveTask, row: TaskRow) -> None:
        """As `manager.retry` does, with the arguments of this call, in one write on the row that ended badly."""
        if live.phase is STARTING:
            self._settlement.unbegin(live)
        live.saving.committed = expected_of(row)
        live.start_count = row.start_count
        self._keys.note_rerun(live.task_id, row.start_count, live)
        if row.enqueue_sha != live.enqueue_sha:  # what the steps of other arguments came to says nothing of these
            live.steps_due = StepsDue(forgets=True)
        live.sent_at = row.sent_at
        live.renew_due(self._clock.now_us(), self._clock.elapsed_s())
        if live.phase is not DELAYED or not live.is_pausing:
            live.due = 0.0  # that is over, or was of the heap of the wall clock
        if live.phase is not ACCEPTED:
            self._dispatcher.move(live, ACCEPTED)
        self._writer.mark(live)

    def rejected(self, live: LiveTask, reason: str) -> None:
        """The store will never hold this state. It is tried once more without what may be too much of it; else memory
        goes on with it, and its waiters are told.
        """
        words = f"the record of the step cannot be stored: {reason}"
        if (due := live.steps_due) is not None and due.refuse(StoreError(words)):
            self._writer.mark(live)
            return
        if pare(live, reason):
            (self._writer.mark if live.is_persisted else self._writer.record)(live)
            return
        log_rejected(live, reason)
        live.saving.rejection = reason
        live.attempts_due = ()
        self._tell_savers(live, StoreError(f"task {live.task_id} cannot be stored: {reason}"))
        was_awaiting, live.is_unconfirmed = live.is_awaiting_store, False
        if live.phase is ENDED:
            self._end_in_memory(live)
        elif live.phase is STARTING:
            self._start(live)
        elif was_awaiting and self._dispatcher.needs_claim(live):
            words = "its record cannot be stored, and its queue runs only what stands in the file"
            self._life.cancel_waiting(live, BuiltInTaskCode.TASK_CANCELLED, words)
        elif was_awaiting:
            if live.is_freeing:
                live.owner = self._instance_id
                self._life.freed.pop(live.task_id, None)
                self._dispatcher.move(live, ACCEPTED)
            self._go_on_waiting(live)

    def _end_in_memory(self, live: LiveTask) -> None:
        if not live.is_published:
            self._settlement.lose_unwritten(live)
        self._life.publish(live)
        self._dispatcher.move(live, DONE)

    def degraded(self, exc: StoreError) -> None:
        """The store cannot be written: what may go on goes on, what must not waits."""
        if self._dispatcher.is_store_degraded:
            return
        self._dispatcher.is_store_degraded = True
        is_seen = not (self._dispatcher.is_unseen or self.is_detached())  # else others may run it too
        for live in list(self._live.values()):
            if live.phase is STARTING:
                is_safe = is_seen and live.definition.requeue_on_interrupt
                if (is_safe or self._life.is_stopping or live.cancel_requested_at) and not live.is_unconfirmed:
                    self._start(live)
                else:
                    self._take_start_back(live)
            elif live.phase is ENDED:
                self._life.publish_unsaved(live)

    def _take_start_back(self, live: LiveTask) -> None:
        """It waits again, as if nothing had happened; for a place anew where the file counts them, as its row will."""
        self._settlement.unbegin(live)
        if self._dispatcher.needs_claim(live):
            self._life.free_row(live)
        else:
            self._dispatcher.add_ready(live)

    def advanced(self, advance: Advance) -> None:
        """Workflows have gone on in the commit of a batch."""
        self._free_rows.note_advance(advance)

    def written(self) -> None:
        """A batch is done: there may be room."""
        self._dispatcher.wake_room_waiters()
        if self._dispatcher.has_queues_in_file:
            self._life.wants_more()

    def is_detached(self) -> bool:
        """Whether the others do not see that this instance lives."""
        return self._presence is not None and self._presence.is_detached

    def is_me(self, instance_id: str) -> bool:
        """Whether this instance has that id."""
        return instance_id == self._instance_id

    def is_dead(self, instance_id: str) -> bool:
        """Whether nothing runs at this instance any more."""
        return self._presence is not None and self._presence.is_dead(instance_id)

    def restored(self) -> None:
        """The store is back. What has followed from a commit that seemed to fail is not known, and is looked for."""
        self._dispatcher.is_store_degraded = False
        self._free_rows.look()
        self._life.kick()


def _is_cancelled_while_waiting(live: LiveTask) -> bool:
    """Whether it was cancelled here before it started, and nobody was told of that."""
    committed = live.saving.committed
    is_cancelled = live.status is TaskStatus.CANCELLED and not live.is_published
    return is_cancelled and committed is not None and committed.status in WAITING


def _is_taken_over(live: LiveTask, row: TaskRow) -> bool:
    """Whether another instance has taken over a task that waited here, or its workflow has paused it, freed it or ended
    it: that is no news for anybody.
    """
    committed = live.saving.committed
    if committed is None or live.attempt is not None:
        return False
    if row.start_count <= committed.start_count and not (live.is_workflow_task and committed.status in WAITING):
        return False
    # A cancel that nobody was told of is passed on.
    return _is_cancelled_while_waiting(live) or live.status in LIVE


def _log_lost(live: LiveTask, row: TaskRow | None) -> None:
    logger.warning(
        "claim lost: task %s (%s) is %s now; %s",
        live.definition.name,
        live.task_id,
        "gone" if row is None else f"{row.status} at {row.claimed_by_worker_id or 'nobody'}",
        f"that it was {live.status} here is not recorded" if live.status.is_terminal else "the work here is given up",
        extra=extra_of(live),
    )
