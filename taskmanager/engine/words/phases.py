"""Where a task stands in this instance, which moves lead on from there, and what each move changes in the counts.

The table is data: a test goes through all of it, and another one compares docs/architecture.md with it.
`Dispatcher.move` is the only code that takes a task from one phase to the next.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final


class Phase(IntEnum):
    """Where a task stands in this instance; finer than its status."""

    ARRIVED = 0
    """Not accepted: held for the start, or in the inbox."""
    BEHIND = 1
    """Runs after an earlier call of its idempotency key, whose end is on its way to the store."""
    ACCEPTED = 2
    """Waits for the thread of an earlier attempt, or for the store's word on its key before it may wait any further."""
    FREEING = 3
    """Memory has no room for it: its row is on the way to the store, where it will be free."""
    DELAYED = 4
    READY = 5
    STARTING = 6
    """Has a slot; its start is being committed."""
    RUNNING = 7
    ENDED = 8
    """Its end is on the way to the store."""
    DONE = 9
    """Its end is in the store, or never will be."""
    LEFT = 10
    """Free in the store, or owned by another instance: waiters follow the store."""


# A member looked up in its class costs 60 ns, which is as much as a whole move; a module's name costs 2.
ARRIVED, BEHIND, ACCEPTED, FREEING, DELAYED, READY, STARTING, RUNNING, ENDED, DONE, LEFT = Phase

_ANY_END: Final = (ENDED, LEFT)
MOVES: Final[Mapping[Phase, tuple[Phase, ...]]] = {
    ARRIVED: (BEHIND, ACCEPTED, FREEING, DELAYED, READY, *_ANY_END),
    BEHIND: (ACCEPTED, FREEING, DELAYED, READY, *_ANY_END),
    ACCEPTED: (FREEING, DELAYED, READY, STARTING, *_ANY_END),
    FREEING: (ACCEPTED, *_ANY_END),
    DELAYED: (ACCEPTED, READY, *_ANY_END),
    READY: (ACCEPTED, FREEING, STARTING, *_ANY_END),
    STARTING: (ACCEPTED, FREEING, DELAYED, READY, RUNNING, *_ANY_END),
    RUNNING: (ACCEPTED, *_ANY_END),
    ENDED: (DONE, LEFT),
    DONE: (LEFT,),
    LEFT: (ACCEPTED,),
}
"""Every move there is."""

WAITING: Final = frozenset((ARRIVED, BEHIND, ACCEPTED, FREEING, DELAYED, READY))
"""The task waits in this instance's memory."""
HELD: Final = WAITING - {ARRIVED, BEHIND}
"""The loop has accepted it, and it counts towards the memory of its queue."""
IN_A_HEAP: Final = frozenset((DELAYED, READY))
_OUT_OF_ITS_HEAP: Final = frozenset(((DELAYED, READY), (READY, STARTING)))
"""Moves for which the entry was taken out of the heap. Others leave it behind, to be skipped."""

# What a move changes. The first four are counted for persisted tasks only.
IS_HELD, IS_NOT_HELD, END_IS_UNSAVED, END_IS_SETTLED = 1, 2, 4, 8
BEGINS_TO_WAIT, WAITS_NO_MORE, FREES_SLOT, LEAVES_ENTRY = 16, 32, 64, 128
FORBIDDEN: Final = 256
COUNTS_ALWAYS: Final = BEGINS_TO_WAIT | WAITS_NO_MORE | FREES_SLOT | LEAVES_ENTRY | FORBIDDEN


def _effect(old: int, new: int) -> int:
    if old >= len(Phase) or new >= len(Phase) or Phase(new) not in MOVES[Phase(old)]:
        return FORBIDDEN
    was, to = Phase(old), Phase(new)
    return (
        IS_HELD * (to in HELD and was not in HELD)
        | IS_NOT_HELD * (was in HELD and to not in HELD)
        | END_IS_UNSAVED * (to is ENDED)
        | END_IS_SETTLED * (was is ENDED)
        | BEGINS_TO_WAIT * (to in WAITING and was not in WAITING)
        | WAITS_NO_MORE * (was in WAITING and to not in WAITING)
        | FREES_SLOT * (was is STARTING and to is not RUNNING)
        | LEAVES_ENTRY * (was in IN_A_HEAP and (was, to) not in _OUT_OF_ITS_HEAP)
    )


EFFECTS: Final = tuple(_effect(index >> 4, index & 15) for index in range(256))
"""By `old << 4 | new`. One look tells whether a move is allowed and what it changes."""


class ForbiddenMove(AssertionError):
    """A mistake of ours: a task was to go where no move leads. The task was given up."""
