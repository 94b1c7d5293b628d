"""Lays out all tables of a screen on one grid of a name, some figures and a remark, so that all figures line up.

The lines are made here, not by rich's tables, for two reasons: a screen has to know how many lines it takes, and a line
that is printed to a file must end where its text ends.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.text import Text

from taskmanager.model.escaping import escaped

FIGURES: Final = 4
ESSENTIAL_FIGURES: Final = 2
WIDE_FROM: Final = 110  # columns from which on there is room for more than the essential
NARROW_BELOW: Final = 60
"""Columns below which a table has its essential figures only: with all four there would be none for the remark."""
MARGIN: Final = " "
GAP: Final = 2
_LEAST_NAME: Final = 12
HEAD_STYLE: Final = "dim"
TITLE_STYLE: Final = "bold"


class Cell(NamedTuple):
    """Text with a style."""

    text: str
    style: str = ""


NOTHING: Final = Cell("")
NOT_KNOWN: Final = Cell("-", "dim")


class Row(NamedTuple):
    """One line of a table. `drawn` replaces the first two figures, and may begin in the column of the name."""

    name: Cell
    figures: Sequence[Cell] = ()
    remark: Cell = NOTHING
    drawn: Text | None = None


class Section(NamedTuple):
    """A table: its title, the heads of its figures, and its rows, the most important first.

    The table is left out if there is no room for `least` rows. `unlisted` is the number of further rows that are not
    here. A narrow screen shows the `essential` figures only.
    """

    title: str
    heads: Sequence[str]
    rows: Sequence[Row]
    remark_head: str = ""
    least: int = 1
    unlisted: int = 0
    essential: tuple[int, ...] = (0, 1)

    def narrowed(self) -> "Section":
        """Return the table with its essential figures only."""
        heads = [self.heads[number] for number in self.essential]
        rows = [
            row._replace(figures=[row.figures[number] for number in self.essential if number < len(row.figures)])
            for row in self.rows
        ]
        return self._replace(heads=heads, rows=rows)


class Grid(NamedTuple):
    """The widths of the columns."""

    width: int
    name: int
    figure: int
    remark: int
    figures: int = FIGURES

    @property
    def is_wide(self) -> bool:
        """Return whether there is room for more than the essential."""
        return self.width >= WIDE_FROM

    @property
    def is_narrow(self) -> bool:
        """Return whether there is no room for all figures."""
        return self.figures < FIGURES

    def drawn_width(self, name_width: int) -> int:
        """Return how many columns are free between a name of that width and the third figure."""
        return self.name + 2 * self.figure - 1 - min(name_width, self.name)

    def head(self, section: Section, shown: int) -> Text:
        """Return the line above a table, with `3 of 8` if not all rows are shown.

        If the screen is narrow, heads are left out before the title is cut.
        """
        start = len(MARGIN) + self.name
        ends = ((start + self.figure * (place + 1), head) for place, head in enumerate(section.heads) if head)
        heads = [(end - cell_len(head), head) for end, head in ends]
        if section.remark_head:
            heads.append((start + self.figures * self.figure + GAP, section.remark_head))
        line = Text(MARGIN, no_wrap=True, overflow="ellipsis").append(section.title, TITLE_STYLE)
        number = len(section.rows) + section.unlisted
        part = f"  {shown} of {number:,}" if shown < number else ""
        if not heads or line.cell_len + len(part) < heads[0][0]:
            line.append(part, HEAD_STYLE)
        for place, head in heads:
            if place > line.cell_len:
                line.append(" " * (place - line.cell_len)).append(head, HEAD_STYLE)
        return line

    def line(self, row: Row) -> Text:
        """Return the line of a row. A long name keeps its end, and a long remark keeps its beginning."""
        line = Text(MARGIN, no_wrap=True, overflow="ellipsis")
        name_width = self.name if row.drawn is None else self.name + 2 * self.figure - 1 - row.drawn.cell_len
        line.append(set_cell_size(cut_front(escaped(row.name.text), name_width), name_width), row.name.style)
        if row.drawn is not None:
            line.append(" ").append_text(row.drawn)
        for cell in row.figures:
            text = escaped(cell.text)
            line.append(" " * max(1, self.figure - cell_len(text))).append(text, cell.style)
        if row.remark.text:
            used = self.figures - (0 if row.drawn is None else 2) - len(row.figures)
            line.append(" " * (GAP + used * self.figure))
            line.append(cut_end(escaped(row.remark.text), self.remark), row.remark.style)
        line.rstrip()
        return line


def grid_of(width: int) -> Grid:
    """Return the grid of a screen. Names and remarks share the columns that the figures leave."""
    if width < NARROW_BELOW:
        name, figure = min(18, max(_LEAST_NAME, width // 3)), 8
        remark = max(1, width - len(MARGIN) - name - ESSENTIAL_FIGURES * figure - GAP)
        return Grid(width, name, figure, remark, ESSENTIAL_FIGURES)
    figure, remark = (9, 44 + max(0, width - 120) // 2) if width >= WIDE_FROM else (8, min(19, width - 47))
    name = max(_LEAST_NAME, width - len(MARGIN) - FIGURES * figure - GAP - remark)
    return Grid(width, name, figure, remark)


def cut_front(text: str, width: int) -> str:
    """`…jobs:build_report`: cut a long name in front, because its end says more than its beginning."""
    if cell_len(text) <= width:
        return text
    while text and cell_len(text) > width - 1:
        text = text[max(1, (cell_len(text) - width + 1) // 2) :]
    return f"…{text}"


def cut_end(text: str, width: int) -> str:
    """`connection refu…`"""
    if cell_len(text) <= width:
        return text
    return f"{set_cell_size(text, max(0, width - 1)).rstrip()}…"


def wrapped(text: str, width: int, most: int) -> list[str]:
    """Return a text in lines of `width` columns. If it has more than `most` lines, the last one ends with `…`."""
    lines: list[str] = []
    for word in text.split():
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines += chop_cells(word, max(2, width))
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], cut_end(f"{lines[most - 1]} {lines[most]}", width)]


def fit(sections: Sequence[Section], lines: int | None) -> list[tuple[Section, int]]:
    """Return the tables that fit into so many lines, each with its number of rows. None is no limit.

    In their order, tables get a blank line, a head and their least number of rows, while there is room. The lines that
    are left are then given out one by one, in turns.
    """
    filled = [section for section in sections if section.rows]
    if lines is None:
        return [(section, len(section.rows)) for section in filled]
    shown: list[tuple[Section, int]] = []
    for section in filled:
        least = min(section.least, len(section.rows))
        if lines >= 2 + least:
            shown.append((section, least))
            lines -= 2 + least
    while lines > 0 and any(count < len(section.rows) for section, count in shown):
        for number, (section, count) in enumerate(shown):
            if lines > 0 and count < len(section.rows):
                shown[number] = (section, count + 1)
                lines -= 1
    return shown
