"""What the JSON columns of a row hold: whether a text is what belongs there, and how any other text is shown."""

from functools import lru_cache, partial
from typing import Any, Final

import msgspec

from taskmanager.codec.values import loads
from taskmanager.model.errors import ArgumentError
from taskmanager.model.record import TaskRow

MAX_DEPTH: Final = 100
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
        raise ArgumentError(f"nested deeper than {MAX_DEPTH} levels")
    return value


def _is_flat(text: str, value: Any) -> bool:
    return text.count("[") + text.count("{") <= MAX_DEPTH or _fits(value, MAX_DEPTH)


def _fits(value: Any, levels: int) -> bool:
    if isinstance(value, dict):
        return levels > 0 and all(_fits(each, levels - 1) for each in value.values())
    if isinstance(value, list):
        return levels > 0 and all(_fits(each, levels - 1) for each in value)
    return True
