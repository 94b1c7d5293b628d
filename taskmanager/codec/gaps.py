"""Arguments in which placeholders stand: null is stored in the place of each, and its path is told beside them.

The other parts are stored as the annotation says of parts, and proven. Where it says nothing of them, they are stored
as they are, and the start of the task finds out whether they fit.
"""

from collections.abc import Mapping
from functools import lru_cache
from itertools import repeat
from types import GenericAlias
from typing import Annotated, Any, Final, NamedTuple, get_args, get_origin

import msgspec

from taskmanager.codec.annotations import SCALARS, is_union
from taskmanager.codec.equality import type_name
from taskmanager.codec.values import MAKERS, Refusal, StoredType, encoded, json_encoder, split_object, to_json
from taskmanager.model.placeholder import Placeholder

Path = tuple[int | str, ...]
"""Where something stands: place or name of the argument, then places in lists and keys in dicts."""


class Gap(NamedTuple):
    """One placeholder, and where it stands."""

    path: Path
    placeholder: Placeholder


class _AsItIs(StoredType):
    """What an annotation says nothing about."""

    __slots__ = ()

    def encode(self, value: Any) -> bytes | Refusal:
        """The JSON of `value`, without a proof."""
        return encoded(value)


class _Parts(NamedTuple):
    """How what stands in a list, tuple or dict is stored. `keys` is for a dict without its values."""

    items: tuple[StoredType, ...]
    is_fixed: bool = False
    keys: StoredType = StoredType(Any)


_AS_IT_IS: Final = _AsItIs(Any)
_UNSAID: Final = _Parts((_AS_IT_IS,), keys=_AS_IT_IS)
_UNTYPED: Final = _Parts((StoredType(Any),))


def has_gap(value: Any) -> bool:
    """Return whether a placeholder stands where it may: alone, in lists and tuples, and among the values of dicts."""
    kind = type(value)
    if kind is Placeholder:
        return True
    try:
        if kind is dict:
            return any(map(has_gap, value.values()))
        return (kind is list or kind is tuple) and any(map(has_gap, value))
    except RecursionError:  # it contains itself, and will be refused for that
        return False


class Gaps:
    """Closes the values of one call, and finds the placeholders in them."""

    def __init__(self) -> None:
        self.found: list[Gap] = []

    def close(self, value: Any, stored: StoredType, path: Path) -> bytes | Refusal:
        """Return the JSON of `value` with null for each placeholder, or why there is none."""
        try:
            return self._close(value, stored, path)
        except RecursionError:
            return Refusal("it is nested too deeply, or contains itself")

    def _close(self, value: Any, stored: StoredType, path: Path) -> bytes | Refusal:
        if type(value) is Placeholder:
            self.found.append(Gap(path, value))
            return b"null"
        if not has_gap(value):
            return stored.encode(value)
        kind: Any = type(value)
        parts = _parts_of(stored, kind)
        if parts is None:
            return Refusal(f"it is a {type_name(value)}, which does not fit its annotation {stored.annotation}")
        return self._object(value, parts, path) if kind is dict else self._array(value, parts, path)

    def _array(self, value: Any, parts: _Parts, path: Path) -> bytes | Refusal:
        if parts.is_fixed and len(value) != len(parts.items):
            return Refusal(f"it has {len(value)} items, its annotation {len(parts.items)}")
        items = []
        types = parts.items if parts.is_fixed else repeat(parts.items[0])
        for place, (each, stored) in enumerate(zip(value, types, strict=False)):
            data = self._close(each, stored, (*path, place))
            if isinstance(data, Refusal):
                return data._replace(reason=f"of item {place}: {data.reason}")
            items.append(data)
        return b"[%b]" % b",".join(items)

    def _object(self, value: dict[Any, Any], parts: _Parts, path: Path) -> bytes | Refusal:
        keys = parts.keys.encode(dict.fromkeys(value))
        if isinstance(keys, Refusal):
            return keys
        pairs = []
        for key, each in zip(split_object(keys.decode()), value.values(), strict=False):
            data = self._close(each, parts.items[0], (*path, key))
            if isinstance(data, Refusal):
                return data._replace(reason=f"of item {key!r}: {data.reason}")
            pairs.append(json_encoder.encode(key) + b":" + data)
        return b"{%b}" % b",".join(pairs)


@lru_cache(1_000)
def _parts_of(stored: StoredType, kind: type[Any]) -> _Parts | None:
    """Return how the parts of a value of this kind are stored; None if its annotation takes no such value."""
    if stored is _AS_IT_IS:
        return _UNSAID
    annotation = _plain(stored.annotation)
    members = [_plain(each) for each in get_args(annotation)] if is_union(annotation) else [annotation]
    if all(each in SCALARS for each in members):
        return None
    if Any in members or kind in members:
        return _UNTYPED
    fitting = [get_args(each) for each in members if MAKERS.get(get_origin(each)) is kind]
    if len(fitting) != 1 or not fitting[0]:
        return _UNSAID
    arguments = fitting[0]
    if kind is dict:
        return _Parts((StoredType(arguments[1]),), keys=StoredType(GenericAlias(dict, (arguments[0], None))))
    if kind is tuple and arguments[-1] is not Ellipsis:
        return _Parts(tuple(map(StoredType, arguments)), is_fixed=True)
    return _Parts((StoredType(arguments[0]),))


def _plain(annotation: Any) -> Any:
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return annotation


def canonical(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Return a text that is the same in every process for equal arguments, or None where there is none.

    What is stored is not: the order of a set changes with each process.
    """
    try:
        return _canonical_encoder.encode((args, kwargs)).decode()
    except Exception:  # keys that are no text, or items of a set that have no order
        return None


def _in_order(value: Any) -> Any:
    if type(value) is Placeholder:
        return None
    dump = getattr(type(value), "model_dump", None)
    return to_json(value) if dump is None else dump(value, round_trip=True)


_canonical_encoder: Final = msgspec.json.Encoder(enc_hook=_in_order, order="deterministic")
