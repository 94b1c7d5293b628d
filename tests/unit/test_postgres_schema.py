"""The tables in PostgreSQL: how they come to be, what they refuse, and whom they tell of new rows."""

import secrets
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from psycopg import errors

from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.store.place import place_at
from taskmanager.store.postgresql import parts, schema
from taskmanager.store.postgresql.found import look
from taskmanager.store.postgresql.parts import Migration
from taskmanager.store.sqlite import schema as file_schema
from tests.servers import Cluster, PgBouncer, find_pgbouncer, free_port
from tests.sessions import connect

Connection = psycopg.Connection[Any]
NEW = (
    "INSERT INTO taskmanager_tasks (id, task_name, queue_name, priority, status, sent_at, enqueued_at, created_at,"
    " updated_at, completed_at) VALUES (%(id)s, 'f', %(queue)s, 50, %(status)s, 1, 1, 1, 1, %(completed_at)s)"
)


@pytest.fixture
def name(schema_url: str) -> str:
    """The schema of this test. It is not made."""
    return parse_qs(urlsplit(schema_url).query)["schema"][0]


@pytest.fixture
def session(cluster: Cluster, name: str) -> Iterator[Connection]:
    """A connection whose names are those of the schema, once it is there."""
    with opened(cluster, name) as connection:
        yield connection


@pytest.fixture(scope="module")
def whole(cluster: Cluster) -> Iterator[str]:
    """A whole schema, for the tests that only use it."""
    name = f"whole_{secrets.token_hex(4)}"
    with opened(cluster, name) as connection:
        schema.migrate(connection, name)
        yield name
        connection.execute(f"DROP SCHEMA {name} CASCADE".encode())


@pytest.fixture
def user(cluster: Cluster, whole: str) -> Iterator[Connection]:
    """A connection to the whole schema, which has no tasks."""
    with opened(cluster, whole) as connection:
        connection.execute("DELETE FROM taskmanager_tasks")
        yield connection


def opened(cluster: Cluster, name: str, user: str | None = None) -> Connection:
    return psycopg.connect(cluster.url(user=user), autocommit=True, options=f"-c search_path={name}")


@pytest.fixture
def listener(cluster: Cluster) -> Iterator[Connection]:
    with psycopg.connect(cluster.url(), autocommit=True) as connection:
        yield connection


def steps_with(monkeypatch: pytest.MonkeyPatch, *scripts: str) -> None:
    """Let the library know these steps behind its own."""
    own = parts.migrations()
    more = [Migration(own[-1].version + number, f"more{number}", text) for number, text in enumerate(scripts, 1)]
    monkeypatch.setattr(schema, "migrations", lambda: [*own, *more])


def insert(connection: Connection, task_id: str = "a", queue: str = "q", status: str = "PENDING") -> None:
    given = {"id": task_id, "queue": queue, "status": status, "completed_at": 1 if status == "COMPLETED" else None}
    connection.execute(NEW, given)


def register(connection: Connection) -> None:
    connection.execute(
        "INSERT INTO taskmanager_instances (instance_id, hostname, pid, process_name, started_at, updated_at)"
        " VALUES ('i', 'h', 7, 'p', 1, 1)"
    )


def heard(listener: Connection) -> list[tuple[str, str]]:
    """What was told since, up to a mark that this tells itself."""
    listener.execute("LISTEN mark")
    listener.execute("NOTIFY mark")
    told = []
    for each in listener.notifies(timeout=10):
        if each.channel == "mark":
            break
        told.append((each.channel, each.payload))
    return told


# The same as in the file.


def test_tables_have_the_columns_of_the_file(user: Connection, whole: str) -> None:
    """One SQL reads both."""
    found = dict(
        user.execute(
            "SELECT table_name, array_agg(column_name::text) FROM information_schema.columns"
            " WHERE table_schema = %s GROUP BY table_name",
            (whole,),
        ).fetchall()
    )
    file = connect(":memory:", isolation_level=None)
    file_schema.create(file, file_schema.migrations())
    tables = file.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
    expected = {
        table: {column for (column,) in file.execute("SELECT name FROM pragma_table_info(?)", (table,)).fetchall()}
        for (table,) in tables
    }
    file.close()
    assert {table: set(columns) for table, columns in found.items()} == expected


def test_texts_are_ordered_by_their_bytes(user: Connection, whole: str) -> None:
    """As in the file, whatever language the database speaks."""
    other = user.execute(
        "SELECT attrelid::regclass, attname FROM pg_attribute JOIN pg_class AS c ON c.oid = attrelid"
        " WHERE relnamespace = %s::regnamespace AND relkind = 'r' AND attnum > 0 AND atttypid = 'text'::regtype"
        " AND attcollation <> 'pg_catalog.\"C\"'::regcollation",
        (whole,),
    ).fetchall()
    assert other == []


def test_parts_are_all_that_the_migrations_make(user: Connection, whole: str) -> None:
    """What is read from the SQL is what the server has."""
    found = look(user, whole)
    known = parts.parts_of(parts.migrations())
    made = {each for each, kind in found.kinds.items() if not each.endswith(("_pkey", "_key"))}
    assert made - {"taskmanager_schema"} == set(known)
    assert {each: found.kinds[each] for each in known} == {each: part.kind for each, part in known.items()}
    tables = {each.name: each.columns for each in known.values() if each.kind == "table"}
    assert {each: found.columns[each] for each in tables} == tables


@pytest.mark.parametrize(
    "change",
    [
        "status = 'DONE'", "priority = 0", "priority = 101", "status = 'CLAIMED'", "claimed = 1", "completed_at = 1",
        "status = 'RUNNING'", "error_code = 'X'", "retry_count = -1", "is_workflow_task = 2", "tags = 'no JSON'",
    ],
)  # fmt: skip
def test_rows_that_contradict_themselves_are_refused(user: Connection, change: str) -> None:
    """The database itself keeps what every writer relies on."""
    insert(user)
    with pytest.raises((errors.IntegrityError, errors.DataError)):
        user.execute(f"UPDATE taskmanager_tasks SET {change}".encode())


def test_records_of_a_task_go_with_it(user: Connection) -> None:
    """As in the file."""
    insert(user)
    user.execute(
        "INSERT INTO taskmanager_task_attempts (task_id, attempt, outcome, will_retry, started_at, finished_at,"
        " created_at) VALUES ('a', 1, 'FAILED', 0, 1, 1, 1)"
    )
    user.execute("DELETE FROM taskmanager_tasks")
    assert user.execute("SELECT count(*) FROM taskmanager_task_attempts").fetchone() == (0,)


def test_views_show_instants_and_json_whatever_a_row_holds(user: Connection) -> None:
    """One odd row must not hide the others."""
    insert(user)
    user.execute(
        "UPDATE taskmanager_tasks SET sent_at = 1764500000123457, updated_at = 253402300799999999,"
        " enqueued_at = 9223372036854775807, tags = '{\"a\": \"b\"}', args = '[\"\\u0000\"]', kwargs = 'no JSON',"
        " result = repeat('[', 100000)"
    )
    query = "SELECT sent_at::text, updated_at::text, enqueued_at, tags, args, kwargs FROM taskmanager_pending"
    user.execute("SET timezone = 'UTC'; SET force_parallel_mode = on")
    assert user.execute(query).fetchall() == [
        ("2025-11-30 10:53:20.123457+00", "9999-12-31 23:59:59.999999+00", None, {"a": "b"}, '["\\u0000"]', "no JSON")
    ]
    assert user.execute("SELECT length(result #>> '{}') FROM taskmanager_pending").fetchall() == [(100000,)]


# How they come to be.


def test_migrate_only_reads_where_nothing_is_to_do(cluster: Cluster, session: Connection, name: str) -> None:
    """It needs no right but to read, and no lock: somebody may hold them all."""
    schema.migrate(session, name)
    session.execute(
        f"DROP ROLE IF EXISTS looker; CREATE ROLE looker LOGIN; GRANT USAGE ON SCHEMA {name} TO looker;"
        f" GRANT SELECT ON {name}.taskmanager_schema TO looker".encode()
    )
    with opened(cluster, name, "looker") as other, session.transaction():
        session.execute(f"SELECT pg_advisory_xact_lock({schema._lock(name)})".encode())
        session.execute("LOCK TABLE taskmanager_tasks IN ACCESS EXCLUSIVE MODE")
        schema.migrate(other, name)
        schema.check_version(other, name)
    session.execute("DROP OWNED BY looker; DROP ROLE looker")


def test_migrate_lets_programs_start_at_once(cluster: Cluster, session: Connection, name: str) -> None:
    """Each of them finds the whole schema, and each step was done once."""
    faults: list[Exception] = []
    together = threading.Barrier(4)

    def start() -> None:
        with opened(cluster, name) as connection:
            together.wait()
            try:
                schema.migrate(connection, name)
                schema.check_version(connection, name)
            except Exception as exc:
                faults.append(exc)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert faults == []
    assert schema.version(session, name) == parts.migrations()[-1].version


def test_migrate_does_steps_beside_living_instances(
    session: Connection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that adds harms nobody."""
    schema.migrate(session, name)
    register(session)
    steps_with(monkeypatch, "ALTER TABLE taskmanager_queues ADD COLUMN colour text;")
    schema.migrate(session, name)
    assert schema.version(session, name) == parts.migrations()[-1].version + 1
    session.execute("SELECT colour FROM taskmanager_queues")


def test_migrate_refuses_to_take_away_from_the_living(
    session: Connection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names who lives, and does nothing. Where nobody does, the step is done."""
    schema.migrate(session, name)
    register(session)
    steps_with(monkeypatch, "ALTER TABLE taskmanager_queues DROP COLUMN paused_at;")
    with pytest.raises(StoreError, match=r"in use by instance i \(process 7 on h\); stop these first"):
        schema.migrate(session, name)
    schema.migrate(session, name, lambda _: True)
    assert schema.version(session, name) == parts.migrations()[-1].version + 1


def test_migrate_lets_a_dropped_index_wait(session: Connection, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schema works with it, and steps behind are done."""
    schema.migrate(session, name)
    register(session)
    steps_with(
        monkeypatch,
        "-- outside a transaction\nDROP INDEX CONCURRENTLY taskmanager_tasks_cancel;",
        "ALTER TABLE taskmanager_queues ADD COLUMN colour text;",
    )
    schema.migrate(session, name)
    last = parts.migrations()[-1].version
    applied = session.execute("SELECT version FROM taskmanager_schema WHERE version > %s", (last,)).fetchall()
    assert applied == [(last + 2,)]
    schema.check_version(session, name)
    schema.migrate(session, name, lambda _: True)
    assert session.execute("SELECT to_regclass('taskmanager_tasks_cancel')").fetchone() == (None,)


def test_migrate_builds_an_index_again_that_was_left_invalid(
    session: Connection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CREATE INDEX CONCURRENTLY that was ended in the middle leaves one that nobody uses and everybody pays for."""
    schema.migrate(session, name)
    insert(session, "a")
    insert(session, "b")
    index = "UNIQUE INDEX CONCURRENTLY taskmanager_tasks_more ON taskmanager_tasks (queue_name)"
    with pytest.raises(errors.UniqueViolation):
        session.execute(f"CREATE {index}".encode())
    session.execute("DELETE FROM taskmanager_tasks WHERE id = 'b'")
    steps_with(monkeypatch, f"-- outside a transaction\nCREATE {index};")
    schema.migrate(session, name)
    valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = 'taskmanager_tasks_more'::regclass"
    assert session.execute(valid).fetchone() == (True,)
    assert schema.version(session, name) == parts.migrations()[-1].version + 1


def test_migrate_of_a_new_schema_waits_for_no_open_transaction(
    cluster: Cluster, session: Connection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CREATE INDEX CONCURRENTLY would. There is nobody yet who could be kept from writing."""
    monkeypatch.setattr(schema, "_INDEX_WAIT_S", 1)
    monkeypatch.setattr(schema, "ATTEMPTS", 1)
    steps_with(
        monkeypatch, "-- outside a transaction\nCREATE INDEX CONCURRENTLY taskmanager_more ON taskmanager_tasks (log);"
    )
    with opened(cluster, name) as other:
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM pg_class")
        schema.migrate(session, name)
    schema.check_version(session, name)


def test_migrate_waits_for_who_holds_a_table(
    cluster: Cluster, session: Connection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives up its place each second, so that nobody stands behind it for long. In the end it says what to do."""
    schema.migrate(session, name)
    steps_with(monkeypatch, "ALTER TABLE taskmanager_queues ADD COLUMN colour text;")
    monkeypatch.setattr(schema, "ATTEMPTS", 1)
    with opened(cluster, name) as other:
        with other.transaction():
            other.execute("SELECT * FROM taskmanager_queues")
            with pytest.raises(StoreUnavailable, match="end the transactions that are open"):
                schema.migrate(session, name)
        schema.migrate(session, name)
    assert schema.version(session, name) == parts.migrations()[-1].version + 1


def test_migrate_refuses_a_schema_of_a_newer_version(session: Connection, name: str) -> None:
    """It says what to do."""
    schema.migrate(session, name)
    session.execute("INSERT INTO taskmanager_schema VALUES (999, 'later', 1)")
    for use in (schema.migrate, schema.check_version):
        with pytest.raises(StoreError, match="has schema version 999.*upgrade taskmanager"):
            use(session, name)


@pytest.mark.skipif(find_pgbouncer() is None, reason="no pgbouncer is installed: apt install pgbouncer")
def test_migration_by_a_command_takes_the_direct_way(
    cluster: Cluster, session: Connection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step outside a transaction needs one session, and a pooler gives each of its statements another one."""
    schema.migrate(session, name)
    insert(session)
    steps_with(monkeypatch, "-- outside a transaction\nCREATE INDEX taskmanager_more ON taskmanager_tasks (sent_at);")
    pooler = PgBouncer(cluster)
    try:
        url = pooler.url(name)
        with pytest.raises(StoreError, match="needs a session of its own: add direct="), place_at(url).write():
            pass
        with pytest.raises(StoreUnavailable), place_at(f"{url}&direct=127.0.0.1:{free_port()}").write():
            pass
        with place_at(f"{url}&direct=127.0.0.1:{cluster.port}").write() as migrated:
            assert migrated.execute("SELECT max(version) FROM taskmanager_schema").fetchone() == (
                schema.migrations()[-1].version,
            )
    finally:
        pooler.destroy()


def test_migrate_names_the_script_where_a_right_is_missing(cluster: Cluster, session: Connection, name: str) -> None:
    """To make the schema, and to read it."""
    session.execute("DROP ROLE IF EXISTS nobody; CREATE ROLE nobody LOGIN")
    with opened(cluster, name, "nobody") as other:
        with pytest.raises(StoreError, match="taskmanager migrate --sql"):
            schema.migrate(other, name)
        schema.migrate(session, name)
        with pytest.raises(StoreError, match="taskmanager migrate --sql"):
            schema.migrate(other, name)
    session.execute("DROP ROLE nobody")


def test_migrate_goes_on_without_the_right_to_what_people_look_at(
    cluster: Cluster, session: Connection, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The library itself needs no view and no trigger. It says so, and starts."""
    schema.migrate(session, name)
    session.execute(
        f"DROP ROLE IF EXISTS app; CREATE ROLE app LOGIN; GRANT USAGE ON SCHEMA {name} TO app;"
        f" GRANT SELECT ON ALL TABLES IN SCHEMA {name} TO app; DROP VIEW taskmanager_history".encode()
    )
    with opened(cluster, name, "app") as other:
        schema.migrate(other, name)
        schema.check_version(other, name)
    assert "a right is missing to change the schema" in caplog.text
    session.execute("DROP OWNED BY app; DROP ROLE app")


# What another program has dropped.


def test_readers_name_what_was_dropped(session: Connection, name: str) -> None:
    """They make nothing, and say who does."""
    with pytest.raises(StoreError, match="has no tasks"):
        schema.check_version(session, name)
    schema.migrate(session, name)
    session.execute("DROP TABLE taskmanager_events; DROP INDEX taskmanager_tasks_owner; DROP VIEW taskmanager_pending")
    with pytest.raises(StoreError, match="has lost taskmanager_tasks_owner, taskmanager_events, taskmanager_events_na"):
        schema.check_version(session, name)


def test_migrate_makes_anew_what_was_dropped(session: Connection, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """With what depends on it, and no more."""
    schema.migrate(session, name)
    known = parts.parts_of(parts.migrations())
    for part in known.values():
        caplog.clear()
        insert(session)
        how = {"constraint": f"ALTER TABLE {part.table} DROP CONSTRAINT {part.name}"}
        how["trigger"] = f"DROP TRIGGER {part.name} ON {part.table}"
        session.execute(how.get(part.kind, f"DROP {part.kind} {part.name} CASCADE").encode())
        schema.migrate(session, name)
        assert look(session, name).missing(known) == []
        assert f"had lost {part.name}" in caplog.text
        gone = session.execute("DELETE FROM taskmanager_tasks").rowcount
        assert gone == (0 if part.name == "taskmanager_tasks" else 1)


def test_migrate_makes_anew_the_versions_that_were_dropped(session: Connection, name: str) -> None:
    """The parts that are there tell which steps were done. What belongs to lost tasks goes."""
    schema.migrate(session, name)
    insert(session)
    session.execute("INSERT INTO taskmanager_events (task_id, name, value, sent_at) VALUES ('a', 'e', '1', 1)")
    session.execute("DROP TABLE taskmanager_schema, taskmanager_tasks CASCADE")
    with pytest.raises(StoreError, match="has lost taskmanager_tasks, .*the rows of taskmanager_schema"):
        schema.check_version(session, name)
    schema.migrate(session, name)
    schema.check_version(session, name)
    assert session.execute("SELECT count(*) FROM taskmanager_events").fetchone() == (0,)
    assert session.execute("SELECT max(version), count(*) FROM taskmanager_schema").fetchone() == (
        parts.migrations()[-1].version,
        len(parts.migrations()),
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("ALTER TABLE taskmanager_queues DROP COLUMN paused_at", "taskmanager_queues lacks paused_at"),
        ("DROP TABLE taskmanager_queues; CREATE VIEW taskmanager_queues AS SELECT 1", "is not the table that it was"),
    ],
)
def test_migrate_refuses_what_another_program_has_changed(
    session: Connection, name: str, change: str, told: str
) -> None:
    """It cannot know what was meant."""
    schema.migrate(session, name)
    session.execute(change.encode())
    for use in (schema.migrate, schema.check_version):
        with pytest.raises(StoreError, match=told):
            use(session, name)


# For a DBA.


def psql(cluster: Cluster, file: Path) -> None:
    where = ("-h", str(cluster.folder), "-p", str(cluster.port), "-U", "postgres", "-d", "postgres")
    subprocess.run(["psql", "--no-psqlrc", "-q", *where, "-f", str(file)], check=True, capture_output=True, text=True)


def test_script_does_what_is_not_done(
    cluster: Cluster, session: Connection, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A DBA may run it once more, and after an upgrade. The application then needs no right to change anything."""
    file = tmp_path / "script.sql"
    index = "CREATE INDEX CONCURRENTLY IF NOT EXISTS taskmanager_more ON taskmanager_tasks (log);"
    for steps in ([], [], [f"-- outside a transaction\n{index}"]):
        steps_with(monkeypatch, *steps)
        file.write_text(schema.script(name))
        psql(cluster, file)
        schema.check_version(session, name)
        assert schema.version(session, name) == schema.migrations()[-1].version
    session.execute("DROP ROLE IF EXISTS app; DROP ROLE IF EXISTS sender; DROP ROLE IF EXISTS reader")
    session.execute("CREATE ROLE app LOGIN; CREATE ROLE sender LOGIN; CREATE ROLE reader LOGIN")
    grants = [line[3:].strip() for line in file.read_text().splitlines() if line.startswith("--     ")]
    session.execute("".join(line for line in grants if line.endswith(";")).encode())
    with opened(cluster, name, "app") as app, opened(cluster, name, "sender") as sender:
        schema.migrate(app, name)
        register(app)
        insert(sender, "a")
        with pytest.raises(errors.InsufficientPrivilege):
            sender.execute("SELECT id FROM taskmanager_tasks")
        app.execute("INSERT INTO taskmanager_events (task_id, name, value, sent_at) VALUES ('a', 'e', '1', 1)")
        app.execute("DELETE FROM taskmanager_tasks")
    with opened(cluster, name, "reader") as reader:
        assert reader.execute("SELECT tags FROM taskmanager_pending").fetchall() == []
    session.execute("DROP OWNED BY app, sender, reader; DROP ROLE app, sender, reader")


# Whom the rows tell.


@pytest.mark.req("DS-102", "DS-103", "DS-106")
def test_new_rows_of_others_are_told(user: Connection, whole: str, listener: Connection) -> None:
    """On the channel of all and on that of the queue; an ended row is told to nobody."""
    listener.execute("LISTEN task_new; LISTEN task_done; LISTEN \"task_queue_Mail 'x'\"")
    insert(user, "a", "Mail 'x'")
    insert(user, "b", "Mail 'x'", "COMPLETED")
    assert heard(listener) == [("task_new", f"{whole}:a"), ("task_queue_Mail 'x'", f"{whole}:a")]


@pytest.mark.req("DS-104", "DS-105")
@pytest.mark.parametrize("status", ["COMPLETED", "FAILED", "CANCELLED", "EXPIRED", "INTERRUPTED"])
def test_ends_are_told_once(user: Connection, whole: str, listener: Connection, status: str) -> None:
    """An update that leaves the status alone is told to nobody."""
    insert(user)
    listener.execute("LISTEN task_new; LISTEN task_done")
    ended = (
        f"UPDATE taskmanager_tasks SET status = '{status}', completed_at = {'1' if status == 'COMPLETED' else 'NULL'}"
    )
    user.execute("UPDATE taskmanager_tasks SET progress = '1'")
    user.execute("UPDATE taskmanager_tasks SET status = 'RUNNING', started_at = 1, start_count = 1,"
                    " claimed_by_worker_id = 'w'")  # fmt: skip
    user.execute(ended.encode())
    user.execute(ended.encode())
    user.execute("UPDATE taskmanager_tasks SET progress = '2'")
    assert heard(listener) == [("task_done", f"{whole}:a")]


@pytest.mark.req("DS-107")
def test_rows_are_told_on_commit_each_by_itself(user: Connection, whole: str, listener: Connection) -> None:
    """Who hears of a row can read it. What is rolled back is told to nobody, and a claim is no end."""
    listener.execute("LISTEN task_new; LISTEN task_done")
    with user.transaction():
        for task_id in ("a", "b"):
            insert(user, task_id)
        with user.transaction(force_rollback=True):
            insert(user, "c")
        user.execute("UPDATE taskmanager_tasks SET status = 'CLAIMED', claimed = 1, claimed_by_worker_id = 'w'")
        user.execute("UPDATE taskmanager_tasks SET status = 'CANCELLED', claimed = 0 WHERE id = 'b'")
        assert heard(listener) == []
    assert heard(listener) == [("task_new", f"{whole}:a"), ("task_new", f"{whole}:b"), ("task_done", f"{whole}:b")]
    user.execute("INSERT INTO taskmanager_tasks SELECT * FROM taskmanager_tasks ON CONFLICT DO NOTHING")
    user.execute("UPDATE taskmanager_tasks SET status = status, updated_at = 2")
    user.execute("DELETE FROM taskmanager_tasks")
    assert heard(listener) == []


@pytest.mark.parametrize("usage", [0.89, 0.9, 1.0])
def test_full_queue_of_notices_fails_no_insert(
    user: Connection, whole: str, listener: Connection, usage: float
) -> None:
    """The commit of a transaction that notifies would fail then. Only how full it is is pretended here."""
    listener.execute("LISTEN task_new")
    user.execute(f"""
        CREATE SCHEMA {whole}_usage;
        CREATE FUNCTION {whole}_usage.pg_notification_queue_usage() RETURNS float8 LANGUAGE sql AS 'SELECT {usage}';
        ALTER FUNCTION taskmanager_notify() SET search_path = {whole}_usage, pg_catalog, pg_temp
    """.encode())  # fmt: skip
    insert(user)
    user.execute(f"""
        ALTER FUNCTION taskmanager_notify() SET search_path = pg_catalog, pg_temp; DROP SCHEMA {whole}_usage CASCADE
    """.encode())  # fmt: skip
    assert user.execute("SELECT id FROM taskmanager_pending").fetchall() == [("a",)]
    assert heard(listener) == ([("task_new", f"{whole}:a")] if usage < 0.9 else [])


@pytest.fixture
def sender(cluster: Cluster) -> Iterator[str]:
    """A role without the right to notify, which is taken from everybody meanwhile."""
    cluster.psql("CREATE ROLE sender LOGIN; REVOKE EXECUTE ON FUNCTION pg_notify(text, text) FROM PUBLIC")
    yield "sender"
    cluster.psql("GRANT EXECUTE ON FUNCTION pg_notify(text, text) TO PUBLIC; DROP OWNED BY sender; DROP ROLE sender")


@pytest.mark.parametrize("way", ["start", "script"])
def test_missing_right_to_notify_fails_no_insert(
    cluster: Cluster, session: Connection, name: str, listener: Connection, sender: str, way: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Such rows are found by polling. The schema learns that beside instances of the version before."""
    own = parts.migrations()
    with monkeypatch.context() as before:
        before.setattr(schema, "migrations", lambda: own[:3])
        schema.migrate(session, name)
    register(session)
    session.execute(f"GRANT USAGE ON SCHEMA {name} TO sender; GRANT INSERT ON taskmanager_tasks TO sender".encode())
    listener.execute("LISTEN task_new")
    with opened(cluster, name, sender) as other:
        with pytest.raises(errors.InsufficientPrivilege, match="pg_notify"):
            insert(other, "a")
        if way == "start":
            schema.migrate(session, name)
        else:
            file = tmp_path / "script.sql"
            file.write_text(schema.script(name))
            psql(cluster, file)
        insert(other, "b")
        assert heard(listener) == []
        session.execute("GRANT EXECUTE ON FUNCTION pg_notify(text, text) TO sender")
        insert(other, "c")
    assert heard(listener) == [("task_new", f"{name}:c")]
    assert session.execute("SELECT id FROM taskmanager_pending ORDER BY id").fetchall() == [("b",), ("c",)]


def test_silent_transactions_tell_nobody(user: Connection, whole: str, listener: Connection) -> None:
    """Those of the library, which tell behind their commit. The next transaction is heard again."""
    listener.execute("LISTEN task_new; LISTEN task_done")
    with user.transaction():
        user.execute("SET LOCAL taskmanager.silent = 'on'")
        insert(user, "a")
        user.execute("UPDATE taskmanager_tasks SET status = 'COMPLETED', completed_at = 1")
    insert(user, "b")
    assert heard(listener) == [("task_new", f"{whole}:b")]


@pytest.mark.parametrize("queue", ["", "é" * 26, "é" * 27, "x" * 52, "x" * 53, "x" * 100, '"', "Ü" * 100, "a\nb"])
def test_odd_queue_names_fail_no_insert(user: Connection, whole: str, listener: Connection, queue: str) -> None:
    """The channel of a long one is named by its hash, as programs can name it too."""
    channel = schema.channel_of(queue)
    listener.execute(f"LISTEN {schema.quoted(channel)}".encode())
    insert(user, "a", queue)
    assert heard(listener) == [(channel, f"{whole}:a")]


def test_long_ids_fail_no_insert(user: Connection, whole: str, listener: Connection) -> None:
    """A payload has a limit. The row is told without its id."""
    listener.execute("LISTEN task_new")
    for size in (7_500, 7_501):
        insert(user, "x" * size)
    assert heard(listener) == [("task_new", f"{whole}:" + "x" * 7_500), ("task_new", f"{whole}:")]


def test_prepared_transactions_are_possible_in_silence(user: Connection, whole: str) -> None:
    """PostgreSQL prepares no transaction that has notified, and rolls it back."""
    user.execute("BEGIN")
    insert(user, "b")
    with pytest.raises(errors.FeatureNotSupported, match="NOTIFY"):
        user.execute(f"PREPARE TRANSACTION '{whole}'".encode())
    user.execute("BEGIN; SET LOCAL taskmanager.silent = 'on'")
    insert(user)
    user.execute(f"PREPARE TRANSACTION '{whole}'".encode())
    user.execute(f"COMMIT PREPARED '{whole}'".encode())
    assert user.execute("SELECT id FROM taskmanager_pending").fetchall() == [("a",)]


def test_functions_have_a_fixed_search_path(user: Connection, whole: str) -> None:
    """Or a body that was resolved when it was made. Nobody can put another function or operator before theirs."""
    loose = user.execute(
        "SELECT proname FROM pg_proc WHERE pronamespace = %s::regnamespace AND prosqlbody IS NULL"
        " AND NOT coalesce(proconfig @> ARRAY['search_path=pg_catalog, pg_temp'], false)",
        (whole,),
    ).fetchall()
    assert loose == []
