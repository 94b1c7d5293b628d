"""What `retry` and `cancel` share: one action on tasks named by their ids, or on a batch of all that fit a filter.

A batch is shown and has to be confirmed. It is then done in pages, and each task is answered for.
"""

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from taskmanager.cli.confirmation import confirm
from taskmanager.cli.database import read, write
from taskmanager.cli.filters import search_of, tell_what_was_meant
from taskmanager.cli.output import answer_json, draw, screen
from taskmanager.cli.task_ids import the_tasks
from taskmanager.console.cause import MAX_CHARS
from taskmanager.model.clock import SystemClock
from taskmanager.model.escaping import escaped
from taskmanager.model.record import TaskRow
from taskmanager.model.states import TaskStatus
from taskmanager.model.wording import counted
from taskmanager.store.protocol import Store
from taskmanager.store.sqlite.queries import SUMMARY, fetch_ids
from taskmanager.store.sqlite.search import Search, error_messages, find_ids

PAGE: Final = 500
SHOWN_BEFORE: Final = 10
"""Tasks of a batch that are shown before the question."""
TOLD_ONE_BY_ONE: Final = 20
"""Of more tasks than that, a person gets the sums."""


class Answer(NamedTuple):
    """What became of one task. `outcome` is one word; `remark` says the rest."""

    task_id: str
    is_done: bool
    outcome: str
    remark: str = ""

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {"task_id": self.task_id, "done": self.is_done, "outcome": self.outcome, "remark": self.remark or None}


class Action(NamedTuple):
    """What is done to tasks.

    `participle` is what they are afterwards ("waiting"); `default_statuses` are those of a batch without `--status`.
    """

    name: str
    participle: str
    default_statuses: tuple[TaskStatus, ...]
    possible: frozenset[TaskStatus]
    act: Callable[[Store, Sequence[TaskRow]], Awaitable[list[Answer]]]


def act_on(
    action: Action,
    task_ids: Sequence[str],
    *,
    db: Path,
    as_json: bool,
    yes: bool,
    dry_run: bool,
    **filters: Any,
) -> int:
    """Find the tasks, ask, act, and print what became of each; the exit code."""
    search = search_of(**filters)
    if bool(task_ids) == (not search.is_everything):
        raise click.UsageError("say which tasks: by ids, or by --status, --task, --queue, --code, --since")
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
    return 0 if all(answer.is_done for answer in answers) else 1


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
        from taskmanager.console.terminal.tables import task_table

        shown = [rows[task_id] for task_id in chosen[:SHOWN_BEFORE] if task_id in rows]
        messages = error_messages(connection, [row.task_id for row in shown], MAX_CHARS)
        draw(task_table(shown, messages, SystemClock().now_us(), screen().width))
    if len(chosen) > SHOWN_BEFORE:
        click.echo(f"... and {len(chosen) - SHOWN_BEFORE:,} more")
    if is_dry:
        click.echo(f"{counted(len(chosen), 'task')}; nothing was changed")


async def _act_in_pages(store: Store, action: Action, chosen: Sequence[str]) -> list[Answer]:
    answers: list[Answer] = []
    for start in range(0, len(chosen), PAGE):
        page = chosen[start : start + PAGE]
        rows = await store.fetch_ids(page)
        done = await action.act(store, [rows[task_id] for task_id in page if task_id in rows])
        gone = [
            Answer(task_id, False, "gone", "its record was deleted meanwhile")
            for task_id in page
            if task_id not in rows
        ]
        answers += [*done, *gone]
    return answers


def _tell(action: Action, answers: Sequence[Answer], as_json: bool) -> None:
    refused = [answer for answer in answers if not answer.is_done]
    if as_json:
        answer_json([answer.as_json() for answer in answers])
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
