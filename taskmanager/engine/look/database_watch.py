"""Looks after the database while it is in use: whether it is still there, and whole.

SQLite reports no error when its file is deleted or replaced, and no server does when what it had promised is gone.
Whatever lives in memory is written again to what is in its place; what only the lost one held is gone, and an ERROR
says so.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import islice
from typing import Final, NamedTuple

from taskmanager.engine.engine import Engine
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.model.logger import logger
from taskmanager.model.record import Expected, TaskRow, UnreadableRow, expected_of
from taskmanager.model.states import LIVE, WAITING, TaskStatus
from taskmanager.model.wording import counted
from taskmanager.store.watch_protocol import Whereabouts

LOST_S: Final = 10.0
"""How long a lost database, which is still open, is tried to be read. Its volume may be gone for good. One that was
emptied will never be whole again, and is tried once.
"""
PAGE: Final = 500
LET_GO_S: Final = 0.1
"""How long a stop waits for the look it has cancelled. One that is inside a call of the store ends with that call."""


class _Acknowledged(NamedTuple):
    """What the store had acknowledged before another database took its place.

    `states` are those that the row of a live task may have: the committed one, and those of commits without an answer.
    """

    lives: Mapping[str, LiveTask]
    states: Mapping[str, tuple[Expected, ...]]
    recent_ids: Iterable[str]


class DatabaseWatch:
    """Notices that the database was damaged, lost or replaced while in use, and puts that right."""

    def __init__(
        self,
        engine: Engine,
        on_made_anew: Callable[[], Awaitable[None]],
        lost: Callable[[LiveTask, TaskRow], None],
    ) -> None:
        self._store, self._clock, self._live = engine.store, engine.clock, engine.live
        self._wall_clock = engine.wall_clock
        self._dispatcher, self._writer = engine.dispatcher, engine.writer
        self._life, self._instance_id = engine.life, engine.identity.instance_id
        self._on_made_anew = on_made_anew
        self._lost = lost
        self._lost_until_s = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._paused: list[str] = []
        self._owes_rest = False
        self._has_said = self.is_told = False
        """`is_told`: whether the log has said why the database cannot be looked after now."""
        self._failed_count = 0
        self._acknowledged: _Acknowledged | None = None
        """To be compared with what is in the place of the database; None when nothing is."""
        self.before_close: Callable[[], None] = lambda: None
        """Called before the store is closed: the loop must not watch a descriptor that closes, and is used again."""

    async def look(self) -> None:
        """Check, and repair. One repair runs at a time, and to its end, even if the caller is cancelled."""
        if self._looking is None or self._looking.done():
            self._looking = self._life.loop.create_task(self._look(), name="taskmanager-database-watch")
            self._looking.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(self._looking)

    async def look_for_good(self, until_s: float) -> None:
        """The look before the last batches, which must not go where nobody can find them any more.

        It ends at `until_s`, in the time of the loop: a locked one would be waited for longer than a stop may take.
        """
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout_at(until_s):
                await self.look()

    async def close(self) -> None:
        """No more repairs."""
        if self._looking is not None and not self._looking.done():
            self._looking.cancel()
            await asyncio.wait([self._looking], timeout=LET_GO_S)

    async def _look(self) -> None:
        self._has_said = False
        try:
            found = await self._store.look_after()
            self._wall_clock.go_by(self._store.clock_offset_us)
            if found.is_lost:
                await self._reopen(found)
            elif found is Whereabouts.DAMAGED:
                await self._mend()
        except StoreError as exc:
            self._failed_count += 1
            # Who writes says it as well. So a database that is only away is named here if there is nothing to write.
            is_idle = self._failed_count > 1 and self._writer.degraded_since is None
            if is_idle or self._has_said or not isinstance(exc, StoreUnavailable):
                self._say("the database cannot be looked after now, which is tried again twice a second: %s", exc)
                self.is_told = True
            raise
        if self.is_told:
            logger.warning("the database can be looked after again")
        self.is_told, self._failed_count = False, 0
        if self._owes_rest:
            await self._write_rest()
            self._owes_rest = False

    async def _write_rest(self) -> None:
        """What memory knows besides the tasks: paused queues, this instance, schedules."""
        for name in self._paused:
            await self._store.set_paused(name, True, self._clock.now_us())
        await self._on_made_anew()

    def _say(self, text: str, *args: object) -> None:
        """Once, however often it is tried."""
        if not self.is_told:
            logger.error(text, *args)
            self._has_said = True

    async def _reopen(self, found: Whereabouts) -> None:
        """Open what is in the place of the lost database, or a new one, and write what lives in memory."""
        if found is not Whereabouts.MOVED:
            self._say(
                "%s; what is in its place now, made anew if nothing is, gets %s from memory, but what only the lost "
                "one held is gone",
                self._store.describe(found),
                counted(len(self._live), "task"),
            )
        if not self._owes_rest:
            self._paused = [name for name, queue in self._dispatcher.queues.items() if queue.is_paused]
        # The list is made first, because what ends meanwhile has been written to the lost one only. The writer is kept
        # waiting, or it would look in the new one for rows that it committed to the lost one.
        async with self._writer.quiet:
            if not self._owes_rest and found is not Whereabouts.MOVED:
                await self._read_lost(found)
            known = {**self._writer.unsaved_ended.kept, **self._live}
            lives = {task_id: live for task_id, live in known.items() if live.is_persisted}
            if not self._owes_rest and found is Whereabouts.MOVED:
                self._acknowledged = self._list_acknowledged(lives)
            # Before it is opened: who cancels every task may do so when it is open, and no look finds it then.
            self._writer.lose_everything_committed(lives.values())
            self._owes_rest = True
            self.before_close()
            await self._store.close()
            await self._store.open()
            if self._acknowledged is not None:
                await self._compare(self._acknowledged)
                self._acknowledged = None

    def _list_acknowledged(self, lives: Mapping[str, LiveTask]) -> _Acknowledged:
        states = {
            task_id: (live.saving.committed, *live.saving.in_doubt)
            for task_id, live in lives.items()
            if live.saving.committed is not None
        }
        return _Acknowledged(lives, states, self._store.recent_ids())

    async def _compare(self, acknowledged: _Acknowledged) -> None:
        """Find out what is missing. What is there as it was known needs not be written."""
        task_ids = list({*acknowledged.states, *acknowledged.recent_ids})
        missing_count = 0
        for start in range(0, len(task_ids), PAGE):
            page = task_ids[start : start + PAGE]
            rows = await self._store.fetch_ids(page)
            missing_count += sum(self._is_missing(acknowledged, task_id, rows.get(task_id)) for task_id in page)
        what = self._store.describe(Whereabouts.MOVED)
        if missing_count:
            text = "%s; %s missing there, or older than was acknowledged: what is in memory is written again"
            logger.error(text, what, counted(missing_count, "task"))
        else:
            logger.warning("%s; all that was acknowledged lately is there", what)

    def _is_missing(self, acknowledged: _Acknowledged, task_id: str, row: TaskRow | None) -> bool:
        """Whether the row is not there, or is older than what was acknowledged."""
        if row is None:
            return True
        live, states = acknowledged.lives.get(task_id), acknowledged.states.get(task_id)
        if live is None or states is None:
            # It had left this instance: what still names it there does not know of that.
            is_ours = row.claimed_by_worker_id == self._instance_id and row.status in LIVE
            return is_ours and task_id not in self._live and task_id not in self._writer.unsaved_ended
        found = expected_of(row)
        if found in states and not isinstance(row, UnreadableRow):
            live.saving.committed, live.saving.is_written_anew = found, False
            return False
        return row.start_count < states[0].start_count

    async def _read_lost(self, found: Whereabouts) -> None:
        """Drop what others have run while it waited here. Only the lost database tells of that, and it is still open.

        Written to the new one as it is here, it would start again.
        """
        try:
            await self._drop_what_others_ran()
        except StoreUnavailable:
            now_s = self._life.loop.time()
            if not self._lost_until_s:
                self._lost_until_s = now_s + LOST_S
            if now_s < self._lost_until_s and not self._life.is_stopping and found is not Whereabouts.EMPTIED:
                raise
        except StoreError as exc:
            logger.debug("the lost database cannot be read: %s", exc)
        self._lost_until_s = 0.0

    async def _drop_what_others_ran(self) -> None:
        waiting = {live.task_id: live for live in self._live.values() if _waits_by_the_store(live)}
        for start in range(0, len(waiting), PAGE):
            rows = await self._store.fetch_ids(list(islice(waiting, start, start + PAGE)))
            for task_id, row in rows.items():
                if self._live.get(task_id) is waiting[task_id] and _is_run_by_others(waiting[task_id], row):
                    self._lost(waiting[task_id], row)

    async def _mend(self) -> None:
        """Nothing is lost yet, but others might not find it."""
        self._say("%s", self._store.describe(Whereabouts.DAMAGED))
        async with self._writer.quiet:
            self.before_close()
            await self._store.mend()
        self._paused, self._owes_rest = [], True  # the same one, but what was read of it may not be its newest state


def _waits_by_the_store(live: LiveTask) -> bool:
    return live.saving.committed is not None and live.saving.committed.status in WAITING


def _is_run_by_others(live: LiveTask, row: TaskRow) -> bool:
    """Whether it has ended, or has started and is not safe to repeat."""
    committed = live.saving.committed
    if committed is None or isinstance(row, UnreadableRow) or expected_of(row) in live.saving.in_doubt:
        return False
    is_once = row.start_count > committed.start_count and not live.definition.requeue_on_interrupt
    return is_once or TaskStatus(row.status).is_terminal
