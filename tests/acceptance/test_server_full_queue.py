"""A server whose queue of notices is full: nobody's insert fails, and what was inserted is found by polling."""

import asyncio
import os
import re
from collections.abc import Iterator
from typing import Any, Final

import psutil
import psycopg
import pytest

from tests.acceptance.server_world import (
    Records,
    ServerWorld,
    SmallDisk,
    app,
    eventually,
    records,
    schema,
    server_of_its_own,
)
from tests.servers import Cluster
from tests.unit.cli.documents import DiagnosisDocument
from tests.unit.command_line import taskmanager

__all__ = ["app", "records", "schema"]  # fixtures

pytestmark = [pytest.mark.anyio, pytest.mark.long, pytest.mark.timeout(600)]
QUEUE_BYTES: Final = 8 << 30
"""How much the queue holds. It has no setting before PostgreSQL 17."""
PAYLOAD_BYTES: Final = 4_100
"""A page holds one notice of this size."""
PER_COMMIT: Final = 5_000
MAX_COMMITS: Final = 2 * QUEUE_BYTES // (8_192 * PER_COMMIT)
ROWS: Final = 20


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    """A server that only this file uses, with another database, and its queue of notices in memory."""
    if os.geteuid() != 0 or psutil.virtual_memory().available < 12 << 30:
        pytest.skip("the queue of notices takes 8 GB: root may mount it in memory, where 12 GB are free")
    with server_of_its_own() as made:
        made.psql("CREATE DATABASE others")
        disk = SmallDisk.instead_of("pg_notify", made, 9_000)
        yield made
        made.stop("immediate")
        disk.unmount()


@pytest.fixture
def sleeper(server: Cluster) -> "Iterator[psycopg.Connection[Any]]":
    """A session that listens, in a transaction that it does not end. It is in a database that has no tasks."""
    made = opened(server, "sleeper")
    made.execute("LISTEN x")
    made.execute("BEGIN; SELECT 1")
    yield made
    made.close()


def opened(server: Cluster, name: str) -> "psycopg.Connection[Any]":
    return psycopg.connect(server.url(), dbname="others", autocommit=True, application_name=name)


def fill_queue(server: Cluster) -> None:
    """Notify until the server refuses to. What it rolls back keeps its place."""
    send = f"SELECT count(pg_notify('x', rpad(n::text, {PAYLOAD_BYTES}, 'x'))) FROM generate_series(1, {PER_COMMIT}) n"
    with opened(server, "notifier") as notifying:
        notifying.execute("SET synchronous_commit = off; SET client_min_messages = error")
        try:
            for _ in range(MAX_COMMITS):
                notifying.execute(send.encode())
        except psycopg.errors.ProgramLimitExceeded:
            return
    raise AssertionError("the queue never was full")


def queue_finding(url: str) -> tuple[bool, str, str | None]:
    """Return what `doctor` says of the queue: whether it is well, what it found, and the advice."""
    told: DiagnosisDocument = taskmanager("doctor", "--db", url, "--json").document(DiagnosisDocument)
    return next((each.ok, each.found, each.advice) for each in told.checks if each.name == "notifications")


async def test_full_queue_of_notices_costs_nobody_a_commit(
    server: Cluster, schema: str, app: str, records: Records, sleeper: "psycopg.Connection[Any]"
) -> None:
    """Other programs insert, and instances hear nothing of it, nor of each other, and poll. Who keeps the queue from
    being emptied is named, also where it is in another database.
    """
    one, two = ServerWorld(app), ServerWorld(app)
    await one.manager.start()
    await two.manager.start()
    sent = [one.manager.insert_statement(one.safe) for _ in range(ROWS)]
    pid = sleeper.info.backend_pid
    await asyncio.to_thread(fill_queue, server)
    async with one.load(), two.load():
        with psycopg.connect(server.url(), autocommit=True) as other:
            for sql, values in sent:
                other.execute(sql.encode(), values)
        for _, (task_id, *_) in sent:
            await one.manager.handle(str(task_id))
        await asyncio.gather(one.some_more(300), two.some_more(300))
        is_well, found, advice = await asyncio.to_thread(queue_finding, server.url(schema))
        assert not is_well
        assert f"pinned perhaps by process {pid} (sleeper)" in found
        assert f"pg_terminate_backend({pid})" in str(advice)
        server.psql(f"SELECT pg_terminate_backend({pid})")
        await eventually(lambda: float(server.psql("SELECT pg_notification_queue_usage()")[0][0]) < 0.01)
        await one.some_more()
    await one.stop()
    await two.stop()
    refused = r"\] taskmanager watch.* ERROR:  too many notifications in the NOTIFY queue"
    assert re.search(refused, server.log.read_text(errors="replace"))
    assert not records.told
    one.starts.update(two.starts)
    one.saved |= two.saved
    one.judge(server, schema)
