"""Draws the screen of `status`, `watch` and `live()`: the most important first, and as much as there is room for.

A screen is a list of lines, none wider than the terminal. Its focus is either the state of everything, or the running
tasks. If the height is not known, as in a pipe, everything is shown.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.text import Text

from taskmanager.console.figures import clock, compact, rate, share, short, size, took
from taskmanager.console.overview import Health, Overview, Problem
from taskmanager.console.terminal import sections
from taskmanager.console.terminal.colours import FAILED_STYLE, RUNNING_STYLE, STYLES, style_of
from taskmanager.console.terminal.grid import GAP, MARGIN, Grid, Section, cut_front, fit, grid_of, wrapped
from taskmanager.model.clock import HOUR_US, MINUTE_US
from taskmanager.model.escaping import escaped
from taskmanager.model.states import TaskStatus
from taskmanager.model.wording import counted
from taskmanager.store.statistics import Pace

MAX_PROBLEMS: Final = 3
MAX_PROBLEM_LINES: Final = 3  # of one sentence, where the terminal is narrow
LEAST_RUNNING: Final = 3  # rows of what runs that a small screen keeps, whatever else there is to say
SEVERITY_STYLES: Final = {"error": "bold red", "warning": "bold yellow"}
FOOTER: Final = "q quits"
_LABEL: Final = 13  # columns for the name of a line of figures
_LEAST_PATH: Final = 12
_PACE_WIDTH: Final = 72  # columns that a pace with its rate and its share may need
FIRST_STEPS: Final = """
No tasks yet. A first one:

    from taskmanager import TaskManager

    manager = TaskManager("{path}")

    @manager.task(persist=True)
    async def greet(name: str) -> str:
        return f"Hello, {{name}}"

    async def main() -> None:
        print(await greet.enqueue("world"))

    manager.run(main)

Or see what it can do, on your own files: taskmanager demo"""

Line = Text | str


class Focus(Enum):
    """What a screen shows first: the state of everything, or the running tasks."""

    STATE = "state"
    RUNNING = "running"


class Screen:
    """An overview as a rich renderable that fits the terminal it is printed to.

    `widths` are the widths of the lines that were drawn last, in columns.
    """

    widths: Sequence[int] = ()

    def __init__(self, overview: Overview, focus: Focus = Focus.STATE) -> None:
        self.overview = overview
        self.focus = focus

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        has_height = console.is_terminal or self.focus is Focus.RUNNING
        height = options.height or (console.height - 1 if has_height else None)  # one line for the prompt
        lines = screen_lines(self.overview, options.max_width, height, self.focus, is_ascii=options.ascii_only)
        self.widths = [line.cell_len for line in lines]
        yield Group(*lines)


def screen_lines(
    overview: Overview, width: int, height: int | None, focus: Focus = Focus.STATE, *, is_ascii: bool = False
) -> list[Text]:
    """Return the lines of a screen. With the focus on running tasks, there are `height` lines at most."""
    grid = grid_of(width)
    top = [*_head(overview, grid), *_problems(overview.problems, grid), *_figures(overview, grid)]
    bottom: list[Line] = ["", _storage(overview, grid)]
    room = None if height is None else height - len(top) - len(bottom)
    middle = _drawn(_tables(overview, grid, focus, is_ascii), grid, room)
    if focus is Focus.STATE and _is_new(overview):
        middle = _first_steps(overview)
    lines = _joined(top, middle, bottom)
    return lines if focus is Focus.STATE or height is None else lines[: max(0, height)]


def watch_lines(overview: Overview, width: int, height: int, *, is_ascii: bool = False) -> list[Text]:
    """Return a full screen of `height` lines with the focus on running tasks. The footer is its last line."""
    grid = grid_of(width)
    tables = _tables(overview, grid, Focus.RUNNING, is_ascii)
    least = 2 + min(LEAST_RUNNING, len(overview.running)) if overview.running else 0
    top = _top_of(overview, grid, height - 2 - least)
    room = height - len(top) - 2
    if room < 2 + tables[0].least:
        tables = (tables[0]._replace(least=max(1, room - 2)), *tables[1:])
    middle = _first_steps(overview) if _is_new(overview) else _drawn(tables, grid, room)
    return _whole(_joined(top, middle[: max(0, room)]), height, _storage(overview, grid), grid)


def fault_lines(path: str, fault: str, width: int, height: int) -> list[Text]:
    """Return a full screen that says why the file cannot be read, and that it is tried again."""
    head = Text.assemble(MARGIN, (cut_front(escaped(path), width - 2), "bold"))
    said = (Text(MARGIN).append(line, SEVERITY_STYLES["error"]) for line in wrapped(escaped(fault), width - 2, height))
    return _whole(_joined([head, "", *said, f"{MARGIN}trying again twice a second"]), height, Text(), grid_of(width))


def _whole(lines: list[Text], height: int, beside_footer: Text, grid: Grid) -> list[Text]:
    lines = lines[: max(0, height - 1)]
    return [*lines, *[Text()] * (height - 1 - len(lines)), _sides(Text(FOOTER, "dim"), beside_footer, grid)]


def _top_of(overview: Overview, grid: Grid, most: int) -> list[Line]:
    """Return the lines above the tables, `most` at most.

    If there is not enough room, first the paces are left out, then all but one line of the first problem, and then some
    of the counts.
    """
    head, counts = list(_head(overview, grid)), list(_counts(overview, grid))
    problems = list(_problems(overview.problems, grid))
    for top in ([*head, *problems, *_figures(overview, grid)], [*head, *problems, "", *counts]):
        if len(top) <= most:
            return top
    brief: list[Line] = []
    for problem in overview.problems[:1]:
        (line,) = wrapped(escaped(problem.text), grid.width - 3, 1)
        brief = [Text.assemble(MARGIN, (f"! {line}", SEVERITY_STYLES[problem.severity]))]
    return [*head, *brief, *counts][: max(1, most)]


def _tables(overview: Overview, grid: Grid, focus: Focus, is_ascii: bool) -> tuple[Section, ...]:
    """Return the tables, the most important first, each with the least number of rows that it is shown with."""
    running = sections.running(overview, grid, is_ascii=is_ascii)
    instances, queues = sections.instances(overview, grid), sections.queues(overview)
    workflows = sections.workflows(overview, grid, is_ascii=is_ascii)
    troubles, schedules = sections.troubles(overview, grid), sections.schedules(overview)
    if focus is Focus.STATE:
        return (
            instances._replace(least=2), queues._replace(least=3), workflows, troubles._replace(least=2), schedules,
            running,
        )  # fmt: skip
    failures = sections.failures(overview, grid)._replace(least=3)
    return running._replace(least=5), workflows, failures, queues._replace(least=2), instances, troubles, schedules


def _drawn(tables: Sequence[Section], grid: Grid, room: int | None) -> list[Line]:
    lines: list[Line] = []
    if grid.is_narrow:
        tables = [section.narrowed() for section in tables]
    for section, shown in fit(tables, room):
        lines += ["", grid.head(section, shown), *(grid.line(row) for row in section.rows[:shown])]
    return lines


def _joined(*parts: Iterable[Line]) -> list[Text]:
    """Return all lines as text that never wraps. On a narrow terminal the end of a line is cut."""
    lines = [Text(line) if isinstance(line, str) else line for part in parts for line in part]
    for line in lines:
        line.rstrip()
        line.no_wrap, line.overflow = True, "ellipsis"
    return lines


def _is_new(overview: Overview) -> bool:
    return overview.is_empty and not overview.instances


def _first_steps(overview: Overview) -> list[Line]:
    lines = FIRST_STEPS.format(path=overview.storage.path or "tasks.db").split("\n")
    return [Text((MARGIN + line).rstrip()) for line in lines]


# The parts above and below the tables.


def _head(overview: Overview, grid: Grid) -> Iterator[Line]:
    """Say which file this is, who works on it, and when this was seen."""
    when = f"{clock(overview.taken_at)} UTC"
    state, style = _state(overview, grid)
    path = escaped(overview.storage.path or "in memory")
    room = grid.width - len(MARGIN) - len(state) - GAP
    if room - len(when) - GAP >= _LEAST_PATH:
        room -= len(when) + GAP
    left = Text.assemble((cut_front(path, max(_LEAST_PATH // 2, room)), "bold"), " " * GAP, (state, style))
    yield _sides(left, Text(when, "dim"), grid)


def _state(overview: Overview, grid: Grid) -> tuple[str, str]:
    """Return how many instances have each health, and the style of the worst health."""
    number = len(overview.instances)
    counts = {health: len(overview.with_health(health)) for health in (Health.ALIVE, Health.FROZEN, Health.DEAD)}
    found = [health for health, count in counts.items() if count]
    if not found:
        return "no instance is running", "yellow" if overview.waiting_count else "dim"
    if len(found) == 1:
        return f"{counted(number, 'instance')} {found[0]}", style_of(found[0].value)
    total = "" if grid.is_narrow else f"{number} instances: "
    return f"{total}{', '.join(f'{counts[health]} {health}' for health in found)}", style_of(found[-1].value)


def _sides(left: Text, right: Text, grid: Grid) -> Text:
    """Put one text at the left edge and another at the right edge, if there is room for both."""
    line = Text(MARGIN, no_wrap=True, overflow="ellipsis").append_text(left)
    gap = grid.width - line.cell_len - right.cell_len
    return line if gap < GAP else line.append(" " * gap).append_text(right)


def _problems(problems: Sequence[Problem], grid: Grid) -> Iterator[Line]:
    if problems:
        yield ""
    for problem in problems[:MAX_PROBLEMS]:
        style, mark = SEVERITY_STYLES[problem.severity], "! "
        for line in wrapped(escaped(problem.text), grid.width - 3, MAX_PROBLEM_LINES):
            yield Text.assemble(MARGIN, (mark, style), (line, style))
            mark = "  "
        for line in wrapped(escaped(problem.advice), grid.width - 3, MAX_PROBLEM_LINES):
            yield Text.assemble(MARGIN, mark, line)
    if len(problems) > MAX_PROBLEMS:
        yield Text(f"{MARGIN}  and {counted(len(problems) - MAX_PROBLEMS, 'more problem')}: taskmanager doctor")


def _figures(overview: Overview, grid: Grid) -> Iterator[Line]:
    """Say how many tasks there are of each kind, and how fast they go."""
    yield ""
    yield from _counts(overview, grid)
    if overview.unwritten_count:
        where = "file" if overview.storage.is_file else "database"
        yield Text(
            f"{MARGIN}{overview.unwritten_count:,} more ended, in the {where} within a minute (memory-only)", "dim"
        )
    if not overview.is_empty:
        yield from _paces(overview, grid)
    elif overview.instances:
        yield Text(f"{MARGIN}no tasks yet; the first comes with your_task.enqueue(...)", "dim")


def _counts(overview: Overview, grid: Grid) -> Iterator[Text]:
    """Say how many tasks have each status. This may take several lines."""
    counts, capped = overview.counts, overview.capped
    is_waiting_capped = not capped.isdisjoint((TaskStatus.PENDING, TaskStatus.CLAIMED))
    shown = [
        ("running", overview.running_count, RUNNING_STYLE, TaskStatus.RUNNING in capped),
        ("waiting", overview.waiting_count, "", is_waiting_capped),
    ]
    if counts[TaskStatus.COMPLETED] or TaskStatus.COMPLETED not in capped:
        shown.append(("completed", counts[TaskStatus.COMPLETED], STYLES["good"], TaskStatus.COMPLETED in capped))
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


def _paces(overview: Overview, grid: Grid) -> Iterator[Text]:
    if overview.hour.ended_count == 0:
        last = overview.last_activity_at
        when = "" if last is None or grid.is_narrow else f"; last activity {short(overview.taken_at - last)} ago"
        if not overview.unwritten_count:
            yield Text(f"{MARGIN}nothing has ended in the last hour{when}", "dim")
        return
    window_us = overview.taken_at - overview.hour.since
    name = "last hour" if window_us >= HOUR_US - MINUTE_US else f"last {short(window_us)}"
    yield _pace("last minute", overview.minute, overview.taken_at, grid)
    yield _pace(name, overview.hour, overview.taken_at, grid)
    if grid.width >= _PACE_WIDTH and overview.ran.p50_us is not None:
        yield _durations(overview, grid)


def _durations(overview: Overview, grid: Grid) -> Text:
    """Return the line of the last hour that says how long tasks waited and ran; a wide screen has more of it."""
    line = Text.assemble(MARGIN, (f"{'waited':<{_LABEL}}", "dim"))
    shown = ("p50", "p95", "p99") if grid.is_wide else ("p50", "p95")
    for number, durations in enumerate((overview.waited, overview.ran)):
        if number:
            line.append("   ran ", "dim")
        parts = [f"{name} {took(us)}" for name, us in zip(shown, durations, strict=False) if us is not None]
        line.append(", ".join(parts) or "-")
    return line


def _pace(name: str, pace: Pace, now_us: int, grid: Grid) -> Text:
    line = Text.assemble(MARGIN, (f"{name:<{_LABEL}}", "dim"))
    if grid.width < _PACE_WIDTH:
        line.append(f"{compact(pace.ended_count)} ended, ")
        return line.append(f"{compact(pace.failed_count)} failed", FAILED_STYLE if pace.failed_count else "dim")
    line.append(f"{rate(pace.ended_count, now_us - pace.since):>8}   {counted(pace.ended_count, 'attempt')} ended, ")
    if not pace.failed_count:
        return line.append("none failed", "dim")
    return line.append(f"{pace.failed_count:,} failed ({share(pace.failed_count, pace.ended_count)})", FAILED_STYLE)


def _storage(overview: Overview, grid: Grid) -> Text:
    storage = overview.storage
    if storage.path is None:
        return Text(f"{MARGIN}in memory only, nothing is kept", "dim")
    parts = [f"{'file' if storage.is_file else 'tables'} {size(storage.file_bytes)}"]
    if storage.is_file and not grid.is_narrow:
        parts.append(f"log {size(storage.log_bytes)}")
        if storage.unused_bytes > storage.file_bytes // 4:
            parts.append(f"{size(storage.unused_bytes)} unused")
    if storage.disk_free_bytes is not None:
        parts.append(f"disk {size(storage.disk_free_bytes)} free")
    if grid.is_wide:
        parts.append(f"schema {storage.schema_version}")
    return Text(MARGIN + "   ".join(parts), "dim")
