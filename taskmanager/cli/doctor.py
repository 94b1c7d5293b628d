"""`taskmanager doctor`: looks at everything that goes wrong with a file, and says what to do."""

from pathlib import Path
from typing import Final

import click

from taskmanager.cli.database import check_is_there, db_option, json_option, read
from taskmanager.cli.diagnosis import around_the_file, inside_the_file
from taskmanager.cli.output import answer_json, draw
from taskmanager.console.overview import Finding
from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.store.sqlite.reading import GLANCE_PATIENCE_S, READ_PATIENCE_S

EPILOG: Final = """
\b
Examples:
  taskmanager doctor
  taskmanager doctor --json --min-free 2000

Looks at permissions, the kind of file system, free disk space, the log and who pins it, who keeps others from writing,
the schema, every page of the file, tasks of dead instances, silent instances, functions that nobody knows, and clocks.
Changes nothing.
Exit codes: 0 all is well, 1 there are findings.
"""


@click.command(epilog=EPILOG)
@click.option(
    "--min-free",
    type=click.IntRange(min=0),
    default=200,
    show_default=True,
    metavar="MB",
    help="Less free disk space than this is a finding.",
)
@db_option
@json_option
def doctor(min_free: int, db: Path, as_json: bool) -> int:
    """Check the file and its surroundings, and say what to do."""
    check_is_there(db)
    if not db.is_file():
        raise StoreError(f"{db} is not a file; give the path of the database")
    findings = list(around_the_file(db, min_free))
    # A lock that was just seen to be held for long would only be waited for a second time.
    is_locked = any(each.name == "locks" and not each.is_well for each in findings)
    try:
        with read(db, patience_s=GLANCE_PATIENCE_S if is_locked else READ_PATIENCE_S) as connection:
            findings += inside_the_file(connection, db)
    except StoreError as exc:
        if isinstance(exc, StoreUnavailable) and all(each.is_well for each in findings):
            raise  # in one line, as every command; with findings, they say why
        findings.append(Finding("file", False, str(exc), "what is in it cannot be looked at before that is mended"))
    bad = sum(not each.is_well for each in findings)
    if as_json:
        checks = [
            {"name": each.name, "ok": each.is_well, "found": each.found, "advice": each.advice or None}
            for each in findings
        ]
        answer_json({"db": str(db), "findings": bad, "checks": checks})
    else:
        from taskmanager.console.terminal.tables import diagnosis_view

        draw(diagnosis_view(findings))
    return 1 if bad else 0
