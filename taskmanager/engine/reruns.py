"""Remembers which tasks ran again after their end: what a handle holds of an earlier run is not their end any more."""

from collections import OrderedDict
from itertools import count
from typing import Final

from taskmanager.engine.live_task import LiveTask

WINDOW: Final = 100_000
"""Tasks that are remembered; the handles of others give the end that they know."""


class Reruns:
    """Of one manager, for all its starts. Asked and told from any thread: each step is one call of a dictionary."""

    def __init__(self) -> None:
        self._latest: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._numbers = count(1)

    def __repr__(self) -> str:
        return f"<Reruns {len(self._latest)} tasks>"

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._latest

    def note(self, task_id: str, start_count: int, run: LiveTask | None = None) -> None:
        """Runs with at most so many starts are not the latest one of this task any more, except for `run`."""
        number = next(self._numbers)
        if run is not None:
            run.run_number = number
        before, _ = self._latest.pop(task_id, (0, 0))
        self._latest[task_id] = max(before, start_count), number
        while len(self._latest) > WINDOW:
            self._latest.popitem(last=False)

    def has_run_again(self, live: LiveTask) -> bool:
        """Whether an ended task was put back since, here or where this instance has heard of it.

        The start count alone does not tell: a run may be cancelled before it starts, and the next one too.
        """
        start_count, number = self._latest.get(live.task_id, (-1, 0))
        return start_count >= live.start_count and number > live.run_number
