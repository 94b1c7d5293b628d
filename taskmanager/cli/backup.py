"""The command `taskmanager backup`, which copies the file while it is in use."""

from pathlib import Path
from typing import Final

import click

from taskmanager.cli.database import check_is_there, db_option, json_option
from taskmanager.cli.output import answer_json
from taskmanager.model.escaping import escaped
from taskmanager.store.sqlite.backup import back_up
from taskmanager.store.sqlite.reading import open_read_only

EPILOG: Final = """
\b
Examples:
  taskmanager backup /backups/tasks-monday.db
  taskmanager backup --force --db /data/tasks.db /backups/tasks.db

Works while the application runs, and holds up none of its writes. The copy is
the file as it was when the command began, with all that was committed then. It
is checked before it gets its name, and only you can read it. A file that is
there already is not replaced without --force.
"""


@click.command(epilog=EPILOG)
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace FILE if it is there already.")
@db_option
@json_option
def backup(file: Path, force: bool, db: Path, as_json: bool) -> None:
    """Copy the database into FILE, whether the application is running or not."""
    check_is_there(db)
    with open_read_only(db, is_any_version=True) as connection:
        size_bytes = back_up(connection, db, file, is_replacing=force)
    if as_json:
        answer_json({"db": str(db), "file": str(file), "size_bytes": size_bytes})
    else:
        click.echo(f"{escaped(str(db))} was copied to {escaped(str(file))} ({size_bytes / 1_000_000:,.1f} MB)")
