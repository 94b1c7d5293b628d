"""Ended tasks that are not in the store yet. Whoever asks for one finds it here.

Under load the records of thousands of memory-only tasks wait for the writer. As objects they would make the garbage
collector hold the loop for 80 ms for each 100,000. So of what ended plainly only the texts and numbers are kept (see
`HistoryLine`). The task is made anew for whoever asks for it.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Final

from taskmanager.engine.definition import Definition
from taskmanager.engine.live_task import NOT_SAVED, Ending, LiveTask, Worker
from taskmanager.engine.phases import ENDED
from taskmanager.model.record import HistoryWrite, PlainCall
from taskmanager.model.states import TaskStatus

ENDED_PLAINLY: Final = LiveTask.__new__(LiveTask)
"""Stands in a batch for the task of a packed record. It is asked for nothing but `is_persisted`."""
ENDED_PLAINLY.is_persisted = False


class UnsavedEnded(Mapping[str, LiveTask]):
    """Tasks whose end was told, or is history, and is not in the store. By their ids."""

    def __init__(self, find: Callable[[str], HistoryWrite]) -> None:
        self.kept: dict[str, LiveTask] = {}
        """Those that are here as they were."""
        self.packed: dict[str, None] = {}
        """The ids of the others. Without values, so that the collector need not look at these either."""
        self.numbers: dict[PlainCall, int] = {}
        self.calls: list[PlainCall] = []
        """By their numbers."""
        self.of_ordinary: dict[Definition, int] = {}
        """The numbers of those calls that differ in nothing from their definitions."""
        self._definitions: list[Definition] = []
        """By the same."""
        self._find = find

    def __len__(self) -> int:
        return len(self.kept) + len(self.packed)

    def __iter__(self) -> Iterator[str]:
        return chain(self.kept, self.packed)

    def __contains__(self, task_id: object) -> bool:
        return task_id in self.kept or task_id in self.packed

    def __getitem__(self, task_id: str) -> LiveTask:
        return self.revived(self._find(task_id)) if task_id in self.packed else self.kept[task_id]

    def number(self, call: PlainCall, definition: Definition) -> int:
        """Give a call its number."""
        if not self.packed:  # nothing has the numbers so far any more
            self.numbers.clear()
            self.of_ordinary.clear()
            self.calls, self._definitions = [], []
        number = self.numbers[call] = len(self.calls)
        self.calls.append(call)
        self._definitions.append(definition)
        return number

    def revived(self, write: HistoryWrite) -> LiveTask:
        """Return the task of a record."""
        definition = self._definitions[self.numbers[write.call]]
        live = LiveTask.from_row(write.in_full().row, definition, definition.timeout_s, ENDED)
        live.is_persisted, live.saving, live.is_published = False, NOT_SAVED, True
        live.worker, live.attempts_due = Worker(*write.call[6:]), write.attempts
        live.ending = Ending(TaskStatus.COMPLETED, definition.read_result(write.result or ""))
        return live
