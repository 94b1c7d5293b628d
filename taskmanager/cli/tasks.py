"""`taskmanager list`, `show`, `retry` and `cancel`: look at the tasks of the file, and act on them.

`retry` and `cancel` do the same as the methods of the manager, from outside of the application. A running application
notices within its `store_poll`, a quarter of a second. The tasks are given by their ids, or by a filter. Tasks that fit
a filter are a batch: it is shown, has to be confirmed, and is done in pages.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import click

from taskmanager.cli.database import read, the_task, the_tasks, write
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
from taskmanager.console import acts
from taskmanager.console.acts import Act, Answer
from taskmanager.console.documents import attempt_document, record_document, step_document
from taskmanager.console.figures import MAX_CHARS, iso
from taskmanager.console.outlook import outlook, surroundings
from taskmanager.engine.people.records import is_free
from taskmanager.model.clock import SystemClock
from taskmanager.model.errors import UnknownTask
from taskmanager.model.escaping import escaped
from taskmanager.model.record import TaskRow
from taskmanager.model.states import LIVE, TERMINAL, TaskStatus
from taskmanager.model.steps import STEP
from taskmanager.model.wording import counted
from taskmanager.store.place import Place
from taskmanager.store.protocol import Store
from taskmanager.store.sql.queries import (
    SUMMARY,
    fetch,
    fetch_attempts,
    fetch_ids,
    fetch_steps,
    instances,
    paused_queues,
)
from taskmanager.store.sql.search import Search, error_messages, find, find_ids, memory_only
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.workflow_views import workflows_of
from taskmanager.store.statistics import OwnWorkflow

SHOWN_BEFORE: Final = 10  # tasks of a batch that are shown before the question
TOLD_ONE_BY_ONE: Final = 20  # of more tasks than that, a person gets the sums

LIST_EPILOG: Final = """\b
Examples:
  taskmanager list
  taskmanager list --status FAILED --since 1h
  taskmanager list --tag customer=42 --error TIMEOUT
  taskmanager list --task 'app.jobs:*' --limit 200 --json

"when" says how long a task has been running or waiting, how soon it is due, or how long ago it ended.
A memory-only task is in the database once it has ended, up to a minute later.
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
def list_tasks(limit: int, before: str | None, db: Place, as_json: bool, **filters: Any) -> None:
    """List tasks, newest first."""
    search = search_of(**filters)
    with read(db) as connection:
        if before is not None:
            search = search._replace(before=the_task(connection, before))
        rows = find(connection, search, limit)
        if not rows:
            tell_what_was_meant(connection, search)
        messages = error_messages(connection, [row.task_id for row in rows], MAX_CHARS)
        workflows = workflows_of(connection, [row.task_id for row in rows if row.is_workflow_task])
        unseen = [each for each in memory_only(connection) if not db.is_dead(each.instance_id)]
        owners = [row.claimed_by_worker_id for row in rows if row.status in LIVE and not is_free(row)]
        dead = {owner for owner in set(owners) if db.is_dead(owner or "")}
    if as_json:
        answer_json([record_document(row, workflows.get(row.task_id)) for row in rows])
        return
    if rows:
        _draw(rows, messages, workflows)
    else:
        click.echo("no tasks" if search.is_everything else "no such tasks")
    if len(rows) == limit:
        click.echo(f"\nolder ones: --before {escaped(rows[-1].task_id)}")
    if dead:
        held = counted(sum(owner in dead for owner in owners), "task")
        click.echo(f"\nheld by dead instances: {held}; a start, or `taskmanager recover`, gives them back")
    if unseen and search in (Search(), Search(statuses=(TaskStatus.RUNNING,))):
        what = counted(len(unseen), "memory-only task")
        click.echo(
            f"\nrunning, not in the {'database' if db.file is None else 'file'}: {what}; see `taskmanager status`"
        )


def _draw(rows: Sequence[TaskRow], messages: Mapping[str, str], workflows: Mapping[str, OwnWorkflow]) -> None:
    from taskmanager.console.terminal.tables import task_table  # not for --json

    draw(task_table(rows, messages, workflows, SystemClock().now_us(), screen().width))


@click.command(epilog=SHOW_EPILOG)
@click.argument("task_id", metavar="ID")
@file_options
def show(task_id: str, db: Place, as_json: bool) -> None:
    """Show one task: its record, every attempt, its steps, its log, what happens next."""
    with read(db) as connection, connection.snapshot():
        wanted = the_task(connection, task_id)
        row = fetch(connection, wanted)
        if row is None:  # a snapshot does not lose rows
            raise UnknownTask(f"there is no task {wanted}")
        attempts, known = fetch_attempts(connection, wanted), instances(connection)
        steps = [each for each in fetch_steps(connection, wanted) if each.kind == STEP]
        is_paused = row.queue_name in paused_queues(connection)
        workflow = workflows_of(connection, [wanted]).get(wanted)
        around = surroundings(row, known, db, SystemClock().now_us(), workflow, is_paused=is_paused)
    next_step = outlook(row, around, steps)
    if as_json:
        after = {"text": next_step.text, "at": None if next_step.at is None else iso(next_step.at)}
        told = [attempt_document(each) for each in attempts]
        done = [step_document(each) for each in steps]
        answer_json({**record_document(row, workflow), "attempts": told, "steps": done, "next": after})
        return
    from taskmanager.console.terminal.record import Record, record_view

    draw(record_view(Record(row, attempts, next_step, around.owner, around.now_us, steps, workflow)))


class Action(NamedTuple):
    """Something that a command does to tasks.

    `participle` says what they are afterwards ("waiting"). A batch without `--status` has the `default_statuses`.
    """

    name: str
    participle: str
    default_statuses: tuple[TaskStatus, ...]
    possible: frozenset[TaskStatus]
    act: Callable[[Store], Act]


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

    def act(store: Store) -> Act:
        async def on(rows: Sequence[TaskRow]) -> list[Answer]:
            answers = await acts.retry(store, rows, SystemClock(), force=force, from_start=from_start)
            return [_with_command(row, answer) for row, answer in zip(rows, answers, strict=True)]

        return on

    possible = TERMINAL if force else acts.RETRYABLE
    return _act_on(Action("retry", "waiting", (TaskStatus.FAILED,), possible, act), task_ids, **options)


def _with_command(row: TaskRow, answer: Answer) -> Answer:
    """Say how to run a task now that waits for its time."""
    if answer.done or row.status != TaskStatus.PENDING or row.enqueued_at <= SystemClock().now_us():
        return answer
    return answer._replace(remark=f"{answer.remark}; to run it now: taskmanager cancel {row.task_id[-8:]}, then retry")


@click.command(epilog=CANCEL_EPILOG)
@click.argument("task_ids", metavar="[ID]...", nargs=-1)
@filter_options
@click.option("--dry-run", is_flag=True, help="Only show which tasks would be cancelled.")
@yes_option
@file_options
def cancel(task_ids: tuple[str, ...], **options: Any) -> int:
    """Cancel tasks that have not ended."""
    place: Place = options["db"]

    def act(store: Store) -> Act:
        return lambda rows: acts.cancel(store, rows, SystemClock(), place)

    waiting_and_running = tuple(status for status in TaskStatus if status in LIVE)
    return _act_on(Action("cancel", "cancelled", waiting_and_running, LIVE, act), task_ids, **options)


def _act_on(
    action: Action, task_ids: Sequence[str], *, db: Place, as_json: bool, yes: bool, dry_run: bool, **filters: Any
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
    answers = write(db, lambda store: acts.in_pages(store, action.act(store), chosen)) if chosen else []
    _tell(action, answers, as_json)
    return 0 if all(answer.done for answer in answers) else 1


def _batch(connection: Session, action: Action, search: Search) -> list[str]:
    wrong = [status for status in search.statuses if status not in action.possible]
    if wrong:
        raise click.UsageError(f"{action.name} is not for tasks that are {', '.join(wrong)}")
    found = find_ids(connection, search._replace(statuses=search.statuses or action.default_statuses))
    if not found:
        tell_what_was_meant(connection, search)
    return found


def _preview(connection: Session, chosen: Sequence[str], *, as_json: bool, is_dry: bool) -> None:
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
