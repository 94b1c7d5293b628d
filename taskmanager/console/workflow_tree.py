"""Makes a tree of the graph of a workflow: each node under what it waits for longest, alike ones in one line.

A graph is no tree, so a node that depends on several others stands under the one that comes last in the longest way
from the start, and names the rest. The tree depends on the graph alone: it does not change while the workflow runs.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from taskmanager.codec.safe import loads_flat
from taskmanager.model.dataclass import dataclass, field
from taskmanager.model.errors import ArgumentError
from taskmanager.model.workflows import ENDED_NODE, NodeRow

MOST_ALIKE: Final = 5
"""Nodes of one function after the same nodes that are shown one by one. More of them share a line."""


@dataclass(slots=True, eq=False)
class Branch:
    """A node, or many alike, with the branches that stand under it, and those others that it depends on too."""

    nodes: list[NodeRow]
    depth: int
    below: "list[Branch]" = field(default_factory=list)
    others: "list[Branch]" = field(default_factory=list)
    is_part: bool = False
    """Whether it is one of many that share the line above it."""

    @property
    def name(self) -> str:
        """Return what people call it: the id of the node, or the function and how many there are."""
        first = self.nodes[0]
        return short_id(first) if len(self.nodes) == 1 else f"{_function(first)} ×{len(self.nodes):,}"


def counts_of(nodes: Sequence[NodeRow]) -> dict[str, int]:
    """Return how many nodes are `completed`, `failed`, `running`, `waiting` and `skipped`, without zeros."""
    return counts_of_statuses(Counter(node.status for node in nodes))


def counts_of_statuses(counts: Mapping[str, int]) -> dict[str, int]:
    """Do the same with the number of nodes of each status."""
    found: Counter[str] = Counter()
    for status, number in counts.items():
        found[status.lower() if status in ENDED_NODE or status == "RUNNING" else "waiting"] += number
    return {word: found[word] for word in ("completed", "failed", "running", "waiting", "skipped") if found[word]}


def short_id(node: NodeRow) -> str:
    """Return the id of a node, without the module of its function where nobody has named the node."""
    module, sign, _ = node.task_name.rpartition(":")
    end = f":{node.task_index}"
    is_default = sign and node.node_id.endswith(end) and node.node_id.startswith(f"{module}:")
    return node.node_id[len(module) + 1 :] if is_default else node.node_id


def _function(node: NodeRow) -> str:
    return node.task_name.rpartition(":")[2] or node.task_name


def tree_of(nodes: Sequence[NodeRow], most: int | None = None) -> list[Branch]:
    """Return the branches that depend on nothing. Of a tree with more than `most` branches, leave out the last ones."""
    needs = {node.task_index: _needs(node) for node in nodes}
    branch_of: dict[int, Branch] = {}
    roots: list[Branch] = []
    made = 0
    for depth, level in enumerate(_levels(nodes, needs)):
        alike: defaultdict[tuple[Any, ...], list[NodeRow]] = defaultdict(list)
        for node in level:
            before = frozenset(branch_of[index] for index in needs[node.task_index] if index in branch_of)
            alike[before, node.task_name, node.queue_name, node.is_subworkflow].append(node)
        for (before, *_), group in alike.items():
            shared = [group] if len(group) > MOST_ALIKE else [[node] for node in group]
            made += len(shared)
            for branch in [Branch(each, depth) for each in shared]:
                branch_of |= dict.fromkeys([node.task_index for node in branch.nodes], branch)
                _place(branch, before, roots)
        if most is not None and made >= most:
            break
    return roots


def _place(branch: Branch, before: Collection[Branch], roots: list[Branch]) -> None:
    """Put a branch under the one of those before it that is furthest from the start, the last of several."""
    if not before:
        roots.append(branch)
        return
    *branch.others, last = sorted(before, key=lambda each: (each.depth, each.nodes[0].task_index))
    last.below.append(branch)


def _needs(node: NodeRow) -> list[int]:
    """Return the indexes that a node depends on; none where somebody has edited them."""
    try:
        found = loads_flat(node.dependencies)
    except ArgumentError:
        return []
    return [each for each in found if isinstance(each, int)] if isinstance(found, list) else []


def _levels(nodes: Sequence[NodeRow], needs: Mapping[int, list[int]]) -> Iterator[list[NodeRow]]:
    """Yield nodes by the length of the longest way to them, and at the end those that wait for each other."""
    open_counts = {index: sum(each in needs for each in before) for index, before in needs.items()}
    dependents: defaultdict[int, list[int]] = defaultdict(list)
    for index, before in needs.items():
        for each in before:
            dependents[each].append(index)
    by_index = {node.task_index: node for node in nodes}
    level = [index for index, count in open_counts.items() if not count]
    while level:
        yield [by_index.pop(index) for index in sorted(level)]
        following = []
        for index in level:
            for each in dependents[index]:
                open_counts[each] -= 1
                if not open_counts[each]:
                    following.append(each)
        level = following
    if by_index:
        yield list(by_index.values())
