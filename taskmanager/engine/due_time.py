"""Work that may wait for a while, and then is due until it is done."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol


class DueTime:
    """Work that may wait for a while: a timer, and whether its time has come."""

    def __init__(self, wait_s: float, on_due: Callable[[], None]) -> None:
        self._wait_s = wait_s
        self._on_due = on_due
        self._timer: asyncio.TimerHandle | None = None
        self.is_now = False

    def begin(self) -> None:
        """There is work: its time comes after the wait, unless it is being waited for already."""
        if self.is_now:
            self._on_due()  # it came when there was nothing to do, and nobody may have looked since
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._wait_s, self.hurry)

    def shorten(self, wait_s: float) -> None:
        """Its time comes after this wait, which is shorter than the one that has begun."""
        if self.is_now:
            self._on_due()
        else:
            self.close()
            self._timer = asyncio.get_running_loop().call_later(wait_s, self.hurry)

    def hurry(self) -> None:
        """Its time has come."""
        self.close()
        self.is_now = True
        self._on_due()

    def close(self) -> None:
        """The timer rings no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Waiting(Protocol):
    """Knows how many changes wait."""

    @property
    def waiting_count(self) -> int: ...


class Patience:
    """How long changes wait that nobody asks for: plain ends, and tasks that were only accepted."""

    def __init__(self, wait_s: float, wake: Callable[[], None], waiting: "Waiting") -> None:
        self._due = DueTime(wait_s, self._end)
        self.is_over = False
        """Whether all of them are written now."""
        self._wake = wake
        self._waiting = waiting
        self._rush_count = 0

    @property
    def is_rushed(self) -> bool:
        """Whether somebody waits for all that there is, so that every end is urgent."""
        return self._rush_count > 0

    def begin(self) -> None:
        """One more waits."""
        self._due.begin()

    def renew(self) -> None:
        """None waits any more: the next one waits anew."""
        self.is_over = self._due.is_now = False

    def hurry(self) -> None:
        """Let those that wait be written now."""
        if self._waiting.waiting_count:
            self._due.hurry()

    def rush(self) -> None:
        """Let every end be urgent from now on, as in a stop."""
        self._rush_count += 1
        self.hurry()

    @contextlib.contextmanager
    def rushed(self) -> Iterator[None]:
        """Let every end be urgent inside this block."""
        self.rush()
        try:
            yield
        finally:
            self._rush_count -= 1

    def _end(self) -> None:
        if self._waiting.waiting_count:
            self.is_over = True
            self._wake()
        else:
            self.renew()

    def close(self) -> None:
        """The timer rings no more."""
        self._due.close()
