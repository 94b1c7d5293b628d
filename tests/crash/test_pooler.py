"""Instances behind PgBouncer in transaction mode: no session is theirs, so their heartbeats show that they live."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.crash.harness import PATIENCE_S, ROOT, wait_for
from tests.servers import Cluster, PgBouncer, find_pgbouncer

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_pgbouncer() is None, reason="no pgbouncer is installed: apt install pgbouncer"),
]

PROGRAM = """
import asyncio, logging, os, sys
from taskmanager import RecoveryConfig, TaskManager

url, journal, label, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
logging.basicConfig(level=logging.INFO)
manager = TaskManager(url, requeue_pending=True, recovery=RecoveryConfig(
    claimed_stale_threshold_ms=4_000, running_stale_threshold_ms=4_000, finalizing_stale_threshold_ms=4_000,
    runner_heartbeat_interval_ms=1_000, claimer_heartbeat_interval_ms=1_000, check_interval_ms=1_000))

def note(what):
    with open(journal, "a") as file:
        file.write(f"{label} {what}\\n")

@manager.task(name="job")
async def job(number: int) -> None:
    note(number)

@manager.task(name="long", requeue_on_interrupt=True)
async def long(number: int) -> None:
    note(f"long-{number}")
    if label == "dying":
        await asyncio.sleep(1000)

async def main():
    for number in range(count):
        job.enqueue(number)
    if label == "dying":
        long.enqueue(0)
        for number in range(5):
            job.with_options(delay=3).enqueue(1000 + number)
        await manager.flush()
    note("ready")
    await asyncio.Event().wait()

manager.run(main)
"""
NAMES = "SELECT application_name FROM pg_stat_activity WHERE application_name LIKE 'taskmanager%' ORDER BY 1"


@pytest.fixture
def pooler(cluster: Cluster) -> Iterator[PgBouncer]:
    """A pooler before the server."""
    made = PgBouncer(cluster)
    yield made
    made.destroy()


class Site:
    """One schema, the journal of those who run there, and their processes."""

    def __init__(self, cluster: Cluster, schema: str, folder: Path) -> None:
        self.cluster, self.schema, self.folder = cluster, schema, folder
        self.journal = folder / "journal"
        self._ends = ExitStack()

    def start(self, label: str, url: str, count: int = 0) -> "subprocess.Popen[bytes]":
        """Start an instance, and wait until it has enqueued so many tasks."""
        command = [sys.executable, "-c", PROGRAM, url, str(self.journal), label, str(count)]
        with (self.folder / label).open("ab") as errors:
            process = subprocess.Popen(command, cwd=ROOT, stderr=errors)
        self._ends.callback(process.wait, PATIENCE_S)
        self._ends.callback(process.kill)
        wait_for(lambda: f"{label} ready" in self.lines(), lambda: self.said(label), PATIENCE_S)
        return process

    def lines(self) -> list[str]:
        """What was done."""
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    def said(self, label: str) -> str:
        """What an instance has said."""
        return (self.folder / label).read_text()

    def statuses(self) -> dict[str, int]:
        """How many tasks there are of each status."""
        found = self.cluster.psql(f"SELECT status, count(*) FROM {self.schema}.taskmanager_tasks GROUP BY status")
        return {status: int(count) for status, count in found}

    def until_all_have_ended(self, count: int) -> None:
        """Wait until so many tasks are completed, and there are no others."""
        wait_for(lambda: self.statuses() == {"COMPLETED": count}, lambda: f"{self.statuses()}", PATIENCE_S)

    def run_of(self, number: object) -> list[str]:
        """Who has run the task of this number."""
        return [label for label, _, what in (line.partition(" ") for line in self.lines()) if what == str(number)]


@contextmanager
def site_of(cluster: Cluster, url: str, folder: Path) -> Iterator[Site]:
    site = Site(cluster, url.partition("?schema=")[2], folder)
    with site._ends:
        yield site


@pytest.fixture
def site(cluster: Cluster, schema_url: str, tmp_path: Path) -> Iterator[Site]:
    """A schema of its own."""
    with site_of(cluster, schema_url, tmp_path) as made:
        yield made


@pytest.mark.parametrize("kinds", [("pooled", "pooled"), ("pooled", "direct"), ("direct", "pooled")])
def test_pooled_instances_run_each_task_once_and_the_dead_are_found(
    site: Site, pooler: PgBouncer, kinds: tuple[str, str]
) -> None:
    """One is killed in the middle of a task. The other finds that out, whatever way leads each to the server."""
    urls = {"pooled": pooler.url(site.schema), "direct": site.cluster.url(site.schema)}
    heir = site.start("heir", urls[kinds[0]], 100)
    dying = site.start("dying", urls[kinds[1]], 100)
    wait_for(lambda: site.run_of("long-0") == ["dying"], lambda: site.said("dying"), PATIENCE_S)
    dying.kill()
    site.until_all_have_ended(206)
    assert all(len(site.run_of(number)) == 2 for number in range(100))  # each has enqueued every number
    assert site.run_of("long-0") == ["dying", "heir"]
    assert all(site.run_of(1000 + number) == ["heir"] for number in range(5))
    wait_for(
        lambda: site.cluster.psql(f"SELECT count(*) FROM {site.schema}.taskmanager_instances") == [("1",)],
        lambda: site.said("heir"),
        PATIENCE_S,
    )
    heir.send_signal(signal.SIGTERM)
    assert heir.wait(PATIENCE_S) == -signal.SIGTERM
    for label, kind in zip(("heir", "dying"), kinds, strict=True):
        assert site.said(label).count("a pooler in transaction mode") == (kind == "pooled")


def test_pooled_instance_lives_while_others_see_no_lock_of_it(site: Site, pooler: PgBouncer) -> None:
    """Ten seconds without a lock are death for others, and beats are half a minute apart."""
    url = pooler.url(site.schema)
    pooled = site.start("pooled", url)
    [(said,)] = site.cluster.psql(f"SELECT live_tasks FROM {site.schema}.taskmanager_instances")
    assert json.loads(said)["has_no_lock"] is True
    assert pooled.poll() is None


def test_pooled_instance_uses_the_direct_address_for_its_lock(site: Site, pooler: PgBouncer) -> None:
    """It is watched like one without a pooler, and its rows go through the pooler."""
    url = f"{pooler.url(site.schema)}&direct=127.0.0.1:{site.cluster.port}"
    site.start("one", url, 20)
    site.until_all_have_ended(20)
    locks = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = '{site.schema}'::regnamespace"
    wait_for(lambda: site.cluster.psql(locks) == [("1",)], lambda: site.said("one"), PATIENCE_S)
    assert "a pooler" not in site.said("one")
    asked = f"SELECT live_tasks FROM {site.schema}.taskmanager_instances WHERE live_tasks IS NOT NULL"
    wait_for(lambda: bool(site.cluster.psql(asked)), lambda: site.said("one"), PATIENCE_S)
    [(said,)] = site.cluster.psql(asked)
    assert "has_no_lock" not in json.loads(said)
    assert any(name.startswith("taskmanager watch:") for (name,) in site.cluster.psql(NAMES))
