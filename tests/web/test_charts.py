"""The geometry of charts: nothing leaves its box, whatever has happened."""

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from taskmanager.web.charts import HEIGHT, LADDER_US, LEAST, MAX_RUNGS, WIDTH, Chart, bars, ceiling, durations

COUNTS = st.integers(0, 10**30)
KINDS = ("good", "off", "bad")
ROUNDING = 0.02


def points_of(chart: Chart) -> Iterator[tuple[float, float]]:
    for line in chart.lines:
        for part in line.parts:
            for point in part.split(" "):
                x, y = point.split(",")
                yield float(x), float(y)


@given(st.lists(st.tuples(COUNTS, COUNTS, COUNTS), max_size=80))
def test_bars_stay_in_their_slots_and_reach_no_higher_than_the_box(values: list[tuple[int, int, int]]) -> None:
    """Also those of huge numbers, and those that are made high enough to be seen."""
    chart = bars(values, KINDS)
    for slot in chart.slots:
        assert 0 <= slot.x <= slot.x + slot.width <= WIDTH + ROUNDING
        for piece in slot.pieces:
            assert slot.x <= piece.x <= piece.x + piece.width <= slot.x + slot.width + ROUNDING
            assert -ROUNDING <= piece.y <= piece.y + piece.height <= HEIGHT + ROUNDING


@given(st.lists(st.tuples(COUNTS, COUNTS, COUNTS), min_size=1, max_size=80))
def test_each_count_that_is_not_zero_can_be_seen(values: list[tuple[int, int, int]]) -> None:
    """One failure beside a million ends is what somebody looks for."""
    for slot, counts in zip(bars(values, KINDS).slots, values, strict=True):
        assert [piece.kind for piece in slot.pieces] == [
            kind for kind, count in zip(KINDS, counts, strict=True) if count
        ]
        assert all(piece.height >= LEAST - ROUNDING for piece in slot.pieces)


@given(st.lists(st.tuples(st.none() | COUNTS, st.none() | COUNTS), max_size=80))
def test_lines_stay_in_the_box(values: list[tuple[int | None, int | None]]) -> None:
    """Also those of durations below the first rung and above the last."""
    for x, y in points_of(durations(values, ("p50", "p99"))):
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT


@given(st.lists(st.tuples(st.integers(LADDER_US[0], LADDER_US[-1])), min_size=1, max_size=80))
def test_levels_of_durations_hold_all_values(values: list[tuple[int]]) -> None:
    """The labels are few, and none of the values lies outside of them."""
    levels = durations(values, ("p50",)).levels
    assert list(levels) == sorted(set(levels), reverse=True)
    assert 2 <= len(levels) <= MAX_RUNGS + 1
    assert levels[-1] <= min(values)[0] <= max(values)[0] <= levels[0]


@given(st.integers(0, 10**30))
def test_ceiling_is_even_and_wastes_no_more_than_half(value: int) -> None:
    """So that the label at half the height is a whole number, and the bars are not small."""
    top = ceiling(value)
    assert top % 2 == 0
    assert value <= top <= max(2, 2 * value)


def test_chart_of_nothing_is_empty() -> None:
    """It keeps its scale, so that the page looks as it will later."""
    assert bars([(0, 0)] * 60, ("warn", "bad")).is_empty
    assert bars([], ("warn",)).is_empty
    assert durations([(None,)] * 60, ("p50",)).is_empty
    assert bars([(0, 0)] * 60, ("warn", "bad")).levels == (2, 1, 0)


def test_line_has_a_gap_where_nothing_is_known() -> None:
    """A minute without tasks had no waiting time, and not one of zero."""
    (line,) = durations([(1_000,), (10_000,), (None,), (10_000,)], ("p50",)).lines
    assert len(line.parts) == 2


def test_value_alone_is_a_short_line() -> None:
    """A polyline of one point would not be seen."""
    (line,) = durations([(None,), (1_000,), (None,)], ("p50",)).lines
    assert line.parts == ("250,120 350,120",)


def test_outline_goes_around_each_part_of_its_kind() -> None:
    """A bar of two parts and a bar of one."""
    assert bars([(1, 1), (2, 0)], ("good", "bad")).outlines == {
        "good": "M30 60h240v60h-240zM330 0h240v120h-240z",
        "bad": "M30 0h240v60h-240z",
    }
