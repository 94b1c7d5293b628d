"""Groups the tasks that have FAILED by their function and error code, newest first, within a budget of time."""

import sqlite3
from collections.abc import Iterator
from typing import Final, NamedTuple

from taskmanager.store.sqlite.reading import snapshot
from taskmanager.store.sqlite.rows import unpacked
from taskmanager.store.sqlite.scanning import BUDGET_S
from taskmanager.store.sqlite.search import error_messages
from taskmanager.store.sqlite.windows import NEWEST, NEWEST_FIRST, Cursor, Pace, Window, by_status, windows

MAX_GROUPS: Final = 200
MESSAGE_CHARS: Final = 500
_AT: Final = "coalesce(t.failed_at, t.updated_at)"


class FailureGroup(NamedTuple):
    """Failed tasks of one function with one code: how many, when the first and the last of them failed, and which.

    `message` is the beginning of the last one's, or None if it is encrypted.
    """

    task_name: str
    error_code: str | None
    count: int  # type: ignore[assignment]  # the method of tuple is not missed
    first_at: int
    last_at: int
    last_task_id: str
    message: str | None = None


class FailureGroups(NamedTuple):
    """The groups that were seen last, newest first, and of how many.

    All failed tasks that were sent since `reached` are counted. It is None if these are all that there are.
    """

    groups: list[FailureGroup]
    group_count: int
    reached: Cursor | None
    is_complete: bool


def failure_groups(
    connection: sqlite3.Connection, budget_s: float = BUDGET_S, since: int | None = None, limit: int = MAX_GROUPS
) -> FailureGroups:
    """Return at most `limit` groups of the tasks that are FAILED now, and failed at `since` or later."""
    found: dict[tuple[str, str | None], FailureGroup] = {}
    reached: Cursor | None = NEWEST
    with snapshot(connection):
        for window in windows(connection, by_status(["FAILED"]), NEWEST_FIRST, NEWEST, Pace(budget_s)):
            for group in _in_window(connection, window, since):
                key = group.task_name, group.error_code
                found[key] = _together(found[key], group) if key in found else group
            reached = window.reached
        groups = sorted(found.values(), key=lambda group: group.last_at, reverse=True)[:limit]
        messages = error_messages(connection, [group.last_task_id for group in groups], MESSAGE_CHARS)
    groups = [group._replace(message=messages.get(group.last_task_id)) for group in groups]
    return FailureGroups(groups, len(found), reached, reached is None)


def _in_window(connection: sqlite3.Connection, window: Window, since: int | None) -> Iterator[FailureGroup]:
    # The id of the last one: SQLite takes it from the row of max() only where there is no min() beside it.
    packed = f"""
        SELECT json_group_array(json_array(task_name, error_code, tasks, first_at, last_at, substr(last_one, 22)))
        FROM (
            SELECT t.task_name, t.error_code, count(*) AS tasks, min({_AT}) AS first_at, max({_AT}) AS last_at,
                max(printf('%020d ', {_AT}) || t.id) AS last_one
            FROM {window.table} WHERE {window.condition} AND {_AT} >= :since GROUP BY t.task_name, t.error_code
        )
    """
    given = {**window.given, "since": -(2**63) if since is None else since}
    (text,) = connection.execute(packed, given).fetchone()
    return (FailureGroup(*each) for each in unpacked(text))


def _together(one: FailureGroup, other: FailureGroup) -> FailureGroup:
    last = max(one, other, key=lambda group: (group.last_at, group.last_task_id))
    return last._replace(count=one.count + other.count, first_at=min(one.first_at, other.first_at))
