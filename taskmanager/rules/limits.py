"""Counted limits: how many tasks of a lane or of a queue may run at once."""

import sys


class Slots:
    """A limit with the count of its holders. `limit` None is no limit; while it `is_held` there is no room."""

    __slots__ = ("is_held", "limit", "running")

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.running = 0
        self.is_held = False

    @property
    def has_room(self) -> bool:
        """Whether one more may start."""
        return (self.limit is None or self.running < self.limit) and not self.is_held

    @property
    def free(self) -> int:
        """How many more may start; `sys.maxsize` without a limit, 0 when the limit was lowered below what runs."""
        return sys.maxsize if self.limit is None else max(0, self.limit - self.running)

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
