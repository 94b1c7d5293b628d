"""Reads rows so that no row can raise. Whatever one row holds, the others are read as usual.

A file may hold text that is not UTF-8 (a flipped byte, another driver), JSON that somebody edited, and words of another
version. A row of tasks that holds such a thing becomes an `UnreadableRow`. Its readable columns stay as they are, its
undecodable text gets U+FFFD, its other unreadable columns are empty, and `failed_reason` says in one sentence what is
wrong. The task may be shown and ended, and never runs. Rows of other tables get values that their readers can use.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from taskmanager.codec.safe import EMPTY, are_options, decode_rows, is_readable
from taskmanager.model.clock import LAST_US
from taskmanager.model.record import AttemptRow, TaskRow, UnreadableRow
from taskmanager.model.schedule import ScheduleRow
from taskmanager.model.states import AttemptOutcome, TaskStatus
from taskmanager.store.constraints import unreadable
from taskmanager.store.sql.session import Session

_STATUSES: Final = frozenset(status.value for status in TaskStatus)
_OUTCOMES: Final = frozenset(outcome.value for outcome in AttemptOutcome)
_COUNTS: Final = ("retry_count", "max_retries", "start_count", "crash_count", "snooze_count")


class Undecodable(str):
    """Text of the file that is not UTF-8, in a form that can be shown. As a parameter it is bound as its bytes.

    So `CAST(? AS TEXT)` finds it again. Without the bytes no statement could name such an id or owner, and a reader
    that goes page by page would not get past it.
    """

    __slots__ = ("raw",)
    raw: bytes

    def __new__(cls, raw: bytes) -> "Undecodable":
        made = super().__new__(cls, raw.decode("utf-8", "replace"))
        made.raw = raw
        return made

    def __reduce__(self) -> tuple[type["Undecodable"], tuple[bytes]]:
        return Undecodable, (self.raw,)


def bindable(text: str) -> str | bytes:
    """Return a text of somebody as a parameter that is cast. SQLite takes no lone surrogate, and the file has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def is_odd_id(task_id: str) -> bool:
    """Whether JSON that SQLite reads cannot name this id. SQLite ends a text of JSON at a NUL."""
    return "\0" in task_id or isinstance(task_id, Undecodable)


def text_of(data: bytes) -> str:
    """Decode a text. This is the `text_factory` of every connection that reads."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return Undecodable(data)


def packed(connection: Session, query: str, parameters: Sequence[Any] | Mapping[str, Any]) -> list[Any]:
    """Return what the query has packed by `json_group_array`, in one row and one step."""
    (text,) = connection.execute(query, parameters).fetchone()
    return unpacked(text)


def unpacked(text: str) -> list[Any]:
    """Return what `json_group_array` has packed. SQLite copies the bytes of a text as they are, decodable or not."""
    if not isinstance(text, Undecodable):
        return json.loads(text)  # type: ignore[no-any-return]  # it is an array
    found = json.loads(text.raw.decode("utf-8", "surrogateescape"))
    return [[_restored(value) for value in each] if isinstance(each, list) else _restored(each) for each in found]


def _restored(value: Any) -> Any:
    """Return the value. A text with surrogates, which stand for bytes that are not UTF-8, becomes `Undecodable`."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return Undecodable(value.encode("utf-8", "surrogateescape"))
    return value


def packed_rows(text: str) -> list[TaskRow]:
    """Return the tasks that `json_group_array(json_array(...))` has packed."""
    if isinstance(text, Undecodable) or "\\u0000" in text:
        return [read_row(values) for values in unpacked(text)]
    # No column can be undecodable here, so forty looks are saved; and msgspec makes a row in 2 us instead of 4.5.
    return [row if _is_sound(row) else _unreadable(row) for row in decode_rows(text)]


def read_row(values: Iterable[Any]) -> TaskRow:
    """Return one task."""
    row = TaskRow._make(values)
    is_text = not any(type(value) is Undecodable for value in row)
    return row if is_text and not _with_nul(row) and _is_sound(row) else _unreadable(row)


def _with_nul(row: TaskRow) -> list[str]:
    """Return the columns that a precondition names and that JSON cannot carry."""
    return [name for name in ("task_id", "claimed_by_worker_id") if "\0" in (getattr(row, name) or "")]


def _is_sound(row: TaskRow) -> bool:
    """Whether the rest of the library can rely on everything that this row says."""
    return (
        row.status in _STATUSES
        and are_options(row.task_options)
        and (row.tags is None or is_readable("tags", row.tags))
        and (row.progress is None or is_readable("progress", row.progress))
        and (row.log is None or is_readable("log", row.log))
        and 1 <= row.priority <= 100
        # Each is from 0 to below 1 << 31. One comparison for all of them, because every claimed row is checked.
        and not (row.retry_count | row.max_retries | row.start_count | row.crash_count | row.snooze_count) >> 31
    )


def status_of(text: str) -> TaskStatus:
    """Return the status that a row counts as. A status that this version does not know counts as FAILED."""
    return TaskStatus(text) if text in _STATUSES else TaskStatus.FAILED


def _unreadable(row: TaskRow) -> UnreadableRow:
    """Return the row in a form that can be shown, with the reason. The file keeps its bytes."""
    faults = [f"{name} is not UTF-8" for name, value in row._asdict().items() if type(value) is Undecodable]
    mended: dict[str, Any] = {}
    faults += [f"{name} holds a NUL" for name in _with_nul(row)]
    if row.status not in _STATUSES:
        faults.append(f"status {row.status!r} is none of this version")
        mended["status"] = status_of(row.status).value
    for name, empty in EMPTY.items():
        text = getattr(row, name)
        if text is not None and not is_readable(name, text):
            mended[name] = empty
            if type(text) is not Undecodable:
                faults.append(f"{name} is not the JSON that belongs there")
    if not 1 <= row.priority <= 100:
        faults.append(f"priority {row.priority} is not from 1 to 100")
        mended["priority"] = min(max(row.priority, 1), 100)
    for name in _COUNTS:
        if (number := getattr(row, name)) >> 31:
            faults.append(f"{name} is {number}")
            mended[name] = 0
    return unreadable(row._replace(**mended), faults)


def read_attempt(values: Iterable[Any]) -> AttemptRow:
    """Return one attempt. An outcome that this version does not know becomes a failure that says so."""
    row = AttemptRow._make(values)
    row = row._replace(will_retry=bool(row.will_retry))
    if row.outcome in _OUTCOMES:
        return row
    reason = f"the record cannot be read: outcome {row.outcome!r} is none of this version"
    return row._replace(outcome=AttemptOutcome.FAILED.value, failed_reason=reason)


def read_schedule(values: Iterable[Any]) -> ScheduleRow:
    """Return one schedule. A next run outside of the calendar would never come, so it is computed again."""
    row = ScheduleRow._make(values)
    due = row.next_run_at
    return row._replace(
        is_declared=bool(row.is_declared),
        run_count=max(0, row.run_count),
        next_run_at=due if due is not None and 0 <= due <= LAST_US else None,
    )
