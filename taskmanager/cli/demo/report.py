"""The demo's last page: the table of what happened, and whether every file is accounted for."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from taskmanager.cli.demo.judge import Tally
from taskmanager.console.views import Fact, fact_table
from taskmanager.model.escaping import escaped

SHOWN_FAILURES: Final = 5
MEGABYTE: Final = 1_000_000


def report(
    tally: Tally, *, files: int, per_s: float | None, database: Path, size_bytes: int
) -> Iterator[RenderableType]:
    """The table, and below it the first failures by name. `per_s` is None where nothing was run."""
    causes = ", ".join(f"{count} {code}" for code, count in tally.causes.most_common(3))
    reasons = [(tally.retried, "after a failure"), (tally.interrupted, "after the interruption")]
    again = ", ".join(f"{count:,} {why}" for count, why in reasons if count)
    yield fact_table(
        [
            Fact("files", f"{files:,}"),
            Fact("completed", f"{tally.by_status['COMPLETED']:,}", style="green"),
            Fact("failed", f"{tally.by_status['FAILED']:,}", causes, style="red" if tally.by_status["FAILED"] else ""),
            Fact(
                "interrupted and requeued",
                f"{tally.interrupted:,}",
                "running when it had to stop" if tally.interrupted else "",
            ),
            Fact("run exactly once", f"{tally.once:,}"),
            Fact("run more than once", f"{tally.more_than_once:,}", again),
            Fact("tasks per second", "-" if per_s is None else f"{per_s:,.0f}"),
            Fact("size of the database", f"{size_bytes / MEGABYTE:.1f} MB", escaped(str(database))),
        ]
    )
    if tally.failures:
        yield Text()
        yield Text("   Failed for good, after their retries:")
        yield _failures(tally.failures)


def document(
    tally: Tally, missing: Sequence[str], *, files: int, per_s: float | None, database: Path
) -> dict[str, Any]:
    """The same for `--json`."""
    return {
        "db": escaped(str(database)),
        "files": files,
        "unaccounted": [escaped(name) for name in missing],
        "completed": tally.by_status["COMPLETED"],
        "failed": tally.by_status["FAILED"],
        "error_codes": dict(tally.causes),
        "interrupted": tally.interrupted,
        "run_once": tally.once,
        "run_more_than_once": tally.more_than_once,
        "tasks_per_s": None if per_s is None else round(per_s, 1),
    }


def _failures(failures: Sequence[tuple[str, str]]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(width=1)
    table.add_column(no_wrap=True, style="red")
    table.add_column(no_wrap=True, overflow="ellipsis")
    for name, code in failures[:SHOWN_FAILURES]:
        table.add_row("", code, Text(escaped(name)))
    if len(failures) > SHOWN_FAILURES:
        table.add_row("", "", f"and {len(failures) - SHOWN_FAILURES:,} more")
    return table


def accounting(tally: Tally, missing: Sequence[str], files: int) -> Iterator[str]:
    """The verdict."""
    if not missing:
        failed = (
            " Those that failed are no loss: the database says which, and why." if tally.by_status["FAILED"] else ""
        )
        all_files = "The one file" if files == 1 else f"Every one of the {files:,} files"
        yield f"{all_files} has exactly one task, and it is completed or failed.{failed}"
        return
    yield f"NOT every file is accounted for: {len(missing):,} have no task, more than one, or one that did not end."
    for name in missing[:SHOWN_FAILURES]:
        yield f"   {escaped(name)}"
