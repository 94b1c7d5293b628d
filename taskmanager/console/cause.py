"""Why something failed, in the few words for which a screen has room."""

from typing import Final

from taskmanager.codec.columns import loads_flat
from taskmanager.model.errors import ArgumentError
from taskmanager.model.record import TaskRow
from taskmanager.model.states import BuiltInTaskCode
from taskmanager.model.wording import why

MAX_CHARS: Final = 200
"""No screen has room for more of a message."""
ROOM_FOR_ALL: Final = 60
"""Columns in which code, type and the beginning of a message stand side by side."""


def cause(code: str, message: str | None, room: int) -> str:
    """Return code, type and message for a column of `room`; in a small one the code may give way to the type."""
    return why(code, message, max_chars=MAX_CHARS, is_short=room < ROOM_FOR_ALL)


def kind(code: str, message: str | None) -> str:
    """Return what failures of one kind share: `SMTP_DOWN`, or `ValueError`."""
    if code != BuiltInTaskCode.UNHANDLED_EXCEPTION:
        return code
    return why(code, (message or "").partition(":")[0], is_short=True)


def cause_of(row: TaskRow, message: str | None, room: int) -> str:
    """Return why this task ended as it did, and nothing where it has no error. A sealed result shows its code only."""
    return "" if row.error_code is None else cause(row.error_code, message, room)


def message_of(row: TaskRow) -> str | None:
    """Return the message in the stored result, of which anything may be left."""
    try:
        found = loads_flat(row.result or "null")
    except ArgumentError:
        return None
    error = found.get("err") if isinstance(found, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else None
