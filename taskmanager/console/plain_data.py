"""A picture as plain data for `--json`: instants as ISO 8601 in UTC, what is not known as null."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from taskmanager.console.picture import Picture
from taskmanager.model.clock import from_us


def plain_data(picture: Picture) -> dict[str, Any]:
    """The object of `taskmanager status --json`. The command counts everything, so nothing is capped."""
    found: dict[str, Any] = _plain("", picture)
    del found["capped"]
    return found


def _plain(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | str):
        return value.value if isinstance(value, Enum) else value
    if is_dataclass(value):
        return {each.name: _plain(each.name, getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {key: _plain(key, each) for key, each in zip(value._fields, value, strict=True)}
    if isinstance(value, Mapping):
        return {str(key): _plain(str(key), each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(name, each) for each in value]
    if name.endswith(("_at", "since")):
        return f"{from_us(value):%Y-%m-%dT%H:%M:%S.%f}Z"
    return value
