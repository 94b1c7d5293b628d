"""Rich views of frozen values: progress of many tasks, and a table of facts. They fit 80 columns, and no line wraps."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

BAR_WIDTH = 70


class Progress(NamedTuple):
    """How far many tasks are. `retry_count` is how many attempts were repeated because they failed."""

    done: int
    total: int
    per_s: float
    running: int
    retry_count: int
    failed: int


class Fact(NamedTuple):
    """One line of a table: what is counted, how many, and what there is to say about it."""

    name: str
    value: str
    remark: str = ""
    style: str = ""


def progress_line(progress: Progress) -> Text:
    """Progress in one line."""
    done, total, per_s, running, retry_count, failed = progress
    parts = [
        f"{done:,} of {total:,} files" if total != 1 else f"{done} of 1 file",
        f"{per_s:,.0f}/s",
        f"{running} running",
        "1 retry" if retry_count == 1 else f"{retry_count} retries",
    ]
    line = Text("   " + " · ".join(parts) + " · ", no_wrap=True, overflow="ellipsis")
    return line.append(f"{failed} failed", style="red" if failed else "")


def progress_view(progress: Progress) -> RenderableType:
    """Progress as a bar with its line below."""
    bar = ProgressBar(total=max(1, progress.total), completed=progress.done, width=BAR_WIDTH, complete_style="cyan")
    return Group(Padding(bar, (0, 0, 0, 3)), progress_line(progress))


def fact_table(facts: Sequence[Fact]) -> Table:
    """Facts, one a line, numbers below one another."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(width=1)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    for fact in facts:
        table.add_row("", fact.name, Text(fact.value, style=fact.style), Text(fact.remark))
    return table
