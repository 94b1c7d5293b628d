"""When a question is asked whose answer takes the server long: seldom.

While somebody keeps a transaction open, the entries of rows that were taken or have ended cannot be cleared away from
an index, and whoever reads there reads all of them. So such a question takes one part in `ASK_SHARE` of the time at
most. In between it is done without it, by what the last answer has told. Who does so may pass something over, and then
has to look again when the question may be asked.
"""

from typing import Final

from taskmanager.model.clock import SECOND_US, Clock

SLOW_S: Final = 0.0015
"""Where the server has worked longer on a question that finds nothing, it may have read many dead entries."""
_FOUND_IN_THAT: Final = 30
"""How many rows it finds, and changes, in that time."""
ASK_S: Final = 1.0
"""A question is asked once in so long at most."""
ASK_SHARE: Final = 20
TOOK_US: Final = "CAST(1000000 * extract(epoch FROM clock_timestamp() - statement_timestamp()) AS bigint)"
"""How long the server has worked on the statement so far. The way to it and back says nothing of dead entries, and nor
does a thread that waits for the interpreter: to a server 4 ms away, all looks take long.
"""


def is_slow(took_us: float, found_count: int, slow_s: float = SLOW_S) -> bool:
    """Return whether a question that has found so many rows has taken longer than these do."""
    return took_us >= slow_s * SECOND_US * (1 + found_count / _FOUND_IN_THAT)


class Seldom:
    """One such question."""

    def __init__(self, clock: Clock, least_s: float = ASK_S) -> None:
        self._clock = clock
        self._least_s = least_s
        self._due_s = 0.0
        self._is_missed = False

    def __repr__(self) -> str:
        return f"<Seldom {'due' if self.is_due() else 'not yet'}>"

    def is_due(self) -> bool:
        """Return whether it may be asked now."""
        return self._clock.elapsed_s() >= self._due_s

    def note(self, took_us: float) -> None:
        """Note that it was asked, and how long the server has worked on it."""
        self._due_s = self._clock.elapsed_s() + max(self._least_s, ASK_SHARE * took_us / SECOND_US)
        self._is_missed = False

    def miss(self) -> None:
        """Note that somebody has done without it."""
        self._is_missed = True

    def take_missed(self) -> bool:
        """Return, once, whether somebody has done without it, and it may be asked now. From any thread."""
        is_missed = self._is_missed and self.is_due()
        if is_missed:
            self._is_missed = False
        return is_missed
