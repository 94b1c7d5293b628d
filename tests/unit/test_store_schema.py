"""What another program has dropped of our tables, views and indexes is made anew, or named with its cure."""

import logging
import re
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest

from taskmanager import TaskManager
from taskmanager.model.errors import StoreError
from taskmanager.store import memory
from taskmanager.store.sqlite import schema
from taskmanager.store.sqlite.schema import (
    NEWEST,
    Migration,
    check_version,
    least_version,
    migrate,
    migrations,
    shape,
)
from taskmanager.store.sqlite.session import SqliteSession
from tests.sessions import connect
from tests.unit.cli.documents import DiagnosisDocument
from tests.unit.command_line import taskmanager

Parts = dict[str, str]


@cache
def _image() -> bytes:
    with closing(connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, "tasks.db")
        connection.execute("CREATE TABLE users (id INTEGER PRIMARY KEY)")
        fill(connection)
        return connection.serialize()


def whole() -> SqliteSession:
    """A fresh database in memory, with a task and its attempt, and what another program keeps there."""
    connection = connect(":memory:", isolation_level=None)
    connection.deserialize(_image())
    return connection


def fill(connection: SqliteSession) -> None:
    connection.execute(
        "INSERT INTO taskmanager_tasks (id, task_name, queue_name, priority, status, sent_at, enqueued_at, created_at,"
        " updated_at) VALUES ('t', 'job', 'default', 50, 'PENDING', 1, 1, 1, 1)"
    )
    connection.execute(
        "INSERT INTO taskmanager_task_attempts (task_id, attempt, outcome, will_retry, started_at, finished_at,"
        " created_at) VALUES ('t', 1, 'FAILED', 1, 1, 1, 1)"
    )


def parts(connection: SqliteSession) -> dict[str, tuple[str, str]]:
    """Kind and definition of all that was made by a statement, by name."""
    rows = connection.execute("SELECT name, type, sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {name: (kind, " ".join(sql.replace("IF NOT EXISTS ", "").split())) for name, kind, sql in rows}


def drop(connection: SqliteSession, kind: str, name: str) -> None:
    """As another program does it: foreign keys are off, unless somebody has asked for them."""
    connection.execute(f"DROP {kind} IF EXISTS {name}")


with closing(whole()) as _connection:
    WHOLE = parts(_connection)
OURS = {name: kind for name, (kind, _) in WHOLE.items() if name != "users"}


def subsets() -> Iterator[tuple[str, ...]]:
    """All of one and of two parts, all of one kind, and the complements of those."""
    for size in (1, 2):
        yield from combinations(OURS, size)
    for kind in ("table", "index", "view"):
        yield tuple(name for name in OURS if OURS[name] == kind)
    for name in OURS:
        yield tuple(other for other in OURS if other != name)
    yield tuple(OURS)


def test_a_dropped_part_is_made_anew_and_the_rest_is_kept() -> None:
    """A file that lacks something is the same as a fresh one after a start. What a table held stays with it, and
    attempts go with their tasks.
    """
    for names in subsets():
        with closing(whole()) as connection:
            for name in names:
                drop(connection, OURS[name], name)
            migrate(connection, "tasks.db")
            assert parts(connection) == WHOLE, names
            assert shape(connection) == NEWEST, names
            check_version(connection, "tasks.db")
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == [], names
            has_tasks = "taskmanager_tasks" not in names
            has_attempts = has_tasks and "taskmanager_task_attempts" not in names
            assert connection.execute("SELECT count(*) FROM taskmanager_tasks").fetchone() == (has_tasks,), names
            assert connection.execute("SELECT count(*) FROM taskmanager_task_attempts").fetchone() == (has_attempts,)
            if not has_tasks:
                fill(connection)


def test_shape_of_newest_schema_is_stated() -> None:
    """A start that finds it looks no further. So it is that of a file to which all steps were applied."""
    with closing(connect(":memory:", isolation_level=None)) as connection:
        assert shape(connection) == ""
        for step in migrations():
            assert shape(connection) != NEWEST
            schema._apply(connection, step)
        assert shape(connection) == NEWEST


@pytest.mark.parametrize(
    "change",
    [
        *(f"DROP {kind} {name}" for name, kind in OURS.items()),
        *(f"DELETE FROM taskmanager_schema WHERE version = {step.version}" for step in migrations()),
        "ALTER TABLE taskmanager_queues RENAME COLUMN paused_at TO halted_at",
        "ALTER TABLE taskmanager_queues ADD COLUMN more TEXT",
        "CREATE TABLE taskmanager_more (id INTEGER)",
    ],
)
def test_shape_tells_every_change_of_the_schema(change: str) -> None:
    """Then a start compares part by part, and makes anew what is missing."""
    with closing(whole()) as connection:
        assert shape(connection) == NEWEST
        connection.execute(change)
        assert shape(connection) != NEWEST


def test_lost_rows_of_the_versions_are_found_out_from_what_is_there() -> None:
    """The version is what the tables and views say, not only what the rows say."""
    for condition in ("version = 1", "version = 2", "version > 0"):
        with closing(whole()) as connection:
            connection.execute(f"DELETE FROM taskmanager_schema WHERE {condition}")
            migrate(connection, "tasks.db")
            assert parts(connection) == WHOLE
            assert schema.version(connection) == migrations()[-1].version
            assert connection.execute("SELECT count(*) FROM taskmanager_tasks").fetchone() == (1,)


FIRST_RELEASE = 2
"""The version of files that the first release writes."""
RELEASED = ["tables", "views", "claims_by_queue", "drop_queue_index"]
"""Files have these steps, in this order. New ones come behind them."""
LAST_WITH_LISTS = 8
"""The version up to which CHECKs had lists."""
RENAMES = Migration(99, "renames", "ALTER TABLE taskmanager_queues RENAME COLUMN paused_at TO halted_at;\n")
DROPS_INDEX = Migration(98, "drops", "-- not used\nDROP INDEX taskmanager_tasks_claimed;\n")
ADDS = Migration(99, "adds", "CREATE INDEX taskmanager_queues_paused ON taskmanager_queues (paused_at);\n")


def in_use(
    monkeypatch: pytest.MonkeyPatch, number: int, steps: Sequence[Migration] = tuple(migrations())
) -> SqliteSession:
    """A file of this version, in which two instances are registered."""
    connection = connect(":memory:", isolation_level=None)
    with monkeypatch.context() as patched:
        patched.setattr(schema, "migrations", lambda: [step for step in steps if step.version <= number])
        migrate(connection, "tasks.db")
    insert = "INSERT INTO taskmanager_instances VALUES (?, NULL, 'web-1', ?, 'main', NULL, ?, NULL, NULL, 1)"
    connection.executemany(insert, [("lives", 11, 1), ("died", 22, 2)])
    return connection


def test_a_file_in_use_is_only_added_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older instance that uses the file finds all that its statements name. What is only in the way goes later."""
    with closing(in_use(monkeypatch, FIRST_RELEASE)) as connection:
        before = parts(connection)
        for _ in range(2):
            migrate(connection, "tasks.db", lambda each: each == "died")
            assert before.items() <= parts(connection).items()
            check_version(connection, "tasks.db")
            assert schema.version(connection) == least_version() > FIRST_RELEASE
        migrate(connection, "tasks.db", lambda each: True)
        assert parts(connection) == {name: part for name, part in WHOLE.items() if name != "users"}


def test_a_dropped_index_waits_and_what_is_added_behind_it_does_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of the file is called lost, in whatever order the two are applied."""
    known = migrations()
    with closing(in_use(monkeypatch, known[-1].version)) as connection:
        monkeypatch.setattr(schema, "migrations", lambda: [*known, DROPS_INDEX, ADDS])
        monkeypatch.setattr(schema, "NEWEST", "that of the last step")
        for is_last, has_index in ((False, True), (False, True), (True, False)):
            migrate(connection, "tasks.db", lambda each, all_died=is_last: all_died or each == "died")
            assert "taskmanager_queues_paused" in parts(connection)
            assert ("taskmanager_tasks_claimed" in parts(connection)) is has_index
            check_version(connection, "tasks.db")
            assert (DROPS_INDEX.version in schema._applied(connection)) is is_last
            assert schema.version(connection) == ADDS.version
    assert caplog.records == []


@pytest.mark.parametrize("number", range(FIRST_RELEASE, migrations()[-1].version))
def test_a_file_of_every_earlier_version_is_brought_up_in_silence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    """A step is never put before one that files have already: what it makes would count as lost."""
    with closing(in_use(monkeypatch, number)) as connection:
        assert schema.version(connection) == number
        migrate(connection, "tasks.db", lambda _: True)
        assert shape(connection) == NEWEST
    assert caplog.records == []
    assert [step.name for step in migrations()][: len(RELEASED)] == RELEASED


COMPARISONS = r"\b(\w+) = '\w+'(?:\s+OR\s+\1 = '\w+'){2,}"
LIST = r"\bIN \((?:'\w+', ){2,}'\w+'\)"


def listed(step: Migration) -> Migration:
    """The step as earlier releases had it: with lists where its tables compare."""

    def as_list(found: re.Match[str]) -> str:
        texts = re.findall(r"'\w+'", found[0])
        return f"{found[1]} IN ({', '.join(texts)})"

    return step._replace(script=re.sub(COMPARISONS, as_list, step.script))


def test_no_condition_of_a_row_is_a_list_of_three_or_more() -> None:
    """SQLite makes a table of such a list for each row that it writes, which takes longer than to write the row."""
    conditions = [sql for kind, sql in WHOLE.values() if kind in ("table", "index")] + [memory._BY_END]
    assert [sql for sql in conditions if re.search(LIST, sql)] == []


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteSession]:
    """A file with lists in its CHECKs, with a task in it."""
    connection = in_use(monkeypatch, LAST_WITH_LISTS, [listed(step) for step in migrations()])
    fill(connection)
    assert sum(re.search(LIST, sql) is not None for kind, sql in parts(connection).values() if kind == "table") == 4
    with closing(connection):
        yield connection


def refuses_what_a_list_refuses(connection: SqliteSession) -> None:
    for table, change in (("tasks", "status = 'LOST'"), ("task_attempts", "outcome = 'EXPIRED'")):
        with pytest.raises(sqlite3.IntegrityError, match="CHECK constraint failed"):
            connection.execute(f"UPDATE taskmanager_{table} SET {change}")
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_the_lists_of_an_older_file_become_comparisons(older: SqliteSession) -> None:
    """Its rows stay where they are, and the file is no different from a fresh one then."""
    migrate(older, "tasks.db", lambda _: True)
    assert shape(older) == NEWEST
    assert older.execute("SELECT count(*) FROM taskmanager_tasks").fetchone() == (1,)
    refuses_what_a_list_refuses(older)


def test_an_older_instance_that_starts_meanwhile_finds_its_indexes(older: SqliteSession) -> None:
    """To build the new ones takes seconds in a large file, and until then that has the version of the older."""
    before = {name for name, (kind, _) in parts(older).items() if kind == "index"}
    migrate(older, "tasks.db", lambda _: schema.version(older) == LAST_WITH_LISTS)
    assert before < parts(older).keys()
    check_version(older, "tasks.db")
    migrate(older, "tasks.db", lambda _: True)
    assert shape(older) == NEWEST


def test_a_table_that_another_program_has_extended_keeps_its_text(older: SqliteSession) -> None:
    """To write the text of ours over it would take away its column."""
    older.execute("ALTER TABLE taskmanager_tasks ADD COLUMN theirs TEXT DEFAULT 'x'")
    migrate(older, "tasks.db", lambda _: True)
    assert older.execute("SELECT theirs FROM taskmanager_tasks").fetchone() == ("x",)
    assert {name for name, (_, sql) in parts(older).items() if re.search(LIST, sql)} >= {"taskmanager_tasks"}
    assert not re.search(LIST, parts(older)["taskmanager_task_attempts"][1])
    refuses_what_a_list_refuses(older)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="cannot tell SQLite to forbid it")
def test_an_older_file_keeps_its_lists_where_sqlite_forbids_the_change(older: SqliteSession) -> None:
    """As the SQLite of macOS does. The file is used as it is."""
    before = parts(older)
    older.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
    migrate(older, "tasks.db", lambda _: True)
    assert all(parts(older)[name] == part for name, part in before.items() if part[0] == "table")
    assert schema.version(older) == migrations()[-1].version
    check_version(older, "tasks.db")
    refuses_what_a_list_refuses(older)


def test_a_step_that_takes_away_is_refused_while_an_instance_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next statement would fail. The error says who it is, and what to do."""
    known = migrations()
    with closing(in_use(monkeypatch, known[-1].version)) as connection:
        monkeypatch.setattr(schema, "migrations", lambda: [*known, RENAMES])
        monkeypatch.setattr(schema, "NEWEST", "that of the last step")
        before = parts(connection)
        for _ in range(2):
            with pytest.raises(StoreError, match=r"in use by instance lives \(process 11 on web-1\); stop these first"):
                migrate(connection, "tasks.db", lambda each: each == "died")
            assert parts(connection) == before
        migrate(connection, "tasks.db", lambda each: True)
        assert schema.version(connection) == 99


CHANGES = {
    "ALTER TABLE taskmanager_tasks RENAME COLUMN log TO notes": "taskmanager_tasks lacks log",
    "DROP VIEW taskmanager_pending; CREATE TABLE taskmanager_pending (x)": "taskmanager_pending is not the view",
    "DROP TABLE taskmanager_queues; CREATE VIEW taskmanager_queues AS SELECT 1": "taskmanager_queues is not the table",
    "DROP INDEX taskmanager_tasks_free; CREATE INDEX taskmanager_tasks_free ON users (id)": "is not the index",
    "DROP TABLE taskmanager_schema; CREATE TABLE taskmanager_schema (version INTEGER)": "lacks applied_at, name",
    "DROP TABLE taskmanager_schema; CREATE VIEW taskmanager_schema AS SELECT 2 AS version": "is not the table",
    "DROP TABLE taskmanager_schema; ALTER TABLE taskmanager_queues DROP COLUMN paused_at": "lacks paused_at",
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_table_is_refused_by_name_and_doctor_finds_it(tmp_path: Path, change: str) -> None:
    """Nothing of another shape is taken for ours, or dropped by us. Start and doctor say the same."""
    database = tmp_path / "tasks.db"
    with closing(connect(database, isolation_level=None)) as connection:
        migrate(connection, str(database))
        connection.execute("CREATE TABLE users (id INTEGER PRIMARY KEY)")
        connection.executescript(change)
        before = parts(connection)
        with pytest.raises(StoreError, match=CHANGES[change]) as refused:
            migrate(connection, str(database))
        assert parts(connection) == before
    database.chmod(0o600)
    document = taskmanager("doctor", "--db", database, "--json").document(DiagnosisDocument)
    assert [check.found for check in document.checks if not check.ok] == [str(refused.value)]


@pytest.mark.parametrize("name", OURS)
def test_doctor_names_what_is_missing_and_a_start_mends_it(tmp_path: Path, name: str) -> None:
    """Whoever is sent to doctor by a command learns there what to do, and it helps."""
    database = tmp_path / "tasks.db"
    with closing(connect(database, isolation_level=None)) as connection:
        migrate(connection, str(database))
        drop(connection, OURS[name], name)
        database.chmod(0o600)
        document = taskmanager("doctor", "--db", database, "--json").document(DiagnosisDocument)
        (bad,) = (check for check in document.checks if not check.ok)
        assert name in bad.found
        assert "restart the application" in f"{bad.found} {bad.advice}"
        migrate(connection, str(database))
    assert taskmanager("doctor", "--db", database).code == 0


@pytest.mark.anyio
async def test_tables_dropped_and_views_kept_is_no_end_of_all_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """So does alembic's autogenerate in a database that is shared. What is lost is said, with a way not to lose it."""
    database = tmp_path / "app.db"

    async def job() -> int:
        return 1

    async with TaskManager(database) as first:
        await first.task(persist=True, name="job")(job).enqueue()
    with closing(connect(database)) as connection, connection:
        for name in (each for each in OURS if OURS[each] == "table"):
            drop(connection, "TABLE", name)
    manager = TaskManager(database)
    again = manager.task(persist=True, name="job")(job)
    with caplog.at_level(logging.WARNING, "taskmanager"):
        async with manager:
            assert await again.enqueue() == 1
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(said) == 1
    assert "had lost taskmanager_tasks, " in said[0]
    assert "alembic" in said[0]


def test_a_file_without_anything_of_ours_is_not_blamed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A new file, or one that only the application has used so far."""
    with closing(connect(tmp_path / "app.db", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE users (id INTEGER PRIMARY KEY)")
        with pytest.raises(StoreError, match="without tasks"):
            check_version(connection, "app.db")
        migrate(connection, "app.db")
        assert parts(connection) == WHOLE
    assert caplog.records == []
