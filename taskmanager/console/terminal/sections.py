"""The tables of a screen, each from an overview: instances, queues, tasks of the last hour, schedules, failures."""

from collections.abc import Iterator
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from taskmanager.console.cause import cause
from taskmanager.console.figures import amount, compact, done_of, grouped, relative, short, stopwatch, took
from taskmanager.console.overview import Health, InstanceView, Overview, QueueView
from taskmanager.console.terminal.grid import NOT_KNOWN, NOTHING, Cell, Grid, Row, Section
from taskmanager.model.clock import SECOND_US
from taskmanager.model.escaping import escaped
from taskmanager.model.report import RunningTask
from taskmanager.store.statistics import OWNED_CAP, SAMPLE, Failure, NextRun, TaskPace

HEALTH_STYLES: Final = {Health.ALIVE: "green", Health.FROZEN: "yellow", Health.DEAD: "red"}
RUNNING_STYLE: Final = "cyan"
FAILED_STYLE: Final = "red"
PAUSED_STYLE: Final = "yellow"
MAX_BAR: Final = 45
"""Columns of a progress bar with its percentage; a longer one says no more."""
ID_END: Final = 6
"""So much of an id is shown beside the name: commands take the end of one, too."""
_DRAWN: Final = ("━", "╸", "─")
_ASCII: Final = ("#", "#", "-")


def _number(number: int, style: str = "", *, is_capped: bool = False) -> Cell:
    return Cell(compact(number, is_capped=is_capped), style if number else "dim")


def _ago(instant_us: int | None, now_us: int) -> Cell:
    return NOT_KNOWN if instant_us is None else Cell(short(max(0, now_us - instant_us)))


def instances(overview: Overview, grid: Grid) -> Section:
    """Who works on the file, or did until it died."""
    rows = [_instance(each, overview.taken_at, grid) for each in overview.instances]
    return Section("Instances", ("running", "waiting", "unsaved", "up"), rows)


def _instance(each: InstanceView, now_us: int, grid: Grid) -> Row:
    name, report = Cell(f"{each.name} {each.row.pid}"), each.report
    style = HEALTH_STYLES[each.health]
    silent_us = round(each.silent_s * SECOND_US)
    if each.health is Health.DEAD:
        held = grouped(each.held_count, is_capped=each.held_count >= OWNED_CAP)
        remark = f"dead, holds {held}" if each.held_count else "dead"
        figures = (NOT_KNOWN, NOT_KNOWN, NOT_KNOWN, NOT_KNOWN)
        return Row(name, figures, Cell(f"{remark} ({short(silent_us)} ago)" if grid.is_wide else remark, style))
    remark = each.health.value
    if each.health is Health.FROZEN:
        remark = f"frozen for {short(silent_us)}"
    elif report.is_stopping:
        remark, style = "stopping", "yellow"
    elif report.degraded_since is not None:
        remark, style = "storage degraded", "red"
    else:
        for name_of_lane, lane in report.lanes.items():
            longer = f"{remark}, {name_of_lane} {lane.running_count}/{lane.limit or '-'}"
            if lane.running_count and len(longer) <= grid.remark:
                remark = longer
    figures = (
        _number(report.running_count, RUNNING_STYLE),
        _number(report.waiting_count),
        _number(report.unsaved_count, "yellow"),
        _ago(each.row.started_at, now_us),
    )
    return Row(name, figures, Cell(remark, style))


def queues(overview: Overview) -> Section:
    """What waits where, for how long, and how much of it may run."""
    rows = [_queue(each, overview.taken_at) for each in overview.queues]
    # Not the sum: two instances may leave out the same queues.
    unlisted = max((each.report.unlisted_queue_count for each in overview.instances), default=0)
    return Section("Queues", ("running", "waiting", "oldest", "limit"), rows, unlisted=unlisted, essential=(1, 2))


def _queue(each: QueueView, now_us: int) -> Row:
    figures = (
        _number(each.running_count, RUNNING_STYLE),
        _number(each.waiting_count, is_capped=each.is_waiting_capped),
        _ago(each.oldest_waiting_since, now_us),
        NOT_KNOWN if each.limit is None else Cell(compact(each.limit)),
    )
    return Row(Cell(each.queue_name), figures, Cell("paused", PAUSED_STYLE) if each.is_paused else NOTHING)


def troubles(overview: Overview, grid: Grid) -> Section:
    """The tasks of the last hour that fail most, and those that take longest, in turns."""
    paces = {each.task_name: each for each in overview.slowest}
    failing = {each.task_name: each for each in overview.most_failing}
    is_sample = overview.hour.ended_count > SAMPLE
    are_some = overview.hour.failed_count > SAMPLE
    rows = []
    for name in _in_turns(list(failing), list(paces)):
        pace, failures = paces.get(name), failing.get(name)
        count = failures.failed_count if failures else 0
        failed = _number(count, FAILED_STYLE, is_capped=are_some and count > 0)
        ended = NOT_KNOWN if pace is None or is_sample else _number(pace.ended_count)
        figures = (ended, failed, *_durations(pace))
        why = cause(failures.last_error_code, failures.last_error_message, grid.remark) if failures else ""
        rows.append(Row(Cell(name), figures, Cell(why, FAILED_STYLE)))
    heads = ("ended", "failed", "mean", "longest")
    return Section("Failing and slow", heads, rows, "error", essential=(1, 3))


def _durations(pace: TaskPace | None) -> tuple[Cell, Cell]:
    if pace is None:
        return NOT_KNOWN, NOT_KNOWN
    return Cell(took(pace.mean_us)), Cell(took(pace.longest_us))


def _in_turns(one: list[str], other: list[str]) -> Iterator[str]:
    """Of both lists in their order, each name once."""
    seen = set()
    for number in range(max(len(one), len(other))):
        for names in (one, other):
            if number < len(names) and names[number] not in seen:
                seen.add(names[number])
                yield names[number]


def schedules(overview: Overview) -> Section:
    """What runs by itself, the next first."""
    is_anybody_there = bool(overview.with_health(Health.ALIVE))
    rows = [_schedule(each, overview.taken_at, is_anybody_there) for each in overview.schedules]
    return Section("Next schedules", ("", "", "last", "next"), rows, essential=(2, 3))


def _schedule(each: NextRun, now_us: int, is_anybody_there: bool) -> Row:
    due = NOT_KNOWN if each.next_run_at is None or each.is_paused else Cell(relative(each.next_run_at, now_us))
    figures = (NOTHING, NOTHING, _ago(each.last_run_at, now_us), due)
    remark = Cell(each.definition, "dim")
    if each.is_paused:
        remark = Cell("paused", PAUSED_STYLE)
    elif is_anybody_there and not each.is_declared:
        remark = Cell("defined by nobody", PAUSED_STYLE)
    return Row(Cell(each.schedule_name), figures, remark)


def failures(overview: Overview, grid: Grid) -> Section:
    """The last attempts that failed."""
    rows = [_failure(each, overview.taken_at, grid) for each in overview.failures]
    return Section("Last failures", ("", "attempt", "retries", "ago"), rows, "error", essential=(2, 3))


def _failure(each: Failure, now_us: int, grid: Grid) -> Row:
    again = Cell("yes") if each.will_retry else Cell("no", "dim")
    figures = (NOTHING, Cell(str(each.attempt)), again, _ago(each.finished_at, now_us))
    reason = cause(each.error_code, each.error_message, grid.remark)
    return Row(_one_task(each.task_name, each.task_id), figures, Cell(reason, FAILED_STYLE))


def _one_task(name: str, task_id: str) -> Cell:
    """Of a long name the end is kept, and with it that of the id."""
    return Cell(f"{name} {task_id[-ID_END:]}")


def running(overview: Overview, grid: Grid, *, is_ascii: bool) -> Section:
    """What runs now: those that report progress with a bar, then the ones that run longest."""
    unlisted = max(0, sum(each.report.running_count for each in overview.instances) - len(overview.running))
    if grid.is_narrow:
        rows = [_briefly_running(each, overview.taken_at) for each in overview.running]
        return Section("Running", ("done", "elapsed", "left"), rows, unlisted=unlisted, essential=(0, 1, 2))
    longest = max((cell_len(escaped(each.task_name)) + 1 + ID_END for each in overview.running), default=0)
    width = min(MAX_BAR, grid.drawn_width(longest))
    rows = [_running(each, overview.taken_at, width, is_ascii) for each in overview.running]
    return Section("Running", ("", "", "elapsed", "left"), rows, unlisted=unlisted)


def _briefly_running(each: RunningTask, now_us: int) -> Row:
    """Where a bar has no room."""
    if each.fraction is not None:
        done = Cell(f"{int(each.fraction * 100)}%", RUNNING_STYLE)
    else:
        done = NOTHING if each.done is None else Cell(amount(each.done))
    return Row(_one_task(each.task_name, each.task_id), (done, *_times(each, now_us)))


def _running(each: RunningTask, now_us: int, width: int, is_ascii: bool) -> Row:
    drawn = _progress(each, width, is_ascii)
    return Row(_one_task(each.task_name, each.task_id), _times(each, now_us), Cell(each.text, "dim"), drawn)


def _times(each: RunningTask, now_us: int) -> tuple[Cell, Cell]:
    left_us = each.left_us(now_us)
    left = NOTHING if left_us is None else Cell(stopwatch(left_us), RUNNING_STYLE)
    return Cell(stopwatch(now_us - each.started_at)), left


def _progress(each: RunningTask, width: int, is_ascii: bool) -> Text:
    """A bar with its percentage; only how much was done where nobody knows of how much."""
    fraction = each.fraction
    if fraction is None:
        return Text("" if each.done is None else f"{done_of(each.done, each.total)} done".rjust(width))
    percent = f" {int(fraction * 100):3}%"
    return bar(fraction, width - len(percent), is_ascii).append(percent)


def bar(fraction: float, width: int, is_ascii: bool) -> Text:
    """How much of the whole is done, to half a column."""
    full, half, rest = _ASCII if is_ascii else _DRAWN
    halves = int(fraction * width * 2)
    done = full * (halves // 2) + half * (halves % 2)
    style = "green" if fraction >= 1 else RUNNING_STYLE
    return Text.assemble((done, style), (rest * (width - len(done)), "dim"))
