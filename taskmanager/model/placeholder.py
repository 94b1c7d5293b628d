"""What stands for the value of a node while a workflow is defined: it can be passed to a task, and nothing else.

A type checker takes it for the value. So whatever would be done with a value is refused here, lest a text is made of it
that looks like an argument.
"""

from typing import Any, Final, NoReturn

from taskmanager.model.errors import ConfigurationError

MISPLACED: Final = "is passed as an argument of Workflow.add, alone or inside lists, tuples and values of dicts"
"""What is said of one that stands in any other place."""

_get: Final = object.__getattribute__
_set: Final = object.__setattr__


class Placeholder:
    """The value of a node, or its `TaskResult`, before there is one. `kind` is "value" or "result"."""

    __slots__ = ("_kind", "_node")

    def __init__(self, node: Any, kind: str) -> None:
        _set(self, "_node", node)
        _set(self, "_kind", kind)

    def __repr__(self) -> str:
        node, kind = source_of(self)
        return f"<{kind} of node {node.node_id!r}>"

    def __getattribute__(self, name: str) -> Any:
        return type(self) if name == "__class__" else _refuse(self)  # `isinstance` asks for it


def source_of(placeholder: Placeholder) -> tuple[Any, str]:
    """Return the node of a placeholder, and whether its "value" or its "result" is meant."""
    return _get(placeholder, "_node"), _get(placeholder, "_kind")


def _refuse(self: Placeholder, *_args: object, **_kwargs: object) -> NoReturn:
    raise ConfigurationError(
        f"{self!r} cannot be used while the workflow is defined, because nothing has run yet: it {MISPLACED}. Whatever "
        "else is to be done with it is done by a task"
    )


_WAYS: Final = (str, bytes, int, float, list, tuple, dict, set)
"""What a value may be used as: whatever can be done with these is refused."""
_MORE_WAYS: Final = "aenter aexit aiter anext await call enter exit fspath matmul next rmatmul"
_KEPT: Final = "class class_getitem dir doc getattribute getformat init init_subclass new repr sizeof subclasshook"

for _name in {each.strip("_") for way in _WAYS for each in dir(way) if each[0] == "_"} | {*_MORE_WAYS.split()}:
    if _name not in _KEPT.split():
        setattr(Placeholder, f"__{_name}__", _refuse)
