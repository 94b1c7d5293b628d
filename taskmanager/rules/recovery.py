"""What becomes of a row whose owner is gone, decided from the row alone.

The owner may have died between any two steps, so nothing here may depend on the function, on memory or on who judges:
two instances that judge the same row at once say the same but for jitter, and only one of them wins the write.
"""

from typing import NamedTuple

from taskmanager.model.states import WAITING, AttemptOutcome, BuiltInTaskCode, TaskStatus
from taskmanager.rules.retry import RetryRule


class Verdict(NamedTuple):
    """The next state of an orphan.

    `delay_s` is set for a retry only. `error_code` belongs to the attempt, and to the task where `status` is terminal.
    `outcome` None: user code never ran, so no attempt has ended.
    """

    status: TaskStatus
    delay_s: float | None
    spends_retry: bool
    error_code: str | None
    outcome: AttemptOutcome | None
    reason: str


def judge_orphan(
    *,
    status: TaskStatus,
    cancel_requested: bool,
    requeue_on_interrupt: bool,
    rule: RetryRule,
    retry_count: int,
    is_interruption_noted: bool,
    good_until: int | None,
    now: int,
    random_01: float,
    crash_count: int = 0,
    crash_budget: int | None = None,
    is_only_suspect: bool = False,
) -> Verdict:
    """What becomes of a row in a non-terminal `status`. Instants are microseconds UTC.

    `is_interruption_noted`: its instance was stopping and had asked it to end, so that this is no crash. A RUNNING task
    does not expire, it has started in time; the next start looks at `good_until` again.

    `crash_count` includes this crash. A task that has used up `crash_budget`, and was the only one with earlier crashes
    that ran in this one, is the culprit: it is failed for good, so that the innocent ones can finish.
    """
    assert not status.is_terminal, status
    if status in WAITING:
        return _judge_waiting(cancel_requested, is_expired=good_until is not None and now >= good_until)
    if cancel_requested:
        return _ended(
            TaskStatus.CANCELLED,
            BuiltInTaskCode.TASK_CANCELLED,
            AttemptOutcome.INTERRUPTED,
            "a cancel was requested before its owner was gone",
        )
    if is_interruption_noted:
        return _judge_interrupted(requeue_on_interrupt)
    if crash_budget is not None and crash_count >= crash_budget and is_only_suspect:
        return _ended(
            TaskStatus.FAILED,
            BuiltInTaskCode.WORKER_CRASHED,
            AttemptOutcome.WORKER_FAILURE,
            f"quarantined: its process died {crash_count} times while it ran, and it was the only suspect",
        )
    if requeue_on_interrupt:
        return Verdict(
            TaskStatus.PENDING,
            None,
            False,
            BuiltInTaskCode.WORKER_CRASHED,
            AttemptOutcome.WORKER_FAILURE,
            "its owner is gone; safe to repeat, so it starts again",
        )
    return _judge_crashed(rule, retry_count, good_until, now, random_01)


def _judge_waiting(cancel_requested: bool, *, is_expired: bool) -> Verdict:
    if cancel_requested:
        return _ended(TaskStatus.CANCELLED, BuiltInTaskCode.TASK_CANCELLED, None, "cancelled while it waited")
    if is_expired:
        return _ended(TaskStatus.EXPIRED, BuiltInTaskCode.TASK_EXPIRED, None, "good_until passed while it waited")
    return Verdict(TaskStatus.PENDING, None, False, None, None, "its owner is gone and it had not started; free again")


def _judge_interrupted(requeue_on_interrupt: bool) -> Verdict:
    code, outcome = BuiltInTaskCode.TASK_INTERRUPTED, AttemptOutcome.INTERRUPTED
    if requeue_on_interrupt:
        reason = "interrupted by a stop; safe to repeat, so it starts again"
        return Verdict(TaskStatus.PENDING, None, False, code, outcome, reason)
    return _ended(TaskStatus.INTERRUPTED, code, outcome, "interrupted by a stop; not declared safe to repeat")


def _judge_crashed(rule: RetryRule, retry_count: int, good_until: int | None, now: int, random_01: float) -> Verdict:
    code, outcome = BuiltInTaskCode.WORKER_CRASHED, AttemptOutcome.WORKER_FAILURE
    delay_s = rule.next_delay_s(code, retry_count, random_01)
    if delay_s is None:
        why = "no retry is left" if rule.covers(code) else "no policy retries a crash"
        return _ended(TaskStatus.FAILED, code, outcome, f"its owner is gone while it ran; {why}")
    if good_until is not None and now + round(delay_s * 1_000_000) >= good_until:
        return _ended(TaskStatus.FAILED, code, outcome, "its owner is gone while it ran; a retry would miss good_until")
    reason = f"its owner is gone while it ran; retry {retry_count + 1} of {rule.max_retries}"
    return Verdict(TaskStatus.PENDING, delay_s, True, code, outcome, reason)


def _ended(status: TaskStatus, code: BuiltInTaskCode, outcome: AttemptOutcome | None, reason: str) -> Verdict:
    return Verdict(status, None, False, code, outcome, reason)
