"""Places the graph of a workflow, drawn from left to right: boxes in columns, and the lines between them.

The layout depends on the graph alone, so nothing moves while the workflow runs. It is computed in three steps, as
Sugiyama, Tagawa and Toda have described: columns by the longest way from the start; an order in each column in which
few lines cross; and heights at which lines are short. A line that passes a column has a place in it, as a box has.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from taskmanager.console.workflow_tree import Branch

MAX_BOXES: Final = 120
MAX_LINES: Final = 1_000
"""Lines that are drawn. A graph with more is a black surface."""
MAX_BENDS: Final = 600
"""Places that lines have in the columns that they pass. Beyond that they pass behind the boxes."""
BOX_WIDTH: Final = 212
BOX_HEIGHT: Final = 50
SHADOW: Final = 6
"""What stands behind the box of many nodes, or of a workflow, is seen by so much at its right and below it."""
GAP_X: Final = 60
GAP_Y: Final = 14
BEND_HEIGHT: Final = 4
MARGIN: Final = 6
_ROUNDS: Final = 8


class Box(NamedTuple):
    """A node, or many alike, with its place. `indexes` are those of its nodes."""

    name: str
    task_name: str
    indexes: tuple[int, ...]
    sub_workflow_id: str | None
    x: int
    y: int
    width: int = BOX_WIDTH
    height: int = BOX_HEIGHT


class Edge(NamedTuple):
    """A line from one box to another, by their places in the list, and its path."""

    source: int
    target: int
    path: str


class Layout(NamedTuple):
    """A graph that has been placed. `hidden_count` nodes are in no box."""

    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]
    width: int
    height: int
    hidden_count: int = 0


class _Place(NamedTuple):
    """What has a place in a column: the box of a branch, or where a line passes."""

    column: int
    number: int
    is_box: bool

    @property
    def height(self) -> int:
        return BOX_HEIGHT if self.is_box else BEND_HEIGHT


def layout_of(roots: Sequence[Branch], node_count: int) -> Layout:
    """Place the branches of a tree, and the lines to all that each depends on; the first `MAX_BOXES` of them."""
    found, parents = _flat(roots)
    links = [(parents[target], target) for target in range(len(found))]
    numbers = {id(branch): number for number, branch in enumerate(found)}
    pairs = sorted({
        (source, target)
        for afters, target in links
        for each in afters
        if (source := numbers.get(id(each))) is not None
    })[:MAX_LINES]  # fmt: skip
    boxes = [_Place(branch.depth, number, True) for number, branch in enumerate(found)]
    ways = _ways(boxes, pairs)
    centres = _centres(boxes, ways)
    top = min((centres[each] - each.height / 2 for each in centres), default=0)
    shift = MARGIN - top
    placed = tuple(_box(branch, boxes[number], centres[boxes[number]] + shift) for number, branch in enumerate(found))
    heights = {place: centre + shift for place, centre in centres.items()}
    edges = tuple(
        Edge(source, target, _path(way, heights, placed[source], placed[target]))
        for (source, target), way in zip(pairs, ways, strict=True)
    )
    return Layout(
        placed,
        edges,
        max((each.x + each.width for each in placed), default=0) + MARGIN,
        max((round(height + each.height / 2) for each, height in heights.items()), default=0) + MARGIN,
        node_count - sum(len(each.indexes) for each in placed),
    )


def _flat(roots: Sequence[Branch]) -> tuple[list[Branch], list[list[Branch]]]:
    """Return the first branches by their depth and index, and those that each of them comes after."""
    stack: list[tuple[Branch, Branch | None]] = [(each, None) for each in roots]
    found: list[tuple[Branch, list[Branch]]] = []
    while stack:
        branch, parent = stack.pop()
        found.append((branch, branch.others if parent is None else [*branch.others, parent]))
        stack += [(each, branch) for each in branch.below]
    found.sort(key=lambda each: (each[0].depth, each[0].nodes[0].task_index))
    return [branch for branch, _ in found[:MAX_BOXES]], [after for _, after in found[:MAX_BOXES]]


def _box(branch: Branch, place: _Place, centre: float) -> Box:
    first = branch.nodes[0]
    return Box(
        branch.name,
        first.task_name,
        tuple(node.task_index for node in branch.nodes),
        first.sub_workflow_id if len(branch.nodes) == 1 else None,
        MARGIN + place.column * (BOX_WIDTH + GAP_X),
        round(centre - BOX_HEIGHT / 2),
    )


# The order in each column, and the heights.


def _ways(boxes: Sequence[_Place], pairs: Sequence[tuple[int, int]]) -> list[list[_Place]]:
    """Return the places of each line: those of its two boxes, and one in each column that it passes."""
    ways, bends = [], 0
    for source, target in pairs:
        first, last = boxes[source], boxes[target]
        passed = max(0, last.column - first.column - 1)
        between = []
        if bends + passed <= MAX_BENDS:
            between = [_Place(first.column + 1 + each, bends + each, False) for each in range(passed)]
            bends += passed
        ways.append([first, *between, last])
    return ways


def _centres(boxes: Sequence[_Place], ways: Sequence[Sequence[_Place]]) -> dict[_Place, float]:
    """Return the height of the middle of each place."""
    columns: defaultdict[int, list[_Place]] = defaultdict(list)
    for each in dict.fromkeys([*boxes, *(place for way in ways for place in way)]):
        columns[each.column].append(each)
    before, after = defaultdict[_Place, list[_Place]](list), defaultdict[_Place, list[_Place]](list)
    for way in ways:
        for left, right in pairwise(way):
            after[left].append(right)
            before[right].append(left)
    order = [columns[each] for each in sorted(columns)]
    _reorder(order, before, after)
    centres = {place: height for column in order for place, height in _stacked(column, [0.0] * len(column))}
    for number in range(_ROUNDS):
        neighbours = before if number % 2 == 0 else after
        for column in order if number % 2 == 0 else reversed(order):
            wanted = [_mean([centres[each] for each in neighbours[place]], centres[place]) for place in column]
            centres.update(_stacked(column, wanted))
    return centres


def _reorder(
    order: Sequence[list[_Place]], before: Mapping[_Place, list[_Place]], after: Mapping[_Place, list[_Place]]
) -> None:
    """Order each column by the mean rank of what its places are tied to, there and back again."""
    rank = {place: float(number) for column in order for number, place in enumerate(column)}
    for number in range(_ROUNDS // 2):
        neighbours = before if number % 2 == 0 else after
        for column in order if number % 2 == 0 else reversed(order):
            key = {place: _mean([rank[each] for each in neighbours.get(place, ())], rank[place]) for place in column}
            column.sort(key=key.__getitem__)
            rank.update((place, float(at)) for at, place in enumerate(column))


def _mean(numbers: Sequence[float], otherwise: float) -> float:
    return sum(numbers) / len(numbers) if numbers else otherwise


def _stacked(column: Sequence[_Place], wanted: Sequence[float]) -> Iterator[tuple[_Place, float]]:
    """Yield heights in this order without an overlap, with the least sum of squared distances from those wanted.

    This is isotonic regression: the places are pushed together in blocks, and each block is where its mean wants to be.
    """
    offset, offsets = 0.0, []
    for number, place in enumerate(column):
        offset += (column[number - 1].height + place.height) / 2 + GAP_Y if number else 0
        offsets.append(offset)
    blocks: list[tuple[float, int]] = []
    for height, offset in zip(wanted, offsets, strict=True):
        total, count = height - offset, 1
        while blocks and blocks[-1][0] / blocks[-1][1] >= total / count:
            before, number = blocks.pop()
            total, count = total + before, count + number
        blocks.append((total, count))
    means = [total / count for total, count in blocks for _ in range(count)]
    yield from ((place, mean + offset) for place, mean, offset in zip(column, means, offsets, strict=True))


def _path(way: Sequence[_Place], heights: Mapping[_Place, float], source: Box, target: Box) -> str:
    """Return the curve from the right side of a box to the left side of another, through the places between."""
    points = [(source.x + source.width - SHADOW, source.y + (source.height - SHADOW) // 2 + 1)]
    for place in way[1:-1]:
        left, height = MARGIN + place.column * (BOX_WIDTH + GAP_X), round(heights[place])
        points += [(left, height), (left + BOX_WIDTH, height)]
    points.append((target.x + 1, target.y + (target.height - SHADOW) // 2 + 1))
    parts = [f"M{points[0][0]} {points[0][1]}"]
    for number, ((x, y), (to_x, to_y)) in enumerate(pairwise(points)):
        middle = (x + to_x) // 2
        parts.append(f"H{to_x}" if number % 2 else f"C{middle} {y} {middle} {to_y} {to_x} {to_y}")
    return "".join(parts)
