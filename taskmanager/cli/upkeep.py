"""`taskmanager recover`, `purge`, `backup` and `migrate`: for people who operate an application."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import click

from taskmanager.cli.database import check_is_there, read, write
from taskmanager.cli.options import (
    Duration,
    Status,
    answer,
    answer_json,
    confirm,
    error_option,
    file_options,
    tag_option,
    yes_option,
)
from taskmanager.console.acts import patiently
from taskmanager.duties.recovery import PAGE, Recovery
from taskmanager.engine.people.actions import PURGE_PAGE, repeated
from taskmanager.engine.words.instance import new_identity
from taskmanager.model.clock import MINUTE_US, SystemClock
from taskmanager.model.escaping import escaped
from taskmanager.model.record import TaskRow, expected_of
from taskmanager.model.states import TERMINAL, TaskStatus
from taskmanager.model.wording import counted
from taskmanager.store.place import Place
from taskmanager.store.protocol import Store, TaskFilter
from taskmanager.store.sql.queries import counts

RECOVER_EPILOG: Final = """\b
Examples:
  taskmanager recover
  taskmanager recover --frozen 5
  taskmanager recover --json

The application does the same at its start; use this when it cannot be started. Tasks that had not started, or are safe
to repeat, wait again. The others are retried if their policy says so, or else are FAILED with WORKER_CRASHED.

What another program has left half done in a workflow is put right too.

With --frozen, the tasks of instances that are alive and have sent no heartbeat for so many minutes are given back too.
When such a process wakes up, what it writes of them is refused.
"""
PURGE_EPILOG: Final = """\b
Examples:
  taskmanager purge --older-than 30d
  taskmanager purge --status COMPLETED --older-than 1d
  taskmanager purge --tag customer=42
  taskmanager purge

Deletes tasks that have ended, with their attempts and idempotency keys, and never a task that is waiting or running.
Without --status, --older-than, --tag or --error all ended tasks are deleted, so you have to confirm it, unless you give
--yes.
"""
BACKUP_EPILOG: Final = """\b
Examples:
  taskmanager backup /backups/tasks-monday.db
  taskmanager backup --force --db /data/tasks.db /backups/tasks.db

Works while the application runs, and holds up none of its writes. The copy is
the file as it was when the command began, with all that was committed then. It
is checked before it gets its name, and only you can read it. A file that is
there already is not replaced without --force.
"""
MIGRATE_EPILOG: Final = """\b
Examples:
  taskmanager migrate --db postgresql://owner@db.example.com/app
  taskmanager migrate --sql --db postgresql:///app?schema=jobs | psql app

The application does the same when it starts, if its role may. Where it may not,
a DBA runs this, or what --sql prints: it does what is not done yet, and ends
with the rights that the application needs. With --sql nothing is connected to.
"""
_ENDED: Final = tuple(status for status in TaskStatus if status in TERMINAL)


@click.command(epilog=RECOVER_EPILOG)
@file_options
@click.option(
    "--frozen", type=click.FloatRange(min=1), metavar="MINUTES",
    help="Also take what instances hold that are alive and have been silent for this long.",
)  # fmt: skip
def recover(db: Place, as_json: bool, frozen: float | None) -> None:
    """Give back the tasks of instances that have died.

    Dead is decided by the locks: an instance that lives holds its own, whatever its heartbeats say. On a server it must
    have been silent for a minute too, because a lost connection frees its lock.
    """
    orphans, dead, stale, nodes = write(db, lambda store: _recover(store, db, frozen))
    if as_json:
        names = ("task_id", "task_name", "status", "error_code")
        tasks = [{name: getattr(row, name) for name in names} for row in (*orphans, *stale)]
        counts_of = {"dead_instances": dead, "recovered": len(tasks), "of_frozen": len(stale), "of_workflows": nodes}
        answer_json({**counts_of, "tasks": tasks})
        return
    if nodes:
        click.echo(f"put right what was left half done in workflows: {counted(nodes, 'node')}")
    if stale:
        _tell(stale, "instances that are silent")
    if orphans:
        _tell(orphans, counted(dead, "dead instance"))
    elif dead:
        click.echo(f"nothing to recover; {counted(dead, 'dead instance')} cleared away")
    elif not (stale or nodes):
        click.echo("nothing to recover")


def _tell(rows: Sequence[TaskRow], whose: str) -> None:
    by_end = Counter((row.status, row.error_code) for row in rows)
    click.echo(f"{counted(len(rows), 'task')} of {whose} recovered:")
    for (status, code), number in sorted(by_end.items(), key=str):
        click.echo(f"  {number:,} {status}{f' {escaped(code)}' if code else ''}")


async def _recover(
    store: Store, place: Place, frozen_minutes: float | None
) -> tuple[list[TaskRow], int, list[TaskRow], int]:
    """Recover, and return the moved rows of dead instances, how many were dead, the moved rows of frozen ones, and how
    many nodes of workflows were put right.
    """
    clock = SystemClock()
    known = {each.instance_id for each in await store.instances()}
    dead = {each for each in known if place.is_dead(each)}
    before = await _orphans(store, place, known - dead)
    # What is recovered is said at the end, so nothing is told of each write.
    me = new_identity(None, clock.now_us())
    recovery = Recovery(store, clock, me, place, tell=lambda write: None)
    nodes = await patiently(partial(recovery.recover_workflows, 0))
    await patiently(recovery.run_once)
    # One whose lock file was put back meanwhile lives: what has become of its tasks is its own doing.
    alive = {each.instance_id for each in await store.instances()}
    moved = await _moved(store, [row for row in before if row.claimed_by_worker_id not in alive])
    dead_count = len({*dead, *(row.claimed_by_worker_id for row in before)} - alive)
    if frozen_minutes is None:
        return moved, dead_count, [], nodes
    rows = await recovery.stale(frozen_minutes * MINUTE_US)
    await recovery.recover_stale(rows)
    return moved, dead_count, await _moved(store, rows), nodes


async def _moved(store: Store, before: Sequence[TaskRow]) -> list[TaskRow]:
    """Return the present rows of those tasks that have changed since `before` was read."""
    moved: list[TaskRow] = []
    for start in range(0, len(before), PAGE):
        page = before[start : start + PAGE]
        now = await store.fetch_ids([row.task_id for row in page])
        moved += [now[row.task_id] for row in page if expected_of(now.get(row.task_id, row)) != expected_of(row)]
    return moved


async def _orphans(store: Store, place: Place, alive: set[str]) -> list[TaskRow]:
    found: list[TaskRow] = []
    after = ""
    while rows := await store.fetch_orphans(alive, limit=PAGE, after=after, is_summary=True):
        after = rows[-1].task_id
        # Whoever has registered since the list was read holds its lock.
        found += [row for row in rows if place.is_dead(row.claimed_by_worker_id or "")]
    return found


@click.command(epilog=PURGE_EPILOG)
@click.option("--status", type=Status(_ENDED), metavar="STATUS", help="Only tasks that ended like this.")
@click.option(
    "--older-than", type=Duration(), metavar="AGE", help="Only tasks that ended longer ago than this: 12h, 30d."
)
@tag_option
@error_option
@yes_option
@file_options
def purge(
    status: TaskStatus | None,
    older_than: int | None,
    tags: tuple[tuple[str, str], ...],
    error_code: str | None,
    yes: bool,
    db: Place,
    as_json: bool,
) -> None:
    """Delete the records of tasks that have ended."""
    if status is None and older_than is None and not tags and error_code is None and not yes:
        with read(db) as connection:
            by_status = counts(connection)
        if as_json:
            raise click.UsageError(
                "--json asks nothing; give --yes too, or say which: --status, --older-than, --tag, --error"
            )
        count = sum(by_status[each] for each in _ENDED)
        confirm(f"delete {'' if count == 1 else 'all '}{counted(count, 'record')} of ended tasks?")
    cutoff = None if older_than is None else SystemClock().now_us() - older_than
    wanted = TaskFilter(status, tags=tags, error_code=error_code)
    gone = write(db, lambda store: _in_pages(store, wanted, cutoff))
    answer({"deleted": gone}, f"{counted(gone, 'record')} deleted", as_json=as_json)


async def _in_pages(store: Store, wanted: TaskFilter, cutoff: int | None) -> int:
    gone = await repeated(lambda: patiently(lambda: store.purge(wanted, cutoff, PURGE_PAGE)))
    await repeated(lambda: patiently(store.shrink))  # also what an earlier one has left that was cut short
    return gone


@click.command(epilog=BACKUP_EPILOG)
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace FILE if it is there already.")
@file_options
def backup(file: Path, force: bool, db: Place, as_json: bool) -> None:
    """Copy the database into FILE, whether the application is running or not."""
    check_is_there(db)
    size_bytes = db.back_up(file, is_replacing=force)
    said = f"{db} was copied to {file} ({size_bytes / 1_000_000:,.1f} MB)"
    answer({"db": str(db), "file": str(file), "size_bytes": size_bytes}, said, as_json=as_json)


@click.command(epilog=MIGRATE_EPILOG)
@click.option("--sql", "is_sql", is_flag=True, help="Print the SQL for psql instead.")
@file_options
def migrate(is_sql: bool, db: Place, as_json: bool) -> None:
    """Bring the schema to this version of taskmanager, as a start does."""
    if is_sql:
        if as_json:
            raise click.UsageError("--sql and --json exclude each other: SQL is no JSON document")
        click.echo(db.script(), nl=False)
        return
    check_is_there(db)
    before = db.version()
    with db.write():
        pass  # it is brought to this version when it is opened
    after = db.version()
    said = f"{db} has schema version {after}" + ("; nothing was to do" if before == after else f", it had {before}")
    answer({"db": str(db), "before": before, "after": after}, said, as_json=as_json)
