"""`taskmanager pause` and `resume`: for every instance on the file, until the opposite is said."""

from pathlib import Path
from typing import Final

import click

from taskmanager.cli.answering import answer_json
from taskmanager.cli.opening import db_option, json_option, patiently, read, write
from taskmanager.console.plain import escaped
from taskmanager.model.clock import SystemClock
from taskmanager.model.errors import StoreError
from taskmanager.rules.nearest import did_you_mean
from taskmanager.store.sqlite.search import queue_names

EPILOG: Final = """
\b
Examples:
  taskmanager pause mail
  taskmanager resume mail

A paused queue starts nothing, in any instance, within a quarter of a second; what runs goes on, and what is enqueued
waits. It stays paused over restarts. A queue that nobody has named yet can be paused too; a line on stderr says so.
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
    is_known = queue_name in known
    if not (is_known or paused):
        names = ", ".join(sorted(known)) or "none yet"
        raise StoreError(
            f"there is no queue {queue_name!r} in {db}{did_you_mean(queue_name, known)}; there are: {names}"
        )
    write(db, lambda store: patiently(lambda: store.set_paused(queue_name, paused, SystemClock().now_us())))
    if not is_known:
        line = f"no task or instance has named queue {queue_name!r} yet, so it is paused for when it comes"
        click.echo(f"taskmanager: {escaped(line + did_you_mean(queue_name, known))}", err=True)
    if as_json:
        answer_json({"queue_name": queue_name, "is_paused": paused, "is_known": is_known})
    else:
        click.echo(f"queue {escaped(queue_name)} is paused" if paused else f"queue {escaped(queue_name)} runs")
