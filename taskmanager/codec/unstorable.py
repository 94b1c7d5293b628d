"""Which parameters of a function can never be stored: known from their annotations, before anything is enqueued."""

from collections.abc import Callable
from pathlib import PurePath
from typing import Any, Final

import msgspec
import msgspec.inspect

from taskmanager.codec.annotations import resolve, signature_of, widen

_MANY: Final = (
    msgspec.inspect.ListType,
    msgspec.inspect.SetType,
    msgspec.inspect.FrozenSetType,
    msgspec.inspect.VarTupleType,
)


def unstorable(fn: Callable[..., Any], *, task_name: str) -> dict[str, str]:
    """Parameters without a default, and the name of their type, of which every value but None would be refused.

    A parameter with a default may never be passed, and one of several types may be passed another.
    """
    parameters = signature_of(fn).parameters
    needed = [
        name for name, each in parameters.items() if each.default is each.empty and each.kind is not each.VAR_KEYWORD
    ]
    found = {}
    for name, annotation in resolve(fn, task_name=task_name, wanted=needed).items():
        kind = _custom_type(annotation)
        if kind is not None:
            found[name] = kind.__name__
    return found


def _custom_type(annotation: Any) -> type[Any] | None:
    """The class that has no form in storage, if the annotation is one, an optional one, or a list of them."""
    try:
        info = msgspec.inspect.type_info(widen(annotation))
    except Exception:  # annotations are foreign code; what is wrong with one is said when it is used
        return None
    if isinstance(info, msgspec.inspect.UnionType):
        members = [each for each in info.types if not isinstance(each, msgspec.inspect.NoneType)]
        info = members[0] if len(members) == 1 else info
    if isinstance(info, _MANY):
        info = info.item_type
    if not isinstance(info, msgspec.inspect.CustomType) or hasattr(info.cls, "model_validate_json"):
        return None
    return None if issubclass(info.cls, PurePath) else info.cls
