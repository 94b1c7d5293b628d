"""`taskmanager pause` and `resume`: for every instance on the file, until the opposite is said."""

from collections.abc import Collection
from pathlib import Path
from typing import Final

import click

from taskmanager.cli.database import db_option, json_option, patiently, read, write
from taskmanager.cli.output import answer_json
from taskmanager.model.clock import SystemClock
from taskmanager.model.errors import StoreError
from taskmanager.model.escaping import escaped
from taskmanager.model.nearest import did_you_mean
from taskmanager.store.sqlite.search import queue_names

EPILOG: Final = """
\b
Examples:
  taskmanager pause mail
  taskmanager resume mail

Within a quarter of a second, no instance starts anything more from a paused queue. Running tasks go on, new tasks wait.
The queue stays paused across restarts. A name that no task and no instance has used is refused, because it is usually a
typing mistake; `pause --force` accepts it, for a queue that does not exist yet.
"""
DEFAULT_QUEUE: Final = "default"
"""Which is there before its first task."""
SHOWN: Final = 8


@click.command(epilog=EPILOG)
@click.argument("queue_name", metavar="QUEUE")
@click.option("--force", is_flag=True, help="Accept a queue that no task and no instance has used yet.")
@db_option
@json_option
def pause(queue_name: str, force: bool, db: Path, as_json: bool) -> None:
    """Start nothing more from a queue until it is resumed."""
    _set(queue_name, True, db, as_json, force=force)


@click.command(epilog=EPILOG)
@click.argument("queue_name", metavar="QUEUE")
@db_option
@json_option
def resume(queue_name: str, db: Path, as_json: bool) -> None:
    """Start tasks from a paused queue again."""
    _set(queue_name, False, db, as_json)


def _set(queue_name: str, paused: bool, db: Path, as_json: bool, *, force: bool = False) -> None:
    with read(db) as connection:
        known = queue_names(connection) | {DEFAULT_QUEUE}
    if queue_name not in known and not force:
        raise StoreError(_refusal(queue_name, known, db, paused))
    write(db, lambda store: patiently(lambda: store.set_paused(queue_name, paused, SystemClock().now_us())))
    if as_json:
        answer_json({"queue_name": queue_name, "is_paused": paused, "is_known": queue_name in known})
    else:
        click.echo(f"queue {escaped(queue_name)} is paused" if paused else f"queue {escaped(queue_name)} is resumed")


def _refusal(queue_name: str, known: Collection[str], db: Path, paused: bool) -> str:
    some = sorted(known)[:SHOWN]
    more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
    meant = did_you_mean(queue_name, known) or "."
    line = f"there is no queue {queue_name!r} in {db}{meant} Nothing was changed; there are: {', '.join(some)}{more}"
    return f"{line}. To pause one before its first task, add --force" if paused else line
