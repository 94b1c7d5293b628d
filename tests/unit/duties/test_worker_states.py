"""What a worker state says of its instance."""

import asyncio
import json
import sqlite3
from contextlib import closing
from typing import Any

import psutil
import pytest

from taskmanager import QueueConfig
from tests.unit.duties.scene import NOW_US, until

pytestmark = pytest.mark.anyio


@pytest.mark.req(
    "DS-073", "DS-074", "DS-075", "DS-076", "DS-077", "DS-078", "DS-079", "DS-080", "DS-081", "DS-082", "DS-083",
    "DS-084", "DS-085", "DS-086", "DS-087", "DS-088", "DS-089", "DS-090", "DS-091", "DS-092", "DS-093",
)  # fmt: skip
async def test_a_worker_state_says_how_the_instance_is(stage: Any) -> None:
    """One row per snapshot, appended: tasks, memory, processor, and the configuration as JSON."""
    queues = [
        QueueConfig("mail", priority=7, max_concurrency=3),
        QueueConfig("one", max_concurrency=1, scope="file"),
        QueueConfig("two", max_concurrency=2, scope="file"),
    ]
    scene = await stage(queues=queues, max_in_memory=500, concurrency=1)
    gate = asyncio.Event()

    @scene.manager.task(persist=True)  # type: ignore[untyped-decorator]
    async def work() -> None:
        await gate.wait()

    @scene.manager.task  # type: ignore[untyped-decorator]
    async def memory_only() -> None: ...

    handle, waits, other = work.enqueue(), work.with_options(delay=60).enqueue(), memory_only.enqueue()
    await asyncio.gather(handle.saved(), waits.saved())
    await until(lambda: len(scene.engine.runner.running) == 1)
    before = set(psutil.Process().children(recursive=True))  # of other tests too: a server that they share
    await scene.duties._reports.add_worker_state()
    after = set(psutil.Process().children(recursive=True))
    scene.clock.pass_s(30)
    await scene.duties._reports.add_worker_state()
    gate.set()
    await asyncio.gather(handle, other)
    with closing(sqlite3.connect(scene.db)) as connection:
        connection.row_factory = sqlite3.Row
        first, second = (dict(row) for row in connection.execute("SELECT * FROM taskmanager_worker_states ORDER BY id"))
    assert (first["id"], second["id"]) == (1, 2)
    assert (first["snapshot_at"], second["snapshot_at"]) == (NOW_US, NOW_US + 30_000_000)
    who = scene.engine.identity
    assert (first["worker_id"], first["hostname"], first["pid"]) == (who.instance_id, who.hostname, who.pid)
    assert first["worker_started_at"] == who.started_at
    assert len(before & after) <= first["processes"] <= len(before | after)
    assert (first["tasks_running"], first["tasks_claimed"]) == (1, 1)
    assert set(json.loads(first["queues"])) == {"default", "mail", "one", "two"}
    assert json.loads(first["queue_priorities"])["mail"] == 7
    assert json.loads(first["queue_max_concurrency"])["mail"] == 3
    assert json.loads(first["recovery_config"])["crash_budget"] == 3
    resident_mb = psutil.Process().memory_info().rss / 2**20
    assert 0.2 * resident_mb < first["memory_usage_mb"] < 5 * resident_mb
    assert first["children_memory_mb"] >= 0
    assert 0 < first["memory_percent"] < 100
    assert second["cpu_percent"] >= 0
    assert (first["max_claim_batch"], first["max_claim_per_worker"]) == (1_000, 500)
    assert first["cluster_wide_cap"] == 3


async def test_a_worker_state_names_the_queues_that_the_instance_runs(stage: Any) -> None:
    """Those of `run_queues`, whatever else it knows by name."""
    scene = await stage(queues=[QueueConfig("other")], run_queues=("reports", "mail"))
    await scene.duties._reports.add_worker_state()
    with closing(sqlite3.connect(scene.db)) as connection:
        (found,) = connection.execute("SELECT queues FROM taskmanager_worker_states").fetchone()
    assert json.loads(found) == ["mail", "reports"]
