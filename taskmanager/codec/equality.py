"""The proof that a value came back from storage equal in value *and* type, however deep.

`==` is not enough: `1 == True`, `0.0 == -0.0`, a subclass may equal its base, and two aware datetimes are equal when
they name the same instant although one has lost its zone.
"""

import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum
from functools import cached_property, lru_cache
from pathlib import PurePath
from types import NoneType
from typing import Any, Final
from uuid import UUID

from taskmanager.model.result import TaskError, TaskResult

_PLAIN: Final = frozenset({int, str, bool, NoneType, bytes, bytearray, date, timedelta, UUID})
_BUILT_IN: Final = (str, bytes, bytearray, int, float, list, tuple, dict, set, frozenset)
_VALUE_PACKAGES: Final = frozenset({"ipaddress", "pydantic", "pydantic_core"})
"""Where small immutable values such as addresses and URLs come from, whose `==` compares all there is to them."""
_MISSING: Final = object()
_MAX_SEARCH: Final = 20
"""So deep nobody looks for the part that is to blame."""


def difference(sent: Any, back: Any, place: str = "it") -> str | None:
    """What `back` differs from `sent` in, for people, or None when they are equal in value and type."""
    kind = type(sent)
    if kind is not type(back):
        return f"{place} would come back as {_types_apart(back, sent)}"
    if kind in _PLAIN:
        return None if sent == back else _changed(sent, back, place)
    compare = _COMPARISONS.get(kind)
    if compare is not None:
        return compare(sent, back, place)
    return _compare_object(sent, back, place)


def type_name(value: object) -> str:
    """The type of `value` as people write it."""
    return "None" if value is None else type(value).__qualname__


def short_repr(value: object, limit: int = 80) -> str:
    """A repr of at most `limit` characters that never fails, whatever the object does."""
    try:
        text = repr(value)
    except Exception as error:  # a foreign __repr__ may raise anything; the message must still be written
        return f"<{type_name(value)}, whose repr raises {type(error).__name__}>"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _types_apart(back: object, sent: object) -> str:
    """`dict, not Order`; two classes of one name are told apart by their modules."""
    names = type_name(back), type_name(sent)
    if names[0] == names[1]:
        names = f"{type(back).__module__}.{names[0]}", f"{type(sent).__module__}.{names[1]}"
    if names[0] == names[1]:
        return f"another class {names[0]}, defined by a second run of its module; make it anew after the reload"
    return f"{names[0]}, not {names[1]}"


def not_in_json(value: Any, place: str = "it", depth: int = 0) -> str | None:
    """Why JSON cannot hold a part of this value, a float such as nan, or None where none is found."""
    if type(value) is float:
        if math.isfinite(value):
            return None
        return f"{place} is {value!r}, for which JSON has no form; pass None or a text in its place"
    if depth > _MAX_SEARCH or isinstance(value, str | bytes | bytearray):
        return None
    if isinstance(value, dict):
        parts = ((f"{place}[{short_repr(key)}]", each) for key, each in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        parts = ((f"{place}[{index}]", each) for index, each in enumerate(value))
    else:
        kind: Any = type(value)
        parts = ((f"{place}.{name}", getattr(value, name, None)) for name in _field_names(kind) or ())
    return next((found for where, each in parts if (found := not_in_json(each, where, depth + 1))), None)


def _changed(sent: Any, back: Any, place: str) -> str:
    """What has changed, in words that differ."""
    ours, theirs = short_repr(sent), short_repr(back)
    if ours != theirs:
        return f"{place} would come back as {theirs}, not {ours}"
    return f"{place} would come back as another {type_name(sent)} that looks the same, {ours}, and is not equal to it"


def _compare_float(sent: float, back: float, place: str) -> str | None:
    is_same = sent == back and math.copysign(1.0, sent) == math.copysign(1.0, back)
    return None if is_same else _changed(sent, back, place)


def _compare_decimal(sent: Decimal, back: Decimal, place: str) -> str | None:
    # 1.0 and 1.00 are equal but not the same amount of precision; a signalling NaN raises when compared.
    if sent.is_nan():
        return f"{place} is {sent!r}, which equals nothing, not even itself; pass None or a text in its place"
    return None if sent.as_tuple() == back.as_tuple() else _changed(sent, back, place)


def _compare_time(sent: datetime | time, back: datetime | time, place: str) -> str | None:
    if sent.replace(tzinfo=None) != back.replace(tzinfo=None) or sent.fold != back.fold:
        return _changed(sent, back, place)
    ours, theirs = sent.tzinfo, back.tzinfo
    if ours is theirs:
        return None
    if not (_is_fixed_offset(ours) and _is_fixed_offset(theirs)):
        hint = "convert it with .astimezone(UTC)" if ours is not None else "give it a zone, or take the zone away"
        return f"{place} has the zone {short_repr(ours)} and would come back with {short_repr(theirs)}; {hint}"
    if sent.utcoffset() != back.utcoffset():
        return _changed(sent, back, place)
    if type(ours) is type(theirs) and sent.tzname() != back.tzname():
        return f"{place} has a zone named {sent.tzname()!r} and would lose the name; convert it with .astimezone(UTC)"
    return None


def _is_fixed_offset(zone: tzinfo | None) -> bool:
    # pydantic parses every instant into a fixed offset class of its own. It means the same as datetime.timezone, and
    # refusing it would refuse every model that holds an instant.
    kind = type(zone)
    return kind is timezone or (kind.__name__ == "TzInfo" and kind.__module__.startswith("pydantic_core"))


def _compare_sequence(sent: Any, back: Any, place: str) -> str | None:
    if len(sent) != len(back):
        return f"{place} would come back with {len(back)} items, not {len(sent)}"
    for index, (ours, theirs) in enumerate(zip(sent, back, strict=True)):
        found = difference(ours, theirs, f"{place}[{index}]")
        if found:
            return found
    return None


def _compare_dict(sent: dict[Any, Any], back: dict[Any, Any], place: str) -> str | None:
    if len(sent) != len(back):
        return f"{place} would come back with {len(back)} keys, not {len(sent)}"
    # JSON objects keep their order, so the pairs meet in order and a key that changed its type shows.
    for (our_key, ours), (their_key, theirs) in zip(sent.items(), back.items(), strict=True):
        found = difference(our_key, their_key, f"the key {short_repr(our_key)} of {place}") or difference(
            ours, theirs, f"{place}[{short_repr(our_key)}]"
        )
        if found:
            return found
    return None


def _compare_set(sent: Any, back: Any, place: str) -> str | None:
    if len(sent) != len(back):
        return f"{place} would come back with {len(back)} members, not {len(sent)}"
    members = {member: member for member in back}
    for ours in sent:
        theirs = members.get(ours, _MISSING)
        if theirs is _MISSING:
            return f"{place} would lose its member {short_repr(ours)}"
        found = difference(ours, theirs, f"the member {short_repr(ours)} of {place}")
        if found:
            return found
    return None


def _compare_result(sent: TaskResult[Any, Any], back: TaskResult[Any, Any], place: str) -> str | None:
    if sent.is_ok() != back.is_ok():
        return _changed(sent, back, place)
    if sent.is_ok():
        return difference(sent.ok_value, back.ok_value, f"{place}.ok_value")
    return difference(sent.err_value, back.err_value, f"{place}.err_value")


def _compare_object(sent: Any, back: Any, place: str) -> str | None:
    """Compare what has no entry of its own by exact type: enums, paths and records of all makes."""
    kind: Any = type(sent)
    if isinstance(sent, Enum):
        return None if sent is back else _changed(sent, back, place)
    if isinstance(sent, PurePath):
        return None if str(sent) == str(back) else _changed(sent, back, place)
    if isinstance(sent, tuple) and hasattr(sent, "_fields"):
        return _compare_sequence(sent, back, place)
    if not isinstance(sent, _BUILT_IN):
        names = _field_names(kind)
        if names is not None:
            return _compare_fields(sent, back, names, place)
    if kind.__module__.split(".")[0] in _VALUE_PACKAGES:
        return None if sent == back else _changed(sent, back, place)
    return f"{place} is a {type_name(sent)}, a type that cannot be proven to come back equal"


@lru_cache(maxsize=1_024)
def _field_names(kind: Any) -> tuple[str, ...] | None:
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind))
    if hasattr(kind, "__attrs_attrs__"):
        return tuple(attribute.name for attribute in kind.__attrs_attrs__)
    if hasattr(kind, "__struct_fields__"):
        return tuple(kind.__struct_fields__)
    if kind is TaskError:
        return kind.__slots__
    if hasattr(kind, "__pydantic_fields__"):
        return (*kind.__pydantic_fields__, "__pydantic_extra__", "__pydantic_private__")
    return None


def _compare_fields(sent: Any, back: Any, names: tuple[str, ...], place: str) -> str | None:
    loose = (_loose_attributes(sent) | _loose_attributes(back)).difference(names)
    for name in (*names, *sorted(loose)) if loose else names:
        ours, theirs = getattr(sent, name, _MISSING), getattr(back, name, _MISSING)
        if ours is _MISSING and theirs is _MISSING:
            continue
        if ours is _MISSING or theirs is _MISSING:
            return f"{place}.{name} would {'appear' if ours is _MISSING else 'be lost'}"
        found = difference(ours, theirs, f"{place}.{name}")
        if found:
            return found
    return None


def _loose_attributes(value: Any) -> set[str]:
    """Instance attributes, without those that a `cached_property` computes again from the fields."""
    kind = type(value)
    return {
        name for name in getattr(value, "__dict__", ()) if not isinstance(getattr(kind, name, None), cached_property)
    }


_COMPARISONS: Final[dict[type, Callable[[Any, Any, str], str | None]]] = {
    float: _compare_float,
    Decimal: _compare_decimal,
    datetime: _compare_time,
    time: _compare_time,
    list: _compare_sequence,
    tuple: _compare_sequence,
    dict: _compare_dict,
    set: _compare_set,
    frozenset: _compare_set,
    TaskResult: _compare_result,
}
