"""Dataclasses without compiled methods: each does what its twin of the standard library does."""

import copy
import dataclasses
import inspect
import pickle
from typing import Any

import pytest

from taskmanager.model.dataclass import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """A value."""

    name: str
    count: int = 3
    seen_at: int = field(default=0, compare=False)
    tags: tuple[str, ...] = field(default_factory=tuple)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Theirs:
    """Its twin."""

    name: str
    count: int = 3
    seen_at: int = field(default=0, compare=False)
    tags: tuple[str, ...] = field(default_factory=tuple)


@dataclass(slots=True, eq=False)
class Plain:
    """One that changes, is compared by identity, and finishes itself."""

    width: int
    height: int = 2
    area: int = field(init=False)

    def __post_init__(self) -> None:
        self.area = self.width * self.height


VALUES: list[dict[str, Any]] = [
    {"name": "a"},
    {"name": "a", "count": 4},
    {"name": "a", "seen_at": 9},
    {"name": "b", "tags": ("x",)},
]


@pytest.mark.parametrize("given", VALUES)
def test_values_are_shown_and_taken_apart_as_by_the_twin(given: dict[str, Any]) -> None:
    ours, theirs = Ours(**given), Theirs(**given)
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert [(each.name, each.type) for each in dataclasses.fields(ours)] == [
        (each.name, each.type) for each in dataclasses.fields(theirs)
    ]


@pytest.mark.parametrize("one", VALUES)
@pytest.mark.parametrize("other", VALUES)
def test_values_are_equal_where_the_twins_are(one: dict[str, Any], other: dict[str, Any]) -> None:
    is_equal = Theirs(**one) == Theirs(**other)
    assert (Ours(**one) == Ours(**other)) is is_equal
    assert (hash(Ours(**one)) == hash(Ours(**other))) is is_equal
    assert Ours(**one).__eq__(Theirs(**one)) is NotImplemented


def test_frozen_value_cannot_be_changed() -> None:
    value: Any = Ours(name="a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.count = 4
    with pytest.raises(dataclasses.FrozenInstanceError):
        del value.count
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.more = 1
    assert value == Ours(name="a")


def test_value_is_copied_changed_and_pickled() -> None:
    value = Ours(name="a", tags=("x",))
    assert copy.deepcopy(value) == pickle.loads(pickle.dumps(value)) == value
    assert dataclasses.replace(value, count=9) == Ours(name="a", count=9, tags=("x",))


@pytest.mark.parametrize(
    ("args", "given"),
    [((), {}), ((), {"name": "a", "more": 1}), (("a",), {}), (("a",), {"name": "a"})],
    ids=["missing", "unknown", "positional", "twice"],
)
def test_wrong_arguments_are_refused(args: tuple[Any, ...], given: dict[str, Any]) -> None:
    for each in (Ours, Theirs):
        with pytest.raises(TypeError):
            each(*args, **given)


def test_arguments_without_a_name_are_taken_in_order() -> None:
    made = Plain(3, height=4)
    assert (made.width, made.height, made.area) == (3, 4, 12)
    made.width = 5
    assert made.width == 5
    assert made != Plain(3, height=4)
    for args, given in [((1, 2, 3), {}), ((1,), {"width": 1}), ((1,), {"area": 1})]:
        with pytest.raises(TypeError):
            Plain(*args, **given)


def test_signature_shows_what_the_twin_shows() -> None:
    ours, theirs = inspect.signature(Ours).parameters, inspect.signature(Theirs).parameters
    assert list(ours) == list(theirs)
    for name, parameter in theirs.items():
        assert (ours[name].kind, ours[name].annotation) == (parameter.kind, parameter.annotation)
        assert (ours[name].default is parameter.empty) == (parameter.default is parameter.empty)
    assert str(inspect.signature(Plain)) == "(width: int, height: int = 2) -> None"
