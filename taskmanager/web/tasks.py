"""The page of tasks: a filter, the tasks that fit it, newest first, and the way to older ones.

The filter is the address, so it can be sent to a colleague. A list that a person is at keeps its rows: the browser
names them in `X-Rows`, and gets these rows as they are now. What is new meanwhile is counted, and pushes none away.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import RedirectResponse

from taskmanager.console.acts import RETRYABLE
from taskmanager.console.figures import MAX_CHARS
from taskmanager.model.clock import LAST_US, span_us
from taskmanager.model.record import TaskRow, UnreadableRow
from taskmanager.model.states import LIVE, TERMINAL, TaskStatus
from taskmanager.model.wording import why
from taskmanager.store.place import Place
from taskmanager.store.sql.queries import SUMMARY, fetch_ids
from taskmanager.store.sql.scanning import Counted, Scanned, count_up_to, scan
from taskmanager.store.sql.search import Search, error_messages, is_pattern, memory_only
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.windows import Cursor
from taskmanager.store.sql.workflow_views import workflows_of
from taskmanager.store.statistics import OwnWorkflow
from taskmanager.web.bulk import VERBS
from taskmanager.web.filters import Filter, read_filter, span_told, told
from taskmanager.web.render import View, up_of
from taskmanager.web.site import site_of

PAGE: Final = 50
LOOK_S: Final = 0.05
COUNT_S: Final = 0.03
"""Together they leave 20 ms of the 100 for everything else."""
ROWS_HEADER: Final = "x-rows"
MAX_ID_CHARS: Final = 1_000
SINCE: Final = (("15m", "last 15 minutes"), ("1h", "last hour"), ("1d", "last day"), ("7d", "last 7 days"))
_PART_OF_ID: Final = re.compile(r"[0-9a-fA-F-]{6,36}")


class Line(NamedTuple):
    """One row of the list."""

    row: TaskRow
    fault: str
    workflow: OwnWorkflow | None

    @property
    def moment(self) -> int | None:
        """Return when the task has ended or started, or is due; None if it waits for an event."""
        row = self.row
        if self.is_ended:
            return row.completed_at or row.failed_at or row.updated_at
        found = row.started_at or row.updated_at if row.status == TaskStatus.RUNNING else row.enqueued_at
        return None if found >= LAST_US else found

    @property
    def ran_us(self) -> int | None:
        """Return how long the last attempt of an ended task took, or None if it has not ended or never started."""
        end = self.row.completed_at or self.row.failed_at
        if not self.is_ended or end is None or self.row.started_at is None:
            return None
        return max(0, end - self.row.started_at)

    @property
    def is_ended(self) -> bool:
        """Return whether nothing moves the task any more, but a retry."""
        return self.row.status in TERMINAL

    @property
    def is_running(self) -> bool:
        """Return whether it runs."""
        return self.row.status == TaskStatus.RUNNING

    @property
    def can_retry(self) -> bool:
        """Return whether a retry is offered beside it."""
        return self.row.status in RETRYABLE

    @property
    def can_cancel(self) -> bool:
        """Return whether it can be cancelled."""
        return self.row.status in LIVE


class Listing(NamedTuple):
    """What one look at the tasks has found.

    Older tasks are behind `reached`. `news_count` new ones fit, and are not among the lines. `total` is None if nobody
    has counted. `unseen` says where tasks run that are not in the file, and how many.
    """

    lines: tuple[Line, ...]
    reached: Cursor | None
    is_full: bool
    total: Counted | None
    news_count: int
    unseen: tuple[tuple[str, int], ...]

    @property
    def is_cut(self) -> bool:
        """Return whether the time has ended the search before the page was full."""
        return self.reached is not None and not self.is_full


async def show(request: Request) -> View | RedirectResponse:
    """Show the tasks of the filter that the address is. What a form has left empty is taken out of the address."""
    site, pairs = site_of(request), request.query_params.multi_items()
    asked = read_filter(pairs, site.source.clock.now_us())
    if not asked.faults and any(not value for _, value in pairs):
        return RedirectResponse(f"{up_of(request)}tasks{query_part(asked.query(before=asked.before))}", 303)
    listing = None
    if not asked.faults:
        search = asked.search(looks_in_arguments=site.looks_in_arguments)
        listing = await site.source.look(look, site.source.place, search, asked.before, held_rows(request))
    values: dict[str, Any] = {
        "asked": asked, "listing": listing, "statuses": tuple(TaskStatus), "sinces": _sinces(asked),
        "told": _told(asked, listing), "filter_part": query_part(asked.query()), "older": _older(asked, listing),
        "verbs": [verb for verb in VERBS if verb.is_for(asked)], "wider": _wider(asked),
        "looks_in_arguments": site.looks_in_arguments, "is_in_memory": site.source.place is None,
        "part": asked.text.strip() if _PART_OF_ID.fullmatch(asked.text.strip()) else "",
    }  # fmt: skip
    if listing is None:
        return View("tasks.html", values, 400)
    if listing.is_cut:
        values["is_live"] = False  # each look would end at another place, and cost its whole time
    return View("tasks.html", values)


def held_rows(request: Request) -> tuple[str, ...]:
    """Return the ids of the rows that the browser wants to keep, in their order."""
    text = request.headers.get(ROWS_HEADER, "")
    return tuple(unquote(each) for each in text.split(",")[:PAGE] if 0 < len(each) <= MAX_ID_CHARS)


def look(
    connection: Session, place: Place | None, search: Search, after: Cursor | None, held: Sequence[str]
) -> Listing:
    """Return a page of the tasks that fit, or of those that are `held`."""
    scanned = scan(connection, search, PAGE, budget_s=LOOK_S, after=after)
    rows, reached, news_count = scanned.rows, scanned.reached, 0
    if held and (kept := _kept(connection, held)):
        news_count = 0 if after is not None else sum(_place(row) > _place(kept[0]) for row in rows)
        has_more = reached is not None or any(_place(row) < _place(kept[-1]) for row in rows)
        rows, reached = kept, _place(kept[-1]) if has_more else None
    total = _total(connection, search, scanned, after)
    messages = error_messages(connection, [row.task_id for row in rows], MAX_CHARS)
    workflows = workflows_of(connection, [row.task_id for row in rows if row.is_workflow_task])
    lines = tuple(Line(row, _fault(row, messages), workflows.get(row.task_id)) for row in rows)
    is_full = len(rows) >= PAGE or bool(held)
    return Listing(lines, reached, is_full, total, news_count, _unseen(connection, place, search))


def _total(connection: Session, search: Search, scanned: Scanned, after: Cursor | None) -> Counted | None:
    """Return how many tasks fit. What the page shows may be all of them; and a long search is not begun again."""
    if after is None and len(scanned.rows) < PAGE:
        return Counted(len(scanned.rows), scanned.reached is not None)
    if search.text is not None or (len(scanned.rows) < PAGE and scanned.reached is not None):
        return None
    return count_up_to(connection, search, budget_s=COUNT_S)


def _kept(connection: Session, held: Sequence[str]) -> list[TaskRow]:
    found = fetch_ids(connection, held, SUMMARY)
    return [found[each] for each in held if each in found]


def _place(row: TaskRow) -> Cursor:
    return row.sent_at, row.task_id


def _fault(row: TaskRow, messages: Mapping[str, str]) -> str:
    if isinstance(row, UnreadableRow):
        return row.fault
    if row.error_code is None:
        return ""
    return why(row.error_code, messages.get(row.task_id), max_chars=MAX_CHARS, is_short=True)


def _unseen(connection: Session, place: Place | None, search: Search) -> tuple[tuple[str, int], ...]:
    """Return how many tasks run in the memory of which living process, if the search is for what runs."""
    is_for_running = search.statuses in ((), (TaskStatus.RUNNING,)) and search._replace(statuses=()).is_everything
    if place is None or not is_for_running:
        return ()
    living = [each for each in memory_only(connection) if not place.is_dead(each.instance_id)]
    return tuple(Counter(f"process {each.pid} on {each.hostname}" for each in living).items())


def _told(asked: Filter, listing: Listing | None) -> str:
    """Return how many tasks fit, in words; without a number if nobody has counted."""
    if listing is None or listing.total is None:
        return told(asked)
    count, is_capped = listing.total.count, listing.total.is_capped
    return f"{count:,}{'+' if is_capped else ''} {told(asked, is_one=count == 1 and not is_capped)}"


def query_part(query: str) -> str:
    """Return a query as it stands in an address."""
    return f"?{query}" if query else ""


def _older(asked: Filter, listing: Listing | None) -> str:
    if listing is None or listing.reached is None:
        return ""
    return query_part(asked.query(before=listing.reached))


def _wider(asked: Filter) -> str:
    """Return the filter for functions whose names contain the given one, which is a whole name; or an empty text."""
    if not asked.task or is_pattern(asked.task):
        return ""
    return query_part(asked._replace(task=f"*{asked.task}*").query())


def _sinces(asked: Filter) -> list[tuple[str, str]]:
    """Return what the choice of a time offers, the given one included."""
    if not asked.since or asked.since in dict(SINCE):
        return list(SINCE)
    return [(asked.since, span_told(asked.since) if span_us(asked.since) else f"since {asked.since}"), *SINCE]
