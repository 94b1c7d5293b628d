"""Draws the findings of `taskmanager doctor`: a line for each, and below what is not well, what to do."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from taskmanager.console.finding import Finding
from taskmanager.model.escaping import escaped
from taskmanager.model.wording import counted


def diagnosis_view(findings: Sequence[Finding]) -> RenderableType:
    """All of them, and the sum."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for each in findings:
        mark = Text("ok", style="green") if each.is_well else Text("!!", style="bold red")
        found = Text(escaped(each.found))
        if not each.is_well:
            found.stylize("bold")
            found.append(f"\n→ {escaped(each.advice)}", "not bold")
        table.add_row(mark, each.name, found)
    bad = sum(not each.is_well for each in findings)
    count = counted(bad, "finding") if bad else "no findings"
    return Group(table, Text(""), Text(count, style="bold red" if bad else "green"))
