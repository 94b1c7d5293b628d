"""What a database has of ours, found with one question that needs no right but to read."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import psycopg
from psycopg import errors

from taskmanager.model.errors import StoreError
from taskmanager.store.postgresql.parts import Migration, Part, parts_of

Connection = psycopg.Connection[Any]

_LOOK: Final = """
WITH ours AS (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = {name})
SELECT CASE c.relkind WHEN 'r' THEN 'table' WHEN 'p' THEN 'table' WHEN 'v' THEN 'view'
        WHEN 'i' THEN CASE WHEN i.indisvalid THEN 'index' ELSE 'invalid index' END ELSE 'relation' END,
    c.relname::text, (
    SELECT string_agg(a.attname, ' ') FROM pg_catalog.pg_attribute AS a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND c.relkind IN ('r', 'p')
)
FROM ours JOIN pg_catalog.pg_class AS c ON c.relnamespace = ours.oid
LEFT JOIN pg_catalog.pg_index AS i ON i.indexrelid = c.oid
WHERE starts_with(c.relname, 'taskmanager_') AND c.relkind <> 'S'
UNION ALL SELECT 'function', p.proname::text, NULL FROM ours JOIN pg_catalog.pg_proc AS p ON p.pronamespace = ours.oid
WHERE starts_with(p.proname, 'taskmanager_')
UNION ALL SELECT 'trigger', t.tgname::text, NULL FROM ours JOIN pg_catalog.pg_class AS c ON c.relnamespace = ours.oid
JOIN pg_catalog.pg_trigger AS t ON t.tgrelid = c.oid WHERE starts_with(t.tgname, 'taskmanager_')
UNION ALL SELECT 'constraint', f.conname::text, NULL FROM ours
JOIN pg_catalog.pg_constraint AS f ON f.connamespace = ours.oid AND f.contype = 'f'
WHERE starts_with(f.conname, 'taskmanager_')
"""
_VERSIONS: Final = "UNION ALL SELECT 'version', version::text, NULL FROM {schema}.taskmanager_schema"


class Found(NamedTuple):
    """What the database has of ours: the kind of each part by its name, columns of tables, and the versions applied."""

    kinds: dict[str, str]
    columns: dict[str, frozenset[str]]
    applied: frozenset[int]

    @property
    def version(self) -> int:
        """Return the last step that was applied, 0 for none."""
        return max(self.applied, default=0)

    def missing(self, parts: Mapping[str, Part]) -> list[Part]:
        """Return the parts that are not there, or are indexes that nobody can use."""
        return [part for part in parts.values() if self.kinds.get(part.name, "invalid index") == "invalid index"]

    def changed(self, parts: Mapping[str, Part]) -> list[str]:
        """Describe what has a name of ours but is of another kind, and the tables that lack columns of ours."""
        told = []
        for part in parts.values():
            kind = self.kinds.get(part.name, part.kind)
            if kind not in (part.kind, f"invalid {part.kind}"):
                told.append(f"{part.name} is not the {part.kind} that it was")
            elif lost := part.columns - self.columns.get(part.name, part.columns):
                told.append(f"{part.name} lacks {', '.join(sorted(lost))}")
        return told

    def real_version(self, steps: Sequence[Migration]) -> int:
        """Return the true version, also if `taskmanager_schema` has lost rows.

        That is the last one above `version` of which there is a part that `version` lacks, and all columns.
        """
        explained = parts_of([step for step in steps if step.version <= self.version])
        for step in reversed(steps):
            if step.version > self.version:
                parts = parts_of([each for each in steps if each.version <= step.version])
                if self.kinds.keys() & (parts.keys() - explained.keys()) and not self.changed(parts):
                    return step.version
        return self.version


def quoted(name: str) -> str:
    """Return a name as SQL spells it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as SQL spells it."""
    return "'" + text.replace("'", "''") + "'"


def look(connection: Connection, schema: str) -> Found:
    """Return what there is. Raises `StoreError` if the schema must not be read."""
    asked = _LOOK.format(name=literal(schema))
    try:
        rows = run(connection, asked + _VERSIONS.format(schema=quoted(schema))).fetchall()
    except (errors.UndefinedTable, errors.InvalidSchemaName, errors.UndefinedColumn):
        rows = run(connection, asked).fetchall()
    except errors.InsufficientPrivilege as exc:
        raise StoreError(
            f"the schema {schema} cannot be read ({text_of(exc)}); `taskmanager migrate --sql` shows the rights "
            "that the application's role needs"
        ) from exc
    kinds = {name: kind for kind, name, _ in rows if kind != "version"}
    columns = {name: frozenset(names.split()) for kind, name, names in rows if kind == "table" and names}
    return Found(kinds, columns, frozenset(int(name) for kind, name, _ in rows if kind == "version"))


def run(connection: Connection, sql: str) -> "psycopg.Cursor[Any]":
    """Do SQL that has no values."""
    return connection.execute(cast("Any", sql))


def text_of(error: Exception) -> str:
    """Return what an error says, in one line."""
    return " ".join(str(error).split())
