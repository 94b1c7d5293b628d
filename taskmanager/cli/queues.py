"""`taskmanager pause`, `resume` and `schedules`: act on queues and schedules, for every instance on the file."""

from collections.abc import Collection, Sequence
from typing import Final

import click

from taskmanager.cli.database import read, write
from taskmanager.cli.options import answer, answer_json, draw, file_options, screen
from taskmanager.console.acts import patiently
from taskmanager.console.documents import schedule_document
from taskmanager.console.outlook import living
from taskmanager.console.schedules import as_known
from taskmanager.duties.schedule import run_by_hand, set_paused
from taskmanager.model.clock import SystemClock
from taskmanager.model.errors import StoreError
from taskmanager.model.ids import new_task_id
from taskmanager.model.nearest import did_you_mean
from taskmanager.model.schedule import ScheduleRow
from taskmanager.store.place import Place
from taskmanager.store.sql import schedules as stored
from taskmanager.store.sql.queries import instances
from taskmanager.store.sql.search import queue_names

QUEUES_EPILOG: Final = """\b
Examples:
  taskmanager pause mail
  taskmanager resume mail

Within a quarter of a second, no instance starts anything more from a paused queue. Running tasks go on, new tasks wait.
The queue stays paused across restarts. A name that no task and no instance has used is refused, because it is usually a
typing mistake; `pause --force` accepts it, for a queue that does not exist yet.
"""
SCHEDULES_EPILOG: Final = """\b
Examples:
  taskmanager schedules
  taskmanager schedules pause nightly
  taskmanager schedules resume nightly      its next run is computed from now
  taskmanager schedules run nightly         once more, now; also while paused

A run that you ask for starts as soon as an instance that knows the function has room.
"""
DEFAULT_QUEUE: Final = "default"
"""Which is there before its first task."""
SHOWN_QUEUES: Final = 8
MOST_SHOWN: Final = 1_000  # schedules that a person may want to read; laying out a hundred thousand takes minutes


@click.command(epilog=QUEUES_EPILOG)
@click.argument("queue_name", metavar="QUEUE")
@click.option("--force", is_flag=True, help="Accept a queue that no task and no instance has used yet.")
@file_options
def pause(queue_name: str, force: bool, db: Place, as_json: bool) -> None:
    """Start nothing more from a queue until it is resumed."""
    _set(queue_name, True, db, as_json, force=force)


@click.command(epilog=QUEUES_EPILOG)
@click.argument("queue_name", metavar="QUEUE")
@file_options
def resume(queue_name: str, db: Place, as_json: bool) -> None:
    """Start tasks from a paused queue again."""
    _set(queue_name, False, db, as_json)


def _set(queue_name: str, paused: bool, db: Place, as_json: bool, *, force: bool = False) -> None:
    with read(db) as connection:
        known = queue_names(connection) | {DEFAULT_QUEUE}
    if queue_name not in known and not force:
        raise StoreError(_refusal(queue_name, known, db, paused))
    write(db, lambda store: patiently(lambda: store.set_paused(queue_name, paused, SystemClock().now_us())))
    document = {"queue_name": queue_name, "is_paused": paused, "is_known": queue_name in known}
    answer(document, f"queue {queue_name} is {'paused' if paused else 'resumed'}", as_json=as_json)


def _refusal(queue_name: str, known: Collection[str], db: Place, paused: bool) -> str:
    some = sorted(known)[:SHOWN_QUEUES]
    more = f" and {len(known) - SHOWN_QUEUES} more" if len(known) > SHOWN_QUEUES else ""
    meant = did_you_mean(queue_name, known) or "."
    line = f"there is no queue {queue_name!r} in {db}{meant} Nothing was changed; there are: {', '.join(some)}{more}"
    return f"{line}. To pause one before its first task, add --force" if paused else line


@click.command("schedules", epilog=SCHEDULES_EPILOG)
@click.argument("action", required=False, metavar="[pause|resume|run")
@click.argument("name", required=False, metavar="NAME]")
@file_options
def schedules(action: str | None, name: str | None, db: Place, as_json: bool) -> None:
    """List the schedules, ordered by their next run; or pause, resume or run one."""
    now = SystemClock().now_us()
    if action is None:
        _list(db, now, as_json)
    elif action not in ("pause", "resume", "run"):
        raise click.UsageError(f"{action!r} is neither pause, resume nor run")
    elif not name:
        raise click.UsageError(f"{action} what? Give the name of a schedule; `taskmanager schedules` lists them")
    elif action == "run":
        task_id = new_task_id()
        write(db, lambda store: patiently(lambda: run_by_hand(store, name, task_id, now)))
        said = f"schedule {name} runs once more, as task {task_id}"
        answer({"schedule_name": name, "task_id": task_id}, said, as_json=as_json)
    else:
        is_paused = action == "pause"
        write(db, lambda store: patiently(lambda: set_paused(store, name, is_paused, now)))
        said = f"schedule {name} {'is paused' if is_paused else 'fires again'}"
        answer({"schedule_name": name, "is_paused": is_paused}, said, as_json=as_json)


def _list(db: Place, now: int, as_json: bool) -> None:
    with read(db) as connection:
        rows, known = stored.fetch(connection), instances(connection)
        alive = {each.instance_id for each in living(known, db)}
    rows = as_known(rows, alive)
    if as_json:
        answer_json([schedule_document(row) for row in rows])
    elif rows:
        _draw(rows, now, is_running=bool(alive))
    else:
        click.echo("no schedules")


def _draw(rows: Sequence[ScheduleRow], now: int, *, is_running: bool) -> None:
    from taskmanager.console.terminal.tables import schedule_table

    draw(schedule_table(rows[:MOST_SHOWN], now, screen().width, is_running=is_running))
    if len(rows) > MOST_SHOWN:
        click.echo(f"and {len(rows) - MOST_SHOWN:,} more; --json has all of them")
    if not is_running:
        click.echo("\nno instance is running; schedules fire only while the application runs")
