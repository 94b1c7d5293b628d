"""What a page about one task asks: its row with the beginnings of what may be large, its attempts, steps and log.

A result may have 8 MB, and a page that is open asks every other second. So SQL cuts the texts, and tells their lengths.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from taskmanager.model.record import AttemptRow, TaskRow
from taskmanager.model.steps import STEP, StepRow
from taskmanager.store.protocol import InstanceRow
from taskmanager.store.sql.queries import instances, paused_queues, whole_id
from taskmanager.store.sql.rows import read_attempt, read_row
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.statements import ATTEMPT_COLUMNS, TASK_COLUMNS
from taskmanager.store.sql.workflow_views import workflows_of
from taskmanager.store.statistics import OwnWorkflow

MAX_VALUE_CHARS: Final = 64_000
"""Arguments and results of up to so many characters are read whole; of longer ones only the beginning is read."""
MAX_BEGINNING_CHARS: Final = 8_000
MAX_TRACEBACK_CHARS: Final = 20_000
MAX_MESSAGE_CHARS: Final = 2_000
MAX_LOG_BYTES: Final = 1_000_000
"""A longer log is not read at all: its end could not be found without parsing all of it."""
MAX_ATTEMPTS: Final = 100
MAX_STEPS: Final = 200
MAX_STEP_RESULT_CHARS: Final = 300
_OTHER_BYTES: Final = 100_000
"""Bytes of tags and progress that are read. The library writes fewer."""


class Part(NamedTuple):
    """A text or its beginning, and how many bytes all of it has."""

    text: str
    size: int
    is_whole: bool = True


class TaskView(NamedTuple):
    """One task as a page shows it.

    The `args`, `kwargs` and `result` of the row may be beginnings, and its log is None. The attempts and steps are the
    last of them, and `attempt_count` and `step_count` say how many there are. The `results` of steps are by the places
    of the steps. `message` is the beginning of the message of its error.
    """

    row: TaskRow
    args: Part | None
    kwargs: Part | None
    result: Part | None
    log: Part | None
    message: str | None = None
    attempts: Sequence[AttemptRow] = ()
    attempt_count: int = 0
    steps: Sequence[StepRow] = ()
    step_results: Sequence[Part | None] = ()
    step_count: int = 0
    event_count: int = 0
    workflow: OwnWorkflow | None = None
    instances: Sequence[InstanceRow] = ()
    is_queue_paused: bool = False


def _size(column: str) -> str:
    return f"length(CAST(t.{column} AS BLOB))"


_CUT: Final = {
    # Not `iif(length(...))`: to measure 8 MB in characters takes longer than to cut them.
    **{name: f"substr(t.{name}, 1, {MAX_VALUE_CHARS + 1})" for name in ("args", "kwargs", "result")},
    "failed_reason": f"substr(t.failed_reason, 1, {MAX_TRACEBACK_CHARS})",
    "log": "NULL",
    **{name: f"iif({_size(name)} <= {_OTHER_BYTES}, t.{name}, NULL)" for name in ("tags", "progress")},
}
_ROW: Final = f"""
SELECT {", ".join(_CUT.get(name, f"t.{name}") for name in TASK_COLUMNS)},
    {_size("args")}, {_size("kwargs")}, {_size("result")}, {_size("log")},
    iif({_size("log")} <= {MAX_LOG_BYTES}, t.log, ''),
    CASE WHEN t.error_code IS NOT NULL AND {_size("result")} <= {MAX_LOG_BYTES} AND json_valid(t.result)
        THEN substr(json_extract(t.result, '$.err.message'), 1, {MAX_MESSAGE_CHARS}) END
FROM taskmanager_tasks AS t WHERE t.id = CAST(? AS TEXT)
"""
_ATTEMPT_CUT: Final = {
    "failed_reason": f"substr(failed_reason, 1, {MAX_TRACEBACK_CHARS})",
    "error_message": f"substr(error_message, 1, {MAX_MESSAGE_CHARS})",
}
_ATTEMPTS: Final = f"""
SELECT {", ".join(_ATTEMPT_CUT.get(name, name) for name in ATTEMPT_COLUMNS)} FROM taskmanager_task_attempts
WHERE task_id = CAST(? AS TEXT) ORDER BY attempt DESC LIMIT {MAX_ATTEMPTS}
"""
_STEP_CUT: Final = {
    "result": f"substr(result, 1, {MAX_STEP_RESULT_CHARS})",
    "error_message": f"substr(error_message, 1, {MAX_MESSAGE_CHARS})",
}
_STEPS: Final = f"""
SELECT length(CAST(result AS BLOB)), {", ".join(_STEP_CUT.get(name, name) for name in StepRow._fields)}
FROM taskmanager_steps WHERE task_id = CAST(? AS TEXT) AND kind = '{STEP}' ORDER BY id DESC LIMIT {MAX_STEPS}
"""
_COUNTS: Final = """
SELECT (SELECT count(*) FROM taskmanager_task_attempts WHERE task_id = CAST(:id AS TEXT)),
    (SELECT count(*) FROM taskmanager_steps WHERE task_id = CAST(:id AS TEXT) AND kind = :kind),
    (SELECT count(*) FROM taskmanager_events WHERE task_id = CAST(:id AS TEXT))
"""


def task_view(connection: Session, task_id: str) -> TaskView | None:
    """Return all that a page shows of this task, or None if the file does not have it. Call it in a snapshot."""
    wanted = whole_id(connection, task_id)
    found = connection.execute(_ROW, (wanted,)).fetchone()
    if found is None:
        return None
    row, (args, kwargs, result, log, log_text, message) = read_row(found[:-6]), found[-6:]
    attempts = [read_attempt(each) for each in connection.execute(_ATTEMPTS, (wanted,)).fetchall()]
    steps = connection.execute(_STEPS, (wanted,)).fetchall()
    attempt_count, step_count, event_count = connection.execute(_COUNTS, {"id": wanted, "kind": STEP}).fetchone()
    rows = [StepRow._make(each) for _, *each in reversed(steps)]
    return _of(row, args, kwargs, result)._replace(
        log=None if log is None else Part(log_text, log, log <= MAX_LOG_BYTES),
        message=message if isinstance(message, str) else None,
        attempts=attempts[::-1],
        attempt_count=attempt_count,
        steps=rows,
        step_results=[
            None if size is None else Part(each.result or "", size, len(each.result or "") < MAX_STEP_RESULT_CHARS)
            for each, (size, *_) in zip(rows, reversed(steps), strict=True)
        ],
        step_count=step_count,
        event_count=event_count,
        workflow=workflows_of(connection, [wanted]).get(wanted) if row.is_workflow_task else None,
        instances=instances(connection),
        is_queue_paused=row.queue_name in paused_queues(connection),
    )


def of_memory(row: TaskRow, attempts: Sequence[AttemptRow] = ()) -> TaskView:
    """Return the view of a task that stands in no file, as far as its row tells it."""
    size = _bytes_of(row.log)
    return _of(row, _bytes_of(row.args), _bytes_of(row.kwargs), _bytes_of(row.result))._replace(
        log=None if size is None else Part(row.log or "", size, size <= MAX_LOG_BYTES),
        attempts=attempts,
        attempt_count=len(attempts),
    )


def _of(row: TaskRow, args_size: int | None, kwargs_size: int | None, result_size: int | None) -> TaskView:
    args, kwargs, result = _part(row.args, args_size), _part(row.kwargs, kwargs_size), _part(row.result, result_size)
    cut = row._replace(args=_text(args), kwargs=_text(kwargs), result=_text(result), log=None)
    return TaskView(cut, args, kwargs, result, None)


def _part(text: str | None, size: int | None) -> Part | None:
    if text is None or size is None:
        return None
    is_whole = len(text) <= MAX_VALUE_CHARS
    return Part(text if is_whole else text[:MAX_BEGINNING_CHARS], size, is_whole)


def _text(part: Part | None) -> str | None:
    return None if part is None else part.text


def _bytes_of(text: str | None) -> int | None:
    return None if text is None else len(text.encode("utf-8", "surrogatepass"))


def statuses_of(connection: Session, task_ids: Sequence[str]) -> Mapping[str, str]:
    """Return the status of each of these tasks that the file has."""
    query = "SELECT t.id, t.status FROM json_each(?) AS wanted JOIN taskmanager_tasks AS t ON t.id = wanted.value"
    rows: list[tuple[str, Any]] = connection.execute(query, (json.dumps(list(task_ids)),)).fetchall()
    return dict(rows)
