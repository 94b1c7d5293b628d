"""`taskmanager retry`: what `manager.retry` does, from outside of the application.

An application that runs on the file notices within its `store_poll`, a quarter of a second; one that does not, at its
next start.
"""

from collections.abc import Sequence
from typing import Any, Final

import click

from taskmanager.cli.batch import Action, Answer, act_on
from taskmanager.cli.confirmation import yes_option
from taskmanager.cli.database import db_option, json_option, patiently
from taskmanager.cli.filters import filter_options
from taskmanager.console.figures import relative
from taskmanager.engine.stored_tasks import retry_stored, why_not_again
from taskmanager.model.clock import SystemClock
from taskmanager.model.record import TaskRow
from taskmanager.model.states import TERMINAL, TaskStatus
from taskmanager.store.protocol import Store

EPILOG: Final = """
\b
Examples:
  taskmanager retry 28862abb
  taskmanager retry --status FAILED --task app.jobs:send_mail --since 1h
  taskmanager retry --code TIMEOUT --yes

A batch has to be confirmed, unless you give --yes. COMPLETED tasks need --force. A task that waits for its next retry
has not ended: cancel it, then retry it, and it runs at once.
"""


@click.command(epilog=EPILOG)
@click.argument("task_ids", metavar="[ID]...", nargs=-1)
@filter_options
@click.option("--force", is_flag=True, help="Include tasks that are COMPLETED.")
@click.option("--dry-run", is_flag=True, help="Only show which tasks would be retried.")
@yes_option
@db_option
@json_option
def retry(task_ids: tuple[str, ...], force: bool, **options: Any) -> int:
    """Run tasks that have ended again, with their stored arguments.

    Their retry and crash counts start from zero; id, attempts and log are kept.
    """

    async def act(store: Store, rows: Sequence[TaskRow]) -> list[Answer]:
        reasons = {row.task_id: why_not_again(row, force=force) for row in rows}
        able = [row for row in rows if reasons[row.task_id] is None]
        now_us = SystemClock().now_us()
        won = await patiently(lambda: retry_stored(store, able, now_us))
        return [_retried(row, reasons[row.task_id], row.task_id in won, now_us) for row in rows]

    possible = TERMINAL if force else TERMINAL - {TaskStatus.COMPLETED}
    return act_on(Action("retry", "waiting", (TaskStatus.FAILED,), possible, act), task_ids, **options)


def _retried(row: TaskRow, reason: str | None, has_won: bool, now_us: int) -> Answer:
    if reason is None and has_won:
        return Answer(row.task_id, True, "waiting", "it runs as soon as an instance has room")
    reason = reason or "it has changed meanwhile; look at it again"
    if row.status == TaskStatus.PENDING and row.enqueued_at > now_us:
        end = row.task_id[-8:]
        reason += f"; it runs {relative(row.enqueued_at, now_us)}; to run it now: taskmanager cancel {end}, then retry"
    return Answer(row.task_id, False, "refused", reason)
