"""The schema as numbered migrations: `migrations/NNNN_name.sql`, each applied in one transaction with its version row.

Several processes may start at once: the version is read again under the write lock, so each migration runs once.
"""

import sqlite3
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Final, NamedTuple

from taskmanager.model.errors import StoreError
from taskmanager.store.sqlite.connection import transaction

_CREATE_VERSIONS: Final = """
CREATE TABLE IF NOT EXISTS taskmanager_schema (
    version INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at INTEGER NOT NULL
) STRICT
"""
_ADD_VERSION: Final = """
INSERT INTO taskmanager_schema (version, name, applied_at)
VALUES (?, ?, CAST(strftime('%s', 'now') AS INTEGER) * 1000000)
"""


class Migration(NamedTuple):
    """One step of the schema."""

    version: int
    name: str
    script: str


@cache
def migrations() -> list[Migration]:
    """All steps this version of the library knows, in order."""
    folder = resources.files("taskmanager.store.sqlite") / "migrations"
    if not folder.is_dir():
        raise StoreError(
            f"the files of the schema are not installed: there is no {folder}; a program that is frozen into an "
            "executable needs them too (`pyinstaller --collect-data taskmanager`)"
        )
    found = []
    for file in folder.iterdir():
        number, _, name = file.name.removesuffix(".sql").partition("_")
        if file.name.endswith(".sql"):
            found.append(Migration(int(number), name, file.read_text("utf-8")))
    return sorted(found)


def statements(script: str) -> Iterator[str]:
    """The statements of a script. `executescript` would commit the transaction we are in."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""


def version(connection: sqlite3.Connection) -> int:
    """The number of the last step applied to this file, 0 for none."""
    exists = connection.execute(
        "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'taskmanager_schema'"
    ).fetchone()
    if exists is None:
        return 0
    (number,) = connection.execute("SELECT coalesce(max(version), 0) FROM taskmanager_schema").fetchone()
    return int(number)


def migrate(connection: sqlite3.Connection, path: str) -> None:
    """Bring the file to the newest schema; `StoreError` when a newer version of the library wrote it."""
    steps = migrations()
    newest = steps[-1].version
    # Without a lock first: a file that needs nothing opens while somebody else is writing.
    _refuse_newer(version(connection), newest, path)
    if version(connection) == newest:
        return
    for step in steps:
        with transaction(connection):
            current = version(connection)
            _refuse_newer(current, newest, path)
            if current < step.version:
                _apply(connection, step)


def check_version(connection: sqlite3.Connection, path: str) -> None:
    """`StoreError` unless the file has exactly the schema that this version knows: who only looks migrates nothing."""
    current, newest = version(connection), migrations()[-1].version
    _refuse_newer(current, newest, path)
    if current == 0:
        raise _not_ours(path)
    if current < newest:
        raise StoreError(
            f"{path} has schema version {current}, this version of taskmanager needs {newest}; "
            "start the application with this version once, it migrates the file"
        )


def check_is_ours(connection: sqlite3.Connection, path: str) -> None:
    """`StoreError` unless there is anything of this library in the file, of whatever version."""
    ours = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name GLOB 'taskmanager_*'"
    if connection.execute(ours).fetchone() is None:
        raise _not_ours(path)


def _not_ours(path: str) -> StoreError:
    return StoreError(f"{path} is a database without tasks; give the path of the file that the application writes")


def _apply(connection: sqlite3.Connection, step: Migration) -> None:
    connection.execute(_CREATE_VERSIONS)
    for statement in statements(step.script):
        connection.execute(statement)
    connection.execute(_ADD_VERSION, (step.version, step.name))


def _refuse_newer(current: int, newest: int, path: str) -> None:
    if current > newest:
        raise StoreError(
            f"{path} has schema version {current}, this version of taskmanager knows {newest}; "
            "upgrade taskmanager, or use another file"
        )
