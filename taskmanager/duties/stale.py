"""The manual recovery methods: one look at wall time, for a person who knows what they do."""

from collections.abc import Callable

from taskmanager.duties.recovery import Recovery
from taskmanager.engine.engine import Engine
from taskmanager.engine.records import task_info
from taskmanager.model.record import TaskInfo, TaskRow
from taskmanager.model.states import TaskStatus


class StaleTasks:
    """Live rows of instances whose last sign of life is older than a threshold."""

    def __init__(self, engine: Engine, recovery: Recovery) -> None:
        self._engine = engine
        self._recovery = recovery

    async def find(self, threshold_us: float) -> tuple[TaskInfo, ...]:
        """Those tasks, as users see them."""
        rows = await self._rows(threshold_us, lambda row: True)
        return tuple(task_info(row, is_saved=True, result=None, attempts=None) for row in rows)

    async def fail_running(self, threshold_us: float) -> int:
        """RUNNING ones: requeued, retried or failed, by what their rows say."""
        rows = await self._rows(threshold_us, lambda row: row.status == TaskStatus.RUNNING)
        return await self._recovery.recover(rows)

    async def requeue_claimed(self, threshold_us: float) -> int:
        """CLAIMED ones: free again."""
        rows = await self._rows(threshold_us, lambda row: row.status == TaskStatus.CLAIMED)
        return await self._recovery.recover(rows)

    async def _rows(self, threshold_us: float, is_wanted: Callable[[TaskRow], bool]) -> list[TaskRow]:
        store = self._engine.store
        me = self._engine.identity.instance_id
        cutoff = self._engine.clock.now_us() - threshold_us
        instances = await store.instances()
        fresh = {each.instance_id for each in instances if each.updated_at >= cutoff} | {me}
        found: list[TaskRow] = []
        after = ""
        while rows := await store.fetch_orphans(fresh, limit=500, after=after):
            after = rows[-1].task_id
            found.extend(row for row in rows if is_wanted(row) and (row.started_at or row.claimed_at or 0) < cutoff)
        return found
