"""`taskmanager cancel`: what `manager.cancel` does, from outside of the application.

An application that runs on the file notices within its `store_poll`, a quarter of a second.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from taskmanager.cli.batch import Action, Answer, act_on
from taskmanager.cli.confirmation import yes_option
from taskmanager.cli.database import db_option, json_option, patiently
from taskmanager.cli.filters import filter_options
from taskmanager.engine.definition import RowCodec
from taskmanager.engine.instance import is_dead
from taskmanager.engine.stored_tasks import cancel_stored, is_free
from taskmanager.model.clock import SystemClock
from taskmanager.model.record import TaskRow
from taskmanager.model.states import LIVE, TaskStatus
from taskmanager.store.protocol import Store

OUTCOME_PATIENCE_S: Final = 1.0
"""How long a cancel waits for the instances that it has asked."""
OUTCOME_PAUSE_S: Final = 0.05

# The functions are unknown here, and their codecs: what is written is what recovery writes of unknown functions.
_UNTYPED: Final = RowCodec({})

EPILOG: Final = """
\b
Examples:
  taskmanager cancel 28862abb
  taskmanager cancel --task app.jobs:send_mail --status PENDING

A waiting task ends at once. A running one is asked to stop, whichever process it runs in: async code is cancelled, a
child process is killed, a thread sees `is_cancelled`. A batch has to be confirmed, unless you give --yes.
"""


@click.command(epilog=EPILOG)
@click.argument("task_ids", metavar="[ID]...", nargs=-1)
@filter_options
@click.option("--dry-run", is_flag=True, help="Only show which tasks would be cancelled.")
@yes_option
@db_option
@json_option
def cancel(task_ids: tuple[str, ...], **options: Any) -> int:
    """Cancel tasks that have not ended."""

    database: Path = options["db"].absolute()

    async def act(store: Store, rows: Sequence[TaskRow]) -> list[Answer]:
        done = await _cancel(store, [row for row in rows if row.status in LIVE])
        asked = [row for row in rows if row.task_id in done and not is_free(row)]
        orphans = {row.task_id for row in asked if is_dead(database, row.claimed_by_worker_id or "")}
        ended = await _wait_for_end(store, [row.task_id for row in asked if row.task_id not in orphans])
        return [_cancelled(row, row.task_id in done, row.task_id in orphans, ended.get(row.task_id)) for row in rows]

    waiting_and_running = tuple(status for status in TaskStatus if status in LIVE)
    return act_on(Action("cancel", "cancelled", waiting_and_running, LIVE, act), task_ids, **options)


async def _cancel(store: Store, live: Sequence[TaskRow]) -> frozenset[str]:
    """In steps that are whole each: what is tried again must not find its own first half and take it for another's."""
    free = [row for row in live if is_free(row)]
    done = await patiently(lambda: cancel_stored(store, _UNTYPED, free, SystemClock().now_us()))
    for row in live:
        if not is_free(row):
            done |= await patiently(partial(cancel_stored, store, _UNTYPED, [row], SystemClock().now_us()))
    return done


def _cancelled(row: TaskRow, is_done: bool, is_orphan: bool, ended: TaskStatus | None) -> Answer:
    if not is_done:
        remark = "it has changed meanwhile; look at it again" if row.status in LIVE else f"it is {row.status} already"
        return Answer(row.task_id, False, "refused", remark)
    if is_free(row) or ended is TaskStatus.CANCELLED:
        return Answer(row.task_id, True, "cancelled")
    if is_orphan:
        return Answer(row.task_id, True, "asked", "its instance is dead; a start, or `taskmanager recover`, ends it")
    if ended is not None:
        return Answer(row.task_id, True, "asked", f"it was asked to stop, and is {ended}")
    return Answer(row.task_id, True, "asked", "it was asked to stop, and has not ended yet")


async def _wait_for_end(store: Store, asked: Sequence[str]) -> dict[str, TaskStatus]:
    """How those ended that did within `OUTCOME_PATIENCE_S`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + OUTCOME_PATIENCE_S
    while asked:
        found = {task_id: TaskStatus(row.status) for task_id, row in (await store.fetch_ids(asked)).items()}
        ended = {task_id: status for task_id, status in found.items() if status.is_terminal}
        if len(ended) == len(found) or loop.time() >= deadline:
            return ended
        await asyncio.sleep(OUTCOME_PAUSE_S)
    return {}
