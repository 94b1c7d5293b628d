"""Whatever JSON-like value is enqueued: it is refused, or it comes back equal in value and type."""

import json
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from taskmanager.codec.arguments import ArgumentCodec
from taskmanager.codec.equality import difference
from taskmanager.codec.results import ResultCodec
from taskmanager.codec.safe import dumps_safe
from taskmanager.codec.values import loads
from taskmanager.engine.words.definition import carries
from taskmanager.model.errors import ArgumentError


def is_hashable(value: object) -> bool:
    """A signalling NaN is not, unlike every other Decimal."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None, exclude_categories=()))
    | st.binary(max_size=5)
    | st.datetimes()
    | st.decimals()
)
keys: st.SearchStrategy[Any] = st.text(max_size=5) | st.integers() | st.booleans() | st.none()
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(keys, inner)
        | st.tuples(inner)
        | st.frozensets(scalars.filter(is_hashable), max_size=3)
    ),
    max_leaves=20,
)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def untyped(item, *rest, **named): ...  # type: ignore[no-untyped-def]


def typed(item: dict[str, list[float | str | None]], number: float = 0) -> None: ...


def structured(item: dict[int, tuple[int, ...]] | list[bool] | float | None) -> None: ...


CODECS = [ArgumentCodec(fn, task_name="t") for fn in (untyped, typed, structured)]


@given(values, st.sampled_from(CODECS))
def test_a_value_is_refused_or_comes_back_the_same(value: Any, codec: ArgumentCodec) -> None:
    try:
        stored = codec.encode((value,), {})
    except ArgumentError:
        return
    args, kwargs = codec.decode(*stored)
    assert kwargs == {}
    assert difference((value,), args) is None


@given(st.lists(plain, min_size=1, max_size=4), st.dictionaries(st.text(), plain, max_size=3))
def test_json_native_values_are_never_refused(args: list[Any], named: dict[str, Any]) -> None:
    named.pop("item", None)
    codec = CODECS[0]
    assert difference((tuple(args), named), codec.decode(*codec.encode(tuple(args), named))) is None


@given(values)
def test_a_result_is_refused_or_comes_back_the_same(value: Any) -> None:
    def work(): ...  # type: ignore[no-untyped-def]

    codec = ResultCodec(work, task_name="t")
    try:
        stored = codec.encode_ok(value)
    except ArgumentError:
        return
    assert difference(value, codec.decode(stored).ok_value) is None


@given(values)
def test_dumps_safe_always_writes(value: Any) -> None:
    loads(dumps_safe(value))


@given(values, values)
def test_difference_is_symmetrical(one: Any, other: Any) -> None:
    compare: Callable[[Any, Any], str | None] = difference
    assert (compare(one, other) is None) == (compare(other, one) is None)


tags = st.dictionaries(st.text('ab"\\é\n ', max_size=3), st.text('ab"\\é\n ', max_size=3), max_size=3)


@given(tags, tags, st.booleans())
def test_tags_are_found_in_each_spelling_of_their_json(
    has: dict[str, str], wanted: dict[str, str], plain: bool
) -> None:
    """A row that another program has inserted spells it as it likes: with spaces and escapes, or without."""
    text = json.dumps(has) if plain else json.dumps(has, ensure_ascii=False, separators=(",", ":"))
    assert carries(text, wanted) is (wanted.items() <= has.items())
    assert carries(text, has)
