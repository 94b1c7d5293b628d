"""Has the store looked at soon after somebody has written.

That matters while somebody here waits for a task that others run, and beside instances that leave their tasks to
others. In all other cases the look every `store_poll` seconds is soon enough, and this costs nothing. Where a server
tells of each commit of others, a watch costs nothing either, and there is always one. But most of these commits may
concern nobody here: after a look that has brought no work, the next one waits for `LOOK_S`. Three others that commit
150 times a second would else have an idle instance look 100 times a second, for a quarter of a core.

A write shows before its commit counts. So the store is looked at again and again for a moment after a write. In quiet
times the system wakes us, where it can.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from taskmanager.engine.engine import Engine
from taskmanager.engine.words.timers import next_beat

LOOK_S: Final = 0.025
"""How often the mark of the store is looked at while somebody may just have written."""
QUIET_LOOK_S: Final = 0.0625
"""How often it is looked at in other times, where the system does not tell of the next write."""
UNSETTLED_S: Final = 0.1
"""How long after a write its commit may come. A later one is noticed by the poll."""


class WriteWatch:
    """Watches the writes of other instances for one engine. `look_soon` asks for a look at the store."""

    def __init__(self, engine: Engine, look_soon: Callable[[], None]) -> None:
        self._store, self._life, self._follower = engine.store, engine.life, engine.follower
        self._dispatcher, self._neighbours, self._free_rows = engine.dispatcher, engine.neighbours, engine.free_rows
        self._only_enqueues = engine.settings.only_enqueues
        self._look_soon = look_soon
        self._timer: asyncio.TimerHandle | None = None
        self._descriptor: int | None = None
        """It can be read after the next write."""
        self._mark: object = None
        self._unsettled_until_s = self._quiet_until_s = 0.0
        self.has_brought_work = False
        """Whether the last look has."""
        self._follower.begins_to_wait = self._begin

    def __repr__(self) -> str:
        state = "waits for a write" if self._descriptor is not None else "idle" if self._timer is None else "looks"
        return f"<WriteWatch {state}>"

    @property
    def _is_awaited(self) -> bool:
        """Whether somebody here waits for what others do."""
        return bool(self._follower or self._free_rows.awaited_count)

    def begin(self) -> None:
        """Watch from now on, if it matters and is not done yet."""
        is_told = self._store.is_told
        if self._descriptor is not None and not is_told and self._store.mark() != self._mark:
            self._ring()  # it is another file by now, say, of which the system does not tell
        elif self._is_awaited or ((is_told or self._neighbours.leave_work) and not self._only_enqueues):
            self._begin()

    def close(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._descriptor is not None:
            self._life.loop.remove_reader(self._descriptor)
        self._timer = self._descriptor = None

    def _begin(self, pause_s: float = LOOK_S) -> None:
        life = self._life
        if self._timer is None and self._descriptor is None and life.is_up and not life.is_stopping:
            loop = life.loop
            self._timer = loop.call_at(next_beat(loop.time(), pause_s), self._look)

    def _ring(self) -> None:
        self.close()
        loop = self._life.loop
        if not self._store.is_told:
            self._unsettled_until_s = loop.time() + UNSETTLED_S  # its time may be that of the write before
            self._look()
        elif loop.time() < self._quiet_until_s and not (self.has_brought_work or self._is_awaited):
            self._timer = loop.call_at(self._quiet_until_s, self._look)
        else:
            self._look_at_once(self._store.mark())
            self._rest()

    def _look_at_once(self, mark: object) -> None:
        self._mark, self._quiet_until_s = mark, self._life.loop.time() + LOOK_S
        self._look_soon()

    def _look(self) -> None:
        self._timer, now_s = None, self._life.loop.time()
        mark = self._store.mark()
        if mark is None:  # nobody can tell
            return
        if self._store.is_told:
            self._rest()
            return
        if mark != self._mark:
            self._mark, self._unsettled_until_s = mark, now_s + UNSETTLED_S
        if now_s >= self._unsettled_until_s:
            self._rest()
            return
        if self._is_awaited or any(lane.has_room for lane in self._dispatcher.lanes.values()):
            self._look_soon()
        self.begin()

    def _rest(self) -> None:
        """Wait for the next write, which the system or the server tells of, or else look again."""
        descriptor, mark = self._store.watch(), self._store.mark()
        if descriptor is None or (mark != self._mark and not self._store.is_told):
            self._begin(QUIET_LOOK_S)
            return
        if mark != self._mark:  # it was told before the descriptor was there
            self._look_at_once(mark)
        try:
            self._life.loop.add_reader(descriptor, self._ring)
        except NotImplementedError:  # a loop of a GUI toolkit
            self._begin(QUIET_LOOK_S)
        else:
            self._descriptor = descriptor
