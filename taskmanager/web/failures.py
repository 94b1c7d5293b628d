"""The page of failures: what has failed, by function and error, with the retry of a whole group."""

from typing import Final, NamedTuple

from starlette.requests import Request

from taskmanager.console.figures import MAX_CHARS, cut
from taskmanager.model.states import TaskStatus
from taskmanager.store.sql.failures import FailureGroup, failure_groups
from taskmanager.store.sql.search import exactly
from taskmanager.web.filters import Filter, read_filter
from taskmanager.web.render import View
from taskmanager.web.site import site_of

LOOK_S: Final = 0.05
MAX_KINDS: Final = 100
SINCE: Final = (("", "any time"), ("1h", "last hour"), ("1d", "last day"), ("7d", "last 7 days"))


class Kind(NamedTuple):
    """One group, the filter of its tasks as a query, and the newest message in one line."""

    group: FailureGroup
    query: str
    message: str


async def show(request: Request) -> View:
    """Show the groups whose last failure is the newest first."""
    source = site_of(request).source
    asked = read_filter(request.query_params.multi_items(), source.clock.now_us())
    if asked.faults:
        return View("failures.html", {"asked": asked, "found": None, "kinds": [], "sinces": SINCE}, 400)
    found = await source.look(failure_groups, LOOK_S, asked.since_us, MAX_KINDS)
    kinds = [_kind(group, asked.since) for group in found.groups]
    values = {
        "asked": asked,
        "found": found,
        "kinds": kinds,
        "sinces": SINCE,
        "total": sum(group.count for group in found.groups),
        "is_capped": found.reached is not None or found.group_count > len(kinds),
    }
    if found.reached is not None:
        values["is_live"] = False  # each look would end at another place
    return View("failures.html", values)


def _kind(group: FailureGroup, since: str) -> Kind:
    of_group = Filter((TaskStatus.FAILED,), task=exactly(group.task_name), error=group.error_code or "", since=since)
    return Kind(group, of_group.query(), cut(" ".join((group.message or "").split()), MAX_CHARS))
