"""Where the free rows of each priority begin, in the index that claims read.

While somebody keeps a transaction open, the entries of rows that were taken cannot be cleared away. They stand before
those of the rows that are free, and each claim would read all of them. So after a slow claim it is asked once, and then
seldom, where the free rows begin, and the claims in between begin there. What was woken is looked for seldom as well.
"""

from typing import Any, Final

from taskmanager.model.clock import SECOND_US, Clock, SystemClock
from taskmanager.model.config import PRIORITY_RANGE
from taskmanager.store.postgresql.seldom import TOOK_US, Seldom, is_slow
from taskmanager.store.postgresql.writing import numbers
from taskmanager.store.sql.claims import BETTER
from taskmanager.store.sql.session import Session

QUICK_S: Final = 0.001
"""Where the server takes less to find the floors, there are few."""
LATE_US: Final = 1_000_000
"""Rows that were sent so long before the question may be committed after it."""
_BEST, _WORST = PRIORITY_RANGE
_CLOCK: Final = SystemClock()

_FIRST: Final = f"""
SELECT priority, enqueued_at AS floor FROM taskmanager_tasks WHERE {BETTER} %s ORDER BY priority, enqueued_at LIMIT 1
"""
FOUND_LEVELS: Final = f"""
WITH RECURSIVE each_priority AS (
    ({_FIRST % ""}) UNION ALL
    SELECT r.* FROM each_priority AS level, LATERAL ({_FIRST % "AND priority > level.priority"}) AS r
)
"""
"""Each priority of a queue with the due time of its first free row, best priority first, as far as they are read."""
GIVEN_LEVELS: Final = """
WITH each_priority AS (
    SELECT priority, floor FROM unnest(CAST(:floors AS bigint[])) WITH ORDINALITY AS given (floor, priority)
    WHERE priority < :better_than ORDER BY priority
)
"""
"""All priorities with what was found out before."""
_ASK: Final = f"{FOUND_LEVELS} SELECT priority, floor FROM each_priority UNION ALL SELECT NULL, {TOOK_US}"


class Floors:
    """Those of one queue.

    A row that comes back with an earlier due time is seen after the next question: after a second, or twenty times what
    that takes. So a claim that has begun at floors needs another one then (`take_needed_look`).
    """

    def __init__(self, clock: Clock = _CLOCK, quick_s: float = QUICK_S) -> None:
        self.quick_s = quick_s
        self._floors, self._woken = Seldom(clock), Seldom(clock, least_s=0.0)
        self._is_wanted = False
        self._given: str | None = None

    def __repr__(self) -> str:
        return f"<Floors {self._given or 'unused'}>"

    def given(self, session: Session, known: dict[str, Any]) -> str | None:
        """Return the parameter of `GIVEN_LEVELS` for a claim of `known`. None where it had better look for itself."""
        if (self._is_wanted or self._given is not None) and self._floors.is_due():
            self._ask(session, known)
        if self._given is not None:
            self._floors.miss()
        return self._given

    def take_needed_look(self) -> bool:
        """Return, once, whether rows may have been passed over that the next claim would find."""
        return self._floors.take_missed() or self._woken.take_missed()

    def _ask(self, session: Session, known: dict[str, Any]) -> None:
        latest = known["now"] - LATE_US
        *rows, (_, took_us) = session.execute(_ASK, known | {"better_than": _WORST + 1}).fetchall()
        found: dict[int, int] = dict(rows)
        by_priority = [min(found.get(each, latest), latest) for each in range(_BEST, _WORST + 1)]
        self._given = numbers(by_priority) if took_us >= self.quick_s * SECOND_US else None
        self._is_wanted = False
        self._floors.note(took_us)

    def may_seek_woken(self) -> bool:
        """Return whether a claim may look for woken rows, which stand below all floors. If not, a later one has to."""
        may_seek = self._woken.is_due()
        if not may_seek:
            self._woken.miss()
        return may_seek

    def note(self, took_us: float, taken_count: int) -> None:
        """Note how long the server has worked on a claim that has looked for itself, and how many rows it has taken."""
        self._is_wanted = is_slow(took_us, taken_count)

    def note_none_woken(self, took_us: float) -> None:
        """Note that a claim has found no woken rows."""
        if is_slow(took_us, 0):
            self._woken.note(took_us)
