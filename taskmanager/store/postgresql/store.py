"""The store on a PostgreSQL server: its connections, and what becomes of it when the server is another one."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, TypeVarTuple

from taskmanager.model.clock import Clock, SystemClock
from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.model.record import TaskRow, Write
from taskmanager.store.postgresql.address import Address
from taskmanager.store.postgresql.beat import PostgresBeater
from taskmanager.store.postgresql.connection import (
    THREAD_ENDS_S,
    Connection,
    Origin,
    ask_nothing,
    raise_not_open,
    to_newest_schema,
)
from taskmanager.store.postgresql.lives import MIN_GRACE_S, SILENCE_S, saying_no_lock
from taskmanager.store.postgresql.schema import never_dead
from taskmanager.store.postgresql.session import PostgresSession
from taskmanager.store.postgresql.watch import Watch
from taskmanager.store.protocol import FREE_COUNT_CAP, CommitReport, FreeQueue, InstanceRow
from taskmanager.store.sql import claims, pruning, transitions
from taskmanager.store.sql import instances as instance_rows
from taskmanager.store.sql.counting import add_counted
from taskmanager.store.sql.verbs import Verbs
from taskmanager.store.watch_protocol import Whereabouts

if TYPE_CHECKING:
    from taskmanager.store.statistics import StoreOverview

MEASURED_S: Final = 60.0
"""How long the distance of the two clocks is believed."""
_CLOCK: Final = SystemClock()
_UNTOLD: Final = frozenset(
    (
        claims.claim, claims.fetch_claim, add_counted, instance_rows.save_worker_state, pruning.purge,
        pruning.prune_heartbeats, pruning.prune_worker_states, pruning.prune_figures,
    )
)  # fmt: skip
"""What no other instance has to hear of."""
RECENT: Final = 20_000
"""So many of the tasks that were acknowledged last are looked for after a failover."""
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class PostgresStore(Verbs):
    """Tasks in one schema of a PostgreSQL database.

    `is_dead` tells whether a registered instance has ended; without it nothing is taken away from a schema in which one
    is registered. `clock` is that of whoever writes. `grace_s` and `silence_s` are those of `Lives`.
    """

    def __init__(
        self,
        address: Address,
        *,
        synchronous: Literal["full", "normal"] = "full",
        is_dead: Callable[[str], bool] = never_dead,
        grace_s: float = MIN_GRACE_S,
        silence_s: float = SILENCE_S,
        clock: Clock = _CLOCK,
    ) -> None:
        super().__init__(clock)
        self.address = address
        self._is_unsynced = synchronous == "normal"
        self._is_dead = is_dead
        self._graces_s = grace_s, silence_s
        self._clock = clock
        self._writer: Connection | None = None
        self._reader: Connection | None = None
        self._watch: Watch | None = None
        self._write_count = self._look_count = 0
        self._measured_s = 0.0
        self._is_failover = False
        self._recent: deque[Sequence[str]] = deque()
        self._recent_count = 0
        self.clock_offset_us = 0

    def __repr__(self) -> str:
        return f"<PostgresStore {self.address} {'closed' if self._writer is None else 'open'}>"

    @property
    def origin(self) -> Origin | None:
        """Where the tasks were found when the writer connected last. None while it is closed."""
        return None if self._writer is None else self._writer.origin

    async def open(self) -> None:
        if self._writer is not None:
            return
        self._writer = writer = self._new_writer()
        # What is no instance reads through the same one.
        self._reader = reader = writer if self._watch is None else Connection(self.address, "reader")
        try:
            await writer.open(self._prepare)
            if reader is not writer:
                await reader.open()
            await self._measure_clock(reader)
        except GeneratorExit:  # collected with its loop: there is nothing to be awaited any more
            self.end()
            raise
        except BaseException:
            await self.close()
            raise
        reader.expected = writer.expected

    def _new_writer(self) -> Connection:
        return Connection(self.address, "writer", is_unsynced=self._is_unsynced)

    def _prepare(self, session: PostgresSession) -> None:
        origin = to_newest_schema(session, self._is_dead)
        assert self._writer is not None
        self._writer.origin = self._writer.expected = origin

    def work_inline(self) -> None:
        before = self._writer
        if before is None:
            raise_not_open(self.address)
        reader, self._reader = self._reader, before
        if reader is not None and reader is not before:
            reader.end()  # an instance has never more than three connections
        inline = self._new_writer()
        inline.expected = before.expected
        inline.call(ask_nothing)
        self.end()
        self._writer = inline

    def end(self) -> None:
        before = self._reader, self._writer
        self._reader = self._writer = None
        for each in before:
            if each is not None:
                each.end()

    async def close(self) -> None:
        reader, self._reader = self._reader, None
        writer, self._writer = self._writer, None
        if writer is not None and self._counting.has_any:
            # The server may never answer. What is lost by that are the figures of some moments.
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(THREAD_ENDS_S):
                    await writer.hop(self._do_unsynced, add_counted, self._counting)
        try:
            if reader is not None:
                await reader.close()
        finally:
            if writer is not None:
                await writer.close()

    async def _write(self, work: Callable[[PostgresSession, *Ts], R], *args: *Ts) -> R:
        if self._writer is None:
            raise_not_open(self.address)
        found = await self._writer.hop(self._do, work, *args)
        self._write_count += 1
        return found

    async def _write_unsynced(self, work: Callable[[PostgresSession, *Ts], R], *args: *Ts) -> R:
        if self._writer is None:
            raise_not_open(self.address)
        found = await self._writer.hop(self._do_unsynced, work, *args)
        self._write_count += 1
        return found

    def _do(self, session: PostgresSession, work: Callable[[PostgresSession, *Ts], R], *args: *Ts) -> R:
        """Do it, and tell the others behind the commit."""
        found = work(session, *args)
        if getattr(work, "func", work) not in _UNTOLD:
            self._tell(session)
        return found

    def _do_unsynced(self, session: PostgresSession, work: Callable[[PostgresSession, *Ts], R], *args: *Ts) -> R:
        before, session.is_unsynced = session.is_unsynced, True
        try:
            return self._do(session, work, *args)
        finally:
            session.is_unsynced = before

    def _tell(self, session: PostgresSession, task_ids: Sequence[str] = ()) -> None:
        """Tell the others that something was committed: in the thread, because somebody may wait for it there."""
        if self._watch is not None:
            self._watch.tell(task_ids, "written")
        else:
            session.say(task_ids)

    async def _read(self, work: Callable[[PostgresSession, *Ts], R], *args: *Ts) -> R:
        if self._reader is None:
            raise_not_open(self.address)
        return await self._reader.hop(work, *args)

    async def free_queues(self, count_cap: int = FREE_COUNT_CAP, *, is_bounded: bool = False) -> list[FreeQueue]:
        if count_cap == 1 and not is_bounded:
            return await self._read(PostgresSession.free_pairs, self.clock_offset_us)
        return await super().free_queues(count_cap, is_bounded=is_bounded)

    async def fetch_expired(self, now: int, *, limit: int) -> list[TaskRow]:
        return await self._read(PostgresSession.fetch_expired, now, limit)

    async def commit(self, writes: Sequence[Write]) -> CommitReport:
        if self._writer is None:
            raise_not_open(self.address)
        return await self._acknowledged(self._writer.hop(self._commit, writes), writes)

    def _commit(self, session: PostgresSession, writes: Sequence[Write]) -> CommitReport:
        report = transitions.commit(session, writes, self._counting)
        self._tell(session, [each.task_id for each in writes])
        return report

    async def _acknowledged(self, commit: Awaitable[CommitReport], writes: Sequence[Write]) -> CommitReport:
        report = await commit
        self._write_count += 1
        task_ids = [each.task_id for each in writes]
        if report.lost or report.rejected:
            task_ids = [each for each in task_ids if each not in report.lost and each not in report.rejected]
        self._recent.append(task_ids)
        self._recent_count += len(task_ids)
        while self._recent_count > RECENT:
            self._recent_count -= len(self._recent.popleft())
        return report

    works_in_thread = True
    most_claimed_together = 1
    """Two instances may ask in different orders, and each would wait for what the other has locked."""

    def begin_commit(
        self, writes: Sequence[Write], loop: asyncio.AbstractEventLoop
    ) -> Coroutine[Any, Any, CommitReport]:
        if self._writer is None:
            raise_not_open(self.address)
        return self._acknowledged(self._writer.begin(loop, self._commit, writes), writes)

    # Others

    def presence(self, instance_id: str) -> Watch:
        conninfo = self.address.conninfo_of("watch", is_direct=True)
        grace_s, silence_s = self._graces_s
        self._watch = Watch(
            conninfo, self.address.schema, instance_id, self._clock, grace_s=grace_s, silence_s=silence_s
        )
        return self._watch

    async def save_instance(self, row: InstanceRow) -> None:
        watch = self._watch
        if watch is None or not watch.is_pooled:
            await super().save_instance(row)
            return
        await super().save_instance(row._replace(live_tasks=saying_no_lock(row.live_tasks)))
        watch.is_known_without_lock = True

    async def changes(self) -> int:
        if self._watch is not None and not self._watch.is_pooled:
            if any(each.take_needed_look() for each in (self._reader, self._writer) if each is not None):
                self._watch.doubt()
            return self._watch.changes()
        self._look_count += 1
        return self._look_count

    def news_mark(self) -> object:
        return None if self._watch is None or self._watch.is_pooled else self._watch.news()

    def mark(self) -> object:
        return None if self._watch is None or self._watch.is_pooled else (self._watch.mark(), self._write_count)

    @property
    def is_told(self) -> bool:
        return self._watch is not None and not self._watch.is_pooled

    def watch(self) -> int | None:
        return None if self._watch is None else self._watch.watch()

    # Where the database is

    async def look_after(self) -> Whereabouts:
        writer, reader = self._writer, self._reader
        if writer is None or reader is None:
            return Whereabouts.MOVED
        for each in (writer, reader):
            try:
                await each.hop(ask_nothing)
            except StoreUnavailable:
                if each.is_another:
                    self._is_failover = each.is_failover
                    return Whereabouts.MOVED
                raise
        if self._clock.elapsed_s() - self._measured_s > MEASURED_S:
            await self._measure_clock(reader)
        return Whereabouts.WHOLE

    def describe(self, found: Whereabouts) -> str:
        how = "failed over to another server" if self._is_failover else "dropped or replaced"
        return f"the database {self.address} was {how} while in use"

    def recent_ids(self) -> list[str]:
        return [task_id for task_ids in self._recent for task_id in task_ids]

    async def mend(self) -> None:
        """Nothing is ever damaged."""

    async def _measure_clock(self, reader: Connection) -> None:
        """Find out how far the server's clock is ahead. The middle of the way there and back is when it was read."""
        self.clock_offset_us = await reader.hop(_clock_offset_us, self._clock)
        self._measured_s = self._clock.elapsed_s()

    # Upkeep

    def open_beater(self) -> PostgresBeater:
        return PostgresBeater(lambda: [each for each in (self._reader, self._writer) if each], self.address)

    async def shrink(self) -> bool:
        return False

    async def upkeep(self, *, is_idle: bool) -> None:
        """Autovacuum does it."""

    def overview(self, now: int, *, counts_all: bool) -> "StoreOverview":
        from taskmanager.store.sql.statistics import overview

        if self._reader is None:
            raise_not_open(self.address)
        return self._reader.call(_overview, overview, now, counts_all)


def _overview(
    session: PostgresSession, ask: "Callable[..., StoreOverview]", now: int, counts_all: bool
) -> "StoreOverview":
    with session.snapshot():
        return ask(session, now, counts_all=counts_all)


def _clock_offset_us(session: PostgresSession, clock: Clock) -> int:
    sent_us = clock.now_us()
    (server_us,) = session.execute_plain(
        "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    ).fetchone() or (sent_us,)
    return int(server_us) - (sent_us + clock.now_us()) // 2
