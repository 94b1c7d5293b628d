"""How much room there is for rows from the store: what memory holds of the tasks that wait."""

from collections.abc import Mapping

from taskmanager.engine.choose.dispatch import Dispatcher
from taskmanager.engine.choose.queue_state import QueueState
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.engine.words.phases import ACCEPTED, READY, RUNNING
from taskmanager.model.states import TaskStatus


class MemoryWindow:
    """The memory window of one instance: `most` waiting persisted tasks per queue, and as many again of better ones.

    The rest is free in the store, and costs nothing here.
    """

    def __init__(self, most: int, dispatcher: Dispatcher) -> None:
        self.most = most
        self._dispatcher = dispatcher
        self.is_shared = False
        """Whether other instances work on the file. What is claimed here and waits, an idle one cannot take."""
        self.taken_over: list[LiveTask] = []
        """Tasks of other instances that were taken over together, and run."""

    def __repr__(self) -> str:
        return f"<MemoryWindow of {self.claimable} per queue>"

    @property
    def claimable(self) -> int:
        """How many waiting tasks of a queue claims may bring here: beside other instances, only what can start now and
        what comes next.
        """
        if not self.is_shared:
            return self.most
        lanes = self._dispatcher.lanes.values()
        return min(self.most, sum((each.limit or 0) + each.free for each in lanes))

    def room_in(self, queue: QueueState, *, for_better: bool = False) -> int:
        """How many more tasks of a queue claims may bring: those that are better than the worst held have twice the
        room.
        """
        return (2 if for_better else 1) * self.claimable - queue.stored_waiting

    def overflows(self, live: LiveTask, queue: QueueState, now_us: int) -> bool:
        """Whether memory is full for this new task: better ones than the worst held may use as much again."""
        if queue.stored_waiting >= 2 * self.most:
            return True
        if live.due or live.enqueued_at > now_us:
            return True
        # Where nothing waits for a slot, what fills the memory waits for its time, and must not hold up what can start.
        worst = queue.worst_priority()
        return worst is not None and live.priority >= worst

    def is_full_without(self, live: LiveTask) -> bool:
        """Whether memory holds as many tasks of its queue as it should, without this one."""
        held = self._dispatcher.queue(live.queue_name).stored_waiting - (live.phase is ACCEPTED)
        return live.is_persisted and held >= self.most

    @property
    def has_free_rows(self) -> bool:
        """Whether rows may wait in the store for room here."""
        return bool(self._dispatcher.backlogs)

    def wants_more(self, live: Mapping[str, LiveTask]) -> bool:
        """Whether it is time to look for more: a queue runs low, or what was taken over together has ended."""
        return self._is_batch_over() or any(self.is_low(queue, live) for queue in self._dispatcher.backlogs)

    def _is_batch_over(self) -> bool:
        """Whether the last task of the batch has ended since it was last asked."""
        batch = self.taken_over
        if not batch:
            return False
        while batch and batch[-1].phase is not RUNNING:
            batch.pop()
        return not batch

    def is_low(self, queue: QueueState, live: Mapping[str, LiveTask]) -> bool:
        """Whether it is time to claim more of a queue of which rows were left in the store."""
        if queue.shared_limit is not None:
            return not queue.is_paused and queue.shared_limit.is_worth_a_claim(live, self._dispatcher.lanes)
        if self.room_in(queue, for_better=True) <= 0:
            return False
        half, worst = self.claimable // 2, queue.worst_priority()
        if queue.stored_waiting <= half or worst is None:
            return True
        # Better ones are left than some of those held: they must be here before the turn comes to these.
        return queue.best_left < worst and queue.count_ready(queue.best_left) <= max(1, half)

    def surplus(self) -> list[LiveTask]:
        """Tasks that were claimed and cannot start soon, the last in line: for others who can start them."""
        found: dict[str, list[LiveTask]] = {}
        for live in self._dispatcher.waiting():
            if live.status is TaskStatus.CLAIMED and live.phase is READY and not live.saving.is_dirty:
                found.setdefault(live.queue_name, []).append(live)
        most = self.claimable
        return [
            live
            for name, lives in found.items()
            if self._dispatcher.queue(name).shared_limit is None
            for live in sorted(lives, key=lambda each: (each.priority, each.enqueued_at))[most:]
        ]
