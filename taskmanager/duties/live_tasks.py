"""Shows other processes what only memory knows: the report of the instance, as JSON in its row.

At most once a second, and only when it says something new: an idle instance writes nothing.
"""

from taskmanager.codec.report import dumps_report
from taskmanager.engine.engine import Engine
from taskmanager.engine.report import report_of
from taskmanager.model.errors import StoreUnavailable
from taskmanager.model.logger import logger
from taskmanager.model.report import InstanceReport


class LiveTasks:
    """The writer of `taskmanager_instances.live_tasks` of one instance."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._store, self._identity = engine, engine.store, engine.identity
        self._written: InstanceReport | None = None

    async def run_once(self) -> bool:
        """Write the row if it would say something new; return whether it did."""
        report = report_of(self._engine).for_others()
        if report == self._written or report.degraded_since is not None:
            return False
        try:
            await self._store.save_instance(self._identity.row(report.taken_at, live_tasks=dumps_report(report)))
        except StoreUnavailable as exc:
            logger.debug("the live tasks could not be shown: %s", exc)
            return False
        self._written = report
        return True
