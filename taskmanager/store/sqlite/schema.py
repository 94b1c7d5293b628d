"""The schema as numbered migrations: `migrations/NNNN_name.sql`, each applied in one transaction with its version row.

Several processes may start at once. Each reads the version again under the write lock, so each migration runs once. In
a new file all are applied in one transaction.

A step that adds runs beside older instances that use the file: their statements still find all that they name. A step
that drops or renames runs only when nobody else lives. If it drops indexes alone, the file works without it, so it
waits for a later start, and steps behind it do not wait; any other refuses the start, and names who lives.

Other programs that share the file may drop what they do not know: alembic's autogenerate drops our tables and keeps our
views. So a start compares what the file has with what its version must have, and makes anew what is missing. A process
that only reads raises instead: its message names what is missing, and says that a start makes it anew.
"""

import binascii
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cache
from typing import Final, NamedTuple

from taskmanager.model.errors import StoreError
from taskmanager.model.logger import logger
from taskmanager.store.sql.scripts import scripts_of
from taskmanager.store.sqlite.session import SqliteSession

_CREATE_VERSIONS: Final = """
CREATE TABLE IF NOT EXISTS taskmanager_schema (
    version INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at INTEGER NOT NULL
) STRICT
"""
_ADD_VERSION: Final = """
INSERT OR IGNORE INTO taskmanager_schema (version, name, applied_at)
VALUES (?, ?, CAST(strftime('%s', 'now') AS INTEGER) * 1000000)
"""


_LIST: Final = r"\b(\w+) IN \(('\w+'(?:, '\w+'){2,})\)"
"""A list as the CHECKs of older files have them."""
_TAKES_AWAY: Final = r"(?im)^\s*(DROP|ALTER\s+TABLE\s+\S+\s+(DROP|RENAME))\b"
_DROPS_INDEX: Final = r"(?i)(--[^\n]*\n|\s)*DROP\s+INDEX\b"


_OF_TASKS: Final = {"taskmanager_task_attempts", "taskmanager_steps", "taskmanager_events"}


NEWEST: Final = "1-2-3-4-5-6-7-8-9-10 23134 8876bf85"
"""The shape of a file with the newest schema, which most starts find. Every migration changes it."""


class Migration(NamedTuple):
    """One step of the schema."""

    version: int
    name: str
    script: str

    @property
    def takes_away(self) -> bool:
        """Whether it drops or renames something that an older instance may be using."""
        return re.search(_TAKES_AWAY, self.script) is not None

    @property
    def can_wait(self) -> bool:
        """Whether it only drops indexes, so that the file works without it."""
        return all(re.match(_DROPS_INDEX, each) for each in statements(self.script))


class Part(NamedTuple):
    """A table, an index or a view, as SQLite lists it. Only a table has columns here."""

    kind: str
    name: str
    table: str
    sql: str
    columns: frozenset[str]


_VERSIONS: Final = Part(
    "table", "taskmanager_schema", "taskmanager_schema", _CREATE_VERSIONS, frozenset({"version", "name", "applied_at"})
)


@cache
def migrations() -> list[Migration]:
    """Return all steps that this version of the library knows, in order."""
    return [Migration._make(each) for each in scripts_of("taskmanager.store.sqlite")]


def statements(script: str) -> Iterator[str]:
    """Yield the statements of a script. `executescript` would commit the transaction we are in."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""


def version(connection: SqliteSession) -> int:
    """Return the number of the last step applied to this file, 0 for none."""
    return max(_applied(connection), default=0)


def _applied(connection: SqliteSession) -> frozenset[int]:
    exists = connection.execute(
        "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'taskmanager_schema'"
    ).fetchone()
    if exists is None:
        return frozenset()
    return frozenset(number for (number,) in connection.execute("SELECT version FROM taskmanager_schema").fetchall())


def shape(connection: SqliteSession) -> str:
    """Return a short text that differs between any two schemas: the versions applied, and what SQL made the parts."""
    rows = connection.execute("SELECT name, type, tbl_name, sql FROM sqlite_master WHERE name GLOB 'taskmanager_*'")
    parts = sorted(repr(row) for row in rows.fetchall())
    if not parts:
        return ""
    try:
        versions = connection.execute("SELECT version FROM taskmanager_schema ORDER BY version").fetchall()
    except sqlite3.OperationalError:  # it is not there, or is not what it was
        return ""
    numbers = "-".join(str(number) for (number,) in versions)
    text = "\n".join(parts).encode(errors="backslashreplace")
    return f"{numbers} {len(text)} {binascii.crc32(text):08x}"


def least_version() -> int:
    """Return the version that a file must have for this version of the library to use it."""
    return max(step.version for step in migrations() if not step.can_wait)


def never_dead(_instance_id: str) -> bool:
    """Take every registered instance for a living one. Stands in where nobody can tell."""
    return False


def migrate(connection: SqliteSession, path: str, is_dead: Callable[[str], bool] = never_dead) -> None:
    """Bring the file to the newest schema, and make anew what it has lost of it.

    `is_dead` tells of an instance that is registered in the file whether it has ended. Raises `StoreError` if a newer
    version of the library wrote the file, if another program has changed what is ours, or if a living instance uses
    what a step takes away.
    """
    if shape(connection) == NEWEST:
        return
    steps = migrations()
    newest = steps[-1].version
    # Without a lock first: a file that needs nothing opens while somebody else is writing.
    _version_known(connection, newest, path)
    if not _pending(connection, path, is_dead) and not _missing(connection, steps, path):
        return
    with connection.transaction():
        _make_whole(connection, path)
    pending, is_older = _pending(connection, path, is_dead), bool(_applied(connection))
    for part in [[step] for step in pending] if is_older else [pending]:  # nobody waits yet to write into a new file
        with connection.transaction():
            _version_known(connection, newest, path)
            allowed = _pending(connection, path, is_dead)  # an older instance may have started while a step was applied
            for step in part:
                if step in allowed:
                    _apply(connection, step)
            if is_older:
                _spell_anew(connection, steps)


def _pending(connection: SqliteSession, path: str, is_dead: Callable[[str], bool]) -> Sequence[Migration]:
    """Return the steps to apply now. Raise `StoreError` if that would harm somebody."""
    applied = _applied(connection)
    pending = [step for step in migrations() if step.version not in applied]
    harmful = [step for step in pending if step.takes_away]
    living = _living(connection, is_dead) if harmful and applied else []
    if not living:
        return pending
    if not all(step.can_wait for step in harmful):
        raise StoreError(
            f"{path} has schema version {max(applied)}, and the way to {pending[-1].version} takes away what is in use "
            f"by {_listed(living)}; stop these first, then start again"
        )
    return [step for step in pending if not step.can_wait]


def _living(connection: SqliteSession, is_dead: Callable[[str], bool]) -> list[str]:
    """Describe the instances that use the file."""
    if "taskmanager_instances" not in _found(connection):
        return []
    query = "SELECT instance_id, pid, hostname FROM taskmanager_instances ORDER BY started_at, instance_id"
    rows = connection.execute(query).fetchall()
    return [f"instance {each} (process {pid} on {host})" for each, pid, host in rows if not is_dead(each)]


def check_version(connection: SqliteSession, path: str) -> None:
    """Raise `StoreError` unless the file has the whole schema of this version. Views may be missing.

    This is for readers, which make nothing.
    """
    if shape(connection) == NEWEST:
        return
    steps = migrations()
    least = least_version()
    current = _version_known(connection, steps[-1].version, path)
    check_is_ours(connection, path)
    if current < least and _real_version(connection, current, path) < least:
        raise StoreError(
            f"{path} has schema version {current}, this version of taskmanager needs {least}; "
            "start the application with this version once, it migrates the file"
        )
    missing = _missing(connection, steps, path)
    tables = [part.name for part in missing if part.kind == "table"]  # and with them their indexes
    lost = tables + [part.name for part in missing if part.kind == "index" and part.table not in tables]
    if current < least:
        lost.append("taskmanager_schema" if current == 0 else f"the rows of taskmanager_schema above {current}")
    if lost:
        raise StoreError(
            f"{path} has lost {_listed(lost)}: another program has dropped that; restart the application, it makes "
            "that anew (what a dropped table held is gone, a backup has it)"
        )


def missing_views(connection: SqliteSession) -> list[str]:
    """Return the views that the file has lost. `check_version` has passed before, so nothing else is missing."""
    return [part.name for part in _missing(connection, migrations(), "the file")]


def check_is_ours(connection: SqliteSession, path: str) -> None:
    """Raise `StoreError` unless the file has anything of this library, of whatever version."""
    if not _found(connection):
        raise StoreError(f"{path} is a database without tasks; give the path of the file that the application writes")


def _version_known(connection: SqliteSession, newest: int, path: str) -> int:
    _refuse_changed(connection, [_VERSIONS], path)
    current = version(connection)
    if current > newest:
        raise StoreError(
            f"{path} has schema version {current}, this version of taskmanager knows {newest}; "
            "upgrade taskmanager, or use another file"
        )
    return current


def create(connection: SqliteSession, steps: Sequence[Migration]) -> None:
    """Make what these steps make, in a database that nobody else sees."""
    for step in steps:
        _apply(connection, step)


def _apply(connection: SqliteSession, step: Migration) -> None:
    connection.execute(_CREATE_VERSIONS)
    for statement in statements(step.script):
        connection.execute(statement)
    connection.execute(_ADD_VERSION, (step.version, step.name))


def _spell_anew(connection: SqliteSession, steps: Sequence[Migration]) -> None:
    """Give the tables of an older file the text of today where that means the same: comparisons in place of lists.

    This is the way that SQLite documents for changes that leave the rows as they are. Where it is forbidden, as it is
    in the SQLite of macOS, the tables stay as they are and are written more slowly.
    """
    texts = {part.name: part.sql for part in _parts(steps, steps[-1].version) if part.kind == "table"}
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
    older = [(name, sql) for name, sql in rows if name in texts and sql != texts[name]]
    changes = [(texts[name], name) for name, sql in older if _words(sql) == _words(texts[name])]
    if not changes:
        return
    (number,) = connection.execute("PRAGMA schema_version").fetchone()
    connection.execute("PRAGMA writable_schema = ON")
    try:
        for change in changes:
            connection.execute("UPDATE sqlite_master SET sql = ? WHERE type = 'table' AND name = ?", change)
        connection.execute(f"PRAGMA schema_version = {number + 1}")  # or other connections would not read it again
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        logger.debug("the CHECKs of an older file stay lists: %s", error)
    finally:
        connection.execute("PRAGMA writable_schema = OFF")


def _words(sql: str) -> list[str]:
    """Return the words and signs of the text of a table, with a comparison for each text of a list."""
    compared = re.sub(_LIST, lambda it: " OR ".join(f"{it[1]} = {each}" for each in it[2].split(", ")), sql)
    return re.findall(r"\w+|[^\w\s]", compared)


# What another program has dropped.


def _make_whole(connection: SqliteSession, path: str) -> None:
    """Make anew what the file lacks of its version. Leave a file alone that has nothing of ours."""
    if not _found(connection):
        return
    real = _real_version(connection, _version_known(connection, migrations()[-1].version, path), path)
    steps = [step for step in migrations() if step.version <= real]
    missing = _missing(connection, steps, path)
    connection.execute(_CREATE_VERSIONS)
    for step in steps:
        if not step.can_wait:  # one that waits has left no trace, and may be applied twice
            connection.execute(_ADD_VERSION, (step.version, step.name))
    for part in missing:
        connection.execute(part.sql)
    if any(part.name == "taskmanager_tasks" for part in missing):  # what belongs to a task belongs to nothing now
        for table in _OF_TASKS & _found(connection).keys():
            connection.execute(f"DELETE FROM {table}")
    if tables := [part.name for part in missing if part.kind == "table"]:
        logger.error(
            "%s had lost %s, which another program has dropped: made anew, and empty. A backup has what was in it; "
            "the page on storage says how to keep alembic from dropping it",
            path,
            _listed(tables),
        )
    elif missing:
        logger.warning("%s had lost %s: made anew", path, _listed([part.name for part in missing]))


def _real_version(connection: SqliteSession, current: int, path: str) -> int:
    """Return the true version of the file, also if `taskmanager_schema` has lost rows.

    That is the last version above `current` of which the file has a part that `current` lacks, and all columns. If
    there is none, it is `current`.
    """
    found = _found(connection)
    steps = migrations()
    explained = {part.name for part in _parts(steps, current)}
    for step in reversed(steps):
        if step.version > current:
            parts = _parts(steps, step.version)
            if any(part.name in found.keys() - explained for part in parts) and not _changed(connection, parts):
                return step.version
    _refuse_changed(connection, _parts(steps, current or steps[-1].version), path)
    return current


def _missing(connection: SqliteSession, steps: Sequence[Migration], path: str) -> list[Part]:
    """Return what the file lacks of these steps, in the order in which it can be made.

    Raises `StoreError` if another program has changed what is there, so that the rest cannot be made.
    """
    parts = _parts(steps, steps[-1].version) if steps else []
    _refuse_changed(connection, parts, path)
    found = _found(connection)
    return [part for part in parts if part.name not in found]


def _refuse_changed(connection: SqliteSession, parts: Sequence[Part], path: str) -> None:
    if changed := _changed(connection, parts):
        raise StoreError(
            f"{path} cannot be used: another program has changed what belongs to taskmanager, {'; '.join(changed)}. "
            "Restore a backup; or rename or drop that, and the next start makes it anew, without what it held"
        )


def _changed(connection: SqliteSession, parts: Sequence[Part]) -> list[str]:
    """Describe what has a name of ours but is of another kind, and the tables that lack columns of ours."""
    changed, found = [], _found(connection)
    for part in parts:
        there = found.get(part.name)
        if there is None:
            continue
        if there != (part.kind, part.table):
            changed.append(f"{part.name} is not the {part.kind} that it was")
        elif part.columns and (lost := part.columns - _columns(connection, part.name)):
            changed.append(f"{part.name} lacks {_listed(sorted(lost))}")
    return changed


def _found(connection: SqliteSession) -> dict[str, tuple[str, str]]:
    """Return the kind and the table of everything in the file that has a name of ours."""
    rows = connection.execute("SELECT name, type, tbl_name FROM sqlite_master WHERE name GLOB 'taskmanager_*'")
    return {name: (kind, table) for name, kind, table in rows.fetchall()}


def _parts(steps: Sequence[Migration], number: int) -> Sequence[Part]:
    return _parts_of(tuple(step for step in steps if step.version <= number))


@cache
def _parts_of(steps: tuple[Migration, ...]) -> list[Part]:
    """Return what a file has after these steps. They are applied to an empty database to find out."""
    with closing(SqliteSession(":memory:", isolation_level=None)) as connection:
        create(connection, steps)
        rows = connection.execute(
            "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name <> 'taskmanager_schema'"
            " ORDER BY CASE type WHEN 'table' THEN 1 WHEN 'index' THEN 2 ELSE 3 END"
        ).fetchall()
        return [
            Part(kind, name, table, sql, _columns(connection, name) if kind == "table" else frozenset())
            for kind, name, table, sql in rows
        ]


def _columns(connection: SqliteSession, table: str) -> frozenset[str]:
    return frozenset(name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,)))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
