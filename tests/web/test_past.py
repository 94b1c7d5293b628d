"""The last hour and the last day in figures."""

from taskmanager.model.clock import HOUR_US, MINUTE_US
from taskmanager.rules.figures import bucket_of
from taskmanager.store.statistics import Figures
from taskmanager.web.past import DAY, HOUR, NOTHING, past_of, total_of
from taskmanager.web.timeline import span_label

NOW = 1_772_370_000_000_000
"""13:00:00 UTC."""


def figures(at: int, completed: int = 0, failed: int = 0, retried: int = 0, waited_us: int = 5_000) -> Figures:
    waited = [0] * 16
    waited[bucket_of(waited_us)] = completed
    return NOTHING._replace(
        at=at, started=completed, completed=completed, failed=failed, retried=retried, waited=tuple(waited)
    )


def test_hour_has_60_minutes_of_which_the_last_goes_on() -> None:
    """The minutes that nothing has happened in are shown too, as such."""
    past = past_of(HOUR, NOW + 30_000_000, [figures(NOW, 3), figures(NOW - MINUTE_US, 2)])
    chart = past.plots[0].chart
    assert [bool(slot.pieces) for slot in chart.slots] == [False] * 58 + [True, True]
    assert [row.figures.completed for row in past.rows] == [3, 2]
    assert past.quarters == ("12:01", "12:16", "12:31", "12:46")


def test_day_has_24_hours() -> None:
    """Each with what its minutes come to."""
    past = past_of(DAY, NOW, [figures(NOW - 23 * HOUR_US, 7)])
    assert [bool(slot.pieces) for slot in past.plots[0].chart.slots] == [True] + [False] * 23


def test_figures_outside_of_the_stretch_are_left_out() -> None:
    """The first minute may be asked for at its very end, when another one begins."""
    past = past_of(HOUR, NOW, [figures(NOW - 60 * MINUTE_US, 7)])
    assert (past.rows, past.plots[0].chart.is_empty) == ((), True)


def test_keys_say_what_it_comes_to_in_all() -> None:
    """The sum of the hour, and the percentiles over all its tasks."""
    past = past_of(HOUR, NOW, [figures(NOW, 99, 1, 3), figures(NOW - MINUTE_US, 1)])
    ended, failures, waited, ran = past.plots
    assert [each.value for each in ended.keys] == ["100", "0", "1"]
    assert [each.value for each in failures.keys] == ["3", "1"]
    assert [each.name for each in waited.keys] == ["p50", "p95", "p99"]
    assert all(each.value.endswith(" ms") for each in waited.keys)
    assert {each.value for each in ran.keys} == {"–"}


def test_share_of_failures_is_that_of_attempts() -> None:
    """Tasks that were cancelled while they waited, or have expired, do not make the failures look few."""
    found = figures(NOW, 7, 2, 1)._replace(cancelled=500, expired=500)
    assert past_of(HOUR, NOW, [found]).plots[1].heading == "Failures per minute, 30% of all attempts"


def test_tip_names_what_there_is_and_nothing_else() -> None:
    """An hour without failures needs no zero."""
    past = past_of(HOUR, NOW, [figures(NOW, 1_200)])
    assert past.plots[0].tips[-1] == "13:00 UTC: 1,200 completed"
    assert past.plots[1].tips[-1] == ""


def test_total_adds_everything_up() -> None:
    """Counts and buckets alike."""
    total = total_of([figures(NOW, 2, 1), figures(NOW, 3, 0, 4)])
    assert (total.completed, total.failed, total.retried, sum(total.waited)) == (5, 1, 4, 5)


def test_rungs_read_as_people_say_them() -> None:
    """Durations that stand beside a scale are whole."""
    scale = [100, 1_000, 100_000, 1_000_000, 60_000_000, HOUR_US, 24 * HOUR_US]
    assert [span_label(each) for each in scale] == ["100 µs", "1 ms", "100 ms", "1 s", "1 min", "1 h", "1 d"]
