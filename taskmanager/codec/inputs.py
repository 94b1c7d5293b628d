"""Puts what other nodes of a workflow came to into the stored arguments of a task, as the JSON that is stored of it.

The types play no part here: the arguments are decoded afterwards, by the annotations of the function.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from taskmanager.codec.results import encode_error_text
from taskmanager.codec.values import Codec, json_encoder, plain_decoder, split_object, unseal
from taskmanager.model.errors import ArgumentError
from taskmanager.model.result import TaskError
from taskmanager.model.states import BuiltInTaskCode
from taskmanager.model.workflows import ENDED_NODE, Input

Path = Sequence[int | str]

_OK: Final = "ok"


def filled(args: list[Any], kwargs: dict[str, Any], values: Iterable[tuple[Path, msgspec.Raw]]) -> tuple[str, str]:
    """Return the stored form of arguments with these values at their places.

    A path begins with the place or the name of an argument, and goes on into its lists and objects. Raises
    `ArgumentError` where it leads nowhere.
    """
    for path, value in values:
        try:
            part: Any = args if isinstance(path[0], int) else kwargs
            for step in path[:-1]:
                if isinstance(part[step], msgspec.Raw):
                    part[step] = plain_decoder.decode(part[step])
                part = part[step]
            part[path[-1]] = value
        except (LookupError, TypeError) as error:
            raise ArgumentError(f"no place of the stored arguments is named {list(path)}") from error
    return json_encoder.encode(args).decode(), json_encoder.encode(kwargs).decode()


def json_of(found: Input, codec: Codec | None) -> msgspec.Raw:
    """Return what an input stands for: the value of its node, or the `TaskResult` of it.

    Raises `ArgumentError` if there is no such value, or the codec cannot read it.
    """
    if found.kind == "value":
        return _value_of(found, codec)
    return msgspec.Raw(_result_of(found, codec).encode())


def _value_of(found: Input, codec: Codec | None) -> msgspec.Raw:
    node = f"node {found.node_id!r}"
    if found.status != "COMPLETED":
        raise ArgumentError(f"{node} has no value: it is {found.status}")
    if found.result is None:
        raise ArgumentError(f"{node} has no value: none is stored")
    try:
        parts = split_object(unseal(codec, found.result, node))
    except ValueError as error:  # `ArgumentError` is one, too
        raise ArgumentError(f"the value of {node} cannot be read: {error}") from error
    if _OK not in parts:
        raise ArgumentError(f"{node} has no value: {plain_decoder.decode(parts.get('err', b'null'))}")
    return parts[_OK]


def _result_of(found: Input, codec: Codec | None) -> str:
    node = f"node {found.node_id!r}"
    if found.status not in ENDED_NODE:
        return _error(BuiltInTaskCode.UPSTREAM_PENDING, f"{node} has not ended")
    if found.status == "SKIPPED":
        return _error(BuiltInTaskCode.UPSTREAM_SKIPPED, f"{node} was skipped")
    text = found.result if found.status == "COMPLETED" else found.error or found.result
    if text is None:
        return _error(BuiltInTaskCode.RESULT_NOT_AVAILABLE, f"nothing is stored of what {node} came to")
    return unseal(codec, text, node)


def _error(code: BuiltInTaskCode, message: str) -> str:
    return encode_error_text(TaskError(code, message))
