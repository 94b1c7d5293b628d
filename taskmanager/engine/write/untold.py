"""What the listeners will be told, and was not told yet: rows on their way to the store, and runs that were snoozed.

A row may go on by another road before the answer to the write that made it: a claim takes it, or it expires. What the
write has done is told then, so that a listener hears everything in order.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

from taskmanager.engine.write.outbox import Sent
from taskmanager.model.record import Expected

T = TypeVar("T")
MOST_UNTOLD: Final = 10_000
"""Rows, and snoozed runs. Others take some of them, of which nothing is heard here; the oldest ones are forgotten."""


class Untold:
    """Of one start. All of it is called on the loop."""

    def __init__(self) -> None:
        self._made: dict[str, None] = {}
        self._by_failure: dict[str, None] = {}
        self._nodes: dict[str, None] = {}
        self._snoozed: dict[tuple[str, int], int] = {}
        self._batch: Sequence[Sent] = ()
        self._by_id: dict[str, Sent] | None = None

    def __repr__(self) -> str:
        return f"<Untold {len(self._batch)} writes, {len(self._made)} rows, {len(self._snoozed)} snoozed runs>"

    # Rows that were put into the store free, outside of the batches.

    def makes(self, task_ids: Iterable[str]) -> None:
        """These are put into the store by a write of ours, or will be."""
        self._made.update(dict.fromkeys(task_ids))
        _forget_oldest(self._made)

    def makes_by_failure(self, task_id: str) -> None:
        """The end of another task puts this one there. That end may be written again; only the first time is told."""
        self._makes_once([task_id], self._by_failure)

    def makes_nodes(self, task_ids: Iterable[str]) -> None:
        """A workflow has readied these. One that was held, and is free again, is not told again before its end."""
        self._makes_once(task_ids, self._nodes)

    def _makes_once(self, task_ids: Iterable[str], known: dict[str, None]) -> None:
        new = [task_id for task_id in task_ids if task_id not in known]
        known.update(dict.fromkeys(new))
        _forget_oldest(known)
        self.makes(new)

    def ends(self, task_id: str) -> None:
        """The end of a task is told."""
        self._nodes.pop(task_id, None)

    def has_made(self, task_id: str) -> bool:
        """Return whether this one was to be made, and is told of now."""
        if task_id not in self._made:
            return False
        del self._made[task_id]
        return True

    # Batches of the writer.

    def sends(self, batch: Sequence[Sent]) -> None:
        """This batch is on its way. Whether it arrives may stay unknown; the next one carries it again then."""
        self._batch, self._by_id = batch, None

    def answered(self) -> None:
        """The batch has been told."""
        self.sends(())

    def write_to(self, task_id: str, state: Expected) -> Sent | None:
        """Return the write without an answer that has brought the row to this state, or None."""
        if not self._batch:
            return None
        if self._by_id is None:
            self._by_id = {sent.write.task_id: sent for sent in self._batch if sent.live.is_persisted}
        sent = self._by_id.get(task_id)
        return sent if sent is not None and sent.state == state else None

    # Snoozed runs of persisted tasks, until the store says so.

    def snoozes(self, task_id: str, start_count: int, began_at: int) -> None:
        """The run with this number was snoozed."""
        self._snoozed[task_id, start_count] = began_at
        _forget_oldest(self._snoozed)

    def snoozed_runs(self, task_id: str, before: Expected | None, after: Expected) -> dict[int, int]:
        """Return when the runs began that were snoozed between two states of a row, by their numbers."""
        if not self._snoozed:
            return {}
        first = 0 if before is None else before.start_count
        numbers = range(first, after.start_count + (after.status != "RUNNING"))
        found = {number: self._snoozed.pop((task_id, number), None) for number in numbers}
        return {number: began_at for number, began_at in found.items() if began_at is not None}


def _forget_oldest(noted: dict[T, Any]) -> None:
    while len(noted) > MOST_UNTOLD:
        del noted[next(iter(noted))]
