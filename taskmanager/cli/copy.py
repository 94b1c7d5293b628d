"""`taskmanager copy`: move everything to another database, from a file to a server or back."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import click

from taskmanager.cli.database import wait_for_signs
from taskmanager.cli.options import PlaceName, answer_json, json_option
from taskmanager.model.errors import StoreError
from taskmanager.model.escaping import escaped
from taskmanager.model.wording import counted
from taskmanager.store.copying import Copied, copy
from taskmanager.store.place import Place
from taskmanager.store.protocol import InstanceRow
from taskmanager.store.sql.queries import instances
from taskmanager.store.sql.session import Session

EPILOG: Final = """\b
Examples:
  taskmanager copy tasks.db postgresql://app@db.example/app
  taskmanager copy postgresql://app@db.example/app tasks.db
  taskmanager copy tasks.db 'postgresql://app@db.example/app?schema=jobs'

FROM and TO are files or URLs of servers. TO is made if it is not there. FROM is
only read, and stays as it is.

Stop the application first: what it holds in memory would be run by it, and from
the copy once more. If this command is cut short, run it again: it goes on where
it was. A task that has changed in FROM since then is copied again, and one that
has changed in TO stays.

The exit code is 0 only if everything is in TO.
"""
_SHOWN: Final = 1_000
_Progress = Callable[[int, int], None]


@click.command(name="copy", epilog=EPILOG)
@click.argument("source", metavar="FROM", type=PlaceName())
@click.argument("target", metavar="TO", type=PlaceName())
@click.option("--into", is_flag=True, help="TO may have other tasks, and keeps them.")
@click.option("--force", is_flag=True, help="Copy though an instance lives at FROM or TO: its tasks may run twice.")
@json_option
def copy_command(source: Place, target: Place, into: bool, force: bool, as_json: bool) -> None:
    """Copy all tasks, workflows and schedules from one database to another."""
    if source.is_same(target):
        raise click.UsageError("FROM and TO are the same")
    source.check_is_there("give the path or the URL of what is to be copied")
    with source.read() as origin:
        _Guard(((source, origin),), is_off=force)()
        with target.write() as copied, _progress(is_shown=not as_json) as progress:
            guard = _Guard(((source, origin), (target, copied)), is_off=force)
            guard()
            try:
                done = copy(origin, copied, is_into=into, check=guard, progress=progress)
            except StoreError as exc:
                raise type(exc)(f"{target}: {exc}") from exc
    _answer(source, target, done, as_json=as_json)
    if not _is_whole(done, is_into=into):
        raise click.exceptions.Exit(1)


class _Guard:
    """Looks whether an instance lives at one of these places. Those that have died are asked only once."""

    def __init__(self, places: Sequence[tuple[Place, Session]], *, is_off: bool) -> None:
        self._places = () if is_off else places
        self._dead = set[str]()

    def __call__(self) -> None:
        """Raise `StoreError` if there is one."""
        for place, session in self._places:
            new = [each for each in instances(session) if each.instance_id not in self._dead]
            if new:
                wait_for_signs(place, [each.instance_id for each in new])
            for each in new:
                self._judge(place, each)

    def _judge(self, place: Place, each: InstanceRow) -> None:
        if not place.is_dead(each.instance_id):
            raise StoreError(
                f"an instance lives at {place} (process {each.pid} on {each.hostname}), and what it holds in memory "
                "would run in both places: stop it, then run this again. One that was killed a moment ago counts as "
                "alive for a minute on a server; --force copies all the same"
            )
        self._dead.add(each.instance_id)


@contextmanager
def _progress(*, is_shown: bool) -> Iterator[_Progress]:
    """Show a bar on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    is_hidden = not (is_shown and console.is_terminal)
    with Progress(*columns, console=console, transient=True, disable=is_hidden) as progress:
        bar = progress.add_task("copying", total=None)

        def show(done: int, total: int) -> None:
            progress.update(bar, completed=done, total=total)

        yield show


def _is_whole(done: Copied, *, is_into: bool) -> bool:
    """Whether all of FROM is in TO. What has gone on there may have other rows."""
    if done.left_out:
        return False
    return is_into or done.newer > 0 or all(each.target >= each.source for each in done.tables)


def _answer(source: Place, target: Place, done: Copied, *, as_json: bool) -> None:
    if as_json:
        answer_json(
            {
                "from": str(source),
                "to": str(target),
                "tables": [each._asdict() for each in done.tables],
                "newer": done.newer,
                "freed": done.freed,
                "changed_texts": done.changed_texts,
                "left_out": [each._asdict() for each in done.left_out],
            }
        )
        return
    for each in done.left_out[:_SHOWN]:
        click.echo(escaped(f"not copied: {each.table} {each.key}: {each.reason}"), err=True)
    if len(done.left_out) > _SHOWN:
        click.echo(f"not copied: {len(done.left_out) - _SHOWN:,} more; --json has all", err=True)
    click.echo(f"{'':<16}{'copied':>12}{'in FROM':>12}{'in TO':>12}")
    for row in done.tables:
        different = "" if row.source == row.target else "  differs"
        click.echo(f"{row.table:<16}{row.copied:>12,}{row.source:>12,}{row.target:>12,}{different}")
    for number, what, said in (
        (done.freed, "task", "waited in the memory of an instance that has ended: free in the copy"),
        (done.newer, "row", "changed later in TO than in FROM, and stayed"),
        (done.changed_texts, "text", "had a character that TO cannot hold: U+FFFD stands there"),
        (len(done.left_out), "row", "not copied, see above"),
    ):
        if number:
            click.echo(f"{counted(number, what)}: {said}")
    click.echo(escaped(f"{source} was copied to {target}"))
