"""Fires what is due: decides the next step of each schedule, and writes the steps in one transaction.

A fire is one verb of the store: the schedule moves on, and the task stands there as a free row for whoever has room.
Who loses that race reads what the winner has written; it is a normal answer.
"""

from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Final

from taskmanager.duties.schedule import Schedule, task_of
from taskmanager.duties.schedule_book import ScheduleBook
from taskmanager.engine.engine import Engine
from taskmanager.model.clock import SECOND_US, from_us
from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.model.logger import logger
from taskmanager.model.record import TaskRow
from taskmanager.model.schedule import ScheduleFire, ScheduleRow
from taskmanager.rules.schedule import Hold, Move, judge

PAGE: Final = 250
"""Fires per transaction: bounds how long one holds the store, and deciding them the loop (about 25 ms)."""
RETRY_S: Final = 1.0
"""How soon what could not be done now is tried again."""
UNWATCHED_S: Final = 10.0
"""After this long without a look the machine slept, or the process was stopped: what came due meanwhile was missed."""
FIRST_LOOK_US: Final = 5_000


class Firing:
    """Fires the schedules of one start. `refresh` reads a schedule again if others have moved it before its step.

    What came due before `_watched_since` was missed: from then on the wall clock was looked at without a gap.
    """

    def __init__(self, engine: Engine, book: ScheduleBook, refresh: Callable[[Sequence[str]], Awaitable[None]]) -> None:
        self._store, self._identity, self._intake = engine.store, engine.identity, engine.intake
        self._clock, self._wall_clock = engine.clock, engine.wall_clock
        self._settings, self._life, self._free_rows = engine.settings, engine.life, engine.free_rows
        self._book = book
        self._refresh = refresh
        self._watched_since = self._step_count = 0
        self._looked_s = -inf
        self._hold_counts: dict[str, int] = {}
        self._full_queues: set[str] = set()

    def __repr__(self) -> str:
        return f"<Firing, {len(self._hold_counts)} held, watched since {self._watched_since}>"

    @property
    def has_stepped(self) -> bool:
        """Whether the wall clock was stepped since the last look. Then a planned run may be due by now, or far away."""
        return self._wall_clock.step_count != self._step_count

    def look(self) -> int:
        """Return the wall time. Plan anew if nobody has looked for a while, or the wall clock was stepped."""
        now, now_s = self._wall_clock.now_us(), self._clock.elapsed_s()
        if now_s - self._looked_s > UNWATCHED_S or self.has_stepped:
            self._watched_since = now
            self._book.plan_anew(now)
        self._looked_s, self._step_count = now_s, self._wall_clock.step_count
        return now

    async def fire_due(self) -> bool:
        """Fire what is due, a page of it at most. Return False if nothing is."""
        now = self.look()
        due = self._book.pop_due(now, PAGE)
        if not due:
            return False
        try:
            await self._fire_page(due, now)
        except BaseException:
            for name in due:
                self._book.plan(name, now)
            raise
        return True

    async def _fire_page(self, names: Sequence[str], now: int) -> None:
        """Decide these schedules, and write their steps in one transaction."""
        declared, busy = self._book.declared, frozenset[str]()
        if alone := [name for name in names if declared[name].runs_alone]:
            busy = await self._store.busy_schedules(alone)
        fires = []
        for name in names:
            try:
                fire = self._decide(name, now, name in busy)
            except Exception:  # one schedule that cannot be computed must not hold up the others
                logger.exception("schedule %s could not be fired, and is tried again", name)
                self._book.plan(name, now + int(UNWATCHED_S * SECOND_US))
                continue
            if fire is not None:
                fires.append(fire)
        if fires:
            await self._write(fires)

    # What is to be done.

    def _decide(self, name: str, now: int, is_busy: bool) -> ScheduleFire | None:
        """Return the step to be written, or None after planning when to look again."""
        book = self._book
        schedule, row = book.declared[name], book.rows[name]
        if name in book.owed_at_startup:
            if not (is_busy and schedule.runs_alone):
                # It may be written twice, if the first answer was lost: so its id is made from that of the start.
                task = task_of(schedule.template, schedule.run_id(self._identity.instance_id), now, now)
                return _step(schedule, row, row.next_run_at, now, task)
            if schedule.plan.overlap == "skip":
                book.owed_at_startup.discard(name)
        if (at := book.anew(row, now)) is not None:
            logger.warning("schedule %s was planned by a clock that was ahead; it fires next at %s", name, from_us(at))
            return _step(schedule, row, at, now)
        step = judge(schedule.plan, row.next_run_at, now, self._watched_since, is_busy)
        if isinstance(step, Move):
            return self._move(schedule, row, step, now)
        if isinstance(step, Hold) or name in book.owed_at_startup:
            book.plan(name, self._soon(name, now))
        else:
            book.plan(name, step.until_us)
        return None

    def _move(self, schedule: Schedule, row: ScheduleRow, step: Move, now: int) -> ScheduleFire | None:
        """Return the step with which the schedule moves on; None while its queue is full, so that it waits."""
        name = schedule.name
        self._hold_counts.pop(name, None)
        task = None
        if step.fire_at is not None:
            if self._is_full(schedule):
                self._book.plan(name, now + int(RETRY_S * SECOND_US))
                return None
            task = task_of(schedule.template, schedule.run_id(step.fire_at), step.fire_at, now)
        if step.reason is not None and row.next_run_at is not None:
            logger.info("schedule %s: fires from %s on are dropped (%s)", name, from_us(row.next_run_at), step.reason)
        return _step(schedule, row, step.next_run_at, now, task)

    def _soon(self, name: str, now: int) -> int:
        """Return when to look again whether an earlier run has ended: soon at first, then ever more seldom."""
        holds = self._hold_counts[name] = self._hold_counts.get(name, 0) + 1
        return now + min(FIRST_LOOK_US << min(holds, 20), int(self._settings.store_poll_s * SECOND_US))

    def _is_full(self, schedule: Schedule) -> bool:
        queue = schedule.queue_name
        if not self._intake.is_full(queue):
            self._full_queues.discard(queue)
            return False
        if queue not in self._full_queues:
            self._full_queues.add(queue)
            logger.warning("queue %r is full: schedule %s and others fire when there is room", queue, schedule.name)
        return True

    # Writing it.

    async def _write(self, fires: Sequence[ScheduleFire]) -> None:
        if self._life.is_stopping:
            for each in fires:
                self._book.plan(each.schedule_name, each.now)
            return
        self._free_rows.will_put([each.task.task_id for each in fires if each.task is not None], is_once=True)
        try:
            lost = await self._store.fire_schedules(fires)
        except StoreUnavailable:
            raise
        except StoreError as exc:
            await self._write_apart(fires, exc)
            return
        finally:
            if any(each.task is not None for each in fires):
                self._life.wants_claim.set()  # also when only the answer was lost: the task stands there, free
        for each in fires:
            if each.task is not None:
                self._free_rows.note_put(each.task, is_ours=each.schedule_name not in lost)
            if each.schedule_name not in lost:
                self._book.fired(each)
                if each.task is not None:
                    for_us = each.task.scheduled_for or each.now
                    logger.debug("schedule %s fired for %s", each.schedule_name, from_us(for_us))
        if lost:
            await self._refresh(list(lost))

    async def _write_apart(self, fires: Sequence[ScheduleFire], exc: StoreError) -> None:
        """Write the steps one by one: the store refuses one of them for good, and that one waits for its next fire."""
        if len(fires) > 1:
            for each in fires:
                await self._write([each])
            return
        (guilty,) = fires
        name = guilty.schedule_name
        logger.error("schedule %s could not be fired, and is tried again at its next fire: %s", name, exc)
        self._book.pass_over(guilty)


def _step(
    schedule: Schedule, row: ScheduleRow, next_run_at: int | None, now: int, task: TaskRow | None = None
) -> ScheduleFire:
    """Return the step that moves the schedule from its row to `next_run_at`, with a run or without one."""
    is_alone = task is not None and schedule.runs_alone
    return ScheduleFire(schedule.name, schedule.config_hash, row.next_run_at, next_run_at, task, now, is_alone=is_alone)
