"""`taskmanager recover`: gives back what dead instances left, as the next start of the application would.

Dead is decided by the lock files: an instance that lives holds its own, whatever its heartbeats say, and nothing of it
is touched unless `--frozen` says after how long a silence it is. What becomes of each task is decided from its row
alone.
"""

from collections import Counter
from pathlib import Path
from typing import Final

import click

from taskmanager.cli.database import db_option, json_option, patiently, write
from taskmanager.cli.output import answer_json
from taskmanager.duties.recovery import PAGE, Recovery
from taskmanager.duties.stale import StaleTasks
from taskmanager.engine.instance import is_dead, new_identity
from taskmanager.model.clock import MINUTE_US, Clock, SystemClock
from taskmanager.model.config import RecoveryConfig
from taskmanager.model.escaping import escaped
from taskmanager.model.record import TaskRow, expected_of
from taskmanager.model.wording import counted
from taskmanager.store.protocol import Store

EPILOG: Final = """
\b
Examples:
  taskmanager recover
  taskmanager recover --frozen 5
  taskmanager recover --json

The application does the same at its start; use this when it cannot be started. Tasks that had not started, or are safe
to repeat, wait again. The others are retried if their policy says so, or else are FAILED with WORKER_CRASHED.

With --frozen, the tasks of instances that are alive and have sent no heartbeat for so many minutes are given back too.
When such a process wakes up, what it writes of them is refused.
"""


@click.command(epilog=EPILOG)
@db_option
@json_option
@click.option(
    "--frozen",
    type=click.FloatRange(min=1),
    metavar="MINUTES",
    help="Also take what instances hold that are alive and have been silent for this long.",
)
def recover(db: Path, as_json: bool, frozen: float | None) -> None:
    """Give back the tasks of instances that have died."""
    database = db.absolute()
    orphans, dead, stale = write(db, lambda store: _recover(store, database, frozen))
    if as_json:
        tasks = [
            {"task_id": row.task_id, "task_name": row.task_name, "status": row.status, "error_code": row.error_code}
            for row in (*orphans, *stale)
        ]
        found = {"dead_instances": dead, "recovered": len(tasks), "of_frozen": len(stale), "tasks": tasks}
        answer_json(found)
        return
    if stale:
        _tell(stale, "instances that are silent")
    if not orphans and not (stale and not dead):
        click.echo(
            "nothing to recover" if not dead else f"nothing to recover; {counted(dead, 'dead instance')} cleared away"
        )
        return
    if orphans:
        _tell(orphans, counted(dead, "dead instance"))


def _tell(rows: list[TaskRow], whose: str) -> None:
    by_end = Counter((row.status, row.error_code) for row in rows)
    click.echo(f"{counted(len(rows), 'task')} of {whose} recovered:")
    for (status, code), number in sorted(by_end.items(), key=str):
        click.echo(f"  {number:,} {status}{f' {escaped(code)}' if code else ''}")


async def _recover(
    store: Store, database: Path, frozen_minutes: float | None
) -> tuple[list[TaskRow], int, list[TaskRow]]:
    """The rows of dead instances that were moved as they are now, how many instances were dead, and the rows that were
    taken from frozen ones.
    """
    clock = SystemClock()
    identity = new_identity(None, clock.now_us())
    known = [each.instance_id for each in await store.instances()]
    dead = [each for each in known if is_dead(database, each)]
    before = await _orphans(store, database, {*known} - {*dead})
    budget = RecoveryConfig().crash_budget
    recovery = Recovery(
        store, clock, identity, database, crash_budget=budget, tell=lambda write: None
    )  # said at the end
    await patiently(recovery.run_once)
    # One whose lock file was put back meanwhile lives: what has become of its tasks is its own doing.
    alive = {each.instance_id for each in await store.instances()}
    moved = await _moved(store, [row for row in before if row.claimed_by_worker_id not in alive])
    dead_count = len({*dead, *(row.claimed_by_worker_id for row in before)} - alive)
    return moved, dead_count, await _take_from_frozen(store, clock, recovery, frozen_minutes)


async def _take_from_frozen(store: Store, clock: Clock, recovery: Recovery, minutes: float | None) -> list[TaskRow]:
    """What living instances hold that have been silent for so long, as it is now."""
    if minutes is None:
        return []
    stale = StaleTasks(store, clock, recovery, "")
    rows = await stale.rows(minutes * MINUTE_US, lambda row: True)
    await stale.recover(rows)
    return await _moved(store, rows)


async def _moved(store: Store, before: list[TaskRow]) -> list[TaskRow]:
    """Those of these rows that somebody has moved on since, as they are now."""
    moved: list[TaskRow] = []
    for start in range(0, len(before), PAGE):
        page = before[start : start + PAGE]
        now = await store.fetch_ids([row.task_id for row in page])
        moved += [now[row.task_id] for row in page if expected_of(now.get(row.task_id, row)) != expected_of(row)]
    return moved


async def _orphans(store: Store, database: Path, alive: set[str]) -> list[TaskRow]:
    found: list[TaskRow] = []
    after = ""
    while rows := await store.fetch_orphans(alive, limit=PAGE, after=after, is_summary=True):
        after = rows[-1].task_id
        # Whoever has registered since the list was read holds its lock.
        found += [row for row in rows if is_dead(database, row.claimed_by_worker_id or "")]
    return found
