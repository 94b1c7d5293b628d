"""Which events a change of a task is: from what its row said before, what it says then, and the attempts in between."""

from collections.abc import Container, Sequence
from typing import Final, NamedTuple, cast

from taskmanager.model.hooks import EventKind
from taskmanager.model.record import AttemptRow, Expected
from taskmanager.model.states import TERMINAL

END_KINDS: Final = {str(status.value): cast("EventKind", status.value.lower()) for status in TERMINAL}
"""The event of each end, by the status that the row has then."""


class Step(NamedTuple):
    """One event of a task: its kind, how often the task was started by then, and the attempt that has ended with it."""

    kind: EventKind
    start_count: int
    attempt: AttemptRow | None = None


def steps_between(
    before: Expected | None, after: Expected, attempts: Sequence[AttemptRow], snoozed: Container[int] = ()
) -> list[Step]:
    """Return the events that lie between two states of a row, in their order. `before` is None without a row.

    A change may hold several runs, which were written together. Each start after `before` is one. The row of an
    attempt says how its run ended. A run without one was snoozed, if its number is in `snoozed`, or has not begun after
    all. A task may also have ended while it waited for its next run: no run expires.
    """
    steps = list[Step]()
    count = 0 if before is None else before.start_count
    runs = before is not None and before.status == "RUNNING"
    ended = {row.attempt: row for row in attempts}
    if before is None or before.status in END_KINDS:
        steps.append(Step("enqueued", count))
    while count < after.start_count:
        if runs:
            steps.append(_again(count, ended.get(count), snoozed))
        count += 1
        runs = True
        steps.append(Step("started", count))
    last = ended.get(count)
    waits = after.status in ("PENDING", "CLAIMED", "EXPIRED") or count in snoozed
    if runs and after.status != "RUNNING" and (waits or (last is not None and last.will_retry)):
        steps.append(_again(count, last, snoozed))
        last = None
    if after.status in END_KINDS:
        steps.append(Step(END_KINDS[after.status], count, None if last is None or last.will_retry else last))
    return steps


def is_end(state: Expected | None) -> bool:
    """Return whether a task with this row has ended."""
    return state is not None and state.status in END_KINDS


def _again(count: int, attempt: AttemptRow | None, snoozed: Container[int]) -> Step:
    kind: EventKind = "snoozed" if attempt is None and count in snoozed else "requeued"
    return Step("retrying" if attempt is not None and attempt.will_retry else kind, count, attempt)
