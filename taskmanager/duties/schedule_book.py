"""What one instance knows of its schedules: how they are declared, what the store said last, and when to look next."""

import heapq
from collections.abc import Iterable
from typing import Final

from taskmanager.duties.schedule import Schedule
from taskmanager.model.logger import logger
from taskmanager.model.schedule import ScheduleFire, ScheduleRow
from taskmanager.model.wording import counted

AT_ONCE: Final = 0
"""An instant that is always due."""


class ScheduleBook:
    """Looking is cheap however many there are: only what is due comes off the heap."""

    def __init__(self, my_id: str) -> None:
        self._my_id = my_id
        self.declared: dict[str, Schedule] = {}
        self.rows: dict[str, ScheduleRow] = {}
        self.owed_at_startup: set[str] = set()
        """Those whose run at the start of this instance is not in the store yet."""
        self.orphans: set[str] = set()
        """Those that are declared here, and by no instance that the store knows of: to be declared again."""
        self._look_at: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        self._parked_from = 0

    def __repr__(self) -> str:
        return f"<ScheduleBook of {len(self.declared)}, {len(self._look_at)} to be fired here>"

    # When to look.

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

    def plan_anew(self, now: int) -> None:
        """Plan all that is fired here by a clock that was stepped."""
        for name in list(self._look_at):
            self._plan_next(self.rows[name], now)

    def anew(self, row: ScheduleRow, now: int) -> int | None:
        """The fire with which a schedule goes on that was planned by a clock that was ahead, or None. It would fire
        much too late.

        Only its owner mends it: two instances with different clocks would undo each other's plans in turns.
        """
        if row.next_run_at is None or row.owner_id != self._my_id:
            return None
        return self.declared[row.schedule_name].anew(row.next_run_at, now)

    def pop_due(self, now: int, limit: int) -> list[str]:
        """At most `limit` of those that are to be looked at now; each must be planned again, or parked."""
        found: list[str] = []
        while len(found) < limit and (at_us := self.next_look()) is not None and at_us <= now:
            _, name = heapq.heappop(self._heap)
            del self._look_at[name]
            found.append(name)
        return found

    def next_look(self) -> int | None:
        """When the next is to be looked at."""
        while self._heap:
            at_us, name = self._heap[0]
            if self._look_at.get(name) == at_us:
                return at_us
            heapq.heappop(self._heap)  # it was planned anew, or parked, since
        return None

    # What the store says.

    def take_in(self, rows: Iterable[ScheduleRow], now: int) -> None:
        """Take these rows as what the store says now. Pass over schedules that are not declared here."""
        others = [row for row in rows if row.schedule_name in self.declared and self._take_in(row, now)]
        if others:
            logger.warning(
                "an instance that started later defines %s otherwise, so that it fires them and this one does not: %s",
                counted(len(others), "schedule"),
                ", ".join(f"{row.schedule_name} ({row.definition})" for row in others[:5]),
            )

    def _take_in(self, row: ScheduleRow, now: int) -> bool:
        """Take one row. Return whether it brings the news that another instance has defined the schedule otherwise."""
        name, schedule = row.schedule_name, self.declared[row.schedule_name]
        before = self.rows.get(name)
        self.rows[name] = row
        if not row.is_declared:
            self.orphans.add(name)
        if row.config_hash != schedule.config_hash:
            self.park(name)
            return row.is_declared and (before is None or before.config_hash != row.config_hash)
        if row.paused_at is not None:
            self.owed_at_startup.discard(name)
            self.park(name)
        else:
            self._plan_next(row, now)
        return False

    def fired(self, fire: ScheduleFire) -> None:
        """Go on from this step, which is in the store."""
        name = fire.schedule_name
        row = self.rows[name]._replace(next_run_at=fire.next_run_at, updated_at=fire.now)
        if fire.task is not None:
            row = row._replace(last_run_at=fire.now, last_task_id=fire.task.task_id, run_count=row.run_count + 1)
        self.rows[name] = row
        self.owed_at_startup.discard(name)
        self._plan_next(row, fire.now)

    def pass_over(self, fire: ScheduleFire) -> None:
        """Plan the next fire, because this step cannot be stored."""
        name = fire.schedule_name
        self.plan(name, self.declared[name].after(fire.now, fire.expected_next))

    def _plan_next(self, row: ScheduleRow, now: int) -> None:
        name = row.schedule_name
        if row.next_run_at is None or name in self.owed_at_startup or self.anew(row, now) is not None:
            self.plan(name, AT_ONCE)
        else:
            self.plan(name, self.declared[name].starts_at(row.next_run_at))
