"""How many rows of a queue with a limit for all hosts are taken, on PostgreSQL: see `Session.count_taken`.

While somebody keeps a transaction open, the entries of rows that have ended cannot be cleared away, and whoever counts
reads all of them, while other claims of the queue wait. So where that is slow, all is counted seldom. The counts in
between look up the rows that were taken at the last one, each by its id, and read the entries of those that were taken
since. What has ended before is not read again, however long a task of the queue runs.

All claims with a limit hold the queue from their count to their commit, so none is missed whose stamp is as late as the
last count, or `LATE_US` earlier. Two kinds of rows are missed where that is slow, until all is counted again, which is
a second, or twenty times what it takes: those of a claim that was stamped earlier, because its transaction was done
again, or its process stood still; and those that have become taken without such a claim, by an instance that knows no
limit for the queue, by a copy or by another program. A row that counts is always one that is taken.
"""

from typing import TYPE_CHECKING, Any, Final

from taskmanager.model.clock import SECOND_US, Clock, SystemClock
from taskmanager.store.postgresql.seldom import TOOK_US, Seldom
from taskmanager.store.postgresql.writing import texts
from taskmanager.store.sql.claims import IN_QUEUE
from taskmanager.store.sql.rows import unpacked

if TYPE_CHECKING:
    from taskmanager.store.sql.session import Session

SLOW_S: Final = 0.001
"""Each claim waits for a count, and others wait for that claim. 1 ms are 4,000 entries."""
LATE_US: Final = 6_000_000
"""A claim is stamped before it waits for the lock of writers and for that of the queue, each for `LOCK_MS` at most."""
MAX_KNOWN: Final = 1_000
"""Where more are taken, all are counted each time: to look each of them up would be no faster."""
_CLOCK: Final = SystemClock()
IS_TAKEN: Final = "status IN ('CLAIMED', 'RUNNING')"
# What was started without a claim is not in the index of what was claimed. It is looked for among all that runs.
ALL: Final = f"""
SELECT json_group_array(id), {TOOK_US} FROM (
    SELECT id FROM taskmanager_tasks WHERE {IN_QUEUE} AND claimed_at IS NOT NULL AND {IS_TAKEN}
    UNION ALL
    SELECT id FROM taskmanager_tasks WHERE status = 'RUNNING' AND claimed_at IS NULL AND {IN_QUEUE}
) AS taken
"""
# The planner does not look into a CASE. Else it may read the whole index of what is taken for each id.
KNOWN: Final = f"""
SELECT json_group_array(id) FROM (
    SELECT id FROM taskmanager_tasks
    WHERE id = ANY (CAST(:ids AS text[])) AND CASE WHEN {IN_QUEUE} THEN {IS_TAKEN} END
    UNION
    SELECT id FROM taskmanager_tasks WHERE {IN_QUEUE} AND claimed_at >= :since AND {IS_TAKEN}
) AS taken
"""


class Taken:
    """What one session knows of one queue."""

    def __init__(self, clock: Clock = _CLOCK, slow_s: float = SLOW_S) -> None:
        self.slow_s = slow_s
        self._all = Seldom(clock)
        self._ids: list[str] | None = None
        """What was taken at the last count. None where all is counted each time."""
        self._since = 0

    def __repr__(self) -> str:
        return f"<Taken {'unused' if self._ids is None else f'{len(self._ids)} known'}>"

    def count(self, session: "Session", queue_name: str, now: int) -> int:
        """Count for a claim that is stamped `now`, and holds the queue."""
        if self._ids is None or self._all.is_due():
            packed, took_us = session.execute(ALL, {"queue_name": queue_name}).fetchone()
            self._all.note(took_us)
            ids = unpacked(packed)
            is_known = took_us >= self.slow_s * SECOND_US and len(ids) <= MAX_KNOWN
            self._ids = ids if is_known else None
        else:
            (packed,) = session.execute(KNOWN, self.given(queue_name, now)).fetchone()
            self._ids = ids = unpacked(packed)
        self._since = now
        return len(ids)

    def given(self, queue_name: str, now: int) -> dict[str, Any]:
        """Return the parameters of `KNOWN`. The clock may have been set back since the last count."""
        return {"queue_name": queue_name, "ids": texts(self._ids or ()), "since": min(self._since, now) - LATE_US}
