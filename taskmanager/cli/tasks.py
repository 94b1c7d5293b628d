"""`taskmanager list`, `show`, `retry` and `cancel`: look at the tasks of the file, and act on them.

`retry` and `cancel` do the same as the methods of the manager, from outside of the application. A running application
notices within its `store_poll`, a quarter of a second. The tasks are given by their ids, or by a filter. Tasks that fit
a filter are a batch: it is shown, has to be confirmed, and is done in pages.
"""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from taskmanager.cli.database import patiently, read, the_task, the_tasks, write
from taskmanager.cli.options import (
    answer_json,
    confirm,
    draw,
    file_options,
    filter_options,
    screen,
    search_of,
    tell_what_was_meant,
    yes_option,
)
from taskmanager.console.documents import attempt_document, record_document, step_document
from taskmanager.console.figures import MAX_CHARS, iso, relative
from taskmanager.console.outlook import outlook, surroundings
from taskmanager.engine.actions import cancel_stored, retry_stored, why_not_again
from taskmanager.engine.definition import RowCodec
from taskmanager.engine.instance import is_dead
from taskmanager.engine.records import is_free
from taskmanager.model.clock import SystemClock
from taskmanager.model.errors import UnknownTask
from taskmanager.model.escaping import escaped
from taskmanager.model.record import TaskRow
from taskmanager.model.states import LIVE, TERMINAL, TaskStatus
from taskmanager.model.steps import STEP
from taskmanager.model.wording import counted
from taskmanager.store.protocol import Store
from taskmanager.store.sqlite.queries import (
    SUMMARY,
    fetch,
    fetch_attempts,
    fetch_ids,
    fetch_steps,
    instances,
    paused_queues,
)
from taskmanager.store.sqlite.reading import snapshot
from taskmanager.store.sqlite.search import Search, error_messages, find, find_ids, memory_only
from taskmanager.store.sqlite.workflow_views import workflows_of
from taskmanager.store.statistics import OwnWorkflow

PAGE: Final = 500
SHOWN_BEFORE: Final = 10  # tasks of a batch that are shown before the question
TOLD_ONE_BY_ONE: Final = 20  # of more tasks than that, a person gets the sums
OUTCOME_PATIENCE_S: Final = 1.0  # how long a cancel waits for the instances that it has asked
OUTCOME_PAUSE_S: Final = 0.05
CHANGED: Final = "it has changed meanwhile; look at it again"

# The functions are unknown here, and their codecs: what is written is what recovery writes of unknown functions.
_UNTYPED: Final = RowCodec({})

LIST_EPILOG: Final = """\b
Examples:
  taskmanager list
  taskmanager list --status FAILED --since 1h
  taskmanager list --tag customer=42 --error TIMEOUT
  taskmanager list --task 'app.jobs:*' --limit 200 --json

"when" says how long a task has been running or waiting, how soon it is due, or how long ago it ended.
A memory-only task is in the file once it has ended, up to a minute later.
"""
SHOW_EPILOG: Final = """\b
Examples:
  taskmanager show 01a22079-3add-750c-9d03-39fd28862abb
  taskmanager show 28862abb
  taskmanager show 28862abb --json

A beginning or an end of the id is enough, if no other task shares it.
"""
RETRY_EPILOG: Final = """\b
Examples:
  taskmanager retry 28862abb
  taskmanager retry --status FAILED --task app.jobs:send_mail --since 1h
  taskmanager retry --error TIMEOUT --tag customer=42 --yes

A batch has to be confirmed, unless you give --yes. COMPLETED tasks need --force. A task that waits for its next retry
has not ended: cancel it, then retry it, and it runs at once.
"""
CANCEL_EPILOG: Final = """\b
Examples:
  taskmanager cancel 28862abb
  taskmanager cancel --task app.jobs:send_mail --status PENDING

A waiting task ends at once. A running one is asked to stop, whichever process it runs in: async code is cancelled, a
child process is killed, a thread sees `is_cancelled`. A batch has to be confirmed, unless you give --yes.
"""


@click.command("list", epilog=LIST_EPILOG)
@filter_options
@click.option(
    "--limit", type=click.IntRange(1, 1_000_000), default=20, show_default=True, metavar="N",
    help="At most this many tasks.",
)  # fmt: skip
@click.option("--before", metavar="ID", help="Only tasks older than this one, the last of the previous page.")
@file_options
def list_tasks(limit: int, before: str | None, db: Path, as_json: bool, **filters: Any) -> None:
    """List tasks, newest first."""
    search, database = search_of(**filters), db.absolute()
    with read(db) as connection:
        if before is not None:
            search = search._replace(before=the_task(connection, before))
        rows = find(connection, search, limit)
        if not rows:
            tell_what_was_meant(connection, search)
        messages = error_messages(connection, [row.task_id for row in rows], MAX_CHARS)
        workflows = workflows_of(connection, [row.task_id for row in rows if row.is_workflow_task])
        unseen = [each for each in memory_only(connection) if not is_dead(database, each.instance_id)]
    if as_json:
        answer_json([record_document(row, workflows.get(row.task_id)) for row in rows])
        return
    if rows:
        _draw(rows, messages, workflows)
    else:
        click.echo("no tasks" if search.is_everything else "no such tasks")
    if len(rows) == limit:
        click.echo(f"\nolder ones: --before {escaped(rows[-1].task_id)}")
    owners = [row.claimed_by_worker_id for row in rows if row.status in LIVE and not is_free(row)]
    dead = {owner for owner in set(owners) if is_dead(database, owner or "")}
    if dead:
        held = counted(sum(owner in dead for owner in owners), "task")
        click.echo(f"\nheld by dead instances: {held}; a start, or `taskmanager recover`, gives them back")
    if unseen and search in (Search(), Search(statuses=(TaskStatus.RUNNING,))):
        what = counted(len(unseen), "memory-only task")
        click.echo(f"\nrunning, not in the file: {what}; see `taskmanager status`")


def _draw(rows: Sequence[TaskRow], messages: Mapping[str, str], workflows: Mapping[str, OwnWorkflow]) -> None:
    from taskmanager.console.terminal.tables import task_table  # not for --json

    draw(task_table(rows, messages, workflows, SystemClock().now_us(), screen().width))


@click.command(epilog=SHOW_EPILOG)
@click.argument("task_id", metavar="ID")
@file_options
def show(task_id: str, db: Path, as_json: bool) -> None:
    """Show one task: its record, every attempt, its steps, its log, what happens next."""
    with read(db) as connection, snapshot(connection):
        wanted = the_task(connection, task_id)
        row = fetch(connection, wanted)
        if row is None:  # a snapshot does not lose rows
            raise UnknownTask(f"there is no task {wanted}")
        attempts, known = fetch_attempts(connection, wanted), instances(connection)
        steps = [each for each in fetch_steps(connection, wanted) if each.kind == STEP]
        is_paused = row.queue_name in paused_queues(connection)
        workflow = workflows_of(connection, [wanted]).get(wanted)
    around = surroundings(row, known, db.absolute(), SystemClock().now_us(), workflow, is_paused=is_paused)
    next_step = outlook(row, around, steps)
    if as_json:
        after = {"text": next_step.text, "at": None if next_step.at is None else iso(next_step.at)}
        told = [attempt_document(each) for each in attempts]
        done = [step_document(each) for each in steps]
        answer_json({**record_document(row, workflow), "attempts": told, "steps": done, "next": after})
        return
    from taskmanager.console.terminal.record import Record, record_view

    draw(record_view(Record(row, attempts, next_step, around.owner, around.now_us, steps, workflow)))


class Answer(NamedTuple):
    """What became of one task. `outcome` is one word; `remark` says the rest."""

    task_id: str
    done: bool
    outcome: str
    remark: str | None = None


class Action(NamedTuple):
    """Something that a command does to tasks.

    `participle` says what they are afterwards ("waiting"). A batch without `--status` has the `default_statuses`.
    """

    name: str
    participle: str
    default_statuses: tuple[TaskStatus, ...]
    possible: frozenset[TaskStatus]
    act: Callable[[Store, Sequence[TaskRow]], Awaitable[list[Answer]]]


@click.command(epilog=RETRY_EPILOG)
@click.argument("task_ids", metavar="[ID]...", nargs=-1)
@filter_options
@click.option("--force", is_flag=True, help="Include tasks that are COMPLETED.")
@click.option("--from-start", is_flag=True, help="Forget what the steps came to, and do all of them again.")
@click.option("--dry-run", is_flag=True, help="Only show which tasks would be retried.")
@yes_option
@file_options
def retry(task_ids: tuple[str, ...], force: bool, from_start: bool, **options: Any) -> int:
    """Run tasks that have ended again, with their stored arguments.

    Their retry and crash counts start from zero; id, attempts, log and finished steps are kept.
    """

    async def act(store: Store, rows: Sequence[TaskRow]) -> list[Answer]:
        reasons = {row.task_id: why_not_again(row, force=force) for row in rows}
        able = [row for row in rows if reasons[row.task_id] is None]
        now_us = SystemClock().now_us()
        won = await patiently(lambda: retry_stored(store, able, now_us, from_start=from_start))
        return [_retried(row, reasons[row.task_id], row.task_id in won, now_us) for row in rows]

    possible = TERMINAL if force else TERMINAL - {TaskStatus.COMPLETED}
    return _act_on(Action("retry", "waiting", (TaskStatus.FAILED,), possible, act), task_ids, **options)


def _retried(row: TaskRow, reason: str | None, has_won: bool, now_us: int) -> Answer:
    if reason is None and has_won:
        return Answer(row.task_id, True, "waiting", "it runs as soon as an instance has room")
    reason = reason or CHANGED
    if row.status == TaskStatus.PENDING and row.enqueued_at > now_us:
        end = row.task_id[-8:]
        reason += f"; it runs {relative(row.enqueued_at, now_us)}; to run it now: taskmanager cancel {end}, then retry"
    return Answer(row.task_id, False, "refused", reason)


@click.command(epilog=CANCEL_EPILOG)
@click.argument("task_ids", metavar="[ID]...", nargs=-1)
@filter_options
@click.option("--dry-run", is_flag=True, help="Only show which tasks would be cancelled.")
@yes_option
@file_options
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
    return _act_on(Action("cancel", "cancelled", waiting_and_running, LIVE, act), task_ids, **options)


async def _cancel(store: Store, live: Sequence[TaskRow]) -> frozenset[str]:
    """Cancel in separate transactions. A retry of a larger step would take its own first half for another's work."""
    free = [row for row in live if is_free(row)]
    done = await patiently(lambda: cancel_stored(store, _UNTYPED, free, SystemClock().now_us()))
    for row in live:
        if not is_free(row):
            done |= await patiently(partial(cancel_stored, store, _UNTYPED, [row], SystemClock().now_us()))
    return done


async def _wait_for_end(store: Store, asked: Sequence[str]) -> dict[str, TaskStatus]:
    """Wait for `OUTCOME_PATIENCE_S` at most, and return the statuses of those that have ended."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + OUTCOME_PATIENCE_S
    while asked:
        found = {task_id: TaskStatus(row.status) for task_id, row in (await store.fetch_ids(asked)).items()}
        ended = {task_id: status for task_id, status in found.items() if status.is_terminal}
        if len(ended) == len(found) or loop.time() >= deadline:
            return ended
        await asyncio.sleep(OUTCOME_PAUSE_S)
    return {}


def _cancelled(row: TaskRow, is_done: bool, is_orphan: bool, ended: TaskStatus | None) -> Answer:
    if not is_done:
        return Answer(row.task_id, False, "refused", CHANGED if row.status in LIVE else f"it is {row.status} already")
    if is_free(row) or ended is TaskStatus.CANCELLED:
        return Answer(row.task_id, True, "cancelled")
    remark = "it was asked to stop, and has not ended yet"
    if is_orphan:
        remark = "its instance is dead; a start, or `taskmanager recover`, ends it"
    elif ended is not None:
        remark = f"it was asked to stop, and is {ended}"
    return Answer(row.task_id, True, "asked", remark)


def _act_on(
    action: Action, task_ids: Sequence[str], *, db: Path, as_json: bool, yes: bool, dry_run: bool, **filters: Any
) -> int:
    """Find the tasks, ask, act, and print what became of each. Return the exit code."""
    search = search_of(**filters)
    if bool(task_ids) == (not search.is_everything):
        raise click.UsageError("say which tasks: by ids, or by --status, --task, --queue, --tag, --error, --since")
    with read(db) as connection:
        chosen = the_tasks(connection, task_ids) if task_ids else _batch(connection, action, search)
        if dry_run or not (task_ids or yes):
            _preview(connection, chosen, as_json=as_json, is_dry=dry_run)
    if dry_run:
        return 0
    if chosen and not (task_ids or yes):
        confirm(f"{action.name} {counted(len(chosen), 'task')}?")
    answers = write(db, lambda store: _act_in_pages(store, action, chosen)) if chosen else []
    _tell(action, answers, as_json)
    return 0 if all(answer.done for answer in answers) else 1


def _batch(connection: sqlite3.Connection, action: Action, search: Search) -> list[str]:
    wrong = [status for status in search.statuses if status not in action.possible]
    if wrong:
        raise click.UsageError(f"{action.name} is not for tasks that are {', '.join(wrong)}")
    found = find_ids(connection, search._replace(statuses=search.statuses or action.default_statuses))
    if not found:
        tell_what_was_meant(connection, search)
    return found


def _preview(connection: sqlite3.Connection, chosen: Sequence[str], *, as_json: bool, is_dry: bool) -> None:
    if as_json and not is_dry:
        raise click.UsageError("--json asks nothing; give --yes too, or --dry-run")
    if as_json:
        answer_json([{"task_id": task_id} for task_id in chosen])
        return
    rows = fetch_ids(connection, chosen[:SHOWN_BEFORE], SUMMARY)
    if rows:
        shown = [rows[task_id] for task_id in chosen[:SHOWN_BEFORE] if task_id in rows]
        messages = error_messages(connection, [row.task_id for row in shown], MAX_CHARS)
        _draw(shown, messages, workflows_of(connection, [row.task_id for row in shown if row.is_workflow_task]))
    if len(chosen) > SHOWN_BEFORE:
        click.echo(f"... and {len(chosen) - SHOWN_BEFORE:,} more")
    if is_dry:
        click.echo(f"{counted(len(chosen), 'task')}; nothing was changed")


async def _act_in_pages(store: Store, action: Action, chosen: Sequence[str]) -> list[Answer]:
    answers: list[Answer] = []
    for start in range(0, len(chosen), PAGE):
        page = chosen[start : start + PAGE]
        rows = await store.fetch_ids(page)
        answers += await action.act(store, [rows[task_id] for task_id in page if task_id in rows])
        gone = (task_id for task_id in page if task_id not in rows)
        answers += [Answer(task_id, False, "gone", "its record was deleted meanwhile") for task_id in gone]
    return answers


def _tell(action: Action, answers: Sequence[Answer], as_json: bool) -> None:
    refused = [answer for answer in answers if not answer.done]
    if as_json:
        answer_json([answer._asdict() for answer in answers])
    elif not answers:
        click.echo("no such tasks")
    elif len(answers) <= TOLD_ONE_BY_ONE:
        for answer in answers:
            click.echo(escaped(f"{answer.task_id}  {answer.outcome}{f': {answer.remark}' if answer.remark else ''}"))
    else:
        click.echo(f"{counted(len(answers) - len(refused), 'task')} {action.participle}")
    if refused:
        count, first = f"{len(refused):,} of {counted(len(answers), 'task')}", refused[0]
        click.echo(escaped(f"taskmanager: {count} refused; {first.task_id}: {first.remark}"), err=True)
