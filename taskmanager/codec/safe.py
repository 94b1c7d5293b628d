"""JSON for facts that must be written whatever they hold: errors, logs, progress. Loses detail rather than failing."""

import math
from collections.abc import Mapping, Set
from datetime import date, datetime, time
from enum import Enum
from itertools import islice
from typing import Any, Final

from taskmanager.codec.equality import short_repr
from taskmanager.codec.values import INT64_MAX, INT64_MIN, dumps

MAX_TEXT_CHARS: Final = 100_000
MAX_REPR_CHARS: Final = 500
MAX_ITEMS: Final = 10_000
MAX_DEPTH: Final = 32


def safe_text(text: str, limit: int = MAX_TEXT_CHARS) -> str:
    """`text` that UTF-8 can hold, at most `limit` characters; lone surrogates become `\\udXXX` escapes."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return text.encode("utf-8", "backslashreplace").decode()


def safe_value(value: Any, depth: int = 0) -> Any:
    """`value` as plain JSON data; each part that JSON cannot hold becomes a short text of it."""
    if value is None or value is True or value is False:
        return value
    kind = type(value)
    if kind is int and INT64_MIN <= value <= INT64_MAX:
        return value
    if kind is float and math.isfinite(value):
        return value
    if kind is str:
        return safe_text(value)
    if isinstance(value, Enum):
        return safe_value(value.value, depth + 1) if depth < MAX_DEPTH else safe_text(short_repr(value, MAX_REPR_CHARS))
    if kind in (datetime, date, time):
        return str(value.isoformat())
    if depth < MAX_DEPTH:
        if isinstance(value, Mapping):
            return {_safe_key(key): safe_value(each, depth + 1) for key, each in islice(value.items(), MAX_ITEMS)}
        if isinstance(value, list | tuple | Set):
            return [safe_value(each, depth + 1) for each in islice(value, MAX_ITEMS)]
    return safe_text(short_repr(value, MAX_REPR_CHARS))


def _safe_key(key: Any) -> str:
    return safe_text(key if type(key) is str else short_repr(key, MAX_REPR_CHARS))


def dumps_safe(value: Any) -> str:
    """JSON text of `value` with every part that JSON cannot hold replaced by a short text. Never fails."""
    return dumps(readable(value))


def readable(value: Any) -> Any:
    """`safe_value`, or one short text for a value that cannot be read at all. Never fails."""
    try:
        return safe_value(value)
    except Exception as error:  # a foreign mapping may raise while it is read
        return safe_text(f"<{type(value).__qualname__}, which could not be read: {type(error).__name__}>")
