"""What holds for every store: which rows it refuses, as the SQL `CHECK`s do, and that text can be UTF-8."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar, cast

from taskmanager.codec.results import encode_error_text
from taskmanager.model.record import Expected, TaskRow, TaskWrite, UnreadableRow
from taskmanager.model.result import TaskError
from taskmanager.model.states import TERMINAL, WAITING, BuiltInTaskCode, TaskStatus

_STATUSES: Final = frozenset(TaskStatus)
T = TypeVar("T")


_WORKER: Final = frozenset({"worker_pid", "worker_hostname", "worker_process_name"})
_ALWAYS: Final = frozenset({"status", "next_retry_at", "cancel_requested_at", "progress", "updated_at"})
_AT_AN_END: Final = _ALWAYS | {"claimed_by_worker_id", "result", "failed_reason", "log"}
START: Final = _ALWAYS | _WORKER | {"claimed_by_worker_id", "started_at", "start_count"}
SUCCESS: Final = _AT_AN_END | {"completed_at"}
FAILURE: Final = _AT_AN_END | {"failed_at", "error_code", "retry_count", "crash_count"}
AGAIN: Final = _ALWAYS | _WORKER | {
    "claimed_by_worker_id", "claimed_at", "started_at", "enqueued_at", "good_until", "failed_reason", "log",
    "retry_count", "crash_count", "snooze_count",
}  # fmt: skip
FREED: Final = AGAIN | {"task_options"}
"""Another instance may claim it, so its options must name the one that has accepted it."""
REPORT: Final = _ALWAYS | {"retry_count", "crash_count", "failed_reason", "log"}
"""While it runs: its progress, its steps, and that a stop has interrupted it whose thread goes on. A step that is new
gives the retries and the crashes back.
"""
STEPS: Final = (START, SUCCESS, FAILURE, AGAIN, FREED, REPORT)
"""The columns that each step of a task changes. All others are left as they stand, whatever the write says of them."""


def step_of(write: TaskWrite, expected: Expected) -> frozenset[str] | None:
    """Return the columns that a write changes: a step of the very run that the store knows, or else None, all of them.

    Only a retry gives a task other arguments. It may come in one write with the end before it, and is told from a run
    that only begins again by `keeps_call`.
    """
    row = write.row
    if expected.status in WAITING and row.status == "RUNNING" and row.start_count == expected.start_count + 1:
        return START
    if expected.status != "RUNNING" or row.start_count != expected.start_count:
        return None
    if row.status in ("PENDING", "RUNNING"):
        waits = FREED if row.claimed_by_worker_id is None else AGAIN
        again = waits if row.status == "PENDING" else REPORT
        return again if write.keeps_call else None
    return SUCCESS if row.status == "COMPLETED" else FAILURE if row.status in TERMINAL else None


def is_memory_only(row: TaskRow) -> bool:
    """Whether the options of the task leave out the promise that it survives; unreadable ones may have made it."""
    try:
        options = json.loads(row.task_options)
    except (ValueError, RecursionError):
        return False
    return not (isinstance(options, dict) and options.get("persist"))


def encodable(value: T) -> T:
    """A text, or a tuple with texts in it, with lone surrogates (file names have them) as escapes: it can be UTF-8."""
    found: Any = value
    if isinstance(value, tuple):
        found = tuple.__new__(type(value), map(encodable, value))  # a NamedTuple stays one
    elif isinstance(value, str) and not value.isascii():
        text = value.encode("utf-8", "backslashreplace").decode()
        found = value if text == value else text  # text that cannot be read keeps its bytes
    return cast(T, found)


def unreadable(row: TaskRow, faults: Iterable[str]) -> UnreadableRow:
    """A row with these faults, of which it tells before its own `failed_reason`."""
    sentence = f"the record cannot be read: {', '.join(faults)}"
    said = row.failed_reason
    reason = sentence if not said or said.startswith(sentence) else f"{sentence}\n{said}"
    return UnreadableRow._make(row._replace(failed_reason=reason))


def failed(row: UnreadableRow, now: int) -> UnreadableRow:
    """The row as it ends where it would run: nobody knows what it should do."""
    error = TaskError(BuiltInTaskCode.UNHANDLED_EXCEPTION, row.fault)
    return row._replace(
        status=TaskStatus.FAILED.value,
        claimed_at=None,
        claimed_by_worker_id=None,
        completed_at=None,
        failed_at=now,
        updated_at=now,
        error_code=error.error_code,
        next_retry_at=None,
        result=encode_error_text(error),
    )


def row_faults(row: TaskRow) -> Iterator[str]:
    """What the `CHECK`s of the schema say against a row."""
    if row.status not in _STATUSES:
        yield f"status {row.status!r} does not exist"
    if not 1 <= row.priority <= 100:
        yield f"priority {row.priority} is not from 1 to 100"
    if min(row.retry_count, row.max_retries, row.start_count, row.crash_count, row.snooze_count) < 0:
        yield "a count is negative"
    if row.status == TaskStatus.CLAIMED and row.claimed_by_worker_id is None:
        yield "CLAIMED without an owner"
    if row.status == TaskStatus.RUNNING and (
        row.claimed_by_worker_id is None or row.started_at is None or row.start_count < 1
    ):
        yield "RUNNING without an owner or a start"
    if (row.completed_at is not None) != (row.status == TaskStatus.COMPLETED):
        yield "completed_at belongs to COMPLETED, and only to it"
    if row.error_code is not None and (row.status not in TERMINAL or row.status == TaskStatus.COMPLETED):
        yield f"error_code in a row that is {row.status}"
