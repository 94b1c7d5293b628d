"""The tree of a graph: what stands under what, what shares a line, and what becomes of an edited graph."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from taskmanager.console.workflow_tree import MOST_ALIKE, Branch, counts_of, short_id, tree_of
from taskmanager.model.workflows import NodeRow

NOTHING: dict[str, Any] = dict.fromkeys(NodeRow._fields)


def node(index: int, *needs: int, name: str | None = None, **changes: Any) -> NodeRow:
    """A node of a function of its own, unless it is given a name."""
    said = {
        "workflow_id": "w", "task_index": index, "node_id": f"n{index}", "task_name": name or f"app:f{index}",
        "queue_name": "default", "is_subworkflow": 0, "status": "PENDING", "dependencies": json.dumps(needs),
    }  # fmt: skip
    return NodeRow._make((NOTHING | said | changes).values())


def drawn(branches: Sequence[Branch], depth: int = 0) -> Iterator[str]:
    """Each line with its depth as points."""
    for branch in branches:
        others = "".join(f" + {each.name}" for each in branch.others)
        yield f"{'.' * depth}{branch.name}{others}"
        yield from drawn(branch.below, depth + 1)


def test_node_stands_under_the_dependency_furthest_from_the_start() -> None:
    """Of several equally far ones under the last, so that a reader has met all of them."""
    nodes = [node(0), node(1, 0), node(2, 0), node(3, 0, 1, 2), node(4)]
    assert list(drawn(tree_of(nodes))) == ["n0", ".n1", ".n2", "..n3 + n0 + n1", "n4"]


def test_many_alike_nodes_share_a_line_with_what_comes_after_them() -> None:
    """A fan-out of chains is two lines, and what joins them stands below."""
    fan = range(1, 301)
    nodes = [node(0), *(node(index, 0, name="app.jobs:count") for index in fan)]
    nodes += [node(300 + index, index, name="app.jobs:keep") for index in fan]
    nodes += [node(601, *range(301, 601))]
    assert list(drawn(tree_of(nodes))) == ["n0", ".count ×300", "..keep ×300", "...n601"]


@pytest.mark.parametrize("change", [{"queue_name": "other"}, {"name": "app:other"}, {"is_subworkflow": 1}])
def test_nodes_that_differ_share_no_line(change: dict[str, Any]) -> None:
    """Neither do as few as can be read one by one."""
    few, many = range(MOST_ALIKE), range(MOST_ALIKE, 2 * MOST_ALIKE + 1)
    nodes = [node(index, **{"name": "app:f", **change}) for index in few]
    nodes += [node(index, name="app:f") for index in many]
    assert list(drawn(tree_of(nodes))) == [*(f"n{index}" for index in few), f"f ×{MOST_ALIKE + 1}"]


def test_edited_dependencies_leave_every_node_in_the_tree() -> None:
    """A circle, a node of nowhere and what is no list: another program may have written anything."""
    nodes = [
        node(0, 1), node(1, 0), node(2, 99), node(3)._replace(dependencies="{"), node(4)._replace(dependencies="7"),
    ]  # fmt: skip
    assert sorted(drawn(tree_of(nodes))) == ["n0", "n1", "n2", "n3", "n4"]


def test_chain_of_ten_thousand_nodes_is_a_tree() -> None:
    """It is deeper than the stack of Python."""
    (branch,) = tree_of([node(0), *(node(index, index - 1) for index in range(1, 10_000))])
    depth = 1
    while branch.below:
        (branch,) = branch.below
        depth += 1
    assert depth == 10_000


def test_counts_have_the_words_of_the_screen_without_zeros() -> None:
    """What is PENDING, READY or ENQUEUED waits."""
    statuses = ["PENDING", "READY", "ENQUEUED", "RUNNING", "COMPLETED", "COMPLETED", "SKIPPED"]
    counts = counts_of([node(index, status=status) for index, status in enumerate(statuses)])
    assert list(counts.items()) == [("completed", 2), ("running", 1), ("waiting", 3), ("skipped", 1)]


def test_short_id_leaves_out_the_module_of_a_node_without_a_name() -> None:
    """A given one is told as it is."""
    assert short_id(node(7, name="app.jobs:count", node_id="app.jobs:count:7")) == "count:7"
    assert short_id(node(7, name="app.jobs:count", node_id="total")) == "total"
    assert short_id(node(7, name="count", node_id="count:7")) == "count:7"
