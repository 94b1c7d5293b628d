"""The page of schedules: when each fires in the next day, what came of the last run; pause, resume and run one now."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from taskmanager.console.acts import patiently
from taskmanager.console.outlook import living
from taskmanager.console.schedules import MOST_FIRES, as_known, fires, state
from taskmanager.duties.schedule import run_by_hand, set_paused
from taskmanager.model.clock import DAY_US, HOUR_US, MINUTE_US
from taskmanager.model.ids import new_task_id
from taskmanager.model.schedule import ScheduleRow
from taskmanager.store.place import Place
from taskmanager.store.sql import schedules as stored
from taskmanager.store.sql.queries import instances
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.task_views import statuses_of
from taskmanager.web.forms import audit, form_of
from taskmanager.web.render import View, done, segment
from taskmanager.web.site import site_of
from taskmanager.web.timeline import Line, hours

MAX_SHOWN: Final = 300
MAX_DRAWN: Final = 100
"""Schedules whose fires stand on the line of time. The others are in the table."""
STANDS_US: Final = 10 * MINUTE_US
"""How long the line of time stands still, so that a page without news stays the same."""


class Shown(NamedTuple):
    """One schedule. `marks` are places in per mille of the line; `is_band`: it fires more often than can be told."""

    row: ScheduleRow
    state: str
    last_status: str | None
    marks: tuple[int, ...]
    is_band: bool
    is_drawn: bool


class Book(NamedTuple):
    """What the page shows."""

    schedules: Sequence[Shown]
    has_more: bool
    is_running: bool
    line: Line


async def show(request: Request) -> View:
    """Show every schedule, the next one first."""
    source = site_of(request).source
    since = source.clock.now_us() // STANDS_US * STANDS_US
    book = await source.look(_book, source.place, Line(since, since + DAY_US))
    return View("schedules.html", {"book": book, "ticks": hours(book.line, 3 * HOUR_US), "day": "the next 24 hours"})


def _book(connection: Session, place: Place | None, line: Line) -> Book:
    rows = stored.fetch(connection, limit=MAX_SHOWN + 1)
    alive = {each.instance_id for each in living(instances(connection), place)}
    rows = as_known(rows, alive)
    statuses = statuses_of(connection, [row.last_task_id for row in rows if row.last_task_id is not None])
    shown = [
        _shown(row, bool(alive), statuses.get(row.last_task_id or ""), line if place < MAX_DRAWN else None)
        for place, row in enumerate(rows[:MAX_SHOWN])
    ]
    return Book(shown, len(rows) > MAX_SHOWN, bool(alive), line)


def _shown(row: ScheduleRow, is_running: bool, last_status: str | None, line: Line | None) -> Shown:
    word = state(row, is_running)
    found = () if line is None or word else fires(row, line.until)
    marks = () if line is None else tuple(dict.fromkeys(round(10 * line.x(at)) for at in found))
    is_band = len(found) >= MOST_FIRES and len(set(marks)) > 1
    return Shown(row, word, last_status, marks, is_band, line is not None)


async def pause(request: Request) -> Response:
    """Let a schedule fire no more."""
    return await _set(request, is_paused=True)


async def resume(request: Request) -> Response:
    """Let a schedule fire again, from now on."""
    return await _set(request, is_paused=False)


async def _set(request: Request, *, is_paused: bool) -> Response:
    source, name = site_of(request).source, (await form_of(request)).get("schedule", "")
    now = source.clock.now_us()
    await source.act(lambda store: patiently(lambda: set_paused(store, name, is_paused, now)))
    audit(request, "paused schedule" if is_paused else "resumed schedule", [name])
    return done(request, "schedules", f"Schedule {name} {'is paused' if is_paused else 'fires again'}.")


async def run(request: Request) -> Response:
    """Run a schedule once more, now, and lead to the task of that run."""
    source, name = site_of(request).source, (await form_of(request)).get("schedule", "")
    now, task_id = source.clock.now_us(), new_task_id()
    await source.act(lambda store: patiently(lambda: run_by_hand(store, name, task_id, now)))
    audit(request, "ran schedule", [name, task_id])
    return done(request, f"tasks/{segment(task_id)}", f"Schedule {name} runs once more. This is its task.")
