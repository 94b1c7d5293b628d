"""Writing a task through the caller's own connection, inside the caller's own transaction."""

import sqlite3
from collections.abc import Coroutine
from typing import Any

import aiosqlite

from taskmanager.model.errors import ConfigurationError, StoreError, StoreUnavailable
from taskmanager.model.record import TaskRow
from taskmanager.store.sqlite.statements import TASK_COLUMNS, insert_tasks


def insert_statement(row: TaskRow) -> tuple[str, tuple[object, ...]]:
    """SQL and parameters that insert one free task."""
    return insert_tasks((), TASK_COLUMNS, 1).sql, tuple(row)


def insert_through(connection: Any, row: TaskRow) -> Coroutine[Any, Any, None] | None:
    """Insert through a `sqlite3` connection now, or give the coroutine that does it through an `aiosqlite` one."""
    sql, parameters = insert_statement(row)
    if isinstance(connection, sqlite3.Connection):
        with _Explained():
            connection.execute(sql, parameters)
        return None
    if not isinstance(connection, aiosqlite.Connection):
        raise ConfigurationError(
            f"submit_in takes a sqlite3 or aiosqlite connection, not {connection!r}; for another driver there is "
            "manager.insert_statement(...)"
        )
    return _insert_async(connection, sql, parameters)


async def _insert_async(connection: Any, sql: str, parameters: tuple[object, ...]) -> None:
    with _Explained():
        await connection.execute(sql, parameters)


class _Explained:
    """Says what to do about the errors that a caller's transaction can meet."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        if isinstance(exc, sqlite3.OperationalError):
            text = str(exc)
            if "no such table" in text:
                raise StoreError(
                    f"the connection does not lead to the manager's file ({text}); start the manager on that file first"
                ) from exc
            if "locked" in text or "busy" in text:
                raise StoreUnavailable(
                    f"the task could not be written in this transaction ({text}); its snapshot is stale or somebody "
                    "else writes: roll back, begin again with BEGIN IMMEDIATE, and repeat"
                ) from exc
