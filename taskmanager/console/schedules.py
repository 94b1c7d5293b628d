"""Says of schedules what a list shows: when they fire, from their rows alone, and why one does not fire."""

import re
from collections.abc import Container, Iterable
from functools import lru_cache
from typing import Final

from taskmanager.model.clock import DAY_US, HOUR_US, MINUTE_US, SECOND_US
from taskmanager.model.schedule import ScheduleRow
from taskmanager.rules.schedule import NEVER_US, timing_of

MOST_FIRES: Final = 48
"""Fires that are computed of one schedule. What fires more often is a band, on a line of a day."""
_SECONDS: Final = re.compile(r"\b(every|jitter) ([1-9]\d{0,11}) s\b")
_UNITS: Final = ((DAY_US, "d"), (HOUR_US, "h"), (MINUTE_US, "min"))


def state(row: ScheduleRow, is_running: bool) -> str:
    """Return why a schedule does not fire; nothing where it does."""
    if row.paused_at is not None:
        return "paused"
    return "not declared" if is_running and not row.is_declared else ""


def timing(definition: str) -> str:
    """Return when a schedule fires, for people: `every 2 h` where the file says `every 7200 s`, and never rounded."""
    return _SECONDS.sub(lambda found: f"{found[1]} {_in_large_units(int(found[2]))}", definition)


def _in_large_units(seconds: int) -> str:
    fitting = ((unit_us // SECOND_US, name) for unit_us, name in _UNITS)
    return next((f"{seconds // unit_s} {name}" for unit_s, name in fitting if seconds % unit_s == 0), f"{seconds} s")


def as_known(rows: Iterable[ScheduleRow], alive: Container[str]) -> list[ScheduleRow]:
    """Return the schedules, each declared only if its owner is among the instances that are alive."""
    return [row._replace(is_declared=row.owner_id in alive) for row in rows]


def fires(row: ScheduleRow, until: int) -> tuple[int, ...]:
    """Return when the schedule fires next, up to this instant: at most `MOST_FIRES` times, none while it is paused."""
    if row.next_run_at is None or row.paused_at is not None:
        return ()
    return _fires(row.schedule_name, row.definition, row.next_run_at, until)


@lru_cache(512)
def _fires(name: str, definition: str, first: int, until: int) -> tuple[int, ...]:
    timing, found, fire = timing_of(name, definition), list[int](), first
    while fire <= until and fire < NEVER_US and len(found) < MOST_FIRES:
        found.append(fire if timing is None else timing.due(fire))
        if timing is None:
            break
        fire = timing.after(fire, fire)
    return tuple(found)
