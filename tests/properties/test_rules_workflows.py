"""Workflows advance by counters; a scan of the whole graph after each end says the same, in any order of the ends."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from taskmanager.model.record import TaskWrite, expected_of
from taskmanager.store.memory import MemoryStore
from tests.contract import graphs
from tests.contract.graphs import N
from tests.properties import workflow_scan as scan

MOST = 8


class Flow(NamedTuple):
    """A workflow, and how the task of each node ends."""

    nodes: tuple[N, ...]
    ends: dict[str, str]
    output: str | None
    cases: tuple[tuple[str, ...], ...] | None


@st.composite
def flows(draw: st.DrawFn) -> Flow:
    nodes: list[N] = []
    for number in range(draw(st.integers(1, MOST))):
        before = [node.id for node in nodes]
        some = st.lists(st.sampled_from(before), unique=True, max_size=4) if before else st.just([])
        after = draw(some)
        join = draw(st.sampled_from(("all", "any", "quorum"))) if after else "all"
        nodes.append(
            N(
                f"n{number}",
                after=after,
                values=draw(some) if draw(st.booleans()) else [],
                results=draw(some) if draw(st.booleans()) else [],
                join=join,
                min_success=draw(st.integers(1, len(after))) if join == "quorum" else None,
                allow_failed=draw(st.booleans()),
                optional=draw(st.integers(0, 4)) == 0,
            )
        )
    ids = [node.id for node in nodes]
    ends = {each: draw(st.sampled_from(("COMPLETED", "COMPLETED", "FAILED"))) for each in ids}
    output = draw(st.none() | st.sampled_from(ids))
    cases = draw(
        st.none() | st.lists(st.lists(st.sampled_from(ids), min_size=1, max_size=3).map(tuple), min_size=1, max_size=3)
    )
    return Flow(tuple(nodes), ends, output, None if cases is None else tuple(cases))


class Play:
    """A store that plays a flow beside the scan."""

    def __init__(self, flow: Flow) -> None:
        self.flow, self.store = flow, MemoryStore()
        self.known = scan.settle(flow.nodes, dict.fromkeys(flow.ends, "PENDING"))

    async def begin(self) -> None:
        made = await graphs.start(self.store, *self.flow.nodes, output=self.flow.output, cases=self.flow.cases)
        assert len(made.nodes) == len(self.flow.nodes)
        await self.check()

    def ready(self) -> list[str]:
        return sorted(each for each, status in self.known.items() if status == "ENQUEUED")

    async def end(self, chosen: Sequence[str]) -> None:
        """End the tasks of these nodes in one commit."""
        rows = [await graphs.task_of(self.store, each) for each in chosen]
        starts = [graphs.running(row) for row in rows]
        await self.store.commit([TaskWrite(new, expected_of(old)) for new, old in zip(starts, rows, strict=True)])
        ends = [graphs.ended(row, self.flow.ends[each]) for each, row in zip(chosen, starts, strict=True)]
        report = await self.store.commit(
            [TaskWrite(new, expected_of(old)) for new, old in zip(ends, starts, strict=True)]
        )
        assert (report.lost, report.rejected) == ({}, {})
        before = set(self.ready())
        self.known = scan.settle(self.flow.nodes, self.known | {each: self.flow.ends[each] for each in chosen})
        assert len(report.advance.readied) == len(set(self.ready()) - before)
        assert report.advance.ended == (("w",) if self.status() != "RUNNING" else ())
        await self.check()

    async def retry(self, chosen: str) -> None:
        """Retry a node that has failed; it will succeed."""
        self.flow.ends[chosen] = "COMPLETED"
        await graphs.retry(self.store, chosen)
        known = self.known | {chosen: "ENQUEUED"}
        while True:  # open what was skipped and would not be any more
            opened = {
                node.id: "PENDING"
                for node in self.flow.nodes
                if known[node.id] == "SKIPPED" and scan.verdict(node, known) != "SKIPPED"
            }
            if not opened:
                break
            known |= opened
        waits = {node.id for node in self.flow.nodes if scan.verdict(node, known) == "PENDING"}
        known |= dict.fromkeys(
            waits & {chosen, *self.ready()}, "PENDING"
        )  # each waits again for what is open before it
        self.known = scan.settle(self.flow.nodes, known)
        await self.check()

    def status(self) -> str:
        return scan.end(self.flow.nodes, self.known, self.flow.output, self.flow.cases)

    async def check(self) -> None:
        assert await graphs.statuses(self.store) == self.known
        assert await graphs.status(self.store) == self.status()


@given(flows(), st.data())
def test_counters_say_what_a_scan_of_the_graph_says(flow: Flow, data: st.DataObject) -> None:
    """After each commit, which may end several tasks, every node and the workflow stand where the scan puts them."""

    async def play() -> None:
        made = Play(flow)
        await made.begin()
        while ready := made.ready():
            await made.end(data.draw(st.lists(st.sampled_from(ready), min_size=1, unique=True)))
        assert made.status() != "RUNNING"

    asyncio.run(play())


@given(flows(), st.data())
def test_retry_opens_what_its_failure_had_closed(flow: Flow, data: st.DataObject) -> None:
    """At any moment, also after the end: the node, and what was skipped for it. What has run stays as it is."""

    async def play() -> None:
        made = Play(flow)
        await made.begin()
        while True:
            ready = made.ready()
            failed = sorted(each for each, status in made.known.items() if status == "FAILED")
            if failed and (not ready or data.draw(st.booleans())):
                await made.retry(data.draw(st.sampled_from(failed)))
            elif ready:
                await made.end(data.draw(st.lists(st.sampled_from(ready), min_size=1, unique=True)))
            else:
                break
        assert made.status() != "RUNNING"

    asyncio.run(play())
