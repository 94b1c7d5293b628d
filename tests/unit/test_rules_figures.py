"""Buckets of durations: each reaches to four times the one before it, and percentiles are found again in them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskmanager.rules.figures import BUCKET_COUNT, Span, bucket_of, percentile_us, plus, upper_us

DURATIONS = st.integers(0, 10**15)
BUCKETS = st.lists(st.integers(0, 10**9), min_size=BUCKET_COUNT, max_size=BUCKET_COUNT)


@given(DURATIONS)
def test_bucket_holds_what_is_below_its_bound_and_not_below_the_last(duration_us: int) -> None:
    bucket = bucket_of(duration_us)
    assert duration_us < upper_us(bucket) or bucket == BUCKET_COUNT - 1
    assert bucket == 0 or duration_us >= upper_us(bucket - 1)


@pytest.mark.parametrize(
    ("duration_us", "bucket"), [(-(10**18), 15), (-1, 0), (1_023, 0), (1_024, 1), (4_095, 1), (4_096, 2), (10**18, 15)]
)
def test_bucket_of_odd_durations_is_the_first_or_the_last(duration_us: int, bucket: int) -> None:
    """A clock that was set back makes a negative one, which counts by its size."""
    assert bucket_of(duration_us) == bucket


@given(st.lists(DURATIONS.filter(lambda us: us < upper_us(14)), min_size=1), st.floats(0.01, 1.0))
def test_percentile_is_within_the_bucket_of_the_true_one(durations: list[int], share: float) -> None:
    """So it is wrong by a factor of four at most, and by less than a millisecond below one."""
    buckets = [0] * BUCKET_COUNT
    for each in durations:
        buckets[bucket_of(each)] += 1
    true = sorted(durations)[max(0, math.ceil(round(share * len(durations), 9)) - 1)]
    found = percentile_us(buckets, share)
    assert found is not None
    assert upper_us(bucket_of(true)) // 4 <= found <= upper_us(bucket_of(true))


@given(BUCKETS, st.floats(-1, 2), st.floats(-1, 2))
def test_percentile_grows_with_its_share(buckets: list[int], one: float, other: float) -> None:
    low, high = (percentile_us(buckets, share) for share in sorted((one, other)))
    if not any(buckets):
        assert low is None
        assert high is None
    else:
        assert low is not None
        assert high is not None
        assert low <= high


@given(BUCKETS, BUCKETS)
def test_plus_adds_bucket_by_bucket(one: list[int], other: list[int]) -> None:
    both = plus(one, other)
    assert len(both) == BUCKET_COUNT
    assert [found - first for found, first in zip(both, one, strict=True)] == other


@pytest.mark.parametrize("span", Span)
@given(st.integers(-(10**17), 3 * 10**17))
def test_span_of_an_instant_begins_at_it_or_less_than_its_length_before(span: Span, instant_us: int) -> None:
    begin = span.begin_of(instant_us)
    assert begin <= instant_us < begin + span.us
    assert begin % span.us == 0
