"""Draws all that is known of one task: its facts, what is next, its attempts with their tracebacks, steps and log."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from taskmanager.console.documents import parsed
from taskmanager.console.figures import (
    MAX_CHARS,
    clock,
    cut,
    exact,
    message_of,
    precise,
    relative,
    stored_error,
    workflow_label,
)
from taskmanager.console.outlook import Outlook
from taskmanager.console.record import policy, process_of, progress_of, so_far, step_until
from taskmanager.console.terminal.colours import FAILED_STYLE, style_of
from taskmanager.model.escaping import escaped, escaped_lines
from taskmanager.model.record import AttemptRow, TaskRow, UnreadableRow
from taskmanager.model.states import TaskStatus
from taskmanager.model.steps import StepRow
from taskmanager.model.wording import why
from taskmanager.store.on_failure import enqueued_by
from taskmanager.store.protocol import InstanceRow
from taskmanager.store.statistics import OwnWorkflow

MAX_VALUE_CHARS: Final = 1_000
"""Of arguments, results, messages and lines of the log that are longer, `--json` shows the rest."""
MAX_LOG_LINES: Final = 200
MAX_STEPS: Final = 200


class Record(NamedTuple):
    """One task, as `record_view` draws it."""

    row: TaskRow
    attempts: Sequence[AttemptRow]
    outlook: Outlook
    owner: InstanceRow | None
    now_us: int
    steps: Sequence[StepRow] = ()
    workflow: OwnWorkflow | None = None


def record_view(record: Record) -> RenderableType:
    """Draw the parts of a record below one another."""
    parts: list[RenderableType] = [_headline(record.row), Text(""), _facts(record), Text(""), _next(record)]
    attempts = [*_attempts(record.attempts), *_current(record)]
    if attempts:
        parts += [Text(""), Text.assemble(("Attempts", "bold"), (" (UTC)", "dim")), *attempts]
    if record.steps:
        some = f" (the last {MAX_STEPS} of {len(record.steps):,})" if len(record.steps) > MAX_STEPS else ""
        parts += [Text(""), Text.assemble(("Steps", "bold"), (some, "dim")), _steps(record.steps[-MAX_STEPS:])]
    log = parsed(record.row.log or "null")
    if isinstance(log, list) and log:
        some = f" (the last {MAX_LOG_LINES} lines of {len(log):,})" if len(log) > MAX_LOG_LINES else ""
        parts += [Text(""), Text.assemble(("Log", "bold"), (some, "dim")), _log(log)]
    return Group(*parts)


def _grid(*right: bool) -> Table:
    """Make a table whose last column takes the rest of the width. `right` says which others are aligned right."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for is_right in right:
        table.add_column(style="dim", no_wrap=True, justify="right" if is_right else "left")
    table.add_column(overflow="fold")
    return table


def _headline(row: TaskRow) -> Text:
    style = style_of(row.status)
    line = Text.assemble((escaped(row.task_name), "bold"), "  ", (row.status, style))
    if row.error_code:
        line.append(f"  {why(row.error_code, message_of(row), max_chars=MAX_CHARS)}", style)
    line.append(f"\n{escaped(row.task_id)}")
    if isinstance(row, UnreadableRow):
        line.append(f"\n{cut(escaped_lines(row.failed_reason or ''), MAX_VALUE_CHARS)}", "bold red")
    return line


def _next(record: Record) -> Text:
    line = Text.assemble(("Next: ", "bold"), record.outlook.text)
    if record.outlook.at is not None:
        line.append(f" at {_instant(record.outlook.at, record.now_us)}")
    return line


def _facts(record: Record) -> Table:
    table = _grid(False)
    for name, value in _fact_lines(record):
        if value:
            table.add_row(name, Text(value))
    return table


def _fact_lines(record: Record) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each fact. A fact without a value is not shown."""
    row, now = record.row, record.now_us
    yield "arguments", _arguments(row)
    yield "result", result_text(row.result) if row.status == TaskStatus.COMPLETED else ""
    tags = parsed(row.tags or "null")
    if isinstance(tags, Mapping):
        yield "tags", cut(escaped(", ".join(f"{key}={value}" for key, value in tags.items())), MAX_VALUE_CHARS)
    yield "key", escaped(row.idempotency_key or "")
    workflow = record.workflow
    yield "workflow", "" if workflow is None else escaped(f"{workflow_label(workflow)}, node {workflow.node_id}")
    yield "queue", f"{escaped(row.queue_name)}, priority {row.priority}"
    yield "policy", policy(row)
    yield "scheduled", _instant(row.scheduled_for, now)
    yield "sent", _instant(row.sent_at, now)
    yield "started", _instant(row.started_at, now)
    ended_at = row.completed_at or row.failed_at
    if ended_at is not None:
        yield "ended", f"{_instant(ended_at, now)}, {exact(ended_at - row.sent_at)} after it was sent"
    then = enqueued_by(row)
    yield "on failure", "" if then is None else f"{escaped(then.task_name)} {then.task_id}"
    yield "good until", _instant(row.good_until, now)
    if row.cancel_requested_at is not None:
        yield "cancel", f"requested {_instant(row.cancel_requested_at, now)}"
    yield "instance", process_of(row, record.owner)
    progress = parsed(row.progress or "null")
    yield "progress", progress_of(progress) if isinstance(progress, Mapping) else ""
    yield "so far", so_far(row)


def _instant(instant_us: int | None, now_us: int) -> str:
    return "" if instant_us is None else f"{clock(instant_us)} UTC ({relative(instant_us, now_us)})"


def _arguments(row: TaskRow) -> str:
    if row.args is None or row.kwargs is None:
        return "not stored: they cannot be written as JSON"
    args, kwargs = parsed(row.args), parsed(row.kwargs)
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        return f"sealed by the application ({len(row.args) + len(row.kwargs):,} characters)"
    parts = [_value(each) for each in args] + [f"{escaped(name)}={_value(each)}" for name, each in kwargs.items()]
    return cut(f"({', '.join(parts)})", MAX_VALUE_CHARS)


def result_text(stored: str | None) -> str:
    """Return what a task has come to, in one line."""
    result = parsed(stored or "null")
    if isinstance(result, Mapping):
        said = _value(result["ok"]) if "ok" in result else f"not stored: {escaped(stored_error(stored)[1] or '')}"
        return cut(said, MAX_VALUE_CHARS)
    return "not stored" if stored is None else f"sealed by the application ({len(stored):,} characters)"


def _value(value: object) -> str:
    return escaped(json.dumps(value, ensure_ascii=False))


def _attempts(attempts: Sequence[AttemptRow]) -> Iterator[RenderableType]:
    seen: dict[str, int] = {}
    for row in attempts:
        line = Text(f"{row.attempt:>3}  {clock(row.started_at)}  ").append(row.outcome, style_of(row.outcome))
        line.append(f" after {exact(row.finished_at - row.started_at)}")
        yield line.append(", retried") if row.will_retry else line
        reason, message = (row.failed_reason or "").strip("\n"), (row.error_message or "").strip()
        has_traceback = "\n" in reason.strip()
        if row.error_code:
            yield _below(why(row.error_code, message))
        if "\n" in message and not has_traceback:  # above it has lost its lines
            yield _below(cut(escaped_lines(message), MAX_VALUE_CHARS))
        if has_traceback and reason in seen:
            yield _below(f"the traceback of attempt {seen[reason]} again", "dim")
        elif has_traceback:
            seen[reason] = row.attempt
            yield Padding(_traceback(escaped_lines(reason.rstrip())), (0, 0, 0, 4))


def _below(text: str, style: str = "") -> Padding:
    return Padding(Text(text, style=style), (0, 0, 0, 4))


def _traceback(text: str) -> Text:
    """Colour the places and the type of the error.

    The lexer of Pygments is not used: it never ends for some texts, such as the output of `faulthandler` at a crash.
    """
    drawn = Text(text, overflow="fold")
    drawn.highlight_regex(r'(?m)^ *File "[^"\n]*", line \d+', "cyan")
    drawn.highlight_regex(r"(?m)^[\w.]+(?=: |$)", "red")
    return drawn


def _current(record: Record) -> Iterator[RenderableType]:
    """Yield the attempt that has not ended, if there is one."""
    row = record.row
    if row.status == TaskStatus.RUNNING and row.started_at is not None:
        running = exact(record.now_us - row.started_at)
        yield Text.assemble(
            f"{row.start_count:>3}  {clock(row.started_at)}  ", (row.status, style_of(row.status)), f" for {running}"
        )


def _steps(steps: Sequence[StepRow]) -> Table:
    table = _grid(True, False)
    for row in steps:
        took = step_until(row) if row.ended_at is None else f"after {exact(row.ended_at - row.started_at)}"
        line = Text.assemble(escaped(row.name), "  ", took)
        if row.attempts > 1:
            line.append(f", {row.attempts} tries")
        if row.error_code:
            line.append(f"  {why(row.error_code, row.error_message, max_chars=MAX_CHARS)}", FAILED_STYLE)
        table.add_row(escaped(row.key) or str(row.number), clock(row.started_at), line)
    return table


def _log(entries: Sequence[Any]) -> Table:
    table = _grid(False, True)
    for entry in entries[-MAX_LOG_LINES:]:
        if not isinstance(entry, Mapping):
            continue
        at, attempt = entry.get("at"), entry.get("attempt")
        fields = (
            f"{escaped(key)}={_value(each)}" for key, each in entry.items() if key not in ("at", "attempt", "text")
        )
        text = cut("  ".join([escaped_lines(str(entry.get("text", ""))), *fields]), MAX_VALUE_CHARS)
        table.add_row(precise(at) if isinstance(at, int) else "", "" if attempt is None else f"#{attempt}", Text(text))
    return table
