"""Fires the schedules of one instance, together with all others on the same store: each fire once.

A store that does not answer, a full queue, or one schedule that raises holds up nothing else: it is said, and tried
again.

The instance that started last owns a definition. One that defines a schedule otherwise does not fire it while the owner
is there; when the owner is gone, whoever still declares the schedule takes it over.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from taskmanager.duties.schedules import NAME
from taskmanager.duties.schedules.book import ScheduleBook
from taskmanager.duties.schedules.declaring import Declaring
from taskmanager.duties.schedules.firing import RETRY_S, Firing
from taskmanager.duties.schedules.reading import RECHECK_S, Reading
from taskmanager.duties.schedules.schedule import Schedule
from taskmanager.engine.engine import Engine
from taskmanager.model.clock import SECOND_US
from taskmanager.model.errors import StoreError
from taskmanager.model.logger import logger


class Schedules:
    """One per start of a manager."""

    def __init__(self, engine: Engine, schedules: Mapping[str, Schedule]) -> None:
        self._wall_clock, self._inbox, self._failing_duties = engine.wall_clock, engine.inbox, engine.failing_duties
        self._life = engine.life
        self.book = ScheduleBook()
        self._changed = asyncio.Event()
        self._declaring = Declaring(engine, self.book, schedules)
        self._reading = Reading(engine, self.book, self._changed.set)
        self._firing = Firing(engine, self.book, self.refresh)
        self._is_store_silent = False

    def __repr__(self) -> str:
        return f"<Schedules {self.book!r}>"

    def add(self, schedule: Schedule) -> None:
        """A schedule was declared while the manager runs. From any thread."""
        self._declaring.add(schedule)
        self._inbox.tell(self._changed.set)

    def next_due_in_s(self) -> float | None:
        """Seconds until something happens here by itself, None when nothing will."""
        if self._life.is_stopping:
            return None
        now_us = self._wall_clock.now_us()
        if self._declaring.has_new or self._firing.watch.is_owed:
            return 0.0
        at_us = self.book.next_look()
        return None if at_us is None else max(0.0, (at_us - now_us) / SECOND_US)

    async def open(self) -> None:
        """What a start does before anything runs: declare everything. Again when an instance has died: what that one
        owned is taken over, and nothing that others wrote is passed over. Raises `StoreError`.
        """
        await self._reading.begin(self._firing.watch.look())
        await self.declare()
        await self._reading.read_all()

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
        await self._reading.read_news()
        while not self._life.is_stopping and await self._firing.fire_due():
            self._is_store_silent = False

    async def _rest(self, pause_s: float) -> None:
        """Until the pause is over, or something has changed."""
        if pause_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()
        else:
            await asyncio.sleep(0)
        self._changed.clear()

    async def declare(self) -> None:
        """Tell the store what is new here; it is there when this returns. Raises `StoreError`."""
        await self._declaring.declare()

    async def refresh(self, names: Sequence[str] | None = None) -> None:
        """Read what the store says of these schedules, or of all, as after a change that was made here."""
        await self._reading.refresh(names)
