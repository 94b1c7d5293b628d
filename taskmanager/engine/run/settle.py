"""Turns the outcome of an attempt into the next state of its task: the retry rule, the attempt row, the result.

Nothing here awaits or touches the store; the caller hands the task to the writer. What is stored of a result and of an
error is made by code of the application (a codec, an `__eq__`, a mapping), so whatever that raises ends here.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from taskmanager.codec.safe import safe_text
from taskmanager.engine.words.attempt import Attempt, StopReason
from taskmanager.engine.words.definition import Definition
from taskmanager.engine.words.live_task import GOES_ON, NO_WORKER, Ending, LiveTask, Worker
from taskmanager.engine.words.outcome import Outcome
from taskmanager.model.clock import SECOND_US, Clock
from taskmanager.model.logger import logger
from taskmanager.model.record import AttemptRow
from taskmanager.model.result import TaskError, TaskResult, trusted_code
from taskmanager.model.states import RUNNING, AttemptOutcome, BuiltInTaskCode, TaskStatus
from taskmanager.rules.retry import RetryRule, with_retry_numbers
from taskmanager.store.protocol import InstanceRow


class Next(NamedTuple):
    """What the engine does with the task now: nothing more (`delay_s` None), or let it wait that long, here or, where
    it `sleeps`, in the store.
    """

    delay_s: float | None
    is_retry: bool = False
    sleeps: bool = False


NOTHING_MORE: Final = Next(None)
SLEEPS: Final = Next(0.0, sleeps=True)
_CANCELLED_RUNNING: Final = TaskError(BuiltInTaskCode.TASK_CANCELLED, "cancelled while it was running")
_new_tuple = tuple.__new__


class Settlement:
    """Settles the attempts of one instance: with its identity, its clock and its random numbers."""

    def __init__(self, identity: InstanceRow, clock: Clock, random_01: Callable[[], float], crash_budget: int) -> None:
        self._who = identity
        self._worker = Worker(identity.pid, identity.hostname, identity.process_name)
        self._crash_budget = crash_budget
        self._clock = clock
        self._now_us = clock.now_us
        self._random_01 = random_01
        self._told_not_stored: set[str] = set()
        self.tally: Counter[str] = Counter()
        """What has come of tasks here: how many ended, by status; "retry" and "requeued" count those that run again."""

    def begin(self, live: LiveTask, now_us: int) -> None:
        """→ RUNNING: the state that is committed before user code runs."""
        live.status = RUNNING
        live.started_at = live.updated_at = now_us
        live.owner = self._who.instance_id
        live.worker = self._worker
        if live.start_count or live.next_retry_at is not None:
            live.next_retry_at = live.progress_text = None  # how far an earlier attempt came says nothing of this one
        live.start_count += 1

    def unbegin(self, live: LiveTask) -> None:
        """Take back a start that was not committed: the task waits again as if nothing had happened."""
        live.status = TaskStatus.PENDING
        live.start_count -= 1
        live.started_at = None
        live.worker = NO_WORKER

    def begin_claimed(self, live: LiveTask) -> None:
        """Its claim has made it RUNNING: that is committed, and names this process."""
        live.worker = self._worker

    def wait_unstarted(self, live: LiveTask) -> None:
        """→ PENDING: its start is in the store, and its code did not run. The count of starts never goes back."""
        live.status = TaskStatus.PENDING
        live.updated_at = self._now_us()
        live.claimed_at = live.started_at = None
        live.worker = NO_WORKER

    def settle(self, live: LiveTask, attempt: Attempt, outcome: Outcome) -> Next:
        """→ the state after an attempt."""
        try:
            return self._settle(live, attempt, outcome)
        except BaseException as exc:
            if outcome.error is None:
                raise
            return self._settle(live, attempt, _without_data(outcome, outcome.error, exc))

    def _settle(self, live: LiveTask, attempt: Attempt, outcome: Outcome) -> Next:
        if outcome.kind == "ok":
            return self._complete(live, attempt, outcome)
        if outcome.kind == "refused":
            error = outcome.error or TaskError(BuiltInTaskCode.WORKFLOW_CHECK_FAILED)
            is_stopped = error.error_code == BuiltInTaskCode.WORKFLOW_STOPPED
            self.end_with_error(live, TaskStatus.CANCELLED if is_stopped else TaskStatus.FAILED, error, None)
            return NOTHING_MORE
        if outcome.kind in ("snoozed", "unstarted", "suspended", "held"):
            if live.cancel_requested_at is None and outcome.kind == "suspended":
                self._fall_asleep(live, attempt.wakes_at)
                return SLEEPS
            if live.cancel_requested_at is None:
                self._wait_again(live, outcome.delay_s)
                if outcome.kind == "snoozed":
                    live.snooze_count += 1
                else:
                    live.next_retry_at = live.enqueued_at
                return Next(outcome.delay_s, sleeps=outcome.kind == "held")
            return self._cancelled(live, attempt)  # who was asked to end does not wait for another start
        if outcome.kind == "stopped":
            return self._stopped(live, attempt)
        return self._fail(live, attempt, outcome)

    def _complete(self, live: LiveTask, attempt: Attempt, outcome: Outcome) -> Next:
        self.complete(live, attempt, outcome.value)
        if outcome.error is not None:  # nobody has its value
            self._tell_not_stored(live.definition, outcome.error.message)
            live.store_error(outcome.error)
            live.ending = Ending(TaskStatus.COMPLETED, TaskResult(err=outcome.error))
        return NOTHING_MORE

    def complete(self, live: LiveTask, attempt: Attempt, value: Any) -> bool:
        """→ COMPLETED with this value. Return whether the record says all of it: see `LiveTask.is_first_success`."""
        now, definition = self._now_us(), live.definition
        live.succeed(value, now)
        try:
            known = definition.result_of_none if value is None else None
            live.result_text = definition.encode_result(value) if known is None else known
        except BaseException as exc:  # noqa: BLE001  # the application's
            why = definition.why_not(exc, "the result cannot be stored")
            self._tell_not_stored(definition, why)
            live.store_error(TaskError(BuiltInTaskCode.RESULT_NOT_AVAILABLE, why))
            live.attempts_due = ()  # no plain success: as long as it is not written, memory has the value
        self.tally["COMPLETED"] += 1
        if live.is_first_success:
            return True
        self._add_attempt(live, attempt, now, AttemptOutcome.COMPLETED, False, None, None)
        return False

    def _tell_not_stored(self, definition: Definition, why: str) -> None:
        """Log it for the first task of each function; the record of each says it too."""
        if definition.name not in self._told_not_stored:
            self._told_not_stored.add(definition.name)
            text = "a result of task %s is not kept (logged once): %s"
            logger.warning(text, definition.name, why, extra={"task_name": definition.name})

    def _fail(self, live: LiveTask, attempt: Attempt, outcome: Outcome) -> Next:
        error = outcome.error or TaskError(BuiltInTaskCode.UNHANDLED_EXCEPTION)
        crashed = outcome.kind == "crashed"
        kind = AttemptOutcome.WORKER_FAILURE if crashed else AttemptOutcome.FAILED
        live.crash_count += crashed
        now = self._now_us()
        rule = live.definition.retry
        is_free = crashed and self._may_repeat_after_crash(live)
        delay_s = 0.0 if is_free else self._retry_delay_s(live, rule, error, now)
        if delay_s is not None and live.cancel_requested_at is not None:
            self._add_attempt(live, attempt, now, kind, False, error, outcome.reason)
            self.end_with_error(live, TaskStatus.CANCELLED, _CANCELLED_RUNNING, None)
            return NOTHING_MORE
        if delay_s is not None:
            self._add_attempt(live, attempt, now, kind, True, error, outcome.reason)
            self._wait_again(live, delay_s)
            if is_free:
                return Next(delay_s)
            live.retry_count += 1
            self.tally["retry"] += 1
            live.next_retry_at = live.enqueued_at
            return Next(delay_s, is_retry=True)
        covered = rule.covers(error.error_code) and rule.max_retries > 0
        if covered or live.retry_count:
            error = with_retry_numbers(
                error, count=live.retry_count, maximum=rule.max_retries, exhausted=live.retry_count >= rule.max_retries
            )
        self._add_attempt(live, attempt, now, kind, False, error, outcome.reason)
        self.end_with_error(live, TaskStatus.FAILED, error, outcome.reason)
        return NOTHING_MORE

    def _may_repeat_after_crash(self, live: LiveTask) -> bool:
        """Safe to repeat, so a dead child spends no retry; but a task that kills each child is failed in the end."""
        is_safe = live.is_persisted and live.definition.requeue_on_interrupt
        return is_safe and live.crash_count < self._crash_budget

    def _retry_delay_s(self, live: LiveTask, rule: RetryRule, error: TaskError, now: int) -> float | None:
        delay_s = rule.next_delay_s(error.error_code, live.retry_count, self._random_01())
        if delay_s is None or live.good_until is None or now + delay_s * SECOND_US < live.good_until:
            return delay_s
        return None

    def _cancelled(self, live: LiveTask, attempt: Attempt) -> Next:
        self._add_attempt(live, attempt, self._now_us(), AttemptOutcome.INTERRUPTED, False, _CANCELLED_RUNNING, None)
        self.end_with_error(live, TaskStatus.CANCELLED, _CANCELLED_RUNNING, None)
        return NOTHING_MORE

    def _stopped(self, live: LiveTask, attempt: Attempt) -> Next:
        now = self._now_us()
        if attempt.stop_reason is StopReason.CANCEL or live.cancel_requested_at is not None:
            return self._cancelled(live, attempt)
        error = TaskError(BuiltInTaskCode.TASK_INTERRUPTED, "the manager stopped while the task was running")
        self._add_attempt(live, attempt, now, AttemptOutcome.INTERRUPTED, False, error, None)
        if live.is_persisted and live.definition.requeue_on_interrupt:
            self._wait_again(live, 0.0)
            self.tally["requeued"] += 1
            live.owner = None
            live.ending = Ending(TaskStatus.PENDING, TaskResult(err=error), requeued=True)
        else:
            self.end_with_error(live, TaskStatus.INTERRUPTED, error, None)
        return NOTHING_MORE

    def end_with_error(self, live: LiveTask, status: TaskStatus, error: TaskError, reason: str | None) -> None:
        """→ a terminal state other than COMPLETED."""
        now = self._now_us()
        live.status = status
        self.tally[status.value] += 1
        live.updated_at = live.failed_at = now
        live.error_code = error.error_code
        # What is no UTF-8 (a file name in a message) would break the log's handlers, and the store's text.
        live.failed_reason = safe_text(reason if reason is not None else error.message)
        live.next_retry_at = None
        live.store_error(error)
        live.ending = Ending(status, TaskResult(err=error))

    def lose_unwritten(self, live: LiveTask) -> None:
        """→ INTERRUPTED, if it was to go on at the next start, and no row is known to stand in the file."""
        if live.goes_on and live.is_persisted and live.saving.committed is None:
            words = "the manager stopped, and the record of the task could not be stored"
            self.end_with_error(live, TaskStatus.INTERRUPTED, TaskError(BuiltInTaskCode.MANAGER_STOPPED, words), None)

    def release(self, live: LiveTask) -> None:
        """→ PENDING and free: any instance may take it. Waiters learn that it goes on."""
        live.renew_due(self._clock.now_us(), self._clock.elapsed_s())
        live.status = TaskStatus.PENDING
        live.owner = live.claimed_at = live.started_at = None
        live.worker = NO_WORKER
        live.ending = GOES_ON

    def _wait_again(self, live: LiveTask, delay_s: float) -> None:
        now = self._now_us()
        live.status = TaskStatus.PENDING
        live.enqueued_at = now + int(delay_s * SECOND_US)
        live.updated_at = now
        live.claimed_at = live.started_at = None
        live.worker = NO_WORKER

    def _fall_asleep(self, live: LiveTask, wakes_at: int) -> None:
        """→ PENDING until that instant. The task has begun, so its `good_until` has been kept."""
        self._wait_again(live, 0.0)
        live.enqueued_at = max(wakes_at, live.updated_at)
        live.snooze_count += 1
        live.good_until = live.watched_until = live.next_retry_at = None

    def _add_attempt(
        self,
        live: LiveTask,
        attempt: Attempt,
        now: int,
        outcome: AttemptOutcome,
        will_retry: bool,
        error: TaskError | None,
        reason: str | None,
    ) -> None:
        who = self._who
        row = _new_tuple(
            AttemptRow,
            (
                live.task_id,
                attempt.number,
                outcome._value_,  # without the property of the enum, which costs as much as all the rest
                int(will_retry),
                attempt.started_at,
                now,
                None if error is None else error.error_code,
                None if error is None else safe_text(error.message),
                reason,
                who.instance_id,
                who.hostname,
                who.pid,
                who.process_name,
                now,
            ),
        )
        live.attempts_due = (*live.attempts_due, row)


def _without_data(outcome: Outcome, error: TaskError, exc: BaseException) -> Outcome:
    message = f"{error.message} (its data cannot be read: {type(exc).__name__})"
    return outcome._replace(error=TaskError(trusted_code(error.error_code), message))
