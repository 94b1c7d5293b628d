"""Taking free rows from the store, and noticing what other processes did there.

Functions are looked up before the claim, so a row of an unknown function is never touched. Memory takes only as many
rows as it has room for; the rest stays free, and costs nothing until there is room again.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Final

from taskmanager.engine.definition import timeout_of
from taskmanager.engine.dispatch import QueueState
from taskmanager.engine.engine import Engine
from taskmanager.engine.fairness import Fairness
from taskmanager.engine.instance import is_dead
from taskmanager.engine.live_task import LiveTask, Phase
from taskmanager.engine.shared_limit import SharedLimit
from taskmanager.engine.stall import next_beat
from taskmanager.model.errors import StoreError
from taskmanager.model.logger import logger
from taskmanager.model.record import TaskRow, TaskWrite, expected_of
from taskmanager.model.states import BuiltInTaskCode, TaskStatus
from taskmanager.model.wording import counted
from taskmanager.store.protocol import ClaimRequest, FreeQueue, Store

NAME: Final = "claimer"
CLAIM_PAGE: Final = 1_000
"""Rows per claim: bounds how long one claim holds the store, and the loop that takes its rows in."""
FIRST_PAGE: Final = 200
"""Rows per queue that are claimed before the start returns: the best of all, more than start at once by default."""
FILE_CHECK_S: Final = 0.5
"""How often it is looked whether the file is still there."""
DEATH_CHECK_S: Final = 0.25
"""How often it is looked whether the other instances live."""
EARLY_S: Final = 0.1
"""A look that is so much early is in time: the loop wakes in a rhythm, and not to the millisecond."""
BEST_PRIORITY: Final = 1
FAILED_PAUSE_S: Final = 1.0
CLOSE_POLL_S: Final = 0.002
CLOSE_WATCH_S: Final = 1.0


async def make_due(store: Store, now_us: int) -> int:
    """What was due when it was written is due, also where the wall clock has gone back since; how many rows were not.

    It reads every row that is not due, so it is for a clock that was set back.
    """
    mended = await store.make_due(now_us)
    if mended:
        logger.warning("the wall clock was set back; due again, as before: %s", counted(mended, "stored task"))
    return mended


def _given_back(row: TaskRow, now_us: int) -> TaskWrite:
    freed = row._replace(status=TaskStatus.PENDING.value, claimed_at=None, claimed_by_worker_id=None, updated_at=now_us)
    return TaskWrite(freed, expected_of(row))


class Claimer:
    """The loop that keeps memory filled from the store, one per engine."""

    def __init__(
        self,
        engine: Engine,
        *,
        give_up: Callable[[LiveTask], None],
        check_file: Callable[[], Awaitable[None]],
        on_death: Callable[[], None],
    ) -> None:
        self._engine = engine
        self.check_file = check_file
        self.on_death = on_death
        self._give_up = give_up
        self._reported_unknown: set[str] = set()
        self._version: int | None = None
        self._next_due_at: int | None = None
        self._is_owed = False
        self._is_first = False
        self._claiming = asyncio.Lock()
        """Held while a claim is under way: the rows it takes are neither free in the store nor in memory yet."""
        self._steps_seen = 0
        self._has_failed = False
        self._close_until = 0.0
        self._submitted: set[str] = set()
        self._others: set[str] = set()
        self._dead: set[str] = set()
        self._look_for_dead_s = 0.0
        self._fairness = Fairness(engine)

    async def run(self) -> None:
        """Look at the store every `store_poll` seconds, and at once when asked; at the file itself, and at whether
        the others live, whatever that says: whoever makes a lost log anew counts on it.
        """
        engine = self._engine
        checked_at = engine.loop.time()
        poll_s = min(engine.settings.store_poll_s, FILE_CHECK_S)
        is_often, look_at = poll_s == engine.settings.store_poll_s, checked_at + engine.settings.store_poll_s
        while True:
            is_close = bool(self._submitted) and engine.loop.time() < self._close_until
            if not is_close:
                self._submitted.clear()
            now_s = engine.loop.time()
            pause_s = CLOSE_POLL_S if is_close else next_beat(now_s, poll_s) - now_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await engine.wants_claim.wait()
            try:
                if engine.loop.time() - checked_at >= FILE_CHECK_S - EARLY_S:
                    checked_at = engine.loop.time()
                    await self.check_file()
                if self._finds_dead():
                    self.on_death()
                # A poll may be more seldom than what is to be noticed of the file and of the others.
                if is_close or is_often or engine.wants_claim.is_set() or engine.loop.time() >= look_at - EARLY_S:
                    look_at = engine.loop.time() + engine.settings.store_poll_s
                    await self.look()
                    self._has_failed = False
                    engine.failing_duties.pop(NAME, None)
            except StoreError as exc:
                logger.debug("the store could not be read: %s", exc)
                # Who asked still asks, and a closed store fails without a turn of the loop: nothing else would run.
                await asyncio.sleep(pause_s)
            except Exception as exc:  # noqa: BLE001  # without its claimer an instance would take no work, silently
                await self._survive(exc)

    async def _survive(self, exc: Exception) -> None:
        """A bug of ours: logged once in a row."""
        if not self._has_failed:
            logger.critical("the claimer failed unexpectedly, and tries again", exc_info=exc)
        self._has_failed = True
        self._engine.failing_duties[NAME] = f"{type(exc).__name__}: {exc}"
        await asyncio.sleep(FAILED_PAUSE_S)

    def look_is_owed(self) -> None:
        """Whatever the version of the store says, the next look is a whole one."""
        self._is_owed = True

    def watch_closely(self, task_id: str) -> None:
        """A transaction of the application itself will bring this task: look every few milliseconds, until it has
        come, or has not for a while.
        """
        self._submitted.add(task_id)
        self._close_until = self._engine.loop.time() + CLOSE_WATCH_S
        self._engine.wants_claim.set()

    async def look_first(self) -> None:
        """The look of a start: a backlog is begun with its best tasks, and the rest is claimed while they run."""
        self._is_first = True
        try:
            await self.look()
        finally:
            self._is_first = False
            self._engine.wants_claim.set()

    async def look(self) -> None:
        """One look: has anybody written, is anything due, was a claim asked for?"""
        engine = self._engine
        asked = engine.wants_claim.is_set()
        engine.wants_claim.clear()
        # A look that fails half-way is owed: what it had noticed would not be noticed again.
        was_owed, self._is_owed = self._is_owed, True
        version = await engine.store.data_version()
        changed = was_owed or version != self._version
        now_us = engine.wall_clock.now_us()
        is_due = await self._mend_due(now_us) or (self._next_due_at is not None and self._next_due_at <= now_us)
        if changed:
            if self._submitted and not engine.is_stopping:
                await self.claim()  # before all else: somebody waits for it
                self._submitted.difference_update(await engine.store.fetch_ids(list(self._submitted)))
            await self._hear_others()
        elif (asked or engine.follower.is_owed) and len(engine.follower):
            await engine.follower.look_at_all()  # our own recovery may have ended what is followed here
        if (changed or asked or is_due) and not engine.is_stopping:
            if was_owed:
                await self._take_strays()
            await self.claim()
        self._version, self._is_owed = version, False

    async def _mend_due(self, now_us: int) -> bool:
        """After a step back of the wall clock: what was due stays due. Whether any was."""
        count = self._engine.wall_clock.step_count
        if self._steps_seen == count:
            return False
        mended = await make_due(self._engine.store, now_us)
        self._steps_seen = count
        return mended > 0

    async def _hear_others(self) -> None:
        engine = self._engine
        instances = {each.instance_id for each in await engine.store.instances()} - {engine.identity.instance_id}
        self._others = instances - self._dead
        self._dead &= instances
        was_shared, engine.window.is_shared = engine.window.is_shared, bool(self._others)
        if engine.window.is_shared and not was_shared and not engine.is_stopping:
            self._share()
        count, paused = -1, frozenset[str]()
        while count != engine.dispatcher.pause_count:  # else somebody here has paused or resumed one meanwhile
            count = engine.dispatcher.pause_count
            paused = await engine.store.paused_queues()
        for name in paused:
            engine.dispatcher.queue(name)
        for name, queue in list(engine.dispatcher.queues.items()):
            queue.is_paused = name in paused
        for task_id in await engine.store.fetch_cancel_requests(engine.identity.instance_id):
            live = engine.live.get(task_id)
            if live is not None:
                engine.cancel(live)
        if len(engine.follower):
            await engine.follower.look_at_all()
        engine.kick()

    def _finds_dead(self) -> bool:
        """Whether an instance has died since the last look: its lock can be taken. Each is found once."""
        database, now_s = self._engine.settings.database, self._engine.loop.time()
        if database is None or self._engine.is_stopping or now_s < self._look_for_dead_s:
            return False
        self._look_for_dead_s = now_s + DEATH_CHECK_S - EARLY_S
        # One whose lock file was removed looks dead until it has put it back.
        self._others |= {each for each in self._dead if not is_dead(database, each)}
        found = {each for each in self._others if is_dead(database, each)}
        self._others -= found
        self._dead -= self._others
        self._dead |= found
        return bool(found)

    def _share(self) -> None:
        """Somebody else works on the file now: what was claimed for later is free for whoever can start it first."""
        for live in self._engine.window.surplus():
            live.phase, live.status, live.claimed_at = Phase.ACCEPTED, TaskStatus.PENDING, None
            self._engine.dispatcher.forget(live)
            self._engine.spill(live)

    async def claim(self) -> None:
        """Fill memory from the store, as far as there is room now. What starts meanwhile makes room for the next look:
        a backlog must not keep this loop from hearing of pauses, cancels and deaths.
        """
        async with self._claiming:
            if await self._claim_due() and not self._is_first:
                self._expect(await self._engine.store.free_queues())  # behind the rows that were due may be others

    def _expect(self, free: list[FreeQueue]) -> None:
        """Note when the next of these rows is due. What was left for want of room is asked for when there is some."""
        engine, now = self._engine, self._engine.clock.now_us()
        coming = [
            each.next_due_at
            for each in free
            if each.task_name in engine.definitions
            and (each.next_due_at > now or not engine.dispatcher.queue(each.queue_name).has_backlog)
        ]
        self._next_due_at = min(coming, default=None)

    async def _claim_due(self) -> bool:
        """One round over the queues; whether anything was claimed."""
        engine = self._engine
        for queue in list(engine.dispatcher.queues.values()):
            queue.leave_nothing()  # set again below, or by what spills from here on
        free = await engine.store.free_queues()
        self._report_unknown(free)
        known = [each for each in free if each.task_name in engine.definitions]
        now = engine.clock.now_us()
        self._next_due_at = min((each.next_due_at for each in known if each.next_due_at > now), default=None)
        self._fairness.unknown_here = [
            each for each in free if each.task_name not in engine.definitions and each.next_due_at <= now
        ]
        names_by_queue: dict[str, list[str]] = {}
        for each in known:
            if each.next_due_at <= now:
                names_by_queue.setdefault(each.queue_name, []).append(each.task_name)
        claimed = 0
        for queue_name, names in names_by_queue.items():
            queue = engine.dispatcher.queue(queue_name)
            fill = self._fill if queue.shared_limit is None else self._fill_shared
            claimed += await fill(queue, names)
        return claimed > 0

    async def has_strays(self) -> bool:
        """Whether rows that a claim has taken may be in nobody's memory. A claim under way is waited for."""
        async with self._claiming:
            return self._is_owed

    async def _take_strays(self) -> None:
        """Rows of a claim that failed after it had taken effect: ours in the store, and not in memory.

        With the answer it was lost which of them have a place of their own in a queue that is limited for the whole
        file, so those are given back, and claimed anew.
        """
        engine = self._engine
        me = engine.identity.instance_id
        after = ""
        while rows := await engine.store.fetch_owned([me], limit=CLAIM_PAGE, after=after):
            after = rows[-1].task_id
            returned: list[TaskWrite] = []
            for row in rows:
                is_here = row.task_id in engine.live or row.task_id in engine.writer.unsaved_ids
                if row.status != TaskStatus.CLAIMED or is_here or row.task_name not in engine.definitions:
                    continue
                queue = engine.dispatcher.queue(row.queue_name)
                if queue.shared_limit is None:
                    self._take(row)
                else:
                    returned.append(_given_back(row, engine.clock.now_us()))
                    queue.has_backlog = queue.shared_limit.is_owed = True
            if returned:
                await engine.store.commit(returned)

    async def _fill(self, queue: QueueState, names: list[str]) -> int:
        """Claim for one queue, and note when rows are left for want of room; how many were claimed."""
        most, name = self._engine.window.claimable, queue.config.name
        room = most - queue.stored_waiting
        if self._is_first:
            room = min(room, FIRST_PAGE)
        claimed, best_left = await self._claim_up_to(room, name, names, None)
        if claimed < room:
            return claimed
        if not self._is_first:  # better ones than the worst held may use as much room again
            room, better_than = 2 * most - queue.stored_waiting, self._engine.dispatcher.worst_priority(name)
            better, last = await self._claim_up_to(room, name, names, better_than)
            claimed += better
            if better_than is None and better < room:
                return claimed
            best_left = max(best_left, last if better >= room or better_than is None else better_than)
        queue.leave(best_left)
        return claimed

    async def _claim_up_to(
        self, room: int, queue_name: str, names: list[str], better_than: int | None
    ) -> tuple[int, int]:
        """Page by page; how many were claimed, fewer than there is room for only where no more are left; and the
        priority of the last one: what is left is no better.
        """
        engine, claimed, last = self._engine, 0, BEST_PRIORITY
        while claimed < room and not engine.is_stopping:
            limit = min(room - claimed, CLAIM_PAGE)
            request = ClaimRequest(
                engine.identity.instance_id, names, queue_name, limit, engine.clock.now_us(), better_than
            )
            rows = await engine.store.claim(request)
            for row in rows:
                self._take(row)
            claimed += len(rows)
            last = rows[-1].priority if rows else last
            if len(rows) < limit:
                break
        return claimed, last

    async def _fill_shared(self, queue: QueueState, names: list[str]) -> int:
        """Claim for a queue whose limit holds for all instances: no more than can start here at once.

        Whether rows are left nobody says, so there may be some, until a look finds none.
        """
        engine, shared = self._engine, queue.shared_limit
        assert shared is not None
        queue.has_backlog = True
        is_closed = queue.is_paused or engine.is_stopping or shared.is_left_to_others
        if is_closed or await self._fairness.yields(queue, names, self._others):
            shared.is_owed = True
            return 0
        shared.is_owed = False
        shared.short_lanes.clear()
        claimed = 0
        for lane, slots in engine.dispatcher.lanes.items():
            known = [name for name in names if engine.definitions[name].lane == lane]
            room = slots.free - shared.waiting_in(lane, engine.live)
            if known and room <= 0:
                shared.short_lanes.add(lane)
            elif known:
                got = await self._claim_shared(queue, shared, known, min(room, CLAIM_PAGE))
                claimed += got
                if got >= room:
                    shared.short_lanes.add(lane)
        return claimed

    async def _claim_shared(self, queue: QueueState, shared: SharedLimit, names: list[str], limit: int) -> int:
        engine = self._engine
        stuck = shared.count(engine.live, engine.runner.abandoned_in(queue.config.name))
        lenders = shared.lenders(engine.live)
        now, me = engine.clock.now_us(), engine.identity.instance_id
        request = ClaimRequest(me, names, queue.config.name, limit, now)._replace(
            file_limit=max(0, shared.limit - stuck), lenders=lenders, borrowed=shared.borrowed
        )
        rows = await engine.store.claim(request)
        # What was committed before the claim is known here by now: memory says what the claim has seen.
        shared.count(engine.live, engine.runner.abandoned_in(queue.config.name))
        lent = max(0, shared.held_of(lenders) - shared.borrowed)
        for number, row in enumerate(rows):
            self._take(row, is_granted=number >= lent)
        return len(rows)

    def _take(self, row: TaskRow, *, is_granted: bool = True) -> None:
        engine = self._engine
        shared = engine.dispatcher.queue(row.queue_name).shared_limit
        if shared is not None:
            shared.hold(row.task_id, is_granted=is_granted)
        here = engine.live.get(row.task_id)
        if here is not None and not here.awaits_row and not here.is_spilled:
            # It was taken from us as if we were dead, and is free again.
            self._give_up(here)
            here = None
        live = engine.spilled.pop(row.task_id, None) if here is None else here
        if live is None:
            definition = engine.definitions[row.task_name].as_persisted()
            live = LiveTask.from_row(row, definition, timeout_of(row.task_options))
            live.context = Context()
        else:
            live.adopt(row)
        if here is None:
            engine.live[live.task_id] = live
            engine.dispatcher.entered_waiting(live)
        elif live.awaits_row:  # the key was enqueued again here a moment before its row was claimed
            live.is_duplicate = True
        live.awaits_row = live.is_spilled = False
        live.phase = Phase.ACCEPTED
        live.due = 0.0
        engine.intake.claimed(live)
        if live.cancel_requested_at is not None and not engine.is_stopping:
            engine.cancel_waiting(live, BuiltInTaskCode.TASK_CANCELLED, "cancelled before it started")
        elif not engine.runner.after(live.task_id, lambda: self._enter_at_last(live)):
            engine.enter(live)

    def _enter_at_last(self, live: LiveTask) -> None:
        """The code of the attempt that was given up has ended."""
        if live.phase is Phase.ACCEPTED:
            self._engine.enter(live)

    def _report_unknown(self, free: list[FreeQueue]) -> None:
        for each in free:
            if each.task_name not in self._engine.definitions and each.task_name not in self._reported_unknown:
                self._reported_unknown.add(each.task_name)
                logger.warning(
                    "%s of the unknown function %r in the store, where that stays until the function is registered",
                    counted(each.count, "task"),
                    each.task_name,
                    extra={"task_name": each.task_name},
                )
