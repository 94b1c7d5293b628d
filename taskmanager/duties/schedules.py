"""Fires the schedules of one instance, together with all others on the same store: each fire once.

A store that does not answer, a full queue, or one schedule that raises holds up nothing else: it is said, and tried
again.

The instance that started last owns a definition. One that defines a schedule otherwise does not fire it while the owner
is there; when the owner is gone, whoever still declares the schedule takes it over.
"""

import asyncio
import heapq
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Final

from taskmanager.duties.schedule import Schedule, run_by_hand, set_paused
from taskmanager.duties.schedule_book import ScheduleBook
from taskmanager.duties.schedule_firing import RETRY_S, Firing
from taskmanager.engine.engine import Engine
from taskmanager.engine.words.loops import shielded
from taskmanager.model.checks import check_schedule_name
from taskmanager.model.clock import MINUTE_US, SECOND_US, from_us
from taskmanager.model.errors import StoreError
from taskmanager.model.ids import new_task_id
from taskmanager.model.logger import logger
from taskmanager.model.report import ScheduleInfo
from taskmanager.model.schedule import ScheduleRow
from taskmanager.model.wording import counted

NAME: Final = "schedules"
MAX_UPCOMING: Final = 100
DECLARED_PAGE: Final = 1_000
"""Declarations per transaction: bounds how long one holds the store, and making them the loop."""
RECHECK_S: Final = 5.0
"""How often the wall clock, and what others wrote, is looked at while nothing is due."""
PARKED_PAGE: Final = 250
"""How many of those that are not fired here are asked for at once, whether they changed or not."""
LATE_WRITE_US: Final = MINUTE_US
"""A write waits for the store after it was stamped; this long at most where the store is of any use."""


class Schedules:
    """One per start of a manager; `declared` are the schedules of the manager, which may grow at any time."""

    def __init__(self, engine: Engine, declared: Mapping[str, Schedule]) -> None:
        self._store, self._clock, self._wall_clock = engine.store, engine.clock, engine.wall_clock
        self._identity, self._inbox, self._life = engine.identity, engine.inbox, engine.life
        self._free_rows = engine.free_rows
        self._failing_duties = engine.failing_duties
        self._declared = declared
        self._was_added = False
        self.book = ScheduleBook(engine.identity.instance_id)
        self._firing = Firing(engine, self.book, self.refresh)
        self._unread: set[str] = set()
        """Schedules that a person has changed here, and that could not be read since."""
        self._changed = asyncio.Event()
        self._declaring = asyncio.Lock()
        self._version: int | None = None
        self._read_s = 0.0
        self._read_at = self._step_count = 0
        self._is_store_silent = False

    def __repr__(self) -> str:
        return f"<Schedules {self.book!r}>"

    # The rounds.

    async def open(self) -> None:
        """What a start does before anything runs: declare everything, and read everything. Again when an instance has
        died: what that one owned is taken over, and nothing that others wrote is passed over. Raises `StoreError`.
        """
        self._read_at, self._read_s = self._firing.look(), self._clock.elapsed_s()
        self._version = await self._store.changes()
        await self.declare()
        rows = await self._store.schedules()
        self.book.take_in(rows, self._read_at)
        self._changed.set()
        names = [row.schedule_name for row in rows if not row.is_declared]
        if lonely := [name for name in names if name not in self.book.declared]:
            logger.info(
                "%s of the file declared by no instance that runs, and not fired: %s",
                counted(len(lonely), "schedule"),
                ", ".join(lonely[:5]),
            )

    async def run(self) -> None:
        """A round whenever something is due, until cancelled."""
        while True:
            pause_s = RETRY_S
            try:
                await self.run_once()
                self._failing_duties.pop(NAME, None)
                due_in_s = self.next_due_in_s()
                pause_s = RECHECK_S if due_in_s is None else min(RECHECK_S, due_in_s)
            except StoreError as exc:
                if not self._is_store_silent:
                    logger.warning("the schedules wait for the store, and try again: %s", exc)
                self._is_store_silent = True
            except Exception as exc:  # a mistake of ours in one round must not end all schedules for ever
                self._failing_duties[NAME] = f"{type(exc).__name__}: {exc}"
                logger.exception("a round of the schedules failed, and is tried again")
            await self._rest(pause_s)

    async def run_once(self) -> None:
        """Declare what is new, hear what others did, and fire what is due."""
        await self.declare()
        await self._read_changed(())
        await self._read_news()
        while not self._life.is_stopping and await self._firing.fire_due():
            self._is_store_silent = False

    def next_due_in_s(self) -> float | None:
        """Seconds until the next fire here, or the next look at one that waits; None when there is none."""
        if self._life.is_stopping:
            return None
        now_us = self._wall_clock.now_us()
        if self._has_new() or self._firing.has_stepped:
            return 0.0
        at_us = self.book.next_look()
        return None if at_us is None else max(0.0, (at_us - now_us) / SECOND_US)

    async def _rest(self, pause_s: float) -> None:
        """Until the pause is over, or something has changed."""
        if pause_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()
        else:
            await asyncio.sleep(0)
        self._changed.clear()

    # What the store is told: new schedules, and those that no instance declares any more.

    def add(self) -> None:
        """A schedule was declared while the manager runs. From any thread."""
        self._was_added = True
        self._inbox.tell(self._changed.set)

    def read_soon(self) -> None:
        """Hear at once what others wrote: one of them has stopped, and its schedules are nobody's."""
        self._read_s = -inf
        self._changed.set()

    def _has_new(self) -> bool:
        """Whether some were declared here that the store does not know of; also in the middle of the start."""
        return self._was_added or len(self._declared) > len(self.book.declared)

    async def declare(self) -> None:
        """Tell the store what is new here, and take over what nobody else declares any more. Raises `StoreError`.

        When it returns, all that was declared before the call is in the store, whoever of several callers told it.
        """
        async with self._declaring:
            known = self.book.declared
            due = {name: known[name] for name in self.book.orphans}
            if self._has_new():
                self._was_added = False
                due |= {name: each for name, each in list(self._declared.items()) if known.get(name) is not each}
            every = list(due.values())
            try:
                for start in range(0, len(every), DECLARED_PAGE):
                    await self._declare_page(every[start : start + DECLARED_PAGE])
            except BaseException:
                self._was_added = True
                raise

    async def _declare_page(self, page: Sequence[Schedule]) -> None:
        store, book, me = self._store, self.book, self._identity.instance_id
        names = [each.name for each in page]
        before = {row.schedule_name: row for row in await store.schedules(names)}
        lost = {name: row for name in names if name not in before and (row := book.rows.get(name)) is not None}
        now = self._wall_clock.now_us()
        declarations = [each.declaration(before.get(each.name), lost.get(each.name), now) for each in page]
        await store.declare_schedules(declarations, me, now)
        for name, row in lost.items():
            if row.paused_at is not None:
                await store.set_schedule_paused(name, True, now)
        rows = await store.schedules(names)
        # The rows say whose it is. The answer of `declare_schedules` would not, if it was called twice.
        owned = {row.schedule_name for row in rows if row.owner_id == me}
        for each in page:
            if book.declared.get(each.name) is not each and each.run_on_startup and each.name in owned:
                book.owed_at_startup.add(each.name)
            book.declared[each.name] = each
        for row in rows:
            _log_change(before.get(row.schedule_name), row)
        book.orphans.difference_update(names)
        book.take_in(rows, now)

    # What the store says: others have fired, paused, redefined or left schedules of this instance.

    async def _read_news(self) -> None:
        """Take in what others wrote since the last look, if it is time to look again."""
        now_s, book, store = self._clock.elapsed_s(), self.book, self._store
        if not book.declared or now_s - self._read_s < RECHECK_S:
            return
        self._read_s = now_s
        version = await store.changes()
        if version == self._version:
            return
        now, step_count = self._wall_clock.now_us(), self._wall_clock.step_count
        # After a step of the clock the instants by which changes are found mean nothing.
        since_us = self._read_at - LATE_WRITE_US if step_count == self._step_count else 0
        book.take_in(await store.schedules(changed_since=since_us), now)
        # Whoever resumes one may have another clock. What is fired here, the store refuses when it was changed.
        book.take_in(await store.schedules(book.parked(PARKED_PAGE)), now)
        alive = {each.instance_id for each in await store.instances()}
        book.orphans |= {name for name, row in book.rows.items() if row.owner_id not in alive}
        if book.orphans:  # before one starts that would take itself for the first
            await self.declare()
        self._read_at, self._step_count, self._version = now, step_count, version

    async def refresh(self, names: Sequence[str] | None = None) -> None:
        """Read what the store says of these schedules, or of all; one that is not there any more is declared again."""
        book = self.book
        wanted = list(book.declared) if names is None else names
        rows = await self._store.schedules(wanted)
        book.take_in(rows, self._wall_clock.now_us())
        book.orphans |= {name for name in wanted if name in book.declared} - {row.schedule_name for row in rows}
        self._changed.set()

    async def _read_changed(self, names: Sequence[str]) -> None:
        """Read these schedules, and those that could not be read before. If that fails, the next round reads them."""
        if wanted := self._unread.union(names):
            self._unread.clear()
            try:
                await self.refresh(list(wanted))
            except BaseException:
                self._unread |= wanted
                raise

    async def _follow(self, name: str) -> None:
        """Read what a person has changed just now. A failure to read is not raised: the change itself is done."""
        try:
            await self._read_changed([name])
        except StoreError:
            self._changed.set()

    # What people do with them.

    async def list(self) -> tuple[ScheduleInfo, ...]:
        """All that the store knows, by their next fire."""
        await self.declare()
        return tuple(_info(row) for row in await self._store.schedules())

    def upcoming(self) -> tuple[ScheduleInfo, ...]:
        """The next to fire, as far as this instance knows; those without a next fire last."""
        first = heapq.nsmallest(
            MAX_UPCOMING,
            self.book.rows.values(),
            key=lambda row: (row.paused_at is not None, row.next_run_at or 0, row.schedule_name),
        )
        return tuple(_info(row) for row in first)

    async def set_paused(self, name: str, paused: bool) -> None:
        """No fires from now on, in any instance; or fire again."""
        check_schedule_name(name)
        await self.declare()
        await shielded(self._write_paused(name, paused))

    async def _write_paused(self, name: str, paused: bool) -> None:
        await set_paused(self._store, name, paused, self._wall_clock.now_us())
        await self._follow(name)

    async def run_by_hand(self, name: str) -> str:
        """One run beside the fires; the id of the task."""
        check_schedule_name(name)
        await self.declare()
        return await shielded(self._run_by_hand(name))

    async def _run_by_hand(self, name: str) -> str:
        task_id = new_task_id()
        self._free_rows.will_put([task_id])
        try:
            row = await run_by_hand(self._store, name, task_id, self._wall_clock.now_us())
        finally:
            self._life.wants_claim.set()  # also when only the answer was lost: the task stands there, free
        self._free_rows.note_put(row)
        await self._follow(name)
        return task_id


def _log_change(before: ScheduleRow | None, row: ScheduleRow) -> None:
    if before is not None and before.definition != row.definition and row.next_run_at is not None:
        logger.info(
            "schedule %s is %s now, not %s any more; it fires next at %s",
            row.schedule_name,
            row.definition,
            before.definition,
            from_us(row.next_run_at),
        )


def _info(row: ScheduleRow) -> ScheduleInfo:
    """The view of a row that users get."""
    values = row._asdict()
    for name in ("last_run_at", "next_run_at", "updated_at"):
        values[name] = None if values[name] is None else from_us(values[name])
    values["is_paused"] = row.paused_at is not None
    for name in ("paused_at", "owner_id", "template"):
        del values[name]
    return ScheduleInfo(**values)
