"""The figures of time against what the rows went through: never more starts and ends than there were.

There may be fewer: a process that is killed loses what it has counted in its last second, and what lies too far from
the clock of whoever writes it is not counted.
"""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from taskmanager.model.record import TaskRow
from taskmanager.model.states import TERMINAL

if TYPE_CHECKING:
    from tests.simulation.world import World


class Tally:
    """Starts and ends, as the judge sees them."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.counts: Counter[str] = Counter()

    def observe(self, before: Mapping[str, TaskRow], rows: Mapping[str, TaskRow]) -> None:
        """Count what has changed."""
        for task_id, row in rows.items():
            old = before.get(task_id)
            if old is row:
                continue
            if old is not None and (old.sent_at, old.start_count) > (row.sent_at, row.start_count):
                old = None  # its key was enqueued again, and its count begins anew
            if old is not None and old.sent_at != row.sent_at:
                old = None
            self.counts["started"] += row.start_count - (0 if old is None else old.start_count)
            if row.status in TERMINAL and (old is None or old.status != row.status):
                self.counts[row.status.lower()] += 1

    def judge(self) -> None:
        """Compare. A file that was lost, or replaced by a copy, has taken its figures along."""
        if self._world.loss_count:
            return
        for name, count in self._world.disk.figures().items():
            if count > self.counts[name]:
                self._world.fault(f"the figures tell of {count} {name}, and there were {self.counts[name]}")
