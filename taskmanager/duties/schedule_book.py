"""What one instance knows of its schedules: how they are declared, what the store said last, and when to look next."""

import heapq
from typing import Final

from taskmanager.engine.schedule import Schedule
from taskmanager.model.clock import from_us
from taskmanager.model.schedule import ScheduleRow
from taskmanager.model.status import ScheduleInfo

MAX_UPCOMING: Final = 100


class ScheduleBook:
    """Looking is cheap however many there are: only what is due comes off the heap."""

    def __init__(self) -> None:
        self.declared: dict[str, Schedule] = {}
        self.rows: dict[str, ScheduleRow] = {}
        self._look_at: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        self._parked_from = 0

    def __repr__(self) -> str:
        return f"<ScheduleBook of {len(self.declared)}, {len(self._look_at)} to be fired here>"

    def plan(self, name: str, at_us: int) -> None:
        """Look at it then, and not at the time that was planned before."""
        self._look_at[name] = at_us
        heapq.heappush(self._heap, (at_us, name))

    def park(self, name: str) -> None:
        """Do not look at it until it is planned again: it is paused, or fired by others."""
        self._look_at.pop(name, None)

    def parked(self, limit: int) -> list[str]:
        """Those that are parked; where they are more than the limit, others of them with each call."""
        found = [name for name in self.declared if name not in self._look_at]
        start = self._parked_from if self._parked_from < len(found) else 0
        self._parked_from = start + limit
        return found[start : start + limit]

    def pop_due(self, now: int, limit: int) -> list[str]:
        """At most `limit` of those that are to be looked at now; each must be planned again, or parked."""
        found: list[str] = []
        while self._heap and len(found) < limit and self._top() is not None and self._heap[0][0] <= now:
            _, name = heapq.heappop(self._heap)
            del self._look_at[name]
            found.append(name)
        return found

    def next_look(self) -> int | None:
        """When the next is to be looked at."""
        return self._top()

    def _top(self) -> int | None:
        while self._heap:
            at_us, name = self._heap[0]
            if self._look_at.get(name) == at_us:
                return at_us
            heapq.heappop(self._heap)
        return None

    def upcoming(self) -> tuple[ScheduleInfo, ...]:
        """The next to fire, as far as this instance knows; those without a next fire last."""
        first = heapq.nsmallest(
            MAX_UPCOMING,
            self.rows.values(),
            key=lambda row: (row.paused_at is not None, row.next_run_at or 0, row.schedule_name),
        )
        return tuple(schedule_info(row) for row in first)


def schedule_info(row: ScheduleRow) -> ScheduleInfo:
    """The view of a row that users get."""
    return ScheduleInfo(
        schedule_name=row.schedule_name,
        task_name=row.task_name,
        definition=row.definition,
        last_run_at=None if row.last_run_at is None else from_us(row.last_run_at),
        next_run_at=None if row.next_run_at is None else from_us(row.next_run_at),
        last_task_id=row.last_task_id,
        run_count=row.run_count,
        config_hash=row.config_hash,
        is_paused=row.paused_at is not None,
        is_declared=row.is_declared,
        updated_at=from_us(row.updated_at),
    )
