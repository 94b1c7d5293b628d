"""Cron expressions as instants: `cronsim` reads the expression and matches days, time is walked here.

Two kinds of expressions meet a change of the clocks differently, as in Debian's cron:

- *fixed times* (neither the minute nor the hour begins with `*`): a local time that does not exist fires at the first
  instant after the gap, one that exists twice fires at the first of the two;
- *steps* (`*/30 * * * *`, `0 * * * *`): every real instant whose local time matches, so the spacing is that of real
  time. A local time that does not exist does not fire, one that exists twice fires twice.

`cronsim` walks too, but goes back in time when asked from inside an hour that exists twice, repeats an instant for
two fixed times in one gap, leaves the rule out for expressions with seconds, and takes milliseconds to find a day that
comes every few decades.
"""

import calendar
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import Any, Final

from taskmanager.model.clock import SECOND_US, from_us, to_us
from taskmanager.model.errors import ConfigurationError
from taskmanager.model.nearest import did_you_mean
from taskmanager.model.wording import counted

NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FIELDS: Final = (
    ("second", "0 to 59"),
    ("minute", "0 to 59"),
    ("hour", "0 to 23"),
    ("day-of-month", "1 to 31, L or LW"),
    ("month", "1 to 12, or JAN to DEC"),
    ("day-of-week", "0 to 7, or SUN to SAT"),
)
HORIZON_YEARS: Final = 50
"""How far ahead a match is looked for; the longest wait of a real one is 40 years (a weekday on 29 February)."""
GAPS_CHECKED: Final = 32
MAX_GAPS: Final = 64
"""So many matches in a row that do not exist in local time are taken for never."""
_CHECKED_FROM: Final = datetime(2024, 1, 1)  # noqa: DTZ001  # local time of whatever zone, which is naive
_SECOND: Final = timedelta(seconds=1)
_DAY: Final = timedelta(days=1)


class Cron:
    """One expression in one time zone. Raises `ConfigurationError` for one that cannot be read or never fires."""

    __slots__ = ("_is_fixed", "_known", "_match", "_zone", "expression", "timezone")

    def __init__(self, expression: str, timezone: str | None = None) -> None:
        self.expression = " ".join(expression.split())
        self.timezone = timezone or "UTC"
        self._zone = _zone_of(self.timezone)
        fields = _fields_of(self.expression)
        self._match = _LocalTimes(_parsed(self.expression, fields))
        self._known: tuple[int, int | None] = (0, 0)
        self._is_fixed = not any(field.startswith("*") for field in fields[-5:-3])
        if self.after(to_us(_CHECKED_FROM.replace(tzinfo=UTC))) is None:
            raise ConfigurationError(f"cron {self.expression!r} never fires: there is no such day or time")

    def __repr__(self) -> str:
        return f"<Cron {self.expression!r} in {self.timezone}>"

    def after(self, instant_us: int) -> int | None:
        """The first instant later than this one at which it fires, in microseconds UTC; None for never again.

        Strictly later, so that calling it with its own answers gives a strictly increasing sequence.
        """
        asked_us, answer_us = self._known
        if (
            asked_us != instant_us or not answer_us
        ):  # of ten thousand schedules many fire at one time, and ask this next
            start = from_us(instant_us - instant_us % SECOND_US)
            found = self._fixed_after(start) if self._is_fixed else self._real_after(start)
            answer_us = None if found is None else to_us(found)
            self._known = (instant_us, answer_us)
        return answer_us

    def shortest_gap_s(self) -> float:
        """Seconds between two fires that follow each other, the least among the first `GAPS_CHECKED`."""
        shortest, fire = math.inf, self.after(to_us(_CHECKED_FROM.replace(tzinfo=UTC)))
        for _ in range(GAPS_CHECKED):
            following = None if fire is None else self.after(fire)
            if fire is None or following is None:
                break
            shortest, fire = min(shortest, (following - fire) / SECOND_US), following
        return shortest

    def _local(self, instant: datetime) -> datetime:
        return instant.astimezone(self._zone).replace(tzinfo=None)

    def _offset(self, instant: datetime) -> timedelta:
        return self._local(instant) - instant.replace(tzinfo=None)

    def _fixed_after(self, start: datetime) -> datetime | None:
        local = self._local(start)
        while True:
            match = self._match.after(local)
            if match is None:
                return None
            # Of a time that exists twice this is the first. Inside such an hour it may lie behind us.
            instant = self._exact(match) or self._gap_end(match)
            if instant > start:
                return instant
            # So does all that was shown before the clocks went back.
            local = max(match, self._local(self._change_between(instant, start) - _SECOND))

    def _exact(self, local: datetime) -> datetime | None:
        """The first instant at which the clocks show this local time; None when they never do."""
        instant = local.replace(tzinfo=self._zone, fold=0).astimezone(UTC)
        return instant if self._local(instant) == local else None

    def _gap_end(self, local: datetime) -> datetime:
        """The first instant after the gap that swallowed this local time."""
        # With the offset from before the gap the local time means an instant after the change; with the offset from
        # after it, one before the change.
        after = local.replace(tzinfo=self._zone, fold=0).astimezone(UTC)
        before = local.replace(tzinfo=self._zone, fold=1).astimezone(UTC)
        return self._change_between(before, after)

    def _change_between(self, before: datetime, after: datetime) -> datetime:
        """The instant in (before, after] from which the offset of `after` holds; clocks change at whole seconds."""
        old = self._offset(before)
        while after - before > _SECOND:
            middle = (before + (after - before) / 2).replace(microsecond=0)
            if self._offset(middle) == old:
                before = middle
            else:
                after = middle
        return after

    def _real_after(self, start: datetime) -> datetime | None:
        since, offset = start, self._offset(start)
        local = start.replace(tzinfo=None) + offset
        for _ in range(MAX_GAPS):
            match = self._match.after(local)
            if match is None:
                return None
            instant = (match - offset).replace(tzinfo=UTC)
            horizon = min(instant, since + _DAY)
            if self._offset(horizon) == offset:
                if horizon == instant:
                    return instant
                # A change of the clocks more than a day away shows no local time again that lies behind us.
                exact = self._exact(match)
                if exact is not None:
                    return exact
                since = self._gap_end(match)
            else:
                since = self._change_between(since, horizon)
            offset = self._offset(since)
            local = since.replace(tzinfo=None) + offset - _SECOND
        return None


@lru_cache(1_024)
def cron_of(expression: str, timezone: str | None) -> Cron:
    """The same object for the same words: of ten thousand schedules many fire at the same times."""
    return Cron(expression, timezone)


def _zone_of(name: str) -> tzinfo:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError) as exc:
        raise ConfigurationError(f"timezone {name!r} is not known{_zone_advice(name)}") from exc


def _zone_advice(name: str) -> str:
    from zoneinfo import available_timezones

    known = available_timezones()
    if not known:  # a slim container, or Windows
        return (
            ": this system has no database of time zones. Install the Python package tzdata, or that of the operating "
            "system; 'UTC' works without"
        )
    # Not EST for CEST, and not Etc/GMT+2, which is west of Greenwich.
    places = [each for each in known if "/" in each and not each.startswith("Etc/")]
    return did_you_mean(name, places) or "; give a name such as 'Europe/Berlin' or 'UTC', no abbreviation or offset"


def _fields_of(expression: str) -> list[str]:
    if expression.startswith("@"):
        known = NICKNAMES.get(expression.lower())
        if known is None:
            raise ConfigurationError(
                f"cron {expression!r} is not known; there are {', '.join(NICKNAMES)}. "
                "For a run at each start there is run_on_startup=True, for intervals every="
            )
        return known.split()
    return expression.split()


def _parsed(expression: str, fields: list[str]) -> Any:
    from cronsim import CronSim, CronSimError

    if len(fields) not in (5, 6):
        raise ConfigurationError(
            f"cron {expression!r} has {counted(len(fields), 'field')}; it needs 5 (minute, hour, day of the month, "
            "month, day of the week), or 6 with the second first"
        )
    try:
        return CronSim(" ".join(fields), _CHECKED_FROM)
    except CronSimError as exc:
        raise ConfigurationError(f"cron {expression!r} cannot be read: {_named_fault(str(exc), fields)}") from exc


def _named_fault(text: str, fields: list[str]) -> str:
    """`bad minute` with what stands there, and what can."""
    text = text.lower()
    if text == "bad day-of-month" and fields[-3].isdigit() and 1 <= int(fields[-3]) <= 31:
        return f"there is no day {fields[-3]} in month {fields[-2]}"
    for value, (name, range_of_it) in zip(reversed(fields), reversed(_FIELDS), strict=False):
        if text == f"bad {name}":
            return f"{text} {value!r}; it takes {range_of_it}, or * for any"
    return text


class _LocalTimes:
    """The matching local times of a parsed expression, in order. Knows nothing of zones."""

    __slots__ = ("_days_of", "_hours", "_minutes", "_months", "_parsed", "_seconds")

    def __init__(self, parsed: Any) -> None:
        self._parsed = parsed
        self._seconds: list[int] = sorted(parsed.seconds)
        self._minutes: list[int] = sorted(parsed.minutes)
        self._hours: list[int] = sorted(parsed.hours)
        self._months: list[int] = sorted(parsed.months)
        self._days_of: dict[tuple[int, int], list[int]] = {}

    def after(self, local: datetime) -> datetime | None:
        """The first match later than this one, whether the clocks of the zone ever show it or not."""
        moment = local + _SECOND
        for day in self._days_from(moment.date()):
            if day != moment.date():
                return datetime.combine(day, time(self._hours[0], self._minutes[0], self._seconds[0]))
            found = self._time_from(moment.hour, moment.minute, moment.second)
            if found is not None:
                return datetime.combine(day, found)
        return None

    def _time_from(self, hour: int, minute: int, second: int) -> time | None:
        """The first time of a matching day, not before this one."""
        seconds, minutes, hours = self._seconds, self._minutes, self._hours
        if _has(hours, hour):
            if _has(minutes, minute):
                at = bisect_left(seconds, second)
                if at < len(seconds):
                    return time(hour, minute, seconds[at])
            at = bisect_right(minutes, minute)
            if at < len(minutes):
                return time(hour, minutes[at], seconds[0])
        at = bisect_right(hours, hour)
        return time(hours[at], minutes[0], seconds[0]) if at < len(hours) else None

    def _days_from(self, first: date) -> Iterator[date]:
        months = self._months[bisect_left(self._months, first.month) :]
        if months and months[0] == first.month:
            days = self._matching_days(first.year, first.month)
            for day in days[bisect_left(days, first.day) :]:
                yield first.replace(day=day)
            months = months[1:]
        for year in range(first.year, min(first.year + HORIZON_YEARS, date.max.year)):
            for month in months:
                for day in self._matching_days(year, month):
                    yield date(year, month, day)
            months = self._months

    def _matching_days(self, year: int, month: int) -> list[int]:
        """Which days match depends on nothing but the weekday of the first, and how many there are."""
        shape = calendar.monthrange(year, month)
        days = self._days_of.get(shape)
        if days is None:
            every = range(1, shape[1] + 1)
            days = self._days_of[shape] = [day for day in every if self._parsed.match_day(date(year, month, day))]
        return days


def _has(ordered: list[int], value: int) -> bool:
    at = bisect_left(ordered, value)
    return at < len(ordered) and ordered[at] == value
