"""Finds the tasks that fit a search, within a budget of time, and says how far it got.

The dashboard uses it for a list, for the count before an action on many tasks, for the ids of those, and for an export.
It reads no column that may be large. Only a search for a text reads the beginnings of the arguments.
"""

import json
from typing import Final, NamedTuple

from taskmanager.model.record import TaskRow
from taskmanager.model.states import TaskStatus
from taskmanager.store.sql.queries import SUMMARY, task_rows
from taskmanager.store.sql.rows import unpacked
from taskmanager.store.sql.search import Search, conditions_of
from taskmanager.store.sql.search_text import TextSearch
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.windows import (
    FIRST_SIZE,
    GROWTH,
    NEWEST,
    NEWEST_FIRST,
    OLDEST,
    OLDEST_FIRST,
    Budget,
    Cursor,
    Index,
    Order,
    Window,
    by_error,
    by_status,
    by_time,
    windows,
)

BUDGET_S: Final = 0.08
TEXT_ROWS: Final = 20_000
"""Tasks in which one look searches for a text."""
COUNT_CAP: Final = 10_000
FEW: Final = 2_000
"""Tasks with the same error code that are read and sorted at once."""
_WITH_ERROR: Final = (TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.EXPIRED, TaskStatus.INTERRUPTED)
"""The statuses of tasks that may have an error code."""

_PLACE: Final = "t.rowid AS r, t.sent_at AS s, t.id AS i"


class Scanned(NamedTuple):
    """What a look has found. Go on from `reached`, where it stopped; it is None if there is nothing more."""

    rows: list[TaskRow]
    reached: Cursor | None


class Counted(NamedTuple):
    """How many tasks fit. If there may be more, the count `is_capped`.

    `reached` is how far the count got if the time, or the limit of a text, ended it: all that were counted are newer.
    It is None if the cap ended the count, or if it came to the end.
    """

    count: int  # type: ignore[assignment]  # the method of tuple is not missed
    is_capped: bool
    reached: Cursor | None = None


class Ids(NamedTuple):
    """Places of tasks, oldest first. Go on from `reached`; it is None if there is nothing more."""

    places: list[Cursor]
    reached: Cursor | None

    @property
    def task_ids(self) -> list[str]:
        """Return the ids alone."""
        return [task_id for _, task_id in self.places]


class _Hit(NamedTuple):
    rowid: int | str
    sent_at: int
    task_id: str

    @property
    def place(self) -> Cursor:
        return self.sent_at, self.task_id


def scan(
    connection: Session,
    search: Search,
    limit: int,
    *,
    budget_s: float = BUDGET_S,
    after: Cursor | None = None,
) -> Scanned:
    """Return at most `limit` tasks, newest first by (sent_at, id), behind the place `after`, without their `PAYLOAD`.

    It ends when the time is up. With a text it also ends after `TEXT_ROWS` tasks that fit the rest of the search.
    However little time there is, it gets further than `after`.
    """
    budget = Budget(budget_s)
    with connection.snapshot():
        hits, reached = _look(connection, search, limit + 1, NEWEST_FIRST, after or NEWEST, budget)
        rows = _summaries(connection, hits[:limit], budget)
    if len(rows) < len(hits):
        reached = hits[len(rows) - 1].place
    return Scanned(rows, reached)


def newest_matching(connection: Session, search: Search, *, budget_s: float = BUDGET_S) -> Cursor | None:
    """Return the place of the newest task that fits, or how far the time sufficed to look; None if none fits.

    So no newer task fits, but those that are sent from now on.
    """
    found = scan(connection, search, 1, budget_s=budget_s)
    return (found.rows[0].sent_at, found.rows[0].task_id) if found.rows else found.reached


def page_ids(
    connection: Session,
    search: Search,
    until: Cursor,
    after: Cursor | None,
    limit: int,
    *,
    budget_s: float = BUDGET_S,
) -> Ids:
    """Return the places of at most `limit` tasks that fit, oldest first, behind `after` and up to `until`.

    If the time was up there may be fewer, even none. A text is looked for in as many tasks as the time allows.
    """
    with connection.snapshot():
        hits, reached = _look(connection, search, limit, OLDEST_FIRST, after or OLDEST, Budget(budget_s), until)
    return Ids([hit.place for hit in hits], reached)


def count_up_to(connection: Session, search: Search, cap: int = COUNT_CAP, budget_s: float = BUDGET_S) -> Counted:
    """Count the tasks that fit, newest first, until there are `cap` of them, or the time is up."""
    with connection.snapshot():
        if search.text is not None:
            hits, reached = _look(connection, search, cap + 1, NEWEST_FIRST, NEWEST, Budget(budget_s))
            if len(hits) > cap:
                return Counted(cap, True)
            return Counted(len(hits), reached is not None, reached)
        conditions, given = conditions_of(search)
        count, reached = 0, None
        for window in windows(connection, _index(connection, search), NEWEST_FIRST, NEWEST, Budget(budget_s)):
            where = " AND ".join((window.condition, *conditions))
            some = f"SELECT 1 FROM {window.table} WHERE {where} LIMIT :left"
            (found,) = connection.execute(
                f"SELECT count(*) FROM ({some})", {**window.given, **given, "left": cap + 1 - count}
            ).fetchone()
            count, reached = count + found, window.reached
            if count > cap:
                return Counted(cap, True)
    return Counted(count, reached is not None, reached)


def _index(connection: Session, search: Search) -> Index:
    """Return the index with the fewest rows among which the search finds all that fit."""
    if search.error_code is not None:
        some = (
            "SELECT 1 FROM taskmanager_tasks INDEXED BY taskmanager_tasks_error_code"
            f" WHERE error_code = CAST(:error_code AS TEXT) LIMIT {FEW + 1}"
        )
        _, given = conditions_of(Search(error_code=search.error_code))
        (count,) = connection.execute(f"SELECT count(*) FROM ({some})", given).fetchone()
        if count <= FEW:
            return by_error()
    if search.statuses and TaskStatus.COMPLETED not in search.statuses:
        return by_status(sorted(set(search.statuses)))
    return by_time() if search.error_code is None else by_status(_WITH_ERROR)


def _look(
    connection: Session,
    search: Search,
    limit: int,
    order: Order,
    start: Cursor,
    budget: Budget,
    until: Cursor | None = None,
) -> tuple[list[_Hit], Cursor | None]:
    """Return at most `limit` places in that order, and how far was looked: None if that is everything."""
    text = None if search.text is None else TextSearch(search.text, in_arguments=search.looks_in_arguments)
    is_bounded = text is not None and order is NEWEST_FIRST
    hits, reached = list[_Hit](), start
    if is_bounded:
        budget.most = TEXT_ROWS
    for window in windows(connection, _index(connection, search), order, start, budget, until):
        left = limit - len(hits)
        fitting_count, found = _in_window(connection, search, text, window, order, left)
        hits += found[:left]
        if len(found) >= left:
            return hits, hits[-1].place
        if window.reached is None:
            return hits, None
        reached = window.reached
        if is_bounded:
            budget.most -= fitting_count
    return hits, reached


def _in_window(
    connection: Session, search: Search, text: TextSearch | None, window: Window, order: Order, left: int
) -> tuple[int, list[_Hit]]:
    """Return how many fit the search without its text, and the places of those that fit with it."""
    conditions, given = conditions_of(search)
    rows = (
        f"FROM {window.table} WHERE {' AND '.join((window.condition, *conditions))}"
        f" ORDER BY t.sent_at {order.direction}, t.id {order.direction}"
    )
    given = {**window.given, **given, "left": left}
    if text is None:
        packed = f"SELECT json_group_array(json_array(r, s, i)) FROM (SELECT {_PLACE} {rows} LIMIT :left)"
        (found,) = connection.execute(packed, given).fetchone()
        hits = [_Hit._make(each) for each in unpacked(found)]
        return len(hits), hits
    packed = (
        "SELECT count(*), json_group_array(json_array(r, s, i)) FILTER (WHERE has_text)"
        f" FROM (SELECT {_PLACE}, {text.condition()} AS has_text {rows})"
    )
    count, found = connection.execute(packed, given | text.given()).fetchone()
    hits = [_Hit._make(each) for each in unpacked(found)]
    confirmed = text.confirmed(connection, [hit.rowid for hit in hits])
    return count, [hit for hit in hits if hit.rowid in confirmed]


def _summaries(connection: Session, hits: list[_Hit], budget: Budget) -> list[TaskRow]:
    """Return their rows, in this order; only the first of them if the time is up.

    This takes time, because SQLite goes through a result of megabytes to get at the columns behind it. It must be done
    in the same snapshot, where a rowid still means the same row.
    """
    source = (
        "json_each(:rowids) AS wanted CROSS JOIN taskmanager_tasks AS t ON t.rowid = wanted.value ORDER BY wanted.key"
    )
    rows: list[TaskRow] = []
    size = FIRST_SIZE
    while len(rows) < len(hits) and not (rows and budget.is_late):
        some = [hit.rowid for hit in hits[len(rows) : len(rows) + size]]
        rows += task_rows(connection, source, {"rowids": json.dumps(some)}, SUMMARY)
        size *= GROWTH
    return rows
