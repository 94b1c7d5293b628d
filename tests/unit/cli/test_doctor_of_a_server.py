"""`doctor` on a PostgreSQL server: nothing in a sound one, and each fault with what to do about it."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from taskmanager import TaskManager
from taskmanager.store.postgresql.address import Address
from taskmanager.store.postgresql.doctor import (
    DeadRows,
    Holder,
    Settings,
    connections,
    dead_rows,
    durability,
    notifications,
    pooler,
    prepared,
    rights,
    schema,
    server,
    sharing,
    skew,
    transactions,
)
from taskmanager.store.postgresql.notices import QueueState
from taskmanager.store.postgresql.schema import version
from tests.crash.harness import wait_for
from tests.servers import Cluster, PgBouncer, find_pgbouncer
from tests.unit.cli.documents import DiagnosisDocument
from tests.unit.command_line import taskmanager

SOUND = Settings("15.4", 150_004, False, "on", "on", "on", "on", 97, 5, "UTF8", "C", "app", True)
HOLDER = Holder(42, "report", "ann", "idle in transaction", 3_700.0, 3)


@pytest.fixture
def made(schema_url: str) -> str:
    """A schema with its tables."""
    assert taskmanager("migrate", "--db", schema_url).code == 0
    return schema_url


def findings(url: str) -> dict[str, tuple[str, str | None]]:
    """What is not well: by name, what was found and the advice."""
    ran = taskmanager("doctor", "--db", url, "--json")
    told: DiagnosisDocument = ran.document(DiagnosisDocument)
    found = {each.name: (each.found, each.advice) for each in told.checks if not each.ok}
    assert (ran.code, told.findings) == (1 if found else 0, len(found))
    return found


@pytest.fixture
def other(cluster: Cluster) -> Iterator["psycopg.Connection[Any]"]:
    """A session of another program."""
    with psycopg.connect(cluster.url(), application_name="report") as connection:
        yield connection


def test_doctor_finds_nothing_in_a_sound_schema(made: str) -> None:
    """A check that cries wolf is not read any more."""
    assert findings(made) == {}


def test_doctor_of_a_server_names_what_was_dropped(made: str, cluster: Cluster) -> None:
    """A view of ours that is gone is made anew by `migrate`."""
    schema = made.rpartition("=")[2]
    cluster.psql(f"DROP VIEW {schema}.taskmanager_pending")
    with psycopg.connect(cluster.url()) as connection:
        newest = version(connection, schema)
    assert findings(made)["schema"][0] == f"version {newest} without view taskmanager_pending"
    assert taskmanager("migrate", "--db", made).code == 0
    assert findings(made) == {}


def test_doctor_of_a_server_names_the_rights_a_role_lacks(made: str, cluster: Cluster) -> None:
    """A reader's role is told what an application would need."""
    name = made.rpartition("=")[2]
    cluster.psql(f"CREATE ROLE {name}_reader LOGIN; GRANT USAGE ON SCHEMA {name} TO {name}_reader")
    cluster.psql(f"GRANT SELECT ON ALL TABLES IN SCHEMA {name} TO {name}_reader")
    found, advice = findings(cluster.url(name, user=f"{name}_reader"))["rights"]
    assert found.startswith("missing: DELETE, INSERT, UPDATE on taskmanager_events; ")
    assert "migrate --sql" in (advice or "")
    cluster.psql(f"DROP OWNED BY {name}_reader; DROP ROLE {name}_reader")


def test_doctor_of_a_server_names_who_keeps_others_waiting(
    made: str, cluster: Cluster, other: "psycopg.Connection[Any]"
) -> None:
    """An open transaction that holds a lock is named with its process and its application."""
    table = f"{made.rpartition('=')[2]}.taskmanager_queues"
    other.execute(f"LOCK TABLE {table}")
    waiter = psycopg.connect(cluster.url(), application_name="waiter")
    waiter.pgconn.send_query(f"BEGIN; LOCK TABLE {table}".encode())
    long = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'waiter' AND wait_event_type = 'Lock'"
    long += " AND query_start < clock_timestamp() - interval '1 s'"
    wait_for(lambda: bool(cluster.psql(long)), lambda: "a session that waits")
    found, advice = findings(made)["locks"]
    waiter.close()
    other.rollback()
    assert found.startswith(f"process {other.info.backend_pid} of the server (report, postgres, idle in transaction")
    assert found.endswith("keeps 1 session waiting")
    assert advice is not None
    assert f"pg_terminate_backend({other.info.backend_pid})" in advice


@pytest.mark.anyio
async def test_doctor_of_a_server_sees_the_locks_of_instances(made: str) -> None:
    """A running application holds its lock, and is no finding."""
    async with TaskManager(made):
        assert findings(made) == {}


@pytest.mark.anyio
@pytest.mark.skipif(find_pgbouncer() is None, reason="no pgbouncer is installed: apt install pgbouncer")
async def test_doctor_of_a_server_misses_no_lock_of_a_pooled_instance(made: str, cluster: Cluster) -> None:
    """Such an instance can hold none, and says so in its row. Whoever looks past the pooler finds nothing wrong."""
    pooler = PgBouncer(cluster)
    try:
        async with TaskManager(pooler.url(made.rpartition("=")[2])):
            assert findings(made) == {}
    finally:
        pooler.destroy()


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (server(SOUND._replace(version_number=130_000)), "server"),
        (server(SOUND._replace(is_in_recovery=True)), "server"),
        (durability(SOUND._replace(fsync="off", synchronous_commit="off")), "durability"),
        (skew(-2.5), "clock"),
        (pooler(Address.of("postgresql://h/d"), is_pooled=True), "pooler"),
        (connections(SOUND._replace(connections=90)), "connections"),
        (rights([("s.taskmanager_tasks", "DELETE")]), "rights"),
        (schema(2, 3, []), "schema"),
        (transactions([HOLDER], SOUND), "transactions"),
        (prepared([("a'b", 61.0)]), "prepared"),
        (dead_rows([DeadRows("taskmanager_tasks", 60_000, 9, None, False)], "on"), "dead rows"),
        (dead_rows([DeadRows("taskmanager_tasks", 0, 9, None, True)], "on"), "dead rows"),
        (dead_rows([], "off"), "dead rows"),
        (sharing(["process 7 on host"], pooled_count=1), "sharing"),
        (notifications(QueueState(0.5, None, None, None)), "notifications"),
        (notifications(QueueState(0.5, 42, "psql", 9.0)), "notifications"),
    ],
)
def test_doctor_of_a_server_says_what_to_do(found: Any, name: str) -> None:
    """A finding without advice helps nobody."""
    assert (found.name, found.is_well, bool(found.found and found.advice)) == (name, False, True)


def test_doctor_names_nobody_who_only_passes_by() -> None:
    """The sessions of other roles are hidden from many. The oldest that is seen is then one of our own."""
    assert "pg_terminate_backend" not in str(notifications(QueueState(1.0, 42, "taskmanager writer", 0.2)).advice)
    assert "pg_terminate_backend(42)" in str(notifications(QueueState(1.0, 42, "psql", 9.0)).advice)


def test_doctor_of_a_server_is_content_with_what_is_usual() -> None:
    """Small numbers, and a way past a pooler, are no findings."""
    assert transactions([], SOUND._replace(sees_others=False)).found.endswith(
        "GRANT pg_read_all_stats TO app shows those of others"
    )
    well = (
        server(SOUND), durability(SOUND), skew(0.1), connections(SOUND), prepared([("young", 3.0)]),
        pooler(Address.of("postgresql://h/d?direct=h:1"), is_pooled=True), rights([("taskmanager_schema", "UPDATE")]),
        dead_rows([DeadRows("taskmanager_tasks", 200, 9, 9_000.0, False)], "on"),
        notifications(QueueState(0.01, None, None, None)), sharing([], pooled_count=2),
    )  # fmt: skip
    assert [each.name for each in well if not each.is_well] == []
