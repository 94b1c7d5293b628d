"""Deletes what has been kept long enough: heartbeats, worker states, figures, ended tasks with their attempts.

Live rows never.

Small batches, one transaction each, with a pause between them, so that no writer waits long, here or in another
process; each category on its own, so that one that fails or is switched off does not hold up the others.

The space of deleted rows is given back as long as the file has any, whoever has deleted them and when: a sweep that a
stop or a kill cut short is taken up by the next one.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from taskmanager.engine.engine import Engine
from taskmanager.model.clock import HOUR_US
from taskmanager.model.errors import StoreError
from taskmanager.model.logger import logger
from taskmanager.rules.figures import Span
from taskmanager.store.protocol import DELETE_PAUSE_S, TaskFilter

BUDGET_S: Final = 60.0
"""How long a sweep works on one category, its pauses not counted; the rest is for the next one."""


class Retention:
    """One sweep at the start, then every `retention_sweep_interval_s`."""

    def __init__(self, engine: Engine) -> None:
        self._store, self._wall_clock, self._intake = engine.store, engine.wall_clock, engine.intake
        self._settings, self._life = engine.settings, engine.life
        self._steps_seen = 0

    async def run_once(self) -> dict[str, int]:
        """Delete what is too old, and give free space back; how many rows of each category went."""
        gone = await self._delete_old()
        try:
            await self._sweep(self._store.shrink)
        except StoreError as exc:
            logger.warning("the free space of the file could not be given back now: %s", exc)
        return gone

    async def _delete_old(self) -> dict[str, int]:
        """Delete it, category by category.

        Nothing goes in the first sweep after a step of the wall clock: what a jump made old is young again when
        somebody corrects the clock. So is what a start finds old whose clock was ahead already, for a day.
        """
        config, store = self._settings.recovery, self._store
        now_us = self._wall_clock.now_for_ages_us()
        if self._was_stepped():
            self._steps_seen = self._wall_clock.step_count
            return {}
        batch, gone = config.retention_delete_batch_size, dict[str, int]()
        for name, hours, prune in (
            ("heartbeats", config.heartbeat_retention_hours, store.prune_heartbeats),
            ("worker states", config.worker_state_retention_hours, store.prune_worker_states),
            ("ended tasks", config.terminal_record_retention_hours, self._prune_tasks),
        ):
            if hours is None:
                continue
            try:
                gone[name] = await self._sweep(partial(prune, now_us - hours * HOUR_US, batch))
            except StoreError as exc:
                logger.warning("old %s could not be deleted now: %s", name, exc)
        await self._prune_figures(now_us, batch)
        if any(gone.values()):
            logger.info("deleted what was kept long enough: %s", gone)
        return gone

    async def _prune_figures(self, now_us: int, batch: int) -> None:
        """Delete the figures of time that nobody looks at any more. There is no setting for them: they are small.

        Those of days to come stay until they are old. They may be of a clock that was ahead; but it may be this clock
        that is behind, and then they are those of the last days.
        """
        for span in Span:
            prune = partial(self._store.prune_figures, span, now_us - span.kept_us, batch)
            try:
                await self._sweep(prune)
            except StoreError as exc:
                logger.warning("old figures could not be deleted now: %s", exc)

    async def _prune_tasks(self, cutoff: int, limit: int) -> int:
        count = await self._store.purge(TaskFilter(), cutoff, limit)
        if not count:
            keys = self._intake.keys
            keys.purged(keys.purgeable(lambda _: True, cutoff))
        return count

    def _was_stepped(self) -> bool:
        """Whether the clock by which this sweep judges is not the one that stamps records now."""
        clock = self._wall_clock
        clock.now_us()  # it looks
        return clock.step_count != self._steps_seen

    async def _sweep(self, step: Callable[[], Awaitable[int]]) -> int:
        """Repeat a step until it finds nothing more to do; the sum of what it did."""
        total, spent_s = 0, 0.0
        while spent_s < BUDGET_S and not self._life.is_stopping and not self._was_stepped():
            began_s = self._life.loop.time()
            count = await step()
            if not count:
                break
            total += count
            spent_s += self._life.loop.time() - began_s
            await asyncio.sleep(DELETE_PAUSE_S)
        return total
