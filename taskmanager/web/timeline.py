"""Places instants on a line of time, in per cent of its width: bars, marks and ticks."""

from typing import Final, NamedTuple

from taskmanager.model.clock import DAY_US, HOUR_US, MINUTE_US, SECOND_US, from_us

_MILLISECOND_US: Final = 1_000
_STEPS: Final = (
    *(unit * each for unit in (1, 10, 100, 1_000, 10_000, 100_000) for each in (1, 2, 5)),
    *(SECOND_US * each for each in (1, 2, 5, 10, 15, 30)),
    *(MINUTE_US * each for each in (1, 2, 5, 10, 15, 30)),
    *(HOUR_US * each for each in (1, 2, 3, 6, 12)),
    *(DAY_US * each for each in (1, 2, 7, 14, 30, 90, 365, 3_650, 36_500)),
)
_LABELS: Final = (("d", DAY_US), ("h", HOUR_US), ("min", MINUTE_US), ("s", SECOND_US), ("ms", _MILLISECOND_US))
LEAST_WIDTH: Final = 0.4
"""What is shorter is drawn with this width, so that it is seen."""


class Tick(NamedTuple):
    """A mark of the scale."""

    x: float
    label: str


class Line(NamedTuple):
    """A line of time from one instant to another."""

    since: int
    until: int

    @property
    def span_us(self) -> int:
        """Return how long it is, at least a microsecond."""
        return max(1, self.until - self.since)

    def x(self, instant_us: int) -> float:
        """Return where an instant is, in per cent; what is outside is at the end."""
        return round(100 * min(1.0, max(0.0, (instant_us - self.since) / self.span_us)), 2)

    def bar(self, since: int, until: int) -> tuple[float, float]:
        """Return where a span begins, and how wide it is."""
        width = max(LEAST_WIDTH, round(self.x(until) - self.x(since), 2))
        return min(self.x(since), round(100 - width, 2)), width


def step_of(span_us: int, most: int) -> int:
    """Return the step of time, one that people count in, of which at most so many are in a span."""
    return next((step for step in _STEPS if step * most >= span_us), span_us)


def line_until_now(since: int, now_us: int) -> Line:
    """Return a line whose end is a little ahead of now, so that it stands still for a while."""
    step = step_of(max(SECOND_US, now_us - since), 50)
    return Line(since, since + ((now_us - since) // step + 1) * step)


def ticks(line: Line, most: int = 5) -> list[Tick]:
    """Return a scale that counts from the beginning of the line."""
    step = step_of(line.span_us, most)
    return [Tick(line.x(line.since + at), f"+{span_label(at)}" if at else "0") for at in range(0, line.span_us, step)]


def hours(line: Line, step_us: int) -> list[Tick]:
    """Return a scale of the hours of the day (UTC) on the line."""
    first = -(-line.since // step_us) * step_us
    return [Tick(line.x(at), f"{from_us(at):%H:%M}") for at in range(first, line.until, step_us)]


def span_label(span_us: int) -> str:
    """Return a round span: `500 ms`, `30 s`, `1.5 h`."""
    name, unit = next(((name, unit) for name, unit in _LABELS if span_us >= unit), ("µs", 1))
    return f"{span_us / unit:g} {name}"
