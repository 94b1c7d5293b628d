"""Schedules, one a line: when they fire, when they did, and why one does not."""

from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from taskmanager.console.cut import cut_front
from taskmanager.console.durations import relative
from taskmanager.console.grid import cut_end
from taskmanager.model.escaping import escaped
from taskmanager.model.schedule import ScheduleRow

GAP: Final = 2
_WIDE: Final = 100
"""Columns from which on the task is shown too."""
_NARROW: Final = 60
"""Columns below which it is only said when a schedule runs, not by which rule and how often it did."""
_WHEN_WIDTH: Final = 7
_STATE_WIDTH: Final = 12
_MOST_TIMING: Final = 32
_LEAST_NAME_WIDTH: Final = 12


def schedule_table(rows: Sequence[ScheduleRow], now_us: int, width: int, *, is_running: bool) -> Table:
    """Schedules (one at least) in `width` columns; no line wraps. `is_running`: the application runs somewhere."""
    timing_width = min(_MOST_TIMING, max(cell_len(escaped(row.definition)) for row in rows))
    runs_width = max(4, *(len(f"{row.run_count:,}") for row in rows))
    states = [state(row, is_running) for row in rows]
    is_narrow = width < _NARROW
    rule = [] if is_narrow else [timing_width, runs_width]
    fixed = [*rule, _WHEN_WIDTH, _WHEN_WIDTH, *([_STATE_WIDTH] if any(states) else [])]
    left = max(_LEAST_NAME_WIDTH, width - sum(each + GAP for each in fixed))
    name_width = left if width < _WIDE else max(_LEAST_NAME_WIDTH, left // 2)
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("schedule", max_width=name_width, no_wrap=True)
    if not is_narrow:
        table.add_column("fires", max_width=timing_width, no_wrap=True, overflow="ellipsis")
    table.add_column("next", justify="right", min_width=_WHEN_WIDTH, no_wrap=True)
    table.add_column("last", justify="right", min_width=_WHEN_WIDTH, no_wrap=True)
    if not is_narrow:
        table.add_column("runs", justify="right", min_width=runs_width, no_wrap=True)
    if any(states):
        table.add_column("", no_wrap=True)
    if width >= _WIDE:
        table.add_column("task", max_width=left - name_width - GAP, no_wrap=True, overflow="ellipsis")
    for row, word in zip(rows, states, strict=True):
        cells = [
            Text(cut_front(escaped(row.schedule_name), name_width)),
            *([] if is_narrow else [Text(cut_end(escaped(row.definition), timing_width))]),
            Text("" if row.next_run_at is None or word else relative(row.next_run_at, now_us)),
            Text("never" if row.last_run_at is None else relative(row.last_run_at, now_us)),
            *([] if is_narrow else [Text(f"{row.run_count:,}")]),
        ]
        if any(states):
            cells.append(Text(word, style="yellow"))
        if width >= _WIDE:
            cells.append(Text(cut_front(escaped(row.task_name), left - name_width - GAP)))
        table.add_row(*cells)
    return table


def state(row: ScheduleRow, is_running: bool) -> str:
    """Why it does not fire, where it does not."""
    if row.paused_at is not None:
        return "paused"
    return "not declared" if is_running and not row.is_declared else ""
