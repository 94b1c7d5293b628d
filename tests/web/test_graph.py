"""Where the nodes of a workflow are drawn."""

import json
import re
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmanager.console.workflow_tree import tree_of
from taskmanager.model.workflows import NodeRow
from taskmanager.web.graph import MAX_BOXES, Layout, layout_of


def node(index: int, dependencies: Sequence[int], task_name: str = "app:fetch") -> NodeRow:
    """A node with what makes the graph."""
    blank: dict[str, Any] = dict.fromkeys(NodeRow._fields)
    said = {"workflow_id": "w", "task_index": index, "node_id": f"node-{index}", "task_name": task_name}
    said |= {"queue_name": "default", "is_subworkflow": 0, "status": "PENDING"}
    return NodeRow(**blank | said | {"dependencies": json.dumps(list(dependencies))})


@st.composite
def graphs(draw: st.DrawFn) -> list[NodeRow]:
    """Nodes that depend on earlier ones."""
    count = draw(st.integers(0, 60))
    return [
        node(
            index,
            draw(st.lists(st.integers(0, index - 1), max_size=4, unique=True)) if index else (),
            draw(st.sampled_from(("app:fetch", "app:mean", "app:join"))),
        )
        for index in range(count)
    ]


def placed(nodes: Sequence[NodeRow]) -> Layout:
    return layout_of(tree_of(nodes, MAX_BOXES), len(nodes))


@settings(deadline=None)
@given(graphs())
def test_boxes_do_not_overlap_and_stand_inside(nodes: list[NodeRow]) -> None:
    """Two boxes have a gap between them, and all of them and of the lines are on the paper."""
    layout = placed(nodes)
    for one, other in combinations(layout.boxes, 2):
        is_beside = one.x + one.width < other.x or other.x + other.width < one.x
        assert is_beside or one.y + one.height < other.y or other.y + other.height < one.y
    for box in layout.boxes:
        assert box.x >= 0
        assert box.y >= 0
        assert box.x + box.width <= layout.width
        assert box.y + box.height <= layout.height
    for edge in layout.edges:
        numbers = [int(each) for each in re.findall(r"-?\d+", edge.path)]
        assert min(numbers) >= 0
        assert max(numbers) <= max(layout.width, layout.height)


@settings(deadline=None)
@given(graphs())
def test_every_node_is_in_one_box_and_every_dependency_has_a_line(nodes: list[NodeRow]) -> None:
    """The picture says the same as the table."""
    layout = placed(nodes)
    box_of = {index: number for number, box in enumerate(layout.boxes) for index in box.indexes}
    assert sorted(box_of) == [each.task_index for each in nodes]
    wanted = {(box_of[each], box_of[row.task_index]) for row in nodes for each in json.loads(row.dependencies)}
    assert {(edge.source, edge.target) for edge in layout.edges} == wanted
    assert all(layout.boxes[edge.source].x < layout.boxes[edge.target].x for edge in layout.edges)
    assert layout.hidden_count == 0


@settings(deadline=None, max_examples=20)
@given(graphs())
def test_layout_is_the_same_each_time(nodes: list[NodeRow]) -> None:
    """Nothing moves on an open page, also when the process has forgotten the layout."""
    assert placed(nodes) == placed(list(nodes))


def test_lines_pass_no_box() -> None:
    """A line that is longer than one column has a place of its own in those that it passes."""
    nodes = [node(0, ()), *(node(index, [index - 1]) for index in range(1, 6)), node(6, [0, 5])]
    layout = placed(nodes)
    (long,) = [edge for edge in layout.edges if (edge.source, edge.target) == (0, 6)]
    heights = {int(each) for each in re.findall(r"(\d+)H", long.path)}
    between = layout.boxes[1:6]
    assert all(not box.y <= height <= box.y + box.height for box in between for height in heights)


def test_large_graph_is_drawn_in_part() -> None:
    """A chain of thousands of nodes would be a page that no browser shows."""
    layout = placed([node(0, ()), *(node(index, [index - 1], f"app:t{index}") for index in range(1, 5_000))])
    assert (len(layout.boxes), layout.hidden_count) == (MAX_BOXES, 5_000 - MAX_BOXES)


@pytest.mark.parametrize("nodes", [[], [node(0, ())], [node(0, [1]), node(1, [0])], [node(0, [0]), node(1, [7])]])
def test_graph_that_somebody_has_edited_is_drawn_all_the_same(nodes: list[NodeRow]) -> None:
    """Nodes that wait for each other, or for one that is not there, are no fault of the page."""
    assert sum(len(box.indexes) for box in placed(nodes).boxes) == len(nodes)
