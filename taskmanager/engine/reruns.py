"""Remembers which tasks were put back after their end, so that handles do not report the end of an earlier run."""

from collections import OrderedDict
from itertools import count
from typing import Final

from taskmanager.engine.live_task import LiveTask

WINDOW: Final = 100_000
"""How many tasks are remembered. The handles of other tasks report the end that they know."""


class Reruns:
    """The reruns of one manager, for all its starts. Any thread may use it: each step is one call of a dictionary."""

    def __init__(self) -> None:
        self._latest: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._numbers = count(1)

    def __repr__(self) -> str:
        return f"<Reruns {len(self._latest)} tasks>"

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._latest

    def note(self, task_id: str, start_count: int, run: LiveTask | None = None) -> None:
        """Note that a run with at most this many starts is not the latest one any more, unless it is `run`."""
        number = next(self._numbers)
        if run is not None:
            run.run_number = number
        before, _ = self._latest.pop(task_id, (0, 0))
        self._latest[task_id] = max(before, start_count), number
        while len(self._latest) > WINDOW:
            self._latest.popitem(last=False)

    def has_run_again(self, live: LiveTask) -> bool:
        """Whether an ended task was put back since then, as far as this instance knows.

        The start count alone does not tell: a run may be cancelled before it starts, and the next one too.
        """
        start_count, number = self._latest.get(live.task_id, (-1, 0))
        return start_count >= live.start_count and number > live.run_number
