"""Waits until nothing that was accepted or claimed here is unfinished: `manager.join()`.

Unfinished work may be in memory, free in the store where memory had no room for it, or on its way between the two.
"""

import asyncio
import contextlib
from typing import Final

from taskmanager.engine.definition import carries
from taskmanager.engine.engine import Engine
from taskmanager.engine.live_task import LiveTask
from taskmanager.engine.polling import Poller
from taskmanager.engine.stored_tasks import is_free
from taskmanager.model.errors import ManagerStopped, StoreError
from taskmanager.model.states import TaskStatus
from taskmanager.store.protocol import TaskFilter

PAGE: Final = 1_000
"""Waiting rows that are read at once, in search of one with the tags."""


class Joiner:
    """For one start; `stopped` is set when that has ended."""

    def __init__(self, engine: Engine, poller: Poller, stopped: asyncio.Event) -> None:
        self._store, self._inbox, self._live = engine.store, engine.inbox, engine.live
        self._writer, self._settings, self._definitions = engine.writer, engine.settings, engine.definitions
        self._life, self._follower = engine.life, engine.follower
        self._patience = engine.writer.patience
        self._poller = poller
        self._stopped = stopped

    async def join(self, tags: dict[str, str]) -> None:
        """Wait until no task (with all these tags) is unfinished here, rows that are still to be claimed included.

        Raises `ManagerStopped` when the manager stops before that: some of them go on at the next start.
        """
        with self._patience.rushed():
            await (self._join_tagged(tags) if tags else self._join_all())

    async def _join_tagged(self, tags: dict[str, str]) -> None:
        while True:
            await self._inbox.caught_up()
            if unfinished := self._unfinished(tags):
                for live in unfinished:
                    if (await self._life.ended(live)).requeued and self._life.is_stopping:
                        raise _stopped_too_soon()
            elif await self._may_have_freed(tags):
                await self._pause(self._settings.store_poll_s)
            elif not self._unfinished(tags):  # one may have been claimed while the store was read
                return

    def _unfinished(self, tags: dict[str, str]) -> list[LiveTask]:
        return [live for live in self._live.values() if carries(live.tags_text, tags)]

    async def _join_all(self) -> None:
        while True:
            await self._life.idle()
            if self._life.goes_on_count:
                raise _stopped_too_soon()
            if self._life.has_backlog:
                self._life.wants_claim.set()
                await self._pause(self._settings.store_poll_s / 10)
            elif await self._may_have_freed({}):
                await self._pause(self._settings.store_poll_s)
            elif not self._live:
                return

    async def _may_have_freed(self, tags: dict[str, str]) -> bool:
        """Whether tasks accepted here may wait in the store for their time, or a claim has taken some that are not in
        memory yet. Whose a free row was, it does not say.
        """
        if self._is_going_back():
            return True
        try:
            if await self._follower.has_unfinished(tags):
                return True
            # In this order: what is claimed while the store is read is in memory when there are no strays.
            is_free = self._life.has_freed and await self._has_free_rows(tags)
            is_there = is_free or await self._poller.has_strays()
        except StoreError:
            return True
        if not tags and self._life.has_freed:
            self._life.has_freed = is_there
        return is_there

    def _is_going_back(self) -> bool:
        """Whether tasks that were interrupted without a stop are still on their way to the store, which is degraded:
        their waiters were told, and memory holds them no more.
        """
        return any(live.goes_on for live in self._writer.unsaved_ended.values())

    async def _has_free_rows(self, tags: dict[str, str]) -> bool:
        """Whether rows (with these tags) wait in the store, due or not, that this instance could run."""
        store, known = self._store, self._definitions
        if not any(each.task_name in known for each in await store.free_queues()):
            return False
        if not tags:
            return True
        before = None
        while page := await store.fetch_many(TaskFilter(TaskStatus.PENDING, limit=PAGE, before=before)):
            if any(is_free(row) and row.task_name in known and carries(row.tags, tags) for row in page):
                return True
            before = page[-1].sent_at, page[-1].task_id
        return False

    async def _pause(self, pause_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._stopped.wait()
        if self._stopped.is_set():
            raise _stopped_too_soon()


def _stopped_too_soon() -> ManagerStopped:
    return ManagerStopped("the manager stopped before all tasks had ended; those that are left run at the next start")
