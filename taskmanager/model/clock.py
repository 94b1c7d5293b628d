"""The clocks: wall time stamps records, elapsed time measures delays. Nothing else calls `time.*`.

Elapsed time uses `CLOCK_BOOTTIME` where there is one. A step of the wall clock does not move it, but a suspend does: a
retry that came due during the night is due when the laptop opens.
"""

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

_FIRST_US: Final = (datetime.min.replace(tzinfo=UTC) - EPOCH) // _MICROSECOND
LAST_US: Final = (datetime.max.replace(tzinfo=UTC) - EPOCH) // _MICROSECOND

# Instants and durations in a row are whole microseconds; what people configure is seconds.
SECOND_US: Final = 1_000_000
MINUTE_US: Final = 60 * SECOND_US
HOUR_US: Final = 60 * MINUTE_US
DAY_US: Final = 24 * HOUR_US
_UNITS_US: Final = {"s": SECOND_US, "m": MINUTE_US, "h": HOUR_US, "d": DAY_US, "w": 7 * DAY_US}
_LONGEST_US: Final = 100 * 365 * DAY_US


class Clock(Protocol):
    """The two times that the engine asks for."""

    def now_us(self) -> int:
        """Return wall time, in microseconds since 1970 UTC."""
        ...

    def elapsed_s(self) -> float:
        """Return seconds on a clock that no step moves. Only differences mean something."""
        ...


_ELAPSED_CLOCK: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)


class SystemClock:
    """The clocks of the machine. Wall time is put right where a database on another machine has a clock of its own."""

    ahead_us = 0
    """How far the clock of that database is ahead of the one of this machine."""

    def now_us(self) -> int:
        return time.time_ns() // 1000 + self.ahead_us

    def elapsed_s(self) -> float:
        return time.monotonic() if _ELAPSED_CLOCK is None else time.clock_gettime(_ELAPSED_CLOCK)


def to_us(instant: datetime) -> int:
    """Return an aware datetime as microseconds since 1970 UTC, exactly.

    At the ends of the calendar UTC may have no such instant ("for ever" in a zone west of Greenwich). Then it is the
    last or the first instant that there is.
    """
    return _within_calendar((instant - EPOCH) // _MICROSECOND)


def from_us(instant_us: int) -> datetime:
    """Return microseconds since 1970 UTC as an aware datetime, exactly, within the ends of the calendar."""
    return EPOCH + timedelta(microseconds=_within_calendar(instant_us))


def before_us(now_us: int, span: timedelta) -> int:
    """Return the instant that was so long before `now_us`, and not before 1970."""
    return max(0, now_us - span // _MICROSECOND)


def span_us(text: str) -> int | None:
    """Return a span of time such as `90s`, `15m`, `1h`, `7d` or `2w` as microseconds, or None for any other text."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip().lower())
    return None if match is None else int(min(float(_LONGEST_US), float(match[1]) * _UNITS_US[match[2]]))


def _within_calendar(instant_us: int) -> int:
    return min(max(instant_us, _FIRST_US), LAST_US)
