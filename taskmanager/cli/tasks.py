"""`taskmanager list` and `show`: the records of the file, and one of them with everything that the file knows of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from taskmanager.cli.database import read, the_task
from taskmanager.cli.options import db_option, filter_options, json_option, search_of, tell_what_was_meant
from taskmanager.cli.output import answer_json, draw, screen
from taskmanager.console.cause import MAX_CHARS
from taskmanager.console.documents import attempt_document, record_document
from taskmanager.console.figures import iso
from taskmanager.console.outlook import outlook, surroundings
from taskmanager.engine.instance import is_dead
from taskmanager.model.clock import SystemClock
from taskmanager.model.errors import UnknownTask
from taskmanager.model.escaping import escaped
from taskmanager.model.record import TaskRow
from taskmanager.model.states import LIVE, TaskStatus
from taskmanager.model.wording import counted
from taskmanager.store.sqlite.queries import fetch, fetch_attempts, instances, paused_queues
from taskmanager.store.sqlite.reading import snapshot
from taskmanager.store.sqlite.search import Search, error_messages, find, memory_only

LIST_EPILOG: Final = """
\b
Examples:
  taskmanager list
  taskmanager list --status FAILED --since 1h
  taskmanager list --task 'app.jobs:*' --limit 200 --json

"when" says how long a task has been running or waiting, how soon it is due, or how long ago it ended.
A memory-only task is in the file once it has ended, up to a minute later.
"""
SHOW_EPILOG: Final = """
\b
Examples:
  taskmanager show 01a22079-3add-750c-9d03-39fd28862abb
  taskmanager show 28862abb
  taskmanager show 28862abb --json

A beginning or an end of the id is enough, if no other task shares it.
"""


@click.command("list", epilog=LIST_EPILOG)
@filter_options
@click.option(
    "--limit", type=click.IntRange(1, 1_000_000), default=20, show_default=True, metavar="N",
    help="At most this many tasks.",
)  # fmt: skip
@click.option("--before", metavar="ID", help="Only tasks older than this one, the last of the previous page.")
@db_option
@json_option
def list_tasks(limit: int, before: str | None, db: Path, as_json: bool, **filters: Any) -> None:
    """List tasks, newest first."""
    search, database = search_of(**filters), db.absolute()
    with read(db) as connection:
        if before is not None:
            search = search._replace(before=the_task(connection, before))
        rows = find(connection, search, limit)
        if not rows:
            tell_what_was_meant(connection, search)
        messages = error_messages(connection, [row.task_id for row in rows], MAX_CHARS)
        unseen = [each for each in memory_only(connection) if not is_dead(database, each.instance_id)]
    if as_json:
        answer_json([record_document(row) for row in rows])
        return
    _draw(rows, messages, search, limit)
    owners = [row.claimed_by_worker_id for row in rows if row.status in LIVE and row.claimed_by_worker_id is not None]
    dead = {owner for owner in set(owners) if is_dead(database, owner)}
    if dead:
        held = counted(sum(owner in dead for owner in owners), "task")
        click.echo(f"\nheld by dead instances: {held}; a start, or `taskmanager recover`, gives them back")
    if unseen and search in (Search(), Search(statuses=(TaskStatus.RUNNING,))):
        what = counted(len(unseen), "memory-only task")
        click.echo(f"\nrunning, not in the file: {what}; see `taskmanager status`")


def _draw(rows: Sequence[TaskRow], messages: Mapping[str, str], search: Search, limit: int) -> None:
    if not rows:
        click.echo("no tasks" if search.is_everything else "no such tasks")
        return
    from taskmanager.console.terminal.tables import task_table

    draw(task_table(rows, messages, SystemClock().now_us(), screen().width))
    if len(rows) == limit:
        click.echo(f"\nolder ones: --before {escaped(rows[-1].task_id)}")


@click.command(epilog=SHOW_EPILOG)
@click.argument("task_id", metavar="ID")
@db_option
@json_option
def show(task_id: str, db: Path, as_json: bool) -> None:
    """Show one task: its record, every attempt, its log, what happens next."""
    with read(db) as connection, snapshot(connection):
        wanted = the_task(connection, task_id)
        row = fetch(connection, wanted)
        if row is None:  # a snapshot does not lose rows
            raise UnknownTask(f"there is no task {wanted}")
        attempts, known = fetch_attempts(connection, wanted), instances(connection)
        is_paused = row.queue_name in paused_queues(connection)
    around = surroundings(row, known, db.absolute(), SystemClock().now_us(), is_paused=is_paused)
    next_step = outlook(row, around)
    if as_json:
        after = {"text": next_step.text, "at": None if next_step.at is None else iso(next_step.at)}
        told = [attempt_document(each) for each in attempts]
        answer_json({**record_document(row), "attempts": told, "next": after})
        return
    from taskmanager.console.terminal.record import Record, record_view

    draw(record_view(Record(row, attempts, next_step, around.owner, around.now_us)))
