"""The two screens: `status` for one look, `watch` for many. The most important first, as many lines as there is room.

A screen is a list of lines that are as wide as the terminal at most. Where the height is not known (a pipe, a file),
everything is shown.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from taskmanager.console import sections
from taskmanager.console.cut import cut_front
from taskmanager.console.durations import clock, short
from taskmanager.console.figures import compact, plural, rate, share, size
from taskmanager.console.grid import GAP, MARGIN, Grid, Section, fit, grid_of, wrapped
from taskmanager.console.picture import Health, Picture, Problem
from taskmanager.console.sections import FAILED_STYLE, RUNNING_STYLE
from taskmanager.model.clock import HOUR_US, MINUTE_US
from taskmanager.model.escaping import escaped
from taskmanager.model.states import TaskStatus
from taskmanager.store.statistics import Pace

MAX_PROBLEMS: Final = 3
LEAST_RUNNING: Final = 3
"""Rows of what runs that a small screen keeps, whatever else there is to say."""
MAX_PROBLEM_LINES: Final = 3
"""Of one sentence, where the terminal is narrow."""
SEVERITY_STYLES: Final = {"error": "bold red", "warning": "bold yellow"}
FOOTER: Final = "q quits"
_LABEL: Final = 13
"""Columns for the name of a line of figures."""
_LEAST_PATH: Final = 12
_PACE_WIDTH: Final = 72
"""Columns that a pace with its rate and its share may need."""
FIRST_STEPS: Final = (
    "No tasks yet. A first one:",
    "",
    "    from taskmanager import TaskManager",
    "",
    '    manager = TaskManager("{path}")',
    "",
    "    @manager.task(persist=True)",
    "    async def greet(name: str) -> str:",
    '        return f"Hello, {{name}}"',
    "",
    "    async def main() -> None:",
    '        print(await greet.enqueue("world"))',
    "",
    "    manager.run(main)",
    "",
    "Or see what it can do, on your own files: taskmanager demo",
)


class StatusScreen:
    """A picture as a rich renderable: it fits the terminal it is printed to."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.height or (console.height - 1 if console.is_terminal else None)  # one line for the prompt
        yield Group(*status_lines(self.picture, options.max_width, height, is_ascii=options.ascii_only))


class LiveScreen(StatusScreen):
    """The same with what runs at the top, for a view that is drawn again and again.

    `widths` are those of the lines that were drawn last, in columns.
    """

    widths: Sequence[int] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.height or console.height - 1
        lines = live_lines(self.picture, options.max_width, height, is_ascii=options.ascii_only)
        self.widths = [line.cell_len for line in lines]
        yield Group(*lines)


def status_lines(picture: Picture, width: int, height: int | None, *, is_ascii: bool = False) -> list[Text]:
    """One look."""
    grid = grid_of(width)
    top = [*_head(picture, grid), *_problems(picture.problems, grid), *_overview(picture, grid)]
    bottom: list[Text | str] = ["", _storage(picture, grid)]
    if picture.is_empty and not picture.instances:
        return _joined(top, _first_steps(picture), bottom)
    tables = (
        sections.instances(picture, grid)._replace(least=2),
        sections.queues(picture)._replace(least=3),
        sections.troubles(picture, grid)._replace(least=2),
        sections.schedules(picture),
        sections.running(picture, grid, is_ascii=is_ascii),
    )
    room = None if height is None else height - len(top) - len(bottom)
    return _joined(top, _tables(tables, grid, room), bottom)


def live_lines(picture: Picture, width: int, height: int, *, is_ascii: bool = False) -> list[Text]:
    """What runs at the top; as many lines as there is something to say."""
    grid = grid_of(width)
    top = [*_head(picture, grid), *_problems(picture.problems, grid), *_overview(picture, grid)]
    bottom: list[Text | str] = ["", _storage(picture, grid)]
    tables = _watched(picture, grid, is_ascii)
    return _joined(top, _tables(tables, grid, height - len(top) - len(bottom)), bottom)[: max(0, height)]


def watch_lines(picture: Picture, width: int, height: int, *, is_ascii: bool = False) -> list[Text]:
    """The same, with what runs at the top; as high as the terminal, the footer in its last line."""
    grid = grid_of(width)
    tables = _watched(picture, grid, is_ascii)
    least = 2 + min(LEAST_RUNNING, len(picture.running)) if picture.running else 0
    top = _top_of(picture, grid, height - 2 - least)
    footer = _sides(Text(FOOTER, "dim"), _storage(picture, grid), grid)
    room = height - len(top) - 2
    if room < 2 + tables[0].least:
        tables = (tables[0]._replace(least=max(1, room - 2)), *tables[1:])
    is_new = picture.is_empty and not picture.instances
    middle = _first_steps(picture) if is_new else _tables(tables, grid, room)
    lines = _joined(top, middle[: max(0, room)])[: max(0, height - 1)]
    return [*lines, *[Text()] * (height - 1 - len(lines)), footer]


def _top_of(picture: Picture, grid: Grid, most: int) -> list[Text | str]:
    """What stands above the tables, in `most` lines: where these are few, without the paces, then with one line of the
    first problem alone, and at last with as many counts as there is room for.
    """
    head, overview = list(_head(picture, grid)), list(_overview(picture, grid))
    problems = list(_problems(picture.problems, grid))
    counts = [*_counts(picture, grid)]
    brief = list(_brief_problem(picture.problems, grid))
    for top in ([*head, *problems, *overview], [*head, *problems, "", *counts]):
        if len(top) <= most:
            return top
    return [*head, *brief, *counts][: max(1, most)]


def _brief_problem(problems: Sequence[Problem], grid: Grid) -> Iterator[Text | str]:
    """One line of the first, that it is there."""
    for problem in problems[:1]:
        (line,) = wrapped(escaped(problem.text), grid.width - 3, 1)
        yield Text.assemble(MARGIN, (f"! {line}", SEVERITY_STYLES[problem.severity]))


def _watched(picture: Picture, grid: Grid, is_ascii: bool) -> tuple[Section, ...]:
    return (
        sections.running(picture, grid, is_ascii=is_ascii)._replace(least=5),
        sections.failures(picture, grid)._replace(least=3),
        sections.queues(picture)._replace(least=2),
        sections.instances(picture, grid),
        sections.troubles(picture, grid),
        sections.schedules(picture),
    )


def fault_lines(path: str, fault: str, width: int, height: int) -> list[Text]:
    """While there is nothing to show: why, and that it is tried again."""
    grid = grid_of(width)
    head = Text.assemble(MARGIN, (cut_front(escaped(path), width - 2), "bold"))
    said = (Text(MARGIN).append(line, SEVERITY_STYLES["error"]) for line in wrapped(escaped(fault), width - 2, height))
    lines = _joined([head, "", *said, f"{MARGIN}trying again twice a second"])[: height - 1]
    return [*lines, *[Text()] * (height - 1 - len(lines)), _sides(Text(FOOTER, "dim"), Text(), grid)]


def group(lines: Iterable[Text]) -> RenderableType:
    """Lines as one renderable."""
    return Group(*lines)


def _joined(*parts: Iterable[Text | str]) -> list[Text]:
    """All lines, none of which wraps: on a narrow terminal its end is cut."""
    lines = [Text(line) if isinstance(line, str) else line for part in parts for line in part]
    for line in lines:
        line.rstrip()
        line.no_wrap, line.overflow = True, "ellipsis"
    return lines


def _tables(tables: Sequence[Section], grid: Grid, room: int | None) -> list[Text | str]:
    lines: list[Text | str] = []
    if grid.is_narrow:
        tables = [section.narrowed() for section in tables]
    for section, shown in fit(tables, room):
        lines += ["", grid.head(section, shown), *(grid.line(row) for row in section.rows[:shown])]
    return lines


# The parts.


def _head(picture: Picture, grid: Grid) -> Iterator[Text | str]:
    """Which file, who works on it, and when this was seen."""
    when = f"{clock(picture.taken_at)} UTC"
    state, style = _state(picture, grid)
    path = escaped(picture.storage.path or "in memory")
    room = grid.width - len(MARGIN) - len(state) - GAP
    if room - len(when) - GAP >= _LEAST_PATH:
        room -= len(when) + GAP
    left = Text.assemble((cut_front(path, max(_LEAST_PATH // 2, room)), "bold"), " " * GAP, (state, style))
    yield _sides(left, Text(when, "dim"), grid)


def _state(picture: Picture, grid: Grid) -> tuple[str, str]:
    parts, style = [], "green"
    for health, each_style in ((Health.ALIVE, "green"), (Health.FROZEN, "yellow"), (Health.DEAD, "red")):
        count = len(picture.with_health(health))
        if count:
            parts.append(f"{count} {health}")
            style = each_style
    if not parts:
        return "no instance is running", "yellow" if picture.waiting_count else "dim"
    if len(parts) == 1:
        return f"{plural(len(picture.instances), 'instance')} {picture.instances[0].health}", style
    total = "" if grid.is_narrow else f"{len(picture.instances)} instances: "
    return f"{total}{', '.join(parts)}", style


def _sides(left: Text, right: Text, grid: Grid) -> Text:
    """Something at the left edge and something at the right one, if both have room."""
    line = Text(MARGIN, no_wrap=True, overflow="ellipsis").append_text(left)
    gap = grid.width - line.cell_len - right.cell_len
    return line if gap < GAP else line.append(" " * gap).append_text(right)


def _problems(problems: Sequence[Problem], grid: Grid) -> Iterator[Text | str]:
    if problems:
        yield ""
    for problem in problems[:MAX_PROBLEMS]:
        style = SEVERITY_STYLES[problem.severity]
        mark = "! "
        for line in wrapped(escaped(problem.text), grid.width - 3, MAX_PROBLEM_LINES):
            yield Text.assemble(MARGIN, (mark, style), (line, style))
            mark = "  "
        for line in wrapped(escaped(problem.advice), grid.width - 3, MAX_PROBLEM_LINES):
            yield Text.assemble(MARGIN, mark, line)
    if len(problems) > MAX_PROBLEMS:
        yield Text(f"{MARGIN}  and {plural(len(problems) - MAX_PROBLEMS, 'more problem')}: taskmanager doctor")


def _overview(picture: Picture, grid: Grid) -> Iterator[Text | str]:
    """How many tasks there are of each kind, and how fast they go."""
    yield ""
    yield from _counts(picture, grid)
    if picture.unwritten_count:
        yield Text(f"{MARGIN}{picture.unwritten_count:,} more ended, in the file within a minute (memory-only)", "dim")
    if not picture.is_empty:
        yield from _paces(picture, grid)
    elif picture.instances:
        yield Text(f"{MARGIN}no tasks yet; the first comes with your_task.enqueue(...)", "dim")


def _counts(picture: Picture, grid: Grid) -> Iterator[Text]:
    """Tasks by status, in as many lines as they need."""
    counts, capped = picture.counts, picture.capped
    shown = [
        ("running", picture.running_count, RUNNING_STYLE, TaskStatus.RUNNING in capped),
        ("waiting", picture.waiting_count, "", not capped.isdisjoint((TaskStatus.PENDING, TaskStatus.CLAIMED))),
    ]
    if counts[TaskStatus.COMPLETED] or TaskStatus.COMPLETED not in capped:
        shown.append(("completed", counts[TaskStatus.COMPLETED], "green", TaskStatus.COMPLETED in capped))
    shown.append(("failed", counts[TaskStatus.FAILED], FAILED_STYLE, TaskStatus.FAILED in capped))
    others = (TaskStatus.CANCELLED, TaskStatus.EXPIRED, TaskStatus.INTERRUPTED)
    shown += [(status.lower(), counts[status], "", status in capped) for status in others if counts[status]]
    line = Text.assemble(MARGIN, (f"{'tasks':<{_LABEL}}", "dim"))
    for word, number, style, is_capped in shown:
        figure = compact(number, is_capped=is_capped)
        if line.cell_len + len(f"{figure} {word}") > grid.width and line.cell_len > _LABEL + len(MARGIN):
            yield line
            line = Text(" " * (len(MARGIN) + _LABEL))
        line.append(figure, f"bold {style}".strip() if number else "dim")
        line.append(f" {word}", "" if number else "dim").append("  ")
    yield line


def _paces(picture: Picture, grid: Grid) -> Iterator[Text]:
    if picture.hour.ended_count == 0 and picture.unwritten_count:
        return
    if picture.hour.ended_count == 0:
        last = picture.last_activity_at
        when = f"; last activity {short(picture.taken_at - last)} ago" if last is not None else ""
        yield Text(f"{MARGIN}nothing has ended in the last hour{'' if grid.is_narrow else when}", "dim")
        return
    window_us = picture.taken_at - picture.hour.since
    name = "last hour" if window_us >= HOUR_US - MINUTE_US else f"last {short(window_us)}"
    yield _pace("last minute", picture.minute, picture.taken_at, grid)
    yield _pace(name, picture.hour, picture.taken_at, grid)


def _pace(name: str, pace: Pace, now_us: int, grid: Grid) -> Text:
    line = Text.assemble(MARGIN, (f"{name:<{_LABEL}}", "dim"))
    if grid.width < _PACE_WIDTH:
        line.append(f"{compact(pace.ended_count)} ended, ")
        return line.append(f"{compact(pace.failed_count)} failed", FAILED_STYLE if pace.failed_count else "dim")
    line.append(f"{rate(pace.ended_count, now_us - pace.since):>8}   {plural(pace.ended_count, 'attempt')} ended, ")
    if not pace.failed_count:
        return line.append("none failed", "dim")
    return line.append(f"{pace.failed_count:,} failed ({share(pace.failed_count, pace.ended_count)})", FAILED_STYLE)


def _storage(picture: Picture, grid: Grid) -> Text:
    storage = picture.storage
    if storage.path is None:
        return Text(f"{MARGIN}in memory only, nothing is kept", "dim")
    parts = [f"file {size(storage.file_bytes)}"]
    if not grid.is_narrow:
        parts.append(f"log {size(storage.log_bytes)}")
    if not grid.is_narrow and storage.unused_bytes > storage.file_bytes // 4:
        parts.append(f"{size(storage.unused_bytes)} unused")
    if storage.disk_free_bytes is not None:
        parts.append(f"disk {size(storage.disk_free_bytes)} free")
    if grid.is_wide:
        parts.append(f"schema {storage.schema_version}")
    return Text(MARGIN + "   ".join(parts), "dim")


def _first_steps(picture: Picture) -> list[Text | str]:
    path = picture.storage.path or "tasks.db"
    return ["", *(Text((MARGIN + line.format(path=path)).rstrip()) for line in FIRST_STEPS)]
