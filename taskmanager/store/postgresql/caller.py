"""Writing a task through the caller's own connection, inside the caller's own transaction: see `Place`."""

from collections.abc import Coroutine
from typing import Any, Final

import psycopg

from taskmanager.model.errors import ConfigurationError
from taskmanager.model.record import TaskRow
from taskmanager.store.postgresql.address import Address
from taskmanager.store.sql.statements import TASK_COLUMNS

_MARKS: Final = ", ".join(["%s"] * len(TASK_COLUMNS))


def insert_statement(row: TaskRow, address: Address) -> tuple[str, tuple[object, ...]]:
    """SQL and parameters that insert one free task. The right to INSERT suffices."""
    table = f"{address.quoted_schema}.taskmanager_tasks".replace("%", "%%")
    sql = f"INSERT INTO {table} ({', '.join(TASK_COLUMNS)}) VALUES ({_MARKS}) ON CONFLICT DO NOTHING"
    return sql, tuple(row)


def insert_through(connection: Any, row: TaskRow, address: Address) -> Coroutine[Any, Any, None] | None:
    """Insert through a psycopg connection now, or give the coroutine that does it through an asynchronous one."""
    sql, parameters = insert_statement(row, address)
    if isinstance(connection, psycopg.Connection):
        connection.execute(sql.encode(), parameters)
        return None
    if isinstance(connection, psycopg.AsyncConnection):
        return _insert_async(connection, sql, parameters)
    raise ConfigurationError(
        f"submit_in takes a connection of psycopg, not {connection!r}; for another driver there is "
        "manager.insert_statement(...)"
    )


async def _insert_async(connection: "psycopg.AsyncConnection[Any]", sql: str, parameters: tuple[object, ...]) -> None:
    await connection.execute(sql.encode(), parameters)
