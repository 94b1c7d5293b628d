"""Makes the tables of a screen from an overview: instances, queues, troubles, schedules, failures, running tasks."""

from collections.abc import Iterator
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from taskmanager.console.figures import (
    amount,
    cause,
    compact,
    done_of,
    relative,
    short,
    stopwatch,
    took,
    workflow_label,
)
from taskmanager.console.overview import Health, InstanceView, Overview
from taskmanager.console.schedules import timing
from taskmanager.console.terminal.colours import FAILED_STYLE, PAUSED_STYLE, RUNNING_STYLE, STYLES, style_of
from taskmanager.console.terminal.grid import NOT_KNOWN, NOTHING, Cell, Grid, Row, Section
from taskmanager.model.clock import SECOND_US
from taskmanager.model.escaping import escaped
from taskmanager.model.report import RunningTask
from taskmanager.store.statistics import OWNED_CAP, SAMPLE, NextRun

MAX_BAR: Final = 45  # columns of a progress bar with its percentage; a longer one says no more
ID_END: Final = 6  # so much of an id is shown beside the name: commands take the end of one, too
_DRAWN: Final = ("━", "╸", "─")
_ASCII: Final = ("#", "#", "-")


def _number(number: int, style: str = "", *, is_capped: bool = False) -> Cell:
    return Cell(compact(number, is_capped=is_capped), style if number else "dim")


def _ago(instant_us: int | None, now_us: int) -> Cell:
    return NOT_KNOWN if instant_us is None else Cell(short(max(0, now_us - instant_us)))


def _one_task(name: str, task_id: str) -> Cell:
    """Return the name of a task with the end of its id. A long name is cut in front, so the id stays."""
    return Cell(f"{name} {task_id[-ID_END:]}")


def instances(overview: Overview, grid: Grid) -> Section:
    """Return the table of instances, dead ones included."""
    rows = []
    for each in overview.instances:
        report = each.report
        figures = (
            _number(report.running_count, RUNNING_STYLE),
            _number(report.waiting_count),
            _number(report.unsaved_count, STYLES["warn"]),
            _ago(each.row.started_at, overview.taken_at),
        )
        is_dead = each.health is Health.DEAD
        name = Cell(f"{each.name} {each.row.pid}")
        rows.append(Row(name, (NOT_KNOWN,) * 4 if is_dead else figures, _state(each, grid)))
    return Section("Instances", ("running", "waiting", "unsaved", "up"), rows)


def _state(each: InstanceView, grid: Grid) -> Cell:
    report, word, style = each.report, each.health.value, style_of(each.health.value)
    silent = short(round(each.silent_s * SECOND_US))
    if each.health is Health.DEAD:
        if each.held_count:
            word += f", holds {each.held_count:,}{'+' if each.held_count >= OWNED_CAP else ''}"
        return Cell(f"{word} ({silent} ago)" if grid.is_wide else word, style)
    if each.health is Health.FROZEN:
        return Cell(f"frozen for {silent}", style)
    if report.is_stopping:
        return Cell("stopping", style_of("stopping"))
    if report.degraded_since is not None:
        return Cell("storage degraded", style_of("storage degraded"))
    if report.run_queues is not None:
        longer = (
            f"{word}, runs {', '.join(sorted(report.run_queues))}" if report.run_queues else f"{word}, only enqueues"
        )
        word = longer if len(longer) <= grid.remark else word
    for name, lane in report.lanes.items():
        longer = f"{word}, {name} {lane.running_count}/{lane.limit or '-'}"
        if lane.running_count and len(longer) <= grid.remark:
            word = longer
    return Cell(word, style)


def queues(overview: Overview) -> Section:
    """Return the table of queues: how much runs and waits in each, for how long, and how much may run."""
    rows = []
    for each in overview.queues:
        figures = (
            _number(each.running_count, RUNNING_STYLE),
            _number(each.waiting_count, is_capped=each.is_waiting_capped),
            _ago(each.oldest_waiting_since, overview.taken_at),
            NOT_KNOWN if each.limit is None else Cell(compact(each.limit)),
        )
        rows.append(Row(Cell(each.queue_name), figures, Cell("paused", PAUSED_STYLE) if each.is_paused else NOTHING))
    # Not the sum: two instances may leave out the same queues.
    unlisted = max((each.report.unlisted_queue_count for each in overview.instances), default=0)
    return Section("Queues", ("running", "waiting", "oldest", "limit"), rows, unlisted=unlisted, essential=(1, 2))


def troubles(overview: Overview, grid: Grid) -> Section:
    """Return the table of the tasks of the last hour that fail most, and of those that take longest, in turns."""
    paces = {each.task_name: each for each in overview.slowest}
    failing = {each.task_name: each for each in overview.most_failing}
    is_sample = overview.hour.ended_count > SAMPLE
    rows = []
    for name in _in_turns(list(failing), list(paces)):
        pace, failures = paces.get(name), failing.get(name)
        count = failures.failed_count if failures else 0
        failed = _number(count, FAILED_STYLE, is_capped=overview.hour.failed_count > SAMPLE and count > 0)
        ended = NOT_KNOWN if pace is None or is_sample else _number(pace.ended_count)
        times = (NOT_KNOWN,) * 2 if pace is None else (Cell(took(pace.mean_us)), Cell(took(pace.longest_us)))
        why = cause(failures.last_error_code, failures.last_error_message, grid.remark) if failures else ""
        rows.append(Row(Cell(name), (ended, failed, *times), Cell(why, FAILED_STYLE)))
    return Section("Failing and slow", ("ended", "failed", "mean", "longest"), rows, "error", essential=(1, 3))


def _in_turns(one: list[str], other: list[str]) -> Iterator[str]:
    """Yield the names of both lists in turns, each name once."""
    seen = set()
    for number in range(max(len(one), len(other))):
        for name in (*one[number : number + 1], *other[number : number + 1]):
            if name not in seen:
                seen.add(name)
                yield name


def schedules(overview: Overview) -> Section:
    """Return the table of schedules, the next one first."""
    is_anybody_there = bool(overview.with_health(Health.ALIVE))
    rows = []
    for each in overview.schedules:
        is_due = each.next_run_at is not None and not each.is_paused
        due = Cell(relative(each.next_run_at or 0, overview.taken_at)) if is_due else NOT_KNOWN
        figures = (NOTHING, NOTHING, _ago(each.last_run_at, overview.taken_at), due)
        rows.append(Row(Cell(each.schedule_name), figures, _timing(each, is_anybody_there)))
    return Section("Next schedules", ("", "", "last", "next"), rows, essential=(2, 3))


def _timing(each: NextRun, is_anybody_there: bool) -> Cell:
    if each.is_paused:
        return Cell("paused", PAUSED_STYLE)
    is_lost = is_anybody_there and not each.is_declared
    return Cell("not declared", style_of("not declared")) if is_lost else Cell(timing(each.definition), "dim")


def failures(overview: Overview, grid: Grid) -> Section:
    """Return the table of the last attempts that failed."""
    rows = []
    for each in overview.failures:
        again, ago = Cell("yes") if each.will_retry else Cell("no", "dim"), _ago(each.finished_at, overview.taken_at)
        reason = Cell(cause(each.error_code, each.error_message, grid.remark), FAILED_STYLE)
        rows.append(
            Row(_one_task(each.task_name, each.task_id), (NOTHING, Cell(str(each.attempt)), again, ago), reason)
        )
    return Section("Last failures", ("", "attempt", "retries", "ago"), rows, "error", essential=(2, 3))


def running(overview: Overview, grid: Grid, *, is_ascii: bool) -> Section:
    """Return the table of running tasks: first those that report progress, with a bar, then those that run longest."""
    unlisted = max(0, sum(each.report.running_count for each in overview.instances) - len(overview.running))
    longest = max((cell_len(escaped(each.task_name)) + 1 + ID_END for each in overview.running), default=0)
    width = min(MAX_BAR, grid.drawn_width(longest))
    rows = []
    for each in overview.running:
        left_us = each.left_us(overview.taken_at)
        left = NOTHING if left_us is None else Cell(stopwatch(left_us), RUNNING_STYLE)
        name, times = (
            _one_task(each.task_name, each.task_id),
            (Cell(stopwatch(overview.taken_at - each.started_at)), left),
        )
        if grid.is_narrow:
            rows.append(Row(name, (_done(each), *times)))
        else:
            workflow = overview.workflow_of.get(each.task_id)
            text = each.text if each.text or workflow is None else workflow_label(workflow)
            rows.append(Row(name, times, Cell(text, "dim"), _progress(each, width, is_ascii)))
    if grid.is_narrow:
        return Section("Running", ("done", "elapsed", "left"), rows, unlisted=unlisted, essential=(0, 1, 2))
    return Section("Running", ("", "", "elapsed", "left"), rows, unlisted=unlisted)


def workflows(overview: Overview, grid: Grid, *, is_ascii: bool) -> Section:
    """Return the table of workflows that have not ended, with how far each has come; the paused ones first."""
    longest = max((cell_len(escaped(workflow_label(each))) for each in overview.workflows), default=0)
    width = min(MAX_BAR, grid.drawn_width(longest))
    rows = []
    for each in overview.workflows:
        fraction = each.ended_count / max(1, each.node_count)
        name, elapsed = Cell(workflow_label(each)), Cell(stopwatch(overview.taken_at - each.sent_at))
        if grid.is_narrow:
            rows.append(Row(name, (Cell(f"{int(fraction * 100)}%", RUNNING_STYLE), elapsed)))
            continue
        nodes = f"{each.ended_count:,} of {each.node_count:,}"
        remark = Cell(f"paused, {nodes}", PAUSED_STYLE) if each.status == "PAUSED" else Cell(nodes, "dim")
        rows.append(Row(name, (elapsed, NOTHING), remark, _bar(fraction, width, is_ascii)))
    unlisted = max(0, overview.workflow_count - len(overview.workflows))
    heads = ("ended", "elapsed") if grid.is_narrow else ("", "", "elapsed", "")
    return Section("Workflows", heads, rows, unlisted=unlisted, essential=(0, 1))


def _done(each: RunningTask) -> Cell:
    """Return the progress as a figure, for a screen that has no room for a bar."""
    if each.fraction is not None:
        return Cell(f"{int(each.fraction * 100)}%", RUNNING_STYLE)
    return NOTHING if each.done is None else Cell(amount(each.done))


def _progress(each: RunningTask, width: int, is_ascii: bool) -> Text:
    """Return a bar with its percentage, or only how much was done if the total is not known."""
    fraction = each.fraction
    if fraction is None:
        return Text("" if each.done is None else f"{done_of(each.done, each.total)} done".rjust(width))
    return _bar(fraction, width, is_ascii)


def _bar(fraction: float, width: int, is_ascii: bool) -> Text:
    percent = f" {int(fraction * 100):3}%"
    full, half, rest = _ASCII if is_ascii else _DRAWN
    width -= len(percent)
    halves = int(fraction * width * 2)
    done = full * (halves // 2) + half * (halves % 2)
    style = STYLES["good" if fraction >= 1 else "busy"]
    return Text.assemble((done, style), (rest * (width - len(done)), "dim"), percent)
