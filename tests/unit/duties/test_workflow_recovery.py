"""The recovery loop puts right what other programs have left half done in workflows, and ends what has lost its own."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from taskmanager import BuiltInTaskCode, RecoveryConfig, Workflow
from taskmanager.model.workflows import HELD
from tests.unit.command_line import taskmanager
from tests.unit.duties.scene import Scene, until
from tests.unit.workflows.graphs import Jobs, statuses, task_of

pytestmark = pytest.mark.anyio

Stage = Callable[..., Any]


def end_by_hand(scene: Scene, status: str, result: str | None, *, at: int | None = None) -> None:
    """End the tasks that fetch, as a program does that knows nothing of workflows."""
    is_good, now = status == "COMPLETED", at or scene.clock.now_us()
    with closing(sqlite3.connect(scene.db)) as connection, connection:
        ended = connection.execute(
            "UPDATE taskmanager_tasks SET status = ?, claimed = 0, result = ?, completed_at = ?, failed_at = ?,"
            " updated_at = ?, claimed_by_worker_id = NULL WHERE task_name = 'fetch'",
            (status, result, now if is_good else None, None if is_good else now, now),
        )
        assert ended.rowcount == 1


async def begin(scene: Scene, jobs: Jobs) -> str:
    """A workflow whose first task waits for a day."""
    wf = Workflow("import")
    page = wf.add(jobs.fetch.with_options(delay=86_400), "a").named("page")
    wf.output(wf.add(jobs.count, page.value).named("count"))
    return (await scene.manager.start_workflow(wf)).workflow_id


@pytest.mark.req("RC-13", "RC-14", "RC-34", "RC-35", "RC-36", "RC-37", "HB-07", "HB-26", "HB-32")
async def test_node_whose_task_was_ended_by_hand_completes_after_the_grace(stage: Stage) -> None:
    """Who has ended it may be about to say so."""
    scene = await stage()
    jobs = Jobs(scene.manager)
    workflow_id = await begin(scene, jobs)
    end_by_hand(scene, "COMPLETED", '{"ok":{"url":"b","rows":[5]}}')
    scene.clock.pass_s(9)
    await scene.sweep()
    assert await statuses(scene.manager, workflow_id) == {"page": "ENQUEUED", "count": "PENDING"}
    scene.clock.pass_s(2)
    await scene.sweep()
    assert (await scene.manager.workflow(workflow_id).result(timeout=30)).ok_value == 5
    assert jobs.began == ["count b 1"]


@pytest.mark.req("RC-s1")
async def test_grace_of_zero_waits_for_nobody(stage: Stage) -> None:
    scene = await stage(recovery=RecoveryConfig(crashed_worker_recovery_grace_ms=0))
    workflow_id = await begin(scene, Jobs(scene.manager))
    end_by_hand(scene, "COMPLETED", '{"ok":{"url":"b","rows":[5]}}')
    await scene.sweep()
    assert (await scene.manager.workflow(workflow_id).result(timeout=30)).ok_value == 5


@pytest.mark.req("HB-28", "HB-29", "HB-30", "HB-31")
@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("FAILED", BuiltInTaskCode.WORKER_CRASHED),
        ("CANCELLED", BuiltInTaskCode.TASK_CANCELLED),
        ("EXPIRED", BuiltInTaskCode.TASK_EXPIRED),
        ("INTERRUPTED", BuiltInTaskCode.TASK_INTERRUPTED),
    ],
)
async def test_end_without_a_result_has_a_code_of_its_own(stage: Stage, status: str, code: str) -> None:
    scene = await stage()
    workflow_id = await begin(scene, Jobs(scene.manager))
    end_by_hand(scene, status, None)
    assert await scene.manager.recover_stuck_workflows() > 0
    result = await scene.manager.workflow(workflow_id).result(timeout=30)
    assert result.err_value.error_code == code
    assert await statuses(scene.manager, workflow_id) == {"page": "FAILED", "count": "SKIPPED"}
    assert await scene.manager.recover_stuck_workflows() == 0


@pytest.mark.req("HB-33", "HB-37")
async def test_command_line_puts_workflows_right_too(stage: Stage) -> None:
    scene = await stage()
    workflow_id = await begin(scene, Jobs(scene.manager))
    end_by_hand(scene, "FAILED", None, at=1)  # by the real clock, which the command goes by
    waiting = asyncio.ensure_future(scene.manager.workflow(workflow_id).result(timeout=30))
    ran = await asyncio.to_thread(taskmanager, "recover", "--db", scene.db)
    assert "put right what was left half done in workflows" in ran.out, ran.err
    assert (await waiting).is_err()


@pytest.mark.req("RC-s8")
@pytest.mark.parametrize("is_on", [True, False])
async def test_task_whose_workflow_is_gone_is_cancelled(stage: Stage, is_on: bool) -> None:
    """What waits ends at once, what runs is asked to; unless the configuration says no."""
    recovery = RecoveryConfig(auto_terminate_orphaned_workflow_tasks=is_on)
    scene = await stage(recovery=recovery)
    jobs = Jobs(scene.manager)
    wf = Workflow("import")
    wf.add(jobs.fetch.with_options(delay=86_400), "a").named("waits")
    wf.add(jobs.wait, "b").named("runs")
    handle = await scene.manager.start_workflow(wf)
    ids = {name: await task_of(scene.manager, handle.workflow_id, name) for name in ("waits", "runs")}
    await until(lambda: jobs.began == ["b"])
    with closing(sqlite3.connect(scene.db)) as connection, connection:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("DELETE FROM taskmanager_workflows")
    await scene.sweep()
    if not is_on:
        assert scene.statuses() == {ids["waits"]: "PENDING", ids["runs"]: "RUNNING"}
        jobs.gate.set()
        return
    for name, code in (("waits", BuiltInTaskCode.WORKFLOW_STOPPED), ("runs", BuiltInTaskCode.TASK_CANCELLED)):
        result = await scene.manager.handle(ids[name]).result(timeout=30)
        assert result.err_value.error_code == code
    assert set(scene.statuses().values()) == {"CANCELLED"}


async def test_held_tasks_are_not_those_of_a_dead_instance(stage: Stage) -> None:
    """Nobody has the id of their owner, and recovery knows that."""
    scene = await stage()
    workflow_id = await begin(scene, Jobs(scene.manager))
    assert await scene.manager.workflow(workflow_id).pause()
    await scene.sweep()
    assert await scene.manager.get_stale_tasks(0) == ()
    assert await scene.manager.requeue_stale_claimed(0) == 0
    ran = await asyncio.to_thread(taskmanager, "recover", "--db", scene.db)
    assert ran.out == "nothing to recover\n"
    assert scene.query("SELECT claimed_by_worker_id, status FROM taskmanager_tasks") == [(HELD, "PENDING")]
