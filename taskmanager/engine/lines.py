"""What waits to be written, first in, first out, in numbered places.

History is kept so that the garbage collector has nothing to do with it. That looks whenever so many objects are new, at
these and in the end at all that there are: under load it held up the loop for 20 ms, several times a second.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar, cast

Packed = tuple[Any, ...]
"""Values of records, `WIDTH` for each. A plain tuple of texts and numbers: no other is left to itself."""
WIDTH: Final = 9
_SEALED_AT: Final = 64 * WIDTH
T = TypeVar("T")


class Line(Generic[T]):
    """First in, first out; what is put back, or tried again, goes to the front. Places are numbered for good."""

    def __init__(self) -> None:
        self.entries: deque[T] = deque()
        self.passed_count = 0
        """Entries that have left it, and were not put back."""

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def end(self) -> int:
        """The place behind the last entry: everything that is in the line now has left it when that is passed."""
        return self.passed_count + len(self)

    def pop(self) -> T:
        """The first one leaves."""
        self.passed_count += 1
        return self.entries.popleft()

    def put_back(self, entry: T) -> None:
        """It has left in vain."""
        self.passed_count -= 1
        self.entries.appendleft(entry)

    def advance(self, is_meant: Callable[[T], bool]) -> None:
        """An entry that was made a moment ago counts as one that has left in vain."""
        for behind, entry in enumerate(reversed(self.entries), 1):
            if is_meant(entry):
                del self.entries[-behind]
                self.put_back(entry)
                return


class HistoryLine(Line[T | Packed]):
    """A line of records, some of which are packed: their values stand one after the other in a list, and from there in
    tuples of many records each. So none of them is an object of its own.
    """

    def __init__(self) -> None:
        super().__init__()
        self._open: list[Any] = []
        """The values that came last."""
        self._sealed_count = self._packed_count = 0
        """How many of the entries are values of records, and of how many records, with the last ones."""

    def __len__(self) -> int:
        return len(self.entries) - self._sealed_count + self._packed_count

    def append(self, entry: T) -> None:
        """Add a record that is not packed."""
        self._seal()
        self.entries.append(entry)

    def pack(self, values: Packed) -> None:
        """Add the values of one record."""
        self._packed_count += 1
        self._open += values
        if len(self._open) >= _SEALED_AT:
            self._seal()

    def _seal(self) -> None:
        if self._open:
            self.entries.append(tuple(self._open))
            self._sealed_count += 1
            self._open = []

    def pop_many(self, most: int) -> list[T | Packed]:
        """The first ones leave, those that are packed with a tuple of its own for each."""
        taken: list[T | Packed] = []
        self._seal()
        while self.entries and len(taken) < most:
            entry = self.entries.popleft()
            if type(entry) is not tuple:
                taken.append(entry)
                continue
            room = (most - len(taken)) * WIDTH
            taken += _records(entry[:room])
            self._packed_count -= min(room, len(entry)) // WIDTH
            if len(entry) > room:
                self.entries.appendleft(entry[room:])
            else:
                self._sealed_count -= 1
        self.passed_count += len(taken)
        return taken

    def find(self, first: object) -> Packed | None:
        """Return the last packed record whose first value is this one. Looks at all of them."""
        for values in (tuple(self._open), *reversed(self.entries)):
            if type(values) is tuple and first in values[::WIDTH]:
                return next(each for each in _records(values) if each[0] == first)
        return None

    def others(self) -> list[T]:
        """Return the records that are not packed."""
        return [cast("T", entry) for entry in list(self.entries) if type(entry) is not tuple]


def _records(values: Packed) -> Iterator[Packed]:
    return zip(*[iter(values)] * WIDTH, strict=True)
