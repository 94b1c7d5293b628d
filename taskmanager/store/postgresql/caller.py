"""Writing a task through the caller's own connection, inside the caller's own transaction: see `Place`.

It is one INSERT, for which the right to INSERT suffices: a conflict target or RETURNING would read. An id that is
taken, because of an idempotency key, is left alone as it is in a file.

Where the connection leads is asked in the same statement, at no cost in round trips or rights: the id is NULL, and so
refused, unless this is the schema that the running manager has found. While none runs, only the name counts.
"""

import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import psycopg
from psycopg.rows import tuple_row

from taskmanager.model.errors import ConfigurationError, StoreError, StoreUnavailable
from taskmanager.model.record import TaskRow
from taskmanager.store.postgresql.address import Address
from taskmanager.store.postgresql.connection import Origin
from taskmanager.store.postgresql.found import literal
from taskmanager.store.sql.statements import TASK_COLUMNS

_FORMAT: Final = ["%s"] * len(TASK_COLUMNS)
_DOLLAR: Final = [f"${number}" for number in range(1, len(TASK_COLUMNS) + 1)]
_CHECKED: Final = (
    "CASE WHEN pg_catalog.to_regnamespace({schema})::oid = {origin.schema} AND (SELECT oid FROM pg_catalog.pg_database"
    " WHERE datname = pg_catalog.current_database()) = {origin.database} THEN {mark} END"
)
_REPEAT: Final = "another transaction was in the way; roll back, and repeat all of it"
_UNBORN: Final = "it is not there; connect to the manager's database, or start the manager on it first"
_ADVICE: Final[dict[str, tuple[type[StoreError], str]]] = {
    "23502": (StoreError, "the connection leads to another database than the manager's; connect to that one"),
    "25006": (StoreError, "this transaction can only read; use one that may write, on the primary"),
    "25P02": (StoreError, "a statement before this one has failed in the transaction; roll back, and repeat all of it"),
    "3F000": (StoreError, _UNBORN),
    "42P01": (StoreError, _UNBORN),
    "40001": (StoreUnavailable, _REPEAT),
    "40P01": (StoreUnavailable, _REPEAT),
    "55P03": (StoreUnavailable, _REPEAT),
}
"""What can be done, by the code of the error. All else is the driver's to say."""
_NO_RIGHT: Final = "42501"


class _Way(NamedTuple):
    """How a driver is told to insert: its marks for parameters, and what is called with the SQL and the row."""

    marks: list[str]
    is_async: bool
    execute: Callable[[str, TaskRow], Any]


def insert_statement(row: TaskRow, address: Address) -> tuple[str, tuple[object, ...]]:
    """SQL with `%s` and parameters that insert one free task. The right to INSERT suffices."""
    return _sql(address, _FORMAT), tuple(row)


def insert_through(
    connection: Any, row: TaskRow, address: Address, origin: Origin | None = None
) -> Coroutine[Any, Any, None] | None:
    """Insert through the connection now, or give the coroutine that does it if the connection is asynchronous.

    `origin` is where the running manager has found its tasks. Raises `StoreError` with what to do, `StoreUnavailable`
    if the transaction may be repeated, and the driver's own error for all else.
    """
    way = _way(connection)
    sql = _sql(address, way.marks, origin)
    if way.is_async:
        return _insert_async(way, sql, row, address)
    with _explained(address):
        way.execute(sql, row)
    return None


async def _insert_async(way: _Way, sql: str, row: TaskRow, address: Address) -> None:
    with _explained(address):
        await way.execute(sql, row)


def _sql(address: Address, marks: list[str], origin: Origin | None = None) -> str:
    """The statement. Where the marks are `%s`, a percent sign is written twice."""
    schema, values = address.quoted_schema, [*marks]
    if marks is _FORMAT:
        schema = schema.replace("%", "%%")
    if origin is not None:
        values[0] = _CHECKED.format(schema=literal(schema), origin=origin, mark=marks[0])
    return (
        f"INSERT INTO {schema}.taskmanager_tasks ({', '.join(TASK_COLUMNS)}) VALUES ({', '.join(values)})"
        " ON CONFLICT DO NOTHING"
    )


def _way(connection: Any) -> _Way:
    """Return the way through a connection. A driver that is not imported has made none."""
    if isinstance(connection, psycopg.Connection):
        return _psycopg_way(psycopg.Cursor(connection, row_factory=tuple_row), is_async=False)
    if isinstance(connection, psycopg.AsyncConnection):
        return _psycopg_way(psycopg.AsyncCursor(connection, row_factory=tuple_row), is_async=True)
    if _is_one(connection, "asyncpg", "Connection"):
        return _Way(_DOLLAR, True, lambda sql, row: connection.execute(sql, *row))
    is_async = _is_one(connection, "sqlalchemy.ext.asyncio", "AsyncConnection")
    if is_async or _is_one(connection, "sqlalchemy", "Connection"):
        dialect = connection.dialect
        if dialect.name != "postgresql":
            raise StoreError(f"the connection leads to {dialect.name}; connect to the manager's server")
        marks = _DOLLAR if dialect.paramstyle == "numeric_dollar" else _FORMAT
        return _Way(marks, is_async, lambda sql, row: connection.exec_driver_sql(sql, tuple(row)))
    raise ConfigurationError(
        "submit_in takes a connection of psycopg, asyncpg or SQLAlchemy (of a session: session.connection()), not "
        f"{connection!r}; for another driver there is manager.insert_statement(...)"
    )


def _psycopg_way(cursor: Any, *, is_async: bool) -> _Way:
    """Through a plain cursor, whatever kind the connection makes by itself.

    It does not prepare: behind a pooler the caller may have chosen a kind that never does.
    """
    return _Way(_FORMAT, is_async, lambda sql, row: cursor.execute(sql, tuple(row), prepare=False))


def _is_one(connection: Any, module: str, name: str) -> bool:
    known = sys.modules.get(module)
    return known is not None and isinstance(connection, getattr(known, name))


@contextmanager
def _explained(address: Address) -> Iterator[None]:
    """Say what to do about the errors that a caller's transaction can meet."""
    try:
        yield
    except Exception as exc:
        code, text = _code_of(exc), " ".join(str(exc).split())
        if code == _NO_RIGHT:
            raise StoreError(
                f"the task could not be written into {address} ({text}); the role of the connection needs USAGE on the "
                f"schema {address.quoted_schema}, and INSERT on its table taskmanager_tasks: GRANT them"
            ) from exc
        if code not in _ADVICE:
            raise
        kind, advice = _ADVICE[code]
        raise kind(f"the task could not be written into {address} ({text}): {advice}") from exc


def _code_of(exc: Exception) -> str | None:
    """Return the code of the server, also where SQLAlchemy has wrapped the error of the driver."""
    of_driver = getattr(exc, "orig", None) or exc
    code = getattr(of_driver, "sqlstate", None) or getattr(of_driver, "pgcode", None)
    return code if isinstance(code, str) else None
