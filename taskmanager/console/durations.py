"""Durations and instants as a person reads them: short, in the unit that matters."""

from itertools import pairwise
from typing import Final

from taskmanager.model.clock import DAY_US, HOUR_US, MINUTE_US, SECOND_US, from_us

_UNITS: Final = (("d", DAY_US), ("h", HOUR_US), ("m", MINUTE_US), ("s", SECOND_US))


def short(duration_us: int) -> str:
    """`0s`, `42s`, `5m`, `3h`, `12d`: one whole unit, rounded down, as a clock on the wall does."""
    for letter, size in _UNITS:
        if duration_us >= size:
            return f"{duration_us // size}{letter}"
    return "0s"


def exact(duration_us: int) -> str:
    """`850 µs`, `12.3 ms`, `4.21 s`, `2 m 05 s`, `3 h 07 m`, `2 d 04 h`: how long something took."""
    if duration_us < 1_000:
        return f"{max(0, duration_us)} µs"
    if duration_us < SECOND_US:
        return f"{duration_us / 1_000:.1f} ms"
    if duration_us < MINUTE_US:
        return f"{duration_us / SECOND_US:.2f} s"
    for (large, large_size), (small, small_size) in pairwise(_UNITS):
        if duration_us >= large_size:
            whole, rest = divmod(duration_us, large_size)
            return f"{whole} {large} {rest // small_size:02} {small}"
    raise AssertionError(duration_us)  # above a minute there is always a unit


def relative(instant_us: int, now_us: int) -> str:
    """`5m ago`, `in 5m`, `now`."""
    if abs(instant_us - now_us) < SECOND_US:
        return "now"
    return f"in {short(instant_us - now_us)}" if instant_us > now_us else f"{short(now_us - instant_us)} ago"


def precise(instant_us: int) -> str:
    """`2026-11-28 04:41:40.123` in UTC."""
    return f"{from_us(instant_us):%Y-%m-%d %H:%M:%S.%f}"[:-3]


def clock(instant_us: int) -> str:
    """`2026-11-28 04:41:40` in UTC."""
    return f"{from_us(instant_us):%Y-%m-%d %H:%M:%S}"
