"""The file a command is about: which one is meant (`--db`, `$TASKMANAGER_DB`, `tasks.db`), and how it is opened."""

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from taskmanager.engine.instance import has_lock_file
from taskmanager.model.clock import SystemClock
from taskmanager.model.errors import StoreUnavailable
from taskmanager.store.sqlite import SqliteStore
from taskmanager.store.sqlite.open_files import check_process
from taskmanager.store.sqlite.queries import instances
from taskmanager.store.sqlite.reading import READ_PATIENCE_S, open_read_only

DEFAULT_DB: Final = "tasks.db"
DB_VARIABLE: Final = "TASKMANAGER_DB"

WRITE_PATIENCE_S: Final = 10.0
"""How long an action tries to get at a file that another program holds locked."""
WRITE_PAUSE_S: Final = 0.1
LOCK_PATIENCE_S: Final = 1.0
"""How long the lock file of an instance may be missing: a living one looks for its own every half second."""
LOCK_PAUSE_S: Final = 0.02

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")


def db_option(command: F) -> F:
    """`--db PATH`, as the parameter `db: Path`."""
    return click.option(
        "--db",
        type=click.Path(path_type=Path, readable=False),  # whether it can be read is said in our own words
        default=DEFAULT_DB,
        envvar=DB_VARIABLE,
        show_default=True,
        show_envvar=True,
        metavar="PATH",
        help="The database of the application.",
    )(command)


def json_option(command: F) -> F:
    """`--json`, as the parameter `as_json: bool`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document, and nothing else.")(command)


@contextmanager
def read(db: Path, *, patience_s: float = READ_PATIENCE_S) -> Iterator[sqlite3.Connection]:
    """The file, opened only to look at it. Raises what becomes one line on stderr, after `patience_s` where another
    program keeps the file to itself.

    A lock file that is missing is waited for: an instance that lives puts its own back, and must not look dead only
    because somebody has tidied up.
    """
    check_is_there(db)
    with open_read_only(db, patience_s=patience_s) as connection:
        _wait_for_lock_files(db.absolute(), connection)
        yield connection


def _wait_for_lock_files(database: Path, connection: sqlite3.Connection) -> None:
    clock = SystemClock()
    missing = [each.instance_id for each in instances(connection)]
    deadline_s = clock.elapsed_s() + LOCK_PATIENCE_S
    while missing := [each for each in missing if not has_lock_file(database, each)]:
        if clock.elapsed_s() >= deadline_s:
            return
        time.sleep(LOCK_PAUSE_S)


def write(db: Path, work: Callable[[SqliteStore], Coroutine[Any, Any, R]]) -> R:
    """Run `work` on the file, opened as the application opens it. Never creates or migrates one."""
    with read(db):
        pass  # it is there, is ours, and has our schema
    return asyncio.run(_write(db, work))


async def _write(db: Path, work: Callable[[SqliteStore], Coroutine[Any, Any, R]]) -> R:
    store = SqliteStore(db)
    try:
        await store.open()
        return await work(store)
    finally:
        await store.close()


async def patiently(step: Callable[[], Awaitable[R]]) -> R:
    """One transaction, tried again while another program holds the file, `WRITE_PATIENCE_S` at most."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + WRITE_PATIENCE_S
    while True:
        try:
            return await step()
        except StoreUnavailable:
            if loop.time() >= deadline:
                raise
        await asyncio.sleep(WRITE_PAUSE_S)


def check_is_there(db: Path) -> None:
    """Raises `StoreUnavailable`. A missing file is mostly a forgotten option, so that is what the line says."""
    check_process(db)
    try:
        db.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError) as exc:
        line = f"there is no file {db}; name the application's database with --db or ${DB_VARIABLE}"
        raise StoreUnavailable(line) from exc
    except OSError as exc:
        raise StoreUnavailable(f"{db} cannot be reached ({exc.strerror}); look at the directories above it") from exc
