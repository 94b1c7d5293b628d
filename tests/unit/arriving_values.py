"""Values that arrive as what they were, each with the annotation that it is stored by; and the types of some."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum, auto
from functools import cached_property
from ipaddress import IPv4Address
from pathlib import Path, PurePath, PurePosixPath
from typing import Annotated, Any, Generic, Literal, NamedTuple, Optional, TypedDict, TypeVar
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic

T = TypeVar("T")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1


class Kind(StrEnum):
    PLAIN = "plain"


class Access(Flag):
    READ = auto()
    WRITE = auto()


class Weird(Enum):
    PAIR = (1, 2)


@dataclass
class Point:
    x: int
    y: float
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Frozen:
    when: datetime
    inner: Point | None = None


@dataclass
class Derived:
    base: int
    twice: int = field(init=False)

    def __post_init__(self) -> None:
        self.twice = 2 * self.base


@dataclass(frozen=True)
class Fixed:
    base: int
    version: int = field(init=False, default=3)


class SubPoint(Point):
    pass


@dataclass
class Box(Generic[T]):
    value: T


@dataclass
class Tree:
    children: list["Tree"]


@attrs.define
class Crate:
    size: int
    _secret: str = "s"


class Pair(NamedTuple):
    left: int
    right: str = "r"


class Movie(TypedDict):
    title: str
    year: int


class Record(msgspec.Struct):
    name: str
    at: date


class Address(pydantic.BaseModel):
    street: str
    since: datetime | None = None


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(alias="fullName")
    address: Address | None = None
    where: Path = Path("/tmp")
    price: Decimal = Decimal("1.10")


class Site(pydantic.BaseModel):
    url: pydantic.HttpUrl
    host: IPv4Address = IPv4Address("127.0.0.1")


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr


class Home(pydantic.BaseModel):
    value: Address


class SubAddress(Address):
    extra: int = 1


class Cat(pydantic.BaseModel, frozen=True):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(pydantic.BaseModel, frozen=True):
    kind: Literal["dog"] = "dog"
    lives: int = 1


Pet = Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]
Beast = Annotated[
    Annotated[Cat, pydantic.Tag("cat")] | Annotated[Dog, pydantic.Tag("dog")],
    pydantic.Discriminator(lambda pet: pet["kind"] if isinstance(pet, dict) else pet.kind),
]


class Area(pydantic.BaseModel, extra="forbid"):
    width: float
    pets: list[Pet] = []

    @pydantic.computed_field  # type: ignore[prop-decorator]  # as pydantic shows it
    @property
    def twice(self) -> float:
        return 2 * self.width

    @pydantic.computed_field  # type: ignore[prop-decorator]  # as pydantic shows it
    @cached_property
    def half(self) -> float:
        return self.width / 2


class Plan(pydantic.BaseModel, extra="allow"):
    areas: list[Area]

    @pydantic.computed_field  # type: ignore[prop-decorator]  # as pydantic shows it
    @property
    def count(self) -> int:
        return len(self.areas)


class MyStr(str):
    __slots__ = ()


class Tag(pydantic.RootModel[list[int]]):
    pass


def changed_fixed() -> Fixed:
    value = Fixed(1)
    object.__setattr__(value, "version", 9)
    return value


BERLIN = ZoneInfo("Europe/Berlin")
IST = timezone(timedelta(hours=5, minutes=30))
ID = uuid.UUID("12345678-1234-5678-1234-567812345678")
NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)

ARRIVES: list[tuple[Any, Any]] = [
    (int, 7),
    (int, -(2**63)),
    (int, 2**64),
    (int, 2**200),
    (Any, 2**70),
    (bool, True),
    (str, "ä\0\n\"'☃𝄞"),
    (str, ""),
    (float, 1.5),
    (float, -0.0),
    (float, 5e-324),
    (float, 1e308),
    (float, 5),
    (float, 1.0),
    (float | None, 5),
    (list[float], [1, 2.0]),
    (dict[str, float], {"a": 1}),
    (tuple[float, ...], (1, 1.0)),
    (int | float, 1),
    (int | float, 1.0),
    (None, None),
    (Any, None),
    (Any, [1, 1.0, "a", None, True, {"b": {"c": []}}]),
    (object, {"a": [1]}),
    (list, [1, "a"]),
    (dict, {"a": 1}),
    (datetime, NOW),
    (datetime, NOW.replace(tzinfo=None)),
    (datetime, NOW.astimezone(IST)),
    (datetime, datetime.max),
    (datetime, datetime.min),
    (datetime, datetime(1, 1, 1, tzinfo=UTC)),
    (date, date(2024, 2, 29)),
    (date, date.max),
    (time, time(1, 2, 3, 4)),
    (time, time(1, 2, tzinfo=UTC)),
    (timedelta, timedelta(microseconds=-1)),
    (timedelta, timedelta.max),
    (timedelta, timedelta.min),
    (timedelta, timedelta(days=-3, microseconds=999_999)),
    (uuid.UUID, ID),
    (Decimal, Decimal("1.10")),
    (Decimal, Decimal("-0")),
    (Decimal, Decimal("1E+5")),
    (Decimal, Decimal("1E-99")),
    (Decimal, Decimal("Infinity")),
    (Path, Path("/var/ä b")),
    (PurePath, PurePath("x")),
    (PurePosixPath, PurePosixPath("a/../b")),
    (Path | None, None),
    (Path | None, Path()),
    (list[Path], [Path("a")]),
    (dict[str, Path], {"a": Path("b")}),
    (bytes, b"\x00\xff"),
    (bytearray, bytearray(b"x")),
    (Colour, Colour.RED),
    (Level, Level.LOW),
    (Kind, Kind.PLAIN),
    (Access, Access.READ | Access.WRITE),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"a"})),
    (set[uuid.UUID], {ID}),
    (set, {1}),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], ()),
    (list[tuple[int, ...]], [(1,), ()]),
    (tuple, (1, "a")),
    (dict[int, str], {1: "a", -5: "b"}),
    (dict[uuid.UUID, int], {ID: 1}),
    (dict[date, int], {date(2026, 1, 1): 1}),
    (dict[Colour, int], {Colour.RED: 1}),
    (dict[Level, int], {Level.LOW: 2}),
    (dict[str, int], {"b": 1, "a": 2}),
    (Optional[int], None),  # noqa: UP045  # the older spelling is the case
    (int | str, 5),
    (int | str, "5"),
    (int | None, 5),
    (datetime | None, NOW),
    (list[int] | int, [1]),
    (Literal["a", 1], "a"),
    (Literal["a", 1], 1),
    (Sequence[int], [1]),
    (list[str | Path], ["a", Path("b")]),
    (list[Cat | Dog], [Cat(lives=3), Dog()]),
    (list[Cat | Dog] | None, [Dog()]),
    (list[Pet], [Cat(), Dog(lives=2)]),
    (list[Pet | None], [None, Dog()]),
    (list[Beast], [Cat(), Dog()]),
    (Pet, Dog()),
    (Sequence[Pet], [Dog()]),
    (Iterable[Pet], [Dog()]),
    (tuple[Pet, ...], (Dog(), Cat())),
    (tuple[Pet, int], (Dog(), 1)),
    (set[Pet], {Dog()}),
    (frozenset[Cat | Dog], frozenset({Cat()})),
    (dict[str, Pet], {"a": Dog()}),
    (dict[int, list[Pet]], {3: [Dog()], 4: []}),
    (Mapping[Colour, Cat | Dog], {Colour.RED: Dog()}),
    (list[list[Cat | Dog]], [[Dog()], []]),
    (list[float | Cat], [5, 5.0, Cat()]),
    (Cat | list[Dog], [Dog()]),
    (list[Point | Derived], [Point(1, 2.0), Derived(3)]),
    (list[Address | dict[str, Any]], [Address(street="a"), {"street": [1]}]),
    (Area, Area(width=2.0, pets=[Dog()])),
    (list[Area], [Area(width=2.0)]),
    (Plan, Plan(areas=[Area(width=2.0)], more=3)),  # type: ignore[call-arg]  # it takes extra fields
    (Box[Area], Box(Area(width=1.0))),
    (Mapping[str, int], {"a": 1}),
    (Iterable[int], [1]),
    (Annotated[int, "seconds"], 5),
    (Annotated[list[float], "s"], [1]),
    (Annotated[int, msgspec.Meta(ge=0)], 5),
    (str | Path, "a"),
    (str | Path, Path("a")),
    (date | str, date(2026, 1, 1)),
    (date | str, "2026-01-01"),
    (str | Path | None, None),
    (datetime | date, NOW),
    (datetime | date, date(2026, 1, 1)),
    (Point | Frozen, Point(1, 2.5)),
    (Path | int, 5),
    (Address | Person, Address(street="a")),
    (list[int] | tuple[int, ...], (1,)),
    (Point, Point(1, 2.5, ("a",))),
    (Frozen, Frozen(NOW, Point(1, 2.0))),
    (list[Point], [Point(1, 2.0)]),
    (Fixed, Fixed(1)),
    (dict[str, list[Frozen]], {"a": [Frozen(NOW)]}),
    (Box[int], Box(1)),
    (Box[Path], Box(Path("a"))),
    (Tree, Tree([Tree([])])),
    (Derived, Derived(2)),
    (Crate, Crate(1)),
    (Fixed, changed_fixed()),
    (Pair, Pair(1)),
    (list[Pair], [Pair(1, "b")]),
    (Movie, {"title": "a", "year": 1}),
    (Record, Record("a", date(2026, 1, 1))),
    (Address, Address(street="a", since=NOW)),
    (Address, Address(street="a")),
    (Person, Person(fullName="a", address=Address(street="b", since=NOW))),
    (list[Address], [Address(street="a")]),
    (Address | None, Address(street="a")),
    (Address | None, None),
    (Tag, Tag([1, 2])),
    (Home, Home(value=Address(street="x"))),
    (Site, Site(url=pydantic.HttpUrl("https://example.com/a"))),
    (T, 5),
    (T, [1]),
]
