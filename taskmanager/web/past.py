"""The last hour by minutes, or the last day by hours: what has ended and failed, and how long tasks waited and ran."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from taskmanager.console.figures import compact, rate, share, took
from taskmanager.model.clock import from_us
from taskmanager.rules.figures import BUCKET_COUNT, Span, percentile_us, plus
from taskmanager.store.statistics import Figures
from taskmanager.web.charts import QUARTERS, Chart, bars, durations
from taskmanager.web.timeline import span_label

SHARES: Final = (0.5, 0.95, 0.99)
PERCENTILES: Final = ("p50", "p95", "p99")
NOTHING: Final = Figures(0, 0, 0, 0, 0, 0, 0, 0, waited=(0,) * BUCKET_COUNT, ran=(0,) * BUCKET_COUNT)


class Stretch(NamedTuple):
    """How far a person looks back: so many spans."""

    name: str
    span: Span
    length: int

    def starts(self, now_us: int) -> tuple[int, ...]:
        """Return when each span begins, oldest first. The last one still goes on."""
        last = self.span.begin_of(now_us)
        return tuple(last - (self.length - 1 - number) * self.span.us for number in range(self.length))


HOUR: Final = Stretch("hour", Span.MINUTE, 60)
DAY: Final = Stretch("day", Span.HOUR, 24)
STRETCHES: Final = {each.name: each for each in (HOUR, DAY)}


class Key(NamedTuple):
    """What a kind of bar or line stands for, and what it comes to in all."""

    kind: str
    name: str
    value: str


class Plot(NamedTuple):
    """One chart with its heading, its key, the labels beside it, and what is said of each slot when pointed at."""

    name: str
    heading: str
    keys: tuple[Key, ...]
    chart: Chart
    levels: tuple[str, ...]
    tips: tuple[str, ...]
    empty: str


class Row(NamedTuple):
    """One span in the table behind the charts. Durations are microseconds."""

    at: int
    figures: Figures
    waited: tuple[int | None, ...]
    ran: tuple[int | None, ...]

    @property
    def clock(self) -> str:
        """Return when the span begins: `14:05` in UTC."""
        return f"{from_us(self.at):%H:%M}"


class Past(NamedTuple):
    """Everything that the overview shows of a stretch. `rows` leaves out the spans in which nothing has happened."""

    stretch: Stretch
    quarters: tuple[str, ...]
    plots: tuple[Plot, ...]
    rows: tuple[Row, ...]


def past_of(stretch: Stretch, now_us: int, found: Sequence[Figures]) -> Past:
    """Return what is shown of the figures that were found in a stretch that ends now."""
    known = {each.at: each for each in found}
    spans = [known.get(at, NOTHING._replace(at=at)) for at in stretch.starts(now_us)]
    rows = [_row(each) for each in spans]
    total = _row(total_of(spans))
    each_span = "minute" if stretch.span is Span.MINUTE else "hour"
    plots = (
        _ended(rows, total, each_span, stretch),
        _failures(rows, total, each_span),
        _durations("waited", "Waiting time", rows, total, "No task has started."),
        _durations("ran", "Run time", rows, total, "No task has ended."),
    )
    quarter = stretch.length // QUARTERS
    quarters = tuple(each.clock for each in rows[::quarter])
    return Past(stretch, quarters, plots, tuple(row for row in reversed(rows) if row.figures.at in known))


def total_of(spans: Sequence[Figures]) -> Figures:
    """Return what has happened in all of these spans."""
    total = NOTHING
    for each in spans:
        counts = plus(total[1:8], each[1:8])
        total = Figures._make((0, *counts, plus(total.waited, each.waited), plus(total.ran, each.ran)))
    return total


def _row(figures: Figures) -> Row:
    waited = tuple(percentile_us(figures.waited, each) for each in SHARES)
    return Row(figures.at, figures, waited, tuple(percentile_us(figures.ran, each) for each in SHARES))


def _ended(rows: Sequence[Row], total: Row, each_span: str, stretch: Stretch) -> Plot:
    def parts(row: Row) -> tuple[int, int, int]:
        found = row.figures
        return found.completed, found.ended_count - found.completed - found.failed, found.failed

    kinds, names = ("good", "off", "bad"), ("completed", "cancelled or expired", "failed")
    ended_count = total.figures.ended_count
    pace = f", {rate(ended_count, stretch.span.us * stretch.length)} on average" if ended_count else ""
    keys = _keys(kinds, names, [compact(each) for each in parts(total)])
    chart = bars([parts(each) for each in rows], kinds)
    tips = tuple(_tip(each, names, [f"{number:,}" for number in parts(each)]) for each in rows)
    heading = f"Ended per {each_span}{pace}"
    return Plot("ended", heading, keys, chart, _counts(chart), tips, "No task has ended.")


def _failures(rows: Sequence[Row], total: Row, each_span: str) -> Plot:
    def parts(row: Row) -> tuple[int, int]:
        return row.figures.retried, row.figures.failed

    kinds, names = ("warn", "bad"), ("to be retried", "for good")
    found = total.figures
    keys = _keys(kinds, names, [compact(each) for each in parts(total)])
    chart = bars([parts(each) for each in rows], kinds)
    tips = tuple(_tip(each, names, [f"{number:,}" for number in parts(each)]) for each in rows)
    heading = f"Failures per {each_span}, {share(found.failure_count, found.attempt_count)} of all attempts"
    return Plot("failures", heading, keys, chart, _counts(chart), tips, "Nothing has failed.")


def _durations(name: str, heading: str, rows: Sequence[Row], total: Row, empty: str) -> Plot:
    def values(row: Row) -> tuple[int | None, ...]:
        return row.waited if name == "waited" else row.ran

    chart = durations([values(each) for each in rows], PERCENTILES)
    keys = _keys(PERCENTILES, PERCENTILES, [_took(each) for each in values(total)])
    tips = tuple(_tip(each, PERCENTILES, [_took(value) for value in values(each)]) for each in rows)
    return Plot(name, heading, keys, chart, tuple(span_label(each) for each in chart.levels), tips, empty)


def _took(duration_us: int | None) -> str:
    return "–" if duration_us is None else took(duration_us)


def _keys(kinds: Sequence[str], names: Sequence[str], values: Sequence[str]) -> tuple[Key, ...]:
    return tuple(Key(*each) for each in zip(kinds, names, values, strict=True))


def _counts(chart: Chart) -> tuple[str, ...]:
    return tuple(compact(each) for each in chart.levels)


def _tip(row: Row, names: Sequence[str], values: Sequence[str]) -> str:
    """`14:05 UTC: 12 completed, 1 failed`, with those values only that say something; an empty text without any."""
    some = [f"{value} {name}" for name, value in zip(names, values, strict=True) if value not in ("0", "–")]
    return f"{row.clock} UTC: {', '.join(some)}" if some else ""
