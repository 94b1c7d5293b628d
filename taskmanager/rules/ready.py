"""What starts: tasks that wait in memory for a slot, in order of priority (`ReadyQueue`), or for a moment
(`DelayedQueue`), and how many may run at once (`Slots`).

Neither queue can remove an item from its middle: whoever takes an item looks whether it still wants it, and
`discard_stale` clears a queue that holds too many unwanted ones.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")


class ReadyQueue(Generic[T]):
    """Smallest priority first, then smallest `enqueued_at`, then order of arrival.

    Nearly everything arrives in the order of `enqueued_at`, so there is one row per priority and only what comes too
    late for its row goes on a heap: with 100,000 items held, a push and a pop take half of what one heap takes.
    """

    __slots__ = ("_late", "_late_counts", "_next", "_priorities", "_rows", "held")

    def __init__(self, arrivals: Iterator[int] | None = None) -> None:
        """`arrivals` numbers the items; queues that share it keep the order of arrival among each other too."""
        # An emptied row stays, because making one for every task would cost more than the rest; there are as many as
        # there are priorities, at most a hundred per queue.
        self._rows: dict[int, deque[tuple[int, int, int, T]]] = {}
        self._priorities: list[int] = []  # heap: the rows that are not empty
        self._late: list[tuple[int, int, int, T]] = []  # heap
        self._late_counts: dict[int, int] = {}
        self._next = (count() if arrivals is None else arrivals).__next__
        self.held = 0
        """How many items it holds. Who takes many reads this: a call of `len` costs as much as a pop."""

    def push(self, priority: int, enqueued_at: int, item: T) -> None:
        """Add an item."""
        row = self._rows.get(priority)
        if row is None:
            row = self._rows[priority] = deque()
        entry = (priority, enqueued_at, self._next(), item)
        if not row:
            heappush(self._priorities, priority)
            row.append(entry)
        elif enqueued_at >= row[-1][1]:
            row.append(entry)
        else:
            heappush(self._late, entry)
            self._late_counts[priority] = self._late_counts.get(priority, 0) + 1
        self.held += 1

    def pop(self) -> T:
        """Take the first item; `IndexError` when there is none."""
        if self._priorities:
            row = self._rows[self._priorities[0]]
            if not self._late or row[0] < self._late[0]:
                item = row.popleft()[3]
                if not row:
                    heappop(self._priorities)
                self.held -= 1
                return item
        return self._pop_late()

    def _pop_late(self) -> T:
        if not self._late:
            raise IndexError("pop from an empty ReadyQueue")
        priority, _, _, item = heappop(self._late)
        left = self._late_counts[priority] - 1
        if left:
            self._late_counts[priority] = left
        else:
            del self._late_counts[priority]
        self.held -= 1
        return item

    def peek_key(self) -> tuple[int, int, int]:
        """Priority, `enqueued_at` and arrival number of the first item; `IndexError` when there is none."""
        if self._priorities and not self._late:
            return self._rows[self._priorities[0]][0][:3]
        heads = [self._rows[self._priorities[0]][0]] if self._priorities else []
        heads += self._late[:1]
        if not heads:
            raise IndexError("peek into an empty ReadyQueue")
        return min(heads)[:3]

    def worst_priority(self) -> int | None:
        """The largest priority number held, None when empty."""
        return max((*self._priorities, *self._late_counts), default=None)

    def count_up_to(self, priority: int) -> int:
        """How many items have this priority number or a smaller one."""
        in_rows = sum(len(row) for each, row in self._rows.items() if each <= priority)
        return in_rows + sum(late for each, late in self._late_counts.items() if each <= priority)

    def discard_stale(self, is_stale: Callable[[T], bool]) -> int:
        """Remove every item for which `is_stale` holds; the others keep their order. Returns how many went."""
        rows = {
            priority: deque(entry for entry in row if not is_stale(entry[3])) for priority, row in self._rows.items()
        }
        late = [entry for entry in self._late if not is_stale(entry[3])]
        heapify(late)
        before = self.held
        self._rows = {priority: row for priority, row in rows.items() if row}
        self._priorities = sorted(self._rows)
        self._late = late
        self._late_counts = {}
        for priority, *_ in late:
            self._late_counts[priority] = self._late_counts.get(priority, 0) + 1
        self.held = len(late) + sum(map(len, self._rows.values()))
        return before - self.held

    def __len__(self) -> int:
        return self.held

    def __bool__(self) -> bool:
        return self.held > 0

    def __iter__(self) -> Iterator[T]:
        """Every item, in no particular order."""
        for row in self._rows.values():
            for entry in row:
                yield entry[3]
        for entry in self._late:
            yield entry[3]

    def __repr__(self) -> str:
        return f"<ReadyQueue: {self.held} ready, worst priority {self.worst_priority()}>"


class DelayedQueue(Generic[T]):
    """Items that wait until a moment of one clock: any number that only grows, in the caller's unit."""

    __slots__ = ("_heap", "_next")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._next = count().__next__

    def push(self, due: float, item: T) -> None:
        """Add an item that is due at `due`."""
        heappush(self._heap, (due, self._next(), item))

    def pop_due(self, now: float) -> list[T]:
        """Take everything that is due at `now`, the earliest first, in order of arrival where equal."""
        heap = self._heap
        due = []
        while heap and heap[0][0] <= now:
            due.append(heappop(heap)[2])
        return due

    def next_due(self) -> float | None:
        """When the earliest item is due, None when empty."""
        return self._heap[0][0] if self._heap else None

    def discard_stale(self, is_stale: Callable[[T], bool]) -> int:
        """Remove every item for which `is_stale` holds; the others keep their order. Returns how many went."""
        kept = [entry for entry in self._heap if not is_stale(entry[2])]
        gone = len(self._heap) - len(kept)
        heapify(kept)
        self._heap = kept
        return gone

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[T]:
        """Every item, in no particular order."""
        return (entry[2] for entry in self._heap)

    def __repr__(self) -> str:
        return f"<DelayedQueue: {len(self._heap)} delayed, next due {self.next_due()}>"


class Slots:
    """A limit with the count of its holders. `limit` None is no limit; `cap` is a lower one that holds for now."""

    __slots__ = ("cap", "limit", "running")

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.running = 0
        self.cap: int | None = None

    @property
    def has_room(self) -> bool:
        """Whether one more may start."""
        return (self.limit is None or self.running < self.limit) and (self.cap is None or self.running < self.cap)

    @property
    def free(self) -> int:
        """How many more may start; `sys.maxsize` without a limit, 0 when the limit was lowered below what runs."""
        most = self.limit
        if self.cap is not None and (most is None or self.cap < most):
            most = self.cap
        if most is None:
            return sys.maxsize
        return most - self.running if most > self.running else 0

    def take(self) -> None:
        """Count one more. Unchecked, the caller has asked `has_room` of every limit that applies."""
        self.running += 1

    def give_back(self) -> None:
        """Count one less."""
        assert self.running > 0, "a slot was given back twice"
        self.running -= 1

    def __repr__(self) -> str:
        if self.limit is None:
            return f"{self.running} running, no limit"
        return f"{self.running} of {self.limit} running"


def take_each(lane: Slots, queue: Slots) -> None:
    """Count one more that runs in both."""
    lane.running += 1
    queue.running += 1
