"""What becomes of a row whose owner is gone, decided from the row alone.

The owner may have died between any two steps, so nothing here may depend on the function, on memory or on who judges:
two instances that judge the same row at once say the same but for jitter, and only one of them wins the write.
"""

from typing import Final, NamedTuple

from taskmanager.model.clock import SECOND_US
from taskmanager.model.dataclass import dataclass, field
from taskmanager.model.states import WAITING, AttemptOutcome, BuiltInTaskCode, TaskStatus
from taskmanager.rules.retry import RetryRule


class Crash(NamedTuple):
    """What is known of the end of the runs of one owner, beside what the row says."""

    counts: bool
    """False when the machine was restarted: a power cut says nothing about the tasks that ran."""
    only_suspect: str | None
    """The one task that had crashed before and ran in this crash, when it is one."""
    what: str = "its owner is gone"
    """For people, as the beginning of a sentence."""


NO_CRASH: Final = Crash(False, None)


@dataclass(frozen=True, slots=True)
class Orphan:
    """What a row whose owner is gone says of itself. `good_until` is microseconds UTC.

    `is_interruption_noted`: its instance was stopping and had asked it to end, so that this is no crash.
    `crash_count` includes this crash; `is_only_suspect`: no other task with earlier crashes ran in it.
    """

    status: TaskStatus
    is_cancel_requested: bool = False
    requeue_on_interrupt: bool = False
    rule: RetryRule = field(default_factory=RetryRule.none)
    retry_count: int = 0
    crash_count: int = 0
    is_only_suspect: bool = False
    is_interruption_noted: bool = False
    good_until: int | None = None
    what: str = NO_CRASH.what

    def is_expired(self, now: int) -> bool:
        """Whether it must not start any more."""
        return self.good_until is not None and now >= self.good_until


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


def judge_orphan(orphan: Orphan, now: int, random_01: float, crash_budget: int | None = None) -> Verdict:
    """What becomes of it. `now` is microseconds UTC; without a `crash_budget` nothing is quarantined.

    A RUNNING task does not expire, for it has started in time; the next start looks at `good_until` again. A task that
    has used up the budget, and was the only suspect, is the culprit: it is failed for good, so that the innocent ones
    can finish.
    """
    assert not orphan.status.is_terminal, orphan.status
    if orphan.status in WAITING:
        return _judge_waiting(orphan, now)
    if orphan.is_cancel_requested:
        why = "a cancel was requested before its owner was gone"
        return _ended(TaskStatus.CANCELLED, BuiltInTaskCode.TASK_CANCELLED, AttemptOutcome.INTERRUPTED, why)
    if orphan.is_interruption_noted:
        return _judge_interrupted(orphan)
    return _judge_crashed(orphan, now, random_01, crash_budget)


def _judge_waiting(orphan: Orphan, now: int) -> Verdict:
    if orphan.is_cancel_requested:
        return _ended(TaskStatus.CANCELLED, BuiltInTaskCode.TASK_CANCELLED, None, "cancelled while it waited")
    if orphan.is_expired(now):
        return _ended(TaskStatus.EXPIRED, BuiltInTaskCode.TASK_EXPIRED, None, "good_until passed while it waited")
    return _free_again(None, None, f"{orphan.what} and it had not started; free again")


def _judge_interrupted(orphan: Orphan) -> Verdict:
    code, outcome = BuiltInTaskCode.TASK_INTERRUPTED, AttemptOutcome.INTERRUPTED
    if orphan.requeue_on_interrupt:
        return _free_again(code, outcome, "interrupted by a stop; safe to repeat, so it starts again")
    return _ended(TaskStatus.INTERRUPTED, code, outcome, "interrupted by a stop; not declared safe to repeat")


def _judge_crashed(orphan: Orphan, now: int, random_01: float, crash_budget: int | None) -> Verdict:
    code, outcome, rule = BuiltInTaskCode.WORKER_CRASHED, AttemptOutcome.WORKER_FAILURE, orphan.rule
    if crash_budget is not None and orphan.crash_count >= crash_budget and orphan.is_only_suspect:
        died = f"its process died {orphan.crash_count} times while it ran, and it was the only suspect"
        return _ended(TaskStatus.FAILED, code, outcome, f"quarantined: {died}")
    if orphan.requeue_on_interrupt:
        return _free_again(code, outcome, f"{orphan.what}; safe to repeat, so it starts again")
    delay_s = rule.next_delay_s(code, orphan.retry_count, random_01)
    if delay_s is None:
        why = "no retry is left" if rule.covers(code) else "no policy retries a crash"
        return _ended(TaskStatus.FAILED, code, outcome, f"{orphan.what} while it ran; {why}")
    if orphan.is_expired(now + round(delay_s * SECOND_US)):
        return _ended(TaskStatus.FAILED, code, outcome, f"{orphan.what} while it ran; a retry would miss good_until")
    reason = f"{orphan.what} while it ran; retry {orphan.retry_count + 1} of {rule.max_retries}"
    return Verdict(TaskStatus.PENDING, delay_s, True, code, outcome, reason)


def _free_again(code: BuiltInTaskCode | None, outcome: AttemptOutcome | None, reason: str) -> Verdict:
    return Verdict(TaskStatus.PENDING, None, False, code, outcome, reason)


def _ended(status: TaskStatus, code: BuiltInTaskCode, outcome: AttemptOutcome | None, reason: str) -> Verdict:
    return Verdict(status, None, False, code, outcome, reason)
