"""Work that may wait for a while, and then is due until it is done."""

import asyncio
from collections.abc import Callable


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
