"""Sharing work with the other instances on the file: an idle one takes over what waits in the memory of a busy one.

What is taken over is started in the same transaction, so nothing of it ever waits here, and nothing can go back. The
instance that had the task hears of it when it looks at its waiting rows, or at the latest when its own start is
refused. It drops the task then; whoever waits for it follows the row.
"""

from collections.abc import Callable, Iterator
from typing import Final

from taskmanager.engine.claiming import Claimer
from taskmanager.engine.engine import Engine
from taskmanager.engine.instance import EARLY_S, Neighbours
from taskmanager.engine.live_task import LiveTask
from taskmanager.engine.phases import READY
from taskmanager.model.clock import SECOND_US
from taskmanager.model.record import TaskRow
from taskmanager.store.protocol import WaitingLevel

MAX_LEVELS: Final = 1_000
"""Queues, with each of their priorities, that one look for waiting tasks takes into account."""
PAGE: Final = 500
PAGES_PER_LOOK: Final = 10
"""How many waiting tasks one look compares with their rows: 10 ms of the reader's thread."""


class Sharing:
    """Takes over tasks of other instances for one engine, and drops those that others have taken over from it."""

    def __init__(
        self,
        engine: Engine,
        claimer: Claimer,
        neighbours: Neighbours,
        lost: Callable[[LiveTask, TaskRow], None],
    ) -> None:
        self._store, self._clock, self._identity = engine.store, engine.clock, engine.identity
        self._live, self._dispatcher, self._window = engine.live, engine.dispatcher, engine.window
        self._follower, self._settings, self._life = engine.follower, engine.settings, engine.life
        self._claimer = claimer
        self._neighbours = neighbours
        self._lost = lost
        self._is_at_work = False
        """Whether the last look took something over, so that there may be more."""
        self._next_look_s = 0.0
        self._next_due_at: float = 0
        """Nothing that waits at others is due before, unless somebody has written since."""
        self._is_news = False
        """Whether others have written since all that waits here was compared with its rows."""
        self._unchecked: Iterator[LiveTask] | None = None

    def __repr__(self) -> str:
        return f"<Sharing {'at work' if self._is_at_work else 'idle'} beside {len(self._neighbours.living)} others>"

    async def look(self, *, changed: bool) -> None:
        """Look once, in both directions. `changed`: others have written to the store."""
        if not self._neighbours.living or self._life.is_stopping:
            return
        self._is_news = self._is_news or changed
        await self._drop_lost()
        if changed:
            self._next_due_at = 0
        if self._is_idle() and await self._take_over():
            self._is_at_work = True

    # What others have taken from here.

    async def _drop_lost(self) -> None:
        """Compare some of what waits here with its rows, and drop what others have."""
        if self._unchecked is None:
            if not self._is_news:
                return
            self._is_news, self._unchecked = False, iter(list(self._live.values()))
        for _ in range(PAGES_PER_LOOK):
            page = self._next_page(self._unchecked)
            if not page:
                self._unchecked = None
                break
            rows = await self._store.fetch_taken(list(page), self._identity.instance_id)
            for task_id, row in rows.items():
                if page[task_id] is self._live.get(task_id) and _waits_in_the_file(page[task_id]):
                    self._lost(page[task_id], row)
        await self._follower.forget_ended()

    @staticmethod
    def _next_page(unchecked: Iterator[LiveTask]) -> dict[str, LiveTask]:
        page: dict[str, LiveTask] = {}
        for live in unchecked:
            if _waits_in_the_file(live):
                page[live.task_id] = live
                if len(page) == PAGE:
                    break
        return page

    # What is taken over here.

    def _is_idle(self) -> bool:
        """Whether there are slots that nothing here waits for. Beside a suspect nothing is taken over."""
        if not self._life.is_up or self._dispatcher.suspect is not None or self._dispatcher.is_store_degraded:
            return False
        is_batch_over = self._is_at_work and not self._window.taken_over
        if not is_batch_over and self._life.loop.time() < self._next_look_s - EARLY_S:
            return False
        return any(self._dispatcher.spare_slots(lane) for lane in self._dispatcher.lanes)

    async def _take_over(self) -> bool:
        """Take over what has waited long enough, as far as there are slots. Return whether there was anything."""
        poll_s = self._settings.store_poll_s
        self._is_at_work = False
        self._next_look_s = self._life.loop.time() + poll_s
        due_at = self._clock.now_us() - round(poll_s * SECOND_US)
        if self._next_due_at > due_at:
            return False
        levels = await self._store.waiting_levels(MAX_LEVELS)
        self._next_due_at = min((each.next_due_at for each in levels), default=float("inf"))
        for queue_name in self._in_turn(levels, due_at):
            rows = await self._claimer.take_over(queue_name, due_at)
            found = (self._live.get(row.task_id) for row in rows)
            self._window.taken_over += [live for live in found if live is not None]
        return bool(self._window.taken_over)

    def _in_turn(self, levels: list[WaitingLevel], due_at: int) -> list[str]:
        """The queues with tasks to take over, the best one first.

        Where a limit holds for all instances, what waits is free in the file, and what is claimed has its place.
        """
        best: dict[str, tuple[int, int, int]] = {}
        for each in levels:
            queue = self._dispatcher.queue(each.queue_name)
            if each.next_due_at <= due_at and not queue.is_paused and queue.shared_limit is None:
                best.setdefault(each.queue_name, (queue.config.priority, each.priority, each.next_due_at))
        return sorted(best, key=best.__getitem__)


def _waits_in_the_file(live: LiveTask) -> bool:
    """Whether it waits here for a slot, and its row says so."""
    saving = live.saving
    return live.phase is READY and saving.committed is not None and not (saving.is_dirty or saving.is_written_anew)
