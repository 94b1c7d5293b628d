"""A record as JSON: the columns of the table by their names, instants as ISO 8601 in UTC, JSON as what it holds.

Sealed arguments and results (a manager with `codec=`) stay the text that is stored; nothing here can open them.
"""

from collections.abc import Mapping
from typing import Any, Final

from taskmanager.codec.columns import loads_flat
from taskmanager.model.clock import from_us
from taskmanager.model.errors import ArgumentError
from taskmanager.model.record import AttemptRow, TaskRow

_JSON_COLUMNS: Final = frozenset({"args", "kwargs", "result", "task_options", "tags", "progress", "log"})
_BOOLEAN_COLUMNS: Final = frozenset({"is_workflow_task", "will_retry"})


def iso(instant_us: int) -> str:
    """`2026-11-28T04:41:40.123456Z`, as the views of the file spell it."""
    return f"{from_us(instant_us):%Y-%m-%dT%H:%M:%S.%f}Z"


def record(row: TaskRow) -> dict[str, Any]:
    """One task."""
    values = _columns(row._asdict())
    for entry in values["log"] or ():
        if isinstance(entry, dict) and isinstance(entry.get("at"), int):
            entry["at"] = iso(entry["at"])
    return values


def attempt(row: AttemptRow) -> dict[str, Any]:
    """One attempt that has ended."""
    return _columns(row._asdict())


def _columns(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _column(name, value) for name, value in values.items()}


def _column(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in _JSON_COLUMNS:
        return parsed(value)
    if name.endswith("_at") or name in ("good_until", "scheduled_for"):
        return iso(value)
    return bool(value) if name in _BOOLEAN_COLUMNS else value


def parsed(text: str) -> Any:
    """What a JSON column holds; its text where that is no JSON, or nested too deep to be written again."""
    try:
        return loads_flat(text)
    except ArgumentError:
        return text
