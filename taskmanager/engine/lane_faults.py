"""Lanes for which the system gives no further thread, or child process, now: they start no more than it gives.

A task whose code could not begin has not failed. It waits with the others of its lane until something there has ended:
whoever ran that is free for the next one. Whether the system gives more again is tried with one task, ever more seldom,
and with more of them once that one has begun. So one line of the log tells of a shortage, and one of its end, however
long it lasts.
"""

import asyncio
from typing import Final

from taskmanager.engine.dispatch import Dispatcher
from taskmanager.engine.lanes import ProcessLane
from taskmanager.engine.outcome import Outcome
from taskmanager.model.logger import logger
from taskmanager.model.states import Lane
from taskmanager.rules.limits import Slots

FIRST_RETRY_S: Final = 0.5
LAST_RETRY_S: Final = 30.0


class Shortage:
    """What is tried in a lane that is short of threads, or of processes."""

    __slots__ = ("look", "pause_s", "step", "timer")

    def __init__(self) -> None:
        self.pause_s = FIRST_RETRY_S
        self.step = 1
        """How many more than run now are tried next."""
        self.timer: asyncio.TimerHandle | None = None
        """Until the next try."""
        self.look: asyncio.TimerHandle | None = None
        """Until it is looked what has come of the last try, unless that has come back to be noted."""


class LaneFaults:
    """For one engine. `faults` has why a lane starts no more, by its name."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        dispatcher: Dispatcher,
        processes: ProcessLane,
        faults: dict[str, str],
    ) -> None:
        self._loop = loop
        self._dispatcher = dispatcher
        self._processes = processes
        self._faults = faults
        self._shortages: dict[Lane, Shortage] = {}

    def __repr__(self) -> str:
        return f"<LaneFaults of {', '.join(self._shortages) or 'no lane'}>"

    def note(self, lane: Lane, outcome: Outcome) -> None:
        """What an attempt of this lane came to, once its slot is free again."""
        if outcome.kind != "unstarted" or outcome.reason is None:
            return
        reason, slots = outcome.reason, self._dispatcher.lanes[lane]
        slots.cap = slots.running
        self._faults[f"{lane} lane"] = reason
        shortage = self._shortages.get(lane)
        if shortage is None:
            shortage = self._shortages[lane] = Shortage()
            logger.error("the %s lane starts no more tasks now; they wait, and it is tried again: %s", lane, reason)
        if shortage.timer is None:  # else several of them found it at once
            shortage.step = 1
            if shortage.look is not None:
                shortage.look.cancel()  # the last try was in vain
            shortage.timer = self._loop.call_later(shortage.pause_s, self._try_again, lane, shortage)
            shortage.pause_s = min(shortage.pause_s * 2, LAST_RETRY_S)

    def _try_again(self, lane: Lane, shortage: Shortage) -> None:
        """Let a few more start. Unless one of them comes back to `note`, there is more to be had."""
        slots = self._dispatcher.lanes[lane]
        slots.cap = slots.running + shortage.step
        shortage.timer = None
        self._dispatcher.wants_take()
        self._look_later(lane, shortage)

    def _look_later(self, lane: Lane, shortage: Shortage) -> None:
        shortage.look = self._loop.call_later(shortage.pause_s, self._look, lane, shortage)

    def _look(self, lane: Lane, shortage: Shortage) -> None:
        if lane == "process" and self._processes.is_coming_up:
            self._look_later(lane, shortage)
            return
        slots = self._dispatcher.lanes[lane]
        if _is_whole(slots):
            slots.cap = None
            del self._shortages[lane]
            self._faults.pop(f"{lane} lane", None)
            logger.warning("the %s lane starts tasks again", lane)
            self._dispatcher.wants_take()
            return
        shortage.step *= 2
        if not slots.has_room:  # all that were let in have begun
            shortage.pause_s = FIRST_RETRY_S
        self._try_again(lane, shortage)


def _is_whole(slots: Slots) -> bool:
    return slots.limit is None or (slots.cap is not None and slots.cap >= slots.limit)
