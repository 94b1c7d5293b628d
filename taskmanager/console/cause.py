"""Why something failed, in the few words for which a screen has room."""

from typing import Final

from taskmanager.codec.columns import loads_flat
from taskmanager.model.errors import ArgumentError
from taskmanager.model.record import TaskRow
from taskmanager.model.states import BuiltInTaskCode
from taskmanager.model.wording import why

MAX_CHARS: Final = 200
"""No screen has room for more of a message."""


def cause(code: str, message: str | None) -> str:
    """Return the reason in the few words for which a column has room."""
    return why(code, message, max_chars=MAX_CHARS, is_short=True)


def kind(code: str, message: str | None) -> str:
    """The same without what differs from one failure to the next: `SMTP_DOWN`, or `ValueError`."""
    return cause(code, (message or "").partition(":")[0]) if code == BuiltInTaskCode.UNHANDLED_EXCEPTION else code


def cause_of(row: TaskRow, message: str | None) -> str:
    """Why this task ended as it did; empty where it has no error. Of a sealed result there is only the code."""
    return "" if row.error_code is None else cause(row.error_code, message)


def message_of(row: TaskRow) -> str | None:
    """The message in the stored result, of which anything may be left."""
    try:
        found = loads_flat(row.result or "null")
    except ArgumentError:
        return None
    error = found.get("err") if isinstance(found, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else None
