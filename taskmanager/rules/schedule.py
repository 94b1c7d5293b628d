"""What becomes of a schedule at a moment: it waits, it fires, a fire is dropped, or held until an earlier run ended.

Pure, and the only place that knows `catch_up` and `overlap`. A fire that came due while nobody watched (the application
was down, the machine slept, the clock was stepped) is *missed*; one that came due while this instance watched is not,
however late a slow loop gets to it. Times move forwards only: every answer is later than the fire it follows.
"""

import hashlib
import re
from collections import deque
from typing import Final, Literal, NamedTuple

from taskmanager.model.clock import SECOND_US
from taskmanager.model.dataclass import dataclass
from taskmanager.model.errors import ConfigurationError
from taskmanager.rules.cron import Cron, cron_of

CatchUp = Literal["skip", "latest", "all"]
Overlap = Literal["skip", "queue", "allow"]

NEVER_US: Final = 253_402_300_799_000_000
"""The last second that a datetime can hold stands for "not again"."""
GRACE_US: Final = SECOND_US
"""A fire this late counts as on time, and never one later than a tenth of the time to the next."""


_WORDS: Final = re.compile(
    r"(?:every (?P<every>\d{1,12}(?:\.\d{1,6})?) s|(?P<cron>.+?) (?P<zone>\S+?))"
    r"(?:, jitter (?P<jitter>\d{1,12}(?:\.\d{1,6})?) s)?"
)


class Timing:
    """When a schedule fires: by a cron expression, or every so many microseconds; and how much later it may start."""

    __slots__ = ("_cron", "_every_us", "_last", "_name", "_newest", "jitter_us")

    def __init__(self, name: str, *, cron: Cron | None, every_us: int | None, jitter_us: int = 0) -> None:
        self._name = name
        self._cron = cron
        self._every_us = every_us
        self.jitter_us = jitter_us
        # What was found last, and is asked for again when the next of many missed fires is decided.
        self._last = 0
        self._newest: deque[int] = deque()

    def __repr__(self) -> str:
        return f"<Timing {self}>"

    def __str__(self) -> str:
        if self._every_us is not None:
            text = f"every {_seconds(self._every_us)} s"
        else:
            assert self._cron is not None
            text = f"{self._cron.expression} {self._cron.timezone}"
        return f"{text}, jitter {_seconds(self.jitter_us)} s" if self.jitter_us else text

    def after(self, instant_us: int, anchor_us: int | None = None) -> int:
        """The first fire later than this instant. Intervals count from `anchor_us`, an earlier fire of theirs."""
        if self._every_us is not None:
            anchor = instant_us if anchor_us is None else anchor_us
            return anchor + ((instant_us - anchor) // self._every_us + 1) * self._every_us
        assert self._cron is not None
        found = self._cron.after(instant_us)
        return NEVER_US if found is None else found

    def anew(self, fire_us: int, now_us: int) -> int | None:
        """Return the next fire of an interval whose planned fire is too far away, else None.

        A fire more than one interval ahead was planned before the clock was set back. A cron expression names instants
        of the wall clock, so none of its fires is too far away.
        """
        if self._every_us is None or fire_us <= now_us + self._every_us + SECOND_US:
            return None
        return now_us + self._every_us

    def due(self, fire_us: int) -> int:
        """When this fire starts: at its time, or within the jitter behind it, at the same moment for every instance."""
        if not self.jitter_us:
            return fire_us
        digest = hashlib.sha256(f"{self._name}@{fire_us}".encode("utf-8", "surrogatepass")).digest()
        return fire_us + int.from_bytes(digest[:8], "big") % self.jitter_us

    def newest(self, fire_us: int, until_us: int, count: int) -> int:
        """The first of the newest `count` fires from `fire_us` on that are not later than `until_us`."""
        if self._every_us is not None:
            behind = max(0, until_us - fire_us) // self._every_us
            return fire_us + max(0, behind - count + 1) * self._every_us
        return self._latest(fire_us, until_us) if count == 1 else self._first_of_newest(fire_us, until_us, count)

    def _latest(self, fire_us: int, until_us: int) -> int:
        """Return the newest fire up to `until_us`: `newest` for a count of 1."""
        found = self._last if fire_us <= self._last <= until_us else fire_us
        following = self.after(found)
        if following <= until_us:
            found = self._searched(following, until_us, max(SECOND_US, following - found))
        self._last = found
        return found

    def _first_of_newest(self, fire_us: int, until_us: int, count: int) -> int:
        """Do `newest` for a larger count. It keeps what it found: of a backlog, each fire is computed once."""
        found = self._newest
        while found and found[0] < fire_us:
            found.popleft()
        if not found or found[0] != fire_us or found[-1] > until_us:
            found = deque([fire_us])
        found = deque(found, count)
        for _ in range(count):
            following = self.after(found[-1])
            if following > until_us:
                break
            found.append(following)
        else:
            found = self._walked_back(fire_us, self._latest(found[-1], until_us), count)
        self._newest = found
        return found[0]

    def _walked_back(self, fire_us: int, last_us: int, count: int) -> deque[int]:
        """Return the `count` fires up to the last one, from a window before it that is widened until it holds them."""
        width_us = count * SECOND_US
        while True:
            found, seen = deque([self.after(max(fire_us - 1, last_us - width_us))], count), 1
            while found[-1] < last_us:
                found.append(self.after(found[-1]))
                seen += 1
            if seen >= count or last_us - width_us < fire_us:
                return found
            width_us *= 2

    def last_due(self, fire_us: int, now_us: int) -> int:
        """The last of the fires from `fire_us` on, itself due, before the first that is not due yet."""
        found = self.newest(fire_us, now_us - self.jitter_us, 1)
        # Those in the width of the jitter may be due or not, each by itself.
        while self.due(following := self.after(found, found)) <= now_us:
            found = following
        return found

    def _searched(self, first_us: int, until_us: int, width_us: int) -> int:
        """The last fire from `first_us` (a fire) to `until_us`, searched for backwards in windows that grow."""
        low, high = first_us, until_us
        while until_us - width_us > first_us:
            found = self.after(until_us - width_us)
            if found <= until_us:
                low = found
                break
            high = until_us - width_us
            width_us *= 2
        while high - low >= SECOND_US:
            middle = (low + high) // 2
            found = self.after(middle)
            low, high = (found, high) if found <= high else (low, middle)
        return low


def timing_of(name: str, words: str) -> Timing | None:
    """Return the timing that is written like this, as `str` does it; None if these words are no timing."""
    found = _WORDS.fullmatch(words)
    if found is None:
        return None
    every_us, jitter_us = _microseconds(found["every"]), _microseconds(found["jitter"])
    if every_us:
        return Timing(name, cron=None, every_us=every_us, jitter_us=jitter_us)
    try:
        return Timing(name, cron=cron_of(found["cron"] or "", found["zone"]), every_us=None, jitter_us=jitter_us)
    except ConfigurationError:
        return None


def _microseconds(seconds: str | None) -> int:
    whole, _, fraction = (seconds or "0").partition(".")
    return int(whole) * SECOND_US + int(fraction.ljust(6, "0") or "0")


def _seconds(duration_us: int) -> str:
    """Write a duration in seconds, exactly: two definitions are told apart by their words."""
    whole, fraction = divmod(duration_us, SECOND_US)
    return f"{whole}.{fraction:06}".rstrip("0").rstrip(".")


@dataclass(frozen=True, slots=True)
class Plan:
    """When a schedule fires, and what is done about fires that were missed or come while an earlier run goes on."""

    timing: Timing
    catch_up: CatchUp
    max_catch_up_runs: int
    overlap: Overlap


class Wait(NamedTuple):
    """Nothing is due before this instant."""

    until_us: int


class Hold(NamedTuple):
    """A fire waits for the end of an earlier run."""


class Move(NamedTuple):
    """Run the fire of `fire_at` (None: none of them), and go on with `next_run_at`. `reason`: why fires are dropped."""

    fire_at: int | None
    next_run_at: int
    reason: str | None = None


def judge(plan: Plan, next_run_at: int | None, now: int, watched_since: int, is_busy: bool) -> Wait | Hold | Move:
    """What is to be done with a schedule whose next fire is `next_run_at` (None: compute it from now on).

    `watched_since`: since when this instance has looked without a gap, on a wall clock that was not stepped. `is_busy`:
    a run of the schedule has not ended.
    """
    timing = plan.timing
    if next_run_at is None:
        return Move(None, timing.after(now))
    if timing.due(next_run_at) > now:
        return Wait(timing.due(next_run_at))
    fire = last = next_run_at
    following = timing.after(fire, fire)
    on_time_from = watched_since - min(GRACE_US, (following - fire) // 10)
    if plan.catch_up == "skip":
        fire = last = _first_due_from(timing, fire, on_time_from)
        if timing.due(fire) > now:
            return Move(None, fire, "missed")
        following = timing.after(fire, fire)
    if timing.due(following) <= now:  # nearly always it is not, and there is nothing to choose
        last = timing.last_due(fire, now)
        fire = timing.newest(fire, last, plan.max_catch_up_runs if plan.catch_up == "all" else 1)
        if plan.overlap == "queue" and timing.due(fire) >= on_time_from:
            fire = last  # the one that waits is the newest
    if is_busy and plan.overlap != "allow":
        if timing.due(fire) < on_time_from or plan.overlap == "queue":
            return Hold()
        return Move(None, timing.after(last, fire), "an earlier run has not ended")
    if fire == next_run_at:
        return Move(fire, following)
    return Move(fire, timing.after(fire, fire), "missed, or others came due with them")


def _first_due_from(timing: Timing, fire_us: int, instant_us: int) -> int:
    """The first fire from `fire_us` on that does not start before `instant_us`."""
    if timing.due(fire_us) >= instant_us:
        return fire_us
    fire_us = timing.after(max(fire_us, instant_us - timing.jitter_us - 1), fire_us)
    while timing.due(fire_us) < instant_us:
        fire_us = timing.after(fire_us, fire_us)
    return fire_us
