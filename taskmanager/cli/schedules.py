"""`taskmanager schedules`: the schedules of the file, and what a person does with one, also without the application."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from taskmanager.cli.database import db_option, json_option, patiently, read, write
from taskmanager.cli.output import answer_json, draw, screen
from taskmanager.console.figures import iso
from taskmanager.duties.schedules import actions
from taskmanager.engine.instance import is_dead
from taskmanager.model.clock import SystemClock
from taskmanager.model.escaping import escaped
from taskmanager.model.ids import new_task_id
from taskmanager.model.schedule import ScheduleRow
from taskmanager.store.sqlite import schedules as stored

EPILOG: Final = """
\b
Examples:
  taskmanager schedules
  taskmanager schedules pause nightly
  taskmanager schedules resume nightly      its next run is computed from now
  taskmanager schedules run nightly         once more, now; also while paused

A run that you ask for starts as soon as an instance that knows the function has room.
"""
_INSTANTS: Final = ("last_run_at", "next_run_at", "paused_at", "updated_at")
MOST_SHOWN: Final = 1_000
"""Lines that a person may want to read; laying out a hundred thousand takes minutes."""
_LEFT_OUT: Final = frozenset({"template"})


@click.command("schedules", epilog=EPILOG)
@click.argument("action", required=False, type=click.Choice(["pause", "resume", "run"]), metavar="[pause|resume|run")
@click.argument("name", required=False, metavar="NAME]")
@db_option
@json_option
def schedules(action: str | None, name: str | None, db: Path, as_json: bool) -> None:
    """List the schedules, ordered by their next run; or pause, resume or run one."""
    if action is None:
        _list(db, as_json)
    elif not name:
        raise click.UsageError(f"{action} what? Give the name of a schedule; `taskmanager schedules` lists them")
    elif action == "run":
        task_id, now = new_task_id(), SystemClock().now_us()
        write(db, lambda store: patiently(lambda: actions.run_by_hand(store, name, task_id, now)))
        _say({"schedule_name": name, "task_id": task_id}, f"schedule {name} runs once more, as task {task_id}", as_json)
    else:
        is_paused = action == "pause"
        now = SystemClock().now_us()
        write(db, lambda store: patiently(lambda: actions.set_paused(store, name, is_paused, now)))
        said = "is paused" if is_paused else "fires again"
        _say({"schedule_name": name, "is_paused": is_paused}, f"schedule {name} {said}", as_json)


def _say(answer: dict[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        answer_json(answer)
    else:
        click.echo(escaped(text))


def _list(db: Path, as_json: bool) -> None:
    with read(db) as connection:
        rows = stored.fetch(connection)
        instances = connection.execute("SELECT instance_id FROM taskmanager_instances").fetchall()
    database = db.absolute()
    alive = {instance_id for (instance_id,) in instances if not is_dead(database, instance_id)}
    rows = [row._replace(is_declared=row.owner_id in alive) for row in rows]
    if as_json:
        answer_json([_record(row) for row in rows])
    else:
        _show(rows, bool(alive))


def _record(row: ScheduleRow) -> dict[str, Any]:
    values = {name: value for name, value in row._asdict().items() if name not in _LEFT_OUT}
    for name in _INSTANTS:
        values[name] = None if values[name] is None else iso(values[name])
    return {**values, "is_paused": row.paused_at is not None}


def _show(rows: Sequence[ScheduleRow], is_running: bool) -> None:
    if not rows:
        click.echo("no schedules")
        return
    from taskmanager.console.terminal.tables import schedule_table

    draw(schedule_table(rows[:MOST_SHOWN], SystemClock().now_us(), screen().width, is_running=is_running))
    if len(rows) > MOST_SHOWN:
        click.echo(f"and {len(rows) - MOST_SHOWN:,} more; --json has all of them")
    if not is_running:
        click.echo("\nno instance is running; schedules fire only while the application runs")
