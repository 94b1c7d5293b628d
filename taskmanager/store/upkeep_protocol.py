"""What the duties ask of a store that belongs to no task: to add to the figures of time, and to delete what is old.

A call that deletes does no more than takes some milliseconds, so that others may write in between.
"""

from typing import Protocol

from taskmanager.rules.figures import Span


class UpkeepStore(Protocol):
    """The verbs of a store for its upkeep. `Store` has these too."""

    async def add_figures(self) -> None:
        """Add what this store has committed since the last call to the figures of time. Closing it does that too."""
        ...

    async def prune_heartbeats(self, cutoff: int, limit: int) -> int:
        """Delete some heartbeats sent before `cutoff`, at most `limit`; how many went, 0 when none is left."""
        ...

    async def prune_worker_states(self, cutoff: int, limit: int) -> int:
        """Delete some snapshots taken before `cutoff`, at most `limit`; how many went, 0 when none is left."""
        ...

    async def prune_figures(self, span: Span, since: int, limit: int) -> int:
        """Delete some figures of spans that began before `since`, at most `limit`; how many went."""
        ...

    async def shrink(self) -> bool:
        """Give space that deleted rows have left back to the file system, a little at a time; whether more is left."""
        ...
