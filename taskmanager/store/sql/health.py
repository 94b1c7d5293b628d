"""Questions about the tasks as a whole, for `taskmanager doctor`: reads only."""

from typing import Final, NamedTuple

from taskmanager.model.record import UnreadableRow
from taskmanager.store.constraints import row_faults
from taskmanager.store.sql.queries import IS_OWNED, task_rows
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.statements import is_live

MAX_LOOKED_AT: Final = 100_000
"""Unfinished tasks that are looked at one by one, which takes a second or two."""
PAGE: Final = 1_000


class Owned(NamedTuple):
    """Unfinished rows of one owner, by status."""

    owner: str
    status: str
    number: int


def owned(connection: Session) -> list[Owned]:
    """How many unfinished rows each owner has."""
    rows = connection.execute(
        f"""
        SELECT claimed_by_worker_id, status, count(*) FROM taskmanager_tasks INDEXED BY taskmanager_tasks_owned
        WHERE {IS_OWNED}
        GROUP BY claimed_by_worker_id, status ORDER BY claimed_by_worker_id, status
        """
    )
    return [Owned._make(row) for row in rows]


def unreadable(connection: Session) -> list[str]:
    """Return the ids of unfinished tasks that cannot be read or contradict themselves, of the first `MAX_LOOKED_AT`."""
    page, known = f"taskmanager_tasks AS t WHERE {is_live('t.')} ORDER BY t.rowid LIMIT {PAGE}", ()
    found: list[str] = []
    for _ in range(MAX_LOOKED_AT // PAGE):
        rows = task_rows(connection, page, known)
        found += [row.task_id for row in rows if isinstance(row, UnreadableRow) or any(row_faults(row))]
        if len(rows) < PAGE:
            break
        query = f"SELECT max(rowid) FROM (SELECT t.rowid FROM {page})"
        known = connection.execute(query, known).fetchone()
        page = f"taskmanager_tasks AS t WHERE t.rowid > ? AND {is_live('t.')} ORDER BY t.rowid LIMIT {PAGE}"
    return found


def near_limit(connection: Session, count: int, chars: int) -> list[str]:
    """Return the ids of unfinished tasks that have recorded so many steps, or results as long as that together."""
    query = f"""
        SELECT t.id FROM taskmanager_tasks AS t JOIN taskmanager_steps AS s ON s.task_id = t.id
        WHERE {is_live("t.")} GROUP BY t.id
        HAVING count(*) >= ? OR sum(length(coalesce(s.result, ''))) >= ? ORDER BY t.id
    """
    return [task_id for (task_id,) in connection.execute(query, (count, chars)).fetchall()]


def newest_stamp(connection: Session) -> int | None:
    """The latest instant that any clock has written; None in an empty file. Due times and the like are none."""
    (newest,) = connection.execute(
        """
        SELECT max(at) FROM (
            SELECT max(sent_at) AS at FROM taskmanager_heartbeats
            UNION ALL SELECT max(updated_at) FROM taskmanager_instances
            UNION ALL SELECT max(sent_at) FROM taskmanager_tasks
            UNION ALL SELECT max(finished_at) FROM taskmanager_task_attempts
        )
        """
    ).fetchone()
    return None if newest is None else int(newest)
