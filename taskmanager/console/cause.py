"""Why something failed, in the few words for which a screen has room."""

import json
from typing import Final

from taskmanager.model.record import TaskRow
from taskmanager.model.states import BuiltInTaskCode

MAX_CHARS: Final = 200
"""No screen has room for more of a message."""


def cause(code: str, message: str | None) -> str:
    """`SMTP_DOWN  server is away`. An exception without a code of its own is named by its type, which says more:
    `ValueError: no such invoice`.
    """
    first = _first_line(message)
    if code == BuiltInTaskCode.UNHANDLED_EXCEPTION and first:
        return first
    return f"{code}  {first}" if first else code


def kind(code: str, message: str | None) -> str:
    """The same without what differs from one failure to the next: `SMTP_DOWN`, or `ValueError`."""
    is_unhandled = code == BuiltInTaskCode.UNHANDLED_EXCEPTION
    return cause(code, _first_line(message).partition(":")[0] if is_unhandled else None)


def cause_of(row: TaskRow) -> str:
    """Why this task ended as it did; empty where it has no error. Of a sealed result there is only the code."""
    return "" if row.error_code is None else cause(row.error_code, _message(row.result))


def _message(result: str | None) -> str | None:
    """The message in a stored result, of which anything may be left."""
    try:
        found = json.loads(result or "null")
    except ValueError:
        return None
    error = found.get("err") if isinstance(found, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else None


def _first_line(message: str | None) -> str:
    lines = (message or "").strip().splitlines()
    return lines[0][:MAX_CHARS] if lines else ""
