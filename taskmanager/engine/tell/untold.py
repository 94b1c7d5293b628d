"""What the listeners were not told yet: rows on their way to the store, and runs that were snoozed.

A write may put a row into the store, and a claim may take that row before the write is answered; or the row expires.
What the write has done is told then, before what follows from it, so that a listener hears everything in order.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

from taskmanager.engine.write.outbox import Sent
from taskmanager.model.record import Expected

T = TypeVar("T")
MOST_UNTOLD: Final = 10_000
"""How many rows of each kind, and snoozed runs, are kept. Other instances take some of them, and nothing is heard of
those here. So the oldest ones are forgotten.
"""


class Untold:
    """What one start has not told yet. All of it is called on the loop."""

    def __init__(self) -> None:
        self._made: dict[str, None] = {}
        self._by_failure: dict[str, None] = {}
        self._unended: dict[str, None] = {}
        """Those that were made, until their end is told."""
        self._snoozed: dict[tuple[str, int], int] = {}
        self._batch: Sequence[Sent] = ()
        self._by_id: dict[str, Sent] | None = None

    def __repr__(self) -> str:
        return f"<Untold {len(self._batch)} writes, {len(self._made)} rows, {len(self._snoozed)} snoozed runs>"

    # Rows that were put into the store free, outside of the batches.

    def makes(self, task_ids: Iterable[str]) -> None:
        """Note that a write of ours puts these rows into the store."""
        made = dict.fromkeys(task_ids)
        for noted in (self._made, self._unended):
            noted.update(made)
            _forget_oldest(noted)

    def makes_by_failure(self, task_id: str) -> None:
        """Note that a failure enqueues this task. The failure may be written again; only the first time is told."""
        if task_id not in self._by_failure:
            self._by_failure[task_id] = None
            _forget_oldest(self._by_failure)
            self.makes([task_id])

    def makes_nodes(self, task_ids: Iterable[str]) -> None:
        """Note that a workflow has readied these tasks.

        One that was held, and is free again, is not told again before its end.
        """
        self.makes([task_id for task_id in task_ids if task_id not in self._unended])

    def ends(self, task_id: str) -> None:
        """Note that the end of a task is told."""
        self._unended.pop(task_id, None)

    def take_made(self, task_id: str) -> bool:
        """Return whether this one was to be made, and forget it: the caller tells of it now."""
        if task_id not in self._made:
            return False
        del self._made[task_id]
        return True

    # Batches of the writer.

    def sends(self, batch: Sequence[Sent]) -> None:
        """Note that this batch is on its way. If its answer is lost, the next batch carries its changes again."""
        self._batch, self._by_id = batch, None

    def answered(self) -> None:
        """Note that the listeners were told of the batch."""
        self.sends(())

    def write_to(self, task_id: str, state: Expected) -> Sent | None:
        """Return the write of the batch on its way that brings the row to this state, or None."""
        if not self._batch:
            return None
        if self._by_id is None:
            self._by_id = {sent.write.task_id: sent for sent in self._batch if sent.live.is_persisted}
        sent = self._by_id.get(task_id)
        return sent if sent is not None and sent.state == state else None

    # Snoozed runs of persisted tasks, until the end of the run is in the store.

    def snoozes(self, task_id: str, start_count: int, began_at: int) -> None:
        """Note that the run with this number was snoozed, and when it began."""
        self._snoozed[task_id, start_count] = began_at
        _forget_oldest(self._snoozed)

    def snoozed_runs(self, task_id: str, before: Expected | None, after: Expected) -> dict[int, int]:
        """Return the snoozed runs between two states of a row: when each began, by its number. Forget them."""
        if not self._snoozed:
            return {}
        first = 0 if before is None else before.start_count
        numbers = range(first, after.start_count + (after.status != "RUNNING"))
        found = {number: self._snoozed.pop((task_id, number), None) for number in numbers}
        return {number: began_at for number, began_at in found.items() if began_at is not None}


def _forget_oldest(noted: dict[T, Any]) -> None:
    while len(noted) > MOST_UNTOLD:
        del noted[next(iter(noted))]
