"""What people do with queues: pause and resume them, and wait for room in one."""

from contextlib import nullcontext
from typing import Final

from taskmanager.engine.engine import Engine
from taskmanager.engine.words.loops import shielded
from taskmanager.engine.words.waiters import lent_slot
from taskmanager.model.checks import check_queue_name
from taskmanager.model.config import queue_name_fault
from taskmanager.model.errors import ConfigurationError
from taskmanager.model.logger import logger
from taskmanager.model.nearest import did_you_mean
from taskmanager.store.statistics import said_by

_OF_EVERYBODY: Final = "default"
"""The queue of functions that name none."""


class Queues:
    """What people do with queues: pause and resume them, and wait for room in one.

    A queue needs no declaration, so a name that nobody has used yet is no error: its tasks, or its process, may be to
    come. Mostly it is a slip, though, and then the wrong queue goes on; so it is logged.
    """

    def __init__(self, engine: Engine) -> None:
        self._store, self._clock, self._intake = engine.store, engine.clock, engine.intake
        self._dispatcher, self._definitions, self._life = engine.dispatcher, engine.definitions, engine.life
        self._patience, self._free_rows, self._settings = engine.writer.patience, engine.free_rows, engine.settings
        self._has_told = False

    async def set_paused(self, name: str, paused: bool) -> None:
        """Pause or resume a queue here at once, and elsewhere by their next look at the store."""
        known = self._named_here()
        fault = queue_name_fault(name)
        if fault or name not in known:
            known |= await self._named_elsewhere()
        if fault and not (isinstance(name, str) and name in known):  # what is there may be of another version
            raise ConfigurationError(fault)
        await shielded(self._write_paused(name, paused))
        if name not in known:
            what = "is paused" if paused else "was not paused"
            text = "queue %r %s, and no function, task or instance has named it yet%s"
            logger.warning(text, name, what, did_you_mean(name, known))

    async def _write_paused(self, name: str, paused: bool) -> None:
        await self._free_rows.answer_of(self._store.set_paused(name, paused, self._clock.now_us()))
        self._dispatcher.set_paused(name, paused)
        self._life.kick()

    async def wait_for_room(self, name: str) -> None:
        """Return when that queue is not full.

        A name that nobody has named is told once in a start: where queues come and go, each of them is new at first.
        """
        check_queue_name(name)
        if not self._has_told and name not in (known := self._named_here()):
            self._has_told = True
            text = "there is always room in queue %r, which no function or task has named yet%s"
            logger.warning(text, name, did_you_mean(name, known))
        of_others = nullcontext() if self._settings.runs(name) else self._free_rows.awaited()
        with self._patience.rushed(), of_others:
            while self._intake.is_full(name):
                async with lent_slot(None, {}, is_bounded=False):  # what waits may need this very slot
                    await self._dispatcher.room(name, self._intake.is_full)

    def _named_here(self) -> set[str]:
        """By functions, by the configuration, and by whatever came in since the start."""
        by_functions = {each.queue_name for each in list(self._definitions.values())}
        return {_OF_EVERYBODY, *by_functions, *self._dispatcher.queues}

    async def _named_elsewhere(self) -> set[str]:
        """By tasks that wait in the store, by pauses, and by other instances."""
        store = self._store
        found = {row.queue_name for row in await store.free_queues()} | await store.paused_queues()
        for instance in await store.instances():
            found |= said_by(instance).queues.keys()
        return found
