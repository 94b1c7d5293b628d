"""Writes numbers, durations, instants and errors for people: short, and in the unit that matters."""

from itertools import pairwise
from typing import Final

from taskmanager.codec.safe import loads_flat
from taskmanager.model.clock import DAY_US, HOUR_US, MINUTE_US, SECOND_US, from_us
from taskmanager.model.errors import ArgumentError
from taskmanager.model.record import TaskRow
from taskmanager.model.states import BuiltInTaskCode
from taskmanager.model.wording import why
from taskmanager.store.statistics import LiveWorkflow, OwnWorkflow

_UNITS: Final = (("d", DAY_US), ("h", HOUR_US), ("m", MINUTE_US), ("s", SECOND_US))
_SIZES: Final = ("bytes", "kB", "MB", "GB", "TB")
MAX_CHARS: Final = 200  # no screen has room for more of a message
ROOM_FOR_ALL: Final = 60  # columns in which code, type and the beginning of a message stand side by side

# Counts.


def compact(number: int, *, is_capped: bool = False) -> str:
    """`340`, `18,332`, `1.2M`: seven characters at most."""
    plus = "+" if is_capped else ""
    for letter, unit in (("G", 1_000_000_000), ("M", 1_000_000)):
        if number >= unit:
            return f"{number / unit:.1f}{letter}{plus}"
    return f"{number:,}{plus}"


def size(number: int) -> str:
    """`512 bytes`, `1.2 MB`, `340 GB`: three figures at most, powers of 1000 as file managers count."""
    value, units = float(number), list(_SIZES)
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        del units[0]
    return f"{value:.0f} {units[0]}" if value >= 9.95 or units[0] == "bytes" else f"{value:.1f} {units[0]}"


def rate(number: int, window_us: int) -> str:
    """`120/s`, `1.5/s`, `8/min`, `3/h`: a rate in the unit that makes it at least one."""
    per_s = number * SECOND_US / max(1, window_us)
    if per_s >= 9.95:
        return f"{per_s:,.0f}/s"
    if per_s >= 0.995 or not number:
        return f"{per_s:.1f}/s"
    return f"{per_s * 60:.0f}/min" if per_s * 60 >= 0.995 else f"{per_s * 3600:.0f}/h"


def share(part: int, whole: int) -> str:
    """`0%`, `<0.1%`, `0.4%`, `12%`: a share that is not zero never reads as zero."""
    if not part or not whole:
        return "0%"
    percent = 100 * part / whole
    if percent < 0.1:
        return "<0.1%"
    return f"{percent:.1f}%" if percent < 9.95 else f"{percent:.0f}%"


def amount(number: float) -> str:
    """Write what a task says it has done: `4`, `1,204`, `0.25`, `1e+18`."""
    if abs(number) >= 1e15:
        return f"{number:.4g}"
    return f"{number:,.0f}" if float(number).is_integer() or abs(number) >= 1000 else f"{number:,.2f}"


def done_of(done: float, total: float | None) -> str:
    """`4 of 10`, or `4` if the total is not known."""
    return f"{amount(done)} of {amount(total)}" if total else amount(done)


# Durations.


def short(duration_us: int) -> str:
    """`0s`, `42s`, `5m`, `3h`, `12d`: one whole unit, rounded down, as a clock on the wall does."""
    return next((f"{duration_us // unit}{letter}" for letter, unit in _UNITS if duration_us >= unit), "0s")


def exact(duration_us: int) -> str:
    """`850 µs`, `12.3 ms`, `4.21 s`, `2 m 05 s`, `3 h 07 m`, `2 d 04 h`: how long something took."""
    if duration_us < MINUTE_US:
        return _below_a_minute(duration_us, f"{duration_us / 1_000:.1f} ms")
    large, large_unit, small, small_unit = _two_units(duration_us)
    return f"{large} {large_unit} {small:02} {small_unit}"


def took(duration_us: int) -> str:
    """`850 µs`, `123 ms`, `4.21 s`, `2m 05s`, `3h 07m`, `2d 04h`: seven characters at most."""
    if duration_us < MINUTE_US:
        return _below_a_minute(duration_us, f"{duration_us // 1_000} ms")
    large, large_unit, small, small_unit = _two_units(duration_us)
    return f"{large}{large_unit} {small:02}{small_unit}"


def stopwatch(duration_us: int) -> str:
    """`0:07`, `12:03`, `1:02:03`, `3d 04h`."""
    if duration_us >= DAY_US:
        return took(duration_us)
    minutes, seconds = divmod(max(0, duration_us) // SECOND_US, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _below_a_minute(duration_us: int, milliseconds: str) -> str:
    if duration_us < 1_000:
        return f"{max(0, duration_us)} µs"
    return milliseconds if duration_us < SECOND_US else f"{duration_us / SECOND_US:.2f} s"


def _two_units(duration_us: int) -> tuple[int, str, int, str]:
    """Return the whole units of a minute or more, and what is left of the next smaller unit."""
    (large, size_us), (small, rest_us) = next(each for each in pairwise(_UNITS) if duration_us >= each[0][1])
    return duration_us // size_us, large, duration_us % size_us // rest_us, small


# Instants.


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


def iso(instant_us: int) -> str:
    """`2026-11-28T04:41:40.123456Z`, as the views of the file spell it."""
    return f"{from_us(instant_us):%Y-%m-%dT%H:%M:%S.%f}Z"


# Text, and why something failed.


def cut(text: str, limit: int) -> str:
    """Return at most `limit` characters. A text that was cut ends with `…`."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def cause(code: str, message: str | None, room: int) -> str:
    """Return code, type and message for a column of `room` characters. A narrow column may leave out the code."""
    return why(code, message, max_chars=MAX_CHARS, is_short=room < ROOM_FOR_ALL)


def kind(code: str, message: str | None) -> str:
    """Return the name of a kind of failure: its code, or the type of an exception that has no code of its own."""
    if code != BuiltInTaskCode.UNHANDLED_EXCEPTION:
        return code
    return why(code, (message or "").partition(":")[0], is_short=True)


def cause_of(row: TaskRow, message: str | None, room: int) -> str:
    """Return why this task failed, or an empty text if it did not. If its result is sealed, only the code is known."""
    return "" if row.error_code is None else cause(row.error_code, message, room)


def message_of(row: TaskRow) -> str | None:
    """Return the message of the error in the stored result, or None if there is none that can be read."""
    return stored_error(row.result)[1]


def stored_error(text: str | None) -> tuple[str | None, str | None]:
    """Return code and message of a stored error, each None if it cannot be read: there is none, or it is sealed."""
    try:
        found = loads_flat(text or "null")
    except ArgumentError:
        return None, None
    error = found.get("err") if isinstance(found, dict) else None
    if not isinstance(error, dict):
        return None, None
    code, message = error.get("error_code"), error.get("message")
    return code if isinstance(code, str) else None, message if isinstance(message, str) else None


MAX_WHOLE_ID: Final = 20
"""Characters of the id of a workflow that somebody has chosen, so that it says more than the name."""


def workflow_label(workflow: OwnWorkflow | LiveWorkflow) -> str:
    """`import-7`, `import 28862a`: what people call a workflow, with as much of its id as a command needs."""
    if len(workflow.workflow_id) <= MAX_WHOLE_ID:
        return workflow.workflow_id
    return f"{workflow.name} {workflow.workflow_id[-6:]}"
