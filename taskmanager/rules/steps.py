"""What the call of a step means, given what an earlier run has recorded in its place."""

from collections.abc import Collection, Iterable
from typing import Final, Literal, NamedTuple

from taskmanager.model.states import BuiltInTaskCode
from taskmanager.model.steps import STEP, Identity, StepRow
from taskmanager.rules.retry import RetryRule

Meaning = Literal["run", "return", "raise", "mismatch"]

MAX_RECORDS: Final = 10_000
MAX_RECORDED_CHARS: Final = 64 * 1024 * 1024
"""How many records a task may have, and how long their results may be together."""
MAX_UNREAD: Final = 1_000
"""How many events may wait for a task."""


def is_settled(record: StepRow) -> bool:
    """Return whether later runs are bound to the record: the step has a value, or the code went on after its error.

    A sleep and a wait bind them from the beginning: code that calls something else there would wait once more.
    """
    if record.waits_for is not None:
        return True
    return record.ended_at is not None and (record.error_code is None or bool(record.is_final))


def meaning_of(name: str, digest: str | None, record: StepRow | None, waits_for: str | None = None) -> Meaning:
    """Return what a call of this name and with these arguments means where `record` stands.

    A record that is not settled binds nobody: the step runs again, also as another one, so that what made it fail can
    be put right. A digest is None where arguments are not compared. "run" of a wait is to go on waiting.
    """
    if record is None or not is_settled(record):
        return "run"
    has_other_arguments = None not in (digest, record.digest) and digest != record.digest
    if (record.name, record.waits_for) != (name, waits_for) or has_other_arguments:
        return "mismatch"
    if record.ended_at is None:
        return "run"
    return "return" if record.error_code is None else "raise"


def mismatch(record: StepRow, name: str) -> str:
    """Say what was recorded, and what is called in its place."""
    which = record.key or record.number
    if record.name == name:
        return f"step {which} was recorded as {record.name} and is called with other arguments"
    return f"step {which} was recorded as {record.name} and is called as {name}"


def has_timed_out(record: StepRow) -> bool:
    """Return whether this is the record of a wait whose time was up before an event came."""
    return bool(record.waits_for) and record.error_code == BuiltInTaskCode.TASK_TIMEOUT


def unasked(records: Iterable[StepRow], asked: Collection[Identity]) -> list[StepRow]:
    """Return the settled steps that a run has not asked for."""
    return [each for each in records if each.kind == STEP and is_settled(each) and each.identity not in asked]


class StepOptions(NamedTuple):
    """How one step is called. `name` None is that of the function, `timeout_s` is for each try."""

    name: str | None = None
    key: str | None = None
    retry: RetryRule = RetryRule.none()
    timeout_s: float | None = None
