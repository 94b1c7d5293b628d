"""`taskmanager recover`: gives back what dead instances left, as the next start of the application would.

Dead is decided by the lock files: an instance that lives holds its own, whatever its heartbeats say, and nothing of it
is touched. What becomes of each task is decided from its row alone.
"""

from collections import Counter
from pathlib import Path
from typing import Any, Final

import click

from taskmanager.cli.database import db_option, json_option, patiently, write
from taskmanager.cli.output import answer_json
from taskmanager.duties.recovery import PAGE, Recovery
from taskmanager.engine.instance import is_dead, new_identity
from taskmanager.model.clock import SystemClock
from taskmanager.model.config import RecoveryConfig
from taskmanager.model.escaping import escaped
from taskmanager.model.record import TaskRow
from taskmanager.model.wording import counted
from taskmanager.store.protocol import Store

EPILOG: Final = """
\b
Examples:
  taskmanager recover
  taskmanager recover --json

The application does the same at its start; use this when it cannot be started. Tasks that had not started, or are safe
to repeat, wait again. The others are retried if their policy says so, or else are FAILED with WORKER_CRASHED.
"""


@click.command(epilog=EPILOG)
@db_option
@json_option
def recover(db: Path, as_json: bool) -> None:
    """Give back the tasks of instances that have died."""
    database = db.absolute()
    orphans, dead = write(db, lambda store: _recover(store, database))
    if as_json:
        tasks = [
            {"task_id": row.task_id, "task_name": row.task_name, "status": row.status, "error_code": row.error_code}
            for row in orphans
        ]
        answer_json({"dead_instances": dead, "recovered": len(orphans), "tasks": tasks})
        return
    if not orphans:
        click.echo(
            "nothing to recover" if not dead else f"nothing to recover; {counted(dead, 'dead instance')} cleared away"
        )
        return
    by_end = Counter((row.status, row.error_code) for row in orphans)
    click.echo(f"{counted(len(orphans), 'task')} of {counted(dead, 'dead instance')} recovered:")
    for (status, code), number in sorted(by_end.items(), key=str):
        click.echo(f"  {number:,} {status}{f' {escaped(code)}' if code else ''}")


async def _recover(store: Store, database: Path) -> tuple[list[TaskRow], int]:
    """The rows that were moved as they are now, and how many instances were dead."""
    clock = SystemClock()
    identity = new_identity(None, clock.now_us())
    known = [each.instance_id for each in await store.instances()]
    dead = [each for each in known if is_dead(database, each)]
    before = await _orphans(store, database, {*known} - {*dead})
    budget = RecoveryConfig().crash_budget
    recovery = Recovery(store, clock, identity, database, crash_budget=budget, tell=lambda row: None)  # said at the end
    await patiently(recovery.run_once)
    now: dict[str, Any] = {}
    for start in range(0, len(before), PAGE):
        now.update(await store.fetch_ids([row.task_id for row in before[start : start + PAGE]]))
    # One whose lock file was put back meanwhile lives: what has become of its tasks is its own doing.
    alive = {each.instance_id for each in await store.instances()}
    mine = [row for row in before if row.task_id in now and row.claimed_by_worker_id not in alive]
    moved = [now[row.task_id] for row in mine if now[row.task_id] != row]
    return moved, len({*dead, *(row.claimed_by_worker_id for row in before)} - alive)


async def _orphans(store: Store, database: Path, alive: set[str]) -> list[TaskRow]:
    found: list[TaskRow] = []
    after = ""
    while rows := await store.fetch_orphans(alive, limit=PAGE, after=after):
        after = rows[-1].task_id
        # Whoever has registered since the list was read holds its lock.
        found += [row for row in rows if is_dead(database, row.claimed_by_worker_id or "")]
    return found
