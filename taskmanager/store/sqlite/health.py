"""Questions about the file as a whole, for `taskmanager doctor`: reads only, on a connection that cannot write."""

import sqlite3
from typing import Final, NamedTuple

from taskmanager.store.sqlite.statements import LIVE_SQL

MAX_FAULTS: Final = 5
"""Faults of the file that are told one by one; where there is one, there are mostly hundreds."""


class Owned(NamedTuple):
    """Unfinished rows of one owner, by status."""

    owner: str
    status: str
    number: int


def faults(connection: sqlite3.Connection) -> list[str]:
    """What SQLite finds wrong with the file, a sentence each; it reads all of it."""
    found = []
    try:
        for (line,) in connection.execute(f"PRAGMA integrity_check({MAX_FAULTS})"):
            if line != "ok":
                found.append(str(line))
        for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check"):
            found.append(f"row {row} of {table} belongs to no row of {parent}")
            if len(found) >= MAX_FAULTS:
                break
    except sqlite3.DatabaseError as error:
        found.append(str(error))
    return found


def owned(connection: sqlite3.Connection) -> list[Owned]:
    """How many unfinished rows each owner has."""
    rows = connection.execute(
        f"""
        SELECT claimed_by_worker_id, status, count(*) FROM taskmanager_tasks INDEXED BY taskmanager_tasks_owner
        WHERE claimed_by_worker_id IS NOT NULL AND status IN ({LIVE_SQL})
        GROUP BY claimed_by_worker_id, status ORDER BY claimed_by_worker_id, status
        """
    )
    return [Owned._make(row) for row in rows]


def newest_stamp(connection: sqlite3.Connection) -> int | None:
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
