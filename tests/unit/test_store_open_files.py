"""The record of files that are open, and what a forked child is refused because of it."""

import asyncio
import json
import os
import subprocess
import sys
import textwrap
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from taskmanager import TaskManager
from taskmanager.store.sqlite import SqliteStore, connection
from taskmanager.store.sqlite.files import FileConnection, is_open_here, open_existing
from taskmanager.store.sqlite.locks import only_user_of, read_wal_index
from taskmanager.store.sqlite.reading import open_read_only

pytestmark = pytest.mark.anyio
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

# Forks `WHILE` the file is open, and prints for each way of opening it in the child what became of that.
PROGRAM = """
import asyncio, contextlib, io, json, os, sqlite3, sys
from pathlib import Path
from taskmanager import TaskManager, WrongProcess
from taskmanager.cli.commands import main as command_line
from taskmanager.store.sqlite import SqliteStore
from taskmanager.store.sqlite.reading import open_read_only
from taskmanager.store.sqlite.locks import read_wal_index

path, holder = Path(sys.argv[1]), sys.argv[2]
manager = TaskManager(path)

@manager.task(persist=True)
async def job() -> None: ...

async def hold():
    store = SqliteStore(path)
    await store.open()
    return store

async def fresh():
    store = await hold()
    await store.close()
asyncio.run(fresh())
os.chdir(path.parent)
Path("link").symlink_to(path)
os.link(path, "hard")

async def start(name):
    try:
        other = TaskManager(name)
        await other.start()
    finally:
        await other.stop()

def submit():
    other = TaskManager(path)
    task = other.task(persist=True, name="other")(plain)
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        other.submit_in(connection, task)

async def plain() -> None: ...

def look(name):
    with open_read_only(name):
        pass

def command(*words):
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):
        try:
            sys.argv[1:] = [*words, "--db", str(path)]
            command_line()
        except SystemExit as exc:
            if exc.code == 1 and "forked" in said.getvalue():
                raise WrongProcess from None

def after_a_refused_start():
    other = TaskManager(path)
    task = other.task(plain)
    with contextlib.suppress(WrongProcess):
        asyncio.run(other.start())
    task.enqueue()

ways = {
    "the path": lambda: asyncio.run(start(path)),
    "a relative path": lambda: asyncio.run(start(path.name)),
    "a symbolic link": lambda: asyncio.run(start("link")),
    "a hard link": lambda: asyncio.run(start("hard")),
    "another name of it": lambda: (os.rename("hard", "renamed"), asyncio.run(start("renamed"))),
    "the same manager": lambda: asyncio.run(manager.start()),
    "enqueue after a refused start": after_a_refused_start,
    "submit_in": submit,
    "a look": lambda: look(path),
    "a look through a link": lambda: look("link"),
    "the index of the log": lambda: read_wal_index(path),
    **{name: lambda name=name: command(*name.split()) for name in ("list", "doctor", "status", "purge --yes")},
}

def tried(way):
    try:
        way()
    except WrongProcess:
        return "refused"
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"
    return "went through"

def fork():
    ours, theirs = os.pipe()
    if os.fork() == 0:
        asyncio._set_running_loop(None)
        os.write(theirs, json.dumps({name: tried(way) for name, way in ways.items()}).encode())
        os._exit(0)
    os.close(theirs)
    os.wait()
    print(os.read(ours, 1 << 16).decode())

async def main():
    if holder == "a manager":
        async with manager:
            fork()
    elif holder == "a store":
        store = await hold()
        fork()
        await store.close()
    elif holder == "a look":
        with open_read_only(path):
            fork()
    elif holder == "the heartbeat":
        store = await hold()
        beater = store.open_beater()
        beater.beat([])
        store._files = None
        await store._reader.close()
        await store._writer.close()
        fork()
    elif holder == "the application":
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("SELECT count(*) FROM taskmanager_tasks").fetchone()
            fork()
    elif holder == "nobody":
        fork()
    elif holder == "a grandparent":
        store = await hold()
        if (child := os.fork()) == 0:
            fork()
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)
        await store.close()

asyncio.run(main())
"""


def children_of(path: Path, holder: str) -> dict[str, str]:
    """What each way came to in a child that was forked while `holder` had the file open."""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(PROGRAM), str(path), holder],
        timeout=60,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, str] = json.loads(ended.stdout)
    return found


@needs_fork
@pytest.mark.parametrize(
    "holder",
    [
        "a manager",
        "a store",
        "a look",
        "the heartbeat",
        "a grandparent",
        pytest.param(
            "the application", marks=pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
        ),
    ],
)
def test_no_road_leads_a_forked_child_to_a_file_that_was_open(tmp_path: Path, holder: str) -> None:
    """Whoever had it open, and by whatever name the child comes: SQLite's record of its locks was copied, so that it
    would write beside its parent. Device and inode decide, not the path.
    """
    found = children_of(tmp_path / "tasks.db", holder)
    assert len(found) == 15
    assert set(found.values()) == {"refused"}, found


# Forks again and again while a thread writes, and uses SQLite in each child, for something of its own.
FORKS = """
import asyncio, os, signal, sqlite3, sys
from taskmanager import TaskManager

manager = TaskManager(sys.argv[1])

@manager.task(persist=True)
async def job() -> None: ...

def fork():
    if (child := os.fork()) == 0:
        signal.alarm(20)  # ends a child that waits for ever
        sqlite3.connect(":memory:").execute("CREATE TABLE mine (number)")
        os._exit(0)
    return os.waitpid(child, 0)[1]

async def main():
    async with manager:
        for _ in range(20):
            for _ in range(300):
                job.enqueue()
            await asyncio.sleep(0.012)  # the thread is at it
            assert fork() == 0, "a child was not able to use SQLite"

asyncio.run(main())
"""


@needs_fork
def test_forked_child_can_use_sqlite_for_files_of_its_own(tmp_path: Path) -> None:
    """SQLite has locks that all its connections share. A thread that held one at the fork is not there in the child."""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, str(tmp_path / "tasks.db")],
        timeout=60,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr


@needs_fork
def test_a_fork_at_which_the_file_was_not_open_is_free_to_open_it(tmp_path: Path) -> None:
    """Before the first start, and after all connections have been closed."""
    found = children_of(tmp_path / "tasks.db", "nobody")
    refused = [name for name, what in found.items() if what == "refused"]
    assert not refused, found


async def test_a_file_is_on_record_until_its_last_connection_is_closed(tmp_path: Path) -> None:
    """By its inode, so that a link to it is known as well, and a file that has taken its name is not."""
    path, link = tmp_path / "tasks.db", tmp_path / "link"
    store = SqliteStore(path)
    assert not is_open_here(path)
    await store.open()
    link.hardlink_to(path)
    assert is_open_here(path)
    assert is_open_here(link)
    with open_read_only(path):
        await store.close()
        assert is_open_here(path)
    assert not is_open_here(path)


async def test_the_log_is_not_looked_into_where_that_would_drop_locks(tmp_path: Path) -> None:
    """To close any descriptor of a file drops all locks of the process on it: the next one to close the database in
    another process would delete a log that is still written to.
    """
    path = tmp_path / "tasks.db"
    store = SqliteStore(path)
    await store.open()
    await store.set_paused("q", True, 1)
    before = held_locks(path)
    assert read_wal_index(path).size_bytes > 0
    assert only_user_of(path) is None
    assert held_locks(path) == before != ""
    await store.close()


def held_locks(path: Path) -> str:
    """What another process sees of the locks on the file and the index of its log."""
    program = """
    import fcntl, struct, sys
    from pathlib import Path
    from taskmanager.store.sqlite.locks import _FLOCK, _IS_BSD
    for name, start, length in (sys.argv[1], 0x40000002, 510), (sys.argv[1] + "-shm", 128, 1):
        with Path(name).open("rb") as file:
            wanted = (start, length, 0, fcntl.F_WRLCK, 0) if _IS_BSD else (fcntl.F_WRLCK, 0, start, length, 0)
            print(_FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, _FLOCK.pack(*wanted))))
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(path)], capture_output=True, text=True, check=True
    )
    return ended.stdout


@pytest.mark.parametrize("is_made_before", [False, True])
async def test_a_connection_is_closed_though_who_opens_it_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_made_before: bool
) -> None:
    """Its thread makes it all the same, and nobody else has it to close it: not if it is made late, either."""
    path = str(tmp_path / "tasks.db")
    going, may_go = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def made(*args: Any, **options: Any) -> FileConnection:
        threads.append(threading.current_thread())
        found = open_existing(*args, **options) if is_made_before else None
        going.set()
        may_go.wait(10)
        return found or open_existing(*args, **options)

    monkeypatch.setattr(connection, "open_existing", made)
    monkeypatch.setattr(connection, "THREAD_ENDS_S", 0.0)
    opening = asyncio.ensure_future(SqliteStore(path).open())
    await asyncio.to_thread(going.wait, 10)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    may_go.set()
    await asyncio.to_thread(threads[0].join, 10)
    assert not is_open_here(path)


@pytest.mark.parametrize("is_cancelled_again", [False, True])
async def test_a_start_that_is_cancelled_anywhere_leaves_no_open_file(
    tmp_path: Path, *, is_cancelled_again: bool
) -> None:
    """After each number of turns of the loop, until a start gets through; or in each turn from then on."""
    path, turns, is_up = tmp_path / "tasks.db", 0, False
    while not is_up:
        manager = TaskManager(path)
        starting = asyncio.ensure_future(manager.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        while is_cancelled_again and not starting.done():
            await asyncio.sleep(0)
            starting.cancel()
        with suppress(asyncio.CancelledError):
            await starting
            is_up = True
        await manager.stop()
        assert not is_open_here(path), turns
        turns = turns * 2 + 1
