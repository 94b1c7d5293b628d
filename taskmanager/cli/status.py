"""`taskmanager status`: one look at everything."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from taskmanager.cli.database import check_is_there, db_option, json_option, read
from taskmanager.cli.locks import WriterWatch, problem_of
from taskmanager.cli.output import answer_json, screen
from taskmanager.console.documents import overview_document
from taskmanager.console.observer import look
from taskmanager.model.clock import SystemClock

EPILOG: Final = """
\b
Examples:
  taskmanager status
  taskmanager status --db /srv/app/tasks.db
  taskmanager status --json | jq .problems

Works while the application is running, after it has stopped, and on the file that a crash left behind. Memory-only
tasks are counted while they wait and run; once they have ended, it takes up to a minute until they are in the file.
"""


@click.command(epilog=EPILOG)
@db_option
@json_option
def status(db: Path, as_json: bool) -> None:
    """Show instances, queues, throughput, failures, schedules and storage on one screen."""
    check_is_there(db)
    writer = WriterWatch(db).judge()
    with read(db) as connection:
        overview = look(db, connection, SystemClock())
    if writer is not None:
        overview = replace(overview, problems=(problem_of(writer), *overview.problems))
    if as_json:
        answer_json(overview_document(overview))
        return
    from taskmanager.console.terminal.screen import Screen  # not for --json

    screen().print(Screen(overview))
