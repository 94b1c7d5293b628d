"""Who is dead, judged by what one unbroken session has seen of the locks and heartbeats of others.

A free lock alone proves nothing: a restart, a failover or an idle cull frees all locks while every instance lives. One
that has lost its lock beats every second until it holds the lock again. So death is a lock that stayed free through the
whole grace while its owner was silent.

An instance that is behind a pooler can hold no lock. It says so in its row, and is judged by its heartbeats alone: it
is dead when it was silent for the longest of the thresholds for stale tasks. The reaper takes its tasks over before, as
it does with whoever is silent.

Time counts only where it was observed. A look that comes late, because this process was stopped or the server did not
answer, adds `MAX_STEP_S` at most: whatever stopped us may have stopped the owner as well.
"""

import hashlib
import threading
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from taskmanager.model.clock import SECOND_US
from taskmanager.model.config import DEFAULT_RECOVERY, longest_silence_s
from taskmanager.model.dataclass import dataclass

if TYPE_CHECKING:
    from taskmanager.store.postgresql.session import PostgresSession

MIN_GRACE_S: Final = 10.0
"""A living instance needs less than this to take its lock again, or to write a heartbeat by another connection."""
MAX_STEP_S: Final = 2.0
"""What one look adds to the observed time at most, twice the usual pause between two."""
SILENCE_S: Final = longest_silence_s(DEFAULT_RECOVERY)
"""The same for one that has no lock, where nobody has configured the thresholds for stale tasks."""
SILENT_US: Final = 60_000_000
"""An instance that has lost its lock beats every second. One that has not for so long is not there."""
LAST_ID: Final = 2**63 - 1
FORGET_S: Final = 3 * 3600.0
"""An instance that nobody has asked about for so long is not observed any more."""


_NO_LOCK: Final = '{"has_no_lock":true'
HAS_NO_LOCK: Final = f"starts_with(live_tasks, '{_NO_LOCK}')"
"""Whether a row says that its instance can hold no lock."""
HELD: Final = (
    "locktype = 'advisory' AND objsubid = 2 AND granted"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
"""Whether a row of pg_locks is a lock of this database with two numbers that somebody holds. That of an instance has
the number of its schema as `classid`, and its own as `objid`.
"""


def saying_no_lock(live_tasks: str | None) -> str:
    """Return what an instance says of itself, and that it can hold no lock."""
    said = (live_tasks or "{}").removeprefix("{")
    return f"{_NO_LOCK}{'' if said == '}' else ','}{said}"


def says_no_lock(live_tasks: str | None) -> bool:
    """Return whether an instance has said that it can hold no lock."""
    return (live_tasks or "").startswith(_NO_LOCK)


def lock_number(instance_id: str) -> int:
    """Return the second number of an instance's lock, an int4 that every process makes of the same id."""
    return int.from_bytes(hashlib.sha256(instance_id.encode("utf-8", "replace")).digest()[:4], "big", signed=True)


@dataclass(slots=True)
class _Observed:
    """One instance. `silent_since_s` is None while it shows life, and before the first look at it."""

    number: int
    asked_s: float
    grace_s: float
    silent_since_s: float | None = None


class Lives:
    """What is known of the instances that were asked about. Any thread may ask, and no answer waits for a server.

    Who has lost a lock has `grace_s` to take it again, and who never has one has `silence_s` to beat.
    """

    def __init__(self, grace_s: float = MIN_GRACE_S, silence_s: float = SILENCE_S) -> None:
        self._grace_s = max(grace_s, MIN_GRACE_S)
        self.silence_s = max(silence_s, self._grace_s)
        self._lock = threading.Lock()
        self._observed: dict[str, _Observed] = {}
        self._observed_s = 0.0
        self._looked_at_s: float | None = None
        """When the last look of this session was; None before the first one."""

    def __repr__(self) -> str:
        silent = sum(each.silent_since_s is not None for each in self._observed.values())
        return f"<Lives {len(self._observed)} observed, {silent} silent>"

    def begin(self) -> None:
        """Begin anew: the session was lost, and with it all that it has seen."""
        with self._lock:
            self._looked_at_s = None
            for each in self._observed.values():
                each.silent_since_s = None

    def look(
        self, now_s: float, held: Collection[int], beating: Collection[str], without_lock: Collection[str] = ()
    ) -> bool:
        """Take note of the numbers that are locked, of who has beaten since the last look, and of who has no lock.

        Return whether a grace has ended, so that somebody is dead who was not at the last look.
        """
        with self._lock:
            before_s = self._observed_s
            if self._looked_at_s is not None:
                self._observed_s += min(max(now_s - self._looked_at_s, 0.0), MAX_STEP_S)
            self._looked_at_s = now_s
            has_died = False
            for instance_id, each in list(self._observed.items()):
                each.grace_s = self.silence_s if instance_id in without_lock else self._grace_s
                if each.number in held:
                    each.silent_since_s = None
                elif each.silent_since_s is None or instance_id in beating:
                    each.silent_since_s = self._observed_s
                elif before_s - each.silent_since_s < each.grace_s <= self._observed_s - each.silent_since_s:
                    has_died = True
                if self._observed_s - each.asked_s > FORGET_S:
                    del self._observed[instance_id]
            return has_died

    def is_dead(self, instance_id: str, now_s: float) -> bool:
        """Return whether its lock was free and its heart silent for the whole grace, up to now.

        The first question begins the observation. One that started a moment ago holds a lock that no look has seen.
        When the last look is old, nobody is called dead: whoever was may hold its lock again.
        """
        with self._lock:
            each = self._observed.get(instance_id)
            if each is None:
                self._observed[instance_id] = _Observed(lock_number(instance_id), self._observed_s, self._grace_s)
                return False
            each.asked_s = self._observed_s
            since_s, looked_at_s = each.silent_since_s, self._looked_at_s
            if since_s is None or looked_at_s is None or now_s - looked_at_s > MAX_STEP_S:
                return False
            return self._observed_s - since_s >= each.grace_s


class Beats:
    """Finds out whose heartbeats are new, by the ids of their rows. The clocks of their hosts do not matter."""

    def __init__(self) -> None:
        self._latest: Mapping[str, int] = {}
        self.newest_id = LAST_ID
        """The newest id in the table at the last look."""

    def look(self, latest: Mapping[str, int], newest_id: int) -> frozenset[str]:
        """Return the senders of new beats. `latest` has the newest id of each sender among the rows that were read.

        `newest_id` is that of the table. It is smaller than before where the table was emptied.
        """
        moved = frozenset(sender for sender, row_id in latest.items() if row_id != self._latest.get(sender))
        self._latest, self.newest_id = latest, newest_id
        return moved


_SEEMS_DEAD: Final = """
SELECT NOT EXISTS (
    SELECT 1 FROM pg_locks WHERE {held} AND classid::bigint = %s AND objid::bigint = %s
) AND coalesce((
    SELECT sent_at FROM {table} WHERE sender_id = %s AND role = 'runner' ORDER BY sent_at DESC LIMIT 1
), 0) < (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - CASE
    WHEN EXISTS (SELECT 1 FROM {instances} WHERE instance_id = %s AND {no_lock}) THEN %s ELSE %s END
"""


def seems_dead(session: "PostgresSession", instance_id: str) -> bool:
    """Return whether nobody holds the lock of an instance, and it has sent no heartbeat for long.

    This is for those who look once. An instance observes for the whole grace.
    """
    unsigned = 0xFFFF_FFFF
    asked = _SEEMS_DEAD.format(
        table=session.qualified("taskmanager_heartbeats"),
        instances=session.qualified("taskmanager_instances"),
        held=HELD,
        no_lock=HAS_NO_LOCK,
    )
    lock = session.number & unsigned, lock_number(instance_id) & unsigned
    silence_us = int(SILENCE_S * SECOND_US), SILENT_US
    found = session.execute_plain(asked, (*lock, instance_id, instance_id, *silence_us)).fetchone()
    return found is not None and bool(found[0])
