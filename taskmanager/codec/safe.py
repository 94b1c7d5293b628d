"""JSON of the library's own: errors, logs, progress, tags, options.

It is written whatever it holds, and loses detail rather than failing. It is read whatever somebody else has put there.
"""

import math
from collections.abc import Mapping, Set
from datetime import date, datetime, time
from enum import Enum
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Final

import msgspec

from taskmanager.codec.equality import short_repr
from taskmanager.codec.values import INT64_MAX, INT64_MIN, dumps, loads
from taskmanager.model.errors import ArgumentError
from taskmanager.model.record import TaskRow

MAX_TEXT_CHARS: Final = 100_000
MAX_REPR_CHARS: Final = 500
MAX_ITEMS: Final = 10_000
MAX_DEPTH: Final = 32
MAX_READ_DEPTH: Final = 100
"""What is nested deeper is text to us. The library writes 32 levels; what prints, copies or sends a value recurses, and
gives up at some hundred.
"""
EMPTY: Final = {"task_options": "{}", "tags": None, "progress": None, "log": None}
"""The JSON columns of a task that the library reads itself, and what stands there instead of what cannot be read."""

_COMMON_CHARS: Final = 1_000
_DECODERS: Final[dict[str, msgspec.json.Decoder[Any]]] = {
    "task_options": msgspec.json.Decoder(dict[str, Any]),
    "tags": msgspec.json.Decoder(dict[str, str]),
    "progress": msgspec.json.Decoder(dict[str, Any]),
    "log": msgspec.json.Decoder(list[dict[str, Any]]),
}


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


decode_rows: Final = msgspec.json.Decoder(list[TaskRow]).decode
"""The rows of a JSON array of arrays, as SQLite makes it of the columns of a `STRICT` table."""


def is_readable(column: str, text: str) -> bool:
    """Whether this is the JSON that belongs into that column."""
    try:
        return _is_flat(text, _DECODERS[column].decode(str(text)))  # msgspec takes no subclass
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False


def are_options(text: str) -> bool:
    """The same for `task_options`. Nearly all rows have the short options of a few functions."""
    return _are_common(text) if len(text) <= _COMMON_CHARS else is_readable("task_options", text)


_are_common: Final = lru_cache(1_000)(partial(is_readable, "task_options"))


def loads_flat(text: str) -> Any:
    """The plain value of JSON text. Raises `ArgumentError` when it is no JSON, or nested too deep to be passed on."""
    value = loads(text)
    if not _is_flat(text, value):
        raise ArgumentError(f"nested deeper than {MAX_READ_DEPTH} levels")
    return value


def _is_flat(text: str, value: Any) -> bool:
    return text.count("[") + text.count("{") <= MAX_READ_DEPTH or _fits(value, MAX_READ_DEPTH)


def _fits(value: Any, levels: int) -> bool:
    if isinstance(value, dict):
        return levels > 0 and all(_fits(each, levels - 1) for each in value.values())
    if isinstance(value, list):
        return levels > 0 and all(_fits(each, levels - 1) for each in value)
    return True
