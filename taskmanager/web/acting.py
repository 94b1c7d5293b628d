"""Retries and cancels tasks for the pages, and notes who did it.

One task of a manager that runs in this event loop is asked of that manager, which also has the tasks that are only in
its memory. All others are written to the file, as the command line does; their instances notice within `store_poll`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import Response

from taskmanager.console import acts
from taskmanager.console.acts import CHANGED, Answer, gone
from taskmanager.engine.people.actions import why_not_again
from taskmanager.manager import TaskManager
from taskmanager.model.errors import StoreError, UnknownTask, unknown_task
from taskmanager.model.record import TaskRow
from taskmanager.store.protocol import Store
from taskmanager.store.sql.queries import fetch
from taskmanager.web.forms import audit, form_of
from taskmanager.web.render import done, segment
from taskmanager.web.site import site_of
from taskmanager.web.source import Source

BATCH: Final = 100
"""Tasks whose records are in memory at once: an argument may have 8 MB."""


class Way(NamedTuple):
    """Something that is done to tasks: in words, by a manager, and in a store; and why it cannot be done to one."""

    participle: str
    ask: Callable[[TaskManager, str], Awaitable[bool]]
    write: Callable[[Source, Store, Sequence[TaskRow]], Awaitable[list[Answer]]]
    why_not: Callable[[TaskRow], str | None]


def retry_way(*, force: bool = False, from_start: bool = False) -> Way:
    """Return how tasks are retried."""
    return Way(
        "retried",
        lambda manager, task_id: manager.retry(task_id, force=force, from_start=from_start),
        lambda source, store, rows: acts.retry(store, rows, source.clock, force=force, from_start=from_start),
        partial(why_not_again, force=force),
    )


CANCEL: Final = Way(
    "cancelled",
    lambda manager, task_id: manager.cancel(task_id),
    lambda source, store, rows: acts.cancel(store, rows, source.clock, source.place),
    acts.why_not_cancelled,
)


class _Deeds:
    """An action that goes on: what is meant, the answers so far, and the tasks that are being written and have none."""

    def __init__(self, request: Request, way: Way, fits: Callable[[TaskRow], bool], patience_s: float | None) -> None:
        self._request = request
        self.source, self.way, self.fits = site_of(request).source, way, fits
        self._deadline_s = None if patience_s is None else self.source.clock.elapsed_s() + patience_s
        self._noted_count = 0
        self.answers: list[Answer] = []
        self.unanswered: Sequence[str] = ()

    @property
    def is_late(self) -> bool:
        """Return whether the rest is left to another request."""
        return self._deadline_s is not None and self.source.clock.elapsed_s() >= self._deadline_s

    def note(self) -> None:
        """Log who did that to which tasks, each task once."""
        new = self.answers[self._noted_count :]
        self._noted_count = len(self.answers)
        if concerned := [answer.task_id for answer in new if answer.done]:
            audit(self._request, self.way.participle, concerned)

    def end(self) -> None:
        """Log the rest. What was being written when the action was broken off may be done."""
        self.note()
        if self.unanswered:
            audit(self._request, f"perhaps {self.way.participle}, without an answer", self.unanswered)


async def act(
    request: Request,
    way: Way,
    task_ids: Sequence[str],
    *,
    fits: Callable[[TaskRow], bool] = lambda _row: True,
    patience_s: float | None = None,
) -> list[Answer]:
    """Act on these tasks, in their order, and write audit lines, also if this is broken off.

    What does not fit any more is left alone. There are fewer answers than ids if `patience_s` was over before the end,
    or if the file could not be written any more.
    """
    deeds = _Deeds(request, way, fits, patience_s)
    source = deeds.source
    manager = None if source.running() is None else source.manager
    try:
        if manager is not None and (len(task_ids) == 1 or source.place is None):
            await _ask(deeds, manager, task_ids)
        else:
            await source.act(lambda store: _write(deeds, store, task_ids))
    except StoreError:
        if not deeds.answers:
            raise
    finally:
        deeds.end()
    return deeds.answers


async def _ask(deeds: _Deeds, manager: TaskManager, task_ids: Sequence[str]) -> None:
    for task_id in task_ids:
        row = await deeds.source.read(fetch, task_id)
        if row is not None and not deeds.fits(row):
            deeds.answers.append(_changed(task_id))
        else:
            deeds.unanswered = [task_id]
            deeds.answers.append(await _asked(deeds, manager, task_id))
            deeds.unanswered = ()
        if deeds.is_late:
            break


async def _asked(deeds: _Deeds, manager: TaskManager, task_id: str) -> Answer:
    try:
        if await deeds.way.ask(manager, task_id):
            return Answer(task_id, True, deeds.way.participle)
    except UnknownTask:
        return gone(task_id)
    row = await deeds.source.read(fetch, task_id)
    return gone(task_id) if row is None else _changed(task_id, deeds.way.why_not(row))


async def _write(deeds: _Deeds, store: Store, task_ids: Sequence[str]) -> None:
    for start in range(0, len(task_ids), BATCH):
        batch = task_ids[start : start + BATCH]
        rows = await store.fetch_ids(batch)
        fitting = [rows[each] for each in batch if each in rows and deeds.fits(rows[each])]
        deeds.unanswered = [row.task_id for row in fitting]
        written = await deeds.way.write(deeds.source, store, fitting) if fitting else []
        deeds.unanswered = ()
        found = {answer.task_id: answer for answer in written}
        for task_id in batch:
            deeds.answers.append(found.get(task_id) or (_changed(task_id) if task_id in rows else gone(task_id)))
        deeds.note()  # now: a process that is killed says nothing any more
        if deeds.is_late:
            break
        await asyncio.sleep(0)


def _changed(task_id: str, reason: str | None = None) -> Answer:
    """Return the answer for a task to which this cannot be done now."""
    return Answer(task_id, False, "refused", reason or CHANGED)


# One task.


async def retry_one(request: Request) -> Response:
    """Retry the task of the address. A form may ask for more: `force`, `from_start`."""
    fields = await form_of(request)
    way = retry_way(force=fields.get("force") == "1", from_start=fields.get("from_start") == "1")
    return await _one(request, way, "waits, and runs as soon as an instance has room")


async def cancel_one(request: Request) -> Response:
    """Cancel the task of the address."""
    return await _one(request, CANCEL, "is cancelled, or was asked to stop")


async def _one(request: Request, way: Way, outcome: str) -> Response:
    task_id = request.path_params["task_id"]
    (answer,) = await act(request, way, [task_id])
    if answer.outcome == "gone":
        raise unknown_task(task_id)
    said = f"Task {task_id} {outcome}." if answer.done else f"Task {task_id} was left alone: {answer.remark}."
    return done(request, await _way_back(request, task_id), said)


async def _way_back(request: Request, task_id: str) -> str:
    """Return the address of the list where the button was, or else that of the task."""
    fields = await form_of(request)
    if "list" not in fields:
        return f"tasks/{segment(task_id)}"
    query = urlencode(parse_qsl(fields["list"]))
    return f"tasks?{query}" if query else "tasks"
