"""Tells whether two function objects are one function of the source, or two that only share their text."""

from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any, Final

MAX_DEPTH: Final = 8
"""The depth at which the comparison of closures ends, because a function may hold itself."""


def is_same_code(a: Any, b: Any, depth: int = 0) -> bool:
    """Return whether both stand at one place in the source and, inside of a function, have the same surroundings.

    A decorator without `functools.wraps`, and a loop that defines functions, make many functions of one text. They
    differ in what they have closed over, or in the values of their defaults. At the top level of a module nothing is
    closed over, and a reload makes all defaults anew.
    """
    if a is b or depth > MAX_DEPTH:
        return True
    if isinstance(a, MethodType) and isinstance(b, MethodType):
        return a.__self__ is b.__self__ and is_same_code(a.__func__, b.__func__, depth)
    if isinstance(a, partial) and isinstance(b, partial):
        is_bound_alike = _is_same_value((a.args, a.keywords), (b.args, b.keywords), depth)
        return is_bound_alike and is_same_code(a.func, b.func, depth)
    if not isinstance(a, FunctionType) or not isinstance(b, FunctionType):
        return _is_same_object(a, b, depth)
    if (a.__module__, a.__qualname__, a.__code__) != (b.__module__, b.__qualname__, b.__code__):
        return False
    if "<locals>" not in a.__qualname__:
        return True
    return all(_is_same_value(x, y, depth) for x, y in zip(_surroundings(a), _surroundings(b), strict=True))


def _is_same_object(a: Any, b: Any, depth: int) -> bool:
    """Compare functions written in C by name, and callable objects by class and content."""
    if hasattr(a, "__qualname__") or hasattr(b, "__qualname__"):
        return bool(getattr(a, "__qualname__", a) == getattr(b, "__qualname__", b))
    kinds = [(type(each).__module__, type(each).__qualname__) for each in (a, b)]
    return kinds[0] == kinds[1] and _is_same_value(getattr(a, "__dict__", a), getattr(b, "__dict__", b), depth)


def _surroundings(fn: FunctionType) -> list[Any]:
    cells = [_content(cell) for cell in fn.__closure__ or ()]
    return [*cells, fn.__defaults__, fn.__kwdefaults__]


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _is_same_value(x: Any, y: Any, depth: int) -> bool:
    if isinstance(x, FunctionType) and isinstance(y, FunctionType):
        return is_same_code(x, y, depth + 1)
    try:
        return x is y or bool(x == y)
    except Exception:  # noqa: BLE001  # foreign comparisons may raise anything, or answer with an array
        return False
