"""What people do with schedules: look at them, pause and resume them, and run one by hand."""

from typing import Final

from taskmanager.duties.schedules.book import schedule_info
from taskmanager.duties.schedules.loop import Schedules
from taskmanager.duties.schedules.schedule import Schedule, task_of
from taskmanager.engine.engine import Engine
from taskmanager.model.checks import check_schedule_name
from taskmanager.model.errors import StoreUnavailable, UnknownTask
from taskmanager.model.ids import new_task_id
from taskmanager.model.schedule import ScheduleFire, ScheduleRow
from taskmanager.model.status import ScheduleInfo
from taskmanager.store.protocol import Store

MAX_TRIES: Final = 20
"""How often a run by hand is tried again when the schedule fired in the same moment."""


async def run_by_hand(store: Store, name: str, task_id: str, now: int) -> None:
    """Write one run of a schedule, paused or not, beside its fires. The same id again is the same run.

    Works from the store alone: the function need not be known here. Raises `UnknownTask`.
    """
    for _ in range(MAX_TRIES):
        row = await _row(store, name)
        task = task_of(row.template, task_id, now, now)
        fire = ScheduleFire(name, row.config_hash, row.next_run_at, row.next_run_at, task, now, is_manual=True)
        if not await store.fire_schedules([fire]):
            return
    raise StoreUnavailable(f"schedule {name!r} changed each time it was to be run; try again")


async def set_paused(store: Store, name: str, paused: bool, now: int) -> None:
    """Pause or resume a schedule for every instance. Raises `UnknownTask`."""
    if not await store.set_schedule_paused(name, paused, now):
        await _row(store, name)


async def _row(store: Store, name: str) -> ScheduleRow:
    found = await store.schedules([name])
    if found:
        return found[0]
    known = ", ".join(repr(row.schedule_name) for row in await store.schedules(limit=5)) or "none"
    raise UnknownTask(f"there is no schedule {name!r}; there are: {known}")


class ScheduleActions:
    """The same in an application that runs: at once here, elsewhere within seconds."""

    def __init__(self, engine: Engine, schedules: Schedules) -> None:
        self._store, self._wall_clock, self._life = engine.store, engine.wall_clock, engine.life
        self._schedules = schedules

    def add(self, schedule: Schedule) -> None:
        """One that was declared after the start."""
        self._schedules.add(schedule)

    def next_due_in_s(self) -> float | None:
        """Seconds until the next fire here, or the next look at one that waits; None when there is none."""
        return self._schedules.next_due_in_s()

    async def list(self) -> tuple[ScheduleInfo, ...]:
        """All that the store knows, by their next fire."""
        await self._schedules.declare()
        return tuple(schedule_info(row) for row in await self._store.schedules())

    def upcoming(self) -> tuple[ScheduleInfo, ...]:
        """What this instance would fire next, without a look at the store."""
        return self._schedules.book.upcoming()

    async def pause(self, name: str) -> None:
        """No fires from now on."""
        await self._set_paused(name, True)

    async def resume(self, name: str) -> None:
        """Fire again, from now on."""
        await self._set_paused(name, False)

    async def _set_paused(self, name: str, paused: bool) -> None:
        check_schedule_name(name)
        await self._schedules.declare()
        await set_paused(self._store, name, paused, self._wall_clock.now_us())
        await self._schedules.refresh([name])

    async def run(self, name: str) -> str:
        """One run beside the fires; the id of the task."""
        check_schedule_name(name)
        await self._schedules.declare()
        task_id = new_task_id()
        await run_by_hand(self._store, name, task_id, self._wall_clock.now_us())
        await self._schedules.refresh([name])
        self._life.wants_claim.set()
        return task_id
