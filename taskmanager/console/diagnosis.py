"""Draws the findings of `taskmanager doctor`: a line for each, and below what is not well, what to do."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from taskmanager.model.escaping import escaped
from taskmanager.model.wording import counted


class Line(NamedTuple):
    """One finding: the name of the check, whether all is well, what was found, and what to do."""

    name: str
    is_well: bool
    found: str
    advice: str


def diagnosis_view(lines: Sequence[Line]) -> RenderableType:
    """All of them, and the sum."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for line in lines:
        mark = Text("ok", style="green") if line.is_well else Text("!!", style="bold red")
        found = Text(escaped(line.found))
        if not line.is_well:
            found.stylize("bold")
            found.append(f"\n→ {escaped(line.advice)}", "not bold")
        table.add_row(mark, line.name, found)
    bad = sum(not line.is_well for line in lines)
    count = counted(bad, "finding") if bad else "no findings"
    return Group(table, Text(""), Text(count, style="bold red" if bad else "green"))
