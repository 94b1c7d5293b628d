"""Who may come in and what they may do: roles without rights, passwords, certificates; and no connection is left."""

import asyncio
import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from taskmanager import StoreError, StoreUnavailable, TaskManager
from taskmanager.store.postgresql.schema import script
from tests.crash.harness import wait_for

if TYPE_CHECKING:
    from tests.servers import Cluster

pytestmark = pytest.mark.anyio
SECRET = "s3cr3t-w0rd"
OURS = "SELECT count(*) FROM pg_stat_activity WHERE application_name ~ '^taskmanager'"
GRANTS = """
    GRANT USAGE ON SCHEMA {schema} TO {role}_app, {role}_sender;
    GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}_app;
    GRANT INSERT ON {schema}.taskmanager_tasks TO {role}_sender;
"""


@pytest.fixture
def schema(schema_url: str) -> str:
    """The name of a schema that only this test has."""
    return schema_url.partition("?schema=")[2]


@pytest.fixture
def roles(cluster: "Cluster", schema: str, tmp_path: Path) -> Iterator[str]:
    """What a DBA has done: the script was run, and two roles have the rights that it names."""
    file = tmp_path / "schema.sql"
    file.write_text(script(schema))
    psql = ["psql", "--no-psqlrc", "--quiet", f"--file={file}", f"--dbname={cluster.url()}"]
    subprocess.run(psql, check=True, capture_output=True)
    cluster.psql(f"CREATE ROLE {schema}_app LOGIN; CREATE ROLE {schema}_sender LOGIN")
    cluster.psql(GRANTS.format(schema=schema, role=schema))
    yield schema
    cluster.psql(f"DROP OWNED BY {schema}_app, {schema}_sender; DROP ROLE {schema}_app, {schema}_sender")


class Adding(TaskManager):
    """A manager with one task."""

    def __init__(self, url: str) -> None:
        super().__init__(url, requeue_pending=True)
        self.add = self.task(name="add")(_add)


async def _add(one: int, other: int) -> int:
    return one + other


async def test_application_runs_without_the_right_to_change_the_schema(cluster: "Cluster", roles: str) -> None:
    """A DBA makes the tables. The application enqueues, runs, pauses, cancels and purges, and makes nothing."""
    manager = Adding(cluster.url(roles, f"{roles}_app"))
    async with manager:
        assert await manager.add.enqueue(1, 2) == 3
        later = manager.add.with_options(delay=60).enqueue(1, 2)
        await later.saved()
        assert await manager.cancel(later.task_id)
        await manager.pause("default")
        await manager.resume("default")
        assert await manager.purge() >= 1


async def test_sender_needs_no_more_than_the_right_to_insert(cluster: "Cluster", roles: str) -> None:
    manager = Adding(cluster.url(roles))
    sql, values = manager.insert_statement(manager.add, 3, 4)
    with psycopg.connect(cluster.url(user=f"{roles}_sender")) as sender:
        sender.execute(sql.encode(), values)
    async with manager:
        handle = manager.handle(str(values[0]))
        assert await handle == 7


@pytest.fixture
def nobody_notifies(cluster: "Cluster") -> Iterator[None]:
    """The right to notify is taken from all but superusers."""
    cluster.psql("REVOKE EXECUTE ON FUNCTION pg_notify(text, text) FROM PUBLIC")
    yield
    cluster.psql("GRANT EXECUTE ON FUNCTION pg_notify(text, text) TO PUBLIC")


async def test_sender_needs_no_right_to_notify(cluster: "Cluster", roles: str, nobody_notifies: None) -> None:
    """An idle worker hears nothing of its row, and finds it all the same."""
    manager = Adding(cluster.url(roles, f"{roles}_app"))
    async with manager:
        sql, values = manager.insert_statement(manager.add, 3, 4)
        with psycopg.connect(cluster.url(user=f"{roles}_sender")) as sender:
            sender.execute(sql.encode(), values)
        assert await manager.handle(str(values[0])) == 7


@pytest.mark.parametrize("revoked", ["USAGE ON SCHEMA {0}", "SELECT ON ALL TABLES IN SCHEMA {0}"])
async def test_missing_right_is_named_with_what_to_do(cluster: "Cluster", roles: str, revoked: str) -> None:
    cluster.psql(f"REVOKE {revoked.format(roles)} FROM {roles}_app")
    manager = Adding(cluster.url(roles, f"{roles}_app"))
    with pytest.raises(StoreError, match="permission denied for .*taskmanager migrate --sql"):
        await manager.start()
    wait_for(lambda: cluster.psql(OURS) == [("0",)], lambda: f"{cluster.psql(OURS)}")


@pytest.fixture
def guarded(cluster: "Cluster", schema: str) -> Iterator[str]:
    """A role that comes in with a password."""
    from tests.servers import EVERYBODY

    cluster.psql(f"CREATE ROLE {schema}_known LOGIN SUPERUSER PASSWORD '{SECRET}'")
    cluster.admit(f"host all {schema}_known all scram-sha-256\n{EVERYBODY}")
    yield f"{schema}_known"
    cluster.admit(EVERYBODY)
    cluster.psql(f"DROP OWNED BY {schema}_known CASCADE; DROP ROLE {schema}_known")


def passes(file: Path, password: str) -> None:
    """Write the file of passwords, as libpq wants it."""
    file.write_text(f"*:*:*:*:{password}\n")
    file.chmod(0o600)


def until_it_refuses(cluster: "Cluster", user: str) -> None:
    """Wait until the server has read who may come in."""

    def is_refused() -> bool:
        try:
            psycopg.connect(cluster.url(user=user, password="wrong")).close()
        except psycopg.OperationalError:
            return True
        return False

    wait_for(is_refused, lambda: "everybody may come in")


async def test_password_that_was_changed_is_read_again_from_its_file(
    cluster: "Cluster", schema: str, guarded: str, tmp_path: Path
) -> None:
    """A rotated password costs nobody a restart: each new connection reads the file."""
    until_it_refuses(cluster, guarded)
    file = tmp_path / "passes"
    passes(file, SECRET)
    manager = Adding(f"{cluster.url(schema, guarded)}&passfile={file}")
    async with manager:
        assert await manager.add.enqueue(1, 2) == 3
        cluster.psql(f"ALTER ROLE {guarded} PASSWORD 'another'")
        passes(file, "another")
        cluster.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name ~ '^taskmanager'")
        handle = manager.add.enqueue(3, 4)
        assert await handle == 7
        await handle.saved(timeout=60)


async def test_service_names_where_the_server_is(
    cluster: "Cluster", schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "services"
    file.write_text(f"[jobs]\nhost=127.0.0.1\nport={cluster.port}\nuser=postgres\ndbname=postgres\n")
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    manager = Adding(f"postgresql://?service=jobs&schema={schema}")
    async with manager:
        assert await manager.add.enqueue(1, 2) == 3


async def test_password_is_in_no_message_and_no_log(
    cluster: "Cluster", schema: str, guarded: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Not where it is right, not where it is wrong, and not in the debug log of asyncio."""
    until_it_refuses(cluster, guarded)
    asyncio.get_running_loop().set_debug(True)
    caplog.set_level(logging.DEBUG)
    manager = Adding(cluster.url(schema, guarded, SECRET))
    async with manager:
        assert await manager.add.enqueue(1, 2) == 3
        said = [repr(manager), str(manager.status())]
        cluster.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name ~ '^taskmanager'")
        await manager.add.enqueue(3, 4).result(timeout=60)
    refused = Adding(cluster.url(schema, guarded, f"{SECRET}-wrong"))
    with pytest.raises(StoreUnavailable, match="check the name, the password") as caught:
        await refused.start()
    error: BaseException | None = caught.value
    while error is not None:
        said += [str(error), repr(error)]
        error = error.__cause__ or error.__context__
    rows = cluster.psql(f"SELECT i::text FROM {schema}.taskmanager_instances AS i")
    assert SECRET not in "".join([*said, caplog.text, str(rows)])


@pytest.fixture
def certified(cluster: "Cluster") -> "Iterator[Cluster]":
    """The server with a certificate that it has signed itself."""
    key, certificate = cluster.data / "server.key", cluster.data / "server.crt"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command, *names], check=True, capture_output=True)
    owner = cluster.data.stat()
    for file in (key, certificate):
        os.chown(file, owner.st_uid, owner.st_gid)
        file.chmod(0o600)
    cluster.set("ssl", "on")
    wait_for(lambda: cluster.psql("SHOW ssl") == [("on",)], cluster.last_words)
    yield cluster
    cluster.set("ssl", None)


async def test_modes_of_tls_are_those_of_libpq(certified: "Cluster", schema: str, tmp_path: Path) -> None:
    """Encrypted without a look at the certificate; with one, only if its root is known."""
    root = tmp_path / "root.crt"
    root.write_bytes((certified.data / "server.crt").read_bytes())
    root.chmod(0o600)
    encrypted = OURS.replace("pg_stat_activity WHERE", "pg_stat_activity JOIN pg_stat_ssl USING (pid) WHERE ssl AND")
    for how in ("sslmode=require", f"sslmode=verify-full&sslrootcert={root}"):
        manager = Adding(f"{certified.url(schema)}&{how}")
        async with manager:
            assert await manager.add.enqueue(1, 2) == 3
            assert certified.psql(encrypted) == [("3",)]
    unknown = Adding(f"{certified.url(schema)}&sslmode=verify-full&sslrootcert={tmp_path}/nothing.crt")
    with pytest.raises(StoreUnavailable, match="root certificate file .* does not exist.*check sslmode"):
        await unknown.start()


async def test_instance_has_three_connections_and_leaves_none(cluster: "Cluster", schema: str) -> None:
    """Each says what it is for. A command has one, a start that fails leaves none."""
    manager = Adding(cluster.url(schema))
    names = OURS.replace("count(*)", "split_part(application_name, ':', 1)") + " ORDER BY 1"
    async with manager:
        assert await manager.add.enqueue(1, 2) == 3
        used = ["taskmanager reader", "taskmanager watch", "taskmanager writer"]
        assert cluster.psql(names) == [(each,) for each in used]
    wait_for(lambda: cluster.psql(OURS) == [("0",)], lambda: f"{cluster.psql(names)}")
    cluster.psql(f"ALTER TABLE {schema}.taskmanager_instances RENAME TO hidden")
    cluster.psql(f"CREATE VIEW {schema}.taskmanager_instances AS SELECT 1 AS instance_id")
    with pytest.raises(StoreError):
        await Adding(cluster.url(schema)).start()
    wait_for(lambda: cluster.psql(OURS) == [("0",)], lambda: f"{cluster.psql(names)}")


def test_loop_that_was_closed_leaves_no_connection(cluster: "Cluster", schema: str) -> None:
    manager = Adding(cluster.url(schema))
    loop = asyncio.new_event_loop()
    loop.run_until_complete(manager.start())
    loop.close()
    wait_for(lambda: cluster.psql(OURS) == [("0",)], lambda: f"{cluster.psql(OURS)}")
