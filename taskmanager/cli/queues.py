"""`taskmanager pause` and `resume`: for every instance on the file, until the opposite is said."""

from pathlib import Path
from typing import Final

import click

from taskmanager.cli.answering import answer_json
from taskmanager.cli.opening import db_option, json_option, patiently, read, write
from taskmanager.model.clock import SystemClock
from taskmanager.model.errors import StoreError
from taskmanager.store.sqlite.search import queue_names

EPILOG: Final = """
\b
Examples:
  taskmanager pause mail
  taskmanager resume mail

A paused queue starts nothing, in any instance, within a quarter of a second; what runs goes on, and what is enqueued
waits. It stays paused over restarts.
"""


@click.command(epilog=EPILOG)
@click.argument("queue_name", metavar="QUEUE")
@db_option
@json_option
def pause(queue_name: str, db: Path, as_json: bool) -> None:
    """Start nothing more of a queue, until it is resumed."""
    _set(queue_name, True, db, as_json)


@click.command(epilog=EPILOG)
@click.argument("queue_name", metavar="QUEUE")
@db_option
@json_option
def resume(queue_name: str, db: Path, as_json: bool) -> None:
    """Start tasks of a queue again."""
    _set(queue_name, False, db, as_json)


def _set(queue_name: str, paused: bool, db: Path, as_json: bool) -> None:
    with read(db) as connection:
        known = queue_names(connection)
    if queue_name not in known:
        names = ", ".join(sorted(known)) or "none yet"
        raise StoreError(f"there is no queue {queue_name!r} in {db}; there are: {names}")
    write(db, lambda store: patiently(lambda: store.set_paused(queue_name, paused, SystemClock().now_us())))
    if as_json:
        answer_json({"queue_name": queue_name, "is_paused": paused})
    else:
        click.echo(f"queue {queue_name} is paused" if paused else f"queue {queue_name} runs")
