"""Writing a task through the caller's own connection, inside the caller's own transaction."""

import os
import sqlite3
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import aiosqlite

from taskmanager.model.errors import ConfigurationError, StoreError, StoreUnavailable
from taskmanager.model.record import TaskRow
from taskmanager.store.sql.statements import INSERT
from taskmanager.store.sqlite.session import statement

_FILES: Final = "PRAGMA database_list"
"""As a statement of its own: a SELECT of the same would begin the transaction with a snapshot, which can grow stale."""


def insert_statement(row: TaskRow) -> tuple[str, tuple[object, ...]]:
    """SQL and parameters that insert one free task."""
    made = statement(INSERT, (), 1)
    return made.sql, made.before(row) + made.after(row)


def insert_through(connection: Any, row: TaskRow, database: Path | None) -> Coroutine[Any, Any, None] | None:
    """Insert through a `sqlite3` connection now, or give the coroutine that does it through an `aiosqlite` one.

    Raises `StoreError` where the connection leads to another file than `database`: nobody would look for it there.
    """
    sql, parameters = insert_statement(row)
    if isinstance(connection, sqlite3.Connection):
        with _explained():
            cursor = connection.cursor()
            cursor.row_factory = None
            _check_files(cursor.execute(_FILES).fetchall(), database)
            connection.execute(sql, parameters)
        return None
    if not isinstance(connection, aiosqlite.Connection):
        raise ConfigurationError(
            f"submit_in takes a sqlite3 or aiosqlite connection, not {connection!r}; for another driver there is "
            "manager.insert_statement(...)"
        )
    return _insert_async(connection, sql, parameters, database)


async def _insert_async(connection: Any, sql: str, parameters: tuple[object, ...], database: Path | None) -> None:
    with _explained():
        cursor = await connection.cursor()
        cursor.row_factory = None
        await cursor.execute(_FILES)
        _check_files(await cursor.fetchall(), database)
        await connection.execute(sql, parameters)


def _check_files(files: Iterable[tuple[Any, ...]], database: Path | None) -> None:
    """`files`: those of a connection, the attached ones too. What cannot be compared is left to the insertion."""
    try:
        paths = [os.fsdecode(path) for _, _, path in files if path]
        if database is None or any(map(database.samefile, paths)):
            return
    except (OSError, ValueError, TypeError):  # not there any more, or made something else by a text_factory
        return
    found = ", ".join(paths) or "a database in memory"
    raise StoreError(f"the connection leads to {found}, not to {database}; connect to the file of the manager")


@contextmanager
def _explained() -> Iterator[None]:
    """Say what to do about the errors that a caller's transaction can meet."""
    try:
        yield
    except sqlite3.OperationalError as exc:
        text = str(exc)
        if "no such table" in text:
            raise StoreError(
                f"the connection does not lead to the manager's file ({text}); start the manager on that file first"
            ) from exc
        if "readonly" in text:
            raise StoreError(
                f"the task could not be written through this connection ({text}); use one that may write"
            ) from exc
        if "locked" in text or "busy" in text:
            raise StoreUnavailable(
                f"the task could not be written in this transaction ({text}); its snapshot is stale or somebody else "
                "writes: roll back, begin again with BEGIN IMMEDIATE, and repeat"
            ) from exc
        raise
