"""What a person may do to a task in the store: see it, end it before it runs, ask it to stop, run it again.

The engine does it to tasks that are not in its memory, the command line to all of them. Nothing here knows who asks;
each write repeats the state of the row that was read. Answers are the ids of those for which it still was so.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from taskmanager.codec.values import dumps, loads
from taskmanager.engine.definition import RowCodec, options_of
from taskmanager.model.clock import from_us
from taskmanager.model.record import AttemptInfo, AttemptRow, TaskInfo, TaskRow, TaskWrite, UnreadableRow, expected_of
from taskmanager.model.result import TaskError, TaskResult
from taskmanager.model.states import WAITING, AttemptOutcome, BuiltInTaskCode, TaskStatus
from taskmanager.store.protocol import Store

CANCELLED_BEFORE_START: Final = TaskError(BuiltInTaskCode.TASK_CANCELLED, "cancelled before it started")


def is_free(row: TaskRow) -> bool:
    """Whether the task waits in the store, in nobody's memory."""
    return row.status == TaskStatus.PENDING and row.claimed_by_worker_id is None


async def cancel_stored(store: Store, codec: RowCodec, live: Sequence[TaskRow], now: int) -> frozenset[str]:
    """End free tasks; of those that somebody has, record the request, which their instance or recovery honours."""
    done = await _write(store, [(_cancelled(codec, row, now), row) for row in live if is_free(row)], are_ends=True)
    asked = [row.task_id for row in live if not is_free(row) and await store.request_cancel(row.task_id, now)]
    return done.union(asked)


def _cancelled(codec: RowCodec, row: TaskRow, now: int) -> TaskRow:
    error = CANCELLED_BEFORE_START
    return row._replace(
        status=TaskStatus.CANCELLED.value,
        failed_at=now,
        updated_at=now,
        cancel_requested_at=now,
        error_code=error.error_code,
        failed_reason=error.message,
        next_retry_at=None,
        result=codec.encode_error(row.task_name, error),
    )


def why_not_again(row: TaskRow, *, force: bool) -> str | None:
    """Why an ended task cannot be run again, or None: "it is RUNNING and has not ended"."""
    status = TaskStatus(row.status)
    if not status.is_terminal:
        return f"it is {status} and has not ended"
    if status is TaskStatus.COMPLETED and not force:
        return "it is COMPLETED, and runs again only by force"
    if isinstance(row, UnreadableRow):
        return row.fault
    if row.args is None or row.kwargs is None:
        return "its arguments could not be stored"
    return None


async def retry_stored(store: Store, ended: Sequence[TaskRow], now: int) -> frozenset[str]:
    """Put ended tasks back, with their stored arguments, free and due now."""
    return await _write(store, [(_again(row, now), row) for row in ended])


def _again(row: TaskRow, now: int) -> TaskRow:
    """A memory-only task that is put back is persisted from now on: the file is all there is of it."""
    options = options_of(row.task_options)
    return row._replace(
        status=TaskStatus.PENDING.value,
        enqueued_at=now,
        updated_at=now,
        claimed_at=None,
        claimed_by_worker_id=None,
        started_at=None,
        completed_at=None,
        failed_at=None,
        result=None,
        failed_reason=None,
        error_code=None,
        good_until=None,
        retry_count=0,
        crash_count=0,
        snooze_count=0,
        next_retry_at=None,
        cancel_requested_at=None,
        progress=None,
        worker_pid=None,
        worker_hostname=None,
        worker_process_name=None,
        task_options=row.task_options if options.get("persist") else dumps({**options, "persist": True}),
    )


async def _write(store: Store, changes: Sequence[tuple[TaskRow, TaskRow]], *, are_ends: bool = False) -> frozenset[str]:
    """Rows as they shall be with the rows as they were read, in one transaction.

    An end whose columns the store refuses, because they contradict each other, is written without them.
    """
    report = await store.commit([TaskWrite(row, expected_of(read)) for row, read in changes])
    won = frozenset(row.task_id for row, _ in changes) - report.lost.keys() - report.rejected.keys()
    if are_ends and report.rejected:
        odd = [(UnreadableRow._make(row), read) for row, read in changes if row.task_id in report.rejected]
        won |= await _write(store, odd)
    return won


def _log_line(line: dict[str, Any]) -> dict[str, Any]:
    at = line.get("at")
    return {**line, "at": from_us(at)} if isinstance(at, int) else line


_INSTANTS: Final = [each for each in TaskRow._fields if each.endswith(("_at", "good_until", "scheduled_for"))]
_JSON: Final[dict[str, Callable[[str | None], Any]]] = {
    "task_options": lambda text: loads(text) if text else {},
    "tags": lambda text: loads(text) if text else {},
    "progress": lambda text: loads(text) if text else None,
    "log": lambda text: tuple(_log_line(each) for each in loads(text)) if text else (),
}


def task_info(
    row: TaskRow,
    *,
    is_saved: bool,
    result: TaskResult[Any] | None = None,
    attempts: tuple[AttemptInfo, ...] | None = None,
) -> TaskInfo:
    """The view of a row that users get."""
    values: dict[str, Any] = row._asdict()
    if isinstance(row, UnreadableRow):  # the id alone is more than its text: it must lead to the row again
        values |= {name: str(text) for name, text in values.items() if isinstance(text, str) and name != "task_id"}
    for name in _INSTANTS:
        values[name] = None if values[name] is None else from_us(values[name])
    for name, read in _JSON.items():
        values[name] = read(values[name])
    values |= {
        "status": TaskStatus(row.status),
        "claimed": row.status in WAITING and row.claimed_by_worker_id is not None,
        "is_workflow_task": bool(row.is_workflow_task),
        "result": result,
    }
    return TaskInfo(**values, saved=is_saved, attempts=attempts)


def summary_info(row: TaskRow, *, is_saved: bool) -> TaskInfo:
    """The view of a row in a list: without its `PAYLOAD`, even where it was read."""
    return replace(task_info(row.without_payload(), is_saved=is_saved), log=None)


def attempt_info(row: AttemptRow) -> AttemptInfo:
    """The view of an attempt that users get."""
    return AttemptInfo(
        **{
            **row._asdict(),
            "outcome": AttemptOutcome(row.outcome),
            "will_retry": bool(row.will_retry),
            **{name: from_us(getattr(row, name)) for name in ("started_at", "finished_at", "created_at")},
        }
    )
