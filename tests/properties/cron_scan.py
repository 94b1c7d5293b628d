"""Every minute of some years in one time zone, and which of them a cron expression means, found without any cleverness.

Local time is written down minute by minute: once as clocks without a zone would show it, once as the clocks of the zone
do. An expression is five sets of numbers; what it matches is looked up in those lists. `python -m
tests.properties.cron_scan 500` compares that many random expressions for each zone, at every one of their fires.
"""

import random
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from taskmanager.model.clock import to_us
from taskmanager.rules.cron import Cron

ZONES: Final = (
    "Europe/Berlin", "America/Sao_Paulo", "Australia/Lord_Howe", "Africa/Casablanca", "America/St_Johns", "UTC",
)  # fmt: skip
# With midnight gaps in Brazil, a summer time that pauses for Ramadan in Morocco, and half hours at Lord Howe.
YEARS: Final = (2016, 2017, 2018)
MINUTE_US: Final = 60_000_000
_DAY_MINUTES: Final = 1_440
_MARGIN_DAYS: Final = 2
_NAMES: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


class Expression(NamedTuple):
    """A cron expression, and what each of its fields means."""

    text: str
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    is_fixed: bool
    needs_both_days: bool


def _field(dice: random.Random, low: int, high: int) -> tuple[str, frozenset[int]]:
    every = range(low, high + 1)
    kind = dice.randrange(7)
    if kind <= 1:
        return "*", frozenset(every)
    if kind == 2:
        step = dice.randint(2, max(2, (high - low) // 2))
        return f"*/{step}", frozenset(every[::step])
    first, last = sorted(dice.sample(every, 2))
    if kind == 3:
        return f"{first}-{last}", frozenset(range(first, last + 1))
    if kind == 4:
        step = dice.randint(2, 9)
        return f"{first}-{last}/{step}", frozenset(range(first, last + 1, step))
    if kind == 5:
        return f"{first},{last}", frozenset((first, last))
    return str(first), frozenset((first,))


def random_expression(dice: random.Random) -> Expression:
    """Any mixture of stars, steps, ranges, lists and single values; times near midnight and three are favoured."""
    minute, minutes = _field(dice, 0, 59)
    hour, hours = _field(dice, 0, 23 if dice.random() < 0.5 else 4)
    if not hour.startswith("*"):
        hours = frozenset(hours)
    elif hour == "*":
        hours = frozenset(range(24))
    else:
        hours = frozenset(range(0, 24, int(hour[2:])))
    day, days = ("*", frozenset(range(1, 32))) if dice.random() < 0.6 else _field(dice, 1, 28)
    if day == "*":
        days = frozenset(range(1, 32))
    elif day.startswith("*/"):
        days = frozenset(range(1, 32, int(day[2:])))
    month, months = ("*", frozenset(range(1, 13))) if dice.random() < 0.7 else _field(dice, 1, 12)
    weekday, weekdays = ("*", frozenset(range(7))) if dice.random() < 0.6 else _field(dice, 0, 6)
    if weekday.isdigit() and dice.random() < 0.5:
        weekday = _NAMES[int(weekday)]
    return Expression(
        f"{minute} {hour} {day} {month} {weekday}",
        minutes,
        hours,
        days,
        months,
        weekdays,
        not minute.startswith("*") and not hour.startswith("*"),
        day.startswith("*") or weekday.startswith("*"),
    )


class Scan:
    """All minutes of the years in one zone. Minute 0 is midnight UTC, `_MARGIN_DAYS` before the first year."""

    def __init__(self, zone: str, years: tuple[int, ...] = YEARS, step: int = 15) -> None:
        self.zone = zone
        self._zoneinfo = ZoneInfo(zone)
        self._first = datetime(years[0], 1, 1, tzinfo=UTC) - timedelta(days=_MARGIN_DAYS)
        self._days = (date(years[-1] + 1, 1, 1) - self._first.date()).days + _MARGIN_DAYS
        self._plain = self._plain_lists()
        self.changes: list[int] = []
        self._shown = self._shown_lists(step)
        self._first_shown = self._places()

    def _plain_lists(self) -> list[bytes]:
        """Minute, hour, day, month and weekday of every minute, where no clock ever changes."""
        days = [self._first.date() + timedelta(days=number) for number in range(self._days)]
        return [
            bytes(range(60)) * 24 * self._days,
            b"".join(bytes([hour]) * 60 for hour in range(24)) * self._days,
            b"".join(bytes([day.day]) * _DAY_MINUTES for day in days),
            b"".join(bytes([day.month]) * _DAY_MINUTES for day in days),
            b"".join(bytes([day.isoweekday() % 7]) * _DAY_MINUTES for day in days),
        ]

    def _offset(self, minute: int) -> int:
        """Minutes by which the clocks of the zone are ahead of UTC."""
        offset = (self._first + timedelta(minutes=minute)).astimezone(self._zoneinfo).utcoffset()
        assert offset is not None
        return int(offset.total_seconds()) // 60

    def _shown_lists(self, step: int) -> list[bytes]:
        """The same five lists as the clocks of the zone show them; between two looks `step` apart, minute by minute."""
        self.start = _DAY_MINUTES
        self.stop = (self._days - 1) * _DAY_MINUTES
        runs: list[list[int]] = []  # [first minute, offset]
        minute = self.start
        while minute < self.stop:
            offset = self._offset(minute)
            if not runs or runs[-1][1] != offset:
                while runs and self._offset(minute - 1) == offset:
                    minute -= 1
                if runs:
                    self.changes.append(minute)
                runs.append([minute, offset])
            minute += step
        self._runs = runs
        ends = [run[0] for run in runs[1:]] + [self.stop]
        return [
            b"".join(each[run[0] + run[1] : end + run[1]] for run, end in zip(runs, ends, strict=True))
            for each in self._plain
        ]

    def _places(self) -> "array[int]":
        """For every minute of plain local time: the first minute that shows it, or the first one behind the gap."""
        places = array("q", [0]) * (self._days * _DAY_MINUTES)
        ends = [run[0] for run in self._runs[1:]] + [self.stop]
        shown_until = self.start + self._runs[0][1]
        for (first, offset), end in zip(self._runs, ends, strict=True):
            if first + offset > shown_until:
                gap = first + offset - shown_until
                places[shown_until : first + offset] = array("q", [first]) * gap
            fresh = max(first + offset, shown_until)  # what was shown before keeps its first minute
            places[fresh : end + offset] = array("q", range(fresh - offset, end))
            shown_until = end + offset
        return places

    def calendar(self, wanted: Expression) -> bytes:
        """One byte per minute, 1 where the expression fires."""
        if not wanted.is_fixed:
            return bytes(self.start) + _matches(self._shown, wanted)
        fires = bytearray(self.stop)
        for local in ones(_matches(self._plain, wanted)):
            if self._first_shown[local] > 0:
                fires[self._first_shown[local]] = 1
        return bytes(fires)

    def instant_us(self, minute: int) -> int:
        return to_us(self._first) + minute * MINUTE_US

    def compare(self, wanted: Expression, minutes: Callable[[bytes], Iterable[int]]) -> int:
        """Ask for the fire after each of `minutes`, chosen with a look at the calendar; how many were asked."""
        fires = self.calendar(wanted)
        cron = Cron(wanted.text, self.zone)
        count = 0
        for minute in minutes(fires):
            found = fires.find(1, minute + 1)
            if found >= 0:
                answer = cron.after(self.instant_us(minute))
                assert answer == self.instant_us(found), f"{wanted.text} {self.zone} after minute {minute}"
                count += 1
        return count


def _matches(lists: list[bytes], wanted: Expression) -> bytes:
    """One byte per minute, 1 where every field matches; of the two days one is enough unless one is a star."""
    sets = (wanted.minutes, wanted.hours, wanted.days, wanted.months, wanted.weekdays)
    masks = [
        int.from_bytes(each.translate(bytes(value in members for value in range(256))), "big")
        for each, members in zip(lists, sets, strict=True)
    ]
    minute, hour, day, month, weekday = masks
    days = day & weekday if wanted.needs_both_days else day | weekday
    return (minute & hour & month & days).to_bytes(len(lists[0]), "big")


def ones(mask: bytes) -> Iterator[int]:
    """Where the ones are."""
    place = mask.find(1)
    while place >= 0:
        yield place
        place = mask.find(1, place + 1)


def every_fire(fires: bytes) -> Iterator[int]:
    """All of them, or for the busiest expressions every so many."""
    return islice(ones(fires), 0, None, 1 + fires.count(1) // 20_000)


def main() -> None:
    """Compare many expressions at every one of their fires, and say how many cases that was."""
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    total = 0
    for zone in ZONES:
        scan = Scan(zone, step=5)
        dice = random.Random(zone)
        for _ in range(number):
            total += scan.compare(random_expression(dice), every_fire)
        print(f"{zone}: {number} expressions, {total} cases so far", flush=True)


if __name__ == "__main__":
    main()
