"""What only the SQLite store can get wrong: files, schemas, locks, plans, forks, exits."""

import asyncio
import os
import re
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.model.record import AttemptRow, TaskRow, TaskWrite
from taskmanager.model.states import AttemptOutcome, TaskStatus
from taskmanager.rules.claims import Room, Starting
from taskmanager.store.protocol import ClaimRequest, CommitReport, TaskFilter
from taskmanager.store.sql import claims, queries, statements
from taskmanager.store.sqlite import SqliteStore, connection, schema, session, wal
from taskmanager.store.sqlite.session import SqliteSession
from taskmanager.store.sqlite.wal import WalLimits
from taskmanager.store.watch_protocol import Whereabouts
from tests.contract.rows import FREE_ROW
from tests.sessions import connect

pytestmark = pytest.mark.anyio
# ruff: noqa: ASYNC240  # a test has its loop to itself

NEWER_SQL = re.compile(
    r"->>|-> ?['0-9]"  # 3.38
    r"|\b(unixepoch|unhex|octet_length|timediff|string_agg|concat|concat_ws|jsonb\w*|json_pretty)\("  # 3.38 to 3.46
    r"|IS (NOT )?DISTINCT FROM|\b(RIGHT|FULL) (OUTER )?JOIN\b|'(subsec|auto)'",  # 3.39 to 3.42
)
"""What SQLite has learned to read since the oldest version that is supported."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


def task(task_id: str = "t1", **changes: Any) -> TaskRow:
    row = FREE_ROW._replace(task_id=task_id, sent_at=1, enqueued_at=1, created_at=1, updated_at=1)
    return row._replace(**changes)


@contextmanager
def plain(path: Path) -> Iterator[SqliteSession]:
    """Somebody else's connection to the same file."""
    with closing(connect(path, isolation_level=None, timeout=0)) as other:
        yield other


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with plain(path) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def shape(path: Path) -> list[tuple[str, str]]:
    with plain(path) as other:
        return other.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name").fetchall()


async def created(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    await store.close()


@pytest.mark.req("DS-s7")
async def test_a_fresh_file_equals_one_migrated_step_by_step(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever upgrades gets the schema that newcomers get."""
    await created(path)
    steps = schema.migrations()
    stepwise = path.with_name("stepwise.db")
    for count in range(1, len(steps) + 1):
        monkeypatch.setattr(schema, "migrations", lambda count=count: steps[:count])
        await created(stepwise)
    assert shape(stepwise) == shape(path)
    with plain(path) as other:
        versions = [version for (version,) in other.execute("SELECT version FROM taskmanager_schema")]
    assert versions == [step.version for step in steps] == list(range(1, len(steps) + 1))


async def test_a_migration_that_fails_leaves_no_trace(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One step, one transaction: a file is never between two versions."""
    broken = schema.Migration(1, "broken", "CREATE TABLE half (id INTEGER);\nCREATE TABLE half (id INTEGER);\n")
    monkeypatch.setattr(schema, "migrations", lambda: [broken])
    with pytest.raises(StoreError):
        await created(path)
    assert shape(path) == []


async def test_an_installation_without_the_files_of_the_schema_says_so(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever freezes a program into an executable takes the modules along, and easily forgets what is no module."""
    monkeypatch.setattr("importlib.resources.files", lambda _: path.parent)
    schema.migrations.cache_clear()
    with pytest.raises(StoreError, match="not installed: there is no .*migrations.*--collect-data taskmanager"):
        await created(path)


async def test_a_newer_file_is_refused(path: Path) -> None:
    """An old program must not write into a schema it does not know."""
    await created(path)
    with plain(path) as other:
        other.execute("INSERT INTO taskmanager_schema VALUES (999, 'future', 0)")
    with pytest.raises(StoreError, match=r"schema version 999.*upgrade taskmanager") as caught:
        await created(path)
    assert not isinstance(caught.value, StoreUnavailable)


async def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    """It may be somebody's letter."""
    text = "Dear Sir or Madam, " * 100
    path.write_text(text)
    with pytest.raises(StoreError, match="not a database; choose another path"):
        await created(path)
    assert path.read_text() == text


async def test_a_damaged_file_is_refused(path: Path) -> None:
    """With a message that names a way out."""
    await created(path)
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 4_000)
    with pytest.raises(StoreError, match=r"recover|not a database"):
        await created(path)


async def test_a_missing_directory_is_named(path: Path) -> None:
    """The message says which one, and to create it."""
    with pytest.raises(StoreUnavailable, match=re.escape(f"the directory {path.parent / 'no'} does not exist")):
        await created(path.parent / "no" / "tasks.db")
    with pytest.raises(StoreUnavailable, match="`~` is not expanded"):
        await created(path.parent / "~" / "tasks.db")
    with pytest.raises(StoreError, match="is a directory"):
        await created(path.parent)
    with pytest.raises(StoreError, match="is a directory"):
        await created(Path("/"))


def test_a_lack_of_descriptors_is_not_reported_as_a_lack_of_permission(path: Path) -> None:
    """Whoever follows the words must get out of it."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(StoreUnavailable, match="too many files are open; raise the limit"):
            connection.create_private(path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has none of these in its folders")
async def test_a_database_that_is_no_regular_file_is_named(path: Path) -> None:
    """SQLite says of a pipe that the disk has an error, and of a link that leads to itself Python's own words come."""
    pipe, loop = path.with_name("pipe"), path.with_name("loop")
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    for each in (pipe, Path(os.devnull)):
        with pytest.raises(StoreError, match="a device, a pipe or a socket; give the path of a file"):
            await created(each)
    with pytest.raises(StoreError, match="leads to itself|cannot be read"):
        await created(loop)


async def test_a_failed_connection_leaves_no_thread_that_calls_a_closed_loop(path: Path) -> None:
    """Python would print two tracebacks of it beside the one line that says what is wrong."""
    before = set(threading.enumerate())
    with pytest.raises(StoreUnavailable, match="unable to open"):
        await connection.connect(str(path.parent / "no" / "tasks.db"), connection.configure_reader)
    assert set(threading.enumerate()) <= before


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read and write everything")
@pytest.mark.parametrize(("mode", "words"), [(0o400, "read-only"), (0o200, "cannot be read")])
async def test_a_file_without_permission_says_so(path: Path, mode: int, words: str) -> None:
    """Which of the two is missing."""
    await created(path)
    path.chmod(mode)
    with pytest.raises(StoreUnavailable, match=words):
        await created(path)


async def test_an_old_sqlite_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """STRICT tables need 3.37; the message says where a newer one comes from."""
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))
    with pytest.raises(StoreError, match=r"3\.37 is needed"):
        await created(path)


def test_no_statement_needs_a_newer_sqlite_than_the_oldest_that_is_supported() -> None:
    """The one on a developer's machine takes them all; on 3.37 a task would be refused when it is saved.

    What is PostgreSQL's is named so.
    """
    root = Path(__file__).parents[2]
    files = [
        each
        for pattern in ("taskmanager/**/*.py", "taskmanager/**/*.sql", "docs/*.md", "tests/**/*.py")
        for each in root.glob(pattern)
        if "postgres" not in str(each.relative_to(root))
    ]
    assert len(files) > 200
    assert not [
        f"{each.relative_to(root)}: {found.group()}"
        for each in files
        if each != Path(__file__) and "postgres" not in str(each.relative_to(root))
        for found in NEWER_SQL.finditer(each.read_text("utf-8"))
    ]
    assert NEWER_SQL.search("SELECT args ->> 0")


async def test_a_closed_store_says_what_to_do(path: Path) -> None:
    """Before open() and after close()."""
    store = SqliteStore(path)
    with pytest.raises(StoreUnavailable, match="is not open"):
        await store.fetch("t1")
    with pytest.raises(StoreUnavailable, match="is not open"):
        await store.commit([TaskWrite(task(), None)])


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX")
async def test_only_the_user_can_read_the_files(path: Path) -> None:
    """The file and its side files are 0600, whatever the umask allows."""
    before = os.umask(0)
    try:
        store = SqliteStore(path)
        await store.open()
        await store.commit([TaskWrite(task(), None)])
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
        await store.close()
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("tasks.db", "tasks.db-wal", "tasks.db-shm"), 0o600)


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX")
async def test_the_mode_of_an_existing_file_is_the_users_business(path: Path) -> None:
    """Somebody may have shared it with a group on purpose."""
    path.touch()
    path.chmod(0o660)
    await created(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


async def test_a_new_file_can_give_space_back(path: Path) -> None:
    """auto_vacuum=INCREMENTAL works only if it is set before anything else; WAL is on."""
    await created(path)
    with plain(path) as other:
        assert other.execute("PRAGMA auto_vacuum").fetchone() == (2,)
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize(("synchronous", "level"), [("full", 2), ("normal", 1)])
async def test_pragmas_of_the_two_connections(path: Path, synchronous: connection.Synchronous, level: int) -> None:
    """Durability as asked, foreign keys on, one second of patience, and a reader that cannot write."""
    store = SqliteStore(path, synchronous=synchronous)
    await store.open()

    def pragma(raw: SqliteSession, name: str) -> int:
        (value,) = raw.execute(f"PRAGMA {name}").fetchone()
        return int(value)

    assert store._writer is not None
    assert store._reader is not None
    assert await store._writer.hop(pragma, "synchronous") == level
    assert await store._writer.hop(pragma, "foreign_keys") == 1
    assert await store._writer.hop(pragma, "busy_timeout") == 1_000
    assert await store._writer.hop(pragma, "journal_size_limit") == 64 * 1024 * 1024
    assert await store._reader.hop(pragma, "query_only") == 1
    await store.close()


async def test_only_a_commit_that_promises_something_waits_for_the_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that a power cut undoes is free again, and is made again; even one that fails leaves all as it was."""
    store = SqliteStore(path)
    await store.open()
    levels = []

    def level(raw: SqliteSession, *args: object) -> None:
        levels.append(raw.execute("PRAGMA synchronous").fetchone())
        if args:
            raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(claims, "claim", level)
    assert store._writer is not None
    with pytest.raises(StoreError):
        await store.claim(ClaimRequest("me", ["app:job"], "default", 9, 9))
    await store._writer.hop(level)
    assert levels == [(1,), (2,)]
    await store.close()


async def test_a_locked_store_is_unavailable_and_then_available_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """commit waits one busy timeout and no longer; nothing is half done, and the same call succeeds afterwards."""
    monkeypatch.setattr(connection, "BUSY_TIMEOUT_S", 0.02)
    store = SqliteStore(path)
    await store.open()
    write = TaskWrite(task(), None)
    with locked(path):
        with pytest.raises(StoreUnavailable, match="another connection holds its lock"):
            await store.commit([write])
        with pytest.raises(StoreUnavailable):
            await store.claim(ClaimRequest("me", ["app:job"], "default", 1, 9))
        assert await store.fetch("t1") is None, "reading goes on"
    assert await store.commit([write]) == CommitReport({}, {})
    await store.close()


async def test_open_waits_for_a_lock_and_gives_up_after_its_patience(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may be migrating; it is waited for, but not for ever."""
    monkeypatch.setattr(connection, "BUSY_TIMEOUT_S", 0.02)
    path.touch()
    with locked(path):
        opening = asyncio.create_task(created(path))
        done, _ = await asyncio.wait([opening], timeout=0.2)
        assert not done
    await opening
    later = path.with_name("later.db")
    later.touch()
    monkeypatch.setattr(connection, "OPEN_PATIENCE_S", 0.1)
    with locked(later), pytest.raises(StoreUnavailable):
        await created(later)


async def test_a_full_disk_is_unavailability_and_leaves_no_transaction(path: Path) -> None:
    """The batch is kept above and written when there is room."""
    store = SqliteStore(path)
    await store.open()
    assert store._writer is not None

    def limit(raw: SqliteSession, pages: int) -> None:
        raw.execute(f"PRAGMA max_page_count = {pages}").fetchone()

    await store._writer.hop(limit, 1)
    big = [TaskWrite(task(f"t{i}", args="x" * 5_000), None) for i in range(50)]
    with pytest.raises(StoreUnavailable, match="disk is full"):
        await store.commit(big)
    await store._writer.hop(limit, 1_000_000)
    assert await store.commit(big) == CommitReport({}, {})
    await store.close()


async def test_a_cancelled_commit_is_all_or_nothing(path: Path) -> None:
    """Cancelling the waiter does not stop the transaction half way, nor leave it open."""
    store = SqliteStore(path)
    await store.open()
    committing = asyncio.create_task(store.commit([TaskWrite(task(f"t{i}"), None) for i in range(100)]))
    await asyncio.sleep(0)
    committing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await committing
    assert await store.commit([TaskWrite(task("next"), None)]) == CommitReport({}, {})
    assert len(await store.fetch_many(TaskFilter(limit=1_000))) in (1, 101)
    await store.close()


async def test_commits_of_others_are_changes(path: Path) -> None:
    """That is how news of other processes is noticed, without reading a table."""
    store = SqliteStore(path)
    await store.open()
    before = await store.changes()
    with plain(path) as other:
        other.execute("INSERT INTO taskmanager_queues VALUES ('mail', 1)")
    assert await store.changes() != before
    await store.close()


async def test_a_replaced_or_removed_file_is_noticed(path: Path) -> None:
    """SQLite itself gives no error: it goes on writing into a file that has no name."""
    store = SqliteStore(path)
    await store.open()
    assert await store.look_after() is Whereabouts.WHOLE
    path.rename(path.with_name("moved.db"))
    assert await store.look_after() is Whereabouts.LOST
    path.touch()
    assert await store.look_after() is Whereabouts.LOST
    await store.close()


async def test_the_log_is_moved_into_the_file(path: Path) -> None:
    """A checkpoint empties the log for reuse, and cuts the file when it is large."""
    store = SqliteStore(path, wal_limits=WalLimits(truncate_bytes=1_000_000))
    await store.open()
    await store.commit([TaskWrite(task(f"t{i}"), None) for i in range(100)])
    assert store.wal_size() > 0
    assert await store.checkpoint()
    assert store.wal_size() > 0
    await store.upkeep(is_idle=False)
    assert store.wal_size() > 0
    await store.commit([TaskWrite(task(f"u{i}", args="x" * 10_000), None) for i in range(200)])
    await store.upkeep(is_idle=False)
    assert store.wal_size() == 0
    await store.close()
    assert store.wal_size() == 0


async def test_the_log_is_moved_before_it_takes_the_last_room_of_the_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moving it makes the file larger. A disk that the log has filled would stay full, also over a restart."""
    room = 10_000_000
    monkeypatch.setattr(wal, "_free_on", lambda _: room)
    store = SqliteStore(path)
    await store.open()
    for number in range(300):
        await store.commit([TaskWrite(task(f"t{number}", args="x" * 10_000), None)])
        assert store.wal_size() < 2_000_000
    room = 0
    await store.upkeep(is_idle=False)
    assert store.wal_size() == 0, "what it does not need may make room for the file"
    room = 10**12
    await store.upkeep(is_idle=False)
    for number in range(300, 600):
        await store.commit([TaskWrite(task(f"t{number}", args="x" * 10_000), None)])
    assert store.wal_size() > 2_000_000, "with room enough it is moved seldom, which is cheaper"
    await store.close()


async def test_a_write_without_room_moves_the_log_before_it_tries_again(path: Path) -> None:
    """A start as well: else an application that was stopped on a full disk of its own log would never come up."""
    store = SqliteStore(path)
    await store.open()
    resource = pytest.importorskip("resource")
    await _let_log_grow(store, 1_000_000)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (store.wal_size(), limit[1]))
    try:
        with pytest.raises(StoreUnavailable):
            await _let_log_grow(store, sys.maxsize)
        assert await store.changes(), "to read proves nothing"
        await store.set_paused("mail", True, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    await store.close()


async def _let_log_grow(store: SqliteStore, wanted_bytes: int) -> None:
    while store.wal_size() < wanted_bytes:
        await store.set_paused("x" * 40_000, True, 1)
        await store.set_paused("x" * 40_000, False, 1)


@pytest.mark.parametrize("code", [sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB])
async def test_a_file_that_was_well_when_it_was_opened_may_be_well_again(path: Path, code: int) -> None:
    """SQLite calls a read error of the disk damage, and an emptied file no database. Who takes that for final gives a
    duty up for a bad minute, and tells those who wait for a task.
    """
    store = SqliteStore(path)
    await store.open()
    assert store._reader is not None

    def unreadable(_: SqliteSession) -> None:
        error = sqlite3.DatabaseError("as SQLite says it")
        error.sqlite_errorcode = code
        raise error

    with pytest.raises(StoreUnavailable, match="check the volume"):
        await store._reader.hop(unreadable)
    await store.close()


async def test_a_reader_that_pins_the_log_is_reported_once_and_blocks_at_the_limit(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What it holds back only grows: better a store that waits than a full disk. When the reader ends, it goes on."""
    store = SqliteStore(path, wal_limits=WalLimits(50_000, 200_000, 600_000))
    await store.open()
    with plain(path) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM taskmanager_tasks").fetchone()
        written = 0
        while store.wal_size() < 600_000:
            await store.commit([TaskWrite(task(f"t{written}", args="x" * 20_000), None)])
            await store.upkeep(is_idle=True)
            written += 1
        assert 600_000 <= store.wal_size() < 700_000
        assert caplog.text.count("it grows until that reader ends") == 1
        with pytest.raises(StoreUnavailable, match=r"another connection reads an old state.* end that program"):
            await store.commit([TaskWrite(task("more"), None)])
        reader.execute("COMMIT")
    assert await store.commit([TaskWrite(task("more"), None)]) == CommitReport({}, {})
    assert store.wal_size() < 50_000
    assert (await store.counts())[TaskStatus.PENDING] == written + 1
    await store.close()


def plan(path: Path, query: str, parameters: Any) -> str:
    with plain(path) as other:
        return "\n".join(row[3] for row in other.execute(f"EXPLAIN QUERY PLAN {query}", parameters))


@pytest.mark.parametrize(
    ("query", "index", "leads_with"),
    [(claims.CANDIDATES, "free", "task_name=? AND "), (claims.READY_CANDIDATES, "ready", "")],
)
async def test_a_claim_is_found_through_an_index_of_free_rows_alone(
    path: Path, query: str, index: str, leads_with: str
) -> None:
    """Rows nobody can run, and rows that have ended, cost a claim nothing."""
    await created(path)
    wanted = {"task_names": "[]", "odd_name": None, "queue_name": "q", "better_than": 101, "now": 1, "limit": 9}
    steps = plan(path, query, wanted | {"scanned": 9})
    assert f"taskmanager_tasks_{index} ({leads_with}queue_name=? AND priority=? AND enqueued_at<?)" in steps
    assert f"taskmanager_tasks_{index} ({leads_with}queue_name=? AND priority>? AND priority<?)" in steps
    assert "SCAN taskmanager_tasks" not in steps
    assert "SCAN t" not in steps.splitlines()
    assert "ORDER BY" not in steps or index == "free"


async def test_a_take_over_is_found_through_the_index_of_what_waits(path: Path) -> None:
    """It costs by what it takes, not by what waits at others: an idle instance looks again and again."""
    await created(path)
    wanted = {"task_names": "[]", "queue_name": "q", "owner": "me", "now": 1, "scanned": 9, "limit": 9}
    steps = plan(path, claims.OTHERS, wanted)
    assert "taskmanager_tasks_waiting (queue_name=? AND priority=? AND enqueued_at<?)" in steps
    assert "taskmanager_tasks_waiting (queue_name=? AND priority>?)" in steps
    assert not re.search(r"SCAN (t|taskmanager_tasks)$|ORDER BY", steps, re.MULTILINE)


async def test_slots_that_were_lent_are_counted_by_who_lent_them(path: Path) -> None:
    """Each claim of a shared queue counts them. It costs by the few that wait for others, not by all that it owns."""
    await created(path)
    first, *rest = plan(path, claims._COUNT_LENT, ("[]", "me")).splitlines()
    assert first.startswith("SCAN v ")
    assert re.search(r"\Wid=\?\)", "\n".join(rest))


@pytest.mark.parametrize(
    ("query", "parameters", "index"),
    [
        (f"SELECT 1 FROM {queries._OWNED}", {"owners": "[]", "after": "", "limit": 1}, "owned"),
        (f"SELECT 1 FROM {queries._ORPHANS}", {"above": "[]", "below": "[]", "after": "", "limit": 1}, "owned"),
        (f"SELECT status, count(*) FROM {queries._NOT_COMPLETED} GROUP BY status", (), "status"),
        ("SELECT count(*) FROM taskmanager_tasks", (), "sent_at"),
        ("SELECT 1 FROM taskmanager_tasks ORDER BY sent_at DESC, id DESC LIMIT 9", (), "sent_at"),
        *[
            (made.sql, [None] * made.sql.count("?"), "autoindex_taskmanager_tasks_1")
            for kind in (statements.UPDATE, *statements.STEPS.values(), statements.START, statements.SUCCESS)
            for made in (session.statement(kind, (), 1), session.statement(kind, (), 8))
        ],
    ],
)
async def test_hot_statements_use_their_index(path: Path, query: str, parameters: Any, index: str) -> None:
    """A plan that scans the table would pass every other test."""
    await created(path)
    steps = plan(path, query, parameters)
    assert index in steps
    assert not re.search(r"SCAN (t|taskmanager_tasks)$", steps, re.MULTILINE)


async def test_the_checks_name_every_status_and_outcome(path: Path) -> None:
    """The vocabulary is made once, in the model; the SQL must not drift from it."""
    await created(path)
    sql = dict(shape(path))
    for word in TaskStatus:
        assert f"'{word}'" in sql["taskmanager_tasks"]
    for outcome in AttemptOutcome:
        assert f"'{outcome}'" in sql["taskmanager_task_attempts"]


async def test_the_views_show_instants_as_text(path: Path) -> None:
    """For people with a database browser."""
    store = SqliteStore(path)
    await store.open()
    await store.commit(
        [TaskWrite(task("a", sent_at=1_700_000_000_000_042), None), TaskWrite(task("b", status="FAILED"), None)]
    )
    await store.close()
    with plain(path) as other:
        assert other.execute("SELECT id, sent_at, started_at FROM taskmanager_pending").fetchall() == [
            ("a", "2023-11-14T22:13:20.000042Z", None)
        ]
        assert other.execute("SELECT id, status FROM taskmanager_history").fetchall() == [("b", "FAILED")]


async def test_claimed_says_claimed(path: Path) -> None:
    """The flag is derived from the status in every statement that changes it."""
    store = SqliteStore(path)
    await store.open()
    await store.commit([TaskWrite(task(f"t{i}"), None) for i in range(2)])
    with plain(path) as other:
        flags = "SELECT claimed FROM taskmanager_tasks"
        assert other.execute(flags).fetchall() == [(0,), (0,)]
        await store.claim(ClaimRequest("me", ["app:job"], "default", 9, 9))
        assert other.execute(flags).fetchall() == [(1,), (1,)]
        await store.release("me", 9)
        assert other.execute(flags).fetchall() == [(0,), (0,)]
    await store.close()


OPEN_AND_WRITE = """
import asyncio, sys
from taskmanager.store.sqlite import SqliteStore
async def main():
    store = SqliteStore(sys.argv[1])
    await store.open()
    await store.set_paused(sys.argv[2], True, 1)
    await store.close()
asyncio.run(main())
"""


@pytest.mark.req("DS-115")
def test_several_processes_may_open_the_same_new_file_at_once(path: Path) -> None:
    """Each migration runs once, and nobody fails because another was first."""
    starting = [
        subprocess.Popen([sys.executable, "-c", OPEN_AND_WRITE, str(path), f"q{i}"], stderr=subprocess.PIPE, text=True)
        for i in range(5)
    ]
    errors = [process.communicate(timeout=60)[1] for process in starting]
    assert [process.returncode for process in starting] == [0] * 5, errors
    with plain(path) as other:
        assert other.execute("SELECT count(*) FROM taskmanager_queues").fetchone() == (5,)
        assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)


NEVER_CLOSED = """
import asyncio, sys
from taskmanager.store.sqlite import SqliteStore
store = SqliteStore(sys.argv[1])
async def main():
    await store.open()
    await store.set_paused("q", True, 1)
asyncio.run(main())
"""


def test_a_store_that_nobody_closed_does_not_hang_the_exit(path: Path) -> None:
    """The thread of a connection would be joined for ever."""
    ended = subprocess.run(
        [sys.executable, "-c", NEVER_CLOSED, str(path)], timeout=30, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


FORKED = """
import asyncio, os, sys
from taskmanager.model.errors import StoreError
from taskmanager.store.sqlite import SqliteStore
store = SqliteStore(sys.argv[1])
async def in_parent():
    await store.open()
    await store.set_paused("parent", True, 1)
async def in_child():
    try:
        await store.set_paused("child", True, 1)
    except StoreError as error:
        assert "parent process" in str(error)
    else:
        sys.exit("the child could write")
    await store.close()
async def afterwards():
    await store.set_paused("after", True, 1)
    print(sorted(await store.paused_queues()), store.wal_size() > 0)
    await store.close()
asyncio.run(in_parent())
child = os.fork()
if child == 0:
    asyncio.run(in_child())
    sys.exit(7)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
asyncio.run(afterwards())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_neither_uses_nor_closes_what_it_inherited(path: Path) -> None:
    """The parent goes on as if nothing had happened; the child is told that the file is not for it."""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED, str(path)],
        timeout=30,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout.splitlines() == ["7", "['after', 'parent'] True"], ended.stderr


@pytest.mark.parametrize("count", [1, 2, 3, 5, 13, 49, 63, 65, 130, 400, 511, 513, 1_100])
async def test_batches_of_any_size_are_cut_into_full_statements(path: Path, count: int) -> None:
    """Padding is never stored, nothing is left out, and the statements are few."""
    names = [f"t{number}" for number in range(count)]
    plain = connect(":memory:")
    plain.execute("CREATE TABLE texts (id, text, same)")
    sent: list[str] = []
    plain.set_trace_callback(sent.append)
    kind = statements.Kind(
        "INSERT INTO texts SELECT [id], [text], [same] FROM (VALUES) AS v WHERE [id] IS NOT NULL",
        ("id", "never", "text", "same"),
        ("never", "same"),
    )
    assert plain.write(kind, [(name, "n", name, "s") for name in names]) == count
    assert plain.execute("SELECT * FROM texts ORDER BY rowid").fetchall() == [(name, name, "s") for name in names]
    assert len([text for text in sent if text.startswith("INSERT")]) <= 8
    plain.close()
    store = SqliteStore(path)
    await store.open()
    attempts = AttemptRow("", 1, "COMPLETED", False, 1, 1, None, None, None, None, None, None, None, 1)
    writes = [TaskWrite(task(name, status="FAILED"), None, (attempts._replace(task_id=name),)) for name in names]
    assert await store.commit(writes) == CommitReport({}, {})
    assert (await store.counts())[TaskStatus.FAILED] == count
    await store.close()


async def test_a_claim_that_starts_rows_waits_for_the_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut a row that was only claimed is claimed again; one whose code ran must not be free again."""
    levels: list[int] = []
    claim = claims.claim

    def watched(connection: SqliteSession, *args: Any) -> list[TaskRow]:
        levels.extend(connection.execute("PRAGMA synchronous").fetchone())
        return claim(connection, *args)

    monkeypatch.setattr(claims, "claim", watched)
    store = SqliteStore(path)
    await store.open()
    request = ClaimRequest("me", ["app:job"], "default", 1, 1_000)
    room = Room(frozenset({"app:job"}), 1)
    await store.claim(request)
    await store.claim(request._replace(starting=Starting(1, (room,), 7, "host", "main")))
    await store.close()
    assert levels == [1, 2], "NORMAL for what is only claimed, FULL for what starts"
