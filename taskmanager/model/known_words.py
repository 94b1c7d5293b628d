"""Refuses all unknown option names of a call at once, and suggests the names that were meant.

Python names only the first unknown keyword, and suggests nothing.
"""

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., Any])

_options: Final[dict[str, list[str]]] = {}
"""The options of each callable, filled by the decorators below."""


def with_known_words(subject: str) -> Callable[[type[C]], type[C]]:
    """Decorate a class, so that its constructor refuses unknown words by name."""

    def decorate(cls: type[C]) -> type[C]:
        changed: Any = cls
        names = [each.name for each in fields(changed)] if is_dataclass(cls) else _names_of(changed.__init__)
        changed.__init__ = _checking(subject, names, changed.__init__)
        return cls

    return decorate


def known_words(subject: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function, so that it refuses unknown words. `inspect` and type checkers still see its parameters."""
    return lambda fn: _checking(subject, _names_of(fn), fn)


def _names_of(fn: Callable[..., Any]) -> list[str]:
    """Return the names that a caller may use. `inspect.signature` would take fifty times as long, at every import."""
    code = inspect.unwrap(fn).__code__
    names = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
    return [name for name in names if name not in ("self", "cls")]


def _checking(subject: str, names: list[str], fn: Callable[P, R]) -> Callable[P, R]:
    known = frozenset(names)
    _options[subject] = names

    @wraps(fn)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if not known.issuperset(kwargs):
            from taskmanager.model.meant_words import said_of  # a call that is right needs none of its words

            raise TypeError(
                f"{subject} has {said_of([word for word in kwargs if word not in known], subject, _options)}"
            )
        return fn(*args, **kwargs)

    return checked


def shows_options(options: type) -> Callable[[F], F]:
    """Decorate a decorator that takes `**options`, so that `inspect` sees the options that its overloads declare."""

    def decorate(fn: F) -> F:
        taken = inspect.signature(fn).parameters.values()
        first = [each.replace(kind=each.POSITIONAL_ONLY) for each in taken if each.name == "self"]
        function = inspect.Parameter("fn", inspect.Parameter.POSITIONAL_ONLY, default=None)
        named = inspect.signature(options).parameters.values()
        vars(fn)["__signature__"] = inspect.Signature(
            [*first, function, *(each.replace(kind=each.KEYWORD_ONLY) for each in named)]
        )
        return fn

    return decorate
