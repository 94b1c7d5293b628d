"""The wall clock, watched for steps: by an administrator, by NTP, or because a machine woke up with a wrong clock.

Wall and elapsed time advance together, suspend included, so only a step changes their difference. It is checked with
every decision that depends on wall time, and a decision that may be due to a step is put off: whoever corrects the
clock within a minute finds nothing expired and no history deleted.

A clock that was wrong before the start looks like any other. But the file tells when it was used last, by the clocks of
those who used it: whether that was long ago, or the clock is ahead, is known only after a while.
"""

from typing import Final, NamedTuple

from taskmanager.model.clock import SECOND_US, Clock
from taskmanager.model.logger import logger

STEP_US: Final = SECOND_US
"""A smaller difference is a slewed clock, or one that was read slowly."""
HOLD_S: Final = 60.0
"""How long `good_until` expires nothing after a step."""
BELIEVED_AFTER_S: Final = 86_400.0
"""How long the clock of a start runs until it is believed that the file was not used for longer than that."""
_SLOW_READ_S: Final = 0.05
_MAX_READS: Final = 3


class Step(NamedTuple):
    """One step of the wall clock: when it was noticed, in elapsed seconds, and by how many microseconds it went."""

    noticed_s: float
    by_us: int


class WatchedClock:
    """The wall clock of one instance. Whoever decides by wall time reads it here; stamps may use the `Clock` itself."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.step_count = 0
        """Steps noticed so far. Comparing it with an earlier value tells whether there was another one since."""
        self.last: Step | None = None
        self._began_s = clock.elapsed_s()
        self._last_use_us = 0
        _, self._offset_us = self._read()

    def __repr__(self) -> str:
        return f"<WatchedClock {self.step_count} steps, last {self.last}>"

    def now_us(self) -> int:
        """Wall time, microseconds since 1970 UTC, with a look at whether it was stepped."""
        now_us, offset_us = self._read()
        by_us, self._offset_us = offset_us - self._offset_us, offset_us
        if abs(by_us) >= STEP_US:
            self.step_count += 1
            self.last = Step(self._clock.elapsed_s(), by_us)
            logger.warning(
                "the wall clock was stepped by %+.1f s; nothing expires for %.0f s, and old records are kept for one "
                "sweep of the retention",
                by_us / SECOND_US,
                HOLD_S,
            )
        return now_us

    def note_last_use(self, stamp_us: int) -> None:
        """The newest stamp in the file up to now, 0 without any, before this start has written to it.

        A stamp of the future says nothing of the last use: the clock was set back since, or a row is damaged. Only the
        first one counts: a registration that seemed to fail is tried again, and may have arrived.
        """
        if not self._last_use_us:
            self._last_use_us = stamp_us

    def now_for_ages_us(self) -> int:
        """Wall time by which to judge what is too old to be kept. For a day it is at most a day after the last use of
        the file: a machine that boots with a clock years ahead deletes no history until somebody corrects that.
        """
        now_us = self.now_us()
        if not self._last_use_us or self._clock.elapsed_s() - self._began_s >= BELIEVED_AFTER_S:
            return now_us
        return min(now_us, self._last_use_us + round(BELIEVED_AFTER_S * SECOND_US))

    @property
    def trusted_at_s(self) -> float:
        """From when on, in elapsed seconds, the wall clock decides alone again."""
        return float("-inf") if self.last is None else self.last.noticed_s + HOLD_S

    @property
    def holds_expiry(self) -> bool:
        """Whether nothing may expire now. What is past its `good_until` does not start either: one of both is wrong."""
        return self._clock.elapsed_s() < self.trusted_at_s

    def _read(self) -> tuple[int, int]:
        """Wall time, and its distance from elapsed time."""
        now_us, offset_us, took_s = self._read_once()
        for _ in range(_MAX_READS):
            if took_s < _SLOW_READ_S:
                break  # else the process was stopped between the two clocks, which is no step
            now_us, offset_us, took_s = self._read_once()
        return now_us, offset_us

    def _read_once(self) -> tuple[int, int, float]:
        before_s = self._clock.elapsed_s()
        now_us = self._clock.now_us()
        took_s = self._clock.elapsed_s() - before_s
        return now_us, now_us - round((before_s + took_s / 2) * SECOND_US), took_s
