"""The page of queues: what waits and runs in each, for how long, and how fast it goes; pause and resume."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from taskmanager.console.acts import patiently
from taskmanager.console.overview import Overview, QueueView
from taskmanager.model.clock import HOUR_US, MINUTE_US
from taskmanager.model.config import MAX_QUEUE_NAME_LENGTH
from taskmanager.rules.figures import Span, percentile_us
from taskmanager.store.sql.figures import by_queue
from taskmanager.store.sql.queries import paused_since
from taskmanager.store.statistics import Figures
from taskmanager.web.forms import audit, form_of
from taskmanager.web.render import View, done, refuse
from taskmanager.web.site import site_of

MAX_ROWS: Final = 100
"""As many as a page has room for; a row is a kilobyte."""
MAX_PACED: Final = 500
MANY: Final = 8
"""With more queues than that there is a field to search for a name."""


class Row(NamedTuple):
    """One queue. `figures` are those of the last hour, None if nothing has happened in it."""

    view: QueueView
    paused_since: int | None
    figures: Figures | None

    def waited_us(self, share: float) -> int | None:
        """Return how long `share` of the tasks waited at most that have started in the last hour."""
        return None if self.figures is None else percentile_us(self.figures.waited, share)


async def show(request: Request) -> View:
    """Show the fullest queues, by name: rows that change places with every task could not be pressed."""
    source, wanted = site_of(request).source, request.query_params.get("name", "")
    overview = await source.overview()
    until = Span.MINUTE.begin_of(overview.taken_at) + MINUTE_US
    paced = await source.look(by_queue, Span.MINUTE, until - HOUR_US, until, MAX_PACED)
    rows = rows_of(overview, await source.look(paused_since), dict(paced), wanted)
    return View(
        "queues.html",
        {
            "rows": sorted(rows[:MAX_ROWS], key=lambda row: row.view.queue_name),
            "left_out_count": max(0, len(rows) - MAX_ROWS),
            "queue_count": len(overview.queues),
            "unlisted_count": max((each.report.unlisted_queue_count for each in overview.instances), default=0),
            "has_search": bool(wanted) or len(overview.queues) > MANY,
            "wanted": wanted,
        },
    )


def rows_of(
    overview: Overview, paused: Mapping[str, int], figures: Mapping[str, Figures], wanted: str
) -> Sequence[Row]:
    """Return the queues whose name has the wanted text in it, whether in capitals or not; the fullest first."""
    text = wanted.casefold()
    return [
        Row(each, paused.get(each.queue_name), figures.get(each.queue_name))
        for each in overview.queues
        if text in each.queue_name.casefold()
    ]


async def pause(request: Request) -> Response:
    """Start nothing more from a queue."""
    return await _set(request, is_paused=True)


async def resume(request: Request) -> Response:
    """Start tasks from a queue again."""
    return await _set(request, is_paused=False)


async def _set(request: Request, *, is_paused: bool) -> Response:
    source, name = site_of(request).source, (await form_of(request)).get("queue", "")
    if not 0 < len(name) <= MAX_QUEUE_NAME_LENGTH:
        return refuse(request, 400, "the form names no queue", "go back, and press the button again")
    now = source.clock.now_us()
    await source.act(lambda store: patiently(lambda: store.set_paused(name, is_paused, now)))
    word = "paused" if is_paused else "resumed"
    audit(request, f"{word} queue", [name])
    return done(request, "queues", f"Queue {name} is {word}.")
