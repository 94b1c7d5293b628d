"""Makes dataclasses and named tuples without compiling their methods.

The standard library writes the methods of a dataclass as text and compiles each of them. That takes 0.6 ms for a frozen
class, and was a third of the import of this package. Here a class takes 0.06 ms, because all classes share methods that
know the names of its fields. Whoever looks at such a class sees a dataclass: `fields`, `replace`, `asdict`, pickle,
`inspect.signature` and type checkers.

Of a named tuple it compiles `__new__`, and checks each annotation. That takes 70 µs, and the classes that a start loads
took 5 ms. Here a class takes 12 µs: what makes a tuple of so many fields is compiled once, and gets the names of the
fields. So a tuple is made as fast as one of the standard library.
"""

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from typing import TYPE_CHECKING, Any, Final

__all__ = ["NamedTuple", "dataclass", "field"]

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


if TYPE_CHECKING or sys.version_info >= (3, 14):  # where a class body no longer has its annotations when it is made
    from typing import NamedTuple
else:
    from collections import _tuplegetter
    from types import CodeType, FunctionType

    _new = tuple.__new__
    _GLOBALS: Final = {"_new": _new, "__builtins__": {}}
    # The sizes of most classes, so that their code is in the byte code of this module.
    _KNOWN: Final = (
        lambda _cls: _new(_cls, ()),
        lambda _cls, a: _new(_cls, (a,)),
        lambda _cls, a, b: _new(_cls, (a, b)),
        lambda _cls, a, b, c: _new(_cls, (a, b, c)),
        lambda _cls, a, b, c, d: _new(_cls, (a, b, c, d)),
        lambda _cls, a, b, c, d, e: _new(_cls, (a, b, c, d, e)),
        lambda _cls, a, b, c, d, e, f: _new(_cls, (a, b, c, d, e, f)),
        lambda _cls, a, b, c, d, e, f, g: _new(_cls, (a, b, c, d, e, f, g)),
        lambda _cls, a, b, c, d, e, f, g, h: _new(_cls, (a, b, c, d, e, f, g, h)),
        lambda _cls, a, b, c, d, e, f, g, h, i: _new(_cls, (a, b, c, d, e, f, g, h, i)),
        lambda _cls, a, b, c, d, e, f, g, h, i, j: _new(_cls, (a, b, c, d, e, f, g, h, i, j)),
    )
    _codes: dict[int, CodeType] = {size: each.__code__ for size, each in enumerate(_KNOWN)}

    def _code_of(size: int) -> CodeType:
        """Return the code of a `__new__` that takes so many values."""
        if size not in _codes:
            names = ", ".join(f"a{number}" for number in range(size))
            _codes[size] = eval(f"lambda _cls, {names}: _new(_cls, ({names}))").__code__  # noqa: S307  # see above
        return _codes[size]

    def _make(cls, values):
        made = _new(cls, values)
        if len(made) != len(cls._fields):
            raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
        return made

    def _replace(self, /, **changes):
        made = self._make(map(changes.pop, self._fields, self))
        if changes:
            raise ValueError(f"Got unexpected field names: {list(changes)!r}")
        return made

    def _tuple_repr(self):
        fields = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True))
        return f"{type(self).__name__}({fields})"

    def _asdict(self):
        return dict(zip(self._fields, self, strict=True))

    def _new_args(self):
        return tuple(self)

    _METHODS: Final = {
        "__slots__": (), "_make": classmethod(_make), "_replace": _replace, "__replace__": _replace,
        "__repr__": _tuple_repr, "_asdict": _asdict, "__getnewargs__": _new_args,
    }  # fmt: skip

    class _Maker(type):
        """Makes a plain class of a body with annotations."""

        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
            annotations = body.get("__annotations__", {})
            fields = tuple(annotations)
            defaults = {each: body[each] for each in fields if each in body}
            if tuple(defaults) != fields[len(fields) - len(defaults) :]:
                raise TypeError(f"{name}: a field without a default follows one that has a default")
            code = _code_of(len(fields)).replace(co_name="__new__", co_varnames=("_cls", *fields))
            new = FunctionType(code, _GLOBALS, "__new__", tuple(defaults.values()))
            new.__annotations__ = annotations
            new.__qualname__ = f"{name}.__new__"
            getters = {each: _tuplegetter(place, "") for place, each in enumerate(fields)}
            known = {"__new__": new, "_fields": fields, "__match_args__": fields, "_field_defaults": defaults}
            return type(name, (tuple,), {**_METHODS, **body, **getters, **known})

    NamedTuple = type.__new__(_Maker, "NamedTuple", (), {})
