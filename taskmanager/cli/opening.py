"""Which file is meant, and that file open: `--db`, `$TASKMANAGER_DB`, `tasks.db`. What all commands on a file share."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from taskmanager.model.errors import StoreUnavailable
from taskmanager.store.sqlite.reading import open_read_only

DEFAULT_DB: Final = "tasks.db"
DB_VARIABLE: Final = "TASKMANAGER_DB"

F = TypeVar("F", bound=Callable[..., Any])


def db_option(command: F) -> F:
    """`--db PATH`, as the parameter `db: Path`."""
    return click.option(
        "--db",
        type=click.Path(path_type=Path),
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
def read(db: Path) -> Iterator[sqlite3.Connection]:
    """The file, opened only to look at it. Raises what becomes one line on stderr."""
    check_is_there(db)
    with open_read_only(db) as connection:
        yield connection


def check_is_there(db: Path) -> None:
    """A missing file is mostly a forgotten option, so that is what the line says."""
    if not db.exists():
        raise StoreUnavailable(f"there is no file {db}; name the application's database with --db or ${DB_VARIABLE}")
