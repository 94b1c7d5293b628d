"""One task with everything that is known of it: facts, what comes next, every attempt with its traceback, its log."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from taskmanager.codec.columns import loads_flat
from taskmanager.codec.report import number_or_none
from taskmanager.console.cause import MAX_CHARS, message_of
from taskmanager.console.figures import clock, cut, done_of, exact, precise, relative
from taskmanager.console.outlook import Outlook
from taskmanager.console.terminal.tables import STATUS_STYLES
from taskmanager.engine.definition import options_of, timeout_of
from taskmanager.model.errors import ArgumentError
from taskmanager.model.escaping import escaped, escaped_lines
from taskmanager.model.record import AttemptRow, TaskRow, UnreadableRow
from taskmanager.model.states import AttemptOutcome, TaskStatus
from taskmanager.model.wording import why
from taskmanager.store.protocol import InstanceRow

MAX_VALUE_CHARS: Final = 1_000
"""Of arguments, results, messages and lines of the log that are longer, `--json` shows the rest."""
MAX_LOG_LINES: Final = 200

_OUTCOME_STYLES: Final = {
    AttemptOutcome.COMPLETED: "green",
    AttemptOutcome.FAILED: "red",
    AttemptOutcome.WORKER_FAILURE: "red",
    AttemptOutcome.INTERRUPTED: "magenta",
}


class Record(NamedTuple):
    """What `record_view` draws."""

    row: TaskRow
    attempts: Sequence[AttemptRow]
    outlook: Outlook
    owner: InstanceRow | None
    now_us: int


def record_view(record: Record) -> RenderableType:
    """All of it, one below the other."""
    parts: list[RenderableType] = [_headline(record.row), Text(""), _facts(record), Text(""), _next(record)]
    attempts = [*_attempts(record.attempts), *_current(record)]
    if attempts:
        parts += [Text(""), Text.assemble(("Attempts", "bold"), (" (UTC)", "dim")), *attempts]
    log = _parsed(record.row.log)
    if isinstance(log, list) and log:
        some = f" (the last {MAX_LOG_LINES} lines of {len(log):,})" if len(log) > MAX_LOG_LINES else ""
        parts += [Text(""), Text.assemble(("Log", "bold"), (some, "dim")), _log(log)]
    return Group(*parts)


def _headline(row: TaskRow) -> Text:
    status = TaskStatus(row.status)
    line = Text.assemble((escaped(row.task_name), "bold"), "  ", (row.status, STATUS_STYLES[status]))
    if row.error_code:
        line.append(f"  {why(row.error_code, message_of(row), max_chars=MAX_CHARS)}", STATUS_STYLES[status])
    line.append(f"\n{escaped(row.task_id)}")
    if isinstance(row, UnreadableRow):
        line.append(f"\n{cut(escaped_lines(row.failed_reason or ''), MAX_VALUE_CHARS)}", "bold red")
    return line


def _next(record: Record) -> Text:
    line = Text.assemble(("Next: ", "bold"), record.outlook.text)
    if record.outlook.at is not None:
        line.append(f" at {clock(record.outlook.at)} UTC ({relative(record.outlook.at, record.now_us)})")
    return line


# Facts.


def _facts(record: Record) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _fact_lines(record):
        table.add_row(name, Text(value))
    return table


def _fact_lines(record: Record) -> Iterator[tuple[str, str]]:
    row, now = record.row, record.now_us
    yield "arguments", _arguments(row)
    if row.status == TaskStatus.COMPLETED:
        yield "result", _result(row)
    tags = _parsed(row.tags)
    if isinstance(tags, Mapping) and tags:
        yield "tags", cut(escaped(", ".join(f"{key}={value}" for key, value in tags.items())), MAX_VALUE_CHARS)
    if row.idempotency_key is not None:
        yield "key", escaped(row.idempotency_key)
    yield "queue", f"{escaped(row.queue_name)}, priority {row.priority}"
    yield "policy", _policy(row)
    if row.scheduled_for is not None:
        yield "scheduled", _instant(row.scheduled_for, now)
    yield "sent", _instant(row.sent_at, now)
    if row.started_at is not None:
        yield "started", _instant(row.started_at, now)
    ended_at = row.completed_at or row.failed_at
    if ended_at is not None:
        yield "ended", f"{_instant(ended_at, now)}, {exact(ended_at - row.sent_at)} after it was sent"
    if row.good_until is not None:
        yield "good until", _instant(row.good_until, now)
    if row.cancel_requested_at is not None:
        yield "cancel", f"requested {_instant(row.cancel_requested_at, now)}"
    if row.claimed_by_worker_id is not None:
        yield "instance", _instance(row, record.owner)
    progress = _parsed(row.progress)
    if isinstance(progress, Mapping) and (shown := _progress(progress)):
        yield "progress", shown
    counts = (
        (row.start_count, "start", "starts"),
        (row.retry_count, "retry", "retries"),
        (row.crash_count, "crash", "crashes"),
        (row.snooze_count, "snooze", "snoozes"),
    )
    if any(number for number, _, _ in counts):
        yield "so far", ", ".join(f"{number} {one if number == 1 else many}" for number, one, many in counts if number)


def _instant(instant_us: int, now_us: int) -> str:
    return f"{clock(instant_us)} UTC ({relative(instant_us, now_us)})"


def _arguments(row: TaskRow) -> str:
    if row.args is None or row.kwargs is None:
        return "not stored: they cannot be written as JSON"
    args, kwargs = _parsed(row.args), _parsed(row.kwargs)
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        return f"sealed by the application ({len(row.args) + len(row.kwargs):,} characters)"
    parts = [_value(each) for each in args] + [f"{escaped(name)}={_value(each)}" for name, each in kwargs.items()]
    return cut(f"({', '.join(parts)})", MAX_VALUE_CHARS)


def _result(row: TaskRow) -> str:
    result = _parsed(row.result)
    if isinstance(result, Mapping):
        said = _value(result["ok"]) if "ok" in result else f"not stored: {escaped(message_of(row) or '')}"
        return cut(said, MAX_VALUE_CHARS)
    return "not stored" if row.result is None else f"sealed by the application ({len(row.result):,} characters)"


def _value(value: object) -> str:
    return escaped(json.dumps(value, ensure_ascii=False))


def _policy(row: TaskRow) -> str:
    options = options_of(row.task_options)
    parts = ["persisted" if options.get("persist") else "memory only"]
    if options.get("requeue_on_interrupt"):
        parts.append("safe to repeat")
    if row.max_retries:
        parts.append("1 retry" if row.max_retries == 1 else f"{row.max_retries} retries")
    if (timeout_s := timeout_of(row.task_options)) is not None:
        parts.append(f"timeout {timeout_s:g} s")
    parts.append(escaped(f"{options.get('lane', 'async')} lane"))
    return ", ".join(parts)


def _instance(row: TaskRow, owner: InstanceRow | None) -> str:
    """The process that has the task, or had it."""
    if owner is not None:
        name = "" if owner.instance_name is None else f"{escaped(owner.instance_name)}, "
        return f"{name}process {owner.pid} on {escaped(owner.hostname)}"
    if row.worker_pid is not None:
        return f"process {row.worker_pid} on {escaped(row.worker_hostname or 'an unknown host')}"
    return f"{escaped(row.claimed_by_worker_id or '')}, which has ended"


def _progress(progress: Mapping[str, Any]) -> str:
    done, total = number_or_none(progress.get("done")), number_or_none(progress.get("total"))
    text = str(progress.get("text") or "")
    if done is None:
        return escaped(text)
    share = f" ({done / total:.0%})" if total and 0 <= done <= total else ""
    return escaped(f"{done_of(done, total)}{share}  {text}".rstrip())


def _parsed(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return loads_flat(text)
    except ArgumentError:
        return None


# Attempts.


def _attempts(attempts: Sequence[AttemptRow]) -> Iterator[RenderableType]:
    seen: dict[str, int] = {}
    for row in attempts:
        yield _attempt_line(row)
        reason = row.failed_reason
        message = (row.error_message or "").strip()
        if row.error_code:
            yield Padding(Text(why(row.error_code, message)), (0, 0, 0, 4))
        if "\n" in message and not (reason and "\n" in reason.strip()):  # above it has lost its lines
            yield Padding(Text(cut(escaped_lines(message), MAX_VALUE_CHARS)), (0, 0, 0, 4))
        if reason is None or "\n" not in reason.strip():
            continue
        if reason in seen:
            yield Padding(Text(f"the traceback of attempt {seen[reason]} again", style="dim"), (0, 0, 0, 4))
            continue
        seen[reason] = row.attempt
        yield Padding(_traceback(escaped_lines(reason.rstrip())), (0, 0, 0, 4))


def _traceback(text: str) -> Text:
    """Colour the places and the type of the error.

    No lexer does it: that of Pygments never ends for some texts, such as what `faulthandler` writes of a crash.
    """
    drawn = Text(text, overflow="fold")
    drawn.highlight_regex(r'(?m)^ *File "[^"\n]*", line \d+', "cyan")
    drawn.highlight_regex(r"(?m)^[\w.]+(?=: |$)", "red")
    return drawn


def _current(record: Record) -> Iterator[RenderableType]:
    """The attempt that has not ended."""
    row = record.row
    if row.status == TaskStatus.RUNNING and row.started_at is not None:
        running = exact(record.now_us - row.started_at)
        yield Text.assemble(f"{row.start_count:>3}  {clock(row.started_at)}  ", ("RUNNING", "cyan"), f" for {running}")


def _attempt_line(row: AttemptRow) -> Text:
    line = Text(f"{row.attempt:>3}  {clock(row.started_at)}  ")
    line.append(row.outcome, _OUTCOME_STYLES[AttemptOutcome(row.outcome)])
    line.append(f" after {exact(row.finished_at - row.started_at)}")
    return line.append(", retried") if row.will_retry else line


# Log.


def _log(entries: Sequence[Any]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for entry in entries[-MAX_LOG_LINES:]:
        if not isinstance(entry, Mapping):
            continue
        at, attempt = entry.get("at"), entry.get("attempt")
        more = {escaped(key): each for key, each in entry.items() if key not in ("at", "attempt", "text")}
        fields = (f"{key}={_value(each)}" for key, each in more.items())
        text = cut("  ".join([escaped_lines(str(entry.get("text", ""))), *fields]), MAX_VALUE_CHARS)
        table.add_row(precise(at) if isinstance(at, int) else "", "" if attempt is None else f"#{attempt}", Text(text))
    return table
