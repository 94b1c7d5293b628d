"""Lanes for which the system gives no thread, or no child process, now: they start nothing, and are tried again.

A task whose code could not begin has not failed. It waits with the others of its lane until the next try, which comes
ever more seldom, or until something of that lane has ended: whoever ran that is free for the next one.
"""

import asyncio
from typing import Final

from taskmanager.engine.dispatch import Dispatcher
from taskmanager.engine.settle import Outcome
from taskmanager.model.logger import logger
from taskmanager.model.states import Lane

FIRST_RETRY_S: Final = 0.5
LAST_RETRY_S: Final = 30.0


class LaneFaults:
    """For one engine. `faults` has why a lane starts nothing, by its name."""

    def __init__(self, loop: asyncio.AbstractEventLoop, dispatcher: Dispatcher, faults: dict[str, str]) -> None:
        self._loop = loop
        self._dispatcher = dispatcher
        self._faults = faults
        self._pauses_s: dict[Lane, float] = {}

    def __repr__(self) -> str:
        return f"<LaneFaults of {', '.join(self._pauses_s) or 'no lane'}>"

    def note(self, lane: Lane, outcome: Outcome) -> None:
        """What an attempt of this lane came to, once its slot is free again."""
        if outcome.kind == "unstarted":
            self._hold(lane, outcome.reason or "")
        elif lane in self._pauses_s:
            del self._pauses_s[lane]
            self._faults.pop(f"{lane} lane", None)
            logger.warning("the %s lane starts tasks again", lane)
            self._let_go(lane)

    def _hold(self, lane: Lane, reason: str) -> None:
        slots = self._dispatcher.lanes[lane]
        if slots.is_held:
            return  # several of them found it at once
        if lane not in self._pauses_s:
            logger.error("the %s lane starts no tasks now; they wait, and it is tried again: %s", lane, reason)
        self._faults[f"{lane} lane"] = reason
        pause_s = self._pauses_s.get(lane, FIRST_RETRY_S)
        self._pauses_s[lane] = min(pause_s * 2, LAST_RETRY_S)
        slots.is_held = True
        self._loop.call_later(pause_s, self._let_go, lane)

    def _let_go(self, lane: Lane) -> None:
        self._dispatcher.lanes[lane].is_held = False
        self._dispatcher.wants_take()
