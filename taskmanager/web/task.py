"""The page of one task: what is known of it, what happens next, what it was given, and how each attempt went."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse

from taskmanager.codec.report import number_or_none
from taskmanager.console.documents import parsed
from taskmanager.console.figures import MAX_CHARS, cut, exact, size, workflow_label
from taskmanager.console.outlook import Surroundings, outlook, surroundings
from taskmanager.console.record import policy, process_of, progress_of, so_far, step_until
from taskmanager.engine.people.actions import why_not_again
from taskmanager.model.clock import LAST_US
from taskmanager.model.record import AttemptRow, TaskRow, UnreadableRow
from taskmanager.model.report import RunningTask
from taskmanager.model.states import LIVE, WAITING, TaskStatus
from taskmanager.model.steps import StepRow
from taskmanager.model.wording import why
from taskmanager.store.on_failure import enqueued_by
from taskmanager.store.sql.search import ids_like
from taskmanager.store.sql.task_views import Part, TaskView, task_view
from taskmanager.web import values
from taskmanager.web.render import MAX_LIKE, View, refusal, those_like
from taskmanager.web.site import Site, site_of
from taskmanager.web.source import Source
from taskmanager.web.timeline import Line, Tick, line_until_now, ticks

MAX_LOG_LINES: Final = 200
MAX_LINE_CHARS: Final = 1_000
MAX_BARS: Final = 40
MAX_TAGS: Final = 50


async def show(request: Request) -> View | RedirectResponse:
    """Show a task. A part of its id leads to it."""
    site, wanted = site_of(request), request.path_params["task_id"].strip()
    view = await site.source.look(task_view, wanted)
    if view is None and (view := site.source.in_memory(wanted)) is not None:
        view = view._replace(instances=[each.row for each in (await site.source.overview()).instances])
    if view is not None:
        running = await _running(site.source, wanted) if view.row.status == TaskStatus.RUNNING else None
        return View("task.html", _page(site, view, running, await _around(site.source, view)))
    return await _like(request, wanted)


async def _running(source: Source, task_id: str) -> RunningTask | None:
    """Return what the instance of a task says of it, which is newer than its row."""
    return next((each for each in (await source.overview()).running if each.task_id == task_id), None)


async def _like(request: Request, part: str) -> View | RedirectResponse:
    source = site_of(request).source
    found = set(await source.look(ids_like, part, MAX_LIKE + 1)) | set(source.ids_in_memory_like(part, MAX_LIKE + 1))
    running = {} if not part else {
        each.task_id: each
        for each in (await source.overview()).running
        if each.task_id.startswith(part) or each.task_id.endswith(part)
    }  # fmt: skip
    together = sorted(found | running.keys())
    if part in running:
        return View("task_running.html", await _only_running(request, running[part]))
    if together:
        return those_like(request, "task", part, together)
    cure = "look for it in the list of tasks; a record is deleted when it is older than the application keeps them"
    return refusal(404, f"there is no task {cut(part, MAX_CHARS)}", cure)


async def _only_running(request: Request, task: RunningTask) -> dict[str, Any]:
    site = site_of(request)
    instances = (await site.source.overview()).instances
    owner = next((each.row for each in instances if each.row.instance_id == task.instance_id), None)
    return {"task": task, "owner": owner, "progress": _reported(site, task.done, task.total, task.text)}


class Progress(NamedTuple):
    """How far a task has come: a share for a bar, if it is known, and words."""

    share: float | None
    words: str


class Attempt(NamedTuple):
    """One attempt, with its place on the line of time. `took` is empty while it runs."""

    number: int
    outcome: str
    started_at: int
    took: str
    will_retry: bool
    why: str
    message: str
    traceback: str
    same_as: int | None
    bar: tuple[float, float]


class Step(NamedTuple):
    """One step, or a sleep or a wait, and how it went. `state` is a word of a status."""

    row: StepRow
    label: str
    state: str
    took: str
    why: str
    result: str


class LogLine(NamedTuple):
    """One line of the log of a task."""

    at: int | None
    attempt: int | None
    text: str


async def _around(source: Source, view: TaskView) -> Surroundings:
    return await source.aside(
        partial(surroundings, is_paused=view.is_queue_paused),
        view.row, view.instances, source.place, source.clock.now_us(), view.workflow,
    )  # fmt: skip


def _page(site: Site, view: TaskView, running: RunningTask | None, around: Surroundings) -> dict[str, Any]:
    row, now_us = view.row, around.now_us
    line = _line(view, now_us)
    format_arguments, is_hidden = site.format_arguments, site.hide_arguments
    ended_at = row.completed_at or row.failed_at
    return {
        "row": row,
        "view": view,
        "next": outlook(row, around, view.steps),
        "why": why(row.error_code, view.message, max_chars=MAX_CHARS) if row.error_code else "",
        "fault": row.fault if isinstance(row, UnreadableRow) else "",
        "message": _of_several_lines(view.message),
        "arguments": values.arguments(row.task_name, view.args, view.kwargs, format_arguments, is_hidden=is_hidden),
        "result": values.result(view.result, is_hidden=is_hidden) if row.status == TaskStatus.COMPLETED else None,
        "tags": _tags(row),
        "workflow_label": "" if view.workflow is None else workflow_label(view.workflow),
        "policy": policy(row),
        "process": process_of(row, around.owner),
        "so_far": so_far(row),
        "due_at": row.enqueued_at if row.status in WAITING and row.enqueued_at < LAST_US else None,
        "ended_at": ended_at,
        "took_all": "" if ended_at is None else exact(ended_at - row.sent_at),
        "then": enqueued_by(row),
        "progress": _progress(site, row, running),
        "attempts": list(_attempts(view.attempts, line)),
        "current": _current(row, line),
        "bars": MAX_BARS,
        "ticks": _scale(line),
        "steps": list(_steps(view, is_hidden=is_hidden)),
        "log": _log(view),
        "max_log_lines": MAX_LOG_LINES,
        "can_cancel": row.status in LIVE,
        "can_retry": why_not_again(row, force=True) is None,
        "is_completed": row.status == TaskStatus.COMPLETED,
    }


def _of_several_lines(message: str | None) -> str:
    """Return a message that one line does not show."""
    return message if message and ("\n" in message.strip() or len(message) > MAX_CHARS) else ""


def _tags(row: TaskRow) -> list[tuple[str, str]]:
    found = parsed(row.tags or "null")
    return [(str(key), str(value)) for key, value in found.items()][:MAX_TAGS] if isinstance(found, Mapping) else []


def _progress(site: Site, row: TaskRow, running: RunningTask | None) -> Progress | None:
    if running is not None and (running.done is not None or running.text):
        return _reported(site, running.done, running.total, running.text)
    found = parsed(row.progress or "null")
    if not isinstance(found, Mapping):
        return None
    return _reported(site, number_or_none(found.get("done")), number_or_none(found.get("total")), found.get("text"))


def _reported(site: Site, done: float | None, total: float | None, text: Any) -> Progress | None:
    shown = {"done": done, "total": total, "text": "" if site.hide_arguments else text}
    words = progress_of(shown)
    share = done / total if done is not None and total and 0 <= done <= total else None
    return Progress(share, cut(words, MAX_LINE_CHARS)) if words else None


# Attempts.


def _line(view: TaskView, now_us: int) -> Line | None:
    """Return the line of time from the first start to the last end, or to now while the task runs."""
    runs_since = view.row.started_at if view.row.status == TaskStatus.RUNNING else None
    shown = view.attempts[-MAX_BARS:]
    since = min((each.started_at for each in shown), default=runs_since)
    if since is None:
        return None
    if runs_since is not None:
        return line_until_now(since, max(now_us, since))
    return Line(since, max(*(each.finished_at for each in shown), since + 1))


def _attempts(rows: Sequence[AttemptRow], line: Line | None) -> Iterator[Attempt]:
    seen: dict[str, int] = {}
    for row in rows:
        reason, message = (row.failed_reason or "").strip("\n"), row.error_message or ""
        has_traceback = "\n" in reason.strip()
        same_as = seen.setdefault(reason, row.attempt) if has_traceback else row.attempt
        yield Attempt(
            number=row.attempt,
            outcome=row.outcome,
            started_at=row.started_at,
            took=exact(row.finished_at - row.started_at),
            will_retry=bool(row.will_retry),
            why=why(row.error_code, message, max_chars=MAX_CHARS) if row.error_code else "",
            message="" if has_traceback else _of_several_lines(message),
            traceback=reason.rstrip() if has_traceback and same_as == row.attempt else "",
            same_as=None if same_as == row.attempt else same_as,
            bar=(0.0, 0.0) if line is None else line.bar(row.started_at, row.finished_at),
        )


def _current(row: TaskRow, line: Line | None) -> Attempt | None:
    """Return the attempt that has not ended, if there is one."""
    if line is None or row.status != TaskStatus.RUNNING or row.started_at is None:
        return None
    bar = line.bar(row.started_at, line.until)
    return Attempt(row.start_count, "RUNNING", row.started_at, "", False, "", "", "", None, bar)


def _scale(line: Line | None) -> list[Tick]:
    return [] if line is None else ticks(line)


# Steps and log.


def _steps(view: TaskView, *, is_hidden: bool) -> Iterator[Step]:
    for row, part in zip(view.steps, view.step_results, strict=True):
        result = "" if is_hidden or row.error_code else _step_result(part)
        yield Step(
            row=row,
            label=row.key or str(row.number),
            state=_step_state(row, view.row),
            took=step_until(row) if row.ended_at is None else exact(row.ended_at - row.started_at),
            why=why(row.error_code, row.error_message, max_chars=MAX_CHARS) if row.error_code else "",
            result=cut(result, MAX_CHARS),
        )


def _step_result(part: Part | None) -> str:
    if part is None:
        return ""
    if not part.text.startswith("{"):
        return f"sealed ({size(part.size)})"
    text = part.text.removeprefix('{"ok":')
    text = text.removesuffix("}") if part.is_whole else text
    return "" if text == "null" else text


def _step_state(step: StepRow, task: TaskRow) -> str:
    if step.ended_at is not None:
        return "FAILED" if step.error_code else "COMPLETED"
    if task.status not in LIVE:
        return "not ended"
    if step.waits_for is None:
        return "tried again" if step.due_at is not None else "RUNNING"
    return "waits" if step.waits_for else "sleeps"


def _log(view: TaskView) -> Sequence[LogLine] | None:
    """Return the last lines of the log, or None if it is too long to be read."""
    if view.log is None:
        return ()
    if not view.log.is_whole:
        return None
    found = parsed(view.log.text)
    entries = found[-MAX_LOG_LINES:] if isinstance(found, list) else []
    return [_log_line(each) for each in entries if isinstance(each, Mapping)]


def _log_line(entry: Mapping[str, Any]) -> LogLine:
    at, attempt = entry.get("at"), entry.get("attempt")
    fields = [f"{key}={values.readable(each)}" for key, each in entry.items() if key not in ("at", "attempt", "text")]
    text = cut("  ".join([str(entry.get("text", "")), *fields]), MAX_LINE_CHARS)
    return LogLine(at if isinstance(at, int) else None, attempt if isinstance(attempt, int) else None, text)
