"""Ends what waits in the file past its `good_until`. What waits in the memory of an instance, that ends to the moment.

A row that nobody holds may wait for a moment that is still to come, behind a backlog, or for a function that nobody
knows. None of that is a reason to keep it, nor those waiting who ask for it.
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
        self._engine = engine
        self._recovery = recovery

    async def run_once(self) -> int:
        """End them, each only if it still waits there; how many ended. Nothing does for a while after a step of the
        wall clock.
        """
        engine, ended = self._engine, 0
        now_us = engine.wall_clock.now_us()
        if engine.wall_clock.holds_expiry or engine.writer.degraded_since is not None:
            return 0
        while rows := await engine.store.fetch_expired(now_us, limit=PAGE):
            count = await self._recovery.recover(rows)
            ended += count
            if not count or len(rows) < PAGE:
                break
        if ended:
            logger.info("%s expired in the store", counted(ended, "task"))
            engine.wants_claim.set()  # our own writes do not change the version by which the store tells of others'
        return ended
