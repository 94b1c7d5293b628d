"""What a function says about its parameters and its result, resolved at run time."""

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

from taskmanager.model.errors import ConfigurationError

_EMPTY: Final = inspect.Parameter.empty

SCALARS: Final[frozenset[type[Any]]] = frozenset({int, str, bool, float, NoneType})
"""Types of which every value, kept within 64 bits and finite, is known to survive JSON without a proof."""


def signature_of(fn: Callable[..., Any]) -> inspect.Signature:
    """The signature a caller sees; annotations are left alone, they may name what does not exist yet."""
    if isinstance(fn, functools.partial):  # without the `__wrapped__` of update_wrapper, which hides what is bound
        fn = functools.partial(fn.func, *fn.args, **fn.keywords)
    if sys.version_info >= (3, 14):
        import annotationlib

        return inspect.signature(fn, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(fn)


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine: an `async def`, or an object whose `__call__` is one."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    call = getattr(type(fn), "__call__", None)  # noqa: B004  # whether it is async is asked, not whether there is one
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(call)


def resolve(fn: Callable[..., Any], *, task_name: str, wanted: Iterable[str]) -> dict[str, Any]:
    """The annotations of `fn` for the `wanted` parameters (`"return"` is the result), strings evaluated.

    Raises `ConfigurationError` naming the parameter whose annotation names something that does not exist at run time.
    """
    target = annotated_function(fn)
    try:
        hints = typing.get_type_hints(target, include_extras=True)
    except Exception:  # whatever evaluating foreign annotations raises; the loop below finds and names the culprit
        hints = {name: _resolve_one(target, name, task_name) for name in wanted}
    return {name: hints[name] for name in wanted if hints.get(name, _EMPTY) is not _EMPTY}


def annotated_function(fn: Callable[..., Any]) -> Any:
    """The function that carries the annotations and the name: without wrappers, `partial`s and callable objects."""
    target: Any = inspect.unwrap(fn)
    while isinstance(target, functools.partial):
        target = inspect.unwrap(target.func)
    if not inspect.isroutine(target) and not isinstance(target, type):
        target = getattr(type(target), "__call__", target)  # noqa: B004  # its annotations are wanted, not a test
    return target


def named_function(fn: Any) -> Any:
    """`fn`, or the function behind a `partial` or a callable object, which have no name of their own."""
    return fn if isinstance(getattr(fn, "__qualname__", None), str) else annotated_function(fn)


def _resolve_one(target: Any, name: str, task_name: str) -> Any:
    annotation = _raw_annotations(target).get(name, _EMPTY)
    if annotation is _EMPTY:
        return annotation
    lone = types.SimpleNamespace(__annotations__={name: annotation})
    try:
        return typing.get_type_hints(lone, globalns=getattr(target, "__globals__", {}), include_extras=True)[name]
    except Exception as error:
        which = "the return annotation" if name == "return" else f"the annotation of parameter {name!r}"
        raise ConfigurationError(
            f"task {task_name}: {which} ({annotation}) cannot be resolved at run time: {error}. Import the name at the "
            "top of the module, outside `if TYPE_CHECKING:`, and define it before the task and outside of functions"
        ) from error


def _raw_annotations(target: Any) -> dict[str, Any]:
    if sys.version_info >= (3, 14):
        import annotationlib

        return dict(annotationlib.get_annotations(target, format=annotationlib.Format.STRING))
    return dict(getattr(target, "__annotations__", {}))


def is_union(annotation: Any) -> bool:
    """Whether it is `X | Y`, `Optional[X]` or `Union[X, Y]`."""
    return get_origin(annotation) in (Union, UnionType)


def unalias(annotation: Any) -> Any:
    """The type behind `type X = ...` (Python 3.12)."""
    while _is_alias(annotation):
        annotation = annotation.__value__
    return annotation


def _is_alias(annotation: Any) -> bool:
    return type(annotation).__name__ == "TypeAliasType"


def widen(annotation: Any, within: tuple[Any, ...] = ()) -> Any:
    """The annotation with every `float` it spells out replaced by `int | float`, and `Iterable` by `list`.

    Type checkers let an int stand for a float, so `f.enqueue(5)` is right for `x: float`; stored as 5 it must not come
    back as 5.0. The fields of classes are not rewritten. An alias that names itself, as that of JSON does, is `Any`
    inside itself: what does not come back equal is refused at the call.
    """
    if _is_alias(annotation):
        return Any if annotation in within else widen(annotation.__value__, (*within, annotation))
    if annotation is float:
        return int | float
    if isinstance(annotation, typing.ParamSpecArgs | typing.ParamSpecKwargs) or annotation is object:
        return Any
    origin, arguments = get_origin(annotation), get_args(annotation)
    if not arguments or origin is typing.Literal:
        return annotation
    if is_union(annotation):
        return Union[tuple(widen(each, within) for each in arguments)]  # noqa: UP007  # built at run time, from a tuple
    if origin is typing.Annotated:
        return typing.Annotated[(widen(arguments[0], within), *annotation.__metadata__)]
    wide = tuple(widen(each, within) for each in arguments)
    if origin is Iterable:
        return types.GenericAlias(list, wide)
    if wide == arguments:
        return annotation
    if isinstance(annotation, types.GenericAlias):
        return types.GenericAlias(origin, wide)
    return annotation.copy_with(wide) if hasattr(annotation, "copy_with") else annotation


def scalar_types(annotation: Any) -> frozenset[type[Any]]:
    """The exact types whose values need no proof under this (widened) annotation; empty when all need one."""
    if annotation is None:
        return frozenset({NoneType})
    if annotation is Any:
        return SCALARS
    if isinstance(annotation, type):
        return SCALARS & {annotation}
    if is_union(annotation):
        members: frozenset[type[Any]] = frozenset(get_args(annotation))
        # Beside other types a JSON string may mean something else than a str; null always means None.
        return members if members <= SCALARS else SCALARS & members & {NoneType}
    return frozenset()
