"""`taskmanager retry` and `cancel`: some tasks by their ids, or many by what they have in common.

They write what `manager.retry` and `manager.cancel` write. An application that runs on the file notices within its
`store_poll`, a quarter of a second; one that does not, at its next start.
"""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from taskmanager.cli.answering import answer_json, draw, screen
from taskmanager.cli.asking import confirm, yes_option
from taskmanager.cli.choosing import the_tasks
from taskmanager.cli.filtering import filter_options, search_of, tell_what_was_meant
from taskmanager.cli.opening import db_option, json_option, patiently, read, write
from taskmanager.console.plain import escaped
from taskmanager.engine.acting import cancel_stored, is_free, retry_stored, why_not_again
from taskmanager.engine.instance import is_dead
from taskmanager.engine.rows import Rows
from taskmanager.model.clock import SystemClock
from taskmanager.model.record import TaskRow
from taskmanager.model.states import LIVE, TERMINAL, TaskStatus
from taskmanager.model.wording import counted
from taskmanager.store.protocol import Store
from taskmanager.store.sqlite.queries import fetch_ids
from taskmanager.store.sqlite.search import Search, find_ids

PAGE: Final = 500
SHOWN_BEFORE: Final = 10
"""Tasks of a batch that are shown before the question."""
TOLD_ONE_BY_ONE: Final = 20
"""Of more tasks than that, a person gets the sums."""
OUTCOME_PATIENCE_S: Final = 1.0
"""How long a cancel waits for the instances that it has asked."""
OUTCOME_PAUSE_S: Final = 0.05

# The functions are unknown here, and their codecs: what is written is what recovery writes of unknown functions.
_ROWS: Final = Rows({})

RETRY_EPILOG: Final = """
\b
Examples:
  taskmanager retry 28862abb
  taskmanager retry --status FAILED --task app.jobs:send_mail --since 1h
  taskmanager retry --code TIMEOUT --yes

A batch has to be confirmed, unless you give --yes. COMPLETED tasks need --force.
"""
CANCEL_EPILOG: Final = """
\b
Examples:
  taskmanager cancel 28862abb
  taskmanager cancel --task app.jobs:send_mail --status PENDING

A waiting task ends at once. A running one is asked to stop, whichever process it runs in: async code is cancelled, a
child process is killed, a thread sees `is_cancelled`. A batch has to be confirmed, unless you give --yes.
"""


class Answer(NamedTuple):
    """What became of one task. `outcome` is one word; `remark` says the rest."""

    task_id: str
    is_done: bool
    outcome: str
    remark: str = ""

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {"task_id": self.task_id, "done": self.is_done, "outcome": self.outcome, "remark": self.remark or None}


class Verb(NamedTuple):
    """An action: what it is called, which tasks it is for, and how a page of them is done."""

    name: str
    done: str
    default_statuses: tuple[TaskStatus, ...]
    possible: frozenset[TaskStatus]
    act: Callable[[Store, Sequence[TaskRow]], Awaitable[list[Answer]]]


@click.command(epilog=RETRY_EPILOG)
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
        won = await patiently(lambda: retry_stored(store, _ROWS, able, SystemClock().now_us()))
        return [_retried(row, reasons[row.task_id], row.task_id in won) for row in rows]

    possible = TERMINAL if force else TERMINAL - {TaskStatus.COMPLETED}
    return _run(Verb("retry", "waiting", (TaskStatus.FAILED,), possible, act), task_ids, **options)


def _retried(row: TaskRow, reason: str | None, has_won: bool) -> Answer:
    if reason is None and has_won:
        return Answer(row.task_id, True, "waiting", "it runs as soon as an instance has room")
    return Answer(row.task_id, False, "refused", reason or "it has changed meanwhile; look at it again")


@click.command(epilog=CANCEL_EPILOG)
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
    return _run(Verb("cancel", "cancelled", waiting_and_running, LIVE, act), task_ids, **options)


async def _cancel(store: Store, live: Sequence[TaskRow]) -> frozenset[str]:
    """In steps that are whole each: what is tried again must not find its own first half and take it for another's."""
    free = [row for row in live if is_free(row)]
    done = await patiently(lambda: cancel_stored(store, _ROWS, free, SystemClock().now_us()))
    for row in live:
        if not is_free(row):
            done |= await patiently(partial(cancel_stored, store, _ROWS, [row], SystemClock().now_us()))
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


# Which tasks, and the answer.


def _run(
    verb: Verb,
    task_ids: Sequence[str],
    *,
    db: Path,
    as_json: bool,
    yes: bool,
    dry_run: bool,
    **filters: Any,
) -> int:
    search = search_of(**filters)
    if bool(task_ids) == (not search.is_everything):
        raise click.UsageError("say which tasks: by ids, or by --status, --task, --queue, --code, --since")
    with read(db) as connection:
        chosen = the_tasks(connection, task_ids) if task_ids else _batch(connection, verb, search)
        if dry_run or not (task_ids or yes):
            _preview(connection, chosen, as_json=as_json, is_dry=dry_run)
    if dry_run:
        return 0
    if chosen and not (task_ids or yes):
        confirm(f"{verb.name} {counted(len(chosen), 'task')}?")
    answers = write(db, lambda store: _act_in_pages(store, verb, chosen)) if chosen else []
    _tell(verb, answers, as_json)
    return 0 if all(answer.is_done for answer in answers) else 1


def _batch(connection: sqlite3.Connection, verb: Verb, search: Search) -> list[str]:
    wrong = [status for status in search.statuses if status not in verb.possible]
    if wrong:
        raise click.UsageError(f"{verb.name} is not for tasks that are {', '.join(wrong)}")
    found = find_ids(connection, search._replace(statuses=search.statuses or verb.default_statuses))
    if not found:
        tell_what_was_meant(connection, search)
    return found


def _preview(connection: sqlite3.Connection, chosen: Sequence[str], *, as_json: bool, is_dry: bool) -> None:
    if as_json and not is_dry:
        raise click.UsageError("--json asks nothing; give --yes too, or --dry-run")
    if as_json:
        answer_json([{"task_id": task_id} for task_id in chosen])
        return
    rows = fetch_ids(connection, chosen[:SHOWN_BEFORE])
    if rows:
        from taskmanager.console.listing import task_table

        shown = [rows[task_id] for task_id in chosen[:SHOWN_BEFORE] if task_id in rows]
        draw(task_table(shown, SystemClock().now_us(), screen().width))
    if len(chosen) > SHOWN_BEFORE:
        click.echo(f"... and {len(chosen) - SHOWN_BEFORE:,} more")
    if is_dry:
        click.echo(f"{counted(len(chosen), 'task')}; nothing was changed")


async def _act_in_pages(store: Store, verb: Verb, chosen: Sequence[str]) -> list[Answer]:
    answers: list[Answer] = []
    for start in range(0, len(chosen), PAGE):
        page = chosen[start : start + PAGE]
        rows = await store.fetch_ids(page)
        done = await verb.act(store, [rows[task_id] for task_id in page if task_id in rows])
        gone = [
            Answer(task_id, False, "gone", "its record was deleted meanwhile")
            for task_id in page
            if task_id not in rows
        ]
        answers += [*done, *gone]
    return answers


def _tell(verb: Verb, answers: Sequence[Answer], as_json: bool) -> None:
    refused = [answer for answer in answers if not answer.is_done]
    if as_json:
        answer_json([answer.as_json() for answer in answers])
    elif not answers:
        click.echo("no such tasks")
    elif len(answers) <= TOLD_ONE_BY_ONE:
        for answer in answers:
            click.echo(escaped(f"{answer.task_id}  {answer.outcome}{f': {answer.remark}' if answer.remark else ''}"))
    else:
        click.echo(f"{counted(len(answers) - len(refused), 'task')} {verb.done}")
    if refused:
        count, first = f"{len(refused):,} of {counted(len(answers), 'task')}", refused[0]
        click.echo(escaped(f"taskmanager: {count} refused; {first.task_id}: {first.remark}"), err=True)
