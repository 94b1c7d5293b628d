"""The page that enqueues another task like one that is there, with other arguments."""

import json
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from taskmanager.console import acts
from taskmanager.console.documents import parsed
from taskmanager.model.errors import ArgumentError, unknown_task
from taskmanager.model.escaping import escaped_lines
from taskmanager.model.record import TaskRow
from taskmanager.store.protocol import Store
from taskmanager.store.sql.task_views import Part, TaskView, task_view
from taskmanager.web import values
from taskmanager.web.forms import audit, form_of
from taskmanager.web.render import View, done, segment
from taskmanager.web.site import Site, site_of

UNSHOWN: Final = "This dashboard does not show the arguments of the task as they are, so write all of them."
TOO_LONG: Final = "The arguments of the task are too long for a page, so write all of them."


async def show(request: Request) -> View:
    """Show the form, with the arguments that the task has."""
    view = await _found(request)
    args, kwargs, remark = _given(site_of(request), view)
    return _page(view.row, args, kwargs, remark)


async def enqueue(request: Request) -> View | Response:
    """Enqueue what the form says, and lead to the new task; or show the form again with what is wrong with it."""
    view, source = await _found(request), site_of(request).source
    fields = await form_of(request)
    args, kwargs = fields.get("args", ""), fields.get("kwargs", "")
    now = source.clock.now_us()

    async def work(store: Store) -> str:
        rows = await store.fetch_ids([view.row.task_id])
        return await acts.enqueue_again(store, rows.get(view.row.task_id, view.row), args or "[]", kwargs or "{}", now)

    try:
        task_id = await source.act(work)
    except ArgumentError as exc:
        return _page(view.row, args, kwargs, fault=str(exc))
    audit(request, "enqueued", [task_id, f"like {view.row.task_id}"])
    return done(request, f"tasks/{segment(task_id)}", f"Task {task_id} is enqueued. This is it.")


async def _found(request: Request) -> TaskView:
    source, wanted = site_of(request).source, request.path_params["task_id"]
    view = await source.look(task_view, wanted) or source.in_memory(wanted)
    if view is None:
        raise unknown_task(wanted)
    return view


def _given(site: Site, view: TaskView) -> tuple[str, str, str]:
    """Return the arguments as JSON for the form, and why they are not there if they are not."""
    row, args, kwargs = view.row, view.args, view.kwargs
    shown = values.arguments(row.task_name, args, kwargs, site.format_arguments, is_hidden=site.hide_arguments)
    if args is None or kwargs is None or shown.is_hidden:
        return "", "", UNSHOWN
    if not (args.is_whole and kwargs.is_whole):
        return "", "", TOO_LONG
    return _indented(args), _indented(kwargs), ""


def _indented(part: Part) -> str:
    """Return JSON that a person reads, in which each sign that cannot be seen is an escape of JSON."""
    found = parsed(part.text)
    if isinstance(found, str):  # it is no JSON that can be read, and is given back as it stands
        return escaped_lines(part.text)
    text = values.readable(found)
    is_plain = escaped_lines(text) == text
    return text if is_plain else json.dumps(found, indent=2)


def _page(row: TaskRow, args: str, kwargs: str, remark: str = "", fault: str = "") -> View:
    shown: dict[str, Any] = {
        "row": row,
        "refusal": acts.why_not_enqueued_again(row),
        "args": args,
        "kwargs": kwargs,
        "remark": remark,
        "fault": fault,
        "rows": (max(3, min(20, args.count("\n") + 2)), max(3, min(20, kwargs.count("\n") + 2))),
        "is_live": False,
    }
    return View("enqueue_again.html", shown, 422 if fault else 200)
