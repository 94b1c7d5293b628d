"""What becomes of a workflow, found by looking at the whole graph again after each end, without any counter."""

from collections.abc import Mapping, Sequence

from tests.contract.graphs import N

ENDED = {"COMPLETED", "FAILED", "SKIPPED"}


def verdict(node: N, known: Mapping[str, str]) -> str:
    """PENDING, READY or SKIPPED: what becomes of a node while the others have these statuses."""
    if any(known[each] in {"FAILED", "SKIPPED"} for each in node.values):
        return "SKIPPED"
    joined = _join(node, [known[each] for each in node.after])
    if joined != "READY":
        return joined
    some = node.join != "all"
    inputs = {*node.values, *(each for each in node.results if not (some and each in node.after))}
    return "READY" if all(known[each] in ENDED for each in inputs) else "PENDING"


def _join(node: N, upstream: Sequence[str]) -> str:
    if not upstream:
        return "READY"
    good = sum(each == "COMPLETED" for each in upstream)
    still = sum(each not in ENDED for each in upstream)
    if node.join == "all":
        if still:
            return "PENDING"
        return "READY" if good == len(upstream) or node.allow_failed else "SKIPPED"
    wanted = 1 if node.join == "any" else node.min_success or 1
    if good >= wanted:
        return "READY"
    return "PENDING" if good + still >= wanted else "SKIPPED"


def settle(nodes: Sequence[N], known: Mapping[str, str]) -> dict[str, str]:
    """The statuses once all that follows from them has happened: what is ready is ENQUEUED."""
    found = dict(known)
    while True:
        before = dict(found)
        for node in nodes:
            if found[node.id] == "PENDING" and (word := verdict(node, found)) != "PENDING":
                found[node.id] = "ENQUEUED" if word == "READY" else word
        if found == before:
            return found


def hurting(nodes: Sequence[N], known: Mapping[str, str]) -> list[str]:
    """The nodes that have failed and are known not to be absorbed."""
    found = []
    for node in nodes:
        behind = [known[each.id] for each in nodes if node.id in {*each.after, *each.values, *each.results}]
        if known[node.id] == "FAILED" and not node.optional and (not behind or "SKIPPED" in behind):
            found.append(node.id)
    return found


def end(nodes: Sequence[N], known: Mapping[str, str], output: str | None, cases: Sequence[Sequence[str]] | None) -> str:
    """The status of the workflow: RUNNING while a node has not ended."""
    if any(known[node.id] not in ENDED for node in nodes):
        return "RUNNING"
    needed = [] if output is None else [output]
    if cases is None and hurting(nodes, known):
        return "FAILED"
    met = [all(known[each] == "COMPLETED" for each in (*case, *needed)) for case in ([()] if cases is None else cases)]
    return "COMPLETED" if any(met) else "FAILED"
