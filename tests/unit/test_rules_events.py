"""The rule that says which events lie between two states of a row, as a table."""

from typing import Final

import pytest

from taskmanager.model.record import AttemptRow, Expected
from taskmanager.rules.events import steps_between
from tests.contract.rows import attempt

ME: Final = "me"
FREE, OWNED, CLAIMED = Expected("PENDING", None, 0), Expected("PENDING", ME, 0), Expected("CLAIMED", ME, 0)
FIRST, SECOND = Expected("RUNNING", ME, 1), Expected("RUNNING", ME, 2)
RETRIED, CRASHED = attempt(outcome="FAILED", will_retry=1), attempt(outcome="WORKER_FAILURE", will_retry=0)
STOPPED, FAILED = attempt(outcome="INTERRUPTED", will_retry=0), attempt(outcome="FAILED", will_retry=0)
LAST: Final = attempt(number=3, outcome="FAILED", will_retry=0)


def end(status: str, start_count: int = 1) -> Expected:
    return Expected(status, ME, start_count)


def again(start_count: int = 1, owner: str | None = ME) -> Expected:
    return Expected("PENDING", owner, start_count)


@pytest.mark.parametrize(
    ("before", "after", "attempts", "told"),
    [
        # The plain way, written in one commit, in two or in three.
        (None, OWNED, [], "enqueued 0"),
        (None, FREE, [], "enqueued 0"),
        (OWNED, FIRST, [], "started 1"),
        (CLAIMED, FIRST, [], "started 1"),
        (FIRST, end("COMPLETED"), [attempt()], "completed 1"),
        (None, FIRST, [], "enqueued 0, started 1"),
        (OWNED, end("COMPLETED"), [attempt()], "started 1, completed 1"),
        (None, end("COMPLETED"), [attempt()], "enqueued 0, started 1, completed 1"),
        # The other ends.
        (FIRST, end("FAILED"), [FAILED], "failed 1"),
        (FIRST, end("INTERRUPTED"), [STOPPED], "interrupted 1"),
        (FIRST, end("CANCELLED"), [STOPPED], "cancelled 1"),
        (OWNED, end("CANCELLED", 0), [], "cancelled 0"),
        (FREE, end("EXPIRED", 0), [], "expired 0"),
        (None, end("CANCELLED", 0), [], "enqueued 0, cancelled 0"),
        (again(), end("CANCELLED"), [], "cancelled 1"),
        # What runs again.
        (FIRST, again(), [RETRIED], "retrying 1"),
        (FIRST, again(owner=None), [STOPPED], "requeued 1"),
        (FIRST, again(owner=None), [CRASHED], "requeued 1"),
        (FIRST, again(), [], "requeued 1"),
        (FIRST, SECOND, [RETRIED], "retrying 1, started 2"),
        (again(), SECOND, [], "started 2"),
        (FIRST, end("FAILED", 3), [RETRIED, LAST], "retrying 1, started 2, requeued 2, started 3, failed 3"),
        # What has ended while it waited for the next run, written in one commit with the run before.
        (FIRST, end("EXPIRED"), [], "requeued 1, expired 1"),
        (FIRST, end("EXPIRED"), [RETRIED], "retrying 1, expired 1"),
        (FIRST, end("CANCELLED"), [RETRIED], "retrying 1, cancelled 1"),
        (OWNED, end("EXPIRED"), [RETRIED], "started 1, retrying 1, expired 1"),
        # What has ended, and was put back by a key or by a person.
        (end("FAILED"), again(), [], "enqueued 1"),
        (end("CANCELLED", 0), OWNED, [], "enqueued 0"),
        (end("FAILED"), SECOND, [], "enqueued 1, started 2"),
        (end("FAILED"), end("CANCELLED"), [], "enqueued 1, cancelled 1"),
        # What is no event: claims, releases, reports of progress, a note.
        (FREE, CLAIMED, [], ""),
        (CLAIMED, FREE, [], ""),
        (OWNED, FREE, [], ""),
        (FIRST, FIRST, [], ""),
        (FIRST, FIRST, [RETRIED], ""),
        (again(), again(owner=None), [], ""),
    ],
)
def test_each_change_of_a_row_is_told_as(
    before: Expected | None, after: Expected, attempts: list[AttemptRow], told: str
) -> None:
    """Also where the runs of several changes were written together."""
    steps = steps_between(before, after, attempts)
    assert ", ".join(f"{step.kind} {step.start_count}" for step in steps) == told


def test_a_run_without_an_attempt_was_snoozed_if_that_is_known_of_it() -> None:
    """A snooze leaves no attempt."""
    assert [step.kind for step in steps_between(FIRST, again(), [], {1})] == ["snoozed"]
    assert [step.kind for step in steps_between(FIRST, again(), [RETRIED], {1})] == ["retrying"]
    assert [step.kind for step in steps_between(FIRST, SECOND, [], {1})] == ["snoozed", "started"]
    assert [step.kind for step in steps_between(FIRST, end("EXPIRED"), [], {1})] == ["snoozed", "expired"]
    assert [step.kind for step in steps_between(FIRST, end("CANCELLED"), [], {1})] == ["snoozed", "cancelled"]


def test_each_step_has_the_attempt_that_has_ended_with_it() -> None:
    """So that its duration and its error can be told. A retry that is cancelled while it waits has none."""
    steps = steps_between(OWNED, end("FAILED", 3), [RETRIED, LAST])
    assert [step.attempt for step in steps] == [None, RETRIED, None, None, None, LAST]
    (cancelled,) = steps_between(again(), end("CANCELLED"), [RETRIED])
    assert cancelled.attempt is None
