"""`taskmanager list`: the records of the file, newest first."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from taskmanager.cli.database import db_option, json_option, read
from taskmanager.cli.filters import filter_options, search_of, tell_what_was_meant
from taskmanager.cli.output import answer_json, draw, screen
from taskmanager.cli.task_ids import the_task
from taskmanager.console.cause import MAX_CHARS
from taskmanager.console.documents import record_document
from taskmanager.engine.instance import is_dead
from taskmanager.model.clock import SystemClock
from taskmanager.model.escaping import escaped
from taskmanager.model.record import TaskRow
from taskmanager.model.states import LIVE, TaskStatus
from taskmanager.model.wording import counted
from taskmanager.store.sqlite.search import Search, error_messages, find, memory_only

DEFAULT_LIMIT: Final = 20

EPILOG: Final = """
\b
Examples:
  taskmanager list
  taskmanager list --status FAILED --since 1h
  taskmanager list --task 'app.jobs:*' --limit 200 --json

"when" says how long a task has been running or waiting, how soon it is due, or how long ago it ended.
A memory-only task is in the file once it has ended, up to a minute later.
"""


@click.command("list", epilog=EPILOG)
@filter_options
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000_000),
    default=DEFAULT_LIMIT,
    show_default=True,
    metavar="N",
    help="At most this many tasks.",
)
@click.option("--before", metavar="ID", help="Only tasks older than this one, the last of the previous page.")
@db_option
@json_option
def list_tasks(limit: int, before: str | None, db: Path, as_json: bool, **filters: Any) -> None:
    """List tasks, newest first."""
    search = search_of(**filters)
    with read(db) as connection:
        if before is not None:
            search = search._replace(before=the_task(connection, before))
        rows = find(connection, search, limit)
        if not rows:
            tell_what_was_meant(connection, search)
        database = db.absolute()
        messages = error_messages(connection, [row.task_id for row in rows], MAX_CHARS)
        unseen = [each for each in memory_only(connection) if not is_dead(database, each.instance_id)]
    owners = [row.claimed_by_worker_id for row in rows if row.status in LIVE and row.claimed_by_worker_id is not None]
    dead = {owner for owner in set(owners) if is_dead(database, owner)}
    if as_json:
        answer_json([record_document(row) for row in rows])
        return
    _show(rows, messages, search, limit)
    if dead:
        held = counted(sum(owner in dead for owner in owners), "task")
        click.echo(f"\nheld by dead instances: {held}; a start, or `taskmanager recover`, gives them back")
    if unseen and search in (Search(), Search(statuses=(TaskStatus.RUNNING,))):
        what = counted(len(unseen), "memory-only task")
        click.echo(f"\nrunning, not in the file: {what}; see `taskmanager status`")


def _show(rows: Sequence[TaskRow], messages: Mapping[str, str], search: Search, limit: int) -> None:
    if not rows:
        click.echo("no tasks" if search.is_everything else "no such tasks")
        return
    from taskmanager.console.terminal.tables import task_table

    draw(task_table(rows, messages, SystemClock().now_us(), screen().width))
    if len(rows) == limit:
        click.echo()
        click.echo(escaped(f"older ones: --before {rows[-1].task_id}"))
