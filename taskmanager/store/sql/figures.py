"""Reads the figures: what has happened in each minute of two days and each hour of thirty days, by task and queue.

Every look goes through the primary key, so its cost depends on the number of spans and names, and not on that of tasks.
Without a name it adds up one row for each name and span: an hour with 200 names has 12,000 rows, and takes 10 ms.
"""

from collections.abc import Sequence
from typing import Any, Final

from taskmanager.rules.figures import Span
from taskmanager.store.noted import COUNTS, RAN, WAITED
from taskmanager.store.sql.session import Session
from taskmanager.store.statistics import Figures

_SUMS: Final = ", ".join(f"coalesce(sum({name}), 0)" for name in COUNTS)
_IN_SPANS: Final = "taskmanager_figures WHERE span = :span AND at >= :since AND at < :until"
_TOTAL: Final = f"SELECT {_SUMS} FROM {_IN_SPANS}"
_ENDED: Final = "sum(completed + failed + cancelled + expired + interrupted)"


def series(
    connection: Session,
    span: Span,
    since: int,
    until: int,
    *,
    task_name: str | None = None,
    queue_name: str | None = None,
) -> list[Figures]:
    """Return the figures of each span in which anything has happened, oldest first.

    The first is the span in which `since` lies, and all begin before `until`.
    """
    given = _given(span, since, until)
    which = ""
    for column, name in (("task_name", task_name), ("queue_name", queue_name)):
        if name is not None:
            which += f" AND {column} = CAST(:{column} AS TEXT)"
            given[column] = name
    query = f"SELECT at, {_SUMS} FROM {_IN_SPANS}{which} GROUP BY at ORDER BY at"
    return [_figures(at, counts) for at, *counts in connection.execute(query, given).fetchall()]


def total(connection: Session, span: Span, since: int, until: int) -> Figures:
    """Return what has happened in all these spans, of all tasks."""
    given = _given(span, since, until)
    return _figures(given["since"], connection.execute(_TOTAL, given).fetchone())


def by_queue(connection: Session, span: Span, since: int, until: int, limit: int) -> list[tuple[str, Figures]]:
    """Return what has happened in each queue from `since` to `until`, those first in which most tasks have ended.

    An empty name stands for all queues that were too many to be told apart.
    """
    # All counts are added up only of those that are shown.
    given = _given(span, since, until) | {"limit": limit}
    first = f"SELECT queue_name FROM {_IN_SPANS} GROUP BY queue_name ORDER BY {_ENDED} DESC, queue_name LIMIT :limit"
    query = (
        f"SELECT queue_name, {_SUMS} FROM {_IN_SPANS} AND queue_name IN ({first})"
        f" GROUP BY queue_name ORDER BY {_ENDED} DESC, queue_name"
    )
    found = connection.execute(query, given).fetchall()
    return [(name, _figures(given["since"], counts)) for name, *counts in found]


def _given(span: Span, since: int, until: int) -> dict[str, Any]:
    return {"span": span.value, "since": span.begin_of(since), "until": until}


def _figures(at: int, counts: Sequence[int]) -> Figures:
    return Figures._make((at, *counts[:WAITED], tuple(counts[WAITED:RAN]), tuple(counts[RAN:])))
