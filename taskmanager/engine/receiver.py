"""What the intake finds inside while the manager runs: the queues, how full memory is, and a bell to ring."""

from collections.abc import Mapping, Sized

from taskmanager.engine.dispatch import Dispatcher
from taskmanager.engine.live_task import LiveTask
from taskmanager.engine.outbox import HISTORY_BATCH
from taskmanager.engine.turn import Turn
from taskmanager.engine.writer import Writer


class Receiver:
    """Of one start. Asked from any thread, under the lock of the intake; changed by the loop only."""

    def __init__(
        self, live: Mapping[str, LiveTask], inbox: Sized, dispatcher: Dispatcher, writer: Writer, turn: Turn
    ) -> None:
        self._live = live
        self._inbox = inbox
        self._dispatcher = dispatcher
        self._writer = writer
        self._unsaved_end_count = 0
        self.queue = dispatcher.queue
        self.call_soon = turn.ring
        """Look into the inbox soon. From anywhere; `RuntimeError` when the loop is closed."""

    def __repr__(self) -> str:
        return f"<Receiver with {self.unsaved_count()} tasks that count against max_pending>"

    def unsaved_count(self) -> int:
        """What counts against `max_pending`: waiting in memory, and ended or changed but not in the store yet."""
        # Other threads may add a queue at any time.
        waiting = sum(queue.waiting for queue in list(self._dispatcher.queues.values()))
        history = self._writer.outbox.unsaved_history_count
        if self._writer.degraded_since is None:
            history = max(0, history - HISTORY_BATCH)  # less than that just waits for its interval
        return waiting + self._unsaved_end_count + history

    def may_be_full(self, limit: int) -> bool:
        """A cheap look that never says no too early: whether it is worth counting exactly."""
        return len(self._live) + self._writer.outbox.unsaved_count + len(self._inbox) >= limit

    def end_began(self, live: LiveTask) -> None:
        """A persisted task has ended, and is to be saved."""
        if not live.saving.is_end_unsaved:
            live.saving.is_end_unsaved = True
            self._unsaved_end_count += 1

    def end_is_settled(self, live: LiveTask) -> None:
        """Its end is in the store, or will never be: it does not count as unsaved any more."""
        if live.saving.is_end_unsaved:
            live.saving.is_end_unsaved = False
            self._unsaved_end_count -= 1
