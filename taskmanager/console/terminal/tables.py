"""Draws tables of tasks, schedules and findings, one a line, with as much of each as the width allows.

Every task shows an id to copy, or at least the end of it. If there is no room for whole ids and errors, ids are cut to
their ends, because the error says more than the beginning of an id.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from taskmanager.console.figures import MAX_CHARS, ROOM_FOR_ALL, cause_of, relative, short, workflow_label
from taskmanager.console.schedules import state, timing
from taskmanager.console.terminal.colours import PAUSED_STYLE, style_of
from taskmanager.console.terminal.grid import GAP, cut_end, cut_front
from taskmanager.model.clock import LAST_US
from taskmanager.model.escaping import escaped
from taskmanager.model.record import TaskRow
from taskmanager.model.schedule import ScheduleRow
from taskmanager.model.states import TaskStatus
from taskmanager.model.wording import counted
from taskmanager.store.place import Finding
from taskmanager.store.statistics import OwnWorkflow

_NARROW: Final = 70
"""Columns below which a whole id would leave no room for the rest; commands take the end of one, too."""
_WIDE: Final = 100  # columns from which on the queue of a task is shown too, and the task of a schedule
_WIDE_BESIDE_ERRORS: Final = 120  # columns from which on there is room for whole ids and for errors
_ID_WIDTH: Final = 36
_ID_END_WIDTH: Final = 8
_STATUS_WIDTH: Final = 11
_WHEN_WIDTH: Final = 7
_MOST_WHEN_WIDTH: Final = 11
"""Columns for thousands of days; a row from another millennium must not take them from the ids of the others."""
_LEAST_NAME_WIDTH: Final = 8
_MOST_WORKFLOW: Final = 14
_NAME_BESIDE_ERROR: Final = 24  # columns that errors leave to the name, if it needs them


def _table() -> Table:
    return Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")


class _Column(NamedTuple):
    """A column that takes what its longest cell needs, and `most` columns of the screen."""

    title: str
    most: int
    text: Callable[[TaskRow], str]

    def width(self, rows: Sequence[TaskRow]) -> int:
        return min(self.most, max(len(self.title), *(cell_len(self.text(row)) for row in rows)))


_NAME: Final = _Column("task", _NAME_BESIDE_ERROR, lambda row: escaped(row.task_name))
_QUEUE: Final = _Column("queue", 16, lambda row: escaped(row.queue_name))


def task_table(
    rows: Sequence[TaskRow], messages: Mapping[str, str], workflows: Mapping[str, OwnWorkflow], now_us: int, width: int
) -> Table:
    """Draw tasks (one at least) in `width` columns; no line wraps.

    By the ids of the tasks there are the messages of their errors, and the workflows that they are of.
    """
    has_errors = width >= _NARROW and any(row.error_code for row in rows)
    is_whole = width >= (_WIDE_BESIDE_ERRORS if has_errors or workflows else _NARROW)
    id_title, id_width = ("id", _ID_WIDTH) if is_whole else ("id end", _ID_END_WIDTH)
    extras = [(_QUEUE, _QUEUE.width(rows))] if width >= _WIDE else []
    when_width = min(_MOST_WHEN_WIDTH, max(_WHEN_WIDTH, *(len(when(row, now_us)) for row in rows)))
    if workflows and width >= _NARROW:
        column = _Column("workflow", _MOST_WORKFLOW, lambda row: _label(workflows.get(row.task_id)))
        extras.append((column, column.width(rows)))
    room = width - sum(each + GAP for each in (id_width, _STATUS_WIDTH, when_width, *(most for _, most in extras)))
    if has_errors:
        error_room = room - GAP - _NAME.width(rows)
        error = _error_column(rows, messages, error_room)
        extras.append((error, min(error.width(rows), error_room)))
        room -= GAP + extras[-1][1]
    name_width = max(_LEAST_NAME_WIDTH, room)
    table = _table()
    table.add_column(id_title, width=id_width, no_wrap=True)
    table.add_column("status", width=_STATUS_WIDTH, no_wrap=True)
    table.add_column("task", max_width=name_width, no_wrap=True)
    for column, most in extras:
        table.add_column(column.title, width=most, no_wrap=True, overflow="ellipsis")
    table.add_column("when", justify="right", width=when_width, no_wrap=True, overflow="ellipsis")
    for row in rows:
        status = Text(row.status, style=style_of(row.status))
        name = Text(cut_front(escaped(row.task_name), name_width))
        more = (Text(column.text(row)) for column, _ in extras)
        table.add_row(Text(escaped(row.task_id[-id_width:])), status, name, *more, Text(when(row, now_us)))
    return table


def _label(workflow: OwnWorkflow | None) -> str:
    return "" if workflow is None else escaped(workflow_label(workflow))


def _error_column(rows: Sequence[TaskRow], messages: Mapping[str, str], room: int) -> _Column:
    """Return the reasons with code, type and message, if they fit; else the code may give way to the type."""
    whole = _Column("error", MAX_CHARS, lambda row: cause_of(row, messages.get(row.task_id), ROOM_FOR_ALL))
    brief = whole._replace(text=lambda row: cause_of(row, messages.get(row.task_id), room))
    return whole if whole.width(rows) <= room else brief


def when(row: TaskRow, now_us: int) -> str:
    """`for 44s`: so long it has run, or waited; `in 5m`: so soon it is due; `2d ago`: when it ended.

    `at an event`: it goes on when somebody sends that.
    """
    status = TaskStatus(row.status)
    if status.is_terminal:
        return relative(row.completed_at or row.failed_at or row.updated_at, now_us)
    since = row.started_at or row.updated_at if status is TaskStatus.RUNNING else row.enqueued_at
    if since >= LAST_US:
        return "at an event"
    return relative(since, now_us) if since > now_us else f"for {short(now_us - since)}"


_NARROW_SCHEDULES: Final = 60
"""Columns below which it is only said when a schedule runs, not by which rule and how often it did."""
_STATE_WIDTH: Final = 12
_MOST_TIMING: Final = 32
_LEAST_SCHEDULE_WIDTH: Final = 12


def schedule_table(rows: Sequence[ScheduleRow], now_us: int, width: int, *, is_running: bool) -> Table:
    """Draw schedules (one at least) in `width` columns; no line wraps. `is_running`: the application runs somewhere."""
    is_narrow, is_wide = width < _NARROW_SCHEDULES, width >= _WIDE
    states = [state(row, is_running) for row in rows]
    timing_width = min(_MOST_TIMING, max(cell_len(escaped(timing(row.definition))) for row in rows))
    runs_width = max(4, *(len(f"{row.run_count:,}") for row in rows))
    rule = [] if is_narrow else [timing_width, runs_width]
    fixed = [*rule, _WHEN_WIDTH, _WHEN_WIDTH, *([_STATE_WIDTH] if any(states) else [])]
    left = max(_LEAST_SCHEDULE_WIDTH, width - sum(each + GAP for each in fixed))
    name_width = max(_LEAST_SCHEDULE_WIDTH, left // 2) if is_wide else left
    task_width = left - name_width - GAP
    table = _table()
    table.add_column("schedule", max_width=name_width, no_wrap=True)
    if not is_narrow:
        table.add_column("fires", max_width=timing_width, no_wrap=True, overflow="ellipsis")
    table.add_column("next", justify="right", min_width=_WHEN_WIDTH, no_wrap=True)
    table.add_column("last", justify="right", min_width=_WHEN_WIDTH, no_wrap=True)
    if not is_narrow:
        table.add_column("runs", justify="right", min_width=runs_width, no_wrap=True)
    if any(states):
        table.add_column("", no_wrap=True)
    if is_wide:
        table.add_column("task", max_width=task_width, no_wrap=True, overflow="ellipsis")
    for row, word in zip(rows, states, strict=True):
        table.add_row(
            Text(cut_front(escaped(row.schedule_name), name_width)),
            *([] if is_narrow else [Text(cut_end(escaped(timing(row.definition)), timing_width))]),
            Text("" if row.next_run_at is None or word else relative(row.next_run_at, now_us)),
            Text("never" if row.last_run_at is None else relative(row.last_run_at, now_us)),
            *([] if is_narrow else [Text(f"{row.run_count:,}")]),
            *([Text(word, style=PAUSED_STYLE)] if any(states) else []),
            *([Text(cut_front(escaped(row.task_name), task_width))] if is_wide else []),
        )
    return table


def diagnosis_view(findings: Sequence[Finding]) -> RenderableType:
    """Draw the findings of `taskmanager doctor` and their sum; below what is not well stands what to do."""
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
