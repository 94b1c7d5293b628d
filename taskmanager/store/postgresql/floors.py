"""Where the free rows of each priority begin, in the index that claims read.

While somebody keeps a transaction open, the entries of rows that were taken cannot be cleared away. They stand before
those of the rows that are free, and each claim would read all of them. So after a slow claim it is asked once, and then
seldom, where the free rows begin, and the claims in between begin there. What was woken is looked for seldom as well.
"""

from typing import Any, Final

from taskmanager.model.clock import SECOND_US, Clock, SystemClock
from taskmanager.model.config import PRIORITY_RANGE
from taskmanager.store.postgresql.writing import numbers
from taskmanager.store.sql.claims import BETTER
from taskmanager.store.sql.session import Session

SLOW_S: Final = 0.005
"""A claim that took longer may have read many dead entries."""
QUICK_S: Final = 0.002
"""Where the server takes less to find the floors, there are few."""
ASK_S: Final = 1.0
ASK_SHARE: Final = 20
"""It is asked once in so long at most, and takes one part in so many of the time at most."""
LATE_US: Final = 1_000_000
"""Rows that were sent so long before the question may be committed after it."""
TOOK_US: Final = "CAST(1000000 * extract(epoch FROM clock_timestamp() - statement_timestamp()) AS bigint)"
"""How long the server has worked on the statement so far. The way to it and back says nothing of dead entries, and nor
does a thread that waits for the interpreter: to a server 4 ms away, all looks take long.
"""
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
        self._clock = clock
        self.quick_s = quick_s
        self._is_wanted = False
        self._ask_at_s = 0.0
        self._given: str | None = None
        self._needs_look = self._needs_woken_look = False
        self._woken_at_s = 0.0
        """When it may be looked for woken rows again."""

    def __repr__(self) -> str:
        return f"<Floors {self._given or 'unused'}>"

    def given(self, session: Session, known: dict[str, Any]) -> str | None:
        """Return the parameter of `GIVEN_LEVELS` for a claim of `known`. None where it had better look for itself."""
        if (self._is_wanted or self._given is not None) and self._clock.elapsed_s() >= self._ask_at_s:
            self._ask(session, known)
        if self._given is not None:
            self._needs_look = True
        return self._given

    def take_needed_look(self) -> bool:
        """Return, once, whether rows may have been passed over that the next claim would find."""
        now_s = self._clock.elapsed_s()
        if self._needs_look and now_s >= self._ask_at_s:
            self._needs_look = False
            return True
        if self._needs_woken_look and now_s >= self._woken_at_s:
            self._needs_woken_look = False
            return True
        return False

    def _ask(self, session: Session, known: dict[str, Any]) -> None:
        began_s = self._clock.elapsed_s()
        latest = known["now"] - LATE_US
        *rows, (_, took_us) = session.execute(_ASK, known | {"better_than": _WORST + 1}).fetchall()
        found: dict[int, int] = dict(rows)
        took_s = took_us / SECOND_US
        by_priority = [min(found.get(each, latest), latest) for each in range(_BEST, _WORST + 1)]
        self._given = numbers(by_priority) if took_s >= self.quick_s else None
        self._is_wanted = False
        self._ask_at_s = began_s + max(ASK_S, ASK_SHARE * took_s)

    def may_seek_woken(self) -> bool:
        """Return whether a claim may look for woken rows, which stand below all floors. If not, a later one has to."""
        self._needs_woken_look = self._clock.elapsed_s() < self._woken_at_s
        return not self._needs_woken_look

    def note(self, took_s: float) -> None:
        """Note how long the server has worked on a claim that has looked for itself."""
        self._is_wanted = took_s >= SLOW_S

    def note_none_woken(self, took_s: float) -> None:
        """Note that a claim has found no woken rows."""
        if took_s >= SLOW_S:
            self._woken_at_s = self._clock.elapsed_s() + ASK_SHARE * took_s
