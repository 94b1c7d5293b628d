"""Fires the schedules of one instance, together with all others on the same store: each fire once.

A fire is one verb of the store: the schedule moves on, and the task stands there as a free row for whoever has room.
Who loses that race reads what the winner has written; it is a normal answer. A store that does not answer, a full
queue, or one schedule that raises holds up nothing else: it is said, and tried again.

The instance that started last owns a definition. One that defines a schedule otherwise does not fire it while the owner
is there; when the owner is gone, whoever still declares the schedule takes it over.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from taskmanager.duties.schedule_book import ScheduleBook
from taskmanager.engine.engine import Engine
from taskmanager.engine.schedule import Schedule, task_of
from taskmanager.model.clock import MINUTE_US, SECOND_US, from_us
from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.model.logger import logger
from taskmanager.model.schedule import ScheduleDeclaration, ScheduleFire, ScheduleRow
from taskmanager.model.wording import counted
from taskmanager.rules.schedule import Hold, Wait, judge

PAGE: Final = 250
"""Fires per transaction: bounds how long one holds the store, and deciding them the loop (about 25 ms)."""
DECLARED_PAGE: Final = 1_000
"""Declarations per transaction, for the same reasons."""
RECHECK_S: Final = 5.0
"""How often the wall clock, and what others wrote, is looked at while nothing is due."""
NAME: Final = "schedules"
RETRY_S: Final = 1.0
"""How soon what could not be done now is tried again."""
UNWATCHED_S: Final = 10.0
"""After this long without a look the machine slept, or the process was stopped: what came due meanwhile was missed."""
FIRST_LOOK_US: Final = 5_000
LATE_WRITE_US: Final = MINUTE_US
"""A write waits for the store after it was stamped; this long at most where the store is of any use."""


class Schedules:
    """One per start of a manager."""

    def __init__(self, engine: Engine, schedules: Mapping[str, Schedule]) -> None:
        self._engine = engine
        self._schedules = schedules
        self.book = ScheduleBook()
        self._new: deque[Schedule] = deque(schedules.values())
        self._orphans: set[str] = set()
        self._startup: set[str] = set()
        self._declaring = asyncio.Lock()
        self._holds: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._version: int | None = None
        self._watched_since = 0
        self._looked_s: float | None = None
        self._heard_s = 0.0
        self._heard_at: int | None = None
        self._steps_heard = 0
        self._steps_seen = 0
        self._full_queues: set[str] = set()
        self._is_store_silent = False

    def __repr__(self) -> str:
        return f"<Schedules {self.book!r}>"

    def add(self, schedule: Schedule) -> None:
        """A schedule was declared while the manager runs. From any thread."""
        self._new.append(schedule)
        self._engine.turn.tell(self._changed.set)

    def next_due_in_s(self) -> float | None:
        """Seconds until something happens here by itself, None when nothing will."""
        if self._engine.is_stopping:
            return None
        if self._new:
            return 0.0
        at_us = self.book.next_look()
        return None if at_us is None else max(0.0, (at_us - self._engine.clock.now_us()) / SECOND_US)

    # The loop.

    async def run(self) -> None:
        """A round whenever something is due, until cancelled."""
        while True:
            pause_s = RETRY_S
            try:
                await self.run_once()
                self._engine.failing_duties.pop(NAME, None)
                due_in_s = self.next_due_in_s()
                pause_s = RECHECK_S if due_in_s is None else min(RECHECK_S, due_in_s)
            except StoreError as exc:
                if not self._is_store_silent:
                    logger.warning("the schedules wait for the store, and try again: %s", exc)
                self._is_store_silent = True
            except Exception as exc:  # a mistake of ours in one round must not end all schedules for ever
                self._engine.failing_duties[NAME] = f"{type(exc).__name__}: {exc}"
                logger.exception("a round of the schedules failed, and is tried again")
            if pause_s > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._changed.wait()
            else:
                await asyncio.sleep(0)
            self._changed.clear()

    async def open(self) -> None:
        """What a start does before anything runs: declare everything. Again when an instance has died: what that one
        owned is taken over, and nothing that others wrote is passed over. Raises `StoreError`.
        """
        self._heard_at, self._heard_s = self._watch(), self._engine.clock.elapsed_s()
        self._version = await self._engine.store.data_version()
        await self.declare()
        rows = await self._engine.store.schedules()
        self._take(rows)
        self._changed.set()
        names = [row.schedule_name for row in rows if not row.is_declared]
        if lonely := [name for name in names if name not in self.book.declared]:
            logger.info(
                "%s of the file declared by no instance that runs, and not fired: %s",
                counted(len(lonely), "schedule"),
                ", ".join(lonely[:5]),
            )

    async def run_once(self) -> None:
        """Declare what is new, hear what others did, and fire what is due."""
        await self.declare()
        await self._hear_others()
        while not self._engine.is_stopping:
            now = self._watch()
            due = self.book.pop_due(now, PAGE)
            if not due:
                break
            try:
                await self._fire_page(due, now)
            except BaseException:
                for name in due:
                    self.book.plan(name, now)
                raise
            self._is_store_silent = False

    def _watch(self) -> int:
        """The wall time; and notice that nobody looked for a while, or that the wall clock was stepped."""
        engine = self._engine
        now, now_s = engine.wall_clock.now_us(), engine.clock.elapsed_s()
        step_count = engine.wall_clock.step_count
        if self._looked_s is None or now_s - self._looked_s > UNWATCHED_S or step_count != self._steps_seen:
            self._watched_since = now
        self._looked_s, self._steps_seen = now_s, step_count
        return now

    # Declaring, and hearing what others did.

    async def declare(self) -> None:
        """Tell the store what is new here, and take over what nobody else declares any more.

        When it returns, all that was declared before the call is in the store, whoever of several callers told it.
        """
        async with self._declaring:
            known = len(self.book.declared) + len(self._new)
            if len(self._schedules) > known:  # declared in the middle of the start
                every = list(self._schedules.items())
                self._new.extend(each for name, each in every if name not in self.book.declared)
            for _ in range(0, max(len(self._new), len(self._orphans)), DECLARED_PAGE):
                fresh = [self._new.popleft() for _ in range(min(DECLARED_PAGE, len(self._new)))]
                orphans = set(islice(self._orphans, DECLARED_PAGE))
                self._orphans -= orphans
                await self._declare(fresh, orphans)

    async def _declare(self, fresh: list[Schedule], orphans: set[str]) -> None:
        engine, book = self._engine, self.book
        book.declared.update((each.name, each) for each in fresh)
        names = [*orphans, *(each.name for each in fresh)]
        try:
            before = {row.schedule_name: row for row in await engine.store.schedules(names)}
            now = engine.wall_clock.now_us()
            declared = [book.declared[name].declaration(before.get(name), now) for name in dict.fromkeys(names)]
            gone = {name: book.rows[name] for name in names if name in book.rows and name not in before}
            declared = [_as_it_was(each, gone.get(each.schedule_name)) for each in declared]
            await engine.store.declare_schedules(declared, engine.identity.instance_id, now)
            for name, row in gone.items():
                if row.paused_at is not None:
                    await engine.store.set_schedule_paused(name, True, now)
            rows = await engine.store.schedules(names)
        except BaseException:
            self._new.extendleft(reversed(fresh))
            self._orphans |= orphans
            raise
        # Asked of the rows: the answer of a declaration that was made twice says nothing of the first time.
        owned = {row.schedule_name for row in rows if row.owner_id == engine.identity.instance_id}
        self._startup.update(each.name for each in fresh if each.run_on_startup and each.name in owned)
        for row in rows:
            _log_change(before.get(row.schedule_name), row)
        self._take(rows)

    async def _hear_others(self) -> None:
        engine, now_s = self._engine, self._engine.clock.elapsed_s()
        if not self.book.declared or now_s - self._heard_s < RECHECK_S:
            return
        self._heard_s = now_s
        version = await engine.store.data_version()
        if version == self._version:
            return
        now = engine.wall_clock.now_us()
        if self._heard_at is None or engine.wall_clock.step_count != self._steps_heard:
            await self.refresh()  # the instants by which changes are found mean nothing now
        else:
            self._take(await engine.store.schedules(changed_since=self._heard_at - LATE_WRITE_US))
            # Whoever resumes one may have another clock. What is fired here, the store refuses when it was changed.
            self._take(await engine.store.schedules(self.book.parked(PAGE)))
            alive = {each.instance_id for each in await engine.store.instances()}
            self._orphans |= {name for name, row in self.book.rows.items() if row.owner_id not in alive}
        self._heard_at, self._steps_heard, self._version = now, engine.wall_clock.step_count, version

    async def refresh(self, names: Sequence[str] | None = None) -> None:
        """Read what the store says of these schedules, or of all; one that is not there any more is declared again."""
        wanted = list(self.book.declared) if names is None else names
        rows = await self._engine.store.schedules(wanted)
        self._take(rows)
        self._orphans |= {name for name in wanted if name in self.book.declared} - {row.schedule_name for row in rows}
        self._changed.set()

    def _take(self, rows: Iterable[ScheduleRow]) -> None:
        """What the store says counts from now on."""
        foreign = []
        for row in rows:
            name = row.schedule_name
            schedule = self.book.declared.get(name)
            if schedule is None:
                continue
            before = self.book.rows.get(name)
            self.book.rows[name] = row
            if not row.is_declared:
                self._orphans.add(name)
            if row.config_hash != schedule.config_hash:
                self.book.park(name)
                if row.is_declared and (before is None or before.config_hash != row.config_hash):
                    foreign.append(f"{name} ({row.definition})")
            elif row.paused_at is not None:
                self._startup.discard(name)
                self.book.park(name)
            elif row.next_run_at is None or name in self._startup:
                self.book.plan(name, 0)
            else:
                self.book.plan(name, schedule.plan.timing.due(row.next_run_at))
        if foreign:
            logger.warning(
                "an instance that started later defines %s otherwise, so that it fires them and this one does not: %s",
                counted(len(foreign), "schedule"),
                ", ".join(foreign[:5]),
            )

    # Firing.

    async def _fire_page(self, names: Sequence[str], now: int) -> None:
        """One transaction for all that is due, or as many as must be told apart."""
        declared, busy = self.book.declared, frozenset[str]()
        if alone := [name for name in names if declared[name].plan.overlap != "allow"]:
            busy = await self._engine.store.busy_schedules(alone)
        fires = []
        for name in names:
            try:
                fire = self._decide(name, now, name in busy)
            except Exception:  # one schedule that cannot be computed must not hold up the others
                logger.exception("schedule %s could not be fired, and is tried again", name)
                self.book.plan(name, now + int(UNWATCHED_S * SECOND_US))
                continue
            if fire is not None:
                fires.append(fire)
        if fires:
            await self._fire(fires)

    def _decide(self, name: str, now: int, is_busy: bool) -> ScheduleFire | None:
        """The step to be written, or None where it is planned to look again."""
        schedule, row = self.book.declared[name], self.book.rows[name]
        if name in self._startup:
            if not is_busy or schedule.plan.overlap == "allow":
                return self._run_now(schedule, row, now)
            if schedule.plan.overlap == "skip":
                self._startup.discard(name)
        step = judge(schedule.plan, row.next_run_at, now, self._watched_since, is_busy)
        if isinstance(step, Wait):
            self.book.plan(name, self._soon(name, now) if name in self._startup else step.until_us)
            return None
        if isinstance(step, Hold):
            self.book.plan(name, self._soon(name, now))
            return None
        self._holds.pop(name, None)
        task = None
        if step.fire_at is not None:
            if self._is_full(schedule):
                self.book.plan(name, now + int(RETRY_S * SECOND_US))
                return None
            task = task_of(schedule.template, schedule.fire_id(step.fire_at), step.fire_at, now)
        if step.reason is not None and row.next_run_at is not None:
            logger.info("schedule %s: fires from %s on are dropped (%s)", name, from_us(row.next_run_at), step.reason)
        is_alone = task is not None and schedule.plan.overlap != "allow"
        return ScheduleFire(name, schedule.config_hash, row.next_run_at, step.next_run_at, task, now, is_alone=is_alone)

    def _soon(self, name: str, now: int) -> int:
        """When to look again whether an earlier run has ended: at once after it began, and ever more patiently."""
        holds = self._holds[name] = self._holds.get(name, 0) + 1
        return now + min(FIRST_LOOK_US << min(holds, 20), int(self._engine.settings.store_poll_s * SECOND_US))

    def _run_now(self, schedule: Schedule, row: ScheduleRow, now: int) -> ScheduleFire:
        """The run at the start of the owner; the fires that are planned stay as they are.

        Written again when nobody knows whether it was, so its id is that of the start.
        """
        task = task_of(schedule.template, schedule.startup_id(self._engine.identity.instance_id), now, now)
        at, is_alone = row.next_run_at, schedule.plan.overlap != "allow"
        return ScheduleFire(schedule.name, schedule.config_hash, at, at, task, now, is_alone=is_alone)

    def _is_full(self, schedule: Schedule) -> bool:
        queue = schedule.queue_name
        if not self._engine.intake.is_full(queue):
            self._full_queues.discard(queue)
            return False
        if queue not in self._full_queues:
            self._full_queues.add(queue)
            logger.warning("queue %r is full: schedule %s and others fire when there is room", queue, schedule.name)
        return True

    async def _fire(self, fires: Sequence[ScheduleFire]) -> None:
        engine = self._engine
        if engine.is_stopping:
            for each in fires:
                self.book.plan(each.schedule_name, each.now)
            return
        try:
            lost = await engine.store.fire_schedules(fires)
        except StoreUnavailable:
            raise
        except StoreError as exc:
            await self._fire_apart(fires, exc)
            return
        finally:
            if any(each.task is not None for each in fires):
                engine.wants_claim.set()  # also when only the answer was lost: the task stands there, free
        for each in fires:
            if each.schedule_name not in lost:
                self._moved(each)
        if lost:
            await self.refresh(list(lost))

    async def _fire_apart(self, fires: Sequence[ScheduleFire], exc: StoreError) -> None:
        """The store will never take one of them: find out which, and try that one again at its next fire."""
        if len(fires) > 1:
            for each in fires:
                await self._fire([each])
            return
        (guilty,) = fires
        name = guilty.schedule_name
        logger.error("schedule %s could not be fired, and is tried again at its next fire: %s", name, exc)
        self.book.plan(name, self.book.declared[name].plan.timing.after(guilty.now, guilty.expected_next))

    def _moved(self, fire: ScheduleFire) -> None:
        """The step is in the store."""
        name, book = fire.schedule_name, self.book
        row = book.rows[name]._replace(next_run_at=fire.next_run_at, updated_at=fire.now)
        if fire.task is not None:
            row = row._replace(last_run_at=fire.now, last_task_id=fire.task.task_id, run_count=row.run_count + 1)
            logger.debug("schedule %s fired for %s", name, from_us(fire.task.scheduled_for or fire.now))
        book.rows[name] = row
        self._startup.discard(name)
        book.plan(name, 0 if row.next_run_at is None else book.declared[name].plan.timing.due(row.next_run_at))


def _as_it_was(declaration: ScheduleDeclaration, row: ScheduleRow | None) -> ScheduleDeclaration:
    """One whose row was lost with its file goes on with the fire that was planned."""
    if row is None or row.next_run_at is None or row.config_hash != declaration.config_hash:
        return declaration
    return declaration._replace(next_run_at=row.next_run_at)


def _log_change(before: ScheduleRow | None, row: ScheduleRow) -> None:
    if before is not None and before.definition != row.definition and row.next_run_at is not None:
        logger.info(
            "schedule %s is %s now, not %s any more; it fires next at %s",
            row.schedule_name,
            row.definition,
            before.definition,
            from_us(row.next_run_at),
        )
