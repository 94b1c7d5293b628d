"""`taskmanager list`: the records of the file, newest first."""

from pathlib import Path
from typing import Any, Final

import click

from taskmanager.cli.answering import answer_json, draw, screen
from taskmanager.cli.choosing import the_task
from taskmanager.cli.filtering import filter_options, search_of
from taskmanager.cli.opening import db_option, json_option, read
from taskmanager.cli.records import record
from taskmanager.model.clock import SystemClock
from taskmanager.store.sqlite.search import find

DEFAULT_LIMIT: Final = 20

EPILOG: Final = """
\b
Examples:
  taskmanager list
  taskmanager list --status FAILED --since 1h
  taskmanager list --task 'app.jobs:*' --limit 200 --json

A memory-only task is in the file when it has ended, up to a minute later.
"""


@click.command("list", epilog=EPILOG)
@filter_options
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=DEFAULT_LIMIT,
    show_default=True,
    metavar="N",
    help="At most.",
)
@click.option("--before", metavar="ID", help="Only tasks older than this one: the last of the page before.")
@db_option
@json_option
def list_tasks(limit: int, before: str | None, db: Path, as_json: bool, **filters: Any) -> None:
    """List tasks, newest first."""
    search = search_of(**filters)
    with read(db) as connection:
        if before is not None:
            search = search._replace(before=the_task(connection, before))
        rows = find(connection, search, limit)
    if as_json:
        answer_json([record(row) for row in rows])
        return
    if not rows:
        click.echo("no tasks" if search.is_everything else "no such tasks")
        return
    from taskmanager.console.listing import task_table

    draw(task_table(rows, SystemClock().now_us(), screen().width))
    if len(rows) == limit:
        click.echo(f"\nolder ones: --before {rows[-1].task_id}")
