"""The options that say which tasks are meant: by status, function, queue, error code and age."""

import re
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from taskmanager.model.clock import DAY_US, HOUR_US, MINUTE_US, SECOND_US, SystemClock
from taskmanager.model.escaping import escaped
from taskmanager.model.nearest import did_you_mean
from taskmanager.model.states import TaskStatus
from taskmanager.store.sqlite.search import Search, is_pattern, queue_names, task_names

F = TypeVar("F", bound=Callable[..., Any])

_UNITS_US: Final = {"s": SECOND_US, "m": MINUTE_US, "h": HOUR_US, "d": DAY_US, "w": 7 * DAY_US}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
_MOST_US: Final = 100 * 365 * DAY_US


class Duration(click.ParamType):  # type: ignore[type-arg]  # click made it generic lately
    """`90s`, `15m`, `1h`, `7d`, `2w`: microseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Raises `click.UsageError` for anything else."""
        if isinstance(value, int):
            return value
        match = _DURATION.fullmatch(str(value).strip().lower())
        if match is None:
            self.fail(f"{value!r} is no duration; write a number and a unit, as in 90s, 15m, 1h, 7d or 2w", param, ctx)
        return int(min(float(_MOST_US), float(match[1]) * _UNITS_US[match[2]]))


class Status(click.ParamType):  # type: ignore[type-arg]  # click made it generic lately
    """One of these statuses, in any case: a `TaskStatus`."""

    name = "status"

    def __init__(self, allowed: Sequence[TaskStatus] = tuple(TaskStatus)) -> None:
        self._allowed = allowed

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> TaskStatus:
        """Raises `click.UsageError` for anything else."""
        name = str(value).upper()
        if name not in self._allowed:
            self.fail(f"{str(value)!r} is none of {', '.join(self._allowed)}", param, ctx)
        return TaskStatus(name)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """What the shell offers."""
        return [CompletionItem(each.value) for each in self._allowed if each.value.startswith(incomplete.upper())]


def filter_options(command: F) -> F:
    """`--status --task --queue --code --since`, as the parameters of `search_of`."""
    options = (
        click.option(
            "--status", type=Status(), multiple=True, metavar="STATUS",
            help="Only tasks with this status, e.g. FAILED; may be given several times.",
        ),
        click.option("--task", "task_name", metavar="NAME", help="Only this function; * and ? are wildcards."),
        click.option("--queue", "queue_name", metavar="QUEUE", help="Only this queue."),
        click.option("--code", "error_code", metavar="CODE", help="Only tasks that ended with this error code."),
        click.option(
            "--since", type=Duration(), metavar="AGE",
            help="Only tasks that ended (or else last changed) within this time: 90s, 15m, 1h, 7d.",
        ),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def search_of(
    status: Sequence[TaskStatus],
    task_name: str | None,
    queue_name: str | None,
    error_code: str | None,
    since: int | None,
) -> Search:
    """What the options ask for."""
    return Search(
        statuses=tuple(status),
        task_name=task_name,
        queue_name=queue_name,
        error_code=error_code,
        changed_since=None if since is None else SystemClock().now_us() - since,
    )


def tell_what_was_meant(connection: sqlite3.Connection, search: Search) -> None:
    """A line on stderr where there is no task of that queue or function, and a name that is near has some."""
    wanted = (
        ("queue", search.queue_name, queue_names),
        ("function", search.task_name, task_names),
    )
    for what, name, names_in in wanted:
        if name is None or is_pattern(name) or name in (known := names_in(connection)):
            continue
        if meant := did_you_mean(name, known):
            click.echo(f"taskmanager: {escaped(f'there is no {what} {name!r}{meant}')}", err=True)
