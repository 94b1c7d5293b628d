"""What the statements about workflows cost, in steps of SQLite: by what follows from an end, not by the graph."""

import re
from collections.abc import Awaitable, Callable
from types import ModuleType

import pytest

from taskmanager.model.ids import node_task_id
from taskmanager.model.record import TaskRow, TaskWrite, expected_of
from taskmanager.store.memory import MemoryStore
from taskmanager.store.sql import (
    workflow_ends,
    workflow_pauses,
    workflow_recovery,
    workflow_reopening,
    workflow_rows,
    workflow_walk,
    workflows,
)
from taskmanager.store.sqlite.schema import create, migrations
from tests.contract.graphs import ROOT, N, again, end, ended, graph, running, start
from tests.sessions import connect

pytestmark = pytest.mark.anyio
MODULES = (
    workflow_ends, workflow_pauses, workflow_recovery, workflow_reopening, workflow_rows, workflow_walk, workflows,
)  # fmt: skip
FEW, MANY = 100, 1_000
TENFOLD = 15
"""Ten times as much takes at most so many times as long; with a square in it, it would be a hundred."""
PER_NODE = 1_500
"""Steps for the row of a node, its judgement, and the row of its task. Some 700 are counted."""


class Meter:
    """Counts the steps of SQLite's machine, which are the same in each run."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self._count = 0
        self.store._connection.set_progress_handler(self._note, 10)

    def _note(self) -> None:
        self._count += 10

    async def steps(self, work: Awaitable[object]) -> int:
        before = self._count
        await work
        return self._count - before


def queries(module: ModuleType) -> dict[str, str]:
    """The statements of a module."""
    texts = {name: text for name, text in vars(module).items() if isinstance(text, str) and name.isupper()}
    return {
        name: text for name, text in texts.items() if re.match(r"\s*(SELECT|UPDATE|WITH)\b", text) and "{" not in text
    }


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_no_statement_about_workflows_reads_a_whole_table(module: ModuleType) -> None:
    """Only lists of ids, which are given, and groups of what was found by them are gone through."""
    connection = connect(":memory:", isolation_level=None)
    create(connection, migrations())
    found = queries(module)
    assert found
    for name, text in found.items():
        given: object = dict.fromkeys(re.findall(r":(\w+)", text), 1) or (1,) * text.count("?")
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", given)]  # type: ignore[arg-type]
        scans = [
            step
            for step in plan
            if step.startswith("SCAN")
            and not re.match(r"SCAN (v|told|wanted|tree|before|starts|json_each|CONSTANT|\()", step)
        ]
        assert not scans, (name, scans)
        assert not [step for step in plan if "AUTOMATIC" in step], name
    connection.close()


async def change(meter: Meter, index: int, *changes: Callable[[TaskRow], TaskRow]) -> int:
    """The steps of the last one of these changes of the task of a node, each of which is a commit."""
    spent = 0
    for each in changes:
        row = await meter.store.fetch(node_task_id(ROOT, index))
        assert row is not None
        spent = await meter.steps(meter.store.commit([TaskWrite(each(row), expected_of(row))]))
    return spent


def failed(row: TaskRow) -> TaskRow:
    return ended(row, "FAILED")


def ids(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


async def test_start_costs_the_same_for_each_node() -> None:
    """Whether nodes depend on each other or not."""
    for after in ([], ["n0"]):
        spent = []
        for count in (FEW, MANY):
            meter = Meter()
            nodes = [N("n0"), *(N(each, after=after) for each in ids(count)[1:])]
            spent.append(await meter.steps(meter.store.start_workflow(graph(*nodes), 1)))
        assert spent[1] < TENFOLD * spent[0]
        assert spent[1] < PER_NODE * MANY


async def test_join_of_many_counts_each_end_once() -> None:
    """Each end adds one to a counter, and looks at no other node. They come one by one."""
    spent = []
    for count in (FEW // 2, FEW * 5):
        meter = Meter()
        await start(meter.store, *map(N, ids(count)), N("last", values=ids(count)))
        spent.append([await change(meter, index, running, ended) for index in range(3)][-1])
    assert spent[1] < 2 * spent[0]


async def test_end_costs_by_what_depends_on_it() -> None:
    """A chain of any length costs the same for each of its ends."""
    spent = []
    for count in (FEW, MANY):
        meter = Meter()
        chain = [N("n0"), *(N(f"n{number}", after=[f"n{number - 1}"]) for number in range(1, count))]
        await start(meter.store, *chain)
        spent.append(await change(meter, 0, running, ended))
    assert spent[1] < 2 * spent[0]


async def test_fan_out_and_skipping_of_many_are_linear() -> None:
    """One end readies all of them, or skips all of them, in one commit."""
    for ending in (ended, failed):
        spent = []
        for count in (FEW, MANY):
            meter = Meter()
            await start(meter.store, N("first"), *(N(each, after=["first"]) for each in ids(count)))
            spent.append(await change(meter, 0, running, ending))
        assert spent[1] < TENFOLD * spent[0]
        assert spent[1] < PER_NODE * MANY


@pytest.mark.parametrize("on_error", ["fail", "pause"])
async def test_failure_costs_by_all_that_is_skipped_behind_it(on_error: str) -> None:
    """A chain is skipped node by node, in one commit: at the failure, or when it is resumed."""
    spent = []
    for count in (FEW, MANY):
        meter = Meter()
        chain = [N("n0"), *(N(f"n{number}", after=[f"n{number - 1}"]) for number in range(1, count))]
        await start(meter.store, *chain, on_error=on_error)
        steps = await change(meter, 0, running, failed)
        spent.append(steps + await meter.steps(meter.store.resume_workflow(ROOT, 1)))
    assert spent[1] < TENFOLD * spent[0]
    assert spent[1] < PER_NODE * MANY


async def test_retry_costs_by_what_was_skipped_behind_it() -> None:
    """Not by the other nodes of the workflow."""
    spent = []
    for count in (FEW, MANY):
        meter = Meter()
        await start(meter.store, N("a"), N("b", after=["a"]), *map(N, ids(count)))
        spent.append(await change(meter, 0, running, failed, again))
    assert spent[1] < 2 * spent[0]


async def test_large_result_stands_in_no_row_of_its_dependents() -> None:
    """A fan-out over it writes it once, with the node."""
    store = MemoryStore()
    await start(store, N("first"), *(N(each, values=["first"]) for each in ids(FEW)))
    large = '{"ok":"%s"}' % ("x" * 100_000)
    await end(store, "first", result=large)
    for number in (1, FEW):
        row = await store.fetch(node_task_id(ROOT, number))
        assert row is not None
        assert len(str(row)) < 2_000
        begun = await store.node_start(row.task_id)
        assert begun is not None
        assert begun.inputs[0].result == large
