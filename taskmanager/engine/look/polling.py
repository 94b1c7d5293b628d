"""Notices what happens outside of memory: what others wrote, what came due, who died, whether the database is lost.

One loop looks every `store_poll` seconds, and at once when somebody asks. It passes on what it finds: free rows to the
`Claimer`, ends to the `Follower`, deaths to the recovery.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from taskmanager.engine.engine import Engine
from taskmanager.engine.look.claiming import Claimer
from taskmanager.engine.look.database_watch import DatabaseWatch
from taskmanager.engine.look.sharing import Sharing
from taskmanager.engine.words.instance import EARLY_S
from taskmanager.engine.words.timers import next_beat
from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.model.logger import logger
from taskmanager.model.wording import counted
from taskmanager.store.protocol import Store

NAME: Final = "claimer"
"""What an instance would miss without this loop: it would take no work."""
LOOK_AFTER_S: Final = 0.5
"""How often it is looked whether the database is still there."""
FAILED_PAUSE_S: Final = 1.0
UNREAD_S: Final = 2.0
"""How long the store may be unreadable before that is said."""
FAILED_RECOVERY_PAUSE_S: Final = 0.25
CLOSE_POLL_S: Final = 0.002
CLOSE_WATCH_S: Final = 1.0
WATCH_S: Final = 0.025
"""How often the mark of the store is looked at while somebody may just have written."""
QUIET_WATCH_S: Final = 0.0625
"""How often it is looked at in other times, where the system does not tell of the next write."""
UNSETTLED_S: Final = 0.1
"""How long after a write its commit may come. A later one is noticed by the poll."""


class WriteWatch:
    """Has the store looked at soon after another instance has written: `look_soon` asks for that.

    It matters while somebody here waits for a task that others run, and beside instances that leave their tasks to
    others. In all other cases the look every `store_poll` seconds is soon enough, and this costs nothing. Where a
    server tells of each commit of others, a watch costs nothing either, and there is always one. But most of these
    commits may concern nobody here: after a look that has brought no work, the next one waits for `WATCH_S`. Three
    others that commit 150 times a second would else have an idle instance look 100 times a second, for a quarter of a
    core.

    A write shows before its commit counts. So the store is looked at again and again for a moment after a write. In
    quiet times the system wakes us, where it can.
    """

    def __init__(self, engine: Engine, look_soon: Callable[[], None]) -> None:
        self._store, self._life, self._follower = engine.store, engine.life, engine.follower
        self._dispatcher, self._neighbours, self._free_rows = engine.dispatcher, engine.neighbours, engine.free_rows
        self._only_enqueues = engine.settings.only_enqueues
        self._look_soon = look_soon
        self._timer: asyncio.TimerHandle | None = None
        self._descriptor: int | None = None
        """It can be read after the next write."""
        self._mark: object = None
        self._unsettled_until_s = self._quiet_until_s = 0.0
        self.has_brought_work = False
        """Whether the last look has."""
        self._follower.begins_to_wait = self._begin

    def __repr__(self) -> str:
        state = "waits for a write" if self._descriptor is not None else "idle" if self._timer is None else "looks"
        return f"<WriteWatch {state}>"

    @property
    def _is_awaited(self) -> bool:
        """Whether somebody here waits for what others do."""
        return bool(self._follower or self._free_rows.awaited_count)

    def begin(self) -> None:
        """Watch from now on, if it matters and is not done yet."""
        is_told = self._store.is_told
        if self._descriptor is not None and not is_told and self._store.mark() != self._mark:
            self._ring()  # it is another file by now, say, of which the system does not tell
        elif self._is_awaited or ((is_told or self._neighbours.leave_work) and not self._only_enqueues):
            self._begin()

    def close(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._descriptor is not None:
            self._life.loop.remove_reader(self._descriptor)
        self._timer = self._descriptor = None

    def _begin(self, pause_s: float = WATCH_S) -> None:
        life = self._life
        if self._timer is None and self._descriptor is None and life.is_up and not life.is_stopping:
            loop = life.loop
            self._timer = loop.call_at(next_beat(loop.time(), pause_s), self._look)

    def _ring(self) -> None:
        self.close()
        loop = self._life.loop
        if not self._store.is_told:
            self._unsettled_until_s = loop.time() + UNSETTLED_S  # its time may be that of the write before
            self._look()
        elif loop.time() < self._quiet_until_s and not (self.has_brought_work or self._is_awaited):
            self._timer = loop.call_at(self._quiet_until_s, self._look)
        else:
            self._look_at_once(self._store.mark())
            self._rest()

    def _look_at_once(self, mark: object) -> None:
        self._mark, self._quiet_until_s = mark, self._life.loop.time() + WATCH_S
        self._look_soon()

    def _look(self) -> None:
        self._timer, now_s = None, self._life.loop.time()
        mark = self._store.mark()
        if mark is None:  # nobody can tell
            return
        if self._store.is_told:
            self._rest()
            return
        if mark != self._mark:
            self._mark, self._unsettled_until_s = mark, now_s + UNSETTLED_S
        if now_s >= self._unsettled_until_s:
            self._rest()
            return
        if self._is_awaited or any(lane.has_room for lane in self._dispatcher.lanes.values()):
            self._look_soon()
        self.begin()

    def _rest(self) -> None:
        """Wait for the next write, which the system or the server tells of, or else look again."""
        descriptor, mark = self._store.watch(), self._store.mark()
        if descriptor is None or (mark != self._mark and not self._store.is_told):
            self._begin(QUIET_WATCH_S)
            return
        if mark != self._mark:  # it was told before the descriptor was there
            self._look_at_once(mark)
        try:
            self._life.loop.add_reader(descriptor, self._ring)
        except NotImplementedError:  # a loop of a GUI toolkit
            self._begin(QUIET_WATCH_S)
        else:
            self._descriptor = descriptor


async def make_due(store: Store, now_us: int) -> int:
    """Let stored tasks that were due before the wall clock was set back be due again. Return how many were not.

    It reads every row that is not due, so call it only after the clock was set back.
    """
    mended = await store.make_due(now_us)
    if mended:
        logger.warning("the wall clock was set back; due again, as before: %s", counted(mended, "stored task"))
    return mended


class Poller:
    """The loop of one engine that looks at the store, at the database, and at the other instances."""

    def __init__(
        self,
        engine: Engine,
        claimer: Claimer,
        sharing: Sharing,
        database_watch: DatabaseWatch,
        recover: Callable[[], Awaitable[int]],
        recover_strays: Callable[[], Awaitable[int]],
        others_left: Callable[[], None],
    ) -> None:
        self._store, self._clock, self._wall_clock = engine.store, engine.clock, engine.wall_clock
        self._identity, self._intake, self._live = engine.identity, engine.intake, engine.live
        self._dispatcher, self._window, self._writer = engine.dispatcher, engine.window, engine.writer
        self._follower, self._settings, self._failing_duties = engine.follower, engine.settings, engine.failing_duties
        self._life, self._claiming, self._neighbours = engine.life, engine.claiming, engine.neighbours
        self._free_rows = engine.free_rows
        self._claimer, self._runner = claimer, engine.runner
        self._sharing = sharing
        self.database_watch = database_watch
        self._recover, self._recover_strays, self._others_left = recover, recover_strays, others_left
        self.death = asyncio.Event()
        """Set while there may be an instance that has died, and of which something is to be recovered."""
        self._version: int | None = None
        self._news_mark: object = None
        self._whole_looks_had = 0
        """How many of those that were wanted are over. The others will be one look together."""
        self._steps_seen = 0
        self._looked_after_s = self._unread_since_s = 0.0
        self._next_look_s = 0.0
        self._pause: asyncio.Timeout | None = None
        self._write_watch = WriteWatch(engine, self._look_soon)
        database_watch.before_close = self._write_watch.close
        limited = [each for each in self._dispatcher.queues.values() if each.config.max_pending is not None]
        self._counted = [each for each in limited if not each.is_run_here]
        self._marks: tuple[object, object] = None, None
        """Of the last two looks."""

    @property
    def wants_whole_look(self) -> bool:
        """Whether the next look, or the one under way, reads all news, whatever the version of the store says."""
        return self._life.whole_looks_wanted != self._whole_looks_had

    def __repr__(self) -> str:
        seen = "wants a whole look" if self.wants_whole_look else f"saw version {self._version}"
        return f"<Poller {seen}, {self._neighbours!r}>"

    async def run(self) -> None:
        """Look at the store every `store_poll` seconds, and at once when asked.

        Whether the database is still there, and whether the others live, is looked at every half second at least, even
        if `store_poll` is longer: an instance that makes a lost log anew counts on that.
        """
        try:
            await self._run()
        finally:
            self._write_watch.close()

    async def _run(self) -> None:
        self._looked_after_s = now_s = self._life.loop.time()
        self._next_look_s = now_s + self._settings.store_poll_s
        while True:
            now_s = self._life.loop.time()
            is_close = self._follower.has_coming(now_s) and not self._settings.only_enqueues
            # The database itself is looked at every `LOOK_AFTER_S`, also where `store_poll` is longer.
            beat_s = next_beat(now_s, min(self._settings.store_poll_s, LOOK_AFTER_S))
            pause_s = CLOSE_POLL_S if is_close else min(beat_s - now_s, self._claimer.due_in_s())
            if self._next_look_s == 0.0:  # asked for during the last look, which may have missed it
                pause_s = 0.0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s) as self._pause:
                    await self._life.wants_claim.wait()
            self._write_watch.begin()
            try:
                await self._wake(is_close=is_close)
            except StoreUnavailable as exc:
                self._note_unread(exc)
                # A closed store fails without a turn of the loop: nothing else would run.
                await asyncio.sleep(pause_s)
                self._life.wants_claim.set()  # who asked still asks
            except Exception as exc:  # without this loop an instance would take no work, silently
                if NAME not in self._failing_duties:
                    is_known = isinstance(exc, StoreError)  # anything else is a bug of ours
                    if not (is_known and self.database_watch.is_told):
                        what = "failed" if is_known else "failed unexpectedly"
                        logger.critical("the claimer %s, and tries again: %s", what, exc, exc_info=not is_known)
                self._failing_duties[NAME] = f"{type(exc).__name__}: {exc}"
                await asyncio.sleep(FAILED_PAUSE_S)

    def _note_unread(self, fault: StoreUnavailable) -> None:
        """Say what keeps it from taking work, if that lasts and neither the writer nor the watch says it."""
        logger.debug("the store could not be read: %s", fault)
        now_s = self._life.loop.time()
        self._unread_since_s = self._unread_since_s or now_s
        is_told = self.database_watch.is_told or self._writer.degraded_since is not None
        if now_s - self._unread_since_s >= UNREAD_S and not is_told and NAME not in self._failing_duties:
            logger.error("the store cannot be read, so no work is taken from it; it is tried again: %s", fault)
            self._failing_duties[NAME] = str(fault)

    def _look_soon(self) -> None:
        """End the pause. If a look is under way, let the next one follow at once."""
        self._next_look_s = 0.0
        if self._pause is not None:
            with contextlib.suppress(RuntimeError):  # it is over already
                self._pause.reschedule(self._life.loop.time())

    async def _wake(self, *, is_close: bool) -> None:
        """Do one round: whatever it is time for."""
        time = self._life.loop.time
        if time() - self._looked_after_s >= LOOK_AFTER_S - EARLY_S:
            self._looked_after_s = time()
            await self.database_watch.look()
        if not self._life.is_stopping and self._neighbours.find_dead(time()):
            self.death.set()
        poll_s = self._settings.store_poll_s
        is_asked = is_close or self._life.wants_claim.is_set() or self._claimer.is_due(self._wall_clock.now_us())
        if is_asked or poll_s <= LOOK_AFTER_S or time() >= self._next_look_s - EARLY_S:
            self._next_look_s = time() + poll_s
            await self.look()
            self._unread_since_s = 0.0
            if self._failing_duties.pop(NAME, None) is not None:
                logger.warning("the store can be read again, and work is taken from it")

    async def recover_the_dead(self) -> None:
        """Recover the tasks of a dead instance when its death is noticed, not only at the next round of the reaper.

        What could not be recovered is tried again.

        This loop runs beside the one that looks, which has more to hear meanwhile: an instance whose lock file is gone
        is given time to put it back.
        """
        while True:
            await self.death.wait()
            self.death.clear()
            try:
                await self._recover()
            except StoreError as exc:
                self.death.set()
                logger.debug("what a dead instance left could not be taken over yet: %s", exc)
                await asyncio.sleep(FAILED_RECOVERY_PAUSE_S)
            except BaseException:
                self.death.set()
                raise
            else:
                self._life.wants_claim.set()

    # A transaction of the application itself.

    def watch_closely(self, task_id: str, tags_text: str | None) -> None:
        """A transaction of the application itself will bring this task: look every few milliseconds, until it has
        come, or has not for a while.
        """
        self._follower.may_come(task_id, tags_text, self._life.loop.time() + CLOSE_WATCH_S)
        if not self._settings.only_enqueues:
            self._life.wants_claim.set()

    async def _claim_submitted(self) -> None:
        """Claim submitted tasks before all else, because somebody waits for them."""
        if self._follower.coming and not self._life.is_stopping:
            await self._claimer.claim()
            self._follower.have_come(await self._store.fetch_ids(list(self._follower.coming)))

    # One look.

    async def look_first(self) -> None:
        """Look once at the start: the best tasks of a backlog begin, and the rest is claimed while they run."""
        try:
            await self.look()
        finally:
            self._life.wants_claim.set()

    async def look(self) -> None:
        """Look once: has anybody written, is anything due, was a claim asked for?"""
        self._intake.forget_idle_queues(self._dispatcher)  # no claim is under way that holds one
        asked = self._life.wants_claim.is_set()
        self._life.wants_claim.clear()
        wanted = self._life.whole_looks_wanted
        try:
            self._version = await self._look(is_whole=self.wants_whole_look, asked=asked)
        except BaseException:  # what this look had noticed before it failed would not be noticed again
            self._life.whole_looks_wanted += 1
            raise
        self._whole_looks_had = wanted

    async def _look(self, *, is_whole: bool, asked: bool) -> int:
        """Look, and return the version of the store that was seen."""
        claimer = self._claimer
        await claimer.ask_again()
        await self._follower.forget_late()
        version, news_mark = await self._store.changes(), self._store.news_mark()
        changed = is_whole or version != self._version
        now_us = self._wall_clock.now_us()
        is_due = await self._mend_due(now_us) or claimer.is_due(now_us)
        if changed:
            await self._claim_submitted()
            if is_whole or news_mark is None or news_mark != self._news_mark:
                await self._hear_news()
                self._news_mark = news_mark  # not at a look that hears nothing: it may differ before the version does
            for attempt in list(self._runner.running.values()):
                attempt.hear()
            self._life.kick()
        if len(self._follower) and (changed or asked or self._follower.needs_look):
            await self._follower.look_at_all(is_changed=changed)  # our own recovery may have ended one
        has_claimed = False
        if (changed or asked or is_due) and not self._life.is_stopping:
            if is_whole:
                await self._recover_strays()
            self._write_watch.has_brought_work = has_claimed = await claimer.claim()
        await self._sharing.look(changed=changed)
        if self._counted and self._needs_count(changed=changed):
            await self._count_free()
        self._free_rows.looked(has_claimed=has_claimed)
        return version

    def _needs_count(self, *, changed: bool) -> bool:
        """Whether the free rows must be counted again: some may have come or gone, by writes of others or of ours.

        Our own writes change the log only, and two soon after another may leave the same mark. So it is counted again
        at the next look. (To count 100,000 of them at each look would take a tenth of a core.)
        """
        mark, before = self._store.mark(), self._marks
        self._marks = before[1], mark
        has_left = any(each.left != each.left_before for each in self._counted)
        return changed or has_left or mark is None or before != (mark, mark)

    async def _count_free(self) -> None:
        """Count the free rows of queues that have a limit and are not run here."""
        async with self._writer.quiet:  # else a row of ours on its way is counted here, and in memory
            left = [each.left for each in self._counted]
            found = await self._store.free_queues(max(each.config.max_pending or 0 for each in self._counted))
        for queue, left_before in zip(self._counted, left, strict=True):
            queue.free_count = sum(each.count for each in found if each.queue_name == queue.config.name)
            queue.left_before = left_before
        self._dispatcher.wake_room_waiters()

    async def has_strays(self) -> bool:
        """Whether rows that a claim has taken may be in nobody's memory, because its answer was lost.

        It waits for a claim that is under way.
        """
        async with self._claiming:
            return self.wants_whole_look

    async def _mend_due(self, now_us: int) -> bool:
        """Keep due what was due before the wall clock was set back. Return whether there was anything."""
        count = self._wall_clock.step_count
        if self._steps_seen == count:
            return False
        for live in self._life.freed.values():
            if live.is_freeing:  # else its row would come after this look, with the time of the clock that was ahead
                live.renew_due(now_us, self._clock.elapsed_s())
        mended = await make_due(self._store, now_us)
        self._steps_seen = count
        return mended > 0

    async def _hear_news(self) -> None:
        before, pause_count = self._neighbours.living, self._dispatcher.pause_count
        news = await self._store.news(self._identity.instance_id)
        self._neighbours.registered(news.instances)
        if before - self._neighbours.living:
            self._others_left()
        was_shared, is_shared = self._window.is_shared, bool(self._neighbours.living)
        self._window.is_shared = self._writer.is_shared = is_shared
        if is_shared and not was_shared and not self._life.is_stopping:
            self._claimer.share()
        await self._hear_pauses(news.paused, pause_count)
        for task_id in news.cancel_requests:
            live = self._live.get(task_id)
            if live is not None:
                self._life.cancel(live)

    async def _hear_pauses(self, paused: frozenset[str], count: int) -> None:
        """Pause and resume queues as the store says. `count` is the `pause_count` of the dispatcher before the read."""
        while count != self._dispatcher.pause_count:  # else somebody here has paused or resumed one meanwhile
            count = self._dispatcher.pause_count
            paused = await self._store.paused_queues()
        for name in paused:
            self._dispatcher.queue(name)
        for name, queue in list(self._dispatcher.queues.items()):
            queue.is_paused = name in paused
