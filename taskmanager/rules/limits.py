"""Counted limits: how many tasks of a lane or of a queue may run at once."""

import sys


class Slots:
    """A limit with the count of its holders. `limit` None is no limit; `cap` is a lower one that holds for now."""

    __slots__ = ("cap", "limit", "running")

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.running = 0
        self.cap: int | None = None

    @property
    def has_room(self) -> bool:
        """Whether one more may start."""
        return (self.limit is None or self.running < self.limit) and (self.cap is None or self.running < self.cap)

    @property
    def free(self) -> int:
        """How many more may start; `sys.maxsize` without a limit, 0 when the limit was lowered below what runs."""
        most = min((each for each in (self.limit, self.cap) if each is not None), default=None)
        return sys.maxsize if most is None else max(0, most - self.running)

    def take(self) -> None:
        """Count one more. Unchecked, the caller has asked `has_room` of every limit that applies."""
        self.running += 1

    def give_back(self) -> None:
        """Count one less."""
        assert self.running > 0, "a slot was given back twice"
        self.running -= 1

    def __repr__(self) -> str:
        if self.limit is None:
            return f"{self.running} running, no limit"
        return f"{self.running} of {self.limit} running"


def take_each(lane: Slots, queue: Slots) -> None:
    """Count one more that runs in both."""
    lane.running += 1
    queue.running += 1
