"""Makes dataclasses without compiling their methods.

The standard library writes the methods of a dataclass as text and compiles each of them. That takes 0.6 ms for a frozen
class, and was a third of the import of this package. Here a class takes 0.06 ms, because all classes share methods that
know the names of its fields. Whoever looks at such a class sees a dataclass: `fields`, `replace`, `asdict`, pickle,
`inspect.signature` and type checkers.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from typing import TYPE_CHECKING, Any, Final

__all__ = ["dataclass", "field"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(*, frozen=False, slots=False, eq=True, kw_only=False, init=True):
        """Decorate a class as `dataclasses.dataclass` does. What the class defines itself stays."""

        def decorate(cls):
            methods = {"__repr__": _repr, "__getstate__": _get_state, "__setstate__": _set_state}
            if eq:
                methods |= {"__eq__": _eq, "__hash__": _hash if frozen else None}
            if frozen:
                methods |= {"__setattr__": _refuse, "__delattr__": _refuse}
            own = vars(cls).keys()
            made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(cls)
            if init and "__init__" not in own:
                methods |= {"__init__": _init_of(made, kw_only), "__signature__": _Signature()}
            for name, method in methods.items():
                if name not in own:
                    setattr(made, name, method)
            return made

        return decorate


_MISSING: Final = dataclasses.MISSING
_set: Final = object.__setattr__


def _init_of(cls: Any, kw_only: bool) -> Callable[..., None]:
    """Return the `__init__` of a class."""
    taken = [each for each in dataclasses.fields(cls) if each.init]
    names = tuple(each.name for each in taken)
    defaults = {each.name: each.default for each in taken if each.default is not _MISSING}
    factories = {each.name: each.default_factory for each in taken if callable(each.default_factory)}
    finish = getattr(cls, "__post_init__", None)

    def init(self: Any, *args: object, **given: object) -> None:
        if args:
            given = _by_name(cls, () if kw_only else names, args, given)
        values = defaults | given
        for name in names:
            if name in values:
                _set(self, name, values[name])
            elif name in factories:
                _set(self, name, factories[name]())
            else:
                raise TypeError(f"{cls.__name__}() needs {name}=")
        if not given.keys() <= set(names):
            raise TypeError(f"{cls.__name__}() has no {', '.join(sorted(given.keys() - set(names)))}")
        if finish is not None:
            finish(self)

    init.__name__, init.__qualname__ = "__init__", f"{cls.__qualname__}.__init__"
    return init


def _by_name(cls: Any, names: tuple[str, ...], args: tuple[object, ...], given: dict[str, object]) -> dict[str, object]:
    """Return all arguments by their names."""
    if len(args) > len(names):
        raise TypeError(f"{cls.__name__}() takes {len(names)} arguments without a name, and was given {len(args)}")
    positional = dict(zip(names, args, strict=False))
    if twice := positional.keys() & given.keys():
        raise TypeError(f"{cls.__name__}() was given twice: {', '.join(sorted(twice))}")
    return positional | given


def _compared(self: Any) -> tuple[object, ...]:
    return tuple(getattr(self, each.name) for each in dataclasses.fields(self) if each.compare)


def _repr(self: Any) -> str:
    shown = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in dataclasses.fields(self))
    return f"{type(self).__qualname__}({shown})"


def _eq(self: Any, other: object) -> bool:
    return _compared(self) == _compared(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_compared(self))


def _get_state(self: Any) -> list[object]:
    return [getattr(self, each.name) for each in dataclasses.fields(self)]


def _set_state(self: Any, state: list[object]) -> None:
    for each, value in zip(dataclasses.fields(self), state, strict=True):
        _set(self, each.name, value)


def _refuse(self: Any, name: str, *_value: object) -> None:
    raise FrozenInstanceError(f"{type(self).__name__}.{name} cannot be changed")


def _default_of(taken: dataclasses.Field[Any], without: object) -> object:
    if callable(taken.default_factory):
        return taken.default_factory()
    return without if taken.default is _MISSING else taken.default


class _Signature:
    """The signature of a class, made whenever somebody asks for it."""

    def __get__(self, instance: object, cls: Any) -> Any:
        from inspect import Parameter, Signature

        fields = [each for each in dataclasses.fields(cls) if each.init]
        return Signature(
            [
                Parameter(
                    each.name,
                    Parameter.KEYWORD_ONLY if each.kw_only else Parameter.POSITIONAL_OR_KEYWORD,
                    default=_default_of(each, Parameter.empty),
                    annotation=each.type,
                )
                for each in fields
            ],
            return_annotation=None,
        )
