"""Where instants stand on a line of time."""

from hypothesis import given
from hypothesis import strategies as st

from taskmanager.model.clock import DAY_US, HOUR_US, MINUTE_US, SECOND_US
from taskmanager.web.timeline import LEAST_WIDTH, Line, hours, line_until_now, span_label, ticks

instants = st.integers(0, 100 * 365 * DAY_US)
spans = st.integers(0, 20 * 365 * DAY_US)


@given(instants, spans, instants, spans)
def test_bar_is_inside_and_can_be_seen(since: int, span: int, start: int, took: int) -> None:
    """Also of an attempt of no time, or of one that a clock has put outside of the line."""
    x, width = Line(since, since + span).bar(start, start + took)
    assert width >= LEAST_WIDTH
    assert 0 <= x <= 100
    assert x + width <= 100.01


@given(instants, spans)
def test_scale_is_short_and_ascends(since: int, span: int) -> None:
    """A few ticks, the first at the beginning."""
    found = ticks(Line(since, since + span))
    assert found[0] == (0.0, "0")
    assert len(found) <= 6
    assert [each.x for each in found] == sorted({each.x for each in found})


@given(instants, spans)
def test_line_of_what_runs_ends_a_little_ahead(since: int, span: int) -> None:
    """So it stands still for a while, and an open page without other news is not sent again."""
    ahead = line_until_now(since, since + span).until - (since + span)
    assert 0 < ahead <= max(SECOND_US, span) / 4


def test_line_of_what_runs_moves_seldom() -> None:
    """In an hour of looks once a second there are some hundred lines."""
    assert len({line_until_now(0, second * SECOND_US) for second in range(3_600)}) < 300


def test_hours_are_those_of_the_day() -> None:
    """In UTC, as every instant of the pages is."""
    line = Line(7 * DAY_US + 5 * HOUR_US + 10 * MINUTE_US, 8 * DAY_US + 5 * HOUR_US)
    assert [each.label for each in hours(line, 6 * HOUR_US)] == ["06:00", "12:00", "18:00", "00:00"]


def test_spans_are_told_in_the_unit_that_fits() -> None:
    """Round steps have short names."""
    told = [span_label(each) for each in (5, 500_000, 30 * SECOND_US, 90 * MINUTE_US, 2 * DAY_US)]
    assert told == ["5 µs", "500 ms", "30 s", "1.5 h", "2 d"]
