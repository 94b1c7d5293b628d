"""`taskmanager show ID`: one task, with everything that the file knows of it."""

from pathlib import Path
from typing import Final

import click

from taskmanager.cli.database import db_option, json_option, read
from taskmanager.cli.diagnosis import is_known
from taskmanager.cli.output import answer_json, draw
from taskmanager.cli.task_ids import the_task
from taskmanager.console.documents import attempt_document, record_document
from taskmanager.console.figures import iso
from taskmanager.console.outlook import Surroundings, outlook
from taskmanager.engine.instance import is_dead
from taskmanager.model.clock import SystemClock
from taskmanager.model.errors import UnknownTask
from taskmanager.model.record import TaskRow
from taskmanager.store.protocol import InstanceRow
from taskmanager.store.sqlite.queries import fetch, fetch_attempts, instances, paused_queues
from taskmanager.store.sqlite.reading import snapshot

EPILOG: Final = """
\b
Examples:
  taskmanager show 01a22079-3add-750c-9d03-39fd28862abb
  taskmanager show 28862abb
  taskmanager show 28862abb --json

A beginning or an end of the id is enough, if no other task shares it.
"""


@click.command(epilog=EPILOG)
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
        attempts = fetch_attempts(connection, wanted)
        known = instances(connection)
        paused = paused_queues(connection)
    around = _surroundings(row, known, row.queue_name in paused, db)
    next_step = outlook(row, around)
    if as_json:
        after = {"text": next_step.text, "at": None if next_step.at is None else iso(next_step.at)}
        answer_json({**record_document(row), "attempts": [attempt_document(each) for each in attempts], "next": after})
        return
    from taskmanager.console.terminal.record import Record, record_view

    draw(record_view(Record(row, attempts, next_step, around.owner, around.now_us)))


def _surroundings(row: TaskRow, known: list[InstanceRow], is_paused: bool, db: Path) -> Surroundings:
    """What the rows around it and the lock files say."""
    database = db.absolute()
    owner_id = row.claimed_by_worker_id
    alive = [each for each in known if not is_dead(database, each.instance_id)]
    return Surroundings(
        now_us=SystemClock().now_us(),
        owner=next((each for each in known if each.instance_id == owner_id), None),
        is_owner_dead=owner_id is not None and is_dead(database, owner_id),
        living_count=len(alive),
        is_function_known=is_known(row.task_name, alive),
        is_queue_paused=is_paused,
    )
