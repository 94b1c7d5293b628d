"""Tells the store how schedules are defined here: new ones, and those that no instance declares any more."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from taskmanager.duties.schedules.book import ScheduleBook
from taskmanager.duties.schedules.schedule import Schedule
from taskmanager.engine.engine import Engine
from taskmanager.model.clock import from_us
from taskmanager.model.logger import logger
from taskmanager.model.schedule import ScheduleDeclaration, ScheduleRow

DECLARED_PAGE: Final = 1_000
"""Declarations per transaction: bounds how long one holds the store, and making them the loop."""


class Declaring:
    """Of one start; `schedules` are those of the manager, which may grow at any time."""

    def __init__(self, engine: Engine, book: ScheduleBook, schedules: Mapping[str, Schedule]) -> None:
        self._store, self._wall_clock, self._identity = engine.store, engine.wall_clock, engine.identity
        self._book = book
        self._schedules = schedules
        self._new: deque[Schedule] = deque(schedules.values())
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Declaring {len(self._new)} new, {len(self._book.orphans)} orphans>"

    @property
    def has_new(self) -> bool:
        """Whether some were declared here that the store does not know of."""
        return bool(self._new)

    def add(self, schedule: Schedule) -> None:
        """One more. From any thread."""
        self._new.append(schedule)

    async def declare(self) -> None:
        """Tell the store what is new here, and take over what nobody else declares any more.

        When it returns, all that was declared before the call is in the store, whoever of several callers told it.
        """
        async with self._lock:
            self._add_missed()
            for _ in range(0, max(len(self._new), len(self._book.orphans)), DECLARED_PAGE):
                fresh = [self._new.popleft() for _ in range(min(DECLARED_PAGE, len(self._new)))]
                await self._declare_page(fresh, self._book.pop_orphans(DECLARED_PAGE))

    def _add_missed(self) -> None:
        """Those that were declared in the middle of the start."""
        declared = self._book.declared
        if len(self._schedules) > len(declared) + len(self._new):
            every = list(self._schedules.items())
            self._new.extend(each for name, each in every if name not in declared)

    async def _declare_page(self, fresh: list[Schedule], orphans: set[str]) -> None:
        store, book, me = self._store, self._book, self._identity.instance_id
        book.declared.update((each.name, each) for each in fresh)
        names = [*orphans, *(each.name for each in fresh)]
        try:
            before = {row.schedule_name: row for row in await store.schedules(names)}
            await self._write(names, before)
            rows = await store.schedules(names)
        except BaseException:
            self._new.extendleft(reversed(fresh))
            book.orphans |= orphans
            raise
        # Asked of the rows: the answer of a declaration that was made twice says nothing of the first time.
        owned = {row.schedule_name for row in rows if row.owner_id == me}
        book.owed_at_startup.update(each.name for each in fresh if each.run_on_startup and each.name in owned)
        for row in rows:
            _log_change(before.get(row.schedule_name), row)
        book.take_in(rows)

    async def _write(self, names: Sequence[str], before: Mapping[str, ScheduleRow]) -> None:
        """Declare these, `before` being what the store says of them now."""
        book = self._book
        now = self._wall_clock.now_us()
        declared = [book.declared[name].declaration(before.get(name), now) for name in dict.fromkeys(names)]
        gone = {name: book.rows[name] for name in names if name in book.rows and name not in before}
        declared = [_as_it_was(each, gone.get(each.schedule_name)) for each in declared]
        await self._store.declare_schedules(declared, self._identity.instance_id, now)
        for name, row in gone.items():
            if row.paused_at is not None:
                await self._store.set_schedule_paused(name, True, now)


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
