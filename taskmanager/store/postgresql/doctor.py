"""What `taskmanager doctor` looks at on a server, beside the rows: see `Checks`.

Of the sessions of other roles a server shows next to nothing to a role that may not see them; what that hides is said.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg

from taskmanager.model.clock import SECOND_US, SystemClock
from taskmanager.model.errors import StoreError
from taskmanager.model.wording import counted
from taskmanager.store.place import Finding
from taskmanager.store.postgresql.address import Address
from taskmanager.store.postgresql.connection import connect
from taskmanager.store.postgresql.found import look
from taskmanager.store.postgresql.lives import HELD, lock_number, says_no_lock
from taskmanager.store.postgresql.notices import QueueState, queue_state
from taskmanager.store.postgresql.parts import migrations, parts_of
from taskmanager.store.postgresql.session import TABLES, PostgresSession

if TYPE_CHECKING:
    from taskmanager.store.protocol import InstanceRow
    from taskmanager.store.sql.session import Session

MIN_VERSION: Final = 140_000
MAX_SKEW_S: Final = 2.0
LONG_S: Final = 60.0
"""A transaction that is open for so long is no passer-by: what it has seen cannot be cleaned up."""
WAIT_S: Final = 1.0
"""So long nobody waits for a transaction of ours."""
MANY_DEAD: Final = 50_000
FULL: Final = 0.8
"""The part of `max_connections` from which on it is said."""
FULL_QUEUE: Final = 0.1
PINNED_S: Final = 1.0
"""Who has kept the queue from being emptied has been in its transaction for longer."""
SHOWN: Final = 3
ALONE: Final = frozenset({"schema"})
"""Tables that an instance only reads."""

_SETTINGS: Final = """
SELECT current_setting('server_version'), current_setting('server_version_num')::int, pg_is_in_recovery(),
    current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
    current_setting('autovacuum'), current_setting('max_connections')::int
        - current_setting('superuser_reserved_connections')::int,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
    current_setting('server_encoding'), (SELECT datcollate FROM pg_database WHERE datname = current_database()),
    current_user::text, pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')
"""
_RIGHTS: Final = """
SELECT name, r FROM unnest(%s::text[]) AS name CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS r
WHERE to_regclass(name) IS NOT NULL AND NOT has_table_privilege(name, r) ORDER BY name, r
"""
_LONG: Final = """
SELECT pid, coalesce(application_name, ''), coalesce(usename::text, ''), coalesce(state, ''),
    extract(epoch FROM clock_timestamp() - xact_start)::float8, 0::bigint
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
    AND xact_start < clock_timestamp() - make_interval(secs => %s)
ORDER BY xact_start
"""
_HOLDERS: Final = """
SELECT holder.pid, coalesce(holder.application_name, ''), coalesce(holder.usename::text, ''),
    coalesce(holder.state, ''), extract(epoch FROM clock_timestamp() - holder.xact_start)::float8,
    count(DISTINCT waiter.pid)
FROM pg_stat_activity AS waiter CROSS JOIN LATERAL unnest(pg_blocking_pids(waiter.pid)) AS blocking (pid)
JOIN pg_stat_activity AS holder ON holder.pid = blocking.pid
WHERE waiter.datname = current_database() AND waiter.wait_event_type = 'Lock'
    AND waiter.query_start < clock_timestamp() - make_interval(secs => %s)
GROUP BY 1, 2, 3, 4, 5 ORDER BY 6 DESC, 1
"""
_PREPARED: Final = """
SELECT gid::text, extract(epoch FROM clock_timestamp() - prepared)::float8
FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared
"""
_DEAD_ROWS: Final = """
SELECT s.relname::text, s.n_dead_tup, s.n_live_tup,
    extract(epoch FROM clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum))::float8,
    coalesce('autovacuum_enabled=false' = ANY(c.reloptions), false)
FROM pg_stat_all_tables AS s JOIN pg_class AS c ON c.oid = s.relid
WHERE s.schemaname = %s AND starts_with(s.relname, 'taskmanager_') ORDER BY s.n_dead_tup DESC
"""
_HELD: Final = f"SELECT objid::bigint FROM pg_locks WHERE {HELD} AND classid::bigint = %s"


class Settings(NamedTuple):
    """What the server says of itself, and of the role."""

    version: str
    version_number: int
    is_in_recovery: bool
    fsync: str
    full_page_writes: str
    synchronous_commit: str
    autovacuum: str
    max_connections: int
    connections: int
    encoding: str
    collation: str
    role: str
    sees_others: bool


class Holder(NamedTuple):
    """A session with an open transaction, and how many wait for it."""

    pid: int
    name: str
    role: str
    state: str
    open_s: float | None
    waiting: int

    def __str__(self) -> str:
        since = "" if self.open_s is None else f" for {_span(self.open_s)}"
        return f"process {self.pid} of the server ({self.name or 'no name'}, {self.role}, {self.state}{since})"


class DeadRows(NamedTuple):
    """One table, and when it was cleaned up last. None: never."""

    table: str
    dead: int
    live: int
    vacuumed_s: float | None
    is_off: bool


class ServerChecks:
    """The checks of one schema on a server."""

    what = "schema"

    def __init__(self, address: Address) -> None:
        self._address = address

    def around(self, min_free_mb: int) -> Iterable[Finding]:
        """See `Checks.around`: the way past a pooler. What the server's disk has left, it does not say."""
        if self._address.direct is not None:
            yield direct(self._address)

    def inside(self, session: "Session") -> Iterator[Finding]:
        """See `Checks.inside`. Changes nothing, and waits for no lock."""
        own = _own(session)
        raw = own.raw
        found = Settings(*_rows(own, _SETTINGS)[0])
        yield server(found)
        yield durability(found)
        yield skew(_skew_s(own))
        yield pooler(self._address, is_pooled=own.is_pooled)
        yield connections(found)
        yield rights(_rows(own, _RIGHTS, [f"{self._address.quoted_schema}.taskmanager_{each}" for each in TABLES]))
        there = look(raw, self._address.schema)
        missing = [f"{part.kind} {part.name}" for part in there.missing(parts_of(migrations()))]
        yield schema(there.version, migrations()[-1].version, missing)
        yield locks([Holder(*each) for each in _rows(own, _HOLDERS, WAIT_S)])
        yield transactions([Holder(*each) for each in _rows(own, _LONG, LONG_S)], found)
        yield prepared(_rows(own, _PREPARED))
        yield dead_rows([DeadRows(*each) for each in _rows(own, _DEAD_ROWS, self._address.schema)], found.autovacuum)
        yield notifications(queue_state(raw))

    def of_instances(self, session: "Session", alive: "Sequence[InstanceRow]") -> Iterable[Finding]:
        """See `Checks.of_instances`: whether each of them holds its lock. Behind a pooler it can hold none."""
        own = _own(session)
        held = {number for (number,) in _rows(own, _HELD, own.number & 0xFFFF_FFFF)}
        can_hold = [each for each in alive if not says_no_lock(each.live_tasks)]
        without = [each for each in can_hold if lock_number(each.instance_id) & 0xFFFF_FFFF not in held]
        names = [f"process {each.pid} on {each.hostname}" for each in without]
        yield sharing(names, pooled_count=len(alive) - len(can_hold))


def _own(session: "Session") -> PostgresSession:
    assert isinstance(session, PostgresSession), "a session of another place"
    return session


def _rows(session: PostgresSession, sql: str, *values: object) -> list[tuple[Any, ...]]:
    return session.execute_plain(sql, values or None).fetchall()


def _skew_s(session: PostgresSession) -> float:
    """Return how far this machine's clock is ahead of the server's. The middle of the way is when that was read."""
    clock = SystemClock()
    sent_us = clock.now_us()
    (server_us,) = _rows(session, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")[0]
    ahead_us = (sent_us + clock.now_us()) // 2 - int(server_us)
    return ahead_us / SECOND_US


def _span(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:,.0f} s"


def _some(each: Sequence[object]) -> str:
    more = f" and {len(each) - SHOWN} more" if len(each) > SHOWN else ""
    return ", ".join(map(str, each[:SHOWN])) + more


def server(found: Settings) -> Finding:
    """Check the version, and that it is the primary."""
    name = f"PostgreSQL {found.version}, {found.encoding}, collation {found.collation}"
    if found.version_number < MIN_VERSION:
        return Finding("server", False, name, "taskmanager needs PostgreSQL 14 or newer; upgrade the server")
    if found.is_in_recovery:
        advice = "it can only be read: give the address of the primary, or several hosts in the URL"
        return Finding("server", False, f"{name}, a standby", advice)
    return Finding("server", True, name)


def durability(found: Settings) -> Finding:
    """Check that what is committed survives a power cut."""
    off = [name for name in ("fsync", "full_page_writes", "synchronous_commit") if getattr(found, name) == "off"]
    if not off:
        return Finding("durability", True, f"synchronous_commit is {found.synchronous_commit}")
    advice = "what was said to be saved may be lost or damaged by a crash of the server; set it on, and reload"
    return Finding("durability", False, f"{' and '.join(off)} off", advice)


def skew(ahead_s: float) -> Finding:
    """Check the clock of this machine against that of the server."""
    way = "ahead of" if ahead_s > 0 else "behind"
    found = f"this clock is {abs(ahead_s):,.1f} s {way} the server's"
    if abs(ahead_s) <= MAX_SKEW_S:
        return Finding("clock", True, found)
    return Finding(
        "clock", False, found, "let this machine and the server keep time with NTP; tasks go by the server's"
    )


def direct(address: Address) -> Finding:
    """Check that the address without a pooler can be reached, and has none."""
    try:
        session = connect(address, is_direct=True)
    except (psycopg.Error, StoreError) as exc:
        advice = "correct ?direct= in the URL, or leave it out: without it nothing is told at once, it is polled"
        return Finding("direct", False, f"cannot be reached ({' '.join(str(exc).split())})", advice)
    is_pooled = session.is_pooled
    session.raw.close()
    if is_pooled:
        return Finding("direct", False, "is a pooler too", "give ?direct= the address of the server itself")
    return Finding("direct", True, "leads to the server itself")


def pooler(address: Address, *, is_pooled: bool) -> Finding:
    """Check that no pooler takes what a session of its own is needed for."""
    if not is_pooled:
        return Finding("pooler", True, "none that changes the session")
    if address.direct is not None:
        return Finding("pooler", True, "stands between, with a way past it")
    advice = (
        "add ?direct=host:port of the server to the URL: else no instance hears of new tasks before it polls, and who "
        "has died is known by heartbeats only"
    )
    return Finding("pooler", False, "a pooler in transaction mode stands between", advice)


def connections(found: Settings) -> Finding:
    """Check that there are connections left for more instances."""
    told = f"{found.connections:,} of {found.max_connections:,}"
    if found.connections < FULL * found.max_connections:
        return Finding("connections", True, told)
    advice = "an instance takes three; raise max_connections, or put a pooler before the server, with ?direct="
    return Finding("connections", False, told, advice)


def rights(missing: Sequence[Sequence[object]]) -> Finding:
    """Check that this role may do what an instance does with each table."""
    lacking: dict[str, list[str]] = {}
    for table, right in missing:
        name = str(table).rpartition(".")[2]
        if right == "SELECT" or name.removeprefix("taskmanager_") not in ALONE:
            lacking.setdefault(name, []).append(str(right))
    if not lacking:
        return Finding("rights", True, "this role may read and write every table")
    told = [f"{', '.join(each)} on {table}" for table, each in lacking.items()]
    advice = "an application needs them: `taskmanager migrate --sql` ends with the GRANTs; to look, SELECT is enough"
    return Finding("rights", False, f"missing: {'; '.join(told[:SHOWN])}{' …' if len(told) > SHOWN else ''}", advice)


def schema(version: int, newest: int, missing: Sequence[str]) -> Finding:
    """Check the steps that are not done yet, and what another program has dropped."""
    found = f"version {version}"
    if version < newest:
        advice = "start the application, or run `taskmanager migrate`"
        return Finding("schema", False, f"{found} of {newest}", advice)
    if missing:
        advice = (
            "another program has dropped that; `taskmanager migrate`, or a restart of the application, makes it anew"
        )
        return Finding("schema", False, f"{found} without {_some(missing)}", advice)
    return Finding("schema", True, found)


def locks(holders: Sequence[Holder]) -> Finding:
    """Check whether sessions wait for a lock, and who holds it."""
    if not holders:
        return Finding("locks", True, "nobody waits for a lock")
    first = holders[0]
    advice = f"let it end its transaction, or end it: SELECT pg_terminate_backend({first.pid})"
    told = _some([f"{each} keeps {counted(each.waiting, 'session')} waiting" for each in holders])
    return Finding("locks", False, told, advice)


def transactions(open_long: Sequence[Holder], found: Settings) -> Finding:
    """Check for transactions that have been open for long: until they end, no dead row is cleaned up."""
    if open_long:
        advice = (
            "until it ends nothing is cleaned up, and claims become slower; find out what it waits for, or end it: "
            f"SELECT pg_terminate_backend({open_long[0].pid})"
        )
        return Finding("transactions", False, f"open: {_some(open_long)}", advice)
    if found.sees_others:
        return Finding("transactions", True, f"none is open for more than {LONG_S:.0f} s")
    hint = f"GRANT pg_read_all_stats TO {found.role} shows those of others"
    return Finding("transactions", True, f"none of this role is open for long; {hint}")


def prepared(found: Sequence[Sequence[object]]) -> Finding:
    """Check for prepared transactions: they keep their locks over restarts, until somebody ends them."""
    old = [(str(gid), age_s) for gid, age_s in found if isinstance(age_s, float) and age_s > LONG_S]
    if not old:
        return Finding("prepared", True, "no prepared transaction is left open")
    told = _some([f"{gid!r} for {_span(age_s)}" for gid, age_s in old])
    name = old[0][0].replace("'", "''")
    return Finding(
        "prepared", False, f"prepared and left open: {told}", f"end it: COMMIT PREPARED or ROLLBACK PREPARED '{name}'"
    )


def dead_rows(tables: Sequence[DeadRows], autovacuum: str) -> Finding:
    """Check that autovacuum keeps up with the rows that are written over."""
    off = [each.table for each in tables if each.is_off]
    if autovacuum == "off" or off:
        told = f"autovacuum is off{'' if autovacuum == 'off' else f' for {_some(off)}'}"
        return Finding("dead rows", False, told, "switch it on; without it each claim reads more rows than the last")
    many = [each for each in tables if each.dead > max(MANY_DEAD, each.live)]
    if many:
        told = _some([f"{each.dead:,} in {each.table} beside {each.live:,} live ones, {_when(each)}" for each in many])
        advice = f"end what keeps them (see transactions), then VACUUM {many[0].table}; let autovacuum do more"
        return Finding("dead rows", False, told, advice)
    most = tables[0] if tables else None
    if most is None or not most.dead:
        return Finding("dead rows", True, "none")
    return Finding("dead rows", True, f"{most.dead:,} in {most.table} beside {most.live:,} live ones, {_when(most)}")


def _when(table: DeadRows) -> str:
    return "never vacuumed yet" if table.vacuumed_s is None else f"vacuumed {_span(table.vacuumed_s)} ago"


def notifications(queue: QueueState) -> Finding:
    """Check that the server's queue of notifications is emptied. When it is full, nobody can notify any more."""
    told = f"the queue is {queue.usage:.0%} full"
    if queue.usage < FULL_QUEUE:
        return Finding("notifications", True, told)
    if queue.pid is None or (queue.open_s or 0.0) < PINNED_S:
        advice = "a session that listens reads nothing; ask pg_stat_activity, by a role that has pg_read_all_stats"
        return Finding("notifications", False, told, advice)
    who = (
        f"process {queue.pid} ({queue.application_name or 'no name'}), in a transaction for {_span(queue.open_s or 0)}"
    )
    advice = f"end its transaction, or the session: SELECT pg_terminate_backend({queue.pid})"
    return Finding("notifications", False, f"{told}, pinned perhaps by {who}", advice)


def sharing(without: Sequence[str], *, pooled_count: int = 0) -> Finding:
    """Check that each living instance holds the lock that proves it. Behind a pooler it can hold none."""
    if without:
        advice = "its session was lost and is made anew; its log says why"
        return Finding("sharing", False, f"without its lock: {_some(without)}", advice)
    others = f", except {counted(pooled_count, 'instance')} behind a pooler" if pooled_count else ""
    return Finding("sharing", True, f"every living instance holds its lock{others}")
