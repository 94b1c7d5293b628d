"""What a dead instance left goes on when its death is noticed, not only at the next round of the reaper.

A loop of its own, beside the poller, which has more to hear meanwhile: one whose lock file is gone is given time to put
it back.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from taskmanager.engine.engine import Engine
from taskmanager.model.errors import StoreError
from taskmanager.model.logger import logger

FAILED_PAUSE_S: Final = 0.25


class Takeover:
    """Waits for `death`, and recovers; what could not be recovered is tried again."""

    def __init__(self, engine: Engine, recover: Callable[[], Awaitable[int]]) -> None:
        self._life = engine.life
        self._recover = recover
        self.death = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Takeover {'due' if self.death.is_set() else 'not due'}>"

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self.death.wait()
            self.death.clear()
            try:
                await self._recover()
            except StoreError as exc:
                self.death.set()
                logger.debug("what a dead instance left could not be taken over yet: %s", exc)
                await asyncio.sleep(FAILED_PAUSE_S)
            except BaseException:
                self.death.set()
                raise
            else:
                self._life.wants_claim.set()
