"""Retries and cancels tasks for the pages, and notes who did it.

One task of a manager that runs in this event loop is asked of that manager, which also has the tasks that are only in
its memory. All others are written to the file, as the command line does; their instances notice within `store_poll`.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import Response

from taskmanager.engine.actions import cancel_stored, retry_stored, why_not_again
from taskmanager.engine.definition import RowCodec
from taskmanager.manager import TaskManager
from taskmanager.model.errors import UnknownTask, unknown_task
from taskmanager.model.record import TaskRow
from taskmanager.model.states import LIVE
from taskmanager.store.protocol import Store
from taskmanager.store.sqlite.queries import fetch
from taskmanager.web.forms import audit, form_of
from taskmanager.web.render import done
from taskmanager.web.site import Site, site_of

CHANGED: Final = "it has changed meanwhile"
GONE: Final = "its record was deleted"
_UNTYPED: Final = RowCodec({})  # what is written is what recovery writes of unknown functions


class Answer(NamedTuple):
    """What became of one task: None, or why nothing was done to it."""

    task_id: str
    refusal: str | None = None


async def retry(request: Request, task_ids: Sequence[str]) -> list[Answer]:
    """Run ended tasks again, with an audit line. COMPLETED ones are refused."""
    answers = await _act(site_of(request), task_ids, "retry")
    return _noted(request, "retried", answers)


async def cancel(request: Request, task_ids: Sequence[str]) -> list[Answer]:
    """End tasks that wait, and ask those to stop that run, with an audit line."""
    answers = await _act(site_of(request), task_ids, "cancel")
    return _noted(request, "cancelled", answers)


async def retry_one(request: Request) -> Response:
    """Retry the task of the address."""
    return await _one(request, "retry", "waits, and runs as soon as an instance has room")


async def cancel_one(request: Request) -> Response:
    """Cancel the task of the address."""
    return await _one(request, "cancel", "was asked to stop")


async def _one(request: Request, verb: str, outcome: str) -> Response:
    task_id = request.path_params["task_id"]
    (answer,) = await (retry if verb == "retry" else cancel)(request, [task_id])
    if answer.refusal == GONE:
        raise unknown_task(task_id)
    said = outcome if answer.refusal is None else f"was left alone: {answer.refusal}"
    return done(request, await _way_back(request, task_id), f"Task {task_id} {said}.")


async def _way_back(request: Request, task_id: str) -> str:
    """Return the address of the list where the button was, or else that of the task."""
    fields = await form_of(request)
    if "list" not in fields:
        return f"tasks/{task_id}"
    query = urlencode(parse_qsl(fields["list"]))
    return f"tasks?{query}" if query else "tasks"


def _noted(request: Request, what: str, answers: list[Answer]) -> list[Answer]:
    if task_ids := [answer.task_id for answer in answers if answer.refusal is None]:
        audit(request, what, task_ids)
    return answers


async def _act(site: Site, task_ids: Sequence[str], verb: str) -> list[Answer]:
    source = site.source
    if source.manager is not None and source.running() is not None and (len(task_ids) == 1 or source.database is None):
        return [await _asked(source.manager, site, each, verb) for each in task_ids]
    now_us = source.clock.now_us()
    return await source.act(lambda store: _in_store(store, task_ids, verb, now_us))


async def _asked(manager: TaskManager, site: Site, task_id: str, verb: str) -> Answer:
    try:
        is_done = await (manager.retry(task_id) if verb == "retry" else manager.cancel(task_id))
    except UnknownTask:
        return Answer(task_id, GONE)
    if is_done:
        return Answer(task_id)
    row = await site.source.read(fetch, task_id)
    return Answer(task_id, GONE if row is None else _why_not(row, verb) or CHANGED)


async def _in_store(store: Store, task_ids: Sequence[str], verb: str, now_us: int) -> list[Answer]:
    rows = await store.fetch_ids(task_ids)
    able = [rows[each] for each in task_ids if each in rows and _why_not(rows[each], verb) is None]
    won = await (_retry_rows if verb == "retry" else _cancel_rows)(store, able, now_us)
    return [
        Answer(each, None if each in won else (_why_not(rows[each], verb) or CHANGED) if each in rows else GONE)
        for each in task_ids
    ]


async def _retry_rows(store: Store, rows: Sequence[TaskRow], now_us: int) -> frozenset[str]:
    return await retry_stored(store, rows, now_us) if rows else frozenset()


async def _cancel_rows(store: Store, rows: Sequence[TaskRow], now_us: int) -> frozenset[str]:
    return await cancel_stored(store, _UNTYPED, rows, now_us)


def _why_not(row: TaskRow, verb: str) -> str | None:
    if verb == "retry":
        return why_not_again(row, force=False)
    return None if row.status in LIVE else f"it is {row.status} already"
