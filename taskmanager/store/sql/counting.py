"""Counts what a store has committed, and adds it to the figures.

Only what is committed is counted: not what was rolled back, and not a write that has lost its row. The counts stay in
memory after the commit, and go to the file once a second, in a transaction of their own. So a commit pays for one tuple
of each start and each end, 0.2 us, and a process that is killed loses the counts of one second. Figures may be too
small, and are never too large.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from taskmanager.model.clock import HOUR_US, MINUTE_US, Clock
from taskmanager.rules.figures import Span, bucket_of_bits
from taskmanager.store.noted import COMPLETED, COUNTS, RAN, STARTED, WAITED, Noted
from taskmanager.store.sql import statements as sql
from taskmanager.store.sql.session import Session

MAX_KEPT: Final = 20_000
"""Different runs, and rows of figures, that are kept in memory. What would need more rows is not counted."""
MAX_NAMES: Final = 1_000
"""Pairs of task and queue that one store tells apart in an hour. The others are counted together, without a name."""
OTHERS: Final = ("", "")
AHEAD_US: Final = MINUTE_US
"""How far ahead of the clock something may be that is counted: the clock may have been set back since."""
_KNOWN_HOURS: Final = 4
"""Hours whose names are known at a time."""


class FigureKey(NamedTuple):
    """The key of one row of figures: the tasks of one name in one queue, in so many seconds from `at` on."""

    span: int
    at: int
    task_name: str
    queue_name: str


def add(connection: Session, counted: Mapping[FigureKey, Sequence[int]]) -> None:
    """Add to the figures, in the transaction that is open. The counts come in the order of `noted.COUNTS`."""
    # In order: two who add at once must not wait for each other.
    connection.write(sql.FIGURES, [(*key, *counts) for key, counts in sorted(counted.items())])


class Positions(NamedTuple):
    """Where in the rows of a lean write its names stand, and the instants at which a wait or a run began and ended."""

    task_name: int
    queue_name: int
    begin: int
    end: int

    @classmethod
    def of(cls, kind: sql.Kind, begin: str, end: str) -> "Positions":
        """Return the positions in the rows of this kind."""
        return cls(*map(kind.columns.index, ("task_name", "queue_name", begin, end)))


TIMED: Final[Mapping[sql.Kind, Positions]] = {
    sql.STARTED: Positions.of(sql.STARTED, "sent_at", "started_at"),
    sql.START: Positions.of(sql.START, "enqueued_at", "started_at"),
    sql.SUCCESS: Positions.of(sql.SUCCESS, "started_at", "completed_at"),
}
"""Starts tell how long a task had been due, and successes how long it ran."""
WAITED_RUN: Final = Positions.of(sql.HISTORY, "sent_at", "started_at")
"""A run that is written once tells how long it had been due. `RUN_END` is the position of its end."""
RUN_END: Final = sql.HISTORY.columns.index("completed_at")


class Counting:
    """The counts that one store has not added to the figures yet. One thread at a time uses it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.timed: dict[sql.Kind, Counter[tuple[str, str, int, int]]] = {kind: Counter() for kind in TIMED}
        """How often lean writes had these names, this minute, and a duration of so many bits. The commit counts."""
        self.runs: Counter[tuple[str, str, int, int, int, int]] = Counter()
        """The same for runs that are written once, with two minutes and two durations."""
        self._counts: dict[FigureKey, list[int]] = {}
        self._names: dict[int, set[tuple[str, str]]] = {}

    def __repr__(self) -> str:
        return f"<Counting, {len(self._counts)} to add, {len(self.runs)} kinds of runs>"

    @property
    def has_any(self) -> bool:
        """Return whether there is anything to add."""
        return bool(self._counts or self.runs) or any(self.timed.values())

    def keep(self, noted: Noted) -> None:
        """Count what a committed transaction has changed."""
        now = self._clock.now_us()
        for (task_name, queue_name, minute, column), count in noted.changes:
            self._count(now, task_name, queue_name, minute, (column,), count)

    def figures(self) -> dict[FigureKey, list[int]]:
        """Return all that is to be added."""
        self.fold()
        return self._counts

    def forget(self) -> None:
        """Forget the counts, which are in the file now, or in a commit whose outcome is not known."""
        self._counts = {}

    def fold(self) -> None:
        """Turn what the lean writes had in common into counts."""
        now = self._clock.now_us()
        for kind, found in self.timed.items():
            what, first = (COMPLETED, RAN) if kind is sql.SUCCESS else (STARTED, WAITED)
            for (task, queue, minute, bits), count in self._under_names(found):
                self._count(now, task, queue, minute, (what, first + bucket_of_bits(bits)), count)
            found.clear()
        for (task, queue, began, ended, waited, ran), count in self._under_names(self.runs):
            self._count(now, task, queue, began, (STARTED, WAITED + bucket_of_bits(waited)), count)
            self._count(now, task, queue, ended, (COMPLETED, RAN + bucket_of_bits(ran)), count)
        self.runs.clear()

    def _under_names(self, found: Mapping[tuple[Any, ...], int]) -> Iterable[tuple[tuple[Any, ...], int]]:
        """Return the same with the names under which it is counted: of thousands of queues most are counted as one."""
        named: Counter[tuple[Any, ...]] = Counter()
        for (task, queue, minute, *rest), count in found.items():
            named[(*self._name(task, queue, minute * MINUTE_US // HOUR_US), minute, *rest)] += count
        return named.items()

    def _count(
        self, now: int, task_name: str, queue_name: str, minute: int, columns: tuple[int, ...], count: int
    ) -> None:
        """Count something in its minute and in its hour, unless that is long past or to come."""
        at = minute * MINUTE_US
        for span in Span:
            begin = span.begin_of(at)
            if not (now - span.kept_us < begin + span.us and begin <= now + AHEAD_US):
                continue
            key = FigureKey(span.value, begin, *self._name(task_name, queue_name, at // HOUR_US))
            counts = self._counts.get(key)
            if counts is None:
                if len(self._counts) >= MAX_KEPT:
                    continue
                counts = self._counts[key] = [0] * len(COUNTS)
            for column in columns:
                counts[column] += count

    def _name(self, task_name: str, queue_name: str, hour: int) -> tuple[str, str]:
        """Return the names under which this is counted."""
        if type(task_name) is not str or type(queue_name) is not str:  # text that cannot be read
            return OTHERS
        known = self._names.get(hour)
        if known is None:
            if len(self._names) >= _KNOWN_HOURS:
                del self._names[min(self._names)]
            known = self._names[hour] = set()
        name = task_name, queue_name
        if name in known:
            return name
        if len(known) >= MAX_NAMES:
            return OTHERS
        known.add(name)
        return name


@contextmanager
def counted(connection: Session, counting: Counting | None, *, is_beside: bool = False) -> Iterator[Noted]:
    """Open a transaction, and count what is noted in it when it is committed. Without `counting` nothing is counted."""
    noted = Noted()
    with connection.transaction(is_beside=is_beside):
        yield noted
    if counting is not None:
        counting.keep(noted)


def add_counted(connection: Session, counting: Counting) -> None:
    """Add to the figures what was counted, in a transaction of its own."""
    is_added = False
    try:
        with connection.transaction(is_beside=True):
            add(connection, counting.figures())
            is_added = True
    finally:
        if is_added:
            counting.forget()
