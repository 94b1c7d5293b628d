"""Notices that the database file or its log was deleted, replaced or emptied while in use, and makes it anew.

SQLite reports no error when that happens. Whatever lives in memory is written to the new file; what only the old one
held is gone, and an ERROR says so.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from taskmanager.codec.report import dumps_report
from taskmanager.engine.engine import Engine
from taskmanager.engine.report import report_of
from taskmanager.model.errors import StoreError
from taskmanager.model.logger import logger
from taskmanager.model.wording import counted

LET_GO_S: Final = 0.1
"""How long a stop waits for the look it has cancelled. One that is inside a call of the store ends with that call."""


class FileWatch:
    """Checks the files of one start, and repairs what it finds."""

    def __init__(self, engine: Engine, on_made_anew: Callable[[], Awaitable[None]]) -> None:
        self._store, self._clock, self._identity = engine.store, engine.clock, engine.identity
        self._live, self._dispatcher, self._writer = engine.live, engine.dispatcher, engine.writer
        self._settings, self._life = engine.settings, engine.life
        self._engine = engine
        self._on_made_anew = on_made_anew
        self._looking: asyncio.Task[None] | None = None
        self._paused: list[str] = []
        self._owes_rest = False
        self._is_told = False

    async def look(self) -> None:
        """Check, and repair. One repair runs at a time, and to its end, even if the caller is cancelled."""
        if await self._is_well():
            return
        if self._looking is None or self._looking.done():
            self._looking = self._life.loop.create_task(self._look(), name="taskmanager-file-watch")
            self._looking.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(self._looking)

    async def _is_well(self) -> bool:
        """The quick check that nearly every look ends with: there is nothing to do."""
        is_mending = self._owes_rest or self._is_told or not (self._looking is None or self._looking.done())
        if is_mending:
            return False
        try:
            return await self._store.is_same_file() and await self._store.has_its_log()
        except StoreError:
            return False

    async def look_for_good(self, until_s: float) -> None:
        """The look before the last batches, which must not go into a file that nobody can find any more.

        It ends at `until_s`, in the time of the loop: a locked file would be waited for longer than a stop may take.
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
        store = self._store
        try:
            if not await store.is_same_file():
                await self._reopen()
            elif not await store.has_its_log():
                await self._renew_log()
        except StoreError as exc:
            self._say("the database cannot be looked after now, which is tried again twice a second: %s", exc)
            self._is_told = True
            raise
        if self._is_told:
            logger.warning("the database can be looked after again")
        self._is_told = False
        if self._owes_rest:
            await self._write_rest()
            self._owes_rest = False

    async def _write_rest(self) -> None:
        """What memory knows besides the tasks: this instance, paused queues, schedules."""
        engine = self._engine
        text = dumps_report(report_of(engine).for_others())
        await self._store.save_instance(self._identity.row(self._clock.now_us(), live_tasks=text))
        for name in self._paused:
            await self._store.set_paused(name, True, self._clock.now_us())
        await self._on_made_anew()

    def _say(self, text: str, *args: object) -> None:
        """Once, however often it is tried."""
        if not self._is_told:
            logger.error(text, *args)

    async def _reopen(self) -> None:
        """The file was deleted or replaced: open the one of that name, or a new one, and write what lives in memory."""
        self._say(
            "the database %s was deleted or replaced while in use; the file of that name now, made anew if there is "
            "none, gets %s from memory, but what only the old file held is gone",
            self._settings.database,
            counted(len(self._live), "task"),
        )
        if not self._owes_rest:
            self._paused = [name for name, queue in self._dispatcher.queues.items() if queue.is_paused]
        # The list is made first, because what ends meanwhile has been written to the old file only. The writer is kept
        # waiting, or it would look in the new file for rows that it committed to the old one.
        async with self._writer.quiet:
            lives = {**self._writer.unsaved_ended, **self._live}.values()
            await self._store.close()
            await self._store.open()
            # Before anything else can fail: the new file may hold another row where one is believed to be committed.
            self._writer.lose_everything_committed([live for live in lives if live.is_persisted])
            self._owes_rest = True

    async def _renew_log(self) -> None:
        """The log was deleted, and the file was not: nothing is lost yet."""
        self._say(
            "the log beside the database %s was deleted while in use; what it held is moved into the file, and it is "
            "made anew, but what others wrote in between may be gone",
            self._settings.database,
        )
        async with self._writer.quiet:
            await self._store.renew_log()
        self._paused, self._owes_rest = [], True  # the same file, but what was read of it may not be its newest state
