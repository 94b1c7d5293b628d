"""Opening a file only to look at it: in every state it can be in, without leaving a trace on it."""

import asyncio
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from taskmanager import TaskManager
from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.model.states import TaskStatus
from taskmanager.store.sql.search import Search, find, find_ids, ids_like
from taskmanager.store.sqlite import schema
from taskmanager.store.sqlite.reading import open_read_only
from tests.sessions import connect
from tests.unit.command_line import digest

NOBODY: Final = 65534
# Runs tasks, and dies without closing anything: a log is left beside the file.
CRASH: Final = """
import asyncio, os, sys
from taskmanager import TaskManager

manager = TaskManager(sys.argv[1])

@manager.task(persist=True, name="add")
async def add(number: int) -> int:
    return number

async def main():
    async with manager:
        await asyncio.gather(*(add.enqueue(number).saved() for number in range(3)))
        await manager.join()
        await manager.flush()
        os._exit(0)

asyncio.run(main())
"""
# Imports as who we are, also what is imported late, then reads as somebody who may not write.
READ: Final = """
import os, pathlib, sys
from taskmanager.model.errors import StoreError
from taskmanager.store.sqlite.reading import open_read_only
from taskmanager.store.sqlite.schema import migrations
from taskmanager.store.sql.search import Search, find

migrations()
os.chdir("/")
pathlib.Path.cwd().as_uri()
if os.geteuid() == 0:
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
try:
    with open_read_only(sys.argv[1]) as connection:
        print(len(find(connection, Search(), 10)))
except StoreError as exc:
    print(exc)
""".replace("NOBODY", str(NOBODY))


def run_python(program: str, database: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, str(database)], capture_output=True, check=False, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def write_three(database: Path) -> list[str]:
    """Three tasks, by an application that has stopped in order."""
    manager = TaskManager(database)

    @manager.task(persist=True, name="add")
    async def add(number: int) -> int:
        return number

    async def main() -> list[str]:
        async with manager:
            handles = [add.enqueue(number) for number in range(3)]
            await manager.join()
        return [handle.task_id for handle in handles]

    return asyncio.run(main())


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a log that nobody has moved into it."""
    database = tmp_path_factory.mktemp("crashed") / "tasks.db"
    run_python(CRASH, database)
    assert database.with_name("tasks.db-wal").stat().st_size
    return database


def test_a_stopped_file_is_read_and_stays_as_it_is(tmp_path: Path) -> None:
    """Byte for byte; SQLite's own side files may appear."""
    ids = write_three(tmp_path / "tasks.db")
    before = digest(tmp_path)
    with open_read_only(tmp_path / "tasks.db") as connection, connection.snapshot():
        rows = find(connection, Search(), 10)
    assert [row.task_id for row in rows] == sorted(ids, reverse=True)
    assert digest(tmp_path) == before


def test_a_file_that_a_crash_left_is_read_with_its_log(crashed: Path) -> None:
    """The log is replayed in memory, and neither moved nor cut."""
    before = digest(crashed.parent)
    with open_read_only(crashed) as connection:
        assert len(find(connection, Search(statuses=(TaskStatus.COMPLETED,)), 10)) == 3
    assert digest(crashed.parent) == before


def test_a_file_is_read_while_somebody_holds_the_write_lock(crashed: Path) -> None:
    """A reader neither waits for a writer nor takes its lock."""
    writer = connect(crashed, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    with open_read_only(crashed) as connection:
        assert len(find_ids(connection, Search())) == 3
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            connection.execute("DELETE FROM taskmanager_tasks")
    writer.execute("ROLLBACK")
    writer.close()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A directory that another user may look into; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


def close_to_others(folder: Path) -> None:
    for path in folder.iterdir():
        path.chmod(0o644)
    folder.chmod(0o555)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="directories without permissions")
def test_a_file_in_a_directory_that_cannot_be_written_is_read(open_folder: Path) -> None:
    """No side file can be made there. Without a log the file alone is the truth; a log that must be replayed is not
    passed over.
    """
    database = open_folder / "tasks.db"
    write_three(database)
    close_to_others(open_folder)
    assert run_python(READ, database) == "3"
    assert [path.name for path in open_folder.iterdir()] == ["tasks.db"]
    open_folder.chmod(0o755)
    run_python(CRASH, database)
    close_to_others(open_folder)
    assert run_python(READ, database) == "6"
    open_folder.chmod(0o755)
    database.with_name("tasks.db-shm").unlink()
    close_to_others(open_folder)
    assert "copy tasks.db and tasks.db-wal to a directory you can write" in run_python(READ, database)


FULL: Final = """
import asyncio, resource
from taskmanager import StoreUnavailable, TaskManager

async def main():
    try:
        await TaskManager(sys.argv[1]).start()
    except StoreUnavailable as exc:
        print(exc)

resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))  # as on a full disk, there is no room for the side files
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no quotas of this kind")
def test_a_file_on_a_full_disk_is_read_and_its_start_is_told_so(tmp_path: Path) -> None:
    """Who looks why the application does not start must see the tasks, and hear of the disk. A log that must be
    replayed is not passed over there either.
    """
    database = tmp_path / "tasks.db"
    write_three(database)
    imports, reading = READ.split("migrations()\n")
    assert run_python(imports + FULL + reading[reading.index("try:") :], database) == "3"
    assert "the disk is full; free some space" in run_python(imports + FULL + "asyncio.run(main())", database)
    run_python(CRASH, database)
    database.with_name("tasks.db-shm").unlink()
    said = run_python(imports + FULL + reading[reading.index("try:") :], database)
    assert "a log that cannot be replayed" in said


def test_a_newer_and_an_older_schema_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who only looks migrates nothing, and does not guess."""
    database = tmp_path / "tasks.db"
    write_three(database)
    with connect(database) as connection:
        connection.execute("UPDATE taskmanager_schema SET version = 999 WHERE version = 2")
    connection.close()
    with pytest.raises(StoreError, match="schema version 999"), open_read_only(database):
        pass
    database.unlink()
    with monkeypatch.context() as patched, connect(database, isolation_level=None) as connection:
        first = schema.migrations()[:1]
        patched.setattr(schema, "migrations", lambda: first)
        schema.migrate(connection, str(database))
        connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    before = digest(tmp_path)
    with pytest.raises(StoreError, match="start the application with this version once"), open_read_only(database):
        pass
    assert digest(tmp_path) == before


def test_a_file_that_is_not_ours_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    """Each refusal says what the path leads to."""
    (tmp_path / "text.db").write_text("no database, and long enough to have a header" * 50)
    (tmp_path / "empty.db").touch()
    with closing(connect(tmp_path / "other.db", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE t (x)")
    for path, said in {
        tmp_path / "missing.db": "there is no file",
        tmp_path: "is a directory",
        tmp_path / "text.db": "is not a database",
        tmp_path / "empty.db": "is a database without tasks",
        tmp_path / "other.db": "is a database without tasks",
    }.items():
        with pytest.raises(StoreError, match=said), open_read_only(path):
            pass
    assert {path.name for path in tmp_path.iterdir()} == {"text.db", "empty.db", "other.db"}
    with pytest.raises(StoreUnavailable), open_read_only(tmp_path / "missing.db"):
        pass


def test_damage_found_while_reading_is_one_of_our_errors(tmp_path: Path) -> None:
    """Errors of the driver do not leave the block as they are."""
    database = tmp_path / "tasks.db"
    write_three(database)
    with database.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (database.stat().st_size - 4096))
    with pytest.raises(StoreError, match="it is damaged"), open_read_only(database) as connection:
        find(connection, Search(), 10)


def test_a_search_narrows_by_each_of_its_fields(tmp_path: Path) -> None:
    """Status, name with wildcards, queue, error code, last change, and what is older than a task."""
    database = tmp_path / "tasks.db"
    manager = TaskManager(database)

    @manager.task(persist=True, name="app.jobs:good", queue_name="mail")
    async def good() -> None: ...

    @manager.task(persist=True, name="app.jobs:bad")
    async def bad() -> None:
        raise ValueError("no")

    async def main() -> tuple[str, str]:
        async with manager:
            handles = good.enqueue(), bad.enqueue()
            await manager.join()
        return handles[0].task_id, handles[1].task_id

    good_id, bad_id = asyncio.run(main())
    with open_read_only(database) as connection:
        rows = {row.task_id: row for row in find(connection, Search(), 10)}
        wanted = {
            (bad_id,): (
                Search(statuses=(TaskStatus.FAILED, TaskStatus.EXPIRED)),
                Search(task_name="app.jobs:bad"),
                Search(queue_name="default"),
                Search(error_code="UNHANDLED_EXCEPTION"),
            ),
            (good_id,): (Search(task_name="app.*:g??d"), Search(before=bad_id)),
            (bad_id, good_id): (Search(), Search(task_name="app.*"), Search(changed_since=0)),
            (): (
                Search(task_name="app.jobs"),
                Search(changed_since=rows[bad_id].updated_at + rows[good_id].updated_at),
                Search(statuses=(TaskStatus.FAILED,), queue_name="mail"),
            ),
        }
        for expected, searches in wanted.items():
            for search in searches:
                assert tuple(row.task_id for row in find(connection, search, 10)) == expected, search
                assert tuple(reversed(find_ids(connection, search))) == expected, search


def test_an_id_is_known_by_its_beginning_and_by_its_end(crashed: Path) -> None:
    """Ids of one moment begin alike, so the end of one is as good; what is no part of an id finds nothing."""
    with open_read_only(crashed) as connection:
        ids = sorted(find_ids(connection, Search()))
        assert ids_like(connection, ids[0], 10) == [ids[0]]
        assert ids_like(connection, ids[1][-6:].upper(), 10) == [ids[1]]
        assert ids_like(connection, ids[2][:4], 10) == ids
        for nonsense in ("", "%", "*", "zz", "\udcff"):
            assert ids_like(connection, nonsense, 10) == []
