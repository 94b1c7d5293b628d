"""Manual recovery of stale tasks: judged once, by wall time, for people who know what they are doing."""

from collections.abc import Callable, Mapping

from taskmanager.duties.recovery import PAGE, Recovery
from taskmanager.engine.engine import Engine
from taskmanager.engine.records import task_info
from taskmanager.model.checks import check_threshold
from taskmanager.model.clock import MINUTE_US
from taskmanager.model.record import TaskInfo, TaskRow
from taskmanager.model.states import TaskStatus


class StaleTasks:
    """Live rows of other instances that no heartbeat of their role has covered for longer than a threshold."""

    def __init__(self, engine: Engine, recovery: Recovery) -> None:
        self._engine = engine
        self._recovery = recovery

    async def find(self, threshold_minutes: float) -> tuple[TaskInfo, ...]:
        """Those tasks, as users see them."""
        check_threshold(threshold_minutes, "stale_threshold_minutes")
        rows = await self._rows(threshold_minutes * MINUTE_US, lambda row: True)
        return tuple(task_info(row, is_saved=True, result=None, attempts=None) for row in rows)

    async def fail_running(self, threshold_ms: float) -> int:
        """RUNNING ones: requeued, retried or failed, by what their rows say."""
        check_threshold(threshold_ms, "stale_threshold_ms")
        rows = await self._rows(threshold_ms * 1_000, lambda row: row.status == TaskStatus.RUNNING)
        return await self._recover(rows)

    async def requeue_claimed(self, threshold_ms: float) -> int:
        """CLAIMED ones: free again."""
        check_threshold(threshold_ms, "stale_threshold_ms")
        rows = await self._rows(threshold_ms * 1_000, lambda row: row.status == TaskStatus.CLAIMED)
        return await self._recover(rows)

    async def _recover(self, rows: list[TaskRow]) -> int:
        moved = await self._recovery.recover(rows)
        self._engine.wants_claim.set()
        return moved

    async def _rows(self, threshold_us: float, is_wanted: Callable[[TaskRow], bool]) -> list[TaskRow]:
        engine = self._engine
        now = engine.clock.now_us()
        beats = {(sender, role): sent_at for sender, role, sent_at in await engine.store.heartbeats()}
        found: list[TaskRow] = []
        after = ""
        while rows := await engine.store.fetch_orphans({engine.identity.instance_id}, limit=PAGE, after=after):
            after = rows[-1].task_id
            found.extend(row for row in rows if is_wanted(row) and now - _last_sign(row, beats) > threshold_us)
        return found


def _last_sign(row: TaskRow, beats: Mapping[tuple[str, str], int]) -> int:
    """The latest beat that covers the row, by its role; before the first one, when it was started or claimed."""
    is_running = row.status == TaskStatus.RUNNING
    beat = beats.get((row.claimed_by_worker_id or "", "runner" if is_running else "claimer"))
    taken_at = row.started_at if is_running else row.claimed_at
    return max(beat or 0, taken_at or row.sent_at)
