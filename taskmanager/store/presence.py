"""What proves that an instance lives: to the others, and of the others. Each kind of store has its own proof.

Beside a file it is a lock on a file of its own, on a server a lock of a session. The engine asks for it by this
protocol alone.
"""

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

PUT_BACK_S: Final = 2.0
"""Time in which a living instance has noticed that its proof is gone: several rounds of its heartbeat's thread."""

UNSEEN_S: Final = 3.0
"""After so long without its lock and without a heartbeat an instance on a server starts nothing, and as long after it
is seen again. The others take it for dead after ten seconds, and look every second.
"""


class Judge(Protocol):
    """Tells who is dead, for whoever gives their tasks back."""

    def is_dead(self, instance_id: str) -> bool:
        """Whether that instance runs nothing any more, and its tasks may be run by others. It is no guess.

        Where a proof can be lost by a living instance, it must have stayed lost for a grace that is long enough for it
        to be taken again. Until that has passed, and where nothing is known of anybody, the answer is False.
        """
        ...

    def is_missing(self, instance_id: str) -> bool:
        """Whether the trace of that instance is gone altogether, as when somebody has tidied up.

        If it `is_dead` by that, it may live and put its proof back within `PUT_BACK_S`: whoever is about to run its
        tasks looks again after that time. False where `is_dead` takes care of that itself.
        """
        ...

    async def clear_away(self, is_registered: Callable[[str], Awaitable[bool]]) -> None:
        """Remove what dead instances have left of their proofs, except those whose row is in the store."""
        ...


class Presence(Judge, Protocol):
    """The proof that one instance lives, and its view of the others. Taken before the instance is registered.

    Every call but `take` and `clear_away` returns at once, from any thread: a store that would have to ask a server
    answers with what a thread of its own has seen last.
    """

    async def take(self) -> None:
        """Take the proof, for the life of the instance. Raises `StoreUnavailable` when that cannot be done now."""
        ...

    def put_back(self) -> bool:
        """Take it again if it was lost, and return whether the others can see it. Called in the heartbeat's thread.

        It logs what it has put back, and raises nothing: the next round tries again. While it returns False, heartbeats
        are all that the others see of this instance, and one is due every second.
        """
        ...

    @property
    def is_detached(self) -> bool:
        """Whether the proof is out of sight of the others, who may soon take this living instance for dead.

        While the store cannot be written either, it starts nothing that the others would start as well.
        """
        ...

    @property
    def unseen_after_s(self) -> float | None:
        """How long the proof and every heartbeat may be out of sight of the others before this instance starts nothing
        that they would start as well. That is long before they may take it for dead. None where a proof that is held
        is always in sight.
        """
        ...

    @property
    def seen_s(self) -> tuple[float, float] | None:
        """From when until when the proof was held without a break, as far as this instance knows: by the elapsed
        clock, and the last time only. None where that was never so, or nobody need ask.
        """
        ...

    def show_life(self) -> None:
        """Give a sign of life that reaches the others also when no heartbeat can be written. Raises nothing."""
        ...

    def drop(self) -> None:
        """Give the proof up, and leave no trace of it: nobody asks for this instance any more."""
        ...

    def let_go(self) -> None:
        """Give it up, and leave the trace by which the others find out that this instance is dead."""
        ...

    def sign_of_life(self, instance_id: str) -> int | None:
        """Return a number that changes with each `show_life` of that instance; None where there is none to be seen."""
        ...
