"""`taskmanager demo`: the first five minutes. Real files, a real process, a real SIGTERM, and a count at the end."""

import os
import shlex
import sysconfig
from pathlib import Path
from typing import Final

import click

from taskmanager.cli.database import json_option
from taskmanager.cli.demo.files import Listing, list_files
from taskmanager.cli.demo.judge import Judge, contents_of, side_files
from taskmanager.engine.instance import is_dead, lock_files
from taskmanager.model.escaping import escaped

DEFAULT_DB: Final = "taskmanager-demo.db"
DEFAULT_LIMIT: Final = 20_000
CTRL_C_EXIT: Final = 130

EPILOG = """
\b
Examples:
  taskmanager demo                        the standard library of this Python
  taskmanager demo ~/projects --limit 500
  taskmanager demo --resume               go on after Ctrl-C
  taskmanager demo --json >count.json     the tour on stderr, the count here

Nothing is changed below DIR. The database stays, to look at; the next demo starts it anew. Ends with 0 exactly
when every file has one task that is completed or failed.
"""


@click.command(epilog=EPILOG)
@click.argument("directory", metavar="[DIR]", required=False)
@click.option("--db", default=DEFAULT_DB, show_default=True, metavar="PATH", help="Where the tasks are kept.")
@click.option("--resume", is_flag=True, help="Go on with what an interrupted demo left in the database.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=DEFAULT_LIMIT,
    show_default=True,
    metavar="N",
    help="Take at most so many files.",
)
@json_option
def demo(directory: str | None, db: str, resume: bool, limit: int, as_json: bool) -> int:
    """Watch a program survive its own restart, on your own files.

    One task per file below DIR (by default Python's standard library): hash it, count its lines, and parse it if it is
    Python. In the middle the program gets a SIGTERM, as at a deploy, and is started again. Takes half a minute.
    """
    from taskmanager.cli.demo.story import Story

    database = Path(db)
    root = _directory(directory, database, resume)
    listing = _list(root, database, limit)
    options = [*([str(root)] if directory is not None else []), *(["--db", db] if db != DEFAULT_DB else [])]
    story = Story(database, root, listing, escaped(shlex.join(options)), as_json=as_json)
    try:
        return story.resume() if resume else story.tell(is_anew=_start_anew(database))
    except KeyboardInterrupt:
        try:
            story.interrupted()
        except KeyboardInterrupt:
            story.interrupted_again()
        return CTRL_C_EXIT
    finally:
        story.close()


def _directory(given: str | None, database: Path, resume: bool) -> Path:
    """The directory that was asked for, or that the demo to be resumed had. Raises what click shows."""
    before = None
    _check_database(database, resume)
    if resume:
        judge = Judge(database)
        before = judge.directory()
        judge.close()
    default = before or sysconfig.get_paths()["stdlib"]
    root = Path(os.path.abspath(default if given is None else Path(given).expanduser()))  # noqa: PTH100  # links stay
    if before is not None and before != escaped(str(root)):
        raise click.UsageError(f"{database} is a demo of {before}, not of {escaped(str(root))}; leave DIR out")
    if not root.is_dir():
        raise click.UsageError(f"{escaped(str(root))} is not a directory")
    if not os.access(root, os.R_OK | os.X_OK):
        raise click.ClickException(f"{escaped(str(root))} cannot be read")
    return root


def _check_database(database: Path, resume: bool) -> None:
    """Refuse a file that is not ours to touch, one in use, and a place where none can be made."""
    name = escaped(str(database))
    folder = database.absolute().parent
    if database.is_dir() or not folder.is_dir():
        raise click.UsageError(f"{name} cannot be a database there; give --db with the path of a file")
    if not os.access(folder, os.W_OK):
        raise click.ClickException(f"{escaped(str(folder))} cannot be written; give --db PATH")
    if not database.exists():
        if resume:
            raise click.ClickException(f"there is no {name} to go on with; start without --resume")
        return
    if contents_of(database) == "foreign":
        raise click.ClickException(f"{name} is not a demo's database and is left alone; give another --db PATH")
    if not all(is_dead(database.absolute(), instance_id) for _, instance_id in lock_files(database.absolute())):
        raise click.ClickException(f"another program is running on {name}; stop it, or give another --db PATH")


def _start_anew(database: Path) -> bool:
    """Remove what an earlier demo left; whether there was any."""
    is_there = database.exists() and contents_of(database) == "demo"
    if is_there:
        database.unlink()
    if is_there or not database.exists():
        for path in list(side_files(database.absolute())):
            path.unlink(missing_ok=True)
    return is_there


def _list(root: Path, database: Path, limit: int) -> Listing:
    folder = database.absolute().parent.resolve()

    def is_ours(path: Path) -> bool:
        return path.name.startswith(database.name) and path.parent.resolve() == folder

    return list_files(root, limit=limit, is_ours=is_ours)
