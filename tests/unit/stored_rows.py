"""Files in memory with rows that nothing has checked, for tests of what is read from them."""

from contextlib import closing
from typing import Any, Final

from taskmanager.model.record import TaskRow
from taskmanager.store.sql.rows import text_of
from taskmanager.store.sqlite import schema
from taskmanager.store.sqlite.session import SqliteSession
from tests.sessions import connect

COLUMNS: Final = ("id", *TaskRow._fields[1:])


def database() -> "closing[SqliteSession]":
    """Our tables, in memory."""
    connection = connect(":memory:", isolation_level=None)
    connection.text_factory = text_of
    schema.create(connection, schema.migrations())
    return closing(connection)


def put(connection: SqliteSession, *rows: TaskRow | dict[str, Any]) -> None:
    for row in rows:
        values = row if isinstance(row, dict) else dict(zip(COLUMNS, row, strict=True))
        names, marks = (
            ", ".join(values),
            ", ".join("CAST(? AS TEXT)" if type(v) is bytes else "?" for v in values.values()),
        )
        connection.execute(f"INSERT INTO taskmanager_tasks ({names}) VALUES ({marks})", tuple(values.values()))
