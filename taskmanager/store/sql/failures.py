"""Groups the tasks that have FAILED by their function and error code, newest first, within a budget of time."""

import json
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from taskmanager.store.sql.rows import packed, unpacked
from taskmanager.store.sql.scanning import BUDGET_S
from taskmanager.store.sql.search import error_messages
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.windows import NEWEST, NEWEST_FIRST, Budget, Cursor, Window, by_status, windows

MAX_GROUPS: Final = 200
MESSAGE_CHARS: Final = 500
_AT: Final = "coalesce(t.failed_at, t.sent_at)"


class FailureGroup(NamedTuple):
    """The failed tasks of one function with one code. `first_at` and `last_at` are when the first and the last failed.

    `message` is how that of the last one begins, or None if it is encrypted.
    """

    task_name: str
    error_code: str | None
    count: int  # type: ignore[assignment]  # the method of tuple is not missed
    first_at: int
    last_at: int
    last_task_id: str
    message: str | None = None


class FailureGroups(NamedTuple):
    """The groups that failed last, newest first, and how many groups there are.

    Only failed tasks that were sent since `reached` are counted. It is None if all were counted.
    """

    groups: list[FailureGroup]
    group_count: int
    reached: Cursor | None


class _Sum(NamedTuple):
    """What one window, or several, have of a group. `rowid` is the row of the task that failed last."""

    task_name: str
    error_code: str | None
    count: int  # type: ignore[assignment]  # the method of tuple is not missed
    first_at: int
    last_at: int
    rowid: str

    def with_others(self, other: "_Sum | None") -> "_Sum":
        """Return both together."""
        if other is None:
            return self
        last = max(self, other, key=lambda each: (each.last_at, each.rowid))
        return last._replace(count=self.count + other.count, first_at=min(self.first_at, other.first_at))


def failure_groups(
    connection: Session, budget_s: float = BUDGET_S, since: int | None = None, limit: int = MAX_GROUPS
) -> FailureGroups:
    """Return at most `limit` groups of the tasks that are FAILED now, and failed at `since` or later."""
    found: dict[tuple[str, str | None], _Sum] = {}
    reached: Cursor | None = NEWEST
    with connection.snapshot():
        for window in windows(connection, by_status(["FAILED"]), NEWEST_FIRST, NEWEST, Budget(budget_s)):
            for each in _in_window(connection, window, since):
                key = each.task_name, each.error_code
                found[key] = each.with_others(found.get(key))
            reached = window.reached
        newest = sorted(found.values(), key=lambda each: (each.last_at, each.rowid), reverse=True)[:limit]
        groups = _with_last(connection, newest)
    return FailureGroups(groups, len(found), reached)


def _in_window(connection: Session, window: Window, since: int | None) -> Iterator[_Sum]:
    # The greatest of these texts names the row that failed last. A row id is shorter to sort by than an id.
    query = f"""
        SELECT json_group_array(json_array(task_name, error_code, tasks, first_at, last_at,
            substr(last_one, 21)))
        FROM (
            SELECT t.task_name, t.error_code, count(*) AS tasks, min({_AT}) AS first_at, max({_AT}) AS last_at,
                max(printf('%020d', {_AT}) || t.rowid) AS last_one
            FROM {window.table} WHERE {window.condition} AND {_AT} >= :since GROUP BY t.task_name, t.error_code
        )
    """
    given = {**window.given, "since": -(2**63) if since is None else since}
    (text,) = connection.execute(query, given).fetchone()
    return map(_Sum._make, unpacked(text))


def _with_last(connection: Session, sums: Sequence[_Sum]) -> list[FailureGroup]:
    """Return the groups with the id and the message of the last one of each."""
    query = """
        SELECT json_group_array(json_array(wanted.value, t.id))
        FROM json_each(?) AS wanted CROSS JOIN taskmanager_tasks AS t ON t.rowid = wanted.value
    """
    ids = dict(packed(connection, query, (json.dumps([each.rowid for each in sums]),)))
    messages = error_messages(connection, list(ids.values()), MESSAGE_CHARS)
    return [FailureGroup(*each[:5], ids[each.rowid], messages.get(ids[each.rowid])) for each in sums]
