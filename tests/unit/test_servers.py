"""The servers of the tests do what real ones do: a test of a restart or a failover believes them."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.crash.harness import is_alive, wait_for
from tests.servers import Cluster, PgBouncer, find_pgbouncer


def values(cluster: Cluster, schema: str) -> list[str]:
    """What the table of a test holds."""
    return [value for (value,) in cluster.psql(f"SELECT value FROM {schema}.kept ORDER BY value")]


@pytest.fixture
def schema(cluster: Cluster, schema_url: str) -> str:
    """The schema of this test, with a table that has one row."""
    name = schema_url.partition("?schema=")[2]
    cluster.psql(f"CREATE SCHEMA {name}; CREATE TABLE {name}.kept (value text); INSERT INTO {name}.kept VALUES ('a')")
    return name


@pytest.fixture
def standby(cluster: Cluster) -> Iterator[Cluster]:
    """A server that follows."""
    made = cluster.standby()
    yield made
    made.destroy()


def test_server_keeps_rows_and_port_over_a_restart(cluster: Cluster, schema: str) -> None:
    port = cluster.port
    for mode in ("fast", "immediate"):
        cluster.restart(mode)
        assert (cluster.port, values(cluster, schema)) == (port, ["a"])


def test_server_recovers_after_sigkill_with_a_session_open(cluster: Cluster, schema: str) -> None:
    """The session holds the shared memory for a moment longer, and the next start would find it taken."""
    with psycopg.connect(cluster.url()) as session:
        session.execute(f"INSERT INTO {schema}.kept VALUES ('not committed')")
        cluster.kill()
        cluster.start()
        with pytest.raises(psycopg.OperationalError):
            session.execute("SELECT 1")
    assert values(cluster, schema) == ["a"]
    assert "was not properly shut down" in cluster.log.read_text()


def test_server_that_cannot_start_says_why(cluster: Cluster) -> None:
    cluster.stop()
    settings = cluster.data / "postgresql.auto.conf"
    before = settings.read_text()
    settings.write_text("max_connections = 'many'\n")
    with pytest.raises(RuntimeError, match="max_connections"):
        cluster.start()
    settings.write_text(before)
    cluster.start()


def test_server_takes_settings(cluster: Cluster) -> None:
    def is_shown(value: str) -> Callable[[], bool]:
        return lambda: cluster.psql("SHOW log_min_messages") == [(value,)]

    cluster.set("log_min_messages", "error")
    wait_for(is_shown("error"), cluster.last_words)
    cluster.set("log_min_messages", None)
    wait_for(is_shown("warning"), cluster.last_words)
    assert cluster.psql("SHOW fsync") == [("on",)]


def test_standby_follows_and_is_promoted(cluster: Cluster, standby: Cluster, schema: str) -> None:
    cluster.psql(f"INSERT INTO {schema}.kept VALUES ('b')")
    standby.until_it_has(cluster)
    assert values(standby, schema) == ["a", "b"]
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        standby.psql(f"DELETE FROM {schema}.kept")
    standby.promote()
    standby.psql(f"INSERT INTO {schema}.kept VALUES ('c')")
    assert (values(standby, schema), values(cluster, schema)) == (["a", "b", "c"], ["a", "b"])


@pytest.mark.skipif(find_pgbouncer() is None, reason="no pgbouncer is installed: apt install pgbouncer")
def test_pooler_gives_each_transaction_a_session(cluster: Cluster) -> None:
    pooler = PgBouncer(cluster)
    try:
        with psycopg.connect(pooler.url()) as first, psycopg.connect(pooler.url()) as second:
            asked = "SELECT pg_backend_pid()"
            taken = first.execute(asked).fetchone()
            assert taken != second.execute(asked).fetchone()
            first.commit()
            second.rollback()
    finally:
        pooler.destroy()


def test_schema_of_a_test_is_gone_afterwards(cluster: Cluster) -> None:
    """The tests before this one made some."""
    assert cluster.psql("SELECT nspname FROM pg_namespace WHERE nspname LIKE 't\\_%'") == []


@pytest.mark.usefixtures("cluster")  # where there is one
def test_server_ends_with_a_process_that_is_killed() -> None:
    """Nothing is left on the machine, in whatever way a run of the tests ends."""
    program = (
        "import os, signal; from tests.servers import Cluster; made = Cluster.create()\n"
        "print(made.pid, made.folder, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False)
    pid, folder = done.stdout.split()
    wait_for(lambda: not is_alive(int(pid)) and not Path(folder).exists(), lambda: f"{pid} and {folder} are left")
