"""What people ask of all tasks that fit: `retry_all` and `cancel_all`. Only what fits may be touched."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from taskmanager.model.record import TaskRow
from taskmanager.model.states import TERMINAL, TaskStatus

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

GROUPS = 3
"""Tasks carry the tag `group`, with one of so many values."""


def fits(row: TaskRow, given: Mapping[str, Any]) -> bool:
    """Whether a row has all that is given, by the words of `manager.list`."""
    tags = json.loads(row.tags or "{}")
    own = {
        "status": row.status,
        "task_name": row.task_name,
        "queue_name": row.queue_name,
        "error_code": row.error_code,
        "tags": {name: tags.get(name) for name in given.get("tags") or {}},
    }
    return all(own[name] == value for name, value in given.items())


class Batch:
    """One call. What it has not done when it breaks off may still be done by its store, so it counts as under way."""

    def __init__(self, verb: str, given: Mapping[str, Any]) -> None:
        self.verb, self.given = verb, given
        self.reached: frozenset[str] | None = None
        """The tasks that were there when it came back. None while it is under way."""

    def asks_for(self, row: TaskRow) -> bool:
        """Whether it may act on this row."""
        if self.verb == "retry_all":
            return self.reached is None and fits(row, {"status": TaskStatus.FAILED, **self.given})
        # A request is recorded where the task runs; by then it may have another status, or have been retried.
        lasting = {name: each for name, each in self.given.items() if name not in ("status", "error_code")}
        return (self.reached is None or row.task_id in self.reached) and fits(row, lasting)


class Batches:
    """All of them in one seed."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._batches: list[Batch] = []
        self.may_cancel: set[str] = set()
        """Tasks that somebody has asked for alone."""

    async def act(self, process: "Process", verb: str, given: Mapping[str, Any]) -> None:
        """A call of the application."""
        batch = Batch(verb, given)
        self._batches.append(batch)
        count = await getattr(process.manager, verb)(**given)
        batch.reached = frozenset({*self._world.checks.rows, *process.handles, *process.held_ids})
        self._world.log(process, "has done", verb, count)

    def is_asked(self, verb: str, row: TaskRow) -> bool:
        """Whether some call may have done this to the row, as it was before."""
        return any(batch.verb == verb and batch.asks_for(row) for batch in self._batches)

    @property
    def has_retried(self) -> bool:
        """Whether somebody has ever asked for all that fit to run again."""
        return any(batch.verb == "retry_all" for batch in self._batches)

    def judge(self, old: TaskRow | None, new: TaskRow, what: str) -> None:
        """A row is new, or has changed. Histories ask for cancellations by themselves, and have no batches."""
        is_request = new.cancel_requested_at is not None and (old is None or old.cancel_requested_at is None)
        is_ours = is_request and self._batches and new.task_id not in self.may_cancel
        is_ours = is_ours and not new.is_workflow_task  # that may be the wish of whoever cancels its workflow
        # An ended task that a call of its key puts back is chosen by what the call says of it.
        if is_ours and not self.is_asked("cancel_all", new if old is None or old.status in TERMINAL else old):
            self._world.fault(f"nobody has asked for this to be cancelled: {what}")
