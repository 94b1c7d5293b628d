"""The clocks of a world: wall time, which starts on a fixed day and can be stepped, and elapsed time."""

from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from taskmanager.model.clock import SECOND_US, SystemClock, from_us, to_us
from taskmanager.model.result import Seconds

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""Wall time when the first world of a virtual loop begins: always the same, so that a test sees the same instants."""


class ElapsedTime(Protocol):
    """The time that has passed on the virtual loop, in whole microseconds."""

    @property
    def elapsed_us(self) -> int:
        """Return the microseconds since the loop became virtual."""
        ...


class WallClock(SystemClock):
    """The clock of an isolated manager. On a real loop it is the clock of the machine, plus the steps."""

    def __init__(self, loop_time: ElapsedTime | None) -> None:
        self._loop_time = loop_time
        self._stepped_us = 0

    def __repr__(self) -> str:
        return f"<WallClock {self.now.isoformat()}>"

    @property
    def now(self) -> datetime:
        """Wall time, aware UTC."""
        return from_us(self.now_us())

    def step(self, seconds: Seconds) -> None:
        """Move wall time alone, as an administrator or NTP does; negative steps go back. No timer moves."""
        delta = seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)
        self._stepped_us += delta // timedelta(microseconds=1)

    def now_us(self) -> int:
        """Return wall time, in microseconds since 1970 UTC."""
        base = super().now_us() if self._loop_time is None else to_us(START) + self._loop_time.elapsed_us
        return base + self._stepped_us

    def elapsed_s(self) -> float:
        """Return seconds that no step moves."""
        return super().elapsed_s() if self._loop_time is None else self._loop_time.elapsed_us / SECOND_US
