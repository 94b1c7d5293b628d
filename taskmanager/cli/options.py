"""The options that several commands share, and how commands print their answers."""

import io
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click
from click.shell_completion import CompletionItem

from taskmanager.model.clock import SystemClock, span_us
from taskmanager.model.errors import ConfigurationError
from taskmanager.model.escaping import escaped
from taskmanager.model.nearest import did_you_mean
from taskmanager.model.states import TaskStatus
from taskmanager.store.place import Place, place_at
from taskmanager.store.sql.search import Search, is_pattern, queue_names, task_names
from taskmanager.store.sql.session import Session

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

DEFAULT_DB: Final = "tasks.db"
DB_VARIABLE: Final = "TASKMANAGER_DB"
WIDTH_OF_A_PIPE: Final = 200
"""Columns where nobody says how many there are: wide enough that nothing is cut that `grep` may look for."""
_NOT_ASCII: Final = re.compile(r"[^\n -~]")

F = TypeVar("F", bound=Callable[..., Any])


class PlaceName(click.ParamType):  # type: ignore[type-arg]  # click made it generic lately
    """A database: the path of a file, as it was written, or a URL."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Place:
        """Raise `click.UsageError` for a URL that is of no use. Whether a file can be read is said later."""
        try:
            place = place_at(os.fspath(value)) if isinstance(value, str | os.PathLike) else cast("Place", value)
            return place.for_many_looks()
        except ConfigurationError as exc:
            self.fail(str(exc), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Let the shell offer its files."""
        return [CompletionItem(incomplete, type="file")]


db_option: Final = click.option(
    "--db",
    type=PlaceName(),
    default=DEFAULT_DB,
    envvar=DB_VARIABLE,
    show_default=True,
    show_envvar=True,
    metavar="PATH|URL",
    help="The database of the application: a file, or a postgresql:// URL.",
)
json_option: Final = click.option("--json", "as_json", is_flag=True, help="Print one JSON document, and nothing else.")
yes_option: Final = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


def file_options(command: F) -> F:
    """Add `--db` and `--json`, as the parameters `db: Place` and `as_json: bool`."""
    return db_option(json_option(command))


def confirm(question: str) -> None:
    """Ask on stderr, and return when stdin says a clear yes. Raises `click.ClickException` (exit code 1) otherwise."""
    click.echo(f"{question} [y/N] ", err=True, nl=False)
    answer = sys.stdin.readline() if sys.stdin is not None else ""
    if not answer:
        click.echo(err=True)
        raise click.ClickException("nobody answered, so nothing was changed; give --yes")
    if answer.strip().lower() not in ("y", "yes"):
        raise click.ClickException("nothing was changed")


class Duration(click.ParamType):  # type: ignore[type-arg]  # click made it generic lately
    """A duration such as `90s`, `15m`, `1h`, `7d` or `2w`, in microseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Raise `click.UsageError` for anything else."""
        if isinstance(value, int):
            return value
        span = span_us(str(value))
        if span is None:
            self.fail(f"{value!r} is no duration; write a number and a unit, as in 90s, 15m, 1h, 7d or 2w", param, ctx)
        return span


class Status(click.ParamType):  # type: ignore[type-arg]  # click made it generic lately
    """A `TaskStatus`, in upper or lower case, and one of the allowed ones."""

    name = "status"

    def __init__(self, allowed: Sequence[TaskStatus] = tuple(TaskStatus)) -> None:
        self._allowed = allowed

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> TaskStatus:
        """Raise `click.UsageError` for anything else."""
        name = str(value).upper()
        if name not in self._allowed:
            self.fail(f"{str(value)!r} is none of {', '.join(self._allowed)}", param, ctx)
        return TaskStatus(name)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return what the shell offers."""
        return [CompletionItem(each.value) for each in self._allowed if each.value.startswith(incomplete.upper())]


class Tag(click.ParamType):  # type: ignore[type-arg]  # click made it generic lately
    """A tag with its value, as `NAME=VALUE`."""

    name = "tag"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Raise `click.UsageError` where there is no `=`."""
        if isinstance(value, tuple):
            return value
        tag, sign, text = str(value).partition("=")
        if not (tag and sign):
            self.fail(f"{value!r} is no tag with a value; write NAME=VALUE, as in customer=42", param, ctx)
        return tag, text


tag_option = click.option(
    "--tag", "tags", type=Tag(), multiple=True, metavar="NAME=VALUE",
    help="Only tasks with this tag; of several they must have all.",
)  # fmt: skip
error_option = click.option(
    "--error", "--code", "error_code", metavar="CODE", help="Only tasks that ended with this error code."
)


def filter_options(command: F) -> F:
    """Add `--status --task --queue --tag --error --since`, which are the parameters of `search_of`."""
    options = (
        click.option(
            "--status", type=Status(), multiple=True, metavar="STATUS",
            help="Only tasks with this status, e.g. FAILED; may be given several times.",
        ),
        click.option("--task", "task_name", metavar="NAME", help="Only this function; * and ? are wildcards."),
        click.option("--queue", "queue_name", metavar="QUEUE", help="Only this queue."),
        tag_option,
        error_option,
        click.option(
            "--since", type=Duration(), metavar="AGE",
            help="Only tasks that ended (or else last changed) within this time: 90s, 15m, 1h, 7d.",
        ),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def search_of(
    status: Sequence[TaskStatus], since: int | None, tags: Sequence[tuple[str, str]], **names: str | None
) -> Search:
    """Return the search that the options ask for."""
    changed_since = None if since is None else SystemClock().now_us() - since
    task_name, queue_name, error_code = (names[name] for name in ("task_name", "queue_name", "error_code"))
    return Search(tuple(status), task_name, queue_name, error_code, tuple(tags), changed_since)


def tell_what_was_meant(connection: Session, search: Search) -> None:
    """Suggest a similar name on stderr, if no task has the queue or the function that was searched for."""
    for what, name, names_in in (("queue", search.queue_name, queue_names), ("function", search.task_name, task_names)):
        if name is None or is_pattern(name) or name in (known := names_in(connection)):
            continue
        if meant := did_you_mean(name, known):
            click.echo(f"taskmanager: {escaped(f'there is no {what} {name!r}{meant}')}", err=True)


# Answers.


def answer_json(value: object) -> None:
    """Print one document on stdout, in UTF-8 whatever the terminal speaks."""
    click.echo(as_document(value), nl=False)


def answer(document: object, text: str, *, as_json: bool) -> None:
    """Print one document, or one line of text."""
    if as_json:
        answer_json(document)
    else:
        click.echo(escaped(text))


def as_document(value: object) -> bytes:
    """Return the document, with a newline at its end, and without control characters that could steer a terminal."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    if not text.replace("\n", "").isprintable():
        text = _NOT_ASCII.sub(_shown, text)
    return text.encode("utf-8", "replace") + b"\n"


def _shown(match: re.Match[str]) -> str:
    """Escape what JSON does not: control characters beyond ASCII, and those that turn the direction of writing."""
    sign = match[0]
    is_half = "\ud800" <= sign <= "\udfff"
    return sign if sign.isprintable() or is_half else json.dumps(sign)[1:-1]


def draw(part: "RenderableType") -> None:
    """Print this. If stdout is no terminal, leave out the spaces that rich puts at the ends of lines."""
    console = screen()
    if console.is_terminal:
        console.print(part)
        return
    with console.capture() as capture:
        console.print(part)
    for line in capture.get().splitlines():
        click.echo(line.rstrip())


def screen() -> "Console":
    """Return stdout, as wide as the terminal or `$COLUMNS`; colours are for a terminal only, and not under NO_COLOR."""
    from rich.console import Console  # not for --json

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 shows what it can
    console = Console(highlight=False)
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = WIDTH_OF_A_PIPE
    return console
