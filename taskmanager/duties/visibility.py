"""Finds out whether the others can see that this instance lives, and lets it start nothing while they cannot.

They see the lock of its session, and its heartbeats. An instance that was out of their sight for long may be dead to
them: they take over what it has. When the way to the server is free again, they call it dead until they have looked
once more. A task that it wrote as running in that moment would be failed, or run again, while it runs. So it starts no
stored task from the moment in which it has been out of sight for too long, until it has been in sight for a while.

The loop asks, every half second, because the threads that talk to the server may wait for it.
"""

import threading
from typing import Final

from taskmanager.engine.engine import Engine
from taskmanager.model.logger import logger
from taskmanager.store.presence import UNSEEN_S

LOOK_S: Final = 0.5
"""How often the loop asks."""
STALE_S: Final = 2.0
"""A proof that was not heard of for so long may be lost, though nobody has said so."""


class Visibility:
    """What the others can see of one instance. It is seen when it starts: nobody has called it dead yet."""

    def __init__(self, engine: Engine) -> None:
        self._clock, self._presence = engine.clock, engine.presence
        self._dispatcher, self._life = engine.dispatcher, engine.life
        self._lock = threading.Lock()
        """Held while the two instants change. The thread of the heartbeat and the loop change them."""
        self._since_s, self._until_s = float("-inf"), self._clock.elapsed_s()

    def __repr__(self) -> str:
        return f"<Visibility since {self._since_s} until {self._until_s}>"

    @property
    def can_be_lost(self) -> bool:
        """Whether there is a proof that the others may not see though it is held."""
        return self._presence is not None and self._presence.unseen_after_s is not None

    def begin(self) -> None:
        """Begin with an instance that is seen, however long its start took."""
        self._since_s, self._until_s = float("-inf"), self._clock.elapsed_s()

    def is_stale(self) -> bool:
        """Whether the proof was not heard of for so long that heartbeats must show that this instance lives."""
        seen = None if self._presence is None else self._presence.seen_s
        return seen is not None and self._clock.elapsed_s() - seen[1] > STALE_S

    def beaten(self) -> None:
        """A heartbeat has got through. From the thread of the heartbeat."""
        now_s = self._clock.elapsed_s()
        self._note(now_s, now_s)

    async def look(self) -> None:
        """Hold the starts of stored tasks back, or let them go on."""
        is_unseen = self._is_unseen()
        if is_unseen == self._dispatcher.is_unseen:
            return
        self._dispatcher.is_unseen = is_unseen
        if is_unseen:
            logger.info("the others cannot see that this instance lives: it starts no stored task until they can")
            return
        logger.info("the others see that this instance lives: it starts stored tasks again")
        self._life.wants_claim.set()
        self._life.kick()

    def _is_unseen(self) -> bool:
        limit_s = None if self._presence is None else self._presence.unseen_after_s
        if self._presence is None or limit_s is None:
            return False
        if (seen := self._presence.seen_s) is not None:
            self._note(*seen)
        now_s = self._clock.elapsed_s()
        with self._lock:
            return now_s - self._until_s > limit_s or now_s - self._since_s < UNSEEN_S

    def _note(self, since_s: float, until_s: float) -> None:
        """Note that it was seen from `since_s` to `until_s`. A short gap before that counts as seen too."""
        limit_s = None if self._presence is None else self._presence.unseen_after_s
        with self._lock:
            if limit_s is not None and since_s - self._until_s > limit_s:
                self._since_s = since_s
            self._until_s = max(self._until_s, until_s)
