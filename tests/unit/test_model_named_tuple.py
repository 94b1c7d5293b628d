"""Named tuples without a compiled `__new__`: each does what its twin of the standard library does."""

import copy
import inspect
import pickle
import sys
import typing
from typing import Any, get_type_hints

import pytest

from taskmanager.model.dataclass import NamedTuple


class Ours(NamedTuple):
    """A value."""

    name: str
    count: "int"  # type: ignore[assignment]  # the method of tuple is not missed
    tags: tuple[str, ...] = ()
    next_name: str | None = None

    @property
    def shown(self) -> str:
        """What is shown."""
        return f"{self.name} ({self.count})"


class Theirs(typing.NamedTuple):
    """A value."""

    name: str
    count: "int"  # type: ignore[assignment]  # see above
    tags: tuple[str, ...] = ()
    next_name: str | None = None

    @property
    def shown(self) -> str:
        """What is shown."""
        return f"{self.name} ({self.count})"


class Bare(NamedTuple):
    """Without a field."""


class Wide(NamedTuple):
    """More fields than the sizes that are prepared."""

    a: int
    b: int
    c: int
    d: int
    e: int
    f: int
    g: int
    h: int
    i: int
    j: int
    k: int
    l: int = 12  # noqa: E741  # one letter each


class Marked(Ours):
    """A kind of the other: what is made of it by replacing keeps the kind."""

    __slots__ = ()


GIVEN: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (("a", 1), {}),
    (("a",), {"count": 2}),
    ((), {"name": "a", "count": 3, "tags": ("x",)}),
    (("a", 4, ("y",), "b"), {}),
]


@pytest.mark.parametrize(("args", "kwargs"), GIVEN)
def test_named_tuples_hold_what_the_twin_holds(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    ours, theirs = Ours(*args, **kwargs), Theirs(*args, **kwargs)
    assert tuple(ours) == tuple(theirs)
    assert hash(ours) == hash(theirs)
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
    assert ours._asdict() == theirs._asdict()
    assert ours.shown == theirs.shown
    assert tuple(ours._replace(tags=("z",))) == tuple(theirs._replace(tags=("z",)))
    assert copy.deepcopy(ours) == ours
    found = pickle.loads(pickle.dumps(ours))
    assert (type(found), found) == (Ours, ours)


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), (("a", 1, (), None, 5), {}), (("a", 1), {"nome": 2})])
def test_named_tuples_refuse_what_the_twin_refuses(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The words of the interpreter name the class."""
    with pytest.raises(TypeError) as ours:
        Ours(*args, **kwargs)
    with pytest.raises(TypeError) as theirs:
        Theirs(*args, **kwargs)
    assert str(ours.value) == str(theirs.value).replace("Theirs", "Ours")


def test_named_tuples_are_seen_as_the_twin_is_seen() -> None:
    for name in ("_fields", "_field_defaults", "__match_args__", "__doc__", "__slots__", "__module__"):
        assert getattr(Ours, name) == getattr(Theirs, name)
    assert get_type_hints(Ours) == get_type_hints(Theirs)
    assert [*inspect.signature(Ours).parameters] == [*inspect.signature(Theirs).parameters]
    assert Ours.__bases__ == (tuple,)
    with pytest.raises(AttributeError):
        Ours("a", 1).name = "b"  # type: ignore[misc]  # that is the point


def test_named_tuples_replace_and_make_only_their_fields() -> None:
    kinds: tuple[Any, ...] = Ours, Theirs
    for kind in kinds:
        with pytest.raises(ValueError, match=r"Got unexpected field names: \['nome'\]"):
            kind("a", 1)._replace(nome="b")
        with pytest.raises(TypeError, match="Expected 4 arguments, got 2"):
            kind._make(("a", 1))


def test_named_tuples_have_any_number_of_fields() -> None:
    assert (Bare(), Bare._fields) == ((), ())
    assert Wide(*range(11)) == (*range(11), 12)
    assert Wide(*range(11)).k == 10
    assert repr(Marked("a", 1)._replace(count=2)) == "Marked(name='a', count=2, tags=(), next_name=None)"


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="there it is that of the standard library")
def test_a_field_without_a_default_behind_one_that_has_it_is_refused() -> None:
    """The values of the defaults would go to other fields."""
    maker: Any = type(NamedTuple)
    body = {"__annotations__": {"a": int, "b": int}, "a": 1, "__module__": __name__}
    with pytest.raises(TypeError, match="Odd: a field without a default"):
        maker("Odd", (), body)
