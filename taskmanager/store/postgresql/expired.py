"""Free rows whose `good_until` has passed, on PostgreSQL: see `Store.fetch_expired`.

While somebody keeps a transaction open, the entries of rows that were taken in time cannot be cleared away, and each
look would read all of them. So where that is slow, a look begins where the last one has ended, and one looks at all
every `WHOLE_S`. A row that is free again when its time was over at the last look is seen by that one: until then a
claim may take it, and ends it as well.
"""

from typing import TYPE_CHECKING, Final

from taskmanager.model.clock import Clock, SystemClock
from taskmanager.model.record import TaskRow
from taskmanager.store.postgresql.claims import ROW
from taskmanager.store.postgresql.floors import LATE_US
from taskmanager.store.postgresql.seldom import SLOW_S, TOOK_US, Seldom, is_slow
from taskmanager.store.sql import queries
from taskmanager.store.sql.rows import packed_rows

if TYPE_CHECKING:
    from taskmanager.store.postgresql.session import PostgresSession

WHOLE_S: Final = 60.0
_CLOCK: Final = SystemClock()
_BEFORE_ALL: Final = -(1 << 63)
EXPIRED: Final = f"""
SELECT json_group_array(row), max(good_until), {TOOK_US} FROM (
    SELECT {ROW}, t.good_until FROM taskmanager_tasks AS t
    WHERE t.good_until >= :since AND t.good_until <= :now AND t.claimed_by_worker_id IS NULL AND t.status = 'PENDING'
    ORDER BY t.good_until, t.id LIMIT :limit
) AS found
"""


class Expired:
    """What one session knows of them."""

    def __init__(self, clock: Clock = _CLOCK, slow_s: float = SLOW_S) -> None:
        self.slow_s = slow_s
        self._all = Seldom(clock, WHOLE_S)
        self._until: int | None = None
        """Where the last look has ended. None where each looks at all."""

    def __repr__(self) -> str:
        return f"<Expired {'unused' if self._until is None else f'known until {self._until}'}>"

    def look(self, session: "PostgresSession", now: int, limit: int) -> list[TaskRow]:
        """Return them, the longest past first."""
        since = self.since(now)
        try:
            with session.by_indexes():
                found = session.execute(EXPIRED, {"since": since, "now": now, "limit": limit}).fetchone()
        except session.too_large:  # together longer than the longest text; then they are read one by one
            return queries.fetch_expired(session, now, limit=limit)
        packed, last, took_us = found or ("[]", None, 0)
        rows = packed_rows(packed)
        is_whole, took_long = since == _BEFORE_ALL, is_slow(took_us, len(rows), self.slow_s)
        if is_whole:
            self._all.note(took_us)
        self._until = None if is_whole and not took_long else now if len(rows) < limit else last
        return rows

    def since(self, now: int) -> int:
        """Return where a look begins. The clock may have been set back since the last one."""
        if self._until is None or self._all.is_due():
            return _BEFORE_ALL
        return min(self._until, now) - LATE_US
