"""A graph of tasks whose processes are killed at any point: each node ends once, and what it comes to is right.

After each death the judge reads the database, a file by plain `sqlite3`, and the lines that the nodes have noted.
"""

import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.harness import both, change
from tests.crash.stage import Stage, staged

PROGRAM = """
import asyncio, signal, time
from taskmanager import RecoveryConfig, TaskManager, TaskResult, Workflow
from taskmanager.store.sql import claims, transitions

_, database, name, point, *words = sys.argv
recovery = RecoveryConfig(check_interval_ms=1000, crashed_worker_recovery_grace_ms=0, crash_budget=1000)
manager = TaskManager(database, store_poll=0.05, commit_interval=0.01, recovery=recovery)
count = 0

@manager.task(name="fetch", persist=True, requeue_on_interrupt=True)
async def fetch(label: str) -> list[int]:
    note(f"ran {label} {name}")
    await asyncio.sleep(0.01)
    return [1, 2, 3]

@manager.task(name="part", persist=True, requeue_on_interrupt=True)
def part(label: str, rows: list[int], factor: int) -> int:
    note(f"ran {label} {name}")
    time.sleep(0.01)
    return sum(rows) * factor

@manager.task(name="total", persist=True, requeue_on_interrupt=True)
async def total(label: str, parts: list[int]) -> int:
    note(f"ran {label} {name}")
    return sum(parts)

@manager.task(name="broken", persist=True, requeue_on_interrupt=True)
async def broken(label: str) -> int:
    note(f"ran {label} {name}")
    raise OSError(label)

@manager.task(name="tell", persist=True, requeue_on_interrupt=True)
async def tell(label: str, ended: list[TaskResult[int]]) -> int:
    note(f"ran {label} {name}")
    return sum(each.ok_value if each.is_ok() else 1000 for each in ended)

def graph() -> "Workflow[int]":
    wf, child = Workflow("graph"), Workflow("inner")
    page = wf.add(fetch.with_options(delay=30.0 if "late" in words else 0.0), "page").named("page")
    parts = [wf.add(part, f"part{i}", page.value, i).named(f"part{i}") for i in range(4)]
    counts = [child.add(part, f"inner{i}", page.value, i).named(f"inner{i}") for i in range(3)]
    output = child.add(total, "inner", [each.value for each in counts]).named("inner")
    inner = wf.add_workflow(child.output(output), node_id="child")
    bad = wf.add(broken, "bad").named("bad").after(page)
    skipped = wf.add(total, "skipped", [bad.value]).named("skipped")
    told = wf.add(tell, "told", [bad.result, skipped.result, inner.result]).named("told")
    wf.optional(bad, skipped)
    last = wf.add(total, "last", [told.value, *[each.value for each in parts]]).named("last")
    return wf.output(last)

NODES = "SELECT count(*) FROM taskmanager_workflow_tasks"
# A server is asked for a claim also where there is nothing to be claimed.
FREE = "SELECT count(*) FROM taskmanager_tasks WHERE status = 'PENDING' AND claimed_by_worker_id IS NULL"

def dies(inner, what):
    def outer(connection, *args):
        global count
        count += bool(point and connection.execute(what).fetchone()[0])
        if point == f"before {count}":
            os.kill(os.getpid(), signal.SIGKILL)
        report = inner(connection, *args)
        if point == f"after {count}":
            os.kill(os.getpid(), signal.SIGKILL)
        return report
    return outer

transitions.commit = dies(transitions.commit, NODES)
claims.claim = dies(claims.claim, FREE)

async def main() -> None:
    handle = manager.workflow("w")
    if "start" in words:
        handle = await manager.start_workflow(graph(), workflow_id="w")
        note("started")
    if "wait" in words:
        while not await manager.workflows():
            await asyncio.sleep(0.01)
    if "cancel" in words:
        await handle.cancel()
    note(f"result {(await handle.result())!r}")
    await manager.flush()

if __name__ == "__main__":
    manager.run(main)
"""
RAN = {
    "page", "bad", "told", "last", "inner", *(f"part{i}" for i in range(4)), *(f"inner{i}" for i in range(3)),
}  # fmt: skip
TOTAL = 2000 + (0 + 1 + 2) * 6 + (0 + 1 + 2 + 3) * 6
BEFORE = {
    **{f"part{i}": {"page"} for i in range(4)},
    **{f"inner{i}": {"page"} for i in range(3)},
    "bad": {"page"},
    "inner": {f"inner{i}" for i in range(3)},
    "told": {"bad", "inner"},
    "last": {"told", *(f"part{i}" for i in range(4))},
}
"""What has to have run before each node."""
ENDS = """
SELECT n.node_id FROM taskmanager_workflow_tasks AS n WHERE n.status = 'COMPLETED' AND n.is_subworkflow = 0
"""


def completed(stage: Stage) -> set[str]:
    """The nodes that no later process may run again."""
    return {str(node_id) for (node_id,) in stage.rows(ENDS)}


def ran(stage: Stage) -> Counter[str]:
    """How often the function of each node has begun."""
    return Counter(line.split()[1] for line in stage.lines() if line.startswith("ran "))


def judge_order(stage: Stage) -> None:
    """Nothing has begun before what it depends on has."""
    begun: set[str] = set()
    for line in stage.lines():
        if line.startswith("ran "):
            label = line.split()[1]
            assert BEFORE.get(label, set()) <= begun, stage.lines()
            begun.add(label)


def judge_end(stage: Stage, *, is_once: bool = False) -> None:
    """Every node has ended once, and the result is the right one."""
    judge_order(stage)
    assert set(ran(stage)) == RAN
    statuses = stage.rows("SELECT status, count(*) FROM taskmanager_workflow_tasks GROUP BY status ORDER BY status")
    assert statuses == [("COMPLETED", 12), ("FAILED", 1), ("SKIPPED", 1)]
    assert stage.rows("SELECT status FROM taskmanager_workflows") == [("COMPLETED",), ("COMPLETED",)]
    twice = "SELECT task_id FROM taskmanager_task_attempts WHERE outcome IN ('COMPLETED', 'FAILED')"
    assert stage.rows(f"{twice} GROUP BY task_id HAVING count(*) > 1") == []
    assert f"result TaskResult(ok={TOTAL})" in stage.lines()
    if is_once:
        assert set(ran(stage).values()) == {1}


class Deaths:
    """Judges each death: what had completed at the one before has not run since."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._before: tuple[set[str], Counter[str]] = set(), Counter()

    def judge(self) -> None:
        known, counts = self._before
        now = ran(self._stage)
        assert {each: now[each] for each in known} == {each: counts[each] for each in known}
        self._before = completed(self._stage), now


@both
@pytest.mark.parametrize("when", ["before", "after"])
def test_kill_at_each_transaction_repeats_no_node_that_has_ended(tmp_path: Path, database: str, when: str) -> None:
    """Each process dies at a later transaction than the one before it did; the last one is left alone."""
    with staged(tmp_path, PROGRAM, database) as stage:
        deaths = Deaths(stage)
        for number in range(1, 8):
            code = stage.start(f"p{number}", f"{when} {1 + number // 2}", "start").wait(60)
            if code == 0:
                break
            assert code == -signal.SIGKILL, stage.log_of(f"p{number}")
            deaths.judge()
        assert completed(stage), "all of them died before the first node had ended"
        assert stage.start("last", "", "start").wait(60) == 0, stage.log_of("last")
        deaths.judge()
        judge_end(stage)


@both
def test_kill_at_random_points_repeats_no_node_that_has_ended(tmp_path: Path, database: str) -> None:
    """The signal comes from outside, after a random number of notes."""
    chance = random.Random(11)
    with staged(tmp_path, PROGRAM, database) as stage:
        deaths = Deaths(stage)
        for number in range(4):
            seen = len(stage.lines())
            process = stage.start(f"p{number}", "", "start")
            until = seen + chance.randint(1, 5)
            stage.until(lambda: len(stage.lines()) >= until or process.poll() is not None)  # noqa: B023  # called at once
            process.kill()
            process.wait(60)
            deaths.judge()
        assert stage.start("last", "", "start").wait(60) == 0, stage.log_of("last")
        deaths.judge()
        judge_end(stage)


@both
def test_processes_share_a_graph(tmp_path: Path, database: str) -> None:
    """Each node runs once, in one of them, and all of them hear of the end."""
    with staged(tmp_path, PROGRAM, database) as stage:
        others = [stage.start(name, "", "wait") for name in ("b", "c")]
        assert stage.start("a", "", "start").wait(60) == 0, stage.log_of("a")
        for name, each in zip(("b", "c"), others, strict=True):
            assert each.wait(60) == 0, stage.log_of(name)
        judge_end(stage, is_once=True)
        assert stage.lines().count(f"result TaskResult(ok={TOTAL})") == 3


@both
def test_kill_of_one_process_leaves_its_nodes_to_the_other(tmp_path: Path, database: str) -> None:
    """What ran there runs again here; what had ended there is not repeated."""
    with staged(tmp_path, PROGRAM, database) as stage:
        deaths = Deaths(stage)
        first, second = stage.start("a", "", "start"), stage.start("b", "", "wait")
        stage.until(lambda: len(ran(stage)) >= 4)
        first.kill()
        first.wait(60)
        deaths.judge()
        assert second.wait(60) == 0, stage.log_of("b")
        deaths.judge()
        judge_end(stage)


@both
def test_task_that_a_tool_has_ended_lets_its_workflow_go_on(tmp_path: Path, database: str) -> None:
    """It knows nothing of workflows. The recovery loop finds the node, and what follows is what follows of any end."""
    with staged(tmp_path, PROGRAM, database) as stage:
        process = stage.start("a", "", "start", "late")
        stage.until_noted("started")
        ended = (
            "UPDATE taskmanager_tasks SET status = 'COMPLETED', claimed = 0, result = '{\"ok\":[1,2,3]}',"
            " completed_at = sent_at + 1, updated_at = sent_at + 1 WHERE task_name = 'fetch'"
        )
        assert change(stage.database, ended) == 1
        assert process.wait(60) == 0, stage.log_of("a")
        assert set(ran(stage)) == RAN - {"page"}
        assert f"result TaskResult(ok={TOTAL})" in stage.lines()


@both
def test_cancel_by_another_process_ends_what_runs(tmp_path: Path, database: str) -> None:
    """The one that runs the nodes hears of it by its looks at the file."""
    with staged(tmp_path, PROGRAM, database) as stage:
        first = stage.start("a", "", "start", "late")
        stage.until_noted("started")
        assert stage.start("b", "", "cancel").wait(60) == 0, stage.log_of("b")
        assert first.wait(60) == 0, stage.log_of("a")
        assert set(stage.rows("SELECT DISTINCT status FROM taskmanager_workflow_tasks")) == {("SKIPPED",), ("FAILED",)}
        assert stage.rows("SELECT status FROM taskmanager_tasks") == [("CANCELLED",)]
        assert ran(stage) == Counter()
