"""`taskmanager purge`: deletes the records of ended tasks."""

from pathlib import Path
from typing import Final

import click

from taskmanager.cli.confirmation import confirm, yes_option
from taskmanager.cli.database import db_option, json_option, patiently, read, write
from taskmanager.cli.filters import Duration, Status
from taskmanager.cli.output import answer_json
from taskmanager.engine.records import PURGE_PAGE, repeated
from taskmanager.model.clock import SystemClock
from taskmanager.model.states import TERMINAL, TaskStatus
from taskmanager.model.wording import counted
from taskmanager.store.protocol import Store
from taskmanager.store.sqlite.queries import counts

EPILOG: Final = """
\b
Examples:
  taskmanager purge --older-than 30d
  taskmanager purge --status COMPLETED --older-than 1d
  taskmanager purge

Deletes tasks that have ended, with their attempts and idempotency keys, and never a task that is waiting or running.
Without --status or --older-than all ended tasks are deleted, so you have to confirm it, unless you give --yes.
"""

_ENDED: Final = tuple(status for status in TaskStatus if status in TERMINAL)


@click.command(epilog=EPILOG)
@click.option("--status", type=Status(_ENDED), metavar="STATUS", help="Only tasks that ended like this.")
@click.option(
    "--older-than", type=Duration(), metavar="AGE", help="Only tasks that ended longer ago than this: 12h, 30d."
)
@yes_option
@db_option
@json_option
def purge(status: TaskStatus | None, older_than: int | None, yes: bool, db: Path, as_json: bool) -> None:
    """Delete the records of tasks that have ended."""
    if status is None and older_than is None and not yes:
        with read(db) as connection:
            by_status = counts(connection)
        if as_json:
            raise click.UsageError("--json asks nothing; give --yes too, or --status or --older-than")
        ended = sum(by_status[each] for each in _ENDED)
        confirm(f"delete all {ended:,} records of ended tasks?")
    cutoff = None if older_than is None else SystemClock().now_us() - older_than
    gone = write(db, lambda store: _in_pages(store, status, cutoff))
    if as_json:
        answer_json({"deleted": gone})
    else:
        click.echo(f"{counted(gone, 'record')} deleted")


async def _in_pages(store: Store, status: TaskStatus | None, cutoff: int | None) -> int:
    gone = await repeated(lambda: patiently(lambda: store.purge(status, cutoff, PURGE_PAGE)))
    await repeated(lambda: patiently(store.shrink))  # also what an earlier one has left that was cut short
    return gone
