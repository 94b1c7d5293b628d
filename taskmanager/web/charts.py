"""Computes where the bars, lines and labels of a chart are, as frozen values. Templates draw them by attributes.

The box has a size of its own, and is stretched to the place that a page has for it. Labels stand beside it, evenly
spread, so that they are text of the page and not of the picture.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from taskmanager.model.clock import DAY_US, HOUR_US, MINUTE_US, SECOND_US

WIDTH: Final = 600
HEIGHT: Final = 120
LEAST: Final = 2.0
"""The height of the smallest bar that is not zero: one failure among thousands can still be seen."""
QUARTERS: Final = 4
"""The parts that the labels divide the width into."""
_MARGIN: Final = 0.1
"""The share of a slot that is left free on both sides of a bar."""
_STEPS: Final = (2, 4, 6, 8, 10)
LADDER_US: Final = (
    100, 1_000, 10_000, 100_000, SECOND_US, 10 * SECOND_US, MINUTE_US, 10 * MINUTE_US, HOUR_US, 10 * HOUR_US, DAY_US,
    10 * DAY_US, 100 * DAY_US,
)  # fmt: skip
"""Durations that people know, each some ten times the one before it: the labels of a chart of durations."""
MAX_RUNGS: Final = 4


class Piece(NamedTuple):
    """One part of a bar, by what it stands for."""

    kind: str
    x: float
    y: float
    width: float
    height: float


class Slot(NamedTuple):
    """The place of one minute or hour, over the whole height, with the parts of its bar from the bottom up."""

    x: float
    width: float
    pieces: tuple[Piece, ...] = ()


class Line(NamedTuple):
    """One line, in as many parts as there are gaps in it. Each part is the `points` of a polyline."""

    kind: str
    parts: tuple[str, ...]


class Chart(NamedTuple):
    """One chart. `levels` are the values at evenly spread heights, the highest first."""

    slots: tuple[Slot, ...]
    lines: tuple[Line, ...]
    levels: tuple[int, ...]

    @property
    def outlines(self) -> dict[str, str]:
        """Return the `d` of a path around all parts of each kind: a third of the bytes of as many rectangles."""
        found: dict[str, list[str]] = {}
        for each in (piece for slot in self.slots for piece in slot.pieces):
            width, height = _two(each.width), _two(each.height)
            found.setdefault(each.kind, []).append(f"M{_two(each.x)} {_two(each.y)}h{width}v{height}h-{width}z")
        return {kind: "".join(boxes) for kind, boxes in found.items()}

    @property
    def view_box(self) -> str:
        """Return the size of the box, as an SVG has it."""
        return f"0 0 {WIDTH} {HEIGHT}"

    @property
    def grid(self) -> str:
        """Return the `d` of a path with a line at each level and at each quarter."""
        rows, columns = len(self.levels) - 1, range(1, QUARTERS)
        levels = [f"M0 {_two(number * HEIGHT / rows)}H{WIDTH}" for number in range(rows + 1)]
        return "".join([*levels, *(f"M{WIDTH * number // QUARTERS} 0V{HEIGHT}" for number in columns)])

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to see."""
        return not any(each.pieces for each in self.slots) and not any(each.parts for each in self.lines)


def bars(values: Sequence[Sequence[int]], kinds: Sequence[str]) -> Chart:
    """Return a bar for each of the values. Its parts lie one above the other, and are of these kinds."""
    top = ceiling(max((sum(each) for each in values), default=0))
    slots = tuple(
        slot._replace(pieces=_pieces(slot, each, kinds, top))
        for slot, each in zip(_slots(len(values)), values, strict=True)
    )
    return Chart(slots, (), (top, top // 2, 0))


def durations(values: Sequence[Sequence[int | None]], kinds: Sequence[str]) -> Chart:
    """Return a line of durations in microseconds for each kind, on a scale that has room for all of them.

    None is a gap. A value of which both neighbours are gaps is a short line.
    """
    slots = _slots(len(values))
    known = [value for each in values for value in each if value is not None]
    low, high, step = _rungs(min(known, default=SECOND_US), max(known, default=SECOND_US))
    lines = tuple(
        Line(kind, _parts(slots, [each[number] for each in values], low, high)) for number, kind in enumerate(kinds)
    )
    return Chart(slots, lines, tuple(LADDER_US[rung] for rung in range(high, low - 1, -step)))


def ceiling(value: int) -> int:
    """Return the next number from `value` on that is even and easy to read, such as 2, 40 or 600."""
    power = 1
    while True:
        for step in _STEPS:
            if step * power >= value:
                return step * power
        power *= 10


def _slots(count: int) -> tuple[Slot, ...]:
    width = WIDTH / max(1, count)
    return tuple(Slot(round(number * width, 2), round(width, 2)) for number in range(count))


def _pieces(slot: Slot, values: Sequence[int], kinds: Sequence[str], top: int) -> tuple[Piece, ...]:
    heights = [max(LEAST, value / top * HEIGHT) if value > 0 else 0.0 for value in values]
    if heights:  # what the smallest got in addition is taken from the largest
        heights[heights.index(max(heights))] -= max(0.0, sum(heights) - HEIGHT)
    found, y = [], float(HEIGHT)
    for kind, height in zip(kinds, heights, strict=True):
        y -= height
        if height:
            x, width = slot.x + slot.width * _MARGIN, slot.width * (1 - 2 * _MARGIN)
            found.append(Piece(kind, round(x, 2), round(abs(y), 2), round(width, 2), round(height, 2)))
    return tuple(found)


def _rungs(lowest: int, highest: int) -> tuple[int, int, int]:
    """Return the rungs of the ladder at the bottom and the top of a chart, and how many it is from label to label."""
    last = len(LADDER_US) - 1
    low = min(last - 1, max(0, bisect_right(LADDER_US, lowest) - 1))
    high = min(last, max(low + 1, math.ceil(_height_on_ladder(highest))))
    step = math.ceil((high - low) / MAX_RUNGS)
    size = step * math.ceil((high - low) / step)
    low = max(0, high - size)
    return low, low + size, step


def _height_on_ladder(value: int) -> float:
    """Return the rung at this value, with the part of the way to the next one."""
    value = min(max(value, LADDER_US[0]), LADDER_US[-1])
    rung = min(len(LADDER_US) - 2, bisect_right(LADDER_US, value) - 1)
    below, above = LADDER_US[rung], LADDER_US[rung + 1]
    return rung + math.log(value / below) / math.log(above / below)


def _parts(slots: Sequence[Slot], values: Sequence[int | None], low: int, high: int) -> tuple[str, ...]:
    found: list[list[str]] = [[]]
    for slot, value in zip(slots, values, strict=True):
        if value is None:
            found.append([])
            continue
        share = min(1.0, max(0.0, (_height_on_ladder(value) - low) / (high - low)))
        found[-1].append(f"{_two(slot.x + slot.width / 2)},{_two(HEIGHT * (1 - share))}")
    return tuple(" ".join(_at_least_a_dash(each, slots)) for each in found if each)


def _at_least_a_dash(points: list[str], slots: Sequence[Slot]) -> list[str]:
    if len(points) > 1:
        return points
    x, _, y = points[0].partition(",")
    half = slots[0].width / 4
    return [f"{_two(float(x) - half)},{y}", f"{_two(float(x) + half)},{y}"]


def _two(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")
