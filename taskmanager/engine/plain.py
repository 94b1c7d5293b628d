"""Ends a plain run in one step: the first run of a task, which succeeds, and to which nothing unusual was done.

Nearly every run is plain. What is done here is what `Engine.report` does for any outcome, without its layers, which
would decide nothing for such a run. `Attempt.is_plain` says whether a run may end here.
"""

from collections.abc import Callable
from typing import Any

from taskmanager.engine.attempt import Attempt
from taskmanager.engine.dispatch import Dispatcher
from taskmanager.engine.live_task import LiveTask
from taskmanager.engine.phases import ENDED
from taskmanager.engine.settle import Settlement
from taskmanager.engine.waiters import Follower
from taskmanager.engine.writer import Writer


class PlainSuccess:
    """The parts of one engine that hear of a plain success."""

    def __init__(
        self,
        settlement: Settlement,
        writer: Writer,
        follower: Follower,
        dispatcher: Dispatcher,
        drop: Callable[[LiveTask], None],
    ) -> None:
        self._settlement = settlement
        self._writer = writer
        self._follower = follower
        self._dispatcher = dispatcher
        self._drop = drop

    def complete(self, attempt: Attempt, value: Any) -> None:
        """End the task with this value, and give its slot back."""
        live = attempt.live
        attempt.is_over, attempt.task, live.attempt = True, None, None
        if attempt.timer is not None:
            attempt.timer.cancel()
        self._settlement.complete(live, attempt, value)
        self._dispatcher.move(live, ENDED)
        if live.is_persisted:
            self._writer.mark(live)
        else:
            self._writer.record(live)
            live.is_published = True
            self._follower.tell_end(live)
            live.context = None
            if not live.encodes_later:
                live.call_args = live.call_kwargs = None
            self._drop(live)
        if attempt.has_slot:
            attempt.has_slot = False
            self._dispatcher.give_back(live)
