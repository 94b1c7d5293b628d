"""How a transaction on a server begins: with its first statement, and in a way that makes the commit mean something."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psycopg
import pytest

from taskmanager.store.postgresql import schema
from taskmanager.store.postgresql.address import Address
from taskmanager.store.postgresql.connection import connect, lead_to_schema
from taskmanager.store.postgresql.looks import Looks
from taskmanager.store.postgresql.session import PostgresSession
from taskmanager.store.sql import statements as sql
from taskmanager.store.sql.instances import BEAT
from tests.crash.harness import wait_for
from tests.servers import Cluster, PgBouncer, find_pgbouncer

HAS_WRITTEN = "SELECT (pg_current_xact_id_if_assigned() IS NOT NULL)::integer"
"""Whether its commit waits for the disk, and for a standby that has to have it."""


@pytest.fixture
def session(schema_url: str) -> Iterator[PostgresSession]:
    """Connect to a new schema."""
    made = connect(Address.of(schema_url))
    schema.migrate(made.raw, made.address.schema)
    lead_to_schema(made)
    yield made
    made.raw.close()


def test_session_is_let_go_of_by_the_server_when_its_host_is_silent(session: PostgresSession) -> None:
    """It would keep one for two hours, by the settings of most systems."""
    names = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout")
    asked = ", ".join(f"current_setting('{name}')" for name in names)
    assert session.execute_plain(f"SELECT {asked}").fetchone() == ("5", "3", "4", "15000")


def test_lost_session_makes_the_driver_say_nothing(
    session: PostgresSession, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Heartbeats are many rows in one statement, and they meet the loss first. The store says it, once."""
    cluster.psql(f"SELECT pg_terminate_backend({session.raw.info.backend_pid})")
    with pytest.raises(psycopg.OperationalError):
        session.executemany(BEAT, [("i", "runner", 1, "h", 7)] * 2)
    assert session.raw.closed
    assert caplog.messages == []


def has_written(session: PostgresSession) -> int:
    """Ask it in a transaction that changes nothing."""
    with session.transaction(is_beside=True):
        (found,) = session.execute_plain(HAS_WRITTEN).fetchone() or (-1,)
    return int(found)


def test_transaction_begins_with_its_first_statement(session: PostgresSession) -> None:
    """Whoever asks for one and then asks nothing sends nothing."""
    with session.transaction():
        assert session.in_transaction
        assert session.raw.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
        session.execute("SELECT 1")
        assert session.raw.info.transaction_status is psycopg.pq.TransactionStatus.INTRANS
    assert not session.in_transaction
    with session.transaction():
        pass
    assert not session.in_transaction


@pytest.mark.parametrize("name", ["execute", "executemany", "write", "write_all"])
def test_transaction_is_begun_by_each_kind_of_statement(session: PostgresSession, name: str) -> None:
    """And is undone as a whole."""
    row = "INSERT INTO taskmanager_queues (queue_name, paused_at) VALUES (?, 1)"
    ways: dict[str, Callable[[], object]] = {
        "execute": lambda: session.execute(row, ("q",)),
        "executemany": lambda: session.executemany(row, [("q",), ("r",)]),
        "write": lambda: session.write(sql.FORGET_STEPS, [("a",), ("b",)]),
        "write_all": lambda: session.write_all([(sql.FORGET_STEPS, [("a",), ("b",)])]),
    }
    with suppress(ZeroDivisionError), session.transaction():
        ways[name]()
        assert session.raw.info.transaction_status is psycopg.pq.TransactionStatus.INTRANS
        assert session.execute("SELECT current_setting('taskmanager.silent')").fetchone() == ("on",)
        raise ZeroDivisionError
    assert not session.in_transaction
    assert session.execute("SELECT count(*) FROM taskmanager_queues").fetchone() == (0,)


def test_transaction_whose_lock_is_held_by_another_gives_up(
    session: PostgresSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of the wait is in force when the lock is waited for, on the same way to the server."""
    monkeypatch.setattr("taskmanager.store.postgresql.session.LOCK_MS", 50)
    with psycopg.connect(session.raw.info.dsn) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s, %s)", (0x7461736B, session.number))
        with pytest.raises(psycopg.errors.LockNotAvailable), session.transaction():
            session.execute("SELECT 1")
    with session.transaction():
        assert session.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_transaction_sees_what_the_one_before_it_has_committed(session: PostgresSession, isolation: str) -> None:
    """Also where a snapshot is the default: that would be taken before the lock is there, and show what was so then."""
    session.raw.execute(f"SET default_transaction_isolation = '{isolation}'".encode())
    waits = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"

    def count() -> tuple[object, ...] | None:
        with session.transaction():
            return session.execute("SELECT count(*) FROM taskmanager_queues").fetchone()

    with psycopg.connect(session.raw.info.dsn) as other, ThreadPoolExecutor(1) as thread:
        other.execute("SELECT pg_advisory_xact_lock(%s, %s)", (0x7461736B, session.number))
        other.execute(session.named("INSERT INTO taskmanager_queues (queue_name, paused_at) VALUES ('q', 1)").encode())
        found = thread.submit(count)
        wait_for(lambda: other.execute(waits, (session.raw.info.backend_pid,)).fetchone() == (1,), lambda: "no wait")
        other.commit()
        assert found.result() == (1,)


def test_transaction_that_is_broken_off_logs_nothing_of_the_driver(
    session: PostgresSession, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is raised, and whoever hears it does the transaction again. A warning for each would fill the log."""

    def divide() -> None:
        with session.transaction(), session._pipelined():
            session._open()
            failing = session.raw.execute("SELECT 1 / 0")
            session.raw.execute("SELECT 1")
            failing.fetchone()

    with pytest.raises(psycopg.errors.DivisionByZero):
        divide()
    assert not caplog.records
    assert not session.in_transaction


@pytest.mark.skipif(find_pgbouncer() is None, reason="no pgbouncer is installed: apt install pgbouncer")
def test_snapshot_behind_a_pooler_brings_its_settings(session: PostgresSession, cluster: Cluster) -> None:
    """The session belongs to somebody else between two transactions, and so would its settings."""
    pooler = PgBouncer(cluster)
    try:
        with Looks(Address.of(pooler.url(session.address.schema)), 0).session(2.0) as look:
            assert look.is_pooled
            with look.snapshot():
                found = [look.execute_plain(f"SHOW {name}").fetchone() for name in ("jit", "lock_timeout")]
            assert found == [("off",), ("2s",)]
    finally:
        pooler.destroy()


def test_first_commit_of_a_session_is_a_real_one(session: PostgresSession) -> None:
    """An earlier session may have committed what this one finds. So its first commit shows that all that is safe."""
    assert [has_written(session) for _ in range(3)] == [1, 0, 0]


def test_commit_that_waits_for_no_disk_proves_nothing(session: PostgresSession) -> None:
    """A claim is such a commit, and often the first one."""
    session.is_unsynced = True
    assert has_written(session) == 0
    session.is_unsynced = False
    assert [has_written(session) for _ in range(2)] == [1, 0]
