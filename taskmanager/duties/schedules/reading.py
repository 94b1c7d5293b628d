"""Reads from the store what others did to the schedules of this instance: fired, paused, redefined, or left them."""

from collections.abc import Callable, Sequence
from typing import Final

from taskmanager.duties.schedules.book import ScheduleBook
from taskmanager.engine.engine import Engine
from taskmanager.model.clock import MINUTE_US
from taskmanager.model.logger import logger
from taskmanager.model.wording import counted

RECHECK_S: Final = 5.0
"""How often the wall clock, and what others wrote, is looked at while nothing is due."""
PARKED_PAGE: Final = 250
"""How many of those that are not fired here are asked for at once, whether they changed or not."""
LATE_WRITE_US: Final = MINUTE_US
"""A write waits for the store after it was stamped; this long at most where the store is of any use."""


class Reading:
    """Of one start; `changed` is called when the loop should look again."""

    def __init__(self, engine: Engine, book: ScheduleBook, changed: Callable[[], None]) -> None:
        self._store, self._clock, self._wall_clock = engine.store, engine.clock, engine.wall_clock
        self._book = book
        self._changed = changed
        self._version: int | None = None
        self._read_s = 0.0
        self._read_at: int | None = None
        self._step_count = 0

    def __repr__(self) -> str:
        return f"<Reading, last at {self._read_at}>"

    async def begin(self, now: int) -> None:
        """What is written from here on is news."""
        self._read_at, self._read_s = now, self._clock.elapsed_s()
        self._version = await self._store.data_version()

    async def read_all(self) -> None:
        """Everything, and say which schedules of the file nobody fires."""
        rows = await self._store.schedules()
        self._book.take_in(rows)
        self._changed()
        names = [row.schedule_name for row in rows if not row.is_declared]
        if lonely := [name for name in names if name not in self._book.declared]:
            logger.info(
                "%s of the file declared by no instance that runs, and not fired: %s",
                counted(len(lonely), "schedule"),
                ", ".join(lonely[:5]),
            )

    async def read_news(self) -> None:
        """What others wrote since the last look, if it is time to look again."""
        now_s = self._clock.elapsed_s()
        if not self._book.declared or now_s - self._read_s < RECHECK_S:
            return
        self._read_s = now_s
        version = await self._store.data_version()
        if version == self._version:
            return
        now = self._wall_clock.now_us()
        if self._read_at is None or self._wall_clock.step_count != self._step_count:
            await self.refresh()  # the instants by which changes are found mean nothing now
        else:
            await self._read_changed(self._read_at - LATE_WRITE_US)
        self._read_at, self._step_count, self._version = now, self._wall_clock.step_count, version

    async def _read_changed(self, since_us: int) -> None:
        store, book = self._store, self._book
        book.take_in(await store.schedules(changed_since=since_us))
        # Whoever resumes one may have another clock. What is fired here, the store refuses when it was changed.
        book.take_in(await store.schedules(book.parked(PARKED_PAGE)))
        alive = {each.instance_id for each in await store.instances()}
        book.orphans |= {name for name, row in book.rows.items() if row.owner_id not in alive}

    async def refresh(self, names: Sequence[str] | None = None) -> None:
        """Read what the store says of these schedules, or of all; one that is not there any more is declared again."""
        book = self._book
        wanted = list(book.declared) if names is None else names
        rows = await self._store.schedules(wanted)
        book.take_in(rows)
        book.orphans |= {name for name in wanted if name in book.declared} - {row.schedule_name for row in rows}
        self._changed()
