"""Arguments arrive equal in value and type, or the call that enqueues them is refused."""

import enum
import functools
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import InitVar, dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, TypeVar, Unpack

import msgspec
import pydantic
import pytest

from taskmanager.codec.arguments import ArgumentCodec
from taskmanager.codec.equality import difference
from taskmanager.codec.values import MAX_ENCODED_BYTES
from taskmanager.model.errors import ArgumentError, ConfigurationError
from tests.unit.arriving_values import (
    ARRIVES,
    BERLIN,
    ID,
    NOW,
    Address,
    Area,
    Cat,
    Colour,
    Crate,
    Home,
    Kind,
    Level,
    Login,
    Movie,
    MyStr,
    Person,
    Point,
    SubAddress,
    SubPoint,
    Weird,
)

T = TypeVar("T")


def codec_for(annotation: Any) -> ArgumentCodec:
    def work(item: Any) -> None: ...

    work.__annotations__["item"] = annotation
    return ArgumentCodec(work, task_name="jobs:work")


@pytest.mark.parametrize(("annotation", "value"), ARRIVES, ids=lambda each: repr(each)[:60])
def test_a_value_arrives_equal_in_value_and_type(annotation: Any, value: Any) -> None:
    codec = codec_for(annotation)
    args, kwargs = codec.decode(*codec.encode((value,), {}))
    assert difference(value, args[0]) is None
    assert (args[0], kwargs) == (value, {})
    assert difference(value, codec.decode(*codec.encode((), {"item": value}))[1]["item"]) is None


def recursive() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


def deep(levels: int) -> list[Any]:
    nested: list[Any] = []
    for _ in range(levels):
        nested = [nested]
    return nested


def with_loose_attribute() -> Point:
    value = Point(1, 2.0)
    value.extra = 5  # type: ignore[attr-defined]
    return value


@dataclass
class Holder:
    pets: list[Cat | Address]


@dataclass
class Made:
    total: int
    more: InitVar[int]

    def __post_init__(self, more: int) -> None:
        self.total += more


def again(model: type[pydantic.BaseModel], module: str | None = None) -> Any:
    """The class that a second run of its module, or an import by another name, defines."""
    fields: Any = {name: (each.annotation, each) for name, each in model.model_fields.items()}
    return pydantic.create_model(model.__name__, __module__=module or model.__module__, **fields)


class WithLock(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    lock: Any = None


REFUSED: list[tuple[str, Any, Any, str]] = [
    ("nan", float, float("nan"), "nan"),
    ("inf", float, float("inf"), "inf"),
    ("nan untyped", Any, float("nan"), "nan"),
    ("nan deep", Any, {"a": [float("-inf")]}, r"\['a'\]\[0\] is -inf, for which JSON has no form; pass None or a text"),
    ("nan in a typed list", list[float], [float("nan")], r"it\[0\] is nan, for which JSON has no form"),
    ("nan in a set", set[float], {float("nan")}, r"is nan, for which JSON has no form"),
    ("nan in a field", Point, Point(1, float("nan")), r"it\.y is nan, for which JSON has no form"),
    ("nan in a model", Area, Area(width=float("inf")), r"it\.width is inf, for which JSON has no form"),
    ("nan in a union", list[float | Cat], [float("nan")], "item 0: it is nan, for which JSON has no form"),
    ("decimal nan", Decimal, Decimal("NaN"), r"is Decimal\('NaN'\), which equals nothing, not even itself; pass None"),
    ("decimal snan", Decimal, Decimal("sNaN"), r"is Decimal\('sNaN'\), which equals nothing"),
    ("class of a reload", Address, again(Address)(street="a"), "another class .*Address, defined by a second run"),
    ("class of a name", Address, again(Address, "app")(street="a"), "arriving_values.Address, not app.Address"),
    ("int keys", Any, {1: "a"}, "key 1"),
    ("int keys bare", dict, {1: 2}, "key 1"),
    ("clashing keys", Any, {1: "a", "1": "b"}, "keys"),
    ("none key", Any, {None: 1}, ""),
    ("str subclass", str, MyStr("a"), "MyStr"),
    ("int enum as int", int, Level.LOW, "Level"),
    ("str enum as str", str, Kind.PLAIN, "Kind"),
    ("bool as int", int, True, ""),
    ("int as bool", bool, 1, ""),
    ("int as str", str, 1, ""),
    ("tuple untyped", Any, (1,), "list, not tuple"),
    ("tuple as list", list[int], (1,), "tuple"),
    ("datetime untyped", Any, NOW, "annotate"),
    ("uuid untyped", Any, ID, "annotate"),
    ("set untyped", Any, {1}, "annotate"),
    ("point untyped", Any, Point(1, 2.0), "annotate"),
    ("path untyped", Any, Path("a"), "annotate"),
    ("bytes untyped", Any, b"a", "annotate"),
    ("enum untyped", Any, Colour.RED, "annotate"),
    ("lock", Any, threading.Lock(), "lock"),
    ("typed lock", threading.Lock, threading.Lock(), "lock"),
    ("lambda", Any, lambda: 1, "function"),
    ("callable", Callable[[], int], len, ""),
    ("surrogate", str, "a\ud800", "surrogate"),
    ("surrogate path", Path, Path("a\udcff"), "surrogate"),
    ("surrogate key", Any, {"\ud800": 1}, "surrogate"),
    ("zone", datetime, NOW.astimezone(BERLIN), r"astimezone\(UTC\)"),
    ("seconds offset", datetime, NOW.astimezone(timezone(timedelta(seconds=30))), ""),
    ("named zone", datetime, NOW.astimezone(timezone(timedelta(hours=1), "X")), "name"),
    ("fold", datetime, datetime(2026, 1, 1, fold=1), "not"),
    ("date as datetime", datetime, date(2026, 1, 1), ""),
    ("datetime as date", date, NOW, ""),
    ("subclass", Point, SubPoint(1, 2.0), "Point, not SubPoint; convert it first, or annotate the parameter with SubP"),
    ("tuple as sequence", Sequence[int], (1, 2), "list, not tuple; convert it first, or annotate"),
    ("int in float field", Point, Point(1, 2), "y would come back as float, not int"),
    ("text for a class", Point, "a", "its annotation Point; as JSON: Expected `object`"),
    ("text for an optional class", list[Point] | None, "a", r"its annotation list\[Point\] \| None; as JSON"),
    ("bad field", Point, Point("a", 2.0), ""),  # type: ignore[arg-type]
    ("list in tuple field", Point, Point(1, 2.0, ["a"]), "tags"),  # type: ignore[arg-type]
    ("private attribute", Crate, Crate(1, "x"), "_secret"),
    ("loose attribute", Point, with_loose_attribute(), "extra"),
    ("extra key", Movie, {"title": "a", "year": 1, "z": 2}, "keys"),
    ("constraint", Annotated[int, msgspec.Meta(ge=0)], -5, ""),
    ("literal", Literal["a"], "b", ""),
    ("model subclass", Address, SubAddress(street="a"), "SubAddress"),
    ("nested model subclass", Home, Home(value=SubAddress(street="a")), "value"),
    ("model with a lock", WithLock, WithLock(lock=threading.Lock()), ""),
    ("model untyped", Any, Address(street="a"), "annotate"),
    ("masked secret", Login, Login(password=pydantic.SecretStr("x")), "password"),
    ("weird enum", Weird, Weird.PAIR, "Weird"),
    ("complex", complex, 1j, ""),
    ("union", str | Path, 5, "none of"),
    ("nested union", list[str | Path], ["a", 5], "item 1: it is int, which is none of str, Path"),
    ("subclass in a union", list[Cat | Address], [SubAddress(street="a")], "SubAddress, which is none of Cat, Address"),
    ("member in a union", list[Cat | Home], [Home(value=SubAddress(street="a"))], "item 0: it.value would come back"),
    ("tuple for a list", list[Cat | Home], (Cat(),), "list, not tuple"),
    ("short tuple", tuple[Cat | Home, int], (Cat(),), "it has 1 items, its annotation 2"),
    ("none in a union", Cat | Home, None, "none of"),
    ("union in a field", Holder, Holder([Cat()]), "parameter of its own, or make the class a pydantic model"),
    ("init var", Made, Made(1, 2), "InitVar.*plain fields, filled by a class method"),
    ("init var in a list", list[Made], [Made(1, 2)], "InitVar.*plain fields, filled by a class method"),
    ("generator", Iterable[int], (i for i in [1]), ""),
    ("recursive", Any, recursive(), "deep"),
    ("deep", Any, deep(100_000), "deep"),
    ("huge int", int, 10**5000, "digits"),
    ("none", int, None, ""),
]


@pytest.mark.parametrize(
    ("annotation", "value", "why"), [each[1:] for each in REFUSED], ids=[each[0] for each in REFUSED]
)
def test_a_value_that_would_change_is_refused_by_name(annotation: Any, value: Any, why: str) -> None:
    with pytest.raises(ArgumentError, match=rf"jobs:work: argument 'item' \(.*{why}"):
        codec_for(annotation).encode((value,), {})


def test_an_open_file_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "f").open("w") as stream, pytest.raises(ArgumentError, match="TextIOWrapper"):
        codec_for(Any).encode((stream,), {})


@pytest.mark.parametrize("annotation", [str, Any])
def test_too_large_arguments_name_the_largest_and_what_to_do(annotation: Any) -> None:
    with pytest.raises(ArgumentError, match=r"'item' alone .* limit is 16_777_216.* path or key"):
        codec_for(annotation).encode(("x" * 20_000_000,), {})
    text = "x" * (MAX_ENCODED_BYTES - 6)
    assert codec_for(annotation).decode(*codec_for(annotation).encode((text,), {}))[0] == (text,)


def test_pydantic_remembers_which_fields_were_set() -> None:
    """`model_dump(exclude_unset=True)` is how a partial update is applied; defaults must not overwrite."""
    codec = codec_for(Person)
    sent = Person(fullName="a")
    ((back,), _) = codec.decode(*codec.encode((sent,), {}))
    assert back.model_fields_set == sent.model_fields_set == {"name"}


def one(a): ...  # type: ignore[no-untyped-def]
def two(a, b=5): ...  # type: ignore[no-untyped-def]
def named(a, /, b, *, c, d=1): ...  # type: ignore[no-untyped-def]
def star(a, *rest, c=1, **extra): ...  # type: ignore[no-untyped-def]
def bare_star(*, c): ...  # type: ignore[no-untyped-def]
def nothing() -> None: ...


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((1,), {}),
    ((1, 2), {}),
    ((1, 2, 3), {}),
    ((), {"a": 1}),
    ((1,), {"a": 1}),
    ((1,), {"z": 1}),
    ((1, 2), {"c": 1}),
    ((1,), {"b": 2, "c": 3}),
    ((), {"a": 1, "b": 2, "c": 3}),
    ((1, 2, 3, 4), {"c": 1, "zz": 2}),
    ((), {"c": 1}),
    ((1,), {"self": 1, "args": 2}),
]


def message_of(call: Callable[[], object]) -> str | None:
    try:
        call()
    except TypeError as error:
        return str(error)
    return None


class CallMe:
    def __call__(self, a: date) -> None: ...


def test_a_callable_object_fails_as_its_call_would() -> None:
    fn: Callable[..., Any] = CallMe()
    assert message_of(lambda: ArgumentCodec(fn, task_name="t").check((), {})) == message_of(fn)


@pytest.mark.parametrize("fn", [one, two, named, star, bare_star, nothing, lambda x: x])
@pytest.mark.parametrize(("args", "kwargs"), CALLS)
def test_check_fails_exactly_as_the_call_would(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    codec = ArgumentCodec(fn, task_name="t")
    expected = message_of(lambda: fn(*args, **kwargs))
    assert message_of(lambda: codec.check(args, kwargs)) == expected
    if expected is None:
        assert codec.decode(*codec.encode(args, kwargs)) == (args, kwargs)


def test_each_extra_argument_has_the_annotation_of_its_star() -> None:
    def work(*days: date, **paths: Path) -> None: ...

    codec = ArgumentCodec(work, task_name="t")
    args, kwargs = (date(2026, 1, 1), date(2026, 1, 2)), {"a": Path("b")}
    assert codec.decode(*codec.encode(args, kwargs)) == (args, kwargs)
    with pytest.raises(ArgumentError, match=r"argument 'days\[1\]' \(str\)"):
        codec.encode((date(2026, 1, 1), "x"), {})
    with pytest.raises(ArgumentError, match=r"argument 'z' \(int\)"):
        codec.encode((), {"z": 1})


class Options(TypedDict, total=False):
    when: date


def test_unpacked_keyword_arguments_have_their_own_annotations() -> None:
    def work(**options: Unpack[Options]) -> None: ...

    codec = ArgumentCodec(work, task_name="t")
    assert codec.decode(*codec.encode((), {"when": date.max})) == ((), {"when": date.max})


def test_defaults_are_not_stored() -> None:
    codec = ArgumentCodec(two, task_name="t")
    assert codec.encode((1,), {}) == ("[1]", "{}")
    assert codec.encode((), {"a": 1}) == ("[]", '{"a":1}')
    assert ArgumentCodec(nothing, task_name="t").encode((), {}) == ("[]", "{}")


def test_a_name_that_does_not_exist_at_run_time_names_the_parameter() -> None:
    def work(fine: int, broken: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821  # its absence is the case

    with pytest.raises(ConfigurationError, match=r"jobs:work: the annotation of parameter 'broken'.*Missing"):
        ArgumentCodec(work, task_name="jobs:work")


class Mixed(enum.Enum):
    """No value of it can be stored."""

    OFF = 0
    NAMED = "named"


def test_none_arrives_where_no_other_value_of_the_annotation_can_be_stored() -> None:
    """Beside an argument that is no scalar, each is read by its annotation."""

    def work(rows: list[int], mode: Mixed | None = None) -> None: ...

    codec = ArgumentCodec(work, task_name="jobs:work")
    assert codec.decode(*codec.encode(([1], None), {})) == ((([1], None)), {})
    with pytest.raises(ArgumentError, match="'mode'"):
        codec.encode(([1], Mixed.OFF), {})


def test_a_broken_return_annotation_is_not_the_arguments_business() -> None:
    def work(day: date) -> "Missing": ...  # type: ignore[name-defined]  # noqa: F821  # its absence is the case

    codec = ArgumentCodec(work, task_name="t")
    assert codec.decode(*codec.encode((date.max,), {})) == ((date.max,), {})


def test_wrapped_and_partial_functions_keep_their_annotations() -> None:
    def work(day: date, count: int = 1) -> None: ...

    @functools.wraps(work)
    def wrapper(*args: Any, **kwargs: Any) -> None: ...

    for fn in (wrapper, functools.partial(work, count=2)):
        codec = ArgumentCodec(fn, task_name="t")
        assert codec.decode(*codec.encode((date.max,), {})) == ((date.max,), {})


STORED_WRONG = [
    ('["x"]', "{}", "'a'"),
    ("[1,2,3]", "{}", "takes"),
    ("[]", "{}", "missing"),
    ("[1]", '{"gone":1}', "gone"),
    ("{}", "{}", "array"),
    ("[1", "{}", "array"),
    ("[1]", "[]", "object"),
    ("[1]", "", "object"),
    ("[1.5]", "{}", "'a'"),
    ("[null]", "{}", "'a'"),
    ("[" * 100_000, "{}", "array"),
    ("[1]", '{"b":"2026-13-01"}', "'b'"),
]


@pytest.mark.parametrize(("args", "kwargs", "why"), STORED_WRONG)
def test_a_stored_row_that_does_not_fit_any_more_is_reported_clearly(args: str, kwargs: str, why: str) -> None:
    def work(a: int, b: date | None = None) -> None: ...

    with pytest.raises(ArgumentError, match=rf"task jobs:work: .*{why}"):
        ArgumentCodec(work, task_name="jobs:work").decode(args, kwargs)


class Swapped:
    """Not encryption, but it shows what passes through."""

    def encode(self, data: bytes, /) -> bytes:
        return bytes(reversed(data))

    def decode(self, data: bytes, /) -> bytes:
        return bytes(reversed(data))


class Broken:
    def encode(self, data: bytes, /) -> bytes:
        raise OSError("no key")

    decode = encode


def test_plain_json_is_read_beside_what_the_codec_has_made() -> None:
    """A process without the codec writes it: the first character tells, for base64 has no bracket."""
    codec = ArgumentCodec(two, task_name="t", codec=Swapped())
    assert codec.decode("[1]", '{"b":"plain"}') == ((1,), {"b": "plain"})
    sealed, _ = codec.encode((1,), {"b": "secret"})
    assert codec.decode(sealed, '{"b":"plain"}') == ((1,), {"b": "plain"})


def test_a_codec_sees_the_bytes_and_its_text_is_base64() -> None:
    codec = ArgumentCodec(two, task_name="t", codec=Swapped())
    stored = codec.encode((1,), {"b": "secret"})
    assert stored[0] == "XTFb"
    assert codec.decode(*stored) == ((1,), {"b": "secret"})
    assert codec.decode(*codec.encode((1,), {})) == ((1,), {})
    assert codec.digest((1,), {"b": "secret"}) is None
    with pytest.raises(ArgumentError, match="stored without the codec"):
        codec.decode("1]", "{}")
    with pytest.raises(ArgumentError, match="no key"):
        ArgumentCodec(two, task_name="t", codec=Broken()).encode((1,), {})


def test_digest_tells_arguments_apart_and_ignores_order() -> None:
    codec = ArgumentCodec(star, task_name="t")
    first = codec.digest((1,), {"c": 1, "d": [2]})
    assert first is not None
    assert len(first) == 64
    assert first == codec.digest((1,), {"d": [2], "c": 1})
    others: list[tuple[Any, Any]] = [((2,), {}), ((1,), {}), ((1,), {"c": 1, "d": [3]})]
    assert len({first, *(codec.digest(*each) for each in others)}) == 4


def test_digest_of_keys_that_are_no_text_is_that_of_what_is_stored() -> None:
    def keyed(a: dict[int, str], b: int = 0) -> None: ...

    codec = ArgumentCodec(keyed, task_name="t")
    assert codec.digest(({1: "x"},), {"b": 1}) != codec.digest(({2: "x"},), {"b": 1})
    assert codec.digest((), {"a": {1: "x"}, "b": 1}) == codec.digest((), {"b": 1, "a": {1: "x"}})


def test_digest_of_a_set_is_the_same_in_every_process() -> None:
    """The order of its items is not: a step with such an argument would look like another one after a restart."""
    codec = ArgumentCodec(star, task_name="t")
    assert (
        codec.digest(({"one", "two", "three", "four"},), {})
        == "e302e1bf15515633464a6e1e0f223a2e6c7381e47d0a938e47645c47df5f2788"
    )


def test_plain_arguments_are_immutable_scalars() -> None:
    codec = ArgumentCodec(star, task_name="t")
    assert codec.is_plain((1, "a", None, NOW, ID, Decimal(1)), {"b": b"x", "c": True})
    assert not codec.is_plain(([1],), {})
    assert not codec.is_plain((), {"a": {}})
    assert not codec.is_plain((MyStr("a"),), {})


@pytest.mark.skipif(sys.version_info < (3, 12), reason="it is written in the syntax of Python 3.12")
def test_an_alias_may_name_itself() -> None:
    """As that of JSON does. Inside itself it stands for anything that comes back as it was."""
    names: dict[str, Any] = {}
    exec("type Json = dict[str, Json] | list[Json] | float | str | None\ndef work(x: Json) -> None: ...", names)
    codec = ArgumentCodec(names["work"], task_name="jobs:work")
    value = {"a": [1, {"b": None}, 2.5], "c": "d"}
    assert codec.decode(*codec.encode((value,), {})) == ((value,), {})
    with pytest.raises(ArgumentError, match="list, not tuple"):
        codec.encode(({"a": (1,)},), {})
