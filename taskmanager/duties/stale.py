"""Recovers stale tasks on request. One look at the wall clock decides, so the caller must know what it is doing."""

from collections.abc import Callable, Mapping, Sequence

from taskmanager.duties.recovery import PAGE, Recovery
from taskmanager.engine.stored_tasks import summary_info
from taskmanager.model.checks import check_threshold
from taskmanager.model.clock import MINUTE_US, Clock
from taskmanager.model.record import TaskInfo, TaskRow, expected_of
from taskmanager.model.states import TaskStatus
from taskmanager.store.protocol import Store


class StaleTasks:
    """Finds and moves live rows of other instances that no heartbeat of their role has covered for a threshold.

    `my_id` is the instance that asks; `moved` is called when rows may be free now.
    """

    def __init__(
        self, store: Store, clock: Clock, recovery: Recovery, my_id: str, moved: Callable[[], None] = lambda: None
    ) -> None:
        self._store = store
        self._clock = clock
        self._recovery = recovery
        self._my_id = my_id
        self._moved = moved

    async def find(self, threshold_minutes: float) -> tuple[TaskInfo, ...]:
        """Return the stale tasks, as users see them."""
        check_threshold(threshold_minutes, "stale_threshold_minutes")
        rows = await self.rows(threshold_minutes * MINUTE_US, lambda row: True)
        return tuple(summary_info(row, is_saved=True) for row in rows)

    async def fail_running(self, threshold_ms: float) -> int:
        """Requeue, retry or fail the stale RUNNING tasks, as their rows say. Return how many."""
        check_threshold(threshold_ms, "stale_threshold_ms")
        return await self.recover(await self.rows(threshold_ms * 1_000, lambda row: row.status == TaskStatus.RUNNING))

    async def requeue_claimed(self, threshold_ms: float) -> int:
        """Free the stale tasks that wait in their owner's memory, PENDING or CLAIMED. Return how many."""
        check_threshold(threshold_ms, "stale_threshold_ms")
        return await self.recover(await self.rows(threshold_ms * 1_000, lambda row: row.status != TaskStatus.RUNNING))

    async def recover(self, found: Sequence[TaskRow]) -> int:
        """Move the rows that are still as they were found. Return how many. Only these are read with `PAYLOAD`."""
        count = 0
        for start in range(0, len(found), PAGE):
            page = {row.task_id: expected_of(row) for row in found[start : start + PAGE]}
            whole = (await self._store.fetch_ids(list(page))).values()
            count += await self._recovery.recover([row for row in whole if expected_of(row) == page.get(row.task_id)])
        self._moved()
        return count

    async def rows(self, threshold_us: float, is_wanted: Callable[[TaskRow], bool]) -> list[TaskRow]:
        """Return the stale rows that are wanted, without their `PAYLOAD`."""
        now = self._clock.now_us()
        beats = {(sender, role): sent_at for sender, role, sent_at in await self._store.heartbeats()}
        found: list[TaskRow] = []
        after = ""
        while rows := await self._store.fetch_orphans({self._my_id}, limit=PAGE, after=after, is_summary=True):
            after = rows[-1].task_id
            found.extend(row for row in rows if is_wanted(row) and now - _last_sign(row, beats) > threshold_us)
        return found


def _last_sign(row: TaskRow, beats: Mapping[tuple[str, str], int]) -> int:
    """Return the instant of the latest beat that covers the row.

    If there is none yet, it is the instant when the row was started, claimed, or written by the owner that accepted it.
    """
    is_running = row.status == TaskStatus.RUNNING
    beat = beats.get((row.claimed_by_worker_id or "", "runner" if is_running else "claimer"))
    taken_at = row.started_at if is_running else row.claimed_at
    return max(beat or 0, row.updated_at if taken_at is None else taken_at)
