"""Which functions wait in which queues, on PostgreSQL: see `Store.free_queues`, as whoever is to claim asks it.

It hops through the functions, queues and priorities of the index `taskmanager_tasks_free`, and takes the first row of
each. Where that is slow, because nothing that was taken can be cleared away (see `Floors`), looks begin for a second,
or for twenty times what it took, where the first rows were then. What comes back with an earlier due time meanwhile,
or is the first of its function, queue and priority, is seen after that. So such a look needs another one then.
"""

from typing import TYPE_CHECKING, Final

from taskmanager.model.clock import Clock, SystemClock
from taskmanager.store.postgresql.floors import LATE_US
from taskmanager.store.postgresql.seldom import SLOW_S, TOOK_US, Seldom, is_slow
from taskmanager.store.postgresql.writing import numbers, texts
from taskmanager.store.protocol import FreeQueue
from taskmanager.store.sql.claims import IS_FREE

if TYPE_CHECKING:
    from taskmanager.store.postgresql.session import PostgresSession

MAX_KNOWN: Final = 1_000
"""More are looked for each time: to look at each of them would be no faster."""
_CLOCK: Final = SystemClock()
_KEYS: Final = "task_name, queue_name, priority"
_FIRST: Final = f"""
SELECT {_KEYS}, enqueued_at FROM taskmanager_tasks WHERE {IS_FREE} %s ORDER BY {_KEYS}, enqueued_at LIMIT 1
"""
ALL: Final = f"""
WITH RECURSIVE level AS (
    ({_FIRST % ""}) UNION ALL
    SELECT r.* FROM level, LATERAL (
        {_FIRST % f"AND ({_KEYS}) > (level.task_name, level.queue_name, level.priority)"}
    ) AS r
)
SELECT * FROM level UNION ALL SELECT NULL, NULL, NULL, {TOOK_US}
"""
KNOWN: Final = f"""
SELECT level.*, r.enqueued_at FROM unnest(
    CAST(:names AS text[]), CAST(:queues AS text[]), CAST(:priorities AS bigint[])
) WITH ORDINALITY AS level ({_KEYS}, number), LATERAL (
    SELECT t.enqueued_at FROM taskmanager_tasks AS t
    WHERE t.task_name = level.task_name AND t.queue_name = level.queue_name AND t.priority = level.priority
        AND t.enqueued_at >= (CAST(:floors AS bigint[]))[level.number] AND {IS_FREE}
    ORDER BY t.enqueued_at LIMIT 1
) AS r
"""
Key = tuple[str, str, int]


class FreePairs:
    """What one session knows of them."""

    def __init__(self, clock: Clock = _CLOCK, slow_s: float = SLOW_S) -> None:
        self._clock = clock
        self.slow_s = slow_s
        self._all = Seldom(clock)
        self._floors: dict[Key, int] = {}

    def __repr__(self) -> str:
        return f"<FreePairs {len(self._floors)} known>"

    def look(self, session: "PostgresSession", ahead_us: int = 0) -> list[FreeQueue]:
        """Return what waits, each counted as one. The server, by which rows are stamped, is `ahead_us` of this host."""
        found = self._look(session, ahead_us) if self._all.is_due() else self._look_at_known(session)
        first: dict[tuple[str, str], int] = {}
        for (name, queue, _), due_at in found.items():
            first[name, queue] = min(due_at, first.get((name, queue), due_at))
        return [FreeQueue(name, queue, 1, due_at) for (name, queue), due_at in sorted(first.items())]

    def take_needed_look(self) -> bool:
        """Return, once, whether something may have been passed over that the next look would find."""
        return self._all.take_missed()

    def _look(self, session: "PostgresSession", ahead_us: int) -> dict[Key, int]:
        latest = self._clock.now_us() + ahead_us - LATE_US
        *rows, (_, _, _, took_us) = session.execute_by_indexes(ALL).fetchall()
        found: dict[Key, int] = {tuple(key): due_at for *key, due_at in rows}
        self._floors = {key: min(found.get(key, latest), latest) for key in {**self._floors, **found}}
        if len(self._floors) > MAX_KNOWN:
            self._floors = {}
        elif is_slow(took_us, len(rows), self.slow_s):
            self._all.note(took_us)
        return found

    def _look_at_known(self, session: "PostgresSession") -> dict[Key, int]:
        self._all.miss()
        if not self._floors:
            return {}
        rows = session.execute_by_indexes(KNOWN, self._given()).fetchall()
        return {(name, queue, priority): due_at for name, queue, priority, _, due_at in rows}

    def _given(self) -> dict[str, str]:
        names, queues, priorities = zip(*self._floors, strict=True)
        floors = numbers(list(self._floors.values()))
        return {"names": texts(names), "queues": texts(queues), "priorities": numbers(priorities), "floors": floors}
