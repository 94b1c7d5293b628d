"""What a failure has promised: one alert for each task that has failed for good, in the same write, and no other."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from taskmanager.model.record import TaskRow
from taskmanager.model.states import TaskStatus
from tests.simulation.jobs import FOLLOWED

if TYPE_CHECKING:
    from tests.simulation.world import World


class Failure(NamedTuple):
    """One final failure, as the failed row and the alert both tell it."""

    task_id: str
    start_count: int
    failed_at: int | None


class Failures:
    """The alerts of all failures so far."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.alerted: set[Failure] = set()

    def judge(self, before: Mapping[str, TaskRow], rows: Mapping[str, TaskRow]) -> None:
        """Compare what stands there after one write with what stood there before."""
        changed = [row for task_id, row in rows.items() if (old := before.get(task_id)) is not row and old != row]
        failed = {_failure_of(row) for row in changed if _has_failed(row, before.get(row.task_id))}
        made = {_told_by(row) for row in changed if row.task_name == "alert" and row.task_id not in before}
        for each in failed - made:
            if not (self._world.loss_count and _is_alerted(each, rows)):
                self._world.fault(f"{each} is followed by no alert")
        # What a process has in memory of a file that is lost is written anew, alerts and failures apart.
        if not self._world.loss_count:
            for each in made - failed:
                self._world.fault(f"an alert of {each}, which is no failure of this write")
            for each in made & self.alerted:
                self._world.fault(f"{each} is followed by two alerts")
        self.alerted |= made


def _is_alerted(failure: Failure, rows: Mapping[str, TaskRow]) -> bool:
    """Whether there is an alert of this run. It may have failed before, by a file that is lost."""
    alerts = (_told_by(row) for row in rows.values() if row.task_name == "alert")
    return any(each[:2] == failure[:2] for each in alerts)


def _has_failed(row: TaskRow, old: TaskRow | None) -> bool:
    is_failure = row.task_name in FOLLOWED and row.status == TaskStatus.FAILED
    return is_failure and (old is None or _failure_of(old) != _failure_of(row))


def _failure_of(row: TaskRow) -> Failure:
    return Failure(row.task_id, row.start_count, row.failed_at)


def _told_by(alert: TaskRow) -> Failure:
    (told,) = json.loads(alert.args or "[]")
    return Failure(told["task_id"], told["attempts"], alert.sent_at)
