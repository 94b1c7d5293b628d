"""Shows other processes what only memory knows: running tasks with their progress, as JSON in the instance's row.

At most once a second, and only when it says something new: an idle instance writes nothing.
"""

from typing import Final

from taskmanager.engine.engine import Engine
from taskmanager.engine.report import facts_at_rest, live_text
from taskmanager.model.errors import StoreUnavailable
from taskmanager.model.logger import logger

INTERVAL_S: Final = 1.0


class LiveTasks:
    """The writer of `taskmanager_instances.live_tasks` of one instance."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._written: str | None = None
        self._at_rest: tuple[object, ...] | None = None
        """What was so when that was written; None where there were tasks."""

    async def run_once(self) -> bool:
        """Write the row if it would say something new; whether it did."""
        engine = self._engine
        facts = facts_at_rest(engine)
        if facts is not None and facts == self._at_rest:
            return False
        text = live_text(engine)
        if engine.writer.degraded_since is not None:
            return False
        if text == self._written:
            self._at_rest = facts
            return False
        try:
            await engine.store.save_instance(engine.identity.row(engine.clock.now_us(), live_tasks=text))
        except StoreUnavailable as exc:
            logger.debug("the live tasks could not be shown: %s", exc)
            return False
        self._written, self._at_rest = text, facts
        return True
