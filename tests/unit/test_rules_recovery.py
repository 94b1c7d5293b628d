"""What becomes of a row whose owner is gone."""

from itertools import product
from typing import Any

import pytest

from taskmanager.model.config import RetryPolicy
from taskmanager.model.states import LIVE, TERMINAL, WAITING, AttemptOutcome, TaskStatus, can_move
from taskmanager.rules.recovery import Orphan, Verdict, judge_orphan
from taskmanager.rules.retry import RetryRule

NOW = 1_000_000_000
CRASH_RULE = RetryRule.from_policy(RetryPolicy.fixed([10, 20], auto_retry_for=["WORKER_CRASHED"]))


def judge(status: TaskStatus = TaskStatus.RUNNING, **changes: Any) -> Verdict:
    return judge_orphan(Orphan(status, **changes), NOW, random_01=0.5)


def short(verdict: Verdict) -> tuple[TaskStatus, str | None, AttemptOutcome | None]:
    return verdict.status, verdict.error_code, verdict.outcome


@pytest.mark.req("RC-23", "RC-24", "RC-25")
@pytest.mark.parametrize("status", sorted(WAITING))
def test_an_orphan_that_never_started_is_free_again(status: TaskStatus) -> None:
    verdict = judge(status)
    assert short(verdict) == (TaskStatus.PENDING, None, None)
    assert (verdict.delay_s, verdict.spends_retry) == (None, False)


@pytest.mark.parametrize("status", sorted(WAITING))
def test_a_requested_cancel_is_honoured_before_anything_else(status: TaskStatus) -> None:
    assert short(judge(status, is_cancel_requested=True, good_until=NOW - 1)) == (
        TaskStatus.CANCELLED,
        "TASK_CANCELLED",
        None,
    )


def test_an_orphan_that_was_asked_to_cancel_is_cancelled_even_if_repeatable() -> None:
    verdict = judge(is_cancel_requested=True, requeue_on_interrupt=True, rule=CRASH_RULE, is_interruption_noted=True)
    assert short(verdict) == (TaskStatus.CANCELLED, "TASK_CANCELLED", AttemptOutcome.INTERRUPTED)


@pytest.mark.parametrize("status", sorted(WAITING))
@pytest.mark.parametrize(
    ("good_until", "expected"),
    [(NOW - 1, TaskStatus.EXPIRED), (NOW, TaskStatus.EXPIRED), (NOW + 1, TaskStatus.PENDING)],
)
def test_an_orphan_that_waited_too_long_expires(status: TaskStatus, good_until: int, expected: TaskStatus) -> None:
    assert judge(status, good_until=good_until).status == expected


def test_safe_to_repeat_starts_again_at_once_and_spends_no_retry() -> None:
    verdict = judge(requeue_on_interrupt=True, rule=CRASH_RULE, retry_count=2)
    assert short(verdict) == (TaskStatus.PENDING, "WORKER_CRASHED", AttemptOutcome.WORKER_FAILURE)
    assert (verdict.delay_s, verdict.spends_retry) == (None, False)


def test_an_interruption_that_was_noted_is_no_crash() -> None:
    again = judge(is_interruption_noted=True, requeue_on_interrupt=True)
    assert short(again) == (TaskStatus.PENDING, "TASK_INTERRUPTED", AttemptOutcome.INTERRUPTED)
    ended = judge(is_interruption_noted=True, rule=CRASH_RULE)
    assert short(ended) == (TaskStatus.INTERRUPTED, "TASK_INTERRUPTED", AttemptOutcome.INTERRUPTED)


@pytest.mark.req("RC-28")
def test_a_crash_that_a_policy_covers_is_retried_after_its_delay() -> None:
    verdict = judge(rule=CRASH_RULE, retry_count=1)
    assert short(verdict) == (TaskStatus.PENDING, "WORKER_CRASHED", AttemptOutcome.WORKER_FAILURE)
    assert (verdict.delay_s, verdict.spends_retry) == (20.0, True)


@pytest.mark.req("RC-27", "RC-29")
@pytest.mark.parametrize(
    ("rule", "retry_count", "why"),
    [
        (RetryRule.none(), 0, "no policy retries a crash"),
        (RetryRule.shorthand(3, 1, 2), 0, "no policy retries a crash"),
        (CRASH_RULE, 2, "no retry is left"),
    ],
)
def test_any_other_crash_is_a_failure(rule: RetryRule, retry_count: int, why: str) -> None:
    verdict = judge(rule=rule, retry_count=retry_count)
    assert short(verdict) == (TaskStatus.FAILED, "WORKER_CRASHED", AttemptOutcome.WORKER_FAILURE)
    assert not verdict.spends_retry
    assert verdict.reason.endswith(why)


@pytest.mark.parametrize(
    ("crash_count", "is_only_suspect", "expected"),
    [(2, True, TaskStatus.PENDING), (3, False, TaskStatus.PENDING), (3, True, TaskStatus.FAILED)],
    ids=["budget left", "another may be the culprit", "culprit"],
)
def test_the_only_suspect_is_quarantined_when_its_crash_budget_is_used_up(
    crash_count: int, is_only_suspect: bool, expected: TaskStatus
) -> None:
    """Safe to repeat or not, or it would take its process down for ever; an innocent bystander is never failed."""
    orphan = Orphan(
        TaskStatus.RUNNING, requeue_on_interrupt=True, crash_count=crash_count, is_only_suspect=is_only_suspect
    )
    verdict = judge_orphan(orphan, NOW, random_01=0.5, crash_budget=3)
    assert short(verdict) == (expected, "WORKER_CRASHED", AttemptOutcome.WORKER_FAILURE)
    assert verdict.reason.startswith("quarantined") is (expected is TaskStatus.FAILED)


@pytest.mark.req("RP-s5")
@pytest.mark.parametrize(
    ("good_until", "expected"),
    [
        (NOW + 9_999_999, TaskStatus.FAILED),
        (NOW + 10_000_000, TaskStatus.FAILED),
        (NOW + 10_000_001, TaskStatus.PENDING),
    ],
)
def test_a_retry_that_would_land_at_or_after_good_until_is_refused(good_until: int, expected: TaskStatus) -> None:
    assert judge(rule=CRASH_RULE, good_until=good_until).status == expected


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_an_ended_task_has_no_owner_to_lose(status: TaskStatus) -> None:
    with pytest.raises(AssertionError):
        judge(status)


def test_every_verdict_is_a_legal_move_with_consistent_fields() -> None:
    """All combinations of what a row can say."""
    yes_no = (False, True)
    for status, cancel, requeue, noted, rule, spent, good_until in product(
        sorted(LIVE), yes_no, yes_no, yes_no, (RetryRule.none(), CRASH_RULE), (0, 2), (None, NOW, NOW + 10**9)
    ):
        verdict = judge(
            status,
            is_cancel_requested=cancel,
            requeue_on_interrupt=requeue,
            is_interruption_noted=noted,
            rule=rule,
            retry_count=spent,
            good_until=good_until,
        )
        # A row that nobody owns any more may stay PENDING: only its owner changes.
        assert can_move(status, verdict.status) or status == verdict.status == TaskStatus.PENDING
        assert (verdict.outcome is None) == (status in WAITING)
        assert (verdict.delay_s is not None) == verdict.spends_retry
        assert not verdict.spends_retry or verdict.status == TaskStatus.PENDING
        assert verdict.error_code is not None or verdict.status == TaskStatus.PENDING
        assert verdict.reason
