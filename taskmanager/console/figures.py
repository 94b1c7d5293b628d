"""Numbers as a person reads them: counts, sizes, rates, shares, and time as a stopwatch shows it."""

from typing import Final

from taskmanager.model.clock import SECOND_US

_SIZES: Final = ("bytes", "kB", "MB", "GB", "TB")


def grouped(number: int, *, is_capped: bool = False) -> str:
    """`1,204`; `10,000+` where counting ended."""
    return f"{number:,}+" if is_capped else f"{number:,}"


def plural(number: int, noun: str, *, is_capped: bool = False) -> str:
    """`1 task`, `3 tasks`."""
    return f"{grouped(number, is_capped=is_capped)} {noun}" + ("" if number == 1 else "s")


def size(number: int) -> str:
    """`512 bytes`, `1.2 MB`, `340 GB`: three figures at most, powers of 1000 as file managers count."""
    value = float(number)
    for unit in _SIZES:
        if value < 999.5 or unit == _SIZES[-1]:
            return f"{value:.0f} {unit}" if value >= 9.95 or unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError(number)  # the last unit takes everything


def rate(number: int, window_us: int) -> str:
    """`120/s`, `1.5/s`, `8/min`, `3/h`: in the unit in which it is no fraction."""
    per_s = number * SECOND_US / max(1, window_us)
    if per_s >= 9.95:
        return f"{per_s:,.0f}/s"
    if per_s >= 0.995 or not number:
        return f"{per_s:.1f}/s"
    if per_s * 60 >= 0.995:
        return f"{per_s * 60:.0f}/min"
    return f"{per_s * 3600:.0f}/h"


def share(part: int, whole: int) -> str:
    """`0%`, `<0.1%`, `0.4%`, `12%`: nothing that happened is rounded away."""
    if not part or not whole:
        return "0%"
    percent = 100 * part / whole
    if percent < 0.1:
        return "<0.1%"
    return f"{percent:.1f}%" if percent < 9.95 else f"{percent:.0f}%"


def amount(number: float) -> str:
    """What a task says it has done: `4`, `1,204`, `0.25`, `1e+18`."""
    if abs(number) >= 1e15:
        return f"{number:.4g}"
    return f"{number:,.0f}" if float(number).is_integer() or abs(number) >= 1000 else f"{number:,.2f}"


def done_of(done: float, total: float | None) -> str:
    """`4 of 10`; `4` where nobody knows of how many."""
    return f"{amount(done)} of {amount(total)}" if total else amount(done)


def stopwatch(duration_us: int) -> str:
    """`0:07`, `12:03`, `1:02:03`, `3d 04h`."""
    seconds = max(0, duration_us) // SECOND_US
    if seconds >= 86_400:
        return f"{seconds // 86_400}d {seconds % 86_400 // 3600:02}h"
    if seconds >= 3600:
        return f"{seconds // 3600}:{seconds % 3600 // 60:02}:{seconds % 60:02}"
    return f"{seconds // 60}:{seconds % 60:02}"


def compact(number: int, *, is_capped: bool = False) -> str:
    """`340`, `18,332`, `1.2M`: seven characters at most."""
    plus = "+" if is_capped else ""
    for letter, size_ in (("G", 1_000_000_000), ("M", 1_000_000)):
        if number >= size_:
            return f"{number / size_:.1f}{letter}{plus}"
    return f"{number:,}{plus}"


def took(duration_us: int) -> str:
    """`850 µs`, `123 ms`, `4.21 s`, `2m 05s`, `3h 07m`, `2d 04h`: seven characters at most."""
    if duration_us < 1_000:
        return f"{max(0, duration_us)} µs"
    if duration_us < SECOND_US:
        return f"{duration_us // 1_000} ms"
    seconds = duration_us // SECOND_US
    if seconds < 60:
        return f"{duration_us / SECOND_US:.2f} s"
    if seconds < 3600:
        return f"{seconds // 60}m {seconds % 60:02}s"
    if seconds < 86_400:
        return f"{seconds // 3600}h {seconds % 3600 // 60:02}m"
    return f"{seconds // 86_400}d {seconds % 86_400 // 3600:02}h"
