"""The views of rows that users get: frozen, with aware instants, and with the JSON of each column read."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from taskmanager.codec.values import loads
from taskmanager.model.clock import from_us
from taskmanager.model.record import AttemptInfo, AttemptRow, TaskInfo, TaskRow, UnreadableRow
from taskmanager.model.result import TaskError, TaskResult, trusted_code
from taskmanager.model.states import WAITING, AttemptOutcome, TaskStatus
from taskmanager.model.steps import StepInfo, StepRow


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
    steps: tuple[StepInfo, ...] | None = None,
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
    return TaskInfo(**values, saved=is_saved, attempts=attempts, steps=steps)


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


def step_info(row: StepRow) -> StepInfo:
    """The view of a step that users get."""
    code = row.error_code
    return StepInfo(
        number=row.number or None,
        key=row.key or None,
        name=row.name,
        started_at=from_us(row.started_at),
        ended_at=None if row.ended_at is None else from_us(row.ended_at),
        attempts=row.attempts,
        error=None if code is None else TaskError(trusted_code(code), row.error_message or ""),
    )
