"""The schema as numbered migrations, each applied in one transaction with its version row.

Several programs may start at once. An advisory lock lets one of them at a time look and change; it is not one of the
tables, so nobody else waits for it. A lock of a table is waited for at most a second: whoever asks for the same table
stands behind us meanwhile. Then all of it is done again, for half a minute.

A schema that has all that it must have costs one query, and no right but to read.

A step that adds runs beside older instances: their statements still find all that they name. A step that drops or
renames runs only when nobody else lives. If it drops indexes alone, the schema works without it, so it waits for a
later start, and steps behind it do not wait; any other refuses the start, and names who lives.

A step whose first line says `-- outside a transaction` is for CREATE INDEX CONCURRENTLY and DROP INDEX CONCURRENTLY. It
may be done twice: an index that was left half built is dropped and built again. It waits for all transactions that are
open in the database. So where there is no task yet it is done in a transaction like the others, which is over at once.

What another program has dropped is made anew, and said.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import psycopg
from psycopg import errors

from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.model.logger import logger
from taskmanager.store.postgresql.found import Connection, Found, literal, look, quoted, run, text_of
from taskmanager.store.postgresql.parts import Migration, Part, least_version, migrations, parts_of, statements

LOCK_CLASS: Final = 0x6D696772
"""The first half of the lock of those who migrate; the second is made from the schema's name."""
ATTEMPTS: Final = 30
"""Each waits for a second, or less."""
_INDEX_WAIT_S: Final = 30
"""An index that is built beside others waits for transactions that began before it. It keeps nobody from writing."""

_CREATE_VERSIONS: Final = """CREATE TABLE IF NOT EXISTS taskmanager_schema (
    version integer NOT NULL PRIMARY KEY,
    name text COLLATE "C" NOT NULL,
    applied_at bigint NOT NULL
)"""
_ADD_VERSION: Final = (
    "INSERT INTO taskmanager_schema (version, name, applied_at)"
    " VALUES ({0}, '{1}', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) ON CONFLICT DO NOTHING"
)
_REFERENCES: Final = re.compile(r"FOREIGN\s+KEY\s+\((\w+)\)\s+REFERENCES\s+(\w+)\s+\((\w+)\)")
_INDEX: Final = re.compile(r"\bINDEX\s+(CONCURRENTLY\s+)?(IF\s+(NOT\s+)?EXISTS\s+)?")
_CONCURRENTLY: Final = re.compile(r"\bINDEX\s+CONCURRENTLY\b")
_REPEATED: Final = (
    errors.LockNotAvailable, errors.DeadlockDetected, errors.SerializationFailure, errors.UniqueViolation,
    errors.DuplicateTable, errors.DuplicateObject, errors.DuplicateSchema,
)  # fmt: skip


_SCRIPT_HEAD: Final = """\
-- The tables of taskmanager. Run this with psql, as the role that owns them or will own them:
--     psql --no-psqlrc --file=this.sql <database>
-- It does what is not done yet. A step that drops or renames something says so; stop all instances before that.
\\set ON_ERROR_STOP on
SET client_min_messages = warning;
{begin}CREATE SCHEMA IF NOT EXISTS {schema};
{versions};
COMMIT;
"""
_GRANTS: Final = """
-- Rights, which this script does not give. For the role of the application, which then needs no DDL:
--     GRANT USAGE ON SCHEMA {schema} TO app;
--     GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO app;
-- What later versions add, if the same role makes it:
--     ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO app;
-- For a program that only enqueues, through `manager.insert_statement`:
--     GRANT USAGE ON SCHEMA {schema} TO sender;
--     GRANT INSERT ON {schema}.taskmanager_tasks TO sender;
-- For people who look, and for the dashboard if it must not act:
--     GRANT USAGE ON SCHEMA {schema} TO reader;
--     GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO reader;
"""


def never_dead(_instance_id: str) -> bool:
    """Take every registered instance for a living one. Stands in where nobody can tell."""
    return False


def _lock(schema: str) -> str:
    return f"{LOCK_CLASS}, hashtext({literal(schema)})"


def channel_of(queue_name: str) -> str:
    """Return the channel on which a new task of this queue is told, if it was not the library that wrote it."""
    name = queue_name.encode()
    return "task_queue_" + (queue_name if len(name) <= 52 else hashlib.sha256(name).hexdigest()[:32])


def version(connection: Connection, schema: str) -> int:
    """Return the number of the last step applied to this schema, 0 for none."""
    return look(connection, schema).version


def migrate(
    connection: Connection,
    schema: str,
    is_dead: Callable[[str], bool] = never_dead,
    *,
    shown: str | None = None,
    is_pooled: bool = False,
) -> None:
    """Make the schema, or bring it to the newest version, and make anew what it has lost. Needs autocommit.

    `is_dead` tells of an instance that is registered there whether it has ended. `shown` is what messages call the
    place. Behind a pooler (`is_pooled`) only that is done which is done in one transaction.

    Raises `StoreError` if a newer version of the library made the schema, if a right is missing, if another program has
    changed what is ours, or if a living instance uses what a step takes away; `StoreUnavailable` if others have kept us
    waiting for too long.
    """
    _Migrator(connection, schema, shown or f"schema {schema}", is_dead, is_pooled=is_pooled).bring()


def check_version(connection: Connection, schema: str, *, shown: str | None = None) -> None:
    """Raise `StoreError` unless the schema has all tables and indexes of this version. This is for readers."""
    place, found, steps = shown or f"schema {schema}", look(connection, schema), migrations()
    least = least_version(steps)
    _refuse_unknown(found, steps, place)
    if not found.kinds:
        raise StoreError(f"{place} has no tasks; give the address of the schema that the application writes")
    if max(found.version, found.real_version(steps)) < least:
        raise StoreError(
            f"{place} has schema version {found.version}, this version of taskmanager needs {least}; "
            "start the application with this version once, it migrates the schema"
        )
    lost = [part.name for part in found.missing(parts_of(steps)) if part.kind in ("table", "index")]
    if found.version < least:
        lost.append("the rows of taskmanager_schema")
    if lost:
        raise StoreError(
            f"{place} has lost {', '.join(lost)}: another program has dropped that; restart the application, it makes "
            "that anew (what a dropped table held is gone, a backup has it)"
        )


def script(schema: str) -> str:
    """Return all SQL for `psql`, as a DBA runs it. It does what is not done yet, and may be run again."""
    name = quoted(schema)
    begin = (
        f"BEGIN;\nSET LOCAL lock_timeout = '30s';\nSET LOCAL search_path = {name};\n"
        f"SELECT pg_advisory_xact_lock({_lock(schema)}) \\g /dev/null\n"
    )
    text = [_SCRIPT_HEAD.format(begin=begin, schema=name, versions=_CREATE_VERSIONS)]
    for step in migrations():
        due = f"NOT EXISTS (SELECT FROM {name}.taskmanager_schema WHERE version = {step.version})"
        done = _ADD_VERSION.format(step.version, step.name) + ";"
        body = step.script.strip()
        if step.is_outside:
            done = f"RESET search_path;\nINSERT INTO {name}.{done.removeprefix('INSERT INTO ')}"
            body = f"SET search_path = {name};\n{body}\n{done}"
        else:
            body = f"{begin}{body}\n{done}\nCOMMIT;"
        text.append(f"\n-- {step.version}: {step.name}\nSELECT {due} AS is_due \\gset\n\\if :is_due\n{body}\n\\endif\n")
    return "".join(text) + _GRANTS.format(schema=name)


def _refuse_unknown(found: Found, steps: Sequence[Migration], place: str) -> None:
    """Raise `StoreError` for what a newer version has made, and for what another program has changed."""
    if found.version > steps[-1].version:
        raise StoreError(
            f"{place} has schema version {found.version}, this version of taskmanager knows {steps[-1].version}; "
            "upgrade taskmanager, or use another schema"
        )
    known = [step for step in steps if step.version <= found.real_version(steps)]
    if changed := found.changed(parts_of(known)):
        raise StoreError(
            f"{place} cannot be used: another program has changed what belongs to taskmanager, {'; '.join(changed)}. "
            "Restore a backup; or rename or drop that, and the next start makes it anew, without what it held"
        )


def _in_transaction(statement: str) -> str:
    """Return a statement as a transaction may hold it."""
    return _CONCURRENTLY.sub("INDEX", statement, count=1)


class _Migrator:
    """What one start does to one schema."""

    def __init__(
        self, connection: Connection, schema: str, place: str, is_dead: Callable[[str], bool], *, is_pooled: bool
    ) -> None:
        self._connection = connection
        self._schema = schema
        self._place = place
        self._is_dead = is_dead
        self._is_pooled = is_pooled
        self._steps = migrations()

    def bring(self) -> None:
        """Do what is to do."""
        found = self._look()
        if not self._pending(found) and not found.missing(parts_of(self._steps)):
            return
        try:
            self._repeat(self._make_whole)
            for step in self._pending(self._look()):
                self._repeat(partial(self._apply, step))
        except errors.InsufficientPrivilege as exc:
            self._explain(exc)

    def _look(self) -> Found:
        found = look(self._connection, self._schema)
        _refuse_unknown(found, self._steps, self._place)
        return found

    def _repeat(self, function: Callable[[], None]) -> None:
        for number in range(ATTEMPTS):
            try:
                function()
                return
            except _REPEATED as exc:
                if number == ATTEMPTS - 1:
                    raise StoreUnavailable(
                        f"{self._place} cannot be migrated now ({text_of(exc)}): others have held locks for "
                        f"{ATTEMPTS} s; end the transactions that are open (pg_stat_activity), then start again"
                    ) from exc

    @contextmanager
    def _alone(self) -> Iterator[Found]:
        """Open a transaction in which nobody else migrates this schema."""
        with self._connection.transaction():
            self._run("SET LOCAL lock_timeout = '1s'; SET LOCAL statement_timeout = 0")
            self._run("SET LOCAL client_min_messages = 'warning'")
            self._run(f"SELECT pg_advisory_xact_lock({_lock(self._schema)})")
            if not self._run(f"SELECT 1 FROM pg_namespace WHERE nspname = {literal(self._schema)}").fetchone():
                self._run(f"CREATE SCHEMA {quoted(self._schema)}")
            self._run(f"SET LOCAL search_path = {quoted(self._schema)}")
            self._run(_CREATE_VERSIONS)
            yield self._look()

    def _apply(self, step: Migration) -> None:
        with self._alone() as found:
            if step.version in found.applied:
                return
            if not step.is_outside or self._has_no_task():
                for statement in statements(step.script):
                    self._run(_in_transaction(statement))
                self._run(_ADD_VERSION.format(step.version, step.name))
                return
        if self._is_pooled:
            raise StoreError(
                f"{self._place} is reached through a pooler, and step {step.version} of its schema needs a session "
                "of its own: add direct=host:port to the URL, the address of the server itself, or let a DBA run "
                "what `taskmanager migrate --sql` prints"
            )
        for statement in statements(step.script):
            self._build(statement)
        with self._alone():
            self._run(_ADD_VERSION.format(step.version, step.name))

    def _has_no_task(self) -> bool:
        return self._run("SELECT FROM taskmanager_tasks LIMIT 1").fetchone() is None

    def _pending(self, found: Found) -> list[Migration]:
        """Return the steps to apply now. Raise `StoreError` if that would harm somebody."""
        real = found.real_version(self._steps)
        pending = [step for step in self._steps if step.version not in found.applied]
        harmful = [step for step in pending if step.takes_away and step.version > real]
        living = self._living(found) if harmful and found.applied else []
        if not living:
            return pending
        if not all(step.can_wait for step in harmful):
            raise StoreError(
                f"{self._place} has schema version {found.version}, and the way to {pending[-1].version} takes away "
                f"what is in use by {', '.join(living)}; stop these first, then start again"
            )
        return [step for step in pending if not step.can_wait]

    def _living(self, found: Found) -> list[str]:
        """Describe the instances that use the schema."""
        if "taskmanager_instances" not in found.kinds:
            return []
        rows = self._run(
            f"SELECT instance_id, pid, hostname FROM {quoted(self._schema)}.taskmanager_instances"
            " ORDER BY started_at, instance_id"
        ).fetchall()
        return [f"instance {each} (process {pid} on {host})" for each, pid, host in rows if not self._is_dead(each)]

    def _explain(self, exc: errors.InsufficientPrivilege) -> None:
        """Raise `StoreError`, unless all is there that the library needs."""
        found = self._look()
        parts = parts_of(self._steps)
        missing = found.missing(parts)
        if found.version >= least_version(self._steps) and not any(part.kind in ("table", "index") for part in missing):
            logger.warning(
                "%s: a right is missing to change the schema (%s); a DBA should run what `taskmanager migrate --sql` "
                "prints. All that the library itself needs is there",
                self._place,
                text_of(exc),
            )
            return
        raise StoreError(
            f"{self._place} has schema version {found.version}, this version of taskmanager needs "
            f"{least_version(self._steps)}, and a right is missing to change it ({text_of(exc)}); let a DBA run what "
            "`taskmanager migrate --sql` prints, or grant CREATE"
        ) from exc

    # What another program has dropped, and what is built beside others.

    def _make_whole(self) -> None:
        """Make anew what the schema lacks of its version. Leave one alone that has nothing of ours."""
        found = self._look()
        real = found.real_version(self._steps)
        steps = [step for step in self._steps if step.version <= real]
        missing = found.missing(parts_of(steps))
        if not missing and steps == [step for step in steps if step.version in found.applied or step.can_wait]:
            return
        tables = [part.name for part in missing if part.kind == "table"]
        beside = [part for part in missing if part.kind == "index" and part.table not in tables and not self._is_pooled]
        with self._alone() as found:
            again = found.missing(parts_of(steps))
            for step in steps:
                if not step.can_wait:  # one that waits has left no trace, and may be applied twice
                    self._run(_ADD_VERSION.format(step.version, step.name))
            for part in again:
                if part not in beside:
                    self._make(part)
        for part in beside:
            self._build(part.statements[0])
        self._tell(tables, missing)

    def _make(self, part: Part) -> None:
        if key := _REFERENCES.search(part.statements[0]):  # what belongs to a lost row belongs to nothing now
            column, table, name = key.groups()
            self._run(
                f"DELETE FROM {part.table} AS t"
                f" WHERE NOT EXISTS (SELECT FROM {table} AS other WHERE other.{name} = t.{column})"
            )
        for statement in part.statements:
            self._run(_in_transaction(statement))

    def _tell(self, tables: Sequence[str], missing: Sequence[Part]) -> None:
        if tables:
            logger.error(
                "%s had lost %s, which another program has dropped: made anew, and empty. A backup has what was in it",
                self._place,
                ", ".join(tables),
            )
        elif missing:
            logger.warning("%s had lost %s: made anew", self._place, ", ".join(part.name for part in missing))

    def _build(self, statement: str) -> None:
        """Build or drop an index without a transaction around it, while others write. It may be done already."""
        sql = _INDEX.sub("INDEX CONCURRENTLY ", statement, count=1)
        made = re.search(r"CREATE\s+(?:UNIQUE\s+)?INDEX CONCURRENTLY (\w+)", sql)
        with self._without_transaction():
            if made is None:
                self._run(re.sub(r"(INDEX CONCURRENTLY) (\w+)", rf"\1 IF EXISTS {quoted(self._schema)}.\2", sql))
                return
            kind = self._look().kinds.get(made[1])
            if kind == "invalid index":
                self._run(f"DROP INDEX CONCURRENTLY {quoted(self._schema)}.{made[1]}")
            if kind != "index":
                self._run(re.sub(r"\sON\s+(\w+)", rf" ON {quoted(self._schema)}.\1", sql, count=1))

    @contextmanager
    def _without_transaction(self) -> Iterator[None]:
        """Hold the lock of those who migrate with the session. Behind a pooler this needs the direct address."""
        self._run(f"SET lock_timeout = '{_INDEX_WAIT_S}s'; SET statement_timeout = 0")
        try:
            self._run(f"SELECT pg_advisory_lock({_lock(self._schema)})")
            try:
                yield
            finally:
                self._run(f"SELECT pg_advisory_unlock({_lock(self._schema)})")
        finally:
            self._run("RESET lock_timeout; RESET statement_timeout")

    def _run(self, sql: str) -> "psycopg.Cursor[Any]":
        return run(self._connection, sql)
