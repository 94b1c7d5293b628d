"""Where the free rows of each priority begin, in the index that claims read.

While somebody keeps a transaction open, the entries of rows that were taken cannot be cleared away. They stand before
those of the rows that are free, and each claim would read all of them. So after a slow claim it is asked once, and then
seldom, where the free rows begin, and the claims in between begin there.
"""

from typing import Any, Final

from taskmanager.model.clock import Clock, SystemClock
from taskmanager.model.config import PRIORITY_RANGE
from taskmanager.store.postgresql.writing import numbers
from taskmanager.store.sql.claims import BETTER
from taskmanager.store.sql.session import Session

SLOW_S: Final = 0.005
"""A claim that took longer may have read many dead entries."""
QUICK_S: Final = 0.002
"""Where asking takes less, there are few."""
ASK_S: Final = 1.0
ASK_SHARE: Final = 20
"""It is asked once in so long at most, and takes one part in so many of the time at most."""
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
_ASK: Final = f"{FOUND_LEVELS} SELECT priority, floor FROM each_priority"


class Floors:
    """Those of one queue.

    A row that comes back with an earlier due time is seen after the next question: after a second, or twenty times what
    that takes.
    """

    def __init__(self, clock: Clock = _CLOCK) -> None:
        self._clock = clock
        self._is_wanted = False
        self._ask_at_s = 0.0
        self._given: str | None = None

    def __repr__(self) -> str:
        return f"<Floors {self._given or 'unused'}>"

    def given(self, session: Session, known: dict[str, Any]) -> str | None:
        """Return the parameter of `GIVEN_LEVELS` for a claim of `known`. None where it had better look for itself."""
        if (self._is_wanted or self._given is not None) and self.begin() >= self._ask_at_s:
            self._ask(session, known)
        return self._given

    def _ask(self, session: Session, known: dict[str, Any]) -> None:
        began_s = self.begin()
        latest = known["now"] - LATE_US
        found: dict[int, int] = dict(session.execute(_ASK, known | {"better_than": _WORST + 1}).fetchall())
        took_s = self._clock.elapsed_s() - began_s
        by_priority = [min(found.get(each, latest), latest) for each in range(_BEST, _WORST + 1)]
        self._given = numbers(by_priority) if took_s >= QUICK_S else None
        self._is_wanted = False
        self._ask_at_s = began_s + max(ASK_S, ASK_SHARE * took_s)

    def begin(self) -> float:
        """Return the time, for `note`."""
        return self._clock.elapsed_s()

    def note(self, began_s: float) -> None:
        """Note that a claim that has looked for itself has ended now."""
        self._is_wanted = self._clock.elapsed_s() - began_s >= SLOW_S
