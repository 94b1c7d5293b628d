"""The first page: what needs somebody, what runs and waits, and how the last hour and the last day went."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from starlette.requests import Request

from taskmanager.console.overview import Overview
from taskmanager.model.states import TaskStatus
from taskmanager.store.sql.figures import series
from taskmanager.store.sql.scanning import COUNT_CAP
from taskmanager.store.sql.session import Session
from taskmanager.store.statistics import TaskFailures, TaskPace
from taskmanager.web.markup import capitalize_first
from taskmanager.web.past import HOUR, STRETCHES, Past, Stretch, past_of
from taskmanager.web.render import View
from taskmanager.web.site import site_of

PAST_S: Final = 5.0
"""How long the charts are good for: with 200 names they take 15 ms, and show minutes."""
MAX_RUNNING: Final = 12
MAX_ROWS: Final = 8
"""Rows of every other list. The pages behind them have the rest."""


class Tile(NamedTuple):
    """How many tasks have a status. There are more than `count` where `is_capped`."""

    status: TaskStatus
    number: int
    is_capped: bool


class Trouble(NamedTuple):
    """One task of the last hour that failed often or took long."""

    task_name: str
    failures: TaskFailures | None
    pace: TaskPace | None


async def show(request: Request) -> View:
    """Show everything on one page, what needs somebody first."""
    source = site_of(request).source
    stretch = STRETCHES.get(request.query_params.get("span", ""), HOUR)
    overview = await source.overview()

    async def look_back() -> Past:
        return await source.read(past_in, stretch, source.clock.now_us())

    past = await source.share(("past", stretch.name), look_back, for_s=PAST_S)
    return View("overview.html", {**values_of(overview), "past": past, "stretches": STRETCHES.values()})


def past_in(connection: Session, stretch: Stretch, now_us: int) -> Past:
    """Return what the file says of a stretch."""
    starts = stretch.starts(now_us)
    return past_of(stretch, now_us, series(connection, stretch.span, starts[0], starts[-1] + stretch.span.us))


def values_of(overview: Overview) -> Mapping[str, object]:
    """Return what the template writes."""
    return {
        "overview": overview,
        "sentences": sentences_of(overview),
        "tiles": tiles_of(overview),
        "running": overview.running[:MAX_RUNNING],
        "queues": sorted(overview.queues[:MAX_ROWS], key=lambda each: each.queue_name),
        "max_rows": MAX_ROWS,
        "troubles": troubles_of(overview)[:MAX_ROWS],
    }


def sentences_of(overview: Overview) -> list[str]:
    """Return the texts of the problems as sentences. The name of an instance at the beginning stays as it is."""
    names = tuple(f"{each.name} " for each in overview.instances)
    return [each.text if each.text.startswith(names) else capitalize_first(each.text) for each in overview.problems]


def tiles_of(overview: Overview) -> tuple[Tile, ...]:
    """Return the counts by status, cut where the page of tasks stops counting too."""
    return tuple(
        Tile(each, min(count, COUNT_CAP), count > COUNT_CAP or each in overview.capped)
        for each, count in ((status, overview.counts[status]) for status in TaskStatus)
    )


def troubles_of(overview: Overview) -> list[Trouble]:
    """Return the tasks that failed most, then those that took longest, each name once."""
    failures = {each.task_name: each for each in overview.most_failing}
    paces = {each.task_name: each for each in overview.slowest}
    return [Trouble(name, failures.get(name), paces.get(name)) for name in dict.fromkeys([*failures, *paces])]
