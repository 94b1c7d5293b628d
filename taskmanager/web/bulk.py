"""Retries or cancels all tasks of a filter: first the count and a question, then page by page, until somebody stops it.

No process remembers anything of it. The place where it goes on, the newest task that it reaches, and what was done so
far come with each form, so any worker does any page, and a restart loses nothing. Whoever leaves the page stops it.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from taskmanager.console.acts import RETRYABLE, Answer
from taskmanager.console.figures import MAX_CHARS, cut
from taskmanager.model.record import TaskRow
from taskmanager.model.states import LIVE, TaskStatus
from taskmanager.store.sql.scanning import Counted, count_up_to, newest_matching, page_ids
from taskmanager.store.sql.search import Search
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.windows import Cursor
from taskmanager.web.acting import CANCEL, Way, act, retry_way
from taskmanager.web.filters import Filter, cursor_of, cursor_text, read_filter, told
from taskmanager.web.forms import form_of
from taskmanager.web.render import View, refuse
from taskmanager.web.site import Site, site_of, viewer_of

PAGE: Final = 500
PAGE_S: Final = 1.0
"""How much one request does at most: a person who presses Stop must not wait."""
COUNT_S: Final = 0.04
MAX_COUNT: Final = 10_000_000
_NUMBER: Final = re.compile(r"[0-9]{1,12}")


class Verb(NamedTuple):
    """What is done to all tasks of a filter. A filter without a status means the `default` ones."""

    name: str
    way: Way
    possible: frozenset[TaskStatus]
    default: tuple[TaskStatus, ...]
    outcome: str

    def statuses(self, asked: Filter) -> tuple[TaskStatus, ...]:
        """Return the statuses of the filter that this can be done to."""
        return tuple(each for each in asked.statuses or self.default if each in self.possible)

    def is_for(self, asked: Filter) -> bool:
        """Return whether this can be done to tasks of the filter. It is never done to all tasks of the file at once."""
        return not asked.faults and not asked.is_everything and bool(self.statuses(asked))


RETRY: Final = Verb(
    "retry", retry_way(), RETRYABLE, (TaskStatus.FAILED,),
    "will run as soon as an instance has room",
)  # fmt: skip
CANCEL_ALL: Final = Verb(
    "cancel", CANCEL, LIVE, tuple(each for each in TaskStatus if each in LIVE), "are cancelled, or were asked to stop"
)
VERBS: Final = (RETRY, CANCEL_ALL)


class Course(NamedTuple):
    """How far an action has come. It ends at `until`, and goes on behind `after`. `total` was counted before it."""

    until: Cursor
    after: Cursor | None = None
    total: int = 0
    is_capped: bool = False
    done: int = 0
    refused: int = 0
    why: str = ""

    @property
    def seen(self) -> int:
        """Return how many tasks it has come to."""
        return self.done + self.refused

    def fields(self) -> Mapping[str, str]:
        """Return what the form carries, so that the next page goes on from there."""
        after = "" if self.after is None else cursor_text(self.after)
        numbers = {name: str(int(getattr(self, name))) for name in ("total", "is_capped", "done", "refused")}
        return {"until": cursor_text(self.until), "after": after, "why": self.why, **numbers}

    def further(self, answers: list[Answer], after: Cursor | None) -> "Course":
        """Return the course with a page more."""
        refused = [answer for answer in answers if not answer.done]
        why = self.why or (refused[0].remark or "" if refused else "")
        return self._replace(
            after=after, done=self.done + len(answers) - len(refused), refused=self.refused + len(refused), why=why
        )


def course_of(fields: Mapping[str, str]) -> Course | None:
    """Return the course that a form carries, or None if it carries none."""
    until, after = cursor_of(fields.get("until", "")), cursor_of(fields.get("after", ""))
    numbers = [
        int(text) if _NUMBER.fullmatch(text := fields.get(name, "")) else 0 for name in ("total", "done", "refused")
    ]
    if until is None or (after is None and fields.get("after")):
        return None
    total, done, refused = numbers
    return Course(
        until, after, total, fields.get("is_capped") == "1", done, refused, cut(fields.get("why", ""), MAX_CHARS)
    )


async def ask_retry(request: Request) -> View | Response:
    """Say how many tasks would be retried, and ask."""
    return await _ask(request, RETRY)


async def ask_cancel(request: Request) -> View | Response:
    """Say how many tasks would be cancelled, and ask."""
    return await _ask(request, CANCEL_ALL)


async def retry(request: Request) -> View | Response:
    """Retry a page of tasks."""
    return await _go(request, RETRY)


async def cancel(request: Request) -> View | Response:
    """Cancel a page of tasks."""
    return await _go(request, CANCEL_ALL)


async def _ask(request: Request, verb: Verb) -> View | Response:
    site = site_of(request)
    asked = read_filter(request.query_params.multi_items(), site.source.clock.now_us())
    if (refusal := _refusal(request, verb, asked)) is not None:
        return refusal
    until, counted = await site.source.read(_count, _search(site, verb, asked))
    course = None if until is None else Course(until, None, counted.count, counted.is_capped)
    return _view(verb, asked, course, is_begun=False)


async def _go(request: Request, verb: Verb) -> View | Response:
    site = site_of(request)
    asked = read_filter(request.query_params.multi_items(), site.source.clock.now_us())
    if (refusal := _refusal(request, verb, asked)) is not None:
        return refusal
    course = course_of(await form_of(request))
    if course is None:
        return refuse(request, 400, "this form is not complete, so nothing was done", "go back, and begin again")
    found = await site.source.read(page_ids, _search(site, verb, asked), course.until, course.after, PAGE)
    statuses, code = verb.statuses(asked), asked.error or None

    def fits(row: TaskRow) -> bool:
        return row.status in statuses and code in (None, row.error_code)

    answers = await act(request, verb.way, found.task_ids, fits=fits, patience_s=PAGE_S) if found.places else []
    is_whole = len(answers) == len(found.places)
    course = course.further(answers, found.reached if is_whole else found.places[len(answers) - 1])
    return _view(verb, asked, course, is_begun=True)


def _refusal(request: Request, verb: Verb, asked: Filter) -> Response | None:
    if not viewer_of(request).may_act or site_of(request).read_only:
        return refuse(request, 403, "you may look at this page, but not act on it", "ask somebody who may act")
    if asked.faults:
        return refuse(request, 400, " ".join(asked.faults), "go back, and change the filter")
    if asked.is_everything:
        cure = "go back, and say which tasks are meant: by a status, a function, a queue, a tag, an error or a time"
        return refuse(request, 400, f"{verb.name} is not for all tasks of the file at once", cure)
    if not verb.statuses(asked):
        names = ", ".join(asked.statuses)
        return refuse(request, 400, f"{verb.name} is not for tasks that are {names}", "go back, and change the filter")
    return None


def _search(site: Site, verb: Verb, asked: Filter) -> Search:
    meant = asked._replace(statuses=verb.statuses(asked))
    return meant.search(looks_in_arguments=site.looks_in_arguments)


def _count(connection: Session, search: Search) -> tuple[Cursor | None, Counted]:
    until = newest_matching(connection, search, budget_s=COUNT_S)
    return until, count_up_to(connection, search, MAX_COUNT, COUNT_S)


def _view(verb: Verb, asked: Filter, course: Course | None, *, is_begun: bool) -> View:
    statuses = verb.statuses(asked)
    is_one = course is not None and course.total == 1 and not course.is_capped
    values: dict[str, Any] = {
        "verb": verb,
        "course": course,
        "is_begun": is_begun,
        "is_over": is_begun and course is not None and course.after is None,
        "told": told(asked, statuses, is_one=is_one),
        "lasting": asked.query(is_lasting=True),
        "list": asked.query(),
        "section": "tasks",
        "is_live": False,
    }
    return View("bulk.html", values)
