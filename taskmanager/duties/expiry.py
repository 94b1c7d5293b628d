"""Ends tasks that wait in the file past their `good_until`; an instance ends those in its memory itself, on time.

A row that nobody holds may wait for a later moment, behind a backlog, or for a function that nobody knows. It expires
all the same, and whoever waits for the task is told.
"""

from typing import Final

from taskmanager.duties.recovery import Recovery
from taskmanager.engine.engine import Engine
from taskmanager.model.logger import logger
from taskmanager.model.wording import counted

INTERVAL_S: Final = 5.0
PAGE: Final = 500


class Expiry:
    """One look at the start, then every five seconds."""

    def __init__(self, engine: Engine, recovery: Recovery) -> None:
        self._store, self._wall_clock, self._writer = engine.store, engine.wall_clock, engine.writer
        self._life = engine.life
        self._recovery = recovery

    async def run_once(self) -> int:
        """End them, each only if it still waits there; how many ended. For a while after a step of the wall clock
        nothing is ended.
        """
        ended = 0
        now_us = self._wall_clock.now_us()
        if self._wall_clock.holds_expiry or self._writer.degraded_since is not None:
            return 0
        while rows := await self._store.fetch_expired(now_us, limit=PAGE):
            count = await self._recovery.recover(rows)
            ended += count
            if not count or len(rows) < PAGE:
                break
        if ended:
            logger.info("%s expired in the store", counted(ended, "task"))
            self._life.wants_claim.set()  # our own writes do not change the version by which the store tells of others'
        return ended
