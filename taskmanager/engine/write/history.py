"""Ended tasks that are not in the store yet. Whoever asks for one finds it here.

Under load the records of thousands of memory-only tasks wait for the writer. As objects they would make the garbage
collector hold the loop for 80 ms for each 100,000, and as a tuple each for 20 ms, several times a second: it looks
whenever so many objects are new, at these and in the end at all that there are. So of what ended plainly only the texts
and numbers are kept, many in one tuple. The task is made anew for whoever asks for it.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, Final, Generic, TypeVar, cast

from taskmanager.engine.words.definition import Definition
from taskmanager.engine.words.live_task import NOT_SAVED, Ending, LiveTask, Worker
from taskmanager.engine.words.phases import ENDED
from taskmanager.model.record import HistoryWrite, PlainCall
from taskmanager.model.states import TaskStatus

Packed = tuple[Any, ...]
"""The values of records, `WIDTH` for each. A plain tuple of texts and numbers: no other is left to itself."""
WIDTH: Final = 9
_SEALED_AT: Final = 64 * WIDTH
T = TypeVar("T")
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
        self.of_ordinary: dict[tuple[Definition, str, int], int] = {}
        """The numbers of those calls of ordinary tasks, by definition, queue and priority."""
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


class HistoryLine(Generic[T]):
    """The records that wait, first in, first out, in places that are numbered for good.

    Those that are packed stand as values, one after the other, in a list, and from there in tuples of many records.
    """

    def __init__(self) -> None:
        self._parts: deque[T | Packed] = deque()
        self._open: list[Any] = []
        """The values that came last."""
        self.end = 0
        """The place behind the last record."""
        self.passed_count = 0
        """Records that have left, and were not put back."""

    def __len__(self) -> int:
        return self.end - self.passed_count

    def append(self, record: T) -> None:
        """Add a record that is not packed."""
        self._seal()
        self._parts.append(record)
        self.end += 1

    def pack(self, values: Packed) -> None:
        """Add the values of one record."""
        self.end += 1
        self._open += values
        if len(self._open) >= _SEALED_AT:
            self._seal()

    def _seal(self) -> None:
        if self._open:
            self._parts.append(tuple(self._open))
            self._open = []

    def pop_many(self, most: int) -> list[T | Packed]:
        """The first ones leave, those that are packed with a tuple of its own for each."""
        taken: list[T | Packed] = []
        self._seal()
        while self._parts and len(taken) < most:
            part = self._parts.popleft()
            if type(part) is not tuple:
                taken.append(part)
                continue
            room = (most - len(taken)) * WIDTH
            taken += _records(part[:room])
            if len(part) > room:
                self._parts.appendleft(part[room:])
        self.passed_count += len(taken)
        return taken

    def put_back(self, record: T) -> None:
        """It has left in vain."""
        self.passed_count -= 1
        self._parts.appendleft(record)

    def advance(self, is_meant: Callable[[T], bool]) -> None:
        """A record that was added a moment ago, and is not packed, counts as one that has left in vain."""
        for behind, part in enumerate(reversed(self._parts), 1):
            if type(part) is not tuple and is_meant(record := cast("T", part)):
                del self._parts[-behind]
                self.end -= 1
                self.put_back(record)
                return

    def find(self, first: object) -> Packed | None:
        """Return the last packed record whose first value is this one. Looks at all of them."""
        for values in (tuple(self._open), *reversed(self._parts)):
            if type(values) is tuple and first in values[::WIDTH]:
                return next(each for each in _records(values) if each[0] == first)
        return None

    def others(self) -> list[T]:
        """Return the records that are not packed. May be called from anywhere."""
        return [cast("T", part) for part in list(self._parts) if type(part) is not tuple]


def _records(values: Packed) -> Iterator[Packed]:
    return zip(*[iter(values)] * WIDTH, strict=True)
